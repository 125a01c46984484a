"""``--json-schema``, ``--regex``, ``--grammar`` and ``--choices`` of the commands that write text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from glinfer.cli.app import cli
from glinfer.cli.app import run as command

pytestmark = pytest.mark.gl
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


def run(*arguments: str, say: str | None = None) -> Result:
    return CliRunner().invoke(cli, list(arguments), input=say)


def test_generate(tmp_path: Path, schema: str) -> None:
    found = json.loads(
        run("generate", "shakespeare", "ROMEO:", "--json-schema", schema, "--seed", "1", "--json").stdout
    )
    assert json.loads(found["text"]).keys() == {"kind", "age"}
    assert (found["finish_reason"], found["complete"]) == ("stop", True)
    assert found["forced"] > 0
    grammar = tmp_path / "grammar.lark"
    grammar.write_text('start: "O " ("night" | "day")')
    made = run("generate", "shakespeare", "ROMEO:", "--grammar", str(grammar), "--seed", "1", "--no-echo")
    assert made.stdout.strip() in ("O night", "O day")
    assert "forced" in made.stderr
    made = run("generate", "shakespeare", "ROMEO:", "--choices", "yea", "--choices", "nay", "--quiet")
    assert made.stdout.strip() in ("yea", "nay")


def test_a_text_that_is_cut(schema: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["generate", "shakespeare", "ROMEO:", "--json-schema", schema, "-n", "4", "--seed", "1"]) == 2
    assert "has not the structure that was asked for" in capsys.readouterr().err
    partial = run("generate", "shakespeare", "ROMEO:", "--json-schema", schema, "-n", "4", "--seed", "1", "--partial")
    assert partial.exit_code == 0
    assert partial.stdout.startswith("{")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--regex", "("], "regex cannot be used"),
        (["--regex", "a", "--choices", "b"], "found both regex and choices"),
        (["--regex", "a", "--speculate", "ngram"], "does not go with guesses"),
        (["--json-schema", "nowhere.json"], "nowhere.json"),
        (["--grammar", "nowhere.lark"], "nowhere.lark"),
    ],
)
def test_bad_options(options: list[str], words: str) -> None:
    found = run("generate", "shakespeare", "ROMEO:", *options)
    assert found.exit_code != 0
    assert words in str(found.exception) + found.output


def test_lines_of_a_batch(tmp_path: Path, schema: str) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"prompt": "ROMEO:"}, {"prompt": "ROMEO:", "regex": "[a-z]{3}"}, {"prompt": "A", "max_tokens": 3}]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = ("--json-schema", schema, "--seed", "1", "--quiet")
    made = run("generate", "shakespeare", "--batch", str(source), "--out", str(out), *given)
    assert made.exit_code == 0, made.output
    first, second, third = sorted(
        (json.loads(line) for line in out.read_text().splitlines()), key=lambda one: one["id"]
    )
    assert json.loads(first["text"]).keys() == {"kind", "age"}
    assert re.fullmatch("[a-z]{3}", second["text"])
    assert (third["finish_reason"], third["complete"]) == ("length", False)
    source.write_text('{"prompt": "a", "regex": "("}\n')
    refused = run("generate", "shakespeare", "--batch", str(source), "--out", str(tmp_path / "new.jsonl"))
    assert refused.exit_code != 0
    assert "in.jsonl:1: regex cannot be used" in str(refused.exception) + refused.output
    assert not (tmp_path / "new.jsonl").exists()


@pytest.mark.slow
def test_bench(schema: str) -> None:
    found = json.loads(run("bench", "shakespeare", "--json-schema", schema, "--runs", "1", "--json").stdout)
    assert found["vocab"] == 512
    assert [row["way"] for row in found["rows"]] == [
        "free text",
        "the same, masked",
        "every token chosen",
        "with forced tokens",
    ]
    assert [row["forced"] > 0 for row in found["rows"]] == [False, False, False, True]
    free, masked = found["rows"][:2]
    assert (free["tokens"], free["texts"]) == (masked["tokens"], masked["texts"])
    assert {"slower", "microseconds"} <= found.keys()
    shown = run("bench", "shakespeare", "--json-schema", schema, "--runs", "1").stdout
    assert "a mask takes" in shown
    for options in (["--contexts", "8"], ["--speculate", "ngram"]):
        assert run("bench", "shakespeare", "--json-schema", schema, *options).exit_code != 0
