"""One process for each device, which reads requests and writes results as lines of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from glinfer.batch.local import LocalServer, LocalSetup
from glinfer.batch.pool import Answered, Died, Events, Member, Ready, Refused, result_json
from glinfer.batch.requests import RequestLine
from glinfer.errors import ContextError, GlinferError
from glinfer.formats.files import reason, words_of
from glinfer.terminal import PrintableStream, emit

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
                [sys.executable, "-m", "glinfer.batch.process"],
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
        self._write(setup.to_json())
        threading.Thread(target=self._read, name="glinfer-member", daemon=True).start()

    def _write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):  # it has died, which the reader reports
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def send(self, line: RequestLine) -> None:
        """Send a line."""
        self._write({"number": line.number, "key": line.key, "url": line.url, "body": line.body})

    def _read(self) -> None:
        """Turn its output into events, on a thread."""
        said = ""
        try:
            self._take()
        except (OSError, ValueError, LookupError, TypeError) as error:
            said = f"its output is not a result ({words_of(error)})"
            self.process.kill()
        status = self.process.wait()
        self._events.put((self, Died(said or _said(status))))

    def _take(self) -> None:
        assert self.process.stdout is not None
        for data in self.process.stdout:
            if not data.endswith(b"\n"):
                break
            message = json.loads(data)
            if "ready" in message:
                self._events.put((self, Ready(*message["ready"])))
            elif "refused" in message:
                self._events.put((self, Refused(message["refused"])))
            else:
                self._events.put((self, Answered(message["number"], message["result"], message["draws"])))

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


def _said(status: int) -> str:
    """Describe the exit status of a process."""
    if status >= 0:
        return f"exit status {status}"
    with suppress(ValueError):
        return f"{signal.Signals(-status).name}"
    return f"signal {-status}"


class _Child:
    """The child process: answers requests until its input ends."""

    def __init__(self, requests: BinaryIO, results: BinaryIO) -> None:
        self._requests, self._results = requests, results
        self._tasks: set[asyncio.Task[None]] = set()

    def say(self, message: dict[str, Any]) -> None:
        self._results.write(json.dumps(message).encode() + b"\n")
        self._results.flush()

    async def serve(self) -> None:
        """Answer requests until the input ends."""
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[None] = self._loop.create_future()
        message = self._requests.readline()
        if not message.endswith(b"\n"):  # the parent has died
            return
        self._server = LocalServer(LocalSetup(**json.loads(message)))
        try:
            try:
                await self._server.start()
            except GlinferError as error:
                self.say({"refused": str(error)})
                return
            self.say({"ready": [self._server.window, self._server.renderer]})
            threading.Thread(target=self._read, daemon=True).start()
            await self._end
        finally:
            for task in self._tasks:
                task.cancel()
            await self._server.stop()

    def _read(self) -> None:
        """Read requests on a thread, and start a task for each."""
        for data in self._requests:
            if not data.endswith(b"\n"):  # the parent has died
                break
            message = json.loads(data)
            line = RequestLine(message["number"], message["key"], message["url"], message["body"])
            self._loop.call_soon_threadsafe(self._begin, line)
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._finish, None)

    def _begin(self, line: RequestLine) -> None:
        task = self._loop.create_task(self._answer(line))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _finish(self, error: BaseException | None) -> None:
        if self._end.done():
            return
        if error is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(error)

    async def _answer(self, line: RequestLine) -> None:
        try:
            result = await self._server.answer(line)
            self.say({"number": line.number, "result": result_json(result), "draws": self._server.draws})
        except Exception as error:
            self._finish(error)


def main() -> None:
    """Answer the requests on standard input."""
    sys.stderr = PrintableStream(sys.stderr)
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep the output of libraries out of the results
    try:
        asyncio.run(_Child(sys.stdin.buffer, results).serve())
    except BrokenPipeError:  # the parent has died
        sys.exit(1)
    except GlinferError as error:
        emit(f"glinfer: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
