"""``glinfer look`` on a real device: the lens says what the model says, and what the command writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import commands
import numpy as np
import pytest
from tiers import tiered

import glinfer
from glinfer.config import ModelConfig
from glinfer.engine.logits import softmax
from glinfer.errors import ContextError
from glinfer.formats import load_checkpoint, random_checkpoint, save_checkpoint
from glinfer.inspect import figures
from glinfer.inspect.look.lens import head_pieces, logit_lens

pytestmark = pytest.mark.gl

Patch = pytest.MonkeyPatch

Capture = pytest.CaptureFixture[str]

PROMPT = [5, 77, 13, 200, 41]
MODELS = {
    "gab": ("small.gab", "vocab=300,dim=32,heads=4,blocks=2,context=64", "float32"),
    "llama": ("small.gguf", "family=llama,vocab=300,dim=64,heads=4,kv_heads=2,blocks=2,inner=96,context=128", "q8_0"),
}


def ran(capsys: Capture, *arguments: str | Path, status: int = 0) -> tuple[str, str]:
    """Run ``glinfer look``; what it wrote to standard output and error."""
    return commands.ran(capsys, "look", *arguments, status=status)


@pytest.fixture(autouse=True)
def empty_pictures(monkeypatch: Patch) -> None:
    """Write no pixels: other tests look at them."""

    monkeypatch.setattr(figures, "pixels_of", lambda *_, **__: np.zeros((1, 1, 4), dtype=np.uint8))


def random_model(folder: Path, kind: str) -> Path:
    name, shape, dtype = MODELS[kind]
    save_checkpoint(random_checkpoint(ModelConfig.from_options(shape), seed=4, scale=0.15), folder / name, dtype=dtype)
    return folder / name


@tiered("kind", MODELS)
def test_the_lens_behind_the_last_block_says_what_the_model_says(tmp_path: Path, kind: str) -> None:
    path = random_model(tmp_path, kind)
    with glinfer.load(path, plan="reference") as model:
        stream = model.capture("blocks.1.resid_post", PROMPT)["blocks.1.resid_post"]
        logits = model.logits(PROMPT)
    checkpoint = load_checkpoint(path)
    scale = float(np.abs(logits).max())
    pieces = [piece for _, piece in head_pieces(checkpoint, stream.astype(np.float64))]
    assert np.abs(np.concatenate(pieces, axis=1)[-1] - logits).max() < 1e-4 * scale
    seen = logit_lens(checkpoint, [stream])
    assert np.abs(seen.last[0] - softmax(logits)).max() < 1e-5
    assert seen.ids[0, -1] == logits.argmax()


def test_json_is_what_the_file_holds_and_ids_need_no_tokenizer(capsys: Capture, tmp_path: Path, bare: Path) -> None:
    out, err = ran(capsys, bare, "--ids", "3,250,1", "--what", "lens", "--out", tmp_path / "out", "--json")
    assert err == ""
    report = json.loads(out)
    assert report == json.loads((tmp_path / "out" / "look.json").read_text())
    assert [token["label"] for token in report["tokens"]] == ["3", "250", "1"]
    assert {picture["kind"] for picture in report["pictures"]} == {"lens"}
    assert ran(capsys, bare, "a text", "--out", tmp_path / "other", status=2)[1].startswith("glinfer: no tokenizer")
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_a_packed_model_with_fewer_key_heads(capsys: Capture, tmp_path: Path) -> None:
    path = random_model(tmp_path, "llama")
    report = json.loads(ran(capsys, path, "--ids", "1,2,3,4", "--out", tmp_path / "out", "--json")[0])
    assert [len(block["heads"]) for block in report["attention"]] == [4, 4]
    assert report["lens"]["difference"] < 1e-5
    by_name = {weight["name"]: weight for weight in report["weights"]}
    query = by_name["model.layers.0.self_attn.q_proj.weight"]
    assert (query["format"], query["texture"]["format"]) == ("Q8_0", "rgba32ui")
    assert by_name["model.norm.weight"]["format"] == "F32"
    with glinfer.load(path, plan="reference") as model:
        placed = {
            tensor.name: tensor.layout_within(model.device.limits.max_texture_size) for tensor in model.plan.tensors
        }
    for name, weight in by_name.items():
        texture = weight["texture"]
        found: Any = placed[name]
        assert (texture["width"], texture["height"], texture["format"]) == (
            found.width,
            found.height,
            found.format.name,
        )


@pytest.mark.slow
def test_weights_alone_open_no_device(capsys: Capture, tmp_path: Path, small: Path, monkeypatch: Patch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ContextError("nobody may open a device")

    monkeypatch.setattr("glinfer.engine.loading.open_device", refuse)
    out, _ = ran(capsys, small, "--what", "weights", "--out", tmp_path / "out")
    assert out.startswith("wrote 3 pictures")
    assert "nobody" in ran(capsys, small, "text", "--out", tmp_path / "other", status=2)[1]


def test_bad_input_is_told_in_one_line_and_nothing_is_written(capsys: Capture, tmp_path: Path, small: Path) -> None:
    for arguments, complaint in (
        ([], "found no text to run"),
        ([""], "the prompt is empty"),
        (["a", "--ids", "1"], "found both a TEXT and --ids"),
        (["a", "--what", "weights"], "does not run the model"),
        (["a", "--what", "tokens"], "unknown kind of picture 'tokens'"),
        (["a", "--layers", "2"], "blocks 0 to 1"),
        (["--ids", "1,x"], "found 'x'"),
        (["--ids", "1,300"], "ids 0 to 299"),
        (["--ids", ",".join(["1"] * 600)], "600 tokens; 'glinfer look' draws up to 512"),
        (["--ids", ",".join(["1"] * 65)], "context holds 64"),
        (["a", "--top", "0"], "at least 1"),
    ):
        out, err = ran(capsys, small, *arguments, "--out", tmp_path / "out", status=2)
        assert (out, err.count("\n")) == ("", 1)
        assert complaint in err
        assert not (tmp_path / "out").exists()
