"""The server of a soak: that of ``glinfer serve``, in a process of its own, which counts itself when it is asked.

``python -m qa.soak.served SETTINGS`` takes the arguments of :func:`serve` as JSON, and says where it listens. Each line
on its standard input is answered by a line of JSON, and it ends with that input.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from glinfer.engine.batch import SchedulerOptions
from glinfer.errors import GlinferError
from glinfer.gl.context import Device
from glinfer.gl.texture import Texture
from glinfer.server.auth import Access
from glinfer.server.run import HttpServer, ServerOptions
from glinfer.server.served import ModelSource
from glinfer.server.worker import Channel, Steps
from qa.objects import driver_objects

MEMORY, TEXTURES, BLOCKS, OBJECTS = "process memory", "texture bytes", "Python's memory blocks", "Python's objects"
_QUIET_SECONDS = 30.0
"""Limit for the last sequences and connections to end before the server counts itself, in seconds."""


def command(**settings: Any) -> list[str]:
    """What starts a server with these arguments of :func:`serve`."""
    return [sys.executable, "-m", "qa.soak.served", json.dumps(settings)]


class CountingServer(HttpServer):
    """A server that counts what its process holds."""

    def count(self) -> dict[str, int]:
        """The counts of :func:`counts`, with sequences and connections that have not ended; of any thread."""
        assert self._loop is not None, "asked before the first answer"
        return asyncio.run_coroutine_threadsafe(self._count(), self._loop).result()

    async def _count(self) -> dict[str, int]:
        time, connections = asyncio.get_running_loop().time, self._uvicorn.server_state.connections
        deadline = time() + _QUIET_SECONDS
        while (self.worker.live or connections) and time() < deadline:
            await asyncio.sleep(0.01)
        live = self.worker.live
        channel = Channel(next(iter(self.worker.served.values())), 1)
        self.worker.work(channel, _counting)
        found: dict[str, int] = await channel.get()
        return {**found, "sequences of requests": live, "connections": len(connections)}


def _counting(model: Any) -> Steps:
    """One step, on the thread of OpenGL."""
    return counts(model.device)
    yield


def counts(device: Device) -> dict[str, int]:
    """What this process holds at the moment, with the objects that the driver has; needs Linux's /proc."""
    device.activate()
    device.gl.finish()  # what was released is given back to the system when nothing draws from it any more
    gc.collect()
    own, tasks = Path("/proc/self"), [*Path("/proc/self/task").iterdir()]
    return {
        MEMORY: int((own / "statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        TEXTURES: texture_bytes(device),
        BLOCKS: sys.getallocatedblocks(),
        OBJECTS: len(gc.get_objects()),
        "open files": len([*(own / "fd").iterdir()]),
        "threads": len(tasks),
        "child processes": sum(len((task / "children").read_text("ascii").split()) for task in tasks),
        **device.live_objects(),
        **{f"driver: {kind}": count for kind, count in driver_objects(device).items()},
    }


def texture_bytes(device: Device) -> int:
    """Bytes of all textures of a device that were not released, referenced or not."""
    found = (each for each in gc.get_objects() if type(each) is Texture)
    return sum(each.layout.nbytes for each in found if each.device is device and each.gl is not None)


def serve(
    models: Mapping[str, str],
    adapters: Mapping[str, Mapping[str, str]],
    slots: int,
    waiting: int,
    keys: Sequence[str] = (),
) -> None:
    """Serve until standard input ends, and answer each of its lines.

    ``models`` and ``adapters`` of a model are paths by name; ``waiting`` sequences of a model may wait for its
    ``slots``. Without ``keys`` clients need none.
    """
    scheduler = SchedulerOptions(slots=slots)
    sources = [
        ModelSource(name, path, {"lora": dict(adapters.get(name, {})) or None}, scheduler)
        for name, path in models.items()
    ]
    server = CountingServer(sources, ServerOptions(Access(keys=tuple(keys)), port=0, max_waiting=waiting, grace=5.0))

    def answer() -> None:
        for _ in sys.stdin:
            click.echo(json.dumps(server.count()))
        server.end()

    threading.Thread(target=answer, daemon=True).start()
    click.echo(f"serving {', '.join(models)} at {server.address}/v1")
    server.run()


if __name__ == "__main__":
    try:
        serve(**json.loads(sys.argv[1]))
    except GlinferError as error:
        raise SystemExit(f"glinfer: {error}") from None
