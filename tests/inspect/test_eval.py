"""``glinfer eval`` against float64 and against the figure of PyTorch, and what it refuses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ran_json, refused
from goldens import recorded
from goldens.given import VERSE
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import tiered

from glinfer.engine.logits import log_softmax
from glinfer.engine.score import windows
from glinfer.formats import load_checkpoint
from glinfer.lower.plain.gab import LOGITS, TOKENS, reference_plan
from glinfer.program.oracle import final_tensors
from glinfer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(VERSE, encoding="utf-8")
    return path


def evaluated(capsys: Capture, *arguments: str | Path) -> dict[str, Any]:
    report: dict[str, Any] = ran_json(capsys, "eval", *arguments)
    return report


@tiered("stride", [1, 32, 64], keep=(1,))
def test_it_agrees_with_float64(small: Path, text_file: Path, capsys: Capture, stride: int) -> None:
    report = evaluated(capsys, small, "--text", text_file, "--stride", str(stride), "--bytes", "100")
    checkpoint, tokenizer = load_checkpoint(small), Tokenizer.from_file(small.with_suffix(".bpe"))
    ids = tokenizer.encode(VERSE.encode()[:100].decode())
    plan = reference_plan(checkpoint.config, all_rows=True)
    nats = 0.0
    for start, stop, scored in windows(len(ids), 64, stride):
        tokens = np.array(ids[start:stop], np.int32)[:, None]
        logits = final_tensors(plan, checkpoint.tensors, {TOKENS: tokens}, {"rows": stop - start})[LOGITS]
        logprobs = log_softmax(logits[scored - 1 - start :])
        nats -= logprobs[np.arange(len(logprobs)), ids[scored : stop + 1]].sum()
    size = 100 - len(tokenizer.token_bytes(ids[0]))
    assert report["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, abs=1e-5)
    assert report["perplexity"] == pytest.approx(math.exp(nats / (len(ids) - 1)), rel=1e-5)
    assert (report["tokens"], report["bytes"], report["stride"]) == (len(ids) - 1, size, stride)


@pytest.mark.slow
def test_the_bundled_model_gives_pytorchs_number(text_file: Path, capsys: Capture) -> None:
    theirs = recorded("score")
    report = evaluated(capsys, theirs["model"], "--text", text_file)
    assert report["bits_per_byte"] == pytest.approx(theirs["bits_per_byte"], abs=1e-4)
    text_file.write_text(VERSE.replace("east", "west"), encoding="utf-8")
    assert (
        abs(evaluated(capsys, theirs["model"], "--text", text_file)["bits_per_byte"] - report["bits_per_byte"]) > 0.01
    )


def test_the_last_part_of_a_text(small: Path, tmp_path: Path, capsys: Capture) -> None:
    whole, part = tmp_path / "whole.txt", tmp_path / "part.txt"
    whole.write_text("x" * 900 + VERSE[:100], encoding="utf-8")
    part.write_text(VERSE[:100], encoding="utf-8")
    from_whole = evaluated(capsys, small, "--text", whole, "--last", "0.1")
    from_part = evaluated(capsys, small, "--text", part)
    assert from_whole["bits_per_byte"] == from_part["bits_per_byte"]


def test_bad_options(small: Path, text_file: Path, capsys: Capture) -> None:
    for options, words in (
        (["--stride", "0"], "the stride is 0; expected 1 to 64"),
        (["--stride", "65"], "the stride is 65; expected 1 to 64"),
        (["--last", "0"], "--last is 0.0; expected a fraction above 0"),
        (["--last", "nan"], "--last is nan; expected a fraction above 0"),
        (["--text", "missing.txt"], "missing.txt: cannot read it"),
        (["--tokenizer", "missing.bpe"], "missing.bpe: cannot read it"),
    ):
        errors = refused(capsys, "eval", small, "--text", text_file, *options)
        assert words in errors


def test_bad_texts(small: Path, bare: Path, text_file: Path, capsys: Capture) -> None:
    for model, content, words in (
        (small, b"", "the text has 0 tokens"),
        (small, b"x", "the text has 1 token;"),
        (small, b"abc\xff", "is not UTF-8 (byte 3)"),
        (bare, b"abc", "no tokenizer was given"),
    ):
        text_file.write_bytes(content)
        assert words in refused(capsys, "eval", model, "--text", text_file)


@settings(max_examples=25)
@given(count=st.integers(0, 300), context=st.integers(1, 40), data=st.data())
def test_every_token_but_the_first_is_scored_once_with_enough_before_it(
    count: int, context: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, context))
    scored_tokens = []
    for start, stop, scored in windows(count, context, stride):
        assert 0 <= start < scored <= stop < count
        assert stop - start <= context
        assert start == 0 or scored - start >= context - stride + 1
        scored_tokens += range(scored, stop + 1)
    assert scored_tokens == list(range(1, count))


def test_gabs_windows_by_hand() -> None:
    assert list(windows(11, 4, 2)) == [(0, 4, 1), (2, 6, 5), (4, 8, 7), (6, 10, 9)]
    assert list(windows(11, 4, 4)) == [(0, 4, 1), (4, 8, 5), (8, 10, 9)]
    assert list(windows(1, 4, 2)) == []


def test_likelihood_of_known_distributions() -> None:
    assert log_softmax(np.zeros((3, 8), np.float32)) == pytest.approx(np.full((3, 8), -math.log(8)))
    odds = np.log(np.array([1.0, 3.0], np.float64))
    assert log_softmax(odds) == pytest.approx([math.log(1 / 4), math.log(3 / 4)])
    large = np.array([[1e4, 1e4 - 1.0]], np.float32)
    assert log_softmax(large)[0, 0] == pytest.approx(-math.log(1 + math.exp(-1)))
