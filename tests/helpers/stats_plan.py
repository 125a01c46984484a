"""Plans over rows of which only some are in use, run on the GPU and in float64, draw by draw.

Rows that are not in use hold NaN, so that a draw which reads one of them gives NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from glinfer.gl.context import Device
from glinfer.models.oracle import relative_error, run_plan
from glinfer.models.plan import PlanBuilder
from glinfer.models.session import Session
from glinfer.ops.spec import RunValue, TensorSpec

Array = np.ndarray[Any, Any]
TYPES = {"float32": "rgba32f", "float16": "rgba16f", "int32": "rgba32i"}


@dataclass
class RowsPlan:
    """A plan over ``rows`` of at most ``max_rows`` rows, with arrays for everything it reads."""

    device: Device
    rows: int
    max_rows: int
    values: dict[str, int] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values = {"rows": self.rows, **self.values}
        values = [RunValue(name, 0, 2000, lambda _, at=at: at) for name, at in self.values.items()]
        self.builder = PlanBuilder("rows", self.max_rows, values)
        self.edge = self.device.limits.max_texture_size
        self.scratch = partial(self._flat, "activation", "rgba32f")

    def _flat(self, kind: str, format_name: str, name: str, rows: int, cols: int) -> TensorSpec:
        return self.builder.flat(name, kind, rows, cols, format_name, self.edge)

    def vector(self, name: str, array: Array) -> TensorSpec:
        """An input of which everything is in use."""
        self.arrays[name] = array
        return self._flat("input", TYPES[array.dtype.name], name, *array.shape)

    def matrix(self, name: str, array: Array) -> TensorSpec:
        """An input of max_rows rows, NaN behind those in use."""
        array = array.copy()
        array[self.rows :] = np.nan
        return self.vector(name, array)

    def whole_numbers(self, name: str, rows: int, cols: int) -> TensorSpec:
        """An output of int32."""
        return self._flat("activation", "rgba32i", name, rows, cols)

    def errors(self) -> dict[str, float]:
        """Run it; the largest relative error of each draw by its name, of statistics of the worst of the four."""
        plan, found = self.builder.build(), {}
        with closing_session(self._ran()) as session:
            inputs = {name: array if len(array) == 1 else array[: self.rows] for name, array in self.arrays.items()}
            for draw, written in run_plan(plan, {}, inputs, self.values):
                errors = []
                for name, expected in zip(draw.outputs, written if len(draw.outputs) > 1 else [written], strict=True):
                    texels = session.read(name, *draw.extent(self.values))
                    step = 4 if draw.op in ("row_stats", "merge_stats") else 1
                    errors += [relative_error(texels[:, n::step], expected[:, n::step]) for n in range(step)]
                found[draw.name] = max(errors)
        return found

    def result(self, name: str) -> Array:
        """Run it; the rows in use of one tensor."""
        with closing_session(self._ran()) as session:
            return session.read(name, self.rows)

    def _ran(self) -> Session:
        session = Session(self.builder.build(), {}, self.device)
        for name, array in self.arrays.items():
            session.write(name, array)
        session.run(self.values)
        return session


@contextmanager
def closing_session(session: Session) -> Iterator[Session]:
    """A session that is released at the end of the block."""
    try:
        yield session
    finally:
        session.release()


def normal(seed: int, *shape: int, scale: float = 1.0, offset: float = 0.0) -> Array:
    """Random numbers around ``offset``."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale + offset).astype(np.float32)


def padding(tensor: Any) -> Array:
    """The elements of a tensor's texels behind the last column of each row."""
    texture, layout = tensor.storage.texture(), tensor.layout
    texels = texture.framebuffer.read(0, layout.width, layout.height).reshape(-1, 4)
    rows = texels[: layout.rows * layout.row_texels].reshape(layout.rows, -1)
    return np.asarray(rows[:, layout.cols :])
