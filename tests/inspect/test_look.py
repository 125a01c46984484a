"""``glinfer look`` without OpenGL: the logit lens, thumbnails, labels, the folder, pictures and the page."""

from __future__ import annotations

import dataclasses
import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

from glinfer.config import ModelConfig
from glinfer.errors import FormatError, InputError
from glinfer.formats import BpeModel, Checkpoint, random_checkpoint
from glinfer.formats.packed import PackedTensor
from glinfer.inspect.figures import DPI, Sheet, drawable, plain_style, short, thinned
from glinfer.inspect.labels import token_label, visible
from glinfer.inspect.look import lens as lens_module
from glinfer.inspect.look import statistics as look_statistics
from glinfer.inspect.look.drawing import labelled_tokens
from glinfer.inspect.look.lens import final_norm, lens_logits, likeliest, logit_lens
from glinfer.inspect.look.options import LookOptions, prompt_ids
from glinfer.inspect.look.output import check_folder, filling, look, page
from glinfer.inspect.look.statistics import (
    attention_numbers,
    block_of,
    statistics,
    summarize_weight,
    texture_sizes,
)
from glinfer.models.choice import plan_for
from glinfer.models.oracle import run_plan
from glinfer.text.tokenizer import Tokenizer

Array = np.ndarray[Any, Any]

SMALL = ModelConfig.from_options("vocab=256,dim=32,heads=4,blocks=3,context=64")
BYTES = Tokenizer(BpeModel((), tuple(bytes([value]) for value in range(256))))
"""A tokenizer whose tokens are the single bytes."""


class Nameless(Tokenizer):
    """A tokenizer with fewer tokens than its model has rows."""

    def __init__(self) -> None:
        super().__init__(BpeModel((), tuple(bytes([value]) for value in range(256))))

    def token_bytes(self, token: int) -> bytes:
        return b""


class OracleModel:
    """A model that ``look`` can watch: Gab's reference plan, run by the float64 oracle."""

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer | None = BYTES) -> None:
        self.checkpoint, self.config, self.tokenizer = checkpoint, checkpoint.config, tokenizer
        self.asked: list[list[str]] = []

    def require_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise InputError("no tokenizer was given")
        return self.tokenizer

    def names(self) -> list[str]:
        parts = ("attn.norm", "attn.scores", "attn.probs", "resid_mid", "mlp.hidden", "resid_post")
        blocks = [f"blocks.{block}.{part}" for block in range(self.config.num_hidden_layers) for part in parts]
        return ["embed", *blocks, "final_norm", "logits"]

    def capture(self, patterns: str | Sequence[str], prompt: str | Sequence[int]) -> Mapping[str, Array]:
        assert not isinstance(prompt, str)
        wanted = [patterns] if isinstance(patterns, str) else list(patterns)
        self.asked.append(wanted)
        plan, inputs = plan_for(self.config, "reference"), {"tokens": np.array(prompt)[:, None]}
        run = run_plan(plan, self.checkpoint.tensors, inputs, {"rows": len(prompt)})
        found = {draw.name: written.astype(np.float32) for draw, written in run}
        of_draw = {"attn.norm": "ln_1", "resid_mid": "attn.out_proj", "mlp.hidden": "mlp.fc_in"}
        made = {"embed": found["embed"], "final_norm": found["ln_f"], "logits": found["lm_head"]}
        for name in self.names()[1:-2]:
            _, block, part = name.split(".", 2)
            if part in ("attn.scores", "attn.probs"):
                heads = [f"h.{block}.attn.head.{head}.{part[5:]}" for head in range(self.config.num_attention_heads)]
                made[name] = np.stack([found[head] for head in heads])
            else:
                made[name] = found[f"h.{block}.{of_draw.get(part, 'mlp.fc_out')}"]
        return {name: made[name] for name in self.names() if any(fnmatchcase(name, each) for each in wanted)}


@pytest.fixture(scope="module")
def model() -> OracleModel:
    return OracleModel(random_checkpoint(SMALL, seed=3, scale=0.2))


def png(path: Path) -> Array:
    """The pixels of a PNG."""
    pixels: Array = imread(path, format="png")
    return pixels


FAMILIES = {
    "gab": "",
    "gpt2": "family=gpt2,",
    "llama": "family=llama,",
    "gemma": "family=gemma,",
    "gift_of_gab": "family=gift_of_gab,",
}


def normed_by_hand(checkpoint: Checkpoint, rows: Array) -> Array:
    """The final norm of each family, as its paper has it."""
    tensors, kind = checkpoint.tensors, checkpoint.config.model_type
    if kind in ("gab", "gpt2"):
        centred = rows - rows.mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + checkpoint.config.layer_norm_eps)
        return scaled * tensors["transformer.ln_f.weight"] + tensors["transformer.ln_f.bias"]
    scaled = rows / np.sqrt((rows**2).mean(axis=1, keepdims=True) + checkpoint.config.layer_norm_eps)
    return scaled * (tensors["model.norm.weight"].astype(np.float64) + (1 if kind == "gemma" else 0))


def head_by_hand(checkpoint: Checkpoint) -> tuple[Array, Array | float]:
    """The vocabulary's matrix and its bias."""
    tensors = checkpoint.tensors
    for name in ("lm_head.weight", "model.embed_tokens.weight", "transformer.wte.weight"):
        if name in tensors:
            return tensors[name].astype(np.float64), tensors.get("lm_head.bias", 0.0)
    raise AssertionError


class TestLens:
    @pytest.mark.parametrize("family", FAMILIES)
    def test_the_norm_and_the_head_are_those_of_the_family(self, family: str) -> None:
        config = ModelConfig.from_options(FAMILIES[family] + "vocab=300,dim=32,heads=4,blocks=1,context=16,inner=48")
        checkpoint = random_checkpoint(config, seed=5, scale=0.3)
        rows = np.random.default_rng(1).normal(size=(6, 32)) * 3 + 1
        normed = normed_by_hand(checkpoint, rows)
        weight, bias = head_by_hand(checkpoint)
        np.testing.assert_allclose(final_norm(checkpoint, rows), normed, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(lens_logits(checkpoint, rows), normed @ weight.T + bias, rtol=1e-11, atol=1e-11)

    def test_the_last_layer_says_what_the_model_says(self, model: OracleModel) -> None:
        found = model.capture(["blocks.2.resid_post", "logits"], [7, 200, 31, 4])
        expected = found["logits"][0].astype(np.float64)
        assert np.abs(lens_logits(model.checkpoint, found["blocks.2.resid_post"])[-1] - expected).max() < 1e-5
        seen = logit_lens(model.checkpoint, [found["blocks.2.resid_post"]])
        probs = np.exp(expected) / np.exp(expected).sum()
        assert np.abs(seen.last[0] - probs).max() < 1e-6
        assert seen.top(0, 1)[0][0] == int(expected.argmax())

    def test_pieces_of_the_vocabulary_give_what_the_whole_gives(
        self, model: OracleModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        streams = np.random.default_rng(2).normal(size=(3, 5, 32))
        logits = np.stack([lens_logits(model.checkpoint, stream) for stream in streams])
        monkeypatch.setattr(lens_module, "PIECE_ELEMENTS", 1)
        monkeypatch.setattr(lens_module, "_MIN_ROWS", 37)
        seen = logit_lens(model.checkpoint, list(streams))
        probs = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
        assert np.array_equal(seen.ids, logits.argmax(axis=2))
        np.testing.assert_allclose(seen.probs, probs.max(axis=2), rtol=1e-10)
        np.testing.assert_allclose(seen.last, probs[:, -1], rtol=1e-10)

    def test_a_head_that_is_kept_packed(self, model: OracleModel) -> None:
        rows = np.random.default_rng(3).normal(size=(2, 32))
        checkpoint = model.checkpoint
        halves = np.ascontiguousarray(checkpoint.tensors["lm_head.weight"].astype("<f2"))
        others = {name: tensor for name, tensor in checkpoint.tensors.items() if name != "lm_head.weight"}
        packed = {"lm_head.weight": PackedTensor("F16", halves.view(np.uint8))}
        as_floats = {**others, "lm_head.weight": halves.astype(np.float32)}
        found = lens_logits(dataclasses.replace(checkpoint, tensors=others, packed=packed), rows)
        assert np.array_equal(found, lens_logits(dataclasses.replace(checkpoint, tensors=as_floats), rows))

    def test_a_stream_that_is_not_finite_says_nothing(self, model: OracleModel) -> None:
        streams = np.random.default_rng(4).normal(size=(2, 3, 32))
        streams[1, 2, 5] = np.nan
        seen = logit_lens(model.checkpoint, list(streams))
        assert (seen.ids[1, 2], seen.top(1, 3)) == (-1, [])
        assert np.isnan(seen.probs[1, 2])
        assert (seen.ids[:, :2] >= 0).all()
        assert len(seen.top(0, 3)) == 3

    def test_of_equal_tokens_the_first_is_named_first(self) -> None:
        assert likeliest(np.array([0.2, 0.4, 0.0, 0.4]), 3) == [(1, 0.4), (3, 0.4), (0, 0.2)]

    @pytest.mark.parametrize("shapes", [[], [(0, 32)], [(3, 31)], [(3, 32), (2, 32)]])
    def test_streams_of_other_shapes_are_refused(self, model: OracleModel, shapes: list[tuple[int, int]]) -> None:
        with pytest.raises(InputError, match="stream"):
            logit_lens(model.checkpoint, [np.zeros(shape) for shape in shapes])


class TestLabels:
    @pytest.mark.parametrize(
        ("piece", "label"),
        [
            (b" the", "␣the"),
            (b"a\n\t", "a↵⇥"),
            (b"\x1b[0m\r", "⟨1B⟩[0m\\r"),
            (b"\xe2\x82", "\\xe2\\x82"),
            ("é中".encode(), "é中"),
            ("\u200b".encode(), "⟨200B⟩"),
            ("\u0301".encode(), "◌\u0301"),
        ],
    )
    def test_everything_in_a_token_can_be_seen(self, piece: bytes, label: str) -> None:
        assert visible(piece) == label

    def test_without_text_a_label_is_the_id(self) -> None:
        assert [token.label for token in labelled_tokens([65, 10], None)] == ["65", "10"]
        assert [token.label for token in labelled_tokens([65, 10], BYTES)] == ["A", "↵"]
        assert token_label(0, Nameless()) == "#0"

    def test_what_the_font_lacks_is_written_as_its_number(self) -> None:
        assert drawable("a中") == "a⟨4E2D⟩"
        assert short("中中中中") == "⟨4E2D⟩⟨4E…"

    def test_labels_are_thinned_where_there_is_no_room(self) -> None:
        assert thinned(["a", "b"], 1.0) == [(0, "a"), (1, "b")]
        many = thinned([f"t{place}" for place in range(100)], 1.44)
        assert len(many) == 10
        assert many[1] == (10, "10 t10")


class TestWanted:
    @pytest.mark.parametrize(
        ("layers", "found"),
        [
            (None, range(12)),
            ("0,3", (0, 3)),
            ("9-40,1", (1, 9, 10, 11)),
            ("1*", (1, 10, 11)),
            ("[0-2],4-5", (0, 1, 2, 4, 5)),
        ],
    )
    def test_layers_are_numbers_ranges_and_patterns(self, layers: str | None, found: Sequence[int]) -> None:
        config = ModelConfig.from_options("blocks=12,dim=8,heads=1")
        assert LookOptions.of(config, layers=layers).layers == tuple(found)

    @pytest.mark.parametrize(
        ("options", "complaint"),
        [
            ({"layers": "3"}, "no block is called '3'; this model has blocks 0 to 2"),
            ({"layers": "5-9"}, "no block is called '5-9'"),
            ({"layers": "last"}, "no block is called 'last'"),
            ({"layers": ","}, "no block was named"),
            ({"what": "lens,lenses"}, "'lenses' to look at"),
            ({"what": ","}, "nothing to look at"),
            ({"top": 0}, "at least 1"),
        ],
    )
    def test_what_is_not_there_is_refused(self, options: dict[str, Any], complaint: str) -> None:
        with pytest.raises(InputError, match=re.escape(complaint)):
            LookOptions.of(SMALL, **options)

    def test_kinds_come_in_their_own_order_and_only_weights_need_no_run(self) -> None:
        assert LookOptions.of(SMALL, "weights,lens").what == ("lens", "weights")
        assert LookOptions.of(SMALL, "lens").runs
        assert not LookOptions.of(SMALL, "weights").runs

    def test_a_text_that_is_too_long_or_no_text_is_refused(self, model: OracleModel) -> None:
        with pytest.raises(InputError, match=r"600 tokens.*up to 512"):
            prompt_ids(model, "x" * 600)
        with pytest.raises(InputError, match="empty"):
            prompt_ids(model, "")
        with pytest.raises(InputError, match="65 tokens; this model's context holds 64"):
            prompt_ids(model, [1] * 65)


class TestNumbers:
    def test_masked_scores_are_counted_and_left_out(self) -> None:
        scores = np.array([[[1.0, -1e30], [3.0, np.nan]]], np.float32)
        told = statistics("blocks.4.attn.scores", scores)
        assert (told["layer"], told["masked"], told["nan"], told["infinite"], told["count"]) == (4, 1, 1, 0, 3)
        assert (told["min"], told["max"], told["mean"], told["std"]) == (1.0, 3.0, 2.0, 1.0)

    def test_nothing_finite_has_no_range(self) -> None:
        told = statistics("embed", np.array([np.inf, -np.inf, np.nan], np.float32))
        assert (told["layer"], told["infinite"], told["nan"], told["min"], told["std"]) == (None, 2, 1, None, None)

    def test_where_heads_look(self) -> None:
        before = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0]], np.float32)
        evenly = np.array([[1, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]], np.float32)
        first, second = attention_numbers(np.stack([before, evenly]))
        assert first == {"entropy_bits": 0.0, "to_first": 0.5, "to_itself": pytest.approx(1 / 3), "to_previous": 1.0}
        assert second["entropy_bits"] == pytest.approx((0 + 1 + 1.5) / 3)
        assert second["to_previous"] == pytest.approx((0.5 + 0.25) / 2)
        assert attention_numbers(np.ones((1, 1, 1)))[0]["to_previous"] is None


def one_weight(name: str, values: Array) -> Checkpoint:
    made = random_checkpoint(ModelConfig.from_options("vocab=300,dim=140,heads=4,blocks=1,context=16"))
    assert made.tensors[name].shape == values.shape
    return dataclasses.replace(made, tensors={**made.tensors, name: values.astype(np.float32)})


class TestWeights:
    def test_a_thumbnail_is_the_mean_of_absolute_values(self, monkeypatch: pytest.MonkeyPatch) -> None:
        values = np.random.default_rng(6).normal(size=(300, 140)) - 0.1
        values[7] = 0.0
        monkeypatch.setattr(look_statistics, "PIECE_ELEMENTS", 140 * 11)  # in parts that end within blocks
        name = "transformer.wte.weight"
        found = summarize_weight(one_weight(name, values), name, (140, 300, "r32f"))
        floats = values.astype(np.float32).astype(np.float64)
        assert found.block == (3, 3)
        assert found.image.shape == (100, 47)
        assert found.image[2, 1] == pytest.approx(np.abs(floats[6:9, 3:6]).mean())
        assert found.image[0, 46] == pytest.approx(np.abs(floats[0:3, 138:140]).mean())  # the last block is smaller
        assert found.counts.sum() == floats.size
        assert found.counts[0] == (floats < found.edges[1]).sum()
        numbers = found.stats
        assert (numbers["zeros"], numbers["nan"], numbers["infinite"]) == (140, 0, 0)
        assert numbers["min"] == floats.min()
        assert numbers["std"] == pytest.approx(floats.std())
        assert json.dumps(found.to_json(), allow_nan=False)

    def test_a_vector_keeps_its_signs(self) -> None:
        values = np.linspace(-1, 1, 140)
        name = "transformer.ln_f.bias"
        found = summarize_weight(one_weight(name, values), name, (140, 1, "r32f"))
        assert (found.shape, found.block, found.image.shape) == ((1, 140), (1, 2), (1, 70))
        assert found.image[0, 0] == pytest.approx(values[:2].mean())

    def test_what_is_not_finite_is_counted_and_seen(self) -> None:
        values = np.ones((300, 140))
        values[:3, :3], values[5, 5], values[9, :2] = np.nan, np.inf, -np.inf
        name = "lm_head.weight"
        found = summarize_weight(one_weight(name, values), name, (140, 300, "r32f"))
        assert (found.stats["nan"], found.stats["infinite"], found.stats["max"]) == (9, 3, 1.0)
        assert np.isnan(found.image[0, 0])
        assert np.nanmin(found.image) == 1.0
        assert found.counts.sum() == values.size - 12

    @pytest.mark.parametrize(
        ("shape", "block"), [((1, 64), (1, 1)), ((1, 1024), (1, 8)), ((1024, 256), (8, 8)), ((151936, 896), (1187, 28))]
    )
    def test_pixels_are_square_unless_a_matrix_is_very_long(
        self, shape: tuple[int, int], block: tuple[int, int]
    ) -> None:
        assert block_of(shape) == block

    def test_textures_are_those_of_the_reference_plan(self) -> None:
        gab = random_checkpoint(SMALL)
        assert texture_sizes(gab, 4096)["transformer.wte.weight"] == (32, 256, "r32f")
        config = ModelConfig.from_options("family=llama,vocab=300,dim=32,heads=4,blocks=1,context=100000,inner=48")
        found = texture_sizes(random_checkpoint(config), 2048)
        assert found["model.embed_tokens.weight"] == (256, 10, "rgba32f")


def interrupted(target: Path) -> None:
    """Begin to write, and be stopped."""
    with filling(target) as folder:
        (folder / "look.json").write_text("half")
        raise KeyboardInterrupt


class TestFolder:
    def test_a_new_an_empty_and_an_earlier_folder_are_taken(self, tmp_path: Path) -> None:
        assert check_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
        (tmp_path / "empty").mkdir()
        check_folder(tmp_path / "empty")
        (tmp_path / "old").mkdir()
        (tmp_path / "old" / "look.json").write_text('{"format": "glinfer-look", "pictures": []}')
        check_folder(tmp_path / "old")

    @pytest.mark.parametrize("json_text", [None, "[]", "{", '{"format": "another"}'])
    def test_other_folders_need_force(self, tmp_path: Path, json_text: str | None) -> None:
        (tmp_path / "mine.txt").write_text("mine")
        if json_text is not None:
            (tmp_path / "look.json").write_text(json_text)
        with pytest.raises(InputError, match="--force"):
            check_folder(tmp_path)
        check_folder(tmp_path, force=True)
        with pytest.raises(InputError, match="found a file"):
            check_folder(tmp_path / "mine.txt", force=True)

    def test_a_run_that_fails_leaves_everything_as_it_was(self, tmp_path: Path) -> None:
        (tmp_path / "old").mkdir()
        (tmp_path / "old" / "look.json").write_text("before")
        for target in (tmp_path / "old", tmp_path / "new"):
            with pytest.raises(KeyboardInterrupt):
                interrupted(target)
        assert [path.name for path in tmp_path.rglob("*")] == ["old", "look.json"]
        assert (tmp_path / "old" / "look.json").read_text() == "before"

    def test_pictures_of_an_earlier_run_go_and_nothing_else(self, tmp_path: Path) -> None:
        target = tmp_path / "out"
        outside = tmp_path / "victim.png"
        outside.write_text("mine")
        stale = ["attention/block-001.png", "../victim.png", "weights/../../victim.png", str(outside), "mine.txt", 7]
        old = {"format": "glinfer-look", "pictures": [{"file": name} for name in stale]}
        (target / "attention").mkdir(parents=True)
        (target / "attention" / "block-001.png").write_text("old")
        (target / "mine.txt").write_text("mine")
        (target / "look.json").write_text(json.dumps(old))
        with filling(target) as folder:
            (folder / "lens").mkdir()
            (folder / "lens" / "last.png").write_text("new")
            (folder / "look.json").write_text("new")
        assert outside.read_text() == "mine"
        found = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
        assert found == ["lens/last.png", "look.json", "mine.txt"]
        assert not (target / "attention").exists()

    def test_a_full_disk_is_told_in_one_line(self, tmp_path: Path) -> None:
        with pytest.raises(FormatError, match="No space left"), filling(tmp_path / "out"):
            raise OSError(28, os.strerror(28))
        assert not (tmp_path / "out").exists()


def sheet_pixels(tmp_path: Path) -> bytes:
    sheet = Sheet(3.0, 1.0, "A title with $x$ and <b>", "a note")
    sheet.label(1.0, 0.5, "␣$a_1")
    assert sheet.save(tmp_path / "sheet.png") == (round(7.9 * DPI), 194)
    return (tmp_path / "sheet.png").read_bytes()


class TestLook:
    def test_everything_is_drawn_and_told(self, model: OracleModel, tmp_path: Path) -> None:
        told: list[tuple[int, int]] = []
        document = look(
            model.checkpoint,
            tmp_path / "out",
            LookOptions.of(SMALL, top=5),
            model=model,
            prompt="To be,\n<b>not",
            about={"name": "<script>alert(1)</script>"},
            on_progress=lambda done, total: told.append((done, total)),
        )
        folder = tmp_path / "out"
        assert json.loads((folder / "look.json").read_text()) == document
        files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        pictures = {picture["file"]: picture for picture in document["pictures"]}
        darks = {picture["dark"]: picture for picture in pictures.values()}
        assert files == {*pictures, *darks, "index.html", "look.json"}
        for name, picture in darks.items():
            pixels = png(folder / name)
            assert name == picture["file"].replace(".png", "-dark.png")
            assert pixels.shape[:2] == (picture["height"], picture["width"])
            light = png(folder / picture["file"])
            assert pixels[..., :3].mean() < 0.6 * light[..., :3].mean(), name
            paper = pixels[0, 0, :3] * 255
            assert tuple(paper.round()) == (0x18, 0x20, 0x28)
            text = np.abs(pixels[15:35, 10:300, :3] * 255 - paper).max()
            assert text > 150, "the title can be read"
        blocks = [f"block-{block:03d}.png" for block in range(3)]
        assert set(pictures) == {
            *(f"{kind}/{name}" for kind in ("attention", "hidden", "weights") for name in blocks),
            *("attention/overview.png", "hidden/embed.png", "hidden/norms.png", "weights/outside.png"),
            *("lens/positions-000.png", "lens/last.png"),
        }
        assert told == [(count, 15) for count in range(1, 16)]
        for name, picture in pictures.items():
            pixels = png(folder / name)
            assert pixels.shape[:2] == (picture["height"], picture["width"])
            coloured = np.ptp(pixels[..., :3], axis=2) > 0.2
            assert coloured.mean() > 0.01, name
        self.check_numbers(document)
        self.check_page((folder / "index.html").read_text(), pictures)

    def check_numbers(self, document: dict[str, Any]) -> None:
        assert [token["label"] for token in document["tokens"]] == list("To␣be,↵<b>not")
        assert len(document["attention"]) == 3
        assert [len(block["heads"]) for block in document["attention"]] == [4, 4, 4]
        names = [told["name"] for told in document["tensors"]]
        assert names == OracleModel(random_checkpoint(SMALL)).names()
        seen = document["lens"]
        assert seen["rows"] == ["embed", "block 0", "block 1", "block 2"]
        assert [len(row) for row in seen["labels"]] == [13] * 4
        assert [len(top) for top in seen["last"]] == [5] * 4
        assert seen["difference"] < 1e-6
        assert [each["id"] for each in seen["last"][-1]] == [each["id"] for each in document["next"]]
        assert len(document["norms"]["values"]) == 4
        assert len(document["weights"]) == len(random_checkpoint(SMALL).tensors)

    def check_page(self, text: str, pictures: Mapping[str, Any]) -> None:
        for name, picture in pictures.items():
            assert f'<a href="{name}" data-dark="{picture["dark"]}"><picture><source srcset="{picture["dark"]}"' in text
            assert f'<img src="{name}" width="{picture["width"]}"' in text
            assert f'alt="{html.escape(picture["alt"])}"' in text.replace("&#34;", "&quot;").replace("&#39;", "&#x27;")
        assert "<script>alert(1)" not in text
        assert "Inside &lt;script&gt;alert(1)" in text
        assert '<li title="position 7, id 60">&lt;</li>' in text
        assert re.findall(r"(?:https?:)?//[a-z]", re.sub(r"^ *// .*$", "", text, flags=re.MULTILINE)) == []

    def test_only_what_is_wanted_is_captured_and_drawn(self, model: OracleModel, tmp_path: Path) -> None:
        model.asked.clear()
        wanted = LookOptions.of(SMALL, "lens", "1")
        document = look(model.checkpoint, tmp_path, wanted, model=model, prompt=[1, 2, 3])
        assert model.asked == [["embed", "blocks.1.resid_post", "logits"]]
        assert document["lens"]["rows"] == ["embed", "block 1"]
        assert document["lens"]["difference"] is None  # it is not the last block
        assert [picture["file"] for picture in document["pictures"]] == ["lens/positions-000.png", "lens/last.png"]
        assert 'data-kind="attention"' not in (tmp_path / "index.html").read_text()

    def test_layers_that_take_much_memory_are_captured_one_after_the_other(
        self, model: OracleModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from glinfer.inspect.look import drawing as look_drawing

        model.asked.clear()
        monkeypatch.setattr(look_drawing, "MAX_LOOK_BYTES", 1)
        document = look(model.checkpoint, tmp_path, LookOptions.of(SMALL, "lens"), model=model, prompt=[1, 2])
        assert model.asked == [
            ["embed", "blocks.0.resid_post", "logits"],
            ["blocks.1.resid_post"],
            ["blocks.2.resid_post"],
        ]
        assert [told["name"] for told in document["tensors"]][-1] == "logits"
        assert document["lens"]["difference"] < 1e-6

    @pytest.mark.slow
    def test_weights_alone_need_no_model(self, model: OracleModel, tmp_path: Path) -> None:
        document = look(model.checkpoint, tmp_path, LookOptions.of(SMALL, "weights", "0"))
        assert (document["tokens"], document["next"], document["lens"]) == ([], [], None)
        assert len(document["pictures"]) == 2
        with pytest.raises(InputError, match="a text"):
            look(model.checkpoint, tmp_path, LookOptions.of(SMALL, "lens"))

    @pytest.mark.slow
    def test_numbers_that_are_none_are_drawn_too(self, tmp_path: Path) -> None:
        checkpoint = random_checkpoint(SMALL, seed=1)
        tensors = {name: tensor.copy() for name, tensor in checkpoint.tensors.items()}
        tensors["transformer.h.1.mlp.fc_out.bias"][3] = np.nan
        broken = OracleModel(dataclasses.replace(checkpoint, tensors=tensors))
        document = look(
            broken.checkpoint, tmp_path, LookOptions.of(SMALL, layers="1,2"), model=broken, prompt=[1, 2, 3]
        )
        odd = [told["name"] for told in document["tensors"] if told["nan"]]
        assert odd[0] == "blocks.1.resid_post"
        assert document["lens"]["last"][-1] == []
        assert document["next"] == []
        assert 'class="odd"' in (tmp_path / "index.html").read_text()

    @pytest.mark.slow
    def test_one_token_and_many(self, tmp_path: Path) -> None:
        config = dataclasses.replace(SMALL, max_position_embeddings=100, num_hidden_layers=1)
        model = OracleModel(random_checkpoint(config, seed=2), None)
        for count, pieces in (
            (1, ["lens/positions-000.png"]),
            (70, [f"lens/positions-{n:03d}.png" for n in (0, 23, 46)]),
        ):
            wanted = LookOptions.of(config, "attention,hidden,lens")
            document = look(model.checkpoint, tmp_path, wanted, model=model, prompt=[5] * count)
            assert [picture["file"] for picture in document["pictures"] if "positions" in picture["file"]] == pieces
            assert max(picture["width"] for picture in document["pictures"]) < 2600

    @pytest.mark.slow
    def test_the_same_run_writes_the_same_bytes(self, model: OracleModel, tmp_path: Path) -> None:
        written = []
        for name, settings in (("a", {}), ("b", {"font.size": 30.0, "image.cmap": "gray", "savefig.dpi": 30})):
            with matplotlib.rc_context(settings):
                look(
                    model.checkpoint,
                    tmp_path / name,
                    LookOptions.of(SMALL, "attention,hidden,lens", "0"),
                    model=model,
                    prompt=[1, 2],
                )
                assert matplotlib.rcParams["font.size"] == settings.get("font.size", 10.0)
            files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
            written.append({path.relative_to(tmp_path / name): path.read_bytes() for path in files})
        assert written[0] == written[1]

    def test_a_sheet_takes_any_text_literally(self, tmp_path: Path) -> None:
        with plain_style():
            assert sheet_pixels(tmp_path) == sheet_pixels(tmp_path)

    def test_without_matplotlib_one_line_says_what_to_install(
        self, model: OracleModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(InputError, match=r"matplotlib.*pip install .*\[plots\]'"):
            look(model.checkpoint, tmp_path / "out", LookOptions.of(SMALL, "weights"))
        assert not (tmp_path / "out").exists()

    @pytest.mark.slow
    def test_matplotlib_is_imported_late_and_never_pyplot(self, tmp_path: Path) -> None:
        program = (
            "import sys; from glinfer.cli import look; assert 'matplotlib' not in sys.modules;"
            "from glinfer.inspect.look.options import LookOptions; from glinfer.inspect.look.output import look;"
            "from glinfer.formats import random_checkpoint;"
            "from glinfer.config import ModelConfig;"
            "config = ModelConfig.from_options('vocab=256,dim=8,heads=1,blocks=1');"
            "look(random_checkpoint(config), sys.argv[1], LookOptions.of(config, 'weights'));"
            "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", program, str(tmp_path / "out")], check=True)


def test_the_page_of_a_document_with_nothing_in_it() -> None:
    """What is missing is left out, and never an error of the template."""
    document: dict[str, Any] = {
        "model": {"name": "x", "config": SMALL.to_dict(), "parameters": 1, "renderer": None},
        **{name: [] for name in ("tokens", "next", "what", "layers", "tensors", "attention", "weights", "pictures")},
        **{"lens": None, "norms": None, "text": None},
    }
    assert "<section" in page(document)
