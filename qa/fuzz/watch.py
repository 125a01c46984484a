"""What a reader may do with a file, and what it did: files opened, programs run, time and memory taken."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from glinfer.errors import GlinferError, GlinferWarning
from tests.helpers.counting import Calls, TooManyCalls

SECONDS = 1.0
"""Processor time limit for reading and using a small file during a search."""
CALLS = 400_000
"""Functions that it may call, where time would say more about the machine; a thousand experts take up to 200,000."""
MEMORY = 128 << 20
"""Bytes that it may take beside twice the size of the file."""
LONGEST_MESSAGE = 1500

_PACKAGE = Path(__file__).resolve().parents[2] / "glinfer"
_OWN = tuple(
    {os.path.realpath(path) + os.sep for path in (sys.prefix, sys.base_prefix, _PACKAGE, Path(os.__file__).parent)}
)
_PATHS = ("open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.chown",
          "os.link", "os.symlink", "os.truncate", "os.utime", "shutil.")  # fmt: skip
_NEVER = ("os.system", "os.exec", "os.spawn", "os.fork", "os.kill", "pickle.",
          "ctypes.", "socket.", "urllib.", "http.", "webbrowser.", "pty.", "builtins.input")  # fmt: skip


class Forbidden(BaseException):
    """Raised in the middle of something that no reader may do; no reader may catch it."""


@dataclass(frozen=True)
class Outcome:
    """What came of one file.

    Attributes:
        kind: ``accepted``, ``refused``, or what is wrong: ``error``, ``message``, ``slow``, ``calls``, ``memory``,
            ``forbidden``.
        detail: the error, or what was done.
        place: of a find, the innermost place in glinfer: equal finds have equal ones.
    """

    kind: str
    detail: str = ""
    place: str = ""

    @property
    def is_find(self) -> bool:
        """Whether something is wrong."""
        return self.kind not in ("accepted", "refused")


@dataclass
class _Watch:
    """What is allowed at the moment, and what was done that is not."""

    folder: str
    processes: bool
    programs: bool
    broken: str = ""

    def note(self, event: str, args: tuple[Any, ...]) -> None:
        if complaint := self._complaint(event, args):
            self.broken = self.broken or complaint
            raise Forbidden(complaint)

    def _complaint(self, event: str, args: tuple[Any, ...]) -> str:
        if event.startswith(_PATHS):
            paths = args[:2] if event in ("os.rename", "os.link", "os.symlink") else args[:1]
            wrong = [
                path for path in paths if isinstance(path, (str, bytes, os.PathLike)) and not self._may_touch(path)
            ]
            return f"{event} {wrong[0]!r}" if wrong else ""
        if event.startswith(_NEVER):
            return f"{event} {args[:1]!r}"
        if event in ("subprocess.Popen", "os.posix_spawn"):  # newer Pythons start the one by the other
            workers = {str(_PACKAGE / "text" / "template_worker.py"), str(_PACKAGE / "structured" / "worker.py")}
            return "" if self.processes and workers & set(map(str, args[1])) else f"{event} {args[:2]!r}"
        if event == "exec":
            name = getattr(args[0], "co_filename", "?")
        elif event == "compile":
            name = str(args[1])
        else:
            return ""
        allowed = self.programs and name in ("<template>", "<unknown>")
        own = name.startswith("<frozen") or (Path(name).is_absolute() and os.path.realpath(name).startswith(_OWN))
        return "" if allowed or own else f"{event} {name}"

    def _may_touch(self, path: Any) -> bool:
        real = os.path.realpath(os.fsdecode(path))
        if real == os.devnull:  # what a process that is started has for its input
            return True
        if self.programs and path == "<template>":  # where Python looks for the line that a warning is about
            return True
        return real == self.folder or real.startswith((self.folder + os.sep, *_OWN))


_watch: _Watch | None = None


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _watch is not None:
        _watch.note(event, args)


@cache
def _hooked() -> None:
    """Audit hooks cannot be taken back: this one is added when the first file is watched."""
    sys.addaudithook(_hook)


def watch(
    read: Callable[[bytes, Path], object],
    data: bytes,
    folder: Path,
    *,
    processes: bool = False,
    programs: bool = False,
    memory: bool = False,
    counted: bool = False,
) -> Outcome:
    """Read and use one file, and tell what came of it; never raises.

    Args:
        read: takes the bytes and a folder of its own.
        data: the file.
        folder: the one folder in which anything may be opened.
        processes: whether the process that renders templates, or compiles structures, may be started.
        programs: whether a template may be compiled and run in this process, which sets no limit to its time.
        memory: whether to measure what Python and NumPy take, which slows everything down.
        counted: whether to count calls of functions rather than seconds, so that a busy machine changes nothing.
    """
    global _watch
    _hooked()
    _watch = now = _Watch(os.path.realpath(folder), processes, programs)
    caught: BaseException | None = None
    peak = 0
    if memory:
        tracemalloc.start()
    started = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not programs:  # what a calculation or a library warns of would be one line too many
                warnings.simplefilter("error", RuntimeWarning)
                warnings.simplefilter("error", UserWarning)
                warnings.simplefilter("ignore", GlinferWarning)
            with Calls(CALLS) if counted else contextlib.nullcontext():
                read(data, folder)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        caught = error
    finally:
        _watch = None
        seconds = time.process_time() - started
        if memory:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    if now.broken:
        return Outcome("forbidden", now.broken, now.broken[:60])
    if isinstance(caught, TooManyCalls):
        return Outcome("calls", str(caught), "calls")
    outcome = _outcome(caught)
    if outcome.is_find:
        return outcome
    then = f"then {outcome.kind} {outcome.detail}"
    if seconds > SECONDS and not (counted or programs):  # a template has a limit of its own
        return Outcome("slow", f"{seconds:.1f} s, {then}"[:300], "slow")
    if peak > 2 * len(data) + MEMORY:
        return Outcome("memory", f"{peak >> 20} MiB, {then}"[:300], "memory")
    return outcome


def _outcome(caught: BaseException | None) -> Outcome:
    if caught is None:
        return Outcome("accepted")
    text, place = str(caught), _place(caught)
    if not isinstance(caught, GlinferError):
        return Outcome("error", f"{type(caught).__name__}: {text}"[:300], place)
    if len(text.splitlines()) != 1 or not text.isprintable() or not text.strip() or len(text) > LONGEST_MESSAGE:
        return Outcome("message", f"not one clear line, {len(text)} characters: {text[:200]!r}", place)
    return Outcome("refused", text)


def _place(error: BaseException) -> str:
    """Kind of error, and the innermost line of glinfer that it came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(_PACKAGE))]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside glinfer"
    return f"{type(error).__name__} at {where}"
