"""``--speculate`` and ``--draft`` of ``generate``, ``chat`` and ``bench``: the same text, and guesses are counted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from commands import pipe, ran, ran_json, refused
from scripted_models import random_file, saying

from glinfer.engine.random_model import demo_tokenizer
from glinfer.engine.run.drafts import RunTimes
from glinfer.formats import save_checkpoint, write_bpe
from glinfer.inspect.bench import drafting

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
SAID = b"one two three one two three one two three four five"


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft always pays."""
    monkeypatch.setattr(RunTimes, "of", lambda self, rows: 1.0 if rows else 0.0)


@pytest.fixture(scope="module")
def repeating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says the same words again and again."""
    path = tmp_path_factory.mktemp("repeating") / "repeating.gab"
    save_checkpoint(saying(SAID, after=13, vocab=300), path)
    write_bpe(demo_tokenizer(300), path.with_suffix(".bpe"))
    return path


def test_generate_says_the_same_and_counts_guesses(repeating: Path, capsys: Capture) -> None:
    plain, before = ran(capsys, "generate", repeating, "one two three", "-n", "45")
    text, printed = ran(capsys, "generate", repeating, "one two three", "-n", "45", "--speculate", "ngram")
    assert text == plain
    assert "guesses" not in before
    right, drafted = map(int, re.search(r" tokens · (\d+) of (\d+) drafts accepted · ", printed).groups())  # type: ignore[union-attr]
    assert 10 < right <= drafted
    assert float(printed.split(" draws/token")[0].split()[-1]) < 9, "9 draws for each without them"
    found = ran_json(capsys, "generate", repeating, "one two three", "-n", "45", "--speculate", "ngram")
    assert (found["accepted"], found["drafted"]) == (right, drafted)


@pytest.mark.slow
def test_a_draft_model_is_loaded_beside(small: Path, repeating: Path, tmp_path: Path, capsys: Capture) -> None:
    copy = tmp_path / "copy.gab"
    copy.write_bytes(small.read_bytes())
    write_bpe(demo_tokenizer(300), copy.with_suffix(".bpe"))
    plain, _ = ran(capsys, "generate", small, "one", "-n", "20", "--seed", "3")
    for draft in (repeating, copy):
        text, printed = ran(capsys, "generate", small, "one", "-n", "20", "--seed", "3", "--draft", draft)
        assert text == plain
        assert "drafts accepted" in printed


def test_chat_takes_them(repeating: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = []
    for options in ([], ["--speculate", "ngram"], ["--draft", str(repeating)]):
        pipe(monkeypatch, b"hi hi hi\nhi hi hi\n")
        replies.append(ran(capsys, "chat", repeating, "--seed", "1", "-n", "8", *options)[0])
    assert replies[0] == replies[1] == replies[2] != ""


def test_what_cannot_be_is_refused_in_a_line(small: Path, capsys: Capture) -> None:
    for arguments, words in (
        (["--speculate", "ngram", "--draft", "x"], "found both speculate and a draft model; give one of them"),
        (["--draft", "absent.gab"], "absent.gab: cannot read it"),
        (["--draft", "shakespeare"], "the draft model (512 tokens) has another tokenizer than the model (300 tokens)"),
        (["--speculate", "ngram", "--plan", "reference"], "drafts need the fast plan"),
    ):
        assert words in refused(capsys, "generate", small, "Once", *arguments)


def test_a_batch_takes_no_options_of_a_single_prompt(small: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Once"}\n')
    batch = ["--batch", tmp_path / "prompts.jsonl", "--out", tmp_path / "out.jsonl"]
    for option in (["--speculate", "ngram"], ["--draft", "x"], ["--echo"], ["--image", "x.png"]):
        assert f"{option[0]} needs a single prompt; leave out {option[0]} or --batch" in refused(
            capsys, "generate", small, *batch, *option
        )


class TestBench:
    @pytest.fixture(autouse=True)
    def short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Tasks that fit small contexts."""
        monkeypatch.setattr(drafting, "TASKS", {"copy": "one two three", "open": "two"})
        monkeypatch.setattr(drafting, "TOKENS", 40)

    def test_texts_with_guesses_and_without(self, repeating: Path, capsys: Capture) -> None:
        report = ran_json(capsys, "bench", repeating, "--speculate", "ngram", "--runs", "1")
        assert [(row["task"], row["sampling"]) for row in report["rows"]] == [
            ("copy", "greedy"),
            ("copy", "sampled"),
            ("open", "greedy"),
            ("open", "sampled"),
        ]
        copied = report["rows"][0]
        assert copied["accepted"] > 10
        assert copied["acceptance"] == copied["accepted"] / copied["drafted"]
        assert copied["times_plain"] == pytest.approx(copied["plain"]["median"] / copied["with_drafts"]["median"])
        assert all(row["same"] and row["tokens"] == 40 for row in report["rows"])
        assert (report["drafts"], report["runs"]) == ("ngram", 1)

    @pytest.mark.slow
    def test_a_reply_where_the_model_can_chat(self, small: Path, capsys: Capture) -> None:
        report = ran_json(capsys, "bench", small, "--draft", small, "--runs", "1")
        assert report["drafts"] == "model of gab"
        assert all(row["acceptance"] in (1.0, None) for row in report["rows"])

    def test_texts_that_differ_are_told(
        self, repeating: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = drafting._timed_text

        def other(opened: Any, task: str, results: list[Any], **options: Any) -> float:
            taken = text(opened, task, results, **options)
            if "speculate" in options:
                results[-1] = [0, *results[-1][0]], results[-1][1]
            return taken

        monkeypatch.setattr(drafting, "_timed_text", other)
        out, _ = ran(capsys, "bench", repeating, "--speculate", "ngram", "--runs", "1")
        assert "drafts: ngram · model gab · weights f32 · median (fastest–slowest) of 1 texts, interleaved" in out
        assert out.count(" NO") == 4

    def test_what_does_not_go_together(self, small: Path, capsys: Capture) -> None:
        for arguments, words in (
            (["--contexts", "8"], "--speculate times texts and cannot be combined with --contexts; leave one out"),
            (["--batch", "2"], "--speculate times texts and cannot be combined with --batch"),
            (["--lengths", "2"], "--speculate times texts and cannot be combined with --lengths"),
            (["--ceiling"], "--speculate times texts and cannot be combined with --ceiling"),
            (["--every-option"], "--speculate times texts and cannot be combined with --every-option"),
            (["--weights", "f32,q8"], "found 2 weight formats with --speculate; expected one"),
            (["--draft", "x"], "found both speculate and a draft model"),
            (["--plan", "reference"], "drafts need the fast plan"),
        ):
            assert words in refused(capsys, "bench", small, "--speculate", "ngram", *arguments)

    def test_a_model_that_texts_do_not_fit(self, tmp_path: Path, capsys: Capture) -> None:
        path = random_file(tmp_path / "tiny.gab", "vocab=300,dim=32,heads=4,blocks=1,context=24")
        write_bpe(demo_tokenizer(300), path.with_suffix(".bpe"))
        printed = refused(capsys, "bench", path, "--speculate", "ngram")
        assert re.search(r"found a context of 24 tokens; expected \d+ for a task and 40 for its answer", printed)
        assert "--speculate times texts; give a MODEL with a tokenizer" in refused(
            capsys, "bench", "--speculate", "ngram"
        )
