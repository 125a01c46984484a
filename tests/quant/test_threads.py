"""Calls in threads: each item once, and an error ends them."""

from __future__ import annotations

import threading

import pytest

from glinfer.quant import threads
from glinfer.quant.threads import in_threads


@pytest.mark.parametrize("cores", [1, 3])
def test_each_item_is_taken_once(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(threads, "cores", lambda: cores)
    found: list[int] = []
    in_threads(found.append, range(50))
    assert sorted(found) == list(range(50))
    in_threads(found.append, [])
    assert len(found) == 50


def test_one_core_takes_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "cores", lambda: 1)
    seen: set[int] = set()
    in_threads(lambda _: seen.add(threading.get_ident()), range(3))
    assert seen == {threading.get_ident()}


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
