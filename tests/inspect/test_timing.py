"""The timing loop and the tables of all benchmarks."""

from __future__ import annotations

import pytest

from glinfer.inspect import timing
from glinfer.inspect.tables import Cell, Column, Table
from glinfer.inspect.timing import Spread, Work, interleaved


def test_works_take_turns_and_warm_ups_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, log, steps = 0.0, list[str](), list[tuple[int, int]]()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now)

    def work(name: str, seconds: float, units: int | None = None) -> Work:
        def run() -> int | None:
            nonlocal now
            log.append(name)
            now += seconds if log.count(name) > 1 else 100.0
            return units

        def prepare() -> None:
            nonlocal now
            now += 7.0

        return Work(run, prepare, seconds=5.0, least=2)

    found = interleaved(
        [work("a", 1.0), work("b", 4.0, 8), work("c", 1.0, 0)], 4, on_progress=lambda *at: steps.append(at)
    )
    # A third run of b would take 12 of 5 seconds.
    assert found == [[1000.0] * 4, [500.0] * 2, [1000.0] * 4]
    assert log == [*"abc", *"cba", *"abc", *"ca", *"ac"]
    assert steps[0] == (1, 15)
    assert steps[-1] == (15, 15)


def test_works_may_time_themselves_and_end_early() -> None:
    times = {"a": iter([9.0, 1.0, 2.0, 3.0]), "b": iter([9.0, 4.0, 5.0, 6.0])}
    works = [Work(lambda name=name: next(times[name]), timed=True) for name in times]  # type: ignore[misc]
    assert interleaved(works, 3, ended=lambda found: sum(found[1]) > 8) == [[1.0, 2.0], [4.0, 5.0]]


def test_a_spread_has_the_digits_of_its_median() -> None:
    for times, text in (([0.25, 0.5, 12.0], "0.500 (0.250–12.000)"), ([1200.0, 1300.0], "1,250 (1,200–1,300)")):
        assert str(Spread.of(times)) == text


def test_a_table_in_every_form() -> None:
    columns = (
        Column("name", "real"),
        Column("twice", lambda item: 2 * item.imag, ".1f"),
        Column("own", lambda item: None if item.imag else Cell("a|b", 3), ""),
    )
    made = Table("numbers", columns, [1 + 2j, 3 + 0j], 4 + 4j)
    assert made.rows[1] == [Cell("3.0", 3.0), Cell("0.0", 0.0), Cell("a|b", 3)]
    assert [cell.text for cell in made.total_row] == ["4.0", "8.0", ""]
    assert made.markdown().splitlines()[2:] == ["| 1.0 | 4.0 |  |", "| 3.0 | 0.0 | a\\|b |", "| 4.0 | 8.0 |  |"]
