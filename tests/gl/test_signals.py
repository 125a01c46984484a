"""Signals while C code calls Python: handlers wait, and programs are whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import _moderngl
import pytest

from glinfer.gl.context import Device
from glinfer.gl.program import Program
from glinfer.gl.signals import signals_held

pytestmark = pytest.mark.gl


class TimeUpError(Exception):
    """What the handler of another signal raises."""


@pytest.fixture
def handlers() -> Iterator[list[int]]:
    """Handlers that raise, of Ctrl-C and of an alarm; the list says which were called."""
    called: list[int] = []

    def heed(error: type[BaseException]) -> Callable[[int, FrameType | None], None]:
        def handler(number: int, _: FrameType | None) -> None:
            called.append(number)
            raise error

        return handler

    wanted = {signal.SIGINT: heed(KeyboardInterrupt), signal.SIGALRM: heed(TimeUpError)}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    yield called
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, TimeUpError)])
def test_a_handler_waits_for_the_end_of_the_block(
    handlers: list[int], number: signal.Signals, error: type[BaseException]
) -> None:
    reached, before = False, signal.getsignal(number)

    def within() -> None:
        nonlocal reached
        with signals_held():
            signal.raise_signal(number)
            signal.raise_signal(number)
            reached = True

    with pytest.raises(error):
        within()
    assert reached
    assert handlers == [number], "once, as the system keeps a signal that is pending"
    assert signal.getsignal(number) is before


def test_a_handler_that_could_not_be_put_back_is_called_through(
    handlers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise TimeUpError

    with pytest.raises(TimeUpError), signals_held():
        monkeypatch.setattr(signal, "signal", refuse)
    monkeypatch.undo()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert handlers == [signal.SIGINT]


def test_an_error_of_the_block_comes_through(handlers: list[int]) -> None:
    with pytest.raises(ZeroDivisionError), signals_held():
        raise ZeroDivisionError
    assert handlers == []


def test_nothing_is_done_in_another_thread() -> None:
    ended = []

    def work() -> None:
        with signals_held():
            ended.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == [before]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM])
def test_a_signal_while_a_program_is_made_leaves_nothing(
    device: Device, handlers: list[int], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Without the holding this kills the process: moderngl puts the missing member into a dictionary."""
    make, calls = _moderngl.make_uniform, []

    def signalled(*given: Any) -> Any:
        calls.append(given)
        signal.raise_signal(number)
        return make(*given)

    monkeypatch.setattr(_moderngl, "make_uniform", signalled)
    with pytest.raises((KeyboardInterrupt, TimeUpError)):
        Program(device, "copy", {"COLS": 5}, ["x"])
    assert calls
    assert not device.live_objects()
    monkeypatch.undo()
    Program(device, "copy", {"COLS": 5}, ["x"]).release()
