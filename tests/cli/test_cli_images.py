"""``--image`` and ``--mmproj`` of the commands that write text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import pipe
from goldens.pictures import about, picture, write_smolvlm

import glinfer
from glinfer.cli.app import run

pytestmark = pytest.mark.gl


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_smolvlm(tmp_path_factory.mktemp("pictures") / "model")
    picture().save(folder.parent / "a.png")
    return folder


def test_generate_and_chat(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    image = str(folder.parent / "a.png")
    with glinfer.load(folder) as model:
        wanted = model.chat(about(picture()), max_tokens=5, temperature=0)
    line = ["generate", str(folder), "What is it?", "--image", image, "-n", "5", "-t", "0", "--json"]
    for more in ([], ["--speculate", "ngram"]):
        assert run([*line, *more]) == 0
        assert json.loads(capsys.readouterr().out)["text"] == wanted

    def say(text: str) -> Any:
        pipe(monkeypatch, text.encode())
        return run(["chat", str(folder), "-n", "5", "-t", "0", *(["--image", image] if "/image" not in text else [])])

    assert say("What is it?\n") == 0
    first = capsys.readouterr().out
    assert say(f"/image {image}\nWhat is it?\n") == 0
    assert capsys.readouterr().out.endswith(first)
    assert first.startswith(wanted)
    assert say("/image /none.png\n") == 2
    assert "/none.png" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--image", "/none.png"], "/none.png: cannot read it"),
        (["--image", "a.png", "--keep", "3"], "leave out --keep"),
        (["--image", "a.png", "--batch", "p.jsonl", "--out", "r.jsonl"], "--image"),
        (["--mmproj", "/none.gguf"], "/none.gguf"),
    ],
)
def test_refusals(folder: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str) -> None:
    more = [str(folder.parent / each) if each == "a.png" else each for each in more]
    prompt = [] if "--batch" in more else ["What?"]
    assert run(["generate", str(folder), *prompt, "-n", "2", *more]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_look_at_an_image(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    image = ["--image", str(folder.parent / "a.png"), "--out", str(tmp_path / "out"), "--what", "lens", "--json"]
    assert run(["look", str(folder), "What is it?", *image]) == 0
    found = json.loads(capsys.readouterr().out)
    with glinfer.load(folder) as model:
        ids = model.chat_ids(about(picture()))
        likeliest = int(model.logits(ids).argmax())
    assert [each["id"] for each in found["tokens"]] == ids
    assert {each["label"] for each in found["tokens"] if each["id"] >= 320} == {"[image]"}
    assert found["next"][0]["id"] == likeliest
    assert run(["look", str(folder), "--ids", "1,2", *image]) == 2
    assert "leave out --ids" in capsys.readouterr().err
