"""``glinfer look`` on a real device: the lens says what the model says, and what the command writes and refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiers import tiered

import glinfer
from glinfer.cli.app import run
from glinfer.config import ModelConfig
from glinfer.engine.probabilities import softmax
from glinfer.errors import ContextError
from glinfer.formats import load_checkpoint, random_checkpoint, save_checkpoint
from glinfer.inspect.look.lens import lens_logits, logit_lens

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]

PROMPT = [5, 77, 13, 200, 41]
MODELS = {
    "gab": ("small.gab", "vocab=300,dim=32,heads=4,blocks=2,context=64", "float32"),
    "gpt2": ("small.safetensors", "family=gpt2,vocab=300,dim=32,heads=4,blocks=2,context=64", "float32"),
    "llama": (
        "small.gguf",
        "family=llama,vocab=300,dim=64,heads=4,kv_heads=2,blocks=2,inner=96,context=128",
        "q8_0",
    ),
    "gemma": (
        "small.safetensors",
        "family=gemma,vocab=300,dim=32,heads=2,kv_heads=1,head_dim=24,blocks=2,inner=48,context=128",
        "float16",
    ),
}


def ran(capsys: Capture, *arguments: str | Path, status: int = 0) -> tuple[str, str]:
    """Run ``glinfer look``; what it wrote to standard output and error."""
    found = run(["look", *map(str, arguments)])
    said = capsys.readouterr()
    assert found == status, said.err
    return said.out, said.err


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
    assert np.abs(lens_logits(checkpoint, stream)[-1] - logits).max() < 1e-4 * scale
    seen = logit_lens(checkpoint, [stream])
    assert np.abs(seen.last[0] - softmax(logits)).max() < 1e-5
    assert seen.ids[0, -1] == logits.argmax()


@pytest.mark.slow
def test_the_bundled_model_over_a_text(capsys: Capture, tmp_path: Path) -> None:
    out, err = ran(capsys, "shakespeare", "ROMEO:\nO", "--layers", "0,5", "--out", tmp_path / "out", "--top", "3")
    assert err == ""
    goes_on = r"8 tokens; the model goes on with \S+ [\d.]+%, \S+ [\d.]+%, \S+ [\d.]+%"
    assert re.fullmatch(rf"wrote 12 pictures into \S+\n{goes_on}\nopen \S+/out/index\.html\n", out)
    told = json.loads((tmp_path / "out" / "look.json").read_text())
    assert told["model"]["name"] == "shakespeare"
    assert told["model"]["renderer"].startswith("OpenGL")
    assert told["text"] == "ROMEO:\nO"
    assert told["layers"] == [0, 5]
    assert told["lens"]["rows"] == ["embed", "block 0", "block 5"]
    assert told["lens"]["difference"] < 1e-5
    names = {each["name"] for each in told["tensors"]}
    assert {"embed", "blocks.0.attn.scores", "blocks.5.resid_post", "logits"} <= names
    assert not any(name.startswith("blocks.1.") for name in names)
    scores = next(each for each in told["tensors"] if each["name"] == "blocks.0.attn.scores")
    length = len(told["tokens"])
    assert scores["masked"] == 8 * length * (length - 1) / 2
    assert scores["min"] > -1e6
    for picture in told["pictures"]:
        assert (tmp_path / "out" / picture["file"]).stat().st_size > 5000


def test_json_is_what_the_file_holds_and_ids_need_no_tokenizer(capsys: Capture, tmp_path: Path, bare: Path) -> None:
    out, err = ran(capsys, bare, "--ids", "3,250,1", "--what", "lens,hidden", "--out", tmp_path / "out", "--json")
    assert err == ""
    told = json.loads(out)
    assert told == json.loads((tmp_path / "out" / "look.json").read_text())
    assert [token["label"] for token in told["tokens"]] == ["3", "250", "1"]
    assert {picture["kind"] for picture in told["pictures"]} == {"lens", "hidden"}
    assert ran(capsys, bare, "a text", "--out", tmp_path / "other", status=2)[1].startswith("glinfer: no tokenizer")
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_a_packed_model_with_fewer_key_heads(capsys: Capture, tmp_path: Path) -> None:
    path = random_model(tmp_path, "llama")
    told = json.loads(ran(capsys, path, "--ids", "1,2,3,4", "--out", tmp_path / "out", "--json")[0])
    assert [len(block["heads"]) for block in told["attention"]] == [4, 4]
    assert told["lens"]["difference"] < 1e-5
    by_name = {weight["name"]: weight for weight in told["weights"]}
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
def test_weights_alone_open_no_device(
    capsys: Capture, tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ContextError("nobody may open a device")

    monkeypatch.setattr("glinfer.engine.loading.open_device", refuse)
    out, _ = ran(capsys, small, "--what", "weights", "--out", tmp_path / "out")
    assert out.startswith("wrote 3 pictures")
    assert "nobody" in ran(capsys, small, "text", "--out", tmp_path / "other", status=2)[1]


@pytest.mark.slow
def test_a_second_run_takes_the_place_of_the_first(capsys: Capture, tmp_path: Path, small: Path) -> None:
    target = tmp_path / "out"
    ran(capsys, small, "ab", "--what", "attention,lens", "--out", target)
    (target / "notes.txt").write_text("mine")
    ran(capsys, small, "ab", "--what", "attention", "--layers", "1", "--out", target)
    found = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    pictures = [f"attention/{name}.png" for name in ("block-001-dark", "block-001", "overview-dark", "overview")]
    assert found == [*pictures, "index.html", "look.json", "notes.txt"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "there is no text to look at"),
        (["a", "--ids", "1"], "found both a TEXT and --ids"),
        (["a", "--what", "weights"], "runs nothing"),
        (["a", "--what", "tokens"], "'tokens' to look at"),
        (["a", "--layers", "2"], "blocks 0 to 1"),
        (["--ids", "1,x"], "found 'x'"),
        (["--ids", "1,300"], "ids 0 to 299"),
        (["--ids", ",".join(["1"] * 600)], "600 tokens"),
        (["--ids", ",".join(["1"] * 65)], "context holds 64"),
        (["a", "--top", "0"], "at least 1"),
    ],
)
def test_bad_input_is_told_in_one_line_and_nothing_is_written(
    capsys: Capture, tmp_path: Path, small: Path, arguments: list[str], complaint: str
) -> None:
    out, err = ran(capsys, small, *arguments, "--out", tmp_path / "out", status=2)
    assert (out, err.count("\n")) == ("", 1)
    assert complaint in err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_folder_of_others_is_left_alone_unless_forced(capsys: Capture, tmp_path: Path, small: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert "--force" in ran(capsys, small, "--what", "weights", "--out", tmp_path, status=2)[1]
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    ran(capsys, small, "--what", "weights", "--out", tmp_path, "--force")
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert (tmp_path / "index.html").is_file()


@pytest.mark.slow
def test_the_page_on_diagnostics_shows_what_is_printed(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "diagnostics.md").read_text("utf-8")
    command, *lines = page.partition("```console\n$ glinfer look ")[2].partition("\n```")[0].splitlines()
    model, text, *rest = re.fullmatch(r"(\w+) \$'(.*)' (--out) (\w+)", command).groups()  # type: ignore[union-attr]
    monkeypatch.chdir(tmp_path)
    out, err = ran(capsys, model, text.replace("\\n", "\n"), *rest)
    assert (out + err).splitlines() == lines
    assert lines[1].startswith("24 tokens; "), "as the pictures have it"
