"""What a pass is, as a value: TensorSpec, DrawSpec, and the registry of ops. No GL object appears here.

An op joins three things under one name: the shader ``shaders/<name>.frag``, a shape check, and an oracle
that computes the same values in float64 NumPy. A builder beside them makes the DrawSpecs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.errors import PlanError
from glinfer.gl.layout import FORMATS, Extent

KINDS = ("weight", "input", "activation")
PER_RUN_VALUES = ("rows",)
"""What may change from one run of a plan to the next: ``rows``, the number of tokens in the sequence."""

Array = npt.NDArray[Any]
Params = Mapping[str, int | float]


@dataclass(frozen=True)
class TensorSpec:
    """A named matrix [rows, cols] of a plan.

    ``kind`` is ``weight`` (uploaded once), ``input`` (written before each run) or ``activation`` (written
    by draws). ``format`` is a key of :data:`glinfer.gl.layout.FORMATS`.
    """

    name: str
    shape: tuple[int, int]
    kind: str
    format: str = "r32f"

    def __post_init__(self) -> None:
        """Refuse what no texture can be."""
        if self.kind not in KINDS:
            raise PlanError(f"tensor {self.name} is of kind {self.kind!r}; expected one of {', '.join(KINDS)}")
        if self.format not in FORMATS:
            raise PlanError(f"tensor {self.name} has format {self.format!r}; known: {', '.join(FORMATS)}")
        if min(self.shape) < 1:
            raise PlanError(f"tensor {self.name} has shape {self.shape}; every edge must be at least 1")


@dataclass(frozen=True)
class DrawSpec:
    """One pass as a value: which op, what it reads and writes, and everything that specialises it.

    Attributes:
        name: unique in its plan, such as ``h.3.attn.scores.5``.
        kind: what tables group by, such as ``attn.scores``.
        op: the op's name, which is also the shader's: ``shaders/<op>.frag``.
        inputs: (sampler, tensor) pairs; samplers take texture units in this order.
        outputs: tensors by attachment.
        size: (rows, cols) of the output matrix that the pass writes; a number or a per-run value's name.
        defines: compile-time constants of the shader.
        uniforms: values set before the draw, the same in every run.
        per_run: (uniform, per-run value) pairs.
    """

    name: str
    kind: str
    op: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]
    size: tuple[Extent, Extent]
    defines: tuple[tuple[str, int | float], ...] = ()
    uniforms: tuple[tuple[str, int | float], ...] = ()
    per_run: tuple[tuple[str, str], ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the tensors that the pass samples."""
        return tuple(tensor for _, tensor in self.inputs)

    @property
    def writes(self) -> tuple[str, ...]:
        """Names of the tensors that the pass renders to."""
        return self.outputs

    def input(self, sampler: str) -> str:
        """The tensor bound to ``sampler``."""
        for name, tensor in self.inputs:
            if name == sampler:
                return tensor
        raise PlanError(f"draw {self.name} binds nothing to sampler {sampler!r}")

    def params(self, values: Mapping[str, int]) -> dict[str, int | float]:
        """Defines, uniforms and per-run uniforms of one run in one mapping: what the oracle computes with."""
        per_run = {uniform: values[key] for uniform, key in self.per_run}
        return {**dict(self.defines), **dict(self.uniforms), **per_run}

    def extent(self, values: Mapping[str, int]) -> tuple[int, int]:
        """(rows, cols) written in one run."""
        rows, cols = (part if isinstance(part, int) else values[part] for part in self.size)
        return rows, cols


Oracle = Callable[[Mapping[str, Array], Params, tuple[int, int]], Array]
"""(inputs by sampler, params, (rows, cols) to write) → float64 [rows, cols]."""
ShapeCheck = Callable[["Shapes", Params], None]


@dataclass(frozen=True)
class Op:
    """A registered op: its required and optional samplers, its shape check and its float64 oracle.

    ``integers`` names the samplers, and ``"output"``, that hold whole numbers; all others hold floats.
    """

    name: str
    samplers: tuple[str, ...]
    optional: tuple[str, ...]
    check: ShapeCheck
    oracle: Oracle
    integers: tuple[str, ...] = ()


OPS: dict[str, Op] = {}
"""Every op by name."""


def register(op: Op) -> Op:
    """Add an op to :data:`OPS`."""
    if op.name in OPS:
        raise PlanError(f"two ops are named {op.name}")
    OPS[op.name] = op
    return op


@dataclass(frozen=True)
class Shapes:
    """The shapes of one draw's tensors by sampler, with the output under ``"output"``; errors name the draw."""

    draw: str
    by_name: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def expect(self, name: str, rows: int | float | None, cols: int | float | None) -> None:
        """Require a shape; None allows any edge, and a tensor that the draw does not bind passes.

        Raises:
            PlanError: naming the draw, the tensor, what was found and what was expected.
        """
        if name not in self.by_name:
            return
        found = self.by_name[name]
        if (rows is not None and found[0] != rows) or (cols is not None and found[1] != cols):
            wanted = f"[{'any' if rows is None else rows}, {'any' if cols is None else cols}]"
            raise PlanError(f"draw {self.draw}: {name} is {list(found)}; expected {wanted}")

    def rows(self, name: str) -> int:
        """Rows of one tensor."""
        return self.by_name[name][0]

    def require(self, condition: bool, complaint: str) -> None:
        """Raise PlanError with ``complaint`` unless ``condition`` holds."""
        if not condition:
            raise PlanError(f"draw {self.draw}: {complaint}")


def float64(inputs: Mapping[str, Array], names: Sequence[str]) -> list[Array]:
    """Some of an oracle's inputs, as float64."""
    return [np.asarray(inputs[name], dtype=np.float64) for name in names]
