"""Which cases of a test `make test` runs, and which wait for `make test-all`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

SLOW = "slow"
_generate_slow = True


def choose_tiers(expression: str) -> None:
    """Generate slow cases only if ``-m EXPRESSION`` can select them; they are most of all cases."""
    global _generate_slow
    _generate_slow = not expression.strip() or SLOW in expression.replace(f"not {SLOW}", "")


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
    ids = options.pop("ids", None)
    named = None if ids is None or callable(ids) else list(ids)
    assert all(0 <= place < len(listed) for place in kept), f"keep={keep} of {len(listed)} cases"
    assert named is None or len(named) == len(listed), f"{len(named or ())} ids for {len(listed)} cases"
    made, chosen = [], []
    for place, case in enumerate(listed):
        param = case if isinstance(case, type(pytest.param())) else pytest.param(*(case if several else (case,)))
        more = () if place in kept else (pytest.mark.slow,)
        name = param.id if named is None else named[place]
        made.append(pytest.param(*param.values, marks=(*param.marks, *more), id=name))
        if _generate_slow or all(mark.name != SLOW for mark in made[-1].marks):
            chosen.append(made[-1])
    return pytest.mark.parametrize(names, chosen or made, ids=ids if callable(ids) else None, **options)
