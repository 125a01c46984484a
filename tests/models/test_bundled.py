"""The bundled model: what its card says is true, its name works everywhere, and its script trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from glinfer.cli.app import run
from glinfer.errors import FormatError
from glinfer.formats import bundled_models, find_model, load_checkpoint
from glinfer.inspect.draws import planned
from glinfer.models.choice import plan_for
from glinfer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.gl

TRAIN = Path(__file__).resolve().parents[2] / "examples" / "train" / "train.py"
CORPUS = Path(__file__).resolve().parents[3] / "shared" / "text" / "tinyshakespeare.txt"
TINY = {
    "vocab": 300, "dim": 32, "heads": 2, "blocks": 1, "context": 32, "steps": 60, "batch": 8,
    "cuts": 2, "warmup": 5, "dropout": 0.0, "lr": 0.01, "average": 0.9, "evaluations": 4,
}  # fmt: skip


def test_the_card_is_true() -> None:
    (model,) = bundled_models()
    checkpoint = load_checkpoint(model.path)
    checkpoint.check_finite()
    config = checkpoint.config
    assert model.name == "shakespeare"
    assert checkpoint.parameter_count == model.parameters
    assert model.bytes <= 12_000_000
    assert (config.num_hidden_layers, config.num_attention_heads, config.hidden_act) == (6, 8, "gelu_new")
    assert planned(config, plan_for(config, "reference"), 1).table.total == 244
    assert Tokenizer.from_file(model.tokenizer).vocab_size == config.vocab_size


def test_it_predicts_held_out_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A small part cannot give the card's figure exactly, but a wrong weight or a wrong pass is far from it."""
    if not CORPUS.is_file():
        pytest.skip("../shared/text/tinyshakespeare.txt is absent")
    whole = CORPUS.read_text(encoding="utf-8")
    (tmp_path / "part.txt").write_text(whole[int(0.9 * len(whole)) :][40_000:41_000], encoding="utf-8")
    assert run(["eval", "shakespeare", "--text", str(tmp_path / "part.txt"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["bits_per_byte"]
    (model,) = bundled_models()
    assert model.bits_per_byte <= 2.12
    assert found == pytest.approx(model.bits_per_byte, abs=0.35)


def test_its_name_works_where_a_model_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (
        ["generate", "shakespeare", "ROMEO:", "--max-tokens", "2", "-q"],
        ["draws", "shakespeare"],
        ["info", "shakespeare"],
        ["verify", "shakespeare"],
        ["convert", "shakespeare", "here.gab"],
        ["bench", "shakespeare", "--contexts", "4", "--runs", "1"],
    ):
        assert run(command) == 0, command
    assert "0 DIFFER" not in capsys.readouterr().out
    assert run(["models", "--json"]) == 0
    assert [model["name"] for model in json.loads(capsys.readouterr().out)] == ["shakespeare"]
    assert run(["models"]) == 0
    assert "shakespeare" in capsys.readouterr().out


def test_a_file_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shakespeare").write_bytes(small.read_bytes())
    assert load_checkpoint("shakespeare").config.hidden_size == 32


def test_an_unknown_name_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "shakespear", "ROMEO:"]) == 2
    errors = capsys.readouterr().err
    assert errors == (
        "glinfer: shakespear: there is no such file, and no bundled model of that name; bundled: shakespeare\n"
    )


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: Path) -> Path:
    """The folder of an installed package ``llm_tiny`` that has a model and cannot be imported."""
    folder = tmp_path / "site" / "llm_tiny"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('this was imported')")
    (folder / "tiny.gab").write_bytes(small.read_bytes())
    (folder / "readme.txt").write_text("no model")
    monkeypatch.syspath_prepend(folder.parent)
    return folder


@pytest.mark.parametrize("name", ["tiny", "pkg:llm_tiny", "pkg:llm_tiny/tiny.gab"])
def test_a_model_of_an_installed_package(package: Path, name: str) -> None:
    assert find_model(name) == package / "tiny.gab"
    assert load_checkpoint(name).config.hidden_size == 32
    assert "llm_tiny" not in sys.modules


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pkg:llm_nobody", "no package of that name is installed; install it with pip, or give a path"),
        ("pkg:", "found no name of a package; expected one"),
        ("pkg:../llm_tiny", "no package of that name is installed"),
        ("pkg:llm_tiny/other.gab", "found no model file in"),
        ("pkg:llm_tiny/../tiny.gab", "found no model file in"),
        ("pkg:json", "found no model file in"),
        ("pkg:llm_two", r"found a\.gab, b\.gguf; expected one of them, as pkg:llm_two/a\.gab"),
    ],
)
def test_a_package_without_one_model_is_one_line(package: Path, name: str, words: str) -> None:
    two = package.with_name("llm_two")
    two.mkdir()
    for file in ("a.gab", "b.gguf"):
        (two / file).write_bytes(b"")
    with pytest.raises(FormatError, match=words):
        find_model(name)


@pytest.mark.slow
def test_the_training_script_learns_and_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (make test-all installs it)")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (make test-all installs it)")
    text, out = tmp_path / "text.txt", tmp_path / "out"
    verse = [f"KING {name}:\nThe {name} of the night is {name}, not the day.\n" for name in ("moon", "star", "sun")]
    text.write_text("".join(verse[place * place % 3] for place in range(120)), encoding="utf-8")
    settings = [part for name, value in TINY.items() for part in (f"--{name}", str(value))]
    done = subprocess.run(
        [sys.executable, TRAIN, "--text", text, "--out", out, "--device", "cpu", *settings],
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # beside other tests more threads are slower
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = json.loads((out / "train.json").read_text(encoding="utf-8"))
    assert facts["losses"][-1] < 0.5 * facts["losses"][0], "the loss must fall"
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    for name in ("model.safetensors", "model.gab"):
        assert run(["eval", str(out / name), "--text", str(text), "--last", "0.1", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["bits_per_byte"] == pytest.approx(facts["held_out_bits_per_byte"], abs=1e-3)
