"""Options of ``glinfer generate``: short names, prompts from files, and the prompt before the text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Terminal, refused

import glinfer
from glinfer.cli.app import run

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
COMMON = ["-n", "6", "-t", "0", "-q"]


def said(capsys: Capture, *arguments: str | Path) -> str:
    assert run(["generate", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_short_names_and_files_say_the_same(small: Path, tmp_path: Path, capsys: Capture) -> None:
    text = said(capsys, small, "Once upon", "--max-tokens", "6", "--temperature", "0", "-q")
    (tmp_path / "prompt.txt").write_text("Once upon\n")
    assert said(capsys, "-m", small, "-p", "Once upon", *COMMON) == text
    assert said(capsys, "--model", small, "-f", tmp_path / "prompt.txt", *COMMON) == text
    (tmp_path / "prompt.txt").write_bytes(b"a\r\nb \n\n")
    assert said(capsys, small, "-f", tmp_path / "prompt.txt", "--echo", *COMMON).startswith("a\nb \n")
    assert said(capsys, small, "-f", tmp_path / "prompt.txt", *COMMON) == said(capsys, small, "a\nb \n", *COMMON)


def test_the_prompt_is_shown_on_a_terminal_and_not_in_a_pipe(
    small: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = said(capsys, small, "Once upon", *COMMON)
    assert not text.startswith("Once upon")
    assert said(capsys, small, "Once upon", "--echo", *COMMON) == f"Once upon{text}"
    ids = said(capsys, small, "--ids", "1,2", *COMMON)
    assert said(capsys, small, "--ids", "1,2", "--echo", *COMMON) == ids

    for options, expected in (([], f"Once upon{text}"), (["--no-echo"], text)):
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdout", terminal := Terminal())
            assert run(["generate", str(small), "Once upon", *COMMON, *options]) == 0
        assert terminal.getvalue() == expected


def test_the_first_tokens_stay_in_a_full_context(small: Path, tmp_path: Path, capsys: Capture) -> None:
    with glinfer.load(small) as model:
        kept = {keep: model.generate([5, 6, 7], max_tokens=120, top_k=9, seed=1, keep=keep) for keep in (0, 2, -1)}
    assert len({*map(tuple, kept.values())}) == 3
    options = ["-n", "120", "--top-k", "9", "--seed", "1", "-q"]
    for keep, ids in kept.items():
        assert said(capsys, small, "--ids", "5,6,7", "--keep", str(keep), *options) == ",".join(map(str, ids)) + "\n"
    lines = [{"ids": [5, 6, 7], "seed": 1, **keep} for keep in ({}, {"keep": -1}, {"keep": 0})]
    batch, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    batch.write_text("".join(json.dumps(line) + "\n" for line in lines))
    said(capsys, small, "--batch", batch, "--out", out, "--keep", "2", *options)
    found = {line["id"]: line["ids"] for line in map(json.loads, out.read_text().splitlines())}
    assert found == {1: kept[2], 2: kept[-1], 3: kept[0]}
    keep = ("--keep", "64")
    words = "glinfer: --keep is 64 tokens; the context holds 64; expected fewer\n"
    assert refused(capsys, "generate", small, "--ids", "5", *keep) == words
    batch.write_text('{"ids": [5]}\n{"ids": [5], "keep": 64}\n')
    assert "in.jsonl:2: keep is 64 tokens" in refused(
        capsys, "generate", small, "--batch", batch, "--out", tmp_path / "o.jsonl"
    )
