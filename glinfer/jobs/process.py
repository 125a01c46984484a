"""One process for each device, which reads requests and writes results as lines of JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, BinaryIO

from glinfer.errors import ContextError, GlinferError, InputError
from glinfer.formats.files import reason, words_of
from glinfer.jobs.lines import RequestLine
from glinfer.jobs.local import LocalMember, LocalSetup
from glinfer.jobs.pool import Answered, Died, Event, Events, Failed, Member, Ready
from glinfer.terminal import PrintableStream

_CLOSING_SECONDS = 10
_PACKAGES = Path(__file__).resolve().parents[2]


class ProcessMember(Member):
    """A process with the models on one device.

    It ends with its standard input, so it does not outlive this process.
    """

    def __init__(self, setup: LocalSetup, events: Events) -> None:
        """Start the process."""
        path = os.pathsep.join(filter(None, (str(_PACKAGES), os.environ.get("PYTHONPATH"))))
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "glinfer.jobs.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C goes to the parent, which ends the process
            )
        except OSError as error:
            raise ContextError(
                f"no process for a device can be started: {reason(error)}; check the limits of this user (ulimit -a)"
            ) from None
        self._events = events
        self._write(asdict(setup))
        threading.Thread(target=self._read, name="glinfer-member", daemon=True).start()

    def _write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):  # it has died, which the reader reports
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def send(self, number: int, line: RequestLine) -> None:
        """Send a line."""
        self._write({"number": number, "line": vars(line)})

    def _read(self) -> None:
        """Turn its output into events, on a thread."""
        said = ""
        try:
            self._take()
        except (OSError, ValueError, LookupError, TypeError) as error:
            said = f"its output is not a result ({words_of(error)})"
            self.process.kill()
        status = self.process.wait()
        self._events.put((self, Died(said or _exit_text(status))))

    def _take(self) -> None:
        assert self.process.stdout is not None
        for message in _messages(self.process.stdout):
            self._events.put((self, _event_of(*message)))

    def close(self) -> None:
        """End the process, and kill it if it does not end in time."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(_CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _exit_text(status: int) -> str:
    """Describe the exit status of a process."""
    if status >= 0:
        return f"exit status {status}"
    with suppress(ValueError):
        return f"{signal.Signals(-status).name}"
    return f"signal {-status}"


def _messages(file: IO[bytes]) -> Iterator[Any]:
    """The messages in a pipe, until it ends or its writer dies within one."""
    for data in file:
        if not data.endswith(b"\n"):
            return
        yield json.loads(data)


def _event_of(kind: str, fields: dict[str, Any]) -> Event:
    """The event in a message of :class:`_Results`."""
    if kind == "refused":
        return Failed(InputError(fields["message"]))
    kinds: dict[str, Callable[..., Event]] = {"ready": Ready, "died": Died, "answered": Answered}
    return kinds[kind](**fields)


class _Results:
    """The events of the models as messages for the parent: the kind of an event, and its fields."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def put(self, event: tuple[Member, Event], /) -> None:
        happened = event[1]
        kind, fields = type(happened).__name__.lower(), vars(happened)
        if isinstance(happened, Failed):
            refused = happened.number is None and isinstance(happened.error, GlinferError)
            kind = "refused" if refused else "died"
            fields = {"message": str(happened.error) if refused else words_of(happened.error)}
        try:
            self._file.write(json.dumps([kind, fields]).encode() + b"\n")
            self._file.flush()
        except BrokenPipeError:  # the parent has died
            os._exit(1)


def main() -> None:
    """Answer the requests on standard input until it ends."""
    sys.stderr = PrintableStream(sys.stderr)
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep the output of libraries out of the results
    messages = _messages(sys.stdin.buffer)
    if (setup := next(messages, None)) is None:
        return
    member = LocalMember(LocalSetup(**setup), _Results(results))
    for message in messages:
        member.send(message["number"], RequestLine(**message["line"]))
    member.close()


if __name__ == "__main__":
    main()
