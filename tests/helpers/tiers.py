"""Which tests `make test` runs, and which wait for `make test-all`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


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
