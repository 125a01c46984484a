"""``--json-schema``, ``--regex``, ``--grammar`` and ``--choices`` of the commands that write text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from commands import pipe, ran, ran_json, refused

import glinfer
from glinfer.inspect.bench.engines import BOTH, BatchDecoder, FastDecoder, structured

pytestmark = pytest.mark.gl
Capture = pytest.CaptureFixture[str]
pytest.importorskip("llguidance", reason="llguidance is not installed")

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["king", "fool"]}, "age": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["kind", "age"],
    "additionalProperties": False,
}


@pytest.fixture
def schema(tmp_path: Path) -> str:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    return str(path)


def test_generate(small: Path, tmp_path: Path, schema: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ("generate", small, "ROMEO:", "--seed", "1")
    found = ran_json(capsys, *given, "--json-schema", schema)
    assert json.loads(found["text"]).keys() == {"kind", "age"}
    assert (found["finish_reason"], found["complete"]) == ("stop", True)
    assert found["forced"] > 0
    grammar = tmp_path / "grammar.lark"
    grammar.write_text('start: "O " ("night" | "day")')
    out, err = ran(capsys, *given, "--grammar", grammar, "--no-echo")
    assert out.strip() in ("O night", "O day")
    assert "forced" in err
    assert ran(capsys, *given, "--choices", "yea", "--choices", "nay", "--quiet")[0].strip() in ("yea", "nay")
    cut = (*given, "--json-schema", schema, "-n", "4")
    out, err = ran(capsys, *cut, status=2)
    assert "does not match the requested structure; allow more tokens (--max-tokens" in err
    assert out.startswith("{")
    assert out.endswith("\n"), "the error has its own line"
    assert ran(capsys, *cut, "--partial")[0].startswith("{")
    pipe(monkeypatch, "a\nb\n")
    out, _ = ran(capsys, "chat", small, "--regex", "[a-z]{9}", "-n", "2", status=2)
    assert [len(line) > 1 for line in out.splitlines()] == [True, True], "each reply has its own line"


def test_bad_options(small: Path, tmp_path: Path, capsys: Capture) -> None:
    (bad := tmp_path / "bad.json").write_text("{")
    for options, words in (
        (["--regex", "("], "regex cannot be used"),
        (["--regex", "a", "--choices", "b"], "found both regex and choices"),
        (["--regex", "a", "--speculate", "ngram"], "found regex together with speculation"),
        (["--json-schema", str(bad)], f"{bad}: json_schema is not JSON"),
        (["--json-schema", "nowhere.json"], "nowhere.json"),
        (["--json-schema", '{"type": "object"}'], "expected the name of a file that has it, or - for standard input"),
        (["--grammar", "nowhere.lark"], "nowhere.lark"),
    ):
        assert words in refused(capsys, "generate", small, "ROMEO:", *options)


@pytest.mark.slow
def test_lines_of_a_batch(small: Path, tmp_path: Path, schema: str, capsys: Capture) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"prompt": "ROMEO:"}, {"prompt": "ROMEO:", "regex": "[a-z]{3}"}, {"prompt": "A", "max_tokens": 3}]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran(capsys, "generate", small, "--batch", source, "--out", out, "--json-schema", schema, "--seed", "1", "--quiet")
    first, second, third = sorted(map(json.loads, out.read_text().splitlines()), key=lambda one: one["id"])
    assert json.loads(first["text"]).keys() == {"kind", "age"}
    assert re.fullmatch("[a-z]{3}", second["text"])
    assert (third["finish_reason"], third["complete"]) == ("length", False)


def test_a_bad_line_of_a_batch(small: Path, tmp_path: Path, capsys: Capture) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "a", "regex": "("}\n')
    assert "in.jsonl:1: regex cannot be used" in refused(capsys, "generate", small, "--batch", source, "--out", out)
    assert not out.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("known_ceiling")
def test_bench(schema: str, capsys: Capture) -> None:
    arguments = ("bench", "shakespeare", "--json-schema", schema, "--runs", "1", "--contexts", "20")
    found = ran_json(capsys, *arguments, "--batch", "2")
    for rows in (found["rows"], found["batch"]):
        assert [row["sampling"] for row in rows] == ["default", "greedy", "any text, masked", "schema"]
    assert json.loads(found["samplings"]["schema"]["json_schema"]) == json.loads(Path(schema).read_text())
    refused(capsys, *arguments, "--speculate", "ngram")


def test_a_mask_that_bench_times_changes_no_text(schema: str) -> None:
    with glinfer.load("shakespeare") as model:
        given = structured(Path(schema).read_text())
        engine, batch = FastDecoder("one", model, {**BOTH, **given}), BatchDecoder(model, 1, 64, {**BOTH, **given})
        engine.prefill(range(1, 21))
        batch.prefill(range(1, 21))
        texts = {}
        for (name, pipelined), decode in engine.ways.items():
            engine.rewind(4)
            texts[name, pipelined] = decode(5, 12)
            assert batch.decode(4, 12, name) == [texts[name, pipelined]]
        batch.close()
    assert texts["any text, masked", False] == texts["default", False] != texts["greedy", False]
    assert texts["schema", True] == texts["schema", False] != texts["default", False]
