"""Tables of cases that run as one test."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

MAX_LABEL = 300


def each_case(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Any]:
    """Run a test on all cases in turn; the error of the first one that fails names it.

    Each case has its own folder as ``tmp_path``, and its own ``monkeypatch``.

    Args:
        names: as ``pytest.mark.parametrize`` takes them.
        cases: as parametrize takes them, without ``pytest.param``.
    """
    several = not isinstance(names, str) or "," in names
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [dict(zip(keys, case if several else (case,), strict=True)) for case in cases]
    assert rows, "a table without cases"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            for number, row in enumerate(rows):
                with pytest.MonkeyPatch.context() as patch:
                    own: dict[str, Any] = {}
                    if "tmp_path" in fixtures:
                        own["tmp_path"] = Path(fixtures["tmp_path"]) / f"case{number}"
                        own["tmp_path"].mkdir()
                    if "monkeypatch" in fixtures:
                        own["monkeypatch"] = patch
                    try:
                        test(*args, **{**fixtures, **own, **row})
                    except Exception as error:
                        raise AssertionError(f"case {number}: {row!r}"[:MAX_LABEL]) from error

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate
