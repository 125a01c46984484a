"""Samples of a long run: memory, objects, files."""

from __future__ import annotations

import gc
import os
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glinfer.gl.context import Device
from glinfer.gl.texture import Texture
from qa.objects import driver_objects
from qa.serve_load import resident


@dataclass(frozen=True)
class Sample:
    """Numbers of one moment, with nothing open but the model.

    Attributes:
        tokens: tokens run so far.
        sequences: sequences begun so far.
        seconds: time since the soak began.
        memory: resident bytes of the process (RSS), with the textures of a software renderer; None if unknown.
        texture_bytes: bytes of all textures of the device.
        objects: OpenGL's objects by kind: those that glinfer owns, and with "driver:" those that the driver has.
        blocks: memory blocks that Python has allocated.
        python_objects: objects that Python's garbage collector tracks.
        files: open file descriptors; None if unknown.
        threads: threads of the process.
        children: running child processes; None if unknown.
        tokens_per_second: speed since the sample before, of all clients.
        differs: kinds of answers that differ from the first time.
    """

    tokens: int
    sequences: int
    seconds: float
    memory: int | None
    texture_bytes: int
    objects: dict[str, int]
    blocks: int
    python_objects: int
    files: int | None
    threads: int
    children: int | None
    tokens_per_second: float
    differs: tuple[str, ...] = ()


def counts(device: Device) -> dict[str, Any]:
    """What this process holds at the moment: the fields of a :class:`Sample` from ``memory`` to ``children``."""
    device.activate()
    device.gl.finish()  # what was released is given back to the system when nothing draws from it any more
    objects = {**device.live_objects(), **{f"driver: {kind}": count for kind, count in driver_objects(device).items()}}
    gc.collect()
    return {
        "memory": resident(os.getpid()),
        "texture_bytes": texture_bytes(device),
        "objects": dict(sorted(objects.items())),
        "blocks": sys.getallocatedblocks(),
        "python_objects": len(gc.get_objects()),
        "files": _entries(Path("/proc/self/fd")),
        "threads": max(threading.active_count(), _entries(Path("/proc/self/task")) or 0),
        "children": _children(),
    }


def texture_bytes(device: Device) -> int:
    """Bytes of all textures of a device that were not released, referenced or not."""
    found = (each for each in gc.get_objects() if type(each) is Texture)
    return sum(each.layout.nbytes for each in found if each.device is device and each.gl is not None)


def _entries(folder: Path) -> int | None:
    """Number of entries of a folder of /proc; None if there is no such folder."""
    try:
        return sum(1 for _ in folder.iterdir())
    except OSError:
        return None


def _children() -> int | None:
    try:
        lists = [(task / "children").read_text("ascii") for task in Path("/proc/self/task").iterdir()]
    except OSError:
        return None
    return sum(len(each.split()) for each in lists)
