"""``--image`` and ``--mmproj`` of the commands that write text."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import pipe, ran, ran_json, refused
from goldens.pictures import about, picture, write_smolvlm

import glinfer

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
    line = ["generate", folder, "What is it?", "--image", image, "-n", "5", "-t", "0"]
    for more in ([], ["--speculate", "ngram"]):
        assert ran_json(capsys, *line, *more)["text"] == wanted

    def say(text: str, status: int = 0) -> tuple[str, str]:
        pipe(monkeypatch, text.encode())
        given = ["--image", image] if "/image" not in text else []
        return ran(capsys, "chat", folder, "-n", "5", "-t", "0", *given, status=status)

    first, _ = say("What is it?\n")
    assert first.startswith(wanted)
    assert say(f"/image {image}\nWhat is it?\n")[0].endswith(first)
    assert "/none.png" in say("/image /none.png\n", status=2)[1]


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
    assert words in refused(capsys, "generate", folder, *prompt, "-n", "2", *more)


def test_look_at_an_image(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    image = ["--image", folder.parent / "a.png", "--out", tmp_path / "out", "--what", "lens"]
    found = ran_json(capsys, "look", folder, "What is it?", *image)
    with glinfer.load(folder) as model:
        ids = model.chat_ids(about(picture()))
        likeliest = int(model.logits(ids).argmax())
    assert [each["id"] for each in found["tokens"]] == ids
    assert {each["label"] for each in found["tokens"] if each["id"] >= 320} == {"[image]"}
    assert found["next"][0]["id"] == likeliest
    assert "leave out --ids" in refused(capsys, "look", folder, "--ids", "1,2", *image)
