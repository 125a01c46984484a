"""Which tokens are drafted, and how many: matches of n-grams, times of runs, and when drafts are left out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from glinfer.engine.prefill import DRAFT_ROWS
from glinfer.engine.run.drafts import Ngrams, RunTimes, Speculation
from glinfer.engine.sampler import Sampler

SAMPLER = Sampler()


def guess(ids: Sequence[int], count: int = 4) -> list[int] | None:
    ngrams = Ngrams()
    return None if ngrams.offer(ids) is None else ngrams.draft(ids, count, SAMPLER)


def test_matches_of_ngrams() -> None:
    assert guess([1, 2, 3, 9, 8, 7, 6, 5, 1, 2, 3]) == [9, 8, 7, 6]
    for ids in ([], [1], [1, 2, 3], [1, 2, 9, 8, 1, 2], [0, 2, 3, 9, 1, 2, 3]):
        assert guess(ids) is None, "three tokens have to repeat"
    # The longest match is taken, and of equal ones the newest; one up to the end repeats itself.
    assert guess([4, 1, 2, 3, 10, 1, 2, 3, 11, 4, 1, 2, 3], 1) == [10]
    assert guess([1, 2, 3, 10, 1, 2, 3, 11, 1, 2, 3], 1) == [11]
    assert guess([5, 1, 2, 1, 2, 1], 5) == [2, 1, 2, 1, 2]
    ngrams = Ngrams()
    for ids, expected in (  # a sequence may grow, be cut, and lose its beginning
        ([1, 2, 3, 4, 1, 2, 3], [4]),
        ([1, 2, 3, 4, 1, 2, 3, 4], [1]),
        ([1, 2, 3, 5, 1, 2, 3], [5]),
        ([3, 5, 1, 2, 3], None),
    ):
        assert (None if ngrams.offer(ids) is None else ngrams.draft(ids, 1, SAMPLER)) == expected


def test_times_of_runs() -> None:
    """The first run warms up, others give a median; rows that were not timed are estimated from fewer."""
    times = RunTimes()
    assert times.of(1) is times.of(16) is None
    for seconds in (9.0, 2.0, 3.0, 50.0):
        times.note(1, seconds)
    assert times.of(1) == 3.0
    for _ in range(20):
        times.note(1, 2.0)
    assert [times.of(rows) for rows in DRAFT_ROWS] == [2.0, 3.0, 4.5]
    for _ in range(2):
        times.note(8, 5.0)
    assert [times.of(rows) for rows in DRAFT_ROWS] == [2.0, 5.0, 7.5]


class Machine:
    """A sequence and a drafter on a machine whose runs take ``seconds`` by their rows."""

    draws_issued = 0
    watched = False
    ids = (1,)

    def __init__(self, seconds: dict[int, float], right: float, prior: float = 2 / 3) -> None:
        self.drafted, self.likely = 0, prior
        self.seconds, self.right, self.now = seconds, right, 0.0
        self.lengths: list[int] = []
        self.speculation = Speculation(self, RunTimes(), lambda: self.now)

    def offer(self, ids: Sequence[int]) -> int | None:
        return 0

    def prior(self, kind: int) -> float:
        return self.likely

    def draft(self, ids: Sequence[int], count: int, sampler: Sampler) -> list[int]:
        self.now += count * self.seconds.get(0, 0.0)
        return [0] * count

    def generate_ids(self, count: int, sampler: Sampler) -> list[int]:
        self.lengths.append(0)
        self.now += count * self.seconds[1]
        return [0] * count

    def accept(self, draft: list[int], sampler: Sampler) -> list[int]:
        if self.watched:
            self.now += 100.0
            return [0]
        self.drafted += len(draft)
        self.lengths.append(len(draft))
        self.now += self.seconds[next(rows for rows in DRAFT_ROWS if rows > len(draft))]
        return [0] * (int(self.right * len(draft)) + 1)

    def run(self, count: int, **given: Any) -> list[int]:
        """The lengths of so many drafts."""
        self.lengths.clear()
        for _ in range(count):
            options = {"most": 100, "chunk": 8, "ready": True, **given}
            self.speculation.choose(self, SAMPLER, **options)  # type: ignore[arg-type]
        return self.lengths


FLAT = {1: 1.0, 4: 1.0, 8: 1.2, 16: 1.5}
STEEP = {1: 1.0, 4: 4.0, 8: 8.0, 16: 16.0}


class TestLengths:
    def test_nothing_is_drafted_before_a_token_was_timed(self) -> None:
        assert Machine(FLAT, 1.0).run(3)[:2] == [0, 0]

    def test_right_drafts_on_a_machine_of_many_rows_are_long(self) -> None:
        assert set(Machine(FLAT, 1.0).run(60)[-20:]) == {15}

    def test_where_rows_cost_as_much_as_tokens_drafts_are_left_out(self) -> None:
        """Even right ones bring nothing there."""
        machine = Machine(STEEP, 0.0)
        machine.run(100)
        assert sum(map(bool, machine.run(400))) <= 4

    def test_a_likely_kind_is_tried_where_only_many_right_tokens_pay(self) -> None:
        """As on a GPU: a run of 16 rows takes as long as five tokens."""
        gpu = {1: 1.0, 4: 2.9, 8: 3.5, 16: 5.0}

        def knowing(prior: float) -> Machine:
            machine = Machine(gpu, 1.0, prior)
            for rows, seconds in gpu.items():
                for _ in range(2):
                    machine.speculation._times.note(rows, seconds)
            return machine

        assert knowing(33 / 34).run(1) == [15]
        assert knowing(2 / 3).run(1) == [0]

    def test_wrong_drafts_are_tried_again_after_longer_and_longer(self) -> None:
        machine = Machine({1: 1.0, 4: 1.4, 8: 2.0, 16: 3.0}, 0.0)
        found = machine.run(600)
        tried = [place for place, length in enumerate(found) if length]
        gaps = [after - before for before, after in itertools.pairwise(tried)]
        assert gaps[-4:] == [33, 65, 129, 257]
        machine.right = 1.0
        found = machine.run(600)
        assert set(found[-50:]) == {15}, "once they are right again they come back"

    def test_what_a_draft_takes_counts(self) -> None:
        machine = Machine({**FLAT, 0: 2.0}, 1.0)
        machine.run(100)
        assert sum(map(bool, machine.run(400))) <= 4
        assert all(Machine({**FLAT, 0: 0.05}, 1.0).run(60)[-20:])

    def test_a_draft_is_no_longer_than_what_is_wanted(self) -> None:
        machine = Machine(FLAT, 1.0)
        machine.run(60)
        assert set(machine.run(4, most=14)) == {13}
        assert set(machine.run(4, most=3)) == {2}
        assert set(machine.run(4, most=1)) == {0}

    def test_behind_a_prompt_nothing_is_drafted_or_timed(self) -> None:
        machine = Machine(FLAT, 1.0)
        assert set(machine.run(9, ready=False)) == {0}
        assert machine.speculation._times.of(1) is None

    def test_several_tokens_come_together_where_no_draft_is_likely(self) -> None:
        machine = Machine(STEEP, 0.0)
        before = machine.now
        machine.run(1)
        assert machine.now - before == 1.0
        machine.run(100)
        before = machine.now
        assert machine.run(1) == [0]
        assert machine.now - before == pytest.approx(8.0)
