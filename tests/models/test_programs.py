"""Plans, and the texels of weights, are the recorded ones; ``python -m qa programs`` compares all of them."""

from __future__ import annotations

import zlib

import pytest

from glinfer.errors import InputError
from qa.programs import ROOT, difference, differing, programs, programs_command, recorded

HOW = (
    "differ from the record; if that is meant, run 'python -m qa programs --update' and say in the commit what changed"
)


def test_one_program_of_every_other_row_is_the_recorded_one() -> None:
    record = recorded()
    places = {row: zlib.crc32(row.encode()) // 2 % len(hashes) for row, hashes in record.items()}
    chosen = [
        each for each in programs() if zlib.crc32(each.row.encode()) % 2 and each.place == places.get(each.row, 0)
    ]
    assert [each.key for each in differing(chosen, record)] == [], HOW


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_each_fifth_program_is_the_recorded_one(part: int) -> None:
    """From another index on in each row: a row goes through kernels and formats, which lie apart by three or four."""
    every, record = list(programs()), recorded()
    assert {row: len(hashes) for row, hashes in record.items()} == {each.row: each.place + 1 for each in every}, HOW
    chosen = [each for each in every if (each.place + zlib.crc32(each.row.encode())) % 5 == 0]
    assert [each.key for each in differing(chosen[part::2], record)] == [], HOW


@pytest.mark.slow
def test_a_difference_is_listed_fact_by_fact() -> None:
    found = next(each for each in programs() if each.row == "gab token")
    facts = found.facts()
    facts["draw embed"]["defines"]["FURTHER"] = 1
    changed = found._replace(make=lambda: facts)
    assert list(differing([found, changed], recorded())) == [changed]
    assert difference(found, ROOT) == ""
    assert difference(changed, ROOT).splitlines()[3:] == ["+draw embed / defines / FURTHER: 1"]


def test_rows_and_programs_that_there_are_not_are_refused() -> None:
    """A name with a typo would otherwise pass as equal."""
    for given, message in (
        (["lama"], "no row begins with 'lama'"),
        (["llama", "lama", "--update"], "no row begins with 'lama'"),
        (["--show", "llama token: gpu q9"], "there is no program 'llama token: gpu q9'"),
    ):
        with pytest.raises(InputError, match=message):
            programs_command.main(given, standalone_mode=False)
