"""``glinfer look`` as a library: the logit lens, thumbnails, labels, the folder, pictures and the page."""

from __future__ import annotations

import dataclasses
import html
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scripted_models
from made_models import of_family, opened
from matplotlib.image import imread

import glinfer
from glinfer.config import ModelConfig
from glinfer.engine.model import Model
from glinfer.errors import FormatError, InputError
from glinfer.formats import BpeModel, Checkpoint, load_checkpoint, random_checkpoint
from glinfer.formats.files import work_folder
from glinfer.inspect import figures, pieces
from glinfer.inspect.figures import drawable, short, thinned
from glinfer.inspect.look import lens as lens_module
from glinfer.inspect.look.drawing import labelled_tokens
from glinfer.inspect.look.lens import head_pieces, likeliest, logit_lens
from glinfer.inspect.look.options import LookOptions
from glinfer.inspect.look.output import check_folder, filling, look, page
from glinfer.inspect.look.statistics import attention_numbers, block_of, statistics, summarize_weight
from glinfer.text.labels import token_label, visible
from glinfer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
Patch = pytest.MonkeyPatch

SMALL = ModelConfig.from_options(scripted_models.SMALL)
BYTES = Tokenizer(BpeModel((), tuple(bytes([value]) for value in range(256))))
"""A tokenizer whose tokens are the single bytes."""


@pytest.fixture(scope="module")
def model(small: Path) -> Iterator[Model]:
    with glinfer.load(small, plan="reference") as opened:
        yield opened


def test_blocks_without_attention_have_no_maps(tmp_path: Path) -> None:
    made = of_family("lfm2", num_hidden_layers=3, layer_types=("conv", "full_attention", "conv"), conv_L_cache=3)
    with opened(made, "reference") as model:
        found = look(made, tmp_path / "out", LookOptions.of(made.config, "attention"), model=model, prompt=[1, 2, 3])
    assert [each["file"] for each in found["pictures"]] == ["attention/overview.png", "attention/block-001.png"]
    assert LookOptions.of(made.config, layers="0,2").what == ("hidden", "lens", "weights")
    with pytest.raises(InputError, match="found no attention in these blocks"):
        LookOptions.of(made.config, "attention,lens", "0,2")
    with pytest.raises(InputError, match="this model embeds texts"):
        LookOptions.of(ModelConfig.from_options("family=bert"))


@pytest.fixture(scope="module")
def checkpoint(small: Path) -> Checkpoint:
    return load_checkpoint(small)


class TestLens:
    def test_pieces_of_the_vocabulary_give_what_the_whole_gives(
        self, checkpoint: Checkpoint, monkeypatch: Patch
    ) -> None:
        streams = np.random.default_rng(2).normal(size=(3, 5, 32))
        pieces = [piece for _, piece in head_pieces(checkpoint, streams.reshape(15, 32))]
        logits = np.concatenate(pieces, axis=1).reshape(3, 5, -1)
        monkeypatch.setattr(lens_module, "PIECE_ELEMENTS", 1)
        monkeypatch.setattr(lens_module, "_MIN_ROWS", 37)
        seen = logit_lens(checkpoint, list(streams))
        probs = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
        assert np.array_equal(seen.ids, logits.argmax(axis=2))
        np.testing.assert_allclose(seen.probs, probs.max(axis=2), rtol=1e-10)
        np.testing.assert_allclose(seen.last, probs[:, -1], rtol=1e-10)

    def test_a_stream_that_is_not_finite_says_nothing(self, checkpoint: Checkpoint) -> None:
        streams = np.random.default_rng(4).normal(size=(2, 3, 32))
        streams[1, 2, 5] = np.nan
        seen = logit_lens(checkpoint, list(streams))
        assert (seen.ids[1, 2], likeliest(seen.last[1], 3)) == (-1, [])
        assert np.isnan(seen.probs[1, 2])
        assert (seen.ids[:, :2] >= 0).all()
        assert len(likeliest(seen.last[0], 3)) == 3

    def test_of_equal_tokens_the_first_is_named_first(self) -> None:
        assert likeliest(np.array([0.2, 0.4, 0.0, 0.4]), 3) == [(1, 0.4), (3, 0.4), (0, 0.2)]


class TestLabels:
    def test_everything_in_a_token_can_be_seen(self) -> None:
        for piece, label in (
            (b" the", "␣the"),
            (b"a\n\t", "a↵⇥"),
            (b"\x1b[0m\r", "⟨1B⟩[0m\\r"),
            (b"\xe2\x82", "\\xe2\\x82"),
            ("é中".encode(), "é中"),
            ("\u200b".encode(), "⟨200B⟩"),
            ("\u0301".encode(), "◌\u0301"),
        ):
            assert visible(piece) == label

    def test_without_text_a_label_is_the_id(self, monkeypatch: Patch) -> None:
        assert [token["label"] for token in labelled_tokens([65, 10], None)] == ["65", "10"]
        assert [token["label"] for token in labelled_tokens([65, 10], BYTES)] == ["A", "↵"]
        monkeypatch.setattr(Tokenizer, "token_bytes", lambda *_: b"")
        assert token_label(0, BYTES) == "#0"

    def test_what_the_font_lacks_is_written_as_its_number(self) -> None:
        assert drawable("a中") == "a⟨4E2D⟩"
        assert short("中中中中") == "⟨4E2D⟩⟨4E…"

    def test_labels_are_thinned_where_there_is_no_room(self) -> None:
        assert thinned(["a", "b"], 1.0) == [(0, "a"), (1, "b")]
        many = thinned([f"t{place}" for place in range(100)], 1.44)
        assert len(many) == 10
        assert many[1] == (10, "10 t10")


class TestWanted:
    def test_layers_are_numbers_ranges_and_patterns(self) -> None:
        config = ModelConfig.from_options("blocks=12,dim=8,heads=1")
        for layers, found in (
            (None, range(12)),
            ("0,3", (0, 3)),
            ("9-40,1", (1, 9, 10, 11)),
            ("1*", (1, 10, 11)),
            ("[0-2],4-5", (0, 1, 2, 4, 5)),
        ):
            assert LookOptions.of(config, layers=layers).layers == tuple(found), layers

    def test_what_is_not_there_is_refused(self) -> None:
        for options, complaint in (
            ({"layers": "5-9"}, "found no block '5-9'; this model has blocks 0 to 1"),
            ({"layers": "last"}, "found no block 'last'"),
            ({"layers": ","}, "found no block in the list"),
            ({"what": ","}, "found no kind of picture"),
        ):
            with pytest.raises(InputError, match=re.escape(complaint)):
                LookOptions.of(SMALL, **options)

    def test_kinds_come_in_their_own_order_and_only_weights_need_no_run(self) -> None:
        assert LookOptions.of(SMALL, "weights,lens").what == ("lens", "weights")
        assert LookOptions.of(SMALL, "lens").runs
        assert not LookOptions.of(SMALL, "weights").runs


class TestNumbers:
    def test_masked_scores_are_counted_and_left_out(self) -> None:
        scores = np.array([[[1.0, -1e30], [3.0, np.nan]]], np.float32)
        report = statistics("blocks.4.attn.scores", scores)
        assert (report["layer"], report["masked"], report["nan"], report["infinite"], report["count"]) == (
            4,
            1,
            1,
            0,
            3,
        )
        assert (report["min"], report["max"], report["mean"], report["std"]) == (1.0, 3.0, 2.0, 1.0)

    def test_nothing_finite_has_no_range(self) -> None:
        report = statistics("embed", np.array([np.inf, -np.inf, np.nan], np.float32))
        assert (report["layer"], report["infinite"], report["nan"], report["min"], report["std"]) == (
            None,
            2,
            1,
            None,
            None,
        )

    def test_where_heads_look(self) -> None:
        before = np.array([[1, 0, 0], [1, 0, 0], [0, 1, 0]], np.float32)
        evenly = np.array([[1, 0, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]], np.float32)
        first, second = attention_numbers(np.stack([before, evenly]))
        assert first == {"entropy_bits": 0.0, "to_first": 0.5, "to_itself": pytest.approx(1 / 3), "to_previous": 1.0}
        assert second["entropy_bits"] == pytest.approx((0 + 1 + 1.5) / 3)
        assert second["to_previous"] == pytest.approx((0.5 + 0.25) / 2)
        assert np.isnan(attention_numbers(np.ones((1, 1, 1)))[0]["to_previous"])


def one_weight(name: str, values: Array) -> Checkpoint:
    made = random_checkpoint(ModelConfig.from_options("vocab=300,dim=140,heads=4,blocks=1,context=16"))
    assert made.tensors[name].shape == values.shape
    return dataclasses.replace(made, tensors={**made.tensors, name: values.astype(np.float32)})


class TestWeights:
    @pytest.mark.parametrize("elements", [1, 1000, 1 << 22])
    def test_a_thumbnail_is_the_mean_of_absolute_values(self, elements: int, monkeypatch: Patch) -> None:
        monkeypatch.setattr(pieces, "PIECE_ELEMENTS", elements)
        values = np.random.default_rng(6).normal(size=(300, 140)) - 0.1
        values[7] = 0.0
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

    def test_pixels_are_square_unless_a_matrix_is_very_long(self) -> None:
        for shape, block in (
            ((1, 64), (1, 1)),
            ((1, 1024), (1, 8)),
            ((1024, 256), (8, 8)),
            ((151936, 896), (1187, 28)),
        ):
            assert block_of(shape) == block


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
        with work_folder(tmp_path / "empty"):  # as after SIGKILL
            check_folder(tmp_path / "empty")
        (tmp_path / "old").mkdir()
        (tmp_path / "old" / "look.json").write_text('{"format": "glinfer-look", "pictures": []}')
        check_folder(tmp_path / "old")

    def test_other_folders_need_force(self, tmp_path: Path) -> None:
        (tmp_path / "mine.txt").write_text("mine")
        for json_text in (None, "[]", "{", '{"format": "another"}'):
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


class TestLook:
    def test_everything_is_drawn_and_told(
        self, model: Model, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: Patch
    ) -> None:
        monkeypatch.setattr(figures, "DPI", figures.DPI // 2)
        printed, folder = list[tuple[int, int]](), tmp_path / "out"
        document = look(
            checkpoint,
            folder,
            LookOptions.of(SMALL, layers="1", top=3),
            model=model,
            prompt=[ord(letter) for letter in "\n<b>"],
            about={"name": "<script>alert(1)</script>"},
            on_progress=lambda done, total: printed.append((done, total)),
        )
        assert json.loads((folder / "look.json").read_text()) == document
        files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        pictures = {picture["file"]: picture for picture in document["pictures"]}
        assert files == {*pictures, *(picture["dark"] for picture in pictures.values()), "index.html", "look.json"}
        assert set(pictures) == {
            *(f"{kind}/block-001.png" for kind in ("attention", "hidden", "weights")),
            *("attention/overview.png", "hidden/embed.png", "hidden/norms.png", "weights/outside.png"),
            *("lens/positions-000.png", "lens/last.png"),
        }
        assert printed == [(count, 9) for count in range(1, 10)]
        for name, picture in pictures.items():
            light, dark = imread(folder / name), imread(folder / picture["dark"])
            assert picture["dark"] == name.replace(".png", "-dark.png")
            assert light.shape[:2] == dark.shape[:2] == (picture["height"], picture["width"])
            assert (np.ptp(light[..., :3], axis=2) > 0.2).mean() > 0.01, f"{name} has colours"
            assert dark[..., :3].mean() < 0.6 * light[..., :3].mean(), name
            for shown in (light, dark):  # codes of signed and of missing values are replaced
                whole = (shown[..., :3] * 255).round()
                assert not ((whole[..., 1] == 0) & (whole[..., 2] == 255)).any(), name
                assert not (whole == [128, 129, 128]).all(axis=2).any(), name
            paper = dark[0, 0, :3] * 255
            assert tuple(paper.round()) == (0x18, 0x20, 0x28)
            assert np.abs(dark[7:18, 5:150, :3] * 255 - paper).max() > 150, "the title can be read"
        self.check_numbers(document, checkpoint)
        self.check_page((folder / "index.html").read_text(), pictures)

    def check_numbers(self, document: dict[str, Any], checkpoint: Checkpoint) -> None:
        assert [token["label"] for token in document["tokens"]] == ["↵", "<", "b", ">"]
        assert [len(block["heads"]) for block in document["attention"]] == [4]
        names = {numbers["name"] for numbers in document["tensors"]}
        assert {"embed", "blocks.1.attn.scores", "blocks.1.resid_post", "logits"} <= names
        assert not any(name.startswith("blocks.0.") for name in names)
        seen = document["lens"]
        assert seen["rows"] == ["embed", "block 1"]
        assert [len(row) for row in seen["labels"]] == [4] * 2
        assert [len(top) for top in seen["last"]] == [3] * 2
        assert seen["difference"] < 1e-6
        assert [each["id"] for each in seen["last"][-1]] == [each["id"] for each in document["next"]]
        assert len(document["weights"]) == sum("h.0." not in name for name in checkpoint.tensors)

    def check_page(self, text: str, pictures: Mapping[str, Any]) -> None:
        for name, picture in pictures.items():
            assert f'<a href="{name}" data-dark="{picture["dark"]}"><picture><source srcset="{picture["dark"]}"' in text
            assert f'<img src="{name}" width="{picture["width"]}"' in text
            assert f'alt="{html.escape(picture["alt"])}"' in text.replace("&#34;", "&quot;").replace("&#39;", "&#x27;")
        assert "<script>alert(1)" not in text
        assert "Inside &lt;script&gt;alert(1)" in text
        assert '<li title="position 1, id 60">&lt;</li>' in text
        assert re.findall(r"(?:https?:)?//[a-z]", re.sub(r"^ *// .*$", "", text, flags=re.MULTILINE)) == []

    def test_only_what_is_wanted_is_captured_and_drawn(
        self, model: Model, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: Patch
    ) -> None:
        asked, capture = list[list[str]](), model.capture
        monkeypatch.setattr(model, "capture", lambda names, prompt: asked.append([*names]) or capture(names, prompt))
        document = look(checkpoint, tmp_path, LookOptions.of(SMALL, "lens", "0"), model=model, prompt=[1, 2, 3])
        assert asked == [["embed", "blocks.0.resid_post", "logits"]]
        assert document["lens"]["rows"] == ["embed", "block 0"]
        assert document["lens"]["difference"] is None  # it is not the last block
        assert [picture["file"] for picture in document["pictures"]] == ["lens/positions-000.png", "lens/last.png"]
        assert 'data-kind="attention"' not in (tmp_path / "index.html").read_text()

    def test_without_matplotlib_one_line_says_what_to_install(
        self, checkpoint: Checkpoint, tmp_path: Path, monkeypatch: Patch
    ) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(InputError, match=r"matplotlib.*pip install .*\[plots\]'"):
            look(checkpoint, tmp_path / "out", LookOptions.of(SMALL, "weights"))
        assert not (tmp_path / "out").exists()


def test_the_page_of_a_document_with_nothing_in_it() -> None:
    """What is missing is left out, and never an error of the template."""
    document: dict[str, Any] = {
        "model": {"name": "x", "config": SMALL.to_dict(), "parameters": 1, "renderer": None},
        **{name: [] for name in ("tokens", "next", "what", "layers", "tensors", "attention", "weights", "pictures")},
        **{"lens": None, "norms": None, "text": None},
    }
    assert "<section" in page(document)
