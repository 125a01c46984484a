"""Bound textures are compared with the file or with checksums of their upload, while the model runs."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_models import IDS, mixed, of_family, opened, packed

import glinfer
from glinfer.engine.model import Model
from glinfer.engine.textures import MAX_TEXELS, TexturesReport, as_bits
from glinfer.errors import ContextError, InputError
from glinfer.formats import Checkpoint
from glinfer.gl.layouts.packing import GemvLayout
from glinfer.gl.texture import Texture
from glinfer.lower.weights import fold
from glinfer.program.texels import line_checksums

pytestmark = pytest.mark.gl

PROMPT = [token % 300 for token in IDS[:6]]


MODELS: dict[str, tuple[Callable[[], Checkpoint], str, str]] = {
    "llama q8": (lambda: of_family("llama"), "fast", "q8"),
    "llama in Q4_0": (lambda: packed(of_family("llama"), lambda name: "Q4_0"), "fast", "file"),
    "llama q16": (lambda: of_family("llama"), "fast", "q16"),
    "mistral, mixed, reference": (lambda: mixed("mistral"), "reference", "file"),
    "llama with padded heads in Q8_ROW": (
        lambda: packed(of_family("llama", head_dim=10), lambda name: "Q8_ROW"),
        "fast",
        "file",
    ),
}


def model_of(name: str) -> Model:
    make, plan, weights = MODELS[name]
    return opened(make(), plan, weights)


@contextmanager
def flipped(texture: Texture, x: int, y: int, channel: int, bit: int) -> Iterator[None]:
    """Flip one bit of a bound texture within the block."""
    line = texture.read_lines(y, 1)
    texel = np.ascontiguousarray(line[:, x : x + 1])
    changed = texel.copy()
    numbers = as_bits(changed).reshape(-1)
    numbers[channel] ^= numbers.dtype.type(1 << bit)
    try:
        texture.gl.write(numbers.view(texel.dtype).tobytes(), viewport=(x, y, 1, 1), alignment=4)
        yield
    finally:
        texture.gl.write(texel.tobytes(), viewport=(x, y, 1, 1), alignment=4)


def tokens(model: Model) -> list[int]:
    return model.generate(PROMPT, max_tokens=5, temperature=0)


@pytest.fixture
def loaded(small: Path, tmp_path: Path) -> Iterator[Model]:
    """A model whose file may be changed."""
    path = shutil.copy(small, tmp_path / "own.gab")
    with glinfer.load(path) as made:
        yield made


def require_as_in_files(made: Model) -> None:
    report = made.verify_textures()
    weights = made.plan.of_kind("weight")
    assert report.ok, report.different
    assert report.checked.textures == len(weights)
    assert report.checked.bytes == sum(made.bound.texture(each.name).layout.nbytes for each in weights)


class TestWhole:
    def test_every_weight_holds_what_its_file_says(self, loaded: Model, reference: Model) -> None:
        for made in (loaded, reference):
            require_as_in_files(made)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", list(MODELS))
    def test_weights_in_other_formats_hold_what_their_file_says(self, name: str) -> None:
        with model_of(name) as made:
            tokens(made)
            require_as_in_files(made)

    def test_the_lowest_bit_of_256_weights_is_found_though_no_draw_is_off(self, loaded: Model) -> None:
        """The tokens stay as they were too."""
        before, texture = tokens(loaded), loaded.bound.texture("h.0.mlp.fc_in.weight")
        texels = np.ascontiguousarray(texture.read_lines(0, texture.layout.height))
        as_bits(texels).reshape(-1)[:256] ^= 1
        texture.gl.write(texels.tobytes(), alignment=4)
        report = loaded.verify_textures()
        assert tokens(loaded) == before
        assert not report.ok
        [check] = report.different
        assert (check.name, check.differing, check.identical) == ("h.0.mlp.fc_in.weight", 256, False)
        assert len(check.texels) == MAX_TEXELS
        assert all(texel.found ^ texel.expected == 1 for texel in check.texels)
        assert 0 < check.max_difference < 1e-6

    def test_a_draw_that_samples_another_texture_is_named(self, model: Model) -> None:
        first, *others = model.bound.draws
        texture = model.bound.texture("lm_head.consts")
        model.bound.draws = (dataclasses.replace(first, textures=(texture, *first.textures[1:])), *others)
        try:
            report = model.verify_textures()
            sampled = model.verify_textures(0.1)
        finally:
            model.bound.draws = (first, *others)
        [wrong] = report.wrong_textures
        spec = model.plan.draws[0]
        assert (wrong.plan, wrong.draw, wrong.sampler) == ("fast", spec.name, spec.inputs[0][0])
        assert (wrong.found, wrong.expected) == ("lm_head.consts", spec.reads[0])
        assert not report.ok
        assert sampled.wrong_textures == report.wrong_textures
        assert model.verify_textures().ok

    def test_draws_of_sequences_prompts_and_batches_are_looked_at(self, model: Model) -> None:
        """Each plan over the weights, where the only fault is in its own last draw."""
        with model.session() as session, model.scheduler(slots=2, longest=40) as scheduler:
            session.prefill(PROMPT)
            session.generate_ids(1)
            scheduler.insert(glinfer.BatchRequest(PROMPT, {"max_tokens": 2, "top_k": 3}))
            for _ in range(4):
                scheduler.next()
            model.score([PROMPT])
            family = model.bound.family
            assert {each.plan.name for each in family} >= {"fast", "chunk", "batch", "score"}
            for each in family:
                *others, last = each.draws
                wrong = each.texture(each.plan.tensors[0].name)
                if wrong is last.textures[-1]:
                    wrong = last.framebuffer.textures[0]
                each.draws = (*others, dataclasses.replace(last, textures=(*last.textures[:-1], wrong)))
                found = model.verify_textures().wrong_textures
                each.draws = (*others, last)
                assert [(one.plan, one.draw, one.found) for one in found] == [
                    (each.plan.name, each.plan.draws[-1].name, wrong.name)
                ]
        assert model.verify_textures().ok

    @pytest.mark.slow
    def test_words_that_are_not_the_bytes_of_the_file_are_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A fold that takes other rows, the same for the upload and for the comparison."""
        words_of = fold.words_of
        monkeypatch.setattr(fold, "words_of", lambda blocks, form: words_of(np.ascontiguousarray(blocks[::-1]), form))
        with model_of("llama in Q4_0") as made:
            report = made.verify_textures()
        assert {check.name for check in report.different} >= {"h.0.attn.qkv.weight", "lm_head.weight"}
        assert all(check.identical and not check.lossless for check in report.different)

    def test_the_element_of_a_texel_is_told(self, model: Model, reference: Model) -> None:
        """The texel whose change changes that element of what is read back."""
        for made, tensor in (
            (model, "h.0.mlp.fc_in.weight"),
            (model, "h.0.mlp.fc_in.consts"),
            (model, "wpe"),
            (reference, "transformer.h.0.mlp.fc_in.weight"),
        ):
            texture = made.bound.texture(tensor)
            layout, matrix = texture.layout, np.array(made.bound.read(tensor))
            changed = matrix.copy()
            row, col = matrix.shape[0] // 2, matrix.shape[1] // 3
            changed.view(f"u{matrix.dtype.itemsize}")[row, col] ^= 1
            texels, others = (np.ascontiguousarray(layout.pack(each)).view(np.uint8) for each in (matrix, changed))
            assert np.count_nonzero(texels != others) == 1
            texture.upload(changed)
            [check] = made.verify_textures().different
            texture.upload(matrix)
            assert made.verify_textures().ok
            assert [(texel.row, texel.col) for texel in check.texels] == [(row, col)], tensor

    def test_padding_has_to_be_as_it_was(self, model: Model) -> None:
        texture = model.bound.texture("lm_head.weight")
        assert isinstance(texture.layout, GemvLayout)
        assert texture.layout.rows % 64
        place = texture.layout.width - 1, texture.layout.height - 1
        with flipped(texture, *place, 3, 0):
            [check] = model.verify_textures().different
        [texel] = check.texels
        assert (texel.x, texel.y, texel.channel, texel.row, texel.col) == (*place, 3, None, None)
        assert (texel.found, texel.expected) == (1, 0)


class TestSampled:
    def test_one_over_the_share_calls_see_every_line(self, model: Model) -> None:
        share = 0.3
        seen: set[tuple[str, int]] = set()
        read = Texture.read_lines

        def noted(texture: Texture, first: int, count: int) -> Any:
            seen.update((texture.name, line) for line in range(first, first + count))
            return read(texture, first, count)

        total = sum(model.bound.texture(each.name).layout.nbytes for each in model.plan.of_kind("weight"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Texture, "read_lines", noted)
            reports = [model.verify_textures(share) for _ in range(math.ceil(1 / share))]
        assert all(report.ok and report.checked.bytes >= share * total for report in reports)
        assert all(report.checked.bytes < share * total + 70_000 for report in reports)
        heights = {each.name: model.bound.texture(each.name).layout.height for each in model.plan.of_kind("weight")}
        assert seen == {(name, line) for name, height in heights.items() for line in range(height)}

    def test_a_flipped_bit_is_told_with_its_place(self, model: Model) -> None:
        texture = model.bound.texture("h.1.attn.out_proj.weight")
        with flipped(texture, 3, texture.layout.height - 1, 2, 31):
            reports = [model.verify_textures(0.1) for _ in range(10)]
        found = [check for report in reports for check in report.different]
        assert {check.name for check in found} == {"h.1.attn.out_proj.weight"}
        assert all(check.lines == (texture.layout.height - 1,) for check in found)
        assert all([(texel.x, texel.channel) for texel in check.texels] == [(3, 2)] for check in found)
        assert all(report.ok for report in [model.verify_textures(0.1) for _ in range(10)])


def test_a_checksum_changes_with_any_word_of_its_line_and_with_their_order() -> None:
    words = np.arange(12, dtype=np.uint32).reshape(3, 4)
    right = line_checksums(words)
    for changes in ([(1, 0)], [(1, 3)], [(1, 0), (1, 1)], [(1, 1), (1, 3)]):
        wrong = words.copy()
        for place in changes:
            wrong[place] ^= np.uint32(1 << 31)
        assert (line_checksums(wrong) == right).tolist() == [True, False, True]
    assert line_checksums(words[:, [1, 0, 2, 3]])[1] != right[1]
    halves = line_checksums(words.view(np.float16).reshape(3, 2, 4))
    assert halves.tolist() == right.tolist(), "the type of the texels does not matter"


class TestBetween:
    def test_a_model_goes_on_as_if_nothing_had_been_looked_at(self, model: Model) -> None:
        """Sequences, streams and batches, alone and with a comparison after each token."""

        def run(between: Callable[[], Any]) -> list[Any]:
            seen: list[Any] = []
            with model.session() as session:
                session.prefill(PROMPT)
                for _ in range(4):
                    seen.append(session.logits().tolist())
                    between()
                    seen += session.generate_ids(1)
            for token in model.stream(PROMPT, max_tokens=5, temperature=0.7, top_k=9, seed=3):
                seen.append(token)
                between()
            with model.scheduler(slots=2, longest=40) as scheduler:
                for ids in (PROMPT, PROMPT[:2]):
                    scheduler.insert(glinfer.BatchRequest(ids, {"max_tokens": 4, "temperature": 0}))
                for _ in range(7):
                    seen.append([each.ids for each in scheduler.next()])
                    between()
            return seen

        alone = run(lambda: None)
        assert run(lambda: model.verify_textures(0.2)) == alone
        assert run(model.verify_textures) == alone


class TestFiles:
    @pytest.mark.parametrize("how", ["gone", "longer", "written again"])
    def test_a_file_that_changed_is_told(self, loaded: Model, tmp_path: Path, how: str) -> None:
        path = tmp_path / "own.gab"
        if how == "gone":
            path.unlink()
        elif how == "longer":
            path.write_bytes(path.read_bytes() + b"\0")
        else:
            path.write_bytes(path.read_bytes())
            os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
        with pytest.raises(InputError, match=r"own\.gab is (gone|now|written again).*share below 1.*or load"):
            loaded.verify_textures()
        assert loaded.verify_textures(0.5).ok
        with flipped(loaded.bound.texture("wpe"), 1, 2, 0, 5):
            reports = [loaded.verify_textures(0.5) for _ in range(2)]
        found = [check for report in reports for check in report.different]
        assert [(check.name, check.lines, check.texels, check.differing) for check in found][:1] == [
            ("wpe", (2,), (), 0)
        ]


def test_misuse(model: Model, small: Path) -> None:
    for share in (0, -0.1, 1.01, float("nan"), float("inf"), True, "1", None):
        with pytest.raises(InputError, match=r"share is .*; expected a number above 0 and at most 1"):
            model.verify_textures(share)  # type: ignore[arg-type]
    made = glinfer.load(small)
    made.close()
    with pytest.raises(ContextError, match="was closed"):
        made.verify_textures(0.5)


def test_the_report_as_json(model: Model) -> None:
    with flipped(model.bound.texture("wpe"), 0, 0, 0, 1):
        report = model.verify_textures()
    assert isinstance(report, TexturesReport)
    document = report.to_json()
    assert (document["ok"], document["share"], document["checked"]["textures"]) == (False, 1.0, report.checked.textures)
    assert document["different"][0]["name"] == "wpe"
    assert document["different"][0]["texels"][0]["x"] == 0
