"""``python -m qa figures``: tables from JSON, documents that agree with what is kept, and figures that are recent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from own_process import ROOT
from qa_commands import run

import glinfer
from glinfer.errors import InputError
from qa.figures import command, measures
from qa.steps import StepError

Capture = pytest.CaptureFixture[str]
FACTS = {"version": "0.1.0", "commit": "1234abcd", "date": "2026-11-27", "machine": "2 cores", "renderer": "llvmpipe"}
ROWS = [{"engine": "glinfer q8", "sampling": "default", "token": [7.5, 7.0, 912.25]}, {"engine": "torch", "token": 3}]
GAB = {"name": "cpu-gab", **FACTS, "load": 0.1, "commands": ["python -m qa bench"], "rows": ROWS}
TABLE = """<!-- figures cpu-gab -->
*2 cores · llvmpipe · 1234abcd, 2026-11-27 · load 0.1 · `python -m qa bench`:*

| engine | sampling | token |
|---|---|---|
| glinfer q8 | default | 7.50 (7.00–912.25) |
| torch | – | 3 |
"""


def test_documents_agree_with_recent_figures(capsys: Capture) -> None:
    assert run(["figures", "--check"]) == 0, capsys.readouterr().out
    texts = [path.read_text("utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))]
    shown = {name for text in texts for found in command.TABLE.finditer(text) for name in found[2].split()}
    assert shown == command.NAMES, "each table is in a document"
    # Markdown reads a line that begins with a comment as HTML.
    assert not [text for text in texts if re.search(r"(?m)^ *<!--=", text)]


def test_old_figures_are_found() -> None:
    log = "# Changelog\n\n## 0.3.0 (unreleased)\n\n## 0.2.0 (2027-01-02)\n\n## 0.1.0 (2026-11-30)\n"
    kept = {version: {"version": version} for version in ("0.3.0", "0.2.0", "0.1.0")}
    assert command.outdated(kept, log) == ["0.1.0"]
    assert f"\n## {glinfer.__version__} (" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_a_document_is_filled() -> None:
    numbers = "\nb <!--= cpu-gab | glinfer q8 | token -->{}<!--=--> c <!--= cpu-gab | torch | token -->{}<!--=-->"
    filled = command.written("<!-- figures cpu-gab -->\n" + numbers.format(9, ""), {"cpu-gab": GAB})
    assert filled == TABLE + numbers.format("7.50", 3)
    assert command.written(filled, {"cpu-gab": GAB}) == filled
    assert "torch" not in command.written(TABLE, {"cpu-gab": {**GAB, "rows": ROWS[:1]}})
    assert command.written(TABLE, {}) == "<!-- figures cpu-gab -->\n", "it was never measured"
    both = command.table_text([GAB, {**GAB, "name": "gpu-gab"}])
    assert "| CPU | torch | – | 3 |\n| GPU | glinfer q8 |" in both
    for wrong in ("<!-- figures cpu-nosuch -->\n", "<!--= cpu-gab | glin | token -->1<!--=-->"):
        with pytest.raises(InputError, match="expected"):
            command.written(wrong, {"cpu-gab": GAB})


def test_peers_and_commands_that_are_missing_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = {"one": "python -m qa bench --runs 5 --peers torch,llama-cpp", "two": "glinfer bench --runs 5"}
    monkeypatch.setitem(
        measures.MEASURES, "gab", measures.Measure(lambda label, result: iter([{"a": result, "b": 1}]), commands)
    )
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None if name == "torch" else name)
    monkeypatch.setattr(command, "write_inputs", lambda folder, lines: None)
    ran = []

    def result_of(words: str, folder: Path) -> Any:
        ran.append(words)
        if words.startswith("glinfer"):
            error = StepError()
            error.args = ("a first line\nit ended",)  # past the check of conftest.py
            raise error
        return 5

    monkeypatch.setattr(command, "result_of", result_of)
    found = command.measured("gab", "cpu", FACTS, quick=True)
    assert ran == ["python -m qa bench --runs 1 --peers llama-cpp", "glinfer bench --runs 1"]
    assert found["rows"] == [{"a": 5, "b": 1}, {"a": "torch", "b": "not installed"}, {"a": "two", "b": "it ended"}]
    assert found.keys() == command.FIELDS
    commands.pop("one")
    with pytest.raises(StepError, match="it ended"):
        command.measured("gab", "cpu", FACTS, quick=True)


def test_a_faster_peer_is_said_to_be_faster() -> None:
    times = {name: {"median": ms, "fastest": ms, "slowest": ms} for name, ms in (("slow", 8.0), ("quick", 2.0))}
    limits = {"token_limit": {"limit_ms": 4.0}, "prefill_limit": {"limit_ms": 2.0}}
    row = {"context": 128, "sampling": "default", "label": "glinfer q8", **limits}
    rows = [
        {**row, "decode": times["slow"], "pipelined": times["slow"], "prefill": times["slow"]},
        {**row, "label": "torch", "decode": times["quick"], "pipelined": None, "prefill": times["slow"]},
    ]
    ours = {"weights": "q8", "texture_bytes": {"weight": 5e6}, "draws": 39, "startup": {"file": 1.5, "upload": 0.5}}
    engines = [{"label": "glinfer q8", **ours}, {"label": "torch", "weights": None}]
    report = {"rows": rows, "engines": engines, "batch": []}
    first, second = measures.MEASURES["gab"].rows("", report)
    assert first["of the limit: token, prompt"] == "50%, 25%"
    assert first["draws, weights, start"] == "39, 5 MB, 2.0 s"
    assert second["compared with the first line"] == "token 4.0× faster, prompt 1.0× slower"


def test_files_of_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    document, file, kept = tmp_path / "README.md", tmp_path / "out.json", tmp_path / "docs" / "figures"
    kept.mkdir(parents=True)
    document.write_text("<!-- figures cpu-gab -->\n")
    (tmp_path / "CHANGELOG.md").write_text("## 0.1.0 (unreleased)\n")
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "KEPT", kept)
    command.keep([GAB], file)
    assert run(["figures", "--add", str(file)]) == 0
    assert document.read_text() == TABLE
    assert json.loads((kept / "cpu-gab.json").read_text()) == [GAB]
    document.write_text(TABLE.replace("912", "911"))
    assert run(["figures", "--check"]) == 1
    assert "README.md differs; run --write" in capsys.readouterr().out
    assert run(["figures", "--write"]) == 0
    assert document.read_text() == TABLE
    for text in ("{", "[]", "[1]", json.dumps([{**GAB, "name": "../other"}]), json.dumps([{"name": "cpu-gab"}])):
        file.write_text(text)
        assert run(["figures", "--add", str(file)]) == 2
        assert "found no figures" in capsys.readouterr().err


@pytest.mark.gl
def test_what_does_not_go_together(capsys: Capture, tmp_path: Path) -> None:
    other = {"cpu": "gpu", "gpu": "cpu"}[command.facts_of(None, "a")[0]]
    for words, said in (
        (["--quick"], "--quick gives no figures to publish"),
        (["--only", "gab,nosuch"], "found 'nosuch' for --only"),
        (["--add", str(tmp_path / "none"), "--check"], "found both --add and --check"),
        (["--machine", other, "--out", str(tmp_path / "out")], f"for --machine {other}"),
        (["--quick", "--commit", "a", "--out", str(tmp_path / "no" / "out")], "out: cannot be written: "),
    ):
        assert run(["figures", *words]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.gl
def test_two_tables_are_measured(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "out.json"
    assert run(["figures", "--quick", "--commit", "abc", "--only", "reference,choices", "--out", str(file)]) == 0
    found = {each["name"]: each for each in command.read_figures(file)}
    assert list(found["cpu-reference"]["rows"][0]) == ["length 1", "length 8"]
    assert found["cpu-choices"]["rows"][0]["texts that differ"] == 0
    assert found["cpu-choices"]["commit"] == "abc"
