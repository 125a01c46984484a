"""Calls in threads: each item once, and an error ends them."""

from __future__ import annotations

import threading

import pytest
from each_case import each_case

from glinfer.quant import threads
from glinfer.quant.threads import in_threads


@each_case("cores", [1, 3])
def test_each_item_is_taken_once(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(threads, "cores", lambda: cores)
    found: list[int] = []
    seen: set[int] = set()
    in_threads(lambda _: seen.add(threading.get_ident()), range(3))
    assert cores > 1 or seen == {threading.get_ident()}, "one core takes no thread"
    in_threads(found.append, range(50))
    assert sorted(found) == list(range(50))
    in_threads(found.append, [])
    assert len(found) == 50


def test_an_error_is_raised_and_no_further_call_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 2)
    begun, failed, before = list[int](), threading.Event(), threading.active_count()

    def call(item: int) -> None:
        begun.append(item)
        if item == 1:
            failed.set()
            raise MemoryError
        if item > 1:
            failed.wait(60)

    with pytest.raises(MemoryError):
        in_threads(call, range(10_000))
    assert len(begun) < 10_000
    assert threading.active_count() == before
