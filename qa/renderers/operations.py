"""The operations of GLSL whose rounding is the renderer's own, one by one: which of them make two renderers differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.gl.context import Device
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.program import VERTEX_SHADER, Program, load_source
from glinfer.gl.replay import Draw, replay
from glinfer.gl.texture import Texture

Array = npt.NDArray[Any]
COUNT = 256
"""Numbers that each operation is tried with."""
SHADER = "probe_math"


@dataclass(frozen=True)
class Operation:
    """An operation of shaders/probe_math.frag.

    Attributes:
        number: its OPERATION there.
        reads: the names of the textures that it samples, a letter each.
        exact: the same of float64 arrays.
        scale: of x and y; a small one makes results for which float32 has no normal number.
    """

    number: int
    reads: str
    exact: Callable[..., Array]
    scale: float = 1.0

    def inputs(self) -> dict[str, Array]:
        """The same float32 numbers x, y and z everywhere; z lies between 0 and 1."""
        random = np.random.default_rng(self.number)
        x, y = (random.standard_normal(COUNT).astype(np.float32) for _ in range(2))
        scale = np.float32(self.scale)
        made = {"x": x * scale, "y": y * scale, "z": random.random(COUNT, np.float32)}
        return {name: made[name] for name in self.reads}

    def error(self, found: Array) -> float:
        """The largest error of float32 results, in units of the last place of the exact one."""
        exact = self.exact(*(each.astype(np.float64) for each in self.inputs().values()))
        return float((np.abs(found.reshape(-1) - exact) / np.spacing(np.abs(exact).astype(np.float32))).max())


def _dot(x: Array, y: Array) -> Array:
    return np.repeat((x * y).reshape(-1, 4).sum(axis=1), 4)


OPERATIONS: Mapping[str, Operation] = {
    "x + y": Operation(0, "xy", lambda x, y: x + y),
    "x · y": Operation(1, "xy", lambda x, y: x * y),
    "x · y + z": Operation(2, "xyz", lambda x, y, z: x * y + z),
    "x / y": Operation(3, "xy", lambda x, y: x / y),
    "exp": Operation(4, "x", lambda x: np.exp(x), 8.0),
    "log": Operation(5, "x", lambda x: np.log(np.abs(x)), 8.0),
    "sqrt": Operation(6, "x", lambda x: np.sqrt(np.abs(x))),
    "inversesqrt": Operation(7, "x", lambda x: 1 / np.sqrt(np.abs(x))),
    "tanh": Operation(8, "x", lambda x: np.tanh(x)),
    "dot": Operation(9, "xy", _dot),
    "mix": Operation(10, "xyz", lambda x, y, z: x * (1 - z) + y * z),
    "subnormal x + y": Operation(0, "xy", lambda x, y: x + y, 2.0**-127),
    "subnormal x · y": Operation(1, "xy", lambda x, y: x * y, 2.0**-63),
}
"""By the name in tables."""


def draw_all(device: Device) -> dict[str, Array]:
    """The results of every operation, float32 [1, COUNT]."""
    return {name: _draw(device, operation) for name, operation in OPERATIONS.items()}


def _draw(device: Device, operation: Operation) -> Array:
    layout = FlatLayout.of((1, COUNT), "rgba32f", device.limits.max_texture_size)
    made: list[Texture | Program] = []
    try:
        given = [Texture(device, layout, name, layout.pack(one[None])) for name, one in operation.inputs().items()]
        target = Texture(device, layout, "result")
        made += [*given, target]
        program = Program(device, SHADER, {"OPERATION": operation.number}, list(operation.reads))
        made.append(program)
        replay(device, [Draw(SHADER, program, target.framebuffer, tuple(given))], {})
        return np.asarray(target.read())
    finally:
        for item in reversed(made):
            item.release()


def browser_jobs() -> list[dict[str, Any]]:
    """The same as jobs of web/tests/browser/drive.mjs."""
    jobs = []
    for operation in OPERATIONS.values():
        defines = {"OPERATION": operation.number}
        sources = [load_source(VERTEX_SHADER, {}, api="es"), load_source(f"{SHADER}.frag", defines, api="es")]
        texts = dict(zip(("vertex", "fragment"), (source.text for source in sources), strict=True))
        inputs = {name: numbers.tolist() for name, numbers in operation.inputs().items()}
        jobs.append({"kind": "draw", **texts, "inputs": inputs})
    return jobs


def digest(numbers: Array) -> str:
    """A short name of the bits of an array."""
    return sha256(np.ascontiguousarray(numbers).tobytes()).hexdigest()[:16]
