"""The server of a soak: that of ``glinfer serve``, in a process of its own, which counts itself when it is asked.

``python -m qa.soak.served SETTINGS``, with settings of :class:`Settings` as JSON. It says where it listens as ``glinfer
serve`` does. Each line on its standard input is answered by a line of JSON, and it ends with that input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import click

from glinfer.engine.batch import SchedulerOptions
from glinfer.errors import GlinferError
from glinfer.server.auth import Access
from glinfer.server.run import HttpServer, ServerOptions
from glinfer.server.served import ModelSource
from glinfer.server.worker import Channel, Steps
from qa.soak.watch import counts

_QUIET_SECONDS = 30.0
"""Limit for the last sequences and connections to end before the server counts itself, in seconds."""


@dataclass(frozen=True)
class Settings:
    """How the server of a soak is run.

    Attributes:
        models: path of each model by its name.
        adapters: path of each adapter by its name, by the model that it belongs to.
        slots: sequences of a model at once.
        waiting: sequences of a model that may wait.
        keys: the keys of clients; without keys none is required.
        device: as of ``glinfer serve --device``.
    """

    models: Mapping[str, str]
    adapters: Mapping[str, Mapping[str, str]]
    slots: int
    waiting: int
    keys: tuple[str, ...] = ()
    device: str | None = None

    def command(self) -> list[str]:
        """What starts the server."""
        return [sys.executable, "-m", "qa.soak.served", json.dumps(asdict(self))]


class CountingServer(HttpServer):
    """A server that counts what its process holds."""

    def count(self) -> dict[str, Any]:
        """The counts of :func:`qa.soak.watch.counts`, with ``live`` sequences and ``connections``; of any thread."""
        assert self._loop is not None, "asked before the first answer"
        return asyncio.run_coroutine_threadsafe(self._count(), self._loop).result()

    async def _count(self) -> dict[str, Any]:
        time, connections = asyncio.get_running_loop().time, self._uvicorn.server_state.connections
        deadline = time() + _QUIET_SECONDS
        while (self.worker.live or connections) and time() < deadline:
            await asyncio.sleep(0.01)
        live = self.worker.live
        served = next(iter(self.worker.served.values()))
        channel = Channel(served, 1)
        self.worker.work(channel, _counting)
        counts = await channel.get()
        return {**counts, "live": live, "connections": len(connections)}


def _counting(model: Any) -> Steps:
    """One step, on the thread of OpenGL."""
    return counts(model.device)
    yield


def serve(settings: Settings) -> None:
    """Serve until standard input ends, and answer each of its lines."""
    scheduler = SchedulerOptions(slots=settings.slots)
    sources = [
        ModelSource(name, path, {"lora": dict(settings.adapters.get(name, {})) or None}, scheduler)
        for name, path in settings.models.items()
    ]
    options = ServerOptions(
        Access(keys=settings.keys), port=0, max_waiting=settings.waiting, device=settings.device, grace=5.0
    )
    server = CountingServer(sources, options)

    def answer() -> None:
        for _ in sys.stdin:
            click.echo(json.dumps(server.count()))
        server.end()

    threading.Thread(target=answer, daemon=True).start()
    click.echo(f"serving {', '.join(settings.models)} at {server.address}/v1")
    server.run()


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    try:
        serve(Settings(**{**given, "keys": tuple(given["keys"])}))
    except GlinferError as error:
        raise SystemExit(f"glinfer: {error}") from None
