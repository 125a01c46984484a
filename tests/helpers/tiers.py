"""Which tests `make test` runs, which wait for `make test-all`, and which share of many cases that takes."""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest

MANY = 6
"""Cases of one test that are always run; of more a share is."""


def tiered(
    names: str | tuple[str, ...], cases: Iterable[Any], *, keep: int | Collection[int] = 1, **options: Any
) -> Any:
    """``pytest.mark.parametrize`` of which `make test` runs a few cases; the others are marked slow.

    Args:
        names: as parametrize takes them.
        cases: as parametrize takes them; a case that already is a ``pytest.param`` keeps its own marks.
        keep: the places of the cases that show the feature, or how many of the first ones do.
        options: further ones of parametrize.
    """
    several = not isinstance(names, str) or "," in names
    kept = range(keep) if isinstance(keep, int) else keep
    listed = list(cases)
    assert all(0 <= place < len(listed) for place in kept), "a case to keep that there is not"
    made = []
    for place, case in enumerate(listed):
        param = case if isinstance(case, type(pytest.param())) else pytest.param(*(case if several else (case,)))
        more = () if place in kept else (pytest.mark.slow,)
        made.append(pytest.param(*param.values, marks=(*param.marks, *more), id=param.id))
    return pytest.mark.parametrize(names, made, **options)


def parse_share(text: str) -> tuple[int, int]:
    """``i/n`` of ``--share`` as two numbers.

    Raises:
        pytest.UsageError: it is not such a text with 1 ≤ i ≤ n.
    """
    found = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    share = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= share[0] <= share[1]:
        raise pytest.UsageError(f"--share {text}: expected i/n with i from 1 to n, such as 1/4")
    return share


def shared_out(cases: Sequence[str], share: tuple[int, int]) -> set[str]:
    """The cases of one test that share i of n runs; every case is in one of the n shares.

    They are dealt in the order of a checksum of their names, since parameters vary with a period of their own.
    """
    if len(cases) <= MANY:
        return set(cases)
    which, count = share
    return set(sorted(cases, key=lambda case: (zlib.crc32(case.encode()), case))[which - 1 :: count])


def left_out(items: Iterable[pytest.Item], share: tuple[int, int]) -> set[str]:
    """The ids of slow cases that other shares run."""
    tests: dict[str, list[str]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") is not None:
            tests[item.nodeid.partition("[")[0]].append(item.nodeid)
    return {case for cases in tests.values() for case in set(cases) - shared_out(cases, share)}
