"""Ctrl-C at every place of some code: a signal before each step that the interpreter makes there, one run each."""

from __future__ import annotations

import signal
import sys
import types
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


def files_of(*modules: types.ModuleType) -> set[str]:
    return {str(module.__file__) for module in modules}


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """Whoever runs the tests in the background may have SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler, "a handler was left in place"


class Places:
    """Counts the places that were passed: each step of the interpreter in ``files``, each line in ``coarse``.

    A signal is raised before the one with the number ``at``.
    """

    def __init__(self, files: Collection[str], coarse: Collection[str] = ()) -> None:
        self.files, self.coarse = files, coarse
        self.passed, self.at = 0, 0
        self.where = ""

    def _trace(self, frame: types.FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if name in self.files:
            frame.f_trace_opcodes, wanted = True, "opcode"
        elif name in self.coarse:
            wanted = "line"
        else:
            return None
        if event == wanted:
            self.passed += 1
            if self.passed == self.at:
                self.where = f"{name}:{frame.f_lineno}, place {self.passed}"
                signal.raise_signal(signal.SIGINT)
        return self._trace

    @contextmanager
    def watched(self) -> Iterator[None]:
        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # Python 3.12 has steps traced if some frame asked for it before
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)


def interrupted_everywhere(
    act: Callable[[], object],
    after: Callable[[str], object],
    files: Collection[str],
    coarse: Collection[str] = (),
    step: int = 1,
) -> int:
    """Run ``act`` with a Ctrl-C at each of its places in turn, and ``after`` behind each; returns how many there are.

    Each of them has to end in KeyboardInterrupt; the last run passes all places, and in none of them one. With a
    ``step`` only every so many places are tried.
    """
    at = 1 - step
    while True:
        at += step
        places = Places(files, coarse)
        places.at = at
        try:
            with places.watched():
                act()
        except KeyboardInterrupt:
            assert places.where, "an interrupt that was none"
        else:
            assert not places.where, f"an interrupt was lost: {places.where}"
            return at - 1
        after(places.where)
