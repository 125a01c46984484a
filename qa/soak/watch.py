"""Samples of a long run: memory, objects, files, and a model's answers."""

from __future__ import annotations

import gc
import os
import sys
import threading
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glinfer.engine.model import Model, StreamOptions
from glinfer.engine.requests import BatchRequest
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.errors import InputError
from glinfer.gl.context import Device
from glinfer.gl.texture import Texture
from glinfer.inspect.draws import example_ids
from qa.objects import driver_objects
from qa.serve_load import resident

_PROMPT, _STEPS = 40, 24
_SEED = 7
_SHOWN_LINES = 12


@dataclass(frozen=True)
class Sample:
    """Numbers of one moment, with nothing open but the model.

    Attributes:
        tokens: tokens run so far; those of the probe are not counted.
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
        tokens_per_second: speed since the sample before, of a server for all clients.
        differs: names of the probe's answers that differ from the first time.
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


class FixedTask:
    """Fixed questions to one model, whose answers have to be the same bits each time, and fixed work to be timed."""

    def __init__(self, model: Model) -> None:
        """Ask for the first time; later answers are compared with these."""
        self._model = model
        context = model.config.max_position_embeddings
        self._prompt = [int(token) for token in example_ids(model.config, max(1, min(_PROMPT, context // 2)))]
        self._steps = max(1, min(_STEPS, context - len(self._prompt)))
        self._first = self.answers()

    def answers(self) -> dict[str, bytes]:
        """The model's answers as bytes, by question."""
        model, prompt, steps = self._model, self._prompt, min(self._steps, 8)
        options = SamplingOptions(temperature=0.9, seed=_SEED)
        found: dict[str, Any] = {}
        with model.session() as session:
            session.prefill(prompt)
            found["logits of a prompt"] = session.logits()
            found["tokens"] = session.generate_ids(steps, Sampler(options))
            with session.fork() as fork:
                found["logits of a fork"] = fork.logits()
        with model.session() as session:
            for token in prompt[:steps]:
                session.step(token)
            found["logits token by token"] = session.logits()
        given: StreamOptions = {"max_tokens": steps, "temperature": 0.9, "seed": _SEED}
        model.logits([(prompt[0] + 1) % model.config.vocab_size])  # nothing of what others left is gone on with
        found["tokens of a stream"] = list(model.stream(prompt, **given))
        requests = [BatchRequest(prompt[:length], given, length) for length in {len(prompt), (len(prompt) + 1) // 2}]
        results = sorted(model.batch(requests), key=lambda result: str(result.request.key))
        found["tokens of a batch"] = [token for result in results for token in result.ids]
        if model.plan.name == "fast" and len(prompt) > 1:
            found["likelihoods"] = model.score([prompt])[0].logprobs
        return {name: np.asarray(value).tobytes() for name, value in found.items()}

    def differing(self) -> tuple[str, ...]:
        """Ask again; the names of answers that differ from the first time."""
        again = self.answers()
        return tuple(name for name, value in self._first.items() if again[name] != value)

    def run(self) -> int:
        """Read the prompt and choose tokens after it; returns how many were read and chosen."""
        with self._model.session() as session:
            session.prefill(self._prompt)
            session.generate_ids(self._steps)
        return len(self._prompt) + self._steps


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


@dataclass(frozen=True)
class Grown:
    """A line of Python whose memory grew: its place, the bytes, and the memory blocks."""

    place: str
    bytes: int
    pieces: int


class Tracer:
    """Finds the lines of Python whose memory grows, with :mod:`tracemalloc`; everything is slower under it."""

    def __init__(self) -> None:
        """Make a tracer that has not begun."""
        self._before: tracemalloc.Snapshot | None = None

    def start(self) -> None:
        """Begin; earlier allocations do not count.

        Raises:
            InputError: tracemalloc runs already.
        """
        if tracemalloc.is_tracing():
            raise InputError("tracemalloc runs already in this process; end it, or do not ask for a trace")
        gc.collect()
        tracemalloc.start()
        self._before = tracemalloc.take_snapshot()

    def stop(self) -> tuple[Grown, ...]:
        """End; the lines that grew most, in descending order."""
        if self._before is None:
            return ()
        gc.collect()
        after = tracemalloc.take_snapshot()
        tracemalloc.stop()
        own = [tracemalloc.Filter(False, tracemalloc.__file__), tracemalloc.Filter(False, __file__)]
        before, self._before = self._before.filter_traces(own), None
        changes = [change for change in after.filter_traces(own).compare_to(before, "lineno") if change.size_diff > 0]
        return tuple(
            Grown(f"{change.traceback[0].filename}:{change.traceback[0].lineno}", change.size_diff, change.count_diff)
            for change in changes[:_SHOWN_LINES]
        )
