"""Tokens chosen out of shortlists: the sampler's own on the logits, with little read back, alone and in batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glinfer.engine import batch as batches
from glinfer.engine import cached
from glinfer.engine.batch import Batch
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.errors import NumbersError
from glinfer.gl.readback import Readback
from glinfer.gl.texture import Texture

pytestmark = pytest.mark.gl

PROMPT = [13, 132, 251, 70]
OPTIONS: dict[str, dict[str, Any]] = {
    "filtered": {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 7},
    "nucleus": {"temperature": 1.1, "top_p": 0.95, "seed": 8},
    "penalised": {"temperature": 0, "repetition_penalty": 1.3},
    "penalised and drawn": {"repetition_penalty": 1.2, "seed": 9},
    "rewarded": {"repetition_penalty": 0.9, "top_k": 50, "seed": 10},
}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """(name, rows) of what is read back."""
    found: list[tuple[str, int]] = []

    def read(texture: Texture, rows: int | None = None, cols: int | None = None) -> Any:
        found.append((texture.name, rows or texture.layout.rows))
        return texture_read(texture, rows, cols)

    def read_rows(texture: Texture, first: int, rows: int) -> Any:
        found.append((texture.name, rows))
        return texture_read_rows(texture, first, rows)

    def read_back(readback: Readback) -> Any:
        found.append((readback.texture.name, readback.rows))
        return readback_read(readback)

    texture_read, texture_read_rows, readback_read = Texture.read, Texture.read_rows, Readback.read
    monkeypatch.setattr(Readback, "read", read_back)
    monkeypatch.setattr(Texture, "read", read)
    monkeypatch.setattr(Texture, "read_rows", read_rows)
    return found


def by_hand(model: Model, prompt: list[int], options: dict[str, Any], count: int) -> list[int]:
    """What the sampler chooses from the logits, token by token."""
    sampler = Sampler(SamplingOptions(**options))
    with model.session() as session:
        session.prefill(prompt)
        for _ in range(count):
            session.step(sampler.sample(session.logits(), session.ids))
        assert session.logit_reads == count
        return session.ids[len(prompt) :]


def test_a_sequence_reads_two_small_textures_a_token(model: Model, reads: list[tuple[str, int]]) -> None:
    for options in OPTIONS.values():
        with model.session() as session:
            session.prefill(PROMPT)
            session.generate_ids(1)
            session.rewind(1)
            reads.clear()
            issued = session.draws_issued
            found = session.generate_ids(20, Sampler(SamplingOptions(**options)))
            assert reads == [("shortlist.best", 1), ("shortlist.facts", 1)] * 20
            assert session.logit_reads == 0
            # One draw for the list instead of one for the choice.
            assert session.draws_issued - issued == 20 * len(model.plan.draws)
            with session.fork() as other:
                assert other.generate_ids(1) == session.generate_ids(1)
        assert found == by_hand(model, PROMPT, options, 20)


def test_where_a_list_does_not_do_the_logits_are_read_once(
    model: Model, monkeypatch: pytest.MonkeyPatch, reads: list[tuple[str, int]]
) -> None:
    """And nothing is run again for that."""
    expected = by_hand(model, PROMPT, OPTIONS["filtered"], 5)
    monkeypatch.setattr(cached, "sample_shortlist", lambda *_: None)
    with model.session() as session:
        session.prefill(PROMPT)
        session.generate_ids(1)
        session.rewind(1)
        reads.clear()
        issued = session.draws_issued
        assert session.generate_ids(5, Sampler(SamplingOptions(**OPTIONS["filtered"]))) == expected
        assert session.logit_reads == 5
        assert [name for name, _ in reads] == ["shortlist.best", "shortlist.facts", "logits"] * 5
        assert session.draws_issued - issued == 5 * len(model.plan.draws)


def test_logits_that_were_asked_for_are_chosen_from(model: Model, reads: list[tuple[str, int]]) -> None:
    with model.session() as session:
        session.prefill(PROMPT)
        logits = session.logits()
        reads.clear()
        issued = session.draws_issued
        sampler = Sampler(SamplingOptions(**OPTIONS["filtered"]))
        assert session.generate_ids(1, Sampler(sampler.options)) == [sampler.sample(logits, PROMPT)]
        assert (reads, session.draws_issued) == ([], issued)


def requests(count: int) -> list[BatchRequest]:
    found = []
    for number in range(count):
        options = [{"seed": 3}, *OPTIONS.values()][number % 6]
        prompt = np.random.default_rng(number).integers(0, 300, 3 + number).tolist()
        found.append(BatchRequest(prompt, {**options, "max_tokens": 8}, number))
    return found


def test_a_batch_reads_one_list_for_each_row_that_needs_one(
    model: Model, monkeypatch: pytest.MonkeyPatch, reads: list[tuple[str, int]]
) -> None:
    monkeypatch.setattr(Batch, "_logits", None)
    results = list(model.batch(requests(3), slots=3))
    assert {result.stats.tokens for result in results} == {8}
    assert reads == [("row.picks", 3), ("shortlist.best", 2), ("shortlist.facts", 2)] * 8
    for result in results:
        listed = result.request.options not in ({"seed": 3, "max_tokens": 8}, {"temperature": 0, "max_tokens": 8})
        assert result.stats.draws == 8 * (7 * 2 + 3 + listed)
        options = {name: value for name, value in result.request.options.items() if name != "max_tokens"}
        assert result.ids == by_hand(model, list(result.request.prompt), options, 8)  # type: ignore[arg-type]


def test_a_batch_reads_the_logits_of_one_row_where_its_list_does_not_do(
    model: Model, monkeypatch: pytest.MonkeyPatch, reads: list[tuple[str, int]]
) -> None:
    sample = batches.sample_shortlist
    monkeypatch.setattr(
        batches, "sample_shortlist", lambda sampler, *rest: None if sampler.seed == 8 else sample(sampler, *rest)
    )
    results = {result.request.key: result.ids for result in model.batch(requests(3), slots=3)}
    assert [read for read in reads if "logits" in read[0]] == [("row.logits.2", 1)] * 8
    assert results[2] == by_hand(model, requests(3)[2].prompt, OPTIONS["nucleus"], 8)  # type: ignore[arg-type]


def test_a_batch_of_drawn_tokens_makes_no_lists(model: Model, reads: list[tuple[str, int]]) -> None:
    results = list(model.batch([BatchRequest(PROMPT, {"max_tokens": 3, "seed": 1})] * 2))
    assert {name for name, _ in reads} == {"row.picks"}
    assert {result.stats.draws for result in results} == {3 * (7 * 2 + 3)}


def test_broken_logits_are_seen_behind_a_filter(model: Model) -> None:
    """One of 300 that is no number: the list says so, and the logits are looked at."""
    model.engine.nan_guard.strict = True
    for bad in (np.nan, np.inf):

        def change(seen: Any, bad: float = bad) -> Any:
            changed = seen.array.copy()
            changed[..., 17] = bad
            return changed

        with model.session() as session:
            session.prefill(PROMPT)
            with model.patch("logits", change), pytest.raises(NumbersError, match="of 300 logits after 4 tokens"):
                session.generate_ids(1, Sampler(SamplingOptions(**OPTIONS["filtered"])))
