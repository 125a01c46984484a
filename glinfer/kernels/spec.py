"""A pass as a value: TensorSpec, DrawSpec, and the registry of ops. No GL object appears here.

An op joins under one name a shader, mostly ``shaders/<name>.frag``, a shape check, an oracle that computes the same
values in float64 NumPy, and the parts of inputs that it reads. A builder in the same module makes the DrawSpecs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from glinfer.errors import PlanError
from glinfer.gl.layouts.matrix import FORMATS, Extent, Layout, TexelLayout
from glinfer.gl.values import Value
from glinfer.kernels.options import KernelOptions

if TYPE_CHECKING:  # importing it loads OpenGL
    from glinfer.gl.program import OwnShader

KINDS = ("weight", "input", "activation", "cache")
COVERS = ("triangle", "strip", "points", "quads", "scatter")

Array = npt.NDArray[Any]
Params = Mapping[str, int | float]


@dataclass(frozen=True)
class RunValue:
    """A number that may change from one run of a plan to the next: its name, and its inclusive range.

    ``value`` computes it from earlier run values of the plan. Run values without it are the inputs of a run; ``usual``
    computes such an input from ``tokens``, the number of tokens of a run, and by default it is the smallest number.
    """

    name: str
    smallest: float
    largest: float
    value: Value | None = None
    usual: Value | None = None

    def check(self, value: object) -> None:
        """Refuse a value outside the range.

        Raises:
            PlanError: the value is not a number, is outside the range, or is a fraction instead of an integer.
        """
        whole = isinstance(self.smallest, int)
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            value = None if value is None else repr(value)
        elif self.smallest <= value <= self.largest:
            return
        kind = "an integer" if whole else "a number"
        raise PlanError(f"{self.name} is {value}; expected {kind} from {self.smallest} to {self.largest}")


@dataclass(frozen=True)
class TensorSpec:
    """A named matrix [rows, cols] of a plan.

    ``kind`` is ``weight`` (uploaded once), ``input`` (written before each run), ``activation`` (written by draws,
    worthless after the run) or ``cache`` (written by draws a row a run, read in later runs). ``format`` is a key of
    :data:`glinfer.gl.layouts.matrix.FORMATS`. ``layout`` is the texel layout; the default is one element a texel, see
    :class:`glinfer.gl.layouts.matrix.Layout`. ``view_of`` names the tensor whose texels this one views as another
    matrix.
    """

    name: str
    shape: tuple[int, int]
    kind: str
    format: str = "r32f"
    layout: TexelLayout | None = None
    view_of: str = ""

    def __post_init__(self) -> None:
        """Refuse a tensor that a texture cannot hold."""
        if self.kind not in KINDS:
            raise PlanError(f"tensor {self.name} is of kind {self.kind!r}; expected one of {', '.join(KINDS)}")
        if self.format not in FORMATS:
            raise PlanError(f"tensor {self.name} has format {self.format!r}; known: {', '.join(FORMATS)}")
        if min(self.shape) < 1:
            raise PlanError(f"tensor {self.name} has shape {self.shape}; every edge must be at least 1")
        if self.layout is not None and (self.layout.rows, self.layout.cols) != self.shape:
            raise PlanError(f"tensor {self.name} has shape {self.shape} and a layout of {self.layout.rows} rows")
        if self.layout is not None and self.layout.format.name != self.format:
            raise PlanError(f"tensor {self.name} has format {self.format} and a layout in {self.layout.format.name}")

    def layout_within(self, max_texture_size: int) -> TexelLayout:
        """The layout on a renderer with textures of ``max_texture_size`` texels a side.

        Raises:
            PlanError: the tensor does not fit.
        """
        if self.layout is None:
            return Layout.of(self.shape, self.format, max_texture_size)
        if max(self.layout.width, self.layout.height) > max_texture_size:
            raise PlanError(
                f"it is laid out in {self.layout.width}×{self.layout.height} texels; the largest texture here is "
                f"{max_texture_size}×{max_texture_size}"
            )
        return self.layout


@dataclass(frozen=True)
class DrawSpec:
    """One pass as a value: its op, its inputs and outputs, and all settings that specialise it.

    A size, first row or count is a number, or the name of a run value.

    Attributes:
        name: unique in its plan, such as ``h.3.attn.scores.5``.
        kind: group in tables of draws, such as ``attn.scores``.
        op: the op's name.
        inputs: (sampler, tensor) pairs; samplers take texture units in this order.
        outputs: tensors by attachment; OpenGL drops what the shader writes beyond them.
        size: (rows, cols) of the output matrix that the pass writes.
        first: the first row that the pass writes.
        cover: shape that is drawn: one ``triangle`` over all rows of a matrix; for rows in blocks ``points``, one of
            4×4 pixels on every block, or ``quads``, two triangles on every block; ``strip``, one triangle over all
            blocks of the slots from the run value ``strip_first`` on, in a layout that has each block of all slots in
            a line; ``scatter``, ``points`` points of one pixel, placed by the vertex shader.
        instances: instances of the shape in one draw call.
        adds: whether blending adds the result of the op to the output.
        clears: texels to clear first, without a draw: ``all`` of the outputs, or the ``rows`` that the pass writes;
            empty for no clear.
        keeps: whether the shader discards fragments, whose texels stay.
        defines: compile-time constants of the shader.
        uniforms: values set before the draw, the same in every run.
        per_run: (uniform, run value) pairs.
        shader: the shader, ``shaders/<shader>.frag``; the op's name by default.
        largest_cell: blocks a side that one point or quad may cover, if all slots from 0 on are written and the texels
            after them do not matter; 0 for exactly one block.
        vertex: a vertex shader that finds the blocks itself, instead of the one for ``cover``.
        points: number of scattered points.
        own: the caller's own shader in place of an op; it accepts any inputs, and has no oracle.
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
    first: Extent = 0
    cover: str = "triangle"
    instances: Extent = 1
    adds: bool = False
    clears: str = ""
    keeps: bool = False
    shader: str = ""
    vertex: str = ""
    largest_cell: int = 0
    points: Extent = 0
    own: OwnShader | None = None

    def __post_init__(self) -> None:
        """Default the shader to the op's name."""
        if not self.shader:
            object.__setattr__(self, "shader", self.op)

    @property
    def needs_output(self) -> bool:
        """Whether the result depends on the output's old values."""
        return self.keeps or (self.adds and not self.clears)

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

    def params(self, values: Mapping[str, int | float]) -> dict[str, int | float]:
        """Defines, uniforms and per-run uniforms of one run in one mapping, for the oracle."""
        per_run = {uniform: values[key] for uniform, key in self.per_run}
        return {**dict(self.defines), **dict(self.uniforms), **per_run}

    def extent(self, values: Mapping[str, int | float]) -> tuple[int, int]:
        """(rows, cols) written in one run."""
        rows, cols = (part if isinstance(part, int) else int(values[part]) for part in self.size)
        return rows, cols

    def first_row(self, values: Mapping[str, int | float]) -> int:
        """The first row written in one run."""
        return self.first if isinstance(self.first, int) else int(values[self.first])


class Pass(NamedTuple):
    """What every builder of a draw needs to know besides tensors and numbers.

    Attributes:
        name: the draw's name, unique in its plan.
        kernels: the options of kernels.
        kind: its group in tables of draws; by default the name without its layer, as in :attr:`group`.
        rows: the rows that it writes, or the slots of interleaved ones; draws of flat tensors write all.
    """

    name: str
    kernels: KernelOptions
    kind: str = ""
    rows: Extent = 1

    @property
    def group(self) -> str:
        """The group in tables: ``attn.scores`` for ``h.3.attn.scores``, unless another is given."""
        return self.kind or re.sub(r"^h\.\d+\.", "", self.name)


Oracle = Callable[[Mapping[str, Array], Params, tuple[int, int]], Array]
"""(inputs by sampler, params, (rows, cols) to write) → float64 [outputs, rows, cols].

Of one output it may be [rows, cols], and of interleaved ones [outputs · rows, cols], see
:class:`glinfer.kernels.fused.rows.RowInterleaved`.
"""
ShapeCheck = Callable[["Shapes", Params], None]


class Part(NamedTuple):
    """The part of an input that a draw reads: some of its rows, or a number of floats.

    ``rows`` is None for the rows in use; ``share`` is the share of their columns.
    """

    rows: int | None = None
    share: float = 1.0
    floats: int = 0


Parts = Callable[[Params], Mapping[str, Part]]
"""(params and run values, with ``rows``) → the inputs that a draw reads only in part, by sampler."""


def unchecked(shapes: Shapes, params: Params) -> None:
    """Accept any shapes, of a draw whose only caller has checked its arguments."""


def no_oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    """Refuse to compute an op that only :class:`glinfer.tensors.device.Device` draws."""
    raise PlanError("a plan has a draw of device.ops, which has no oracle")


@dataclass(frozen=True)
class Op:
    """A registered op: its required and optional samplers, its shape check and its float64 oracle.

    Draws that only ``device.ops`` makes need neither check nor oracle: its kernels check their arguments.

    ``integers`` names the samplers, and ``"output"``, that hold integers, ``either`` those that may hold integers or
    floats; all others hold floats. ``rows_written`` computes the rows of the output that a draw writes from its inputs,
    its params and its number of rows; by default they are consecutive from the draw's first row on. ``regions`` names
    the samplers, and ``"output"``, whose tensors may be regions of a texture (:mod:`glinfer.program.regions`), because
    the shader gets their offsets from shaders/common/regions.glsl. ``parts`` computes which inputs are read only in
    part.
    """

    name: str
    samplers: tuple[str, ...]
    optional: tuple[str, ...] = ()
    check: ShapeCheck = unchecked
    oracle: Oracle = no_oracle
    integers: tuple[str, ...] = ()
    either: tuple[str, ...] = ()
    rows_written: Callable[[Mapping[str, Array], Params, int], Array] | None = None
    regions: tuple[str, ...] = ()
    parts: Parts | None = None


OPS: dict[str, Op] = {}
"""Every op by name."""


def register(made: Op) -> None:
    """Add an op to :data:`OPS`."""
    if made.name in OPS:
        raise PlanError(f"two ops are named {made.name}")
    OPS[made.name] = made


def op(
    name: str,
    samplers: tuple[str, ...],
    optional: tuple[str, ...],
    check: ShapeCheck,
    integers: tuple[str, ...] = (),
    **further: Any,
) -> Callable[[Oracle], Oracle]:
    """Register an op whose oracle is the decorated function; the arguments are fields of :class:`Op`."""

    def registered(oracle: Oracle) -> Oracle:
        register(Op(name, samplers, optional, check, oracle, integers, **further))
        return oracle

    return registered


def parts_read(draw: DrawSpec, values: Params) -> Mapping[str, Part]:
    """The inputs that a draw reads only in part in one run, by sampler; samplers that it does not bind may be named."""
    parts = OPS[draw.op].parts if draw.op in OPS else None
    return {} if parts is None else parts({"rows": draw.extent(values)[0], **values, **draw.params(values)})


def looked_up(*samplers: str) -> Parts:
    """Parts of tables of which a draw reads one row for each row in use."""
    return lambda params: dict.fromkeys(samplers, Part(int(params["rows"])))


@dataclass(frozen=True)
class Shapes:
    """The shapes of one draw's tensors by sampler, with the output under ``"output"``; errors name the draw."""

    draw: str
    by_name: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def expect(self, names: str | Sequence[str], rows: int | float | None, cols: int | float | None) -> None:
        """Require a shape of one tensor or several; None allows any edge, and tensors that the draw lacks pass.

        Raises:
            PlanError: a shape differs; the message names the draw, the tensor, and both shapes.
        """
        for name in (names,) if isinstance(names, str) else names:
            found = self.by_name.get(name, (rows, cols))
            if rows not in (None, found[0]) or cols not in (None, found[1]):
                wanted = f"[{'any' if rows is None else rows}, {'any' if cols is None else cols}]"
                raise PlanError(f"draw {self.draw}: {name} is {list(found)}; expected {wanted}")

    def rows(self, name: str) -> int:
        """Rows of one tensor."""
        return self.by_name[name][0]

    def require(self, condition: bool, complaint: str) -> None:
        """Raise PlanError with ``complaint`` unless ``condition`` holds."""
        if not condition:
            raise PlanError(f"draw {self.draw}: {complaint}")


def given(**values: object) -> list[tuple[str, int | float]]:
    """The defines of a draw's options by name: numbers as they are, other things as 1; none for None, False and 0."""
    return [
        (name, value if isinstance(value, int | float) and value is not True else 1)
        for name, value in values.items()
        if value
    ]


def float64(inputs: Mapping[str, Array], names: Sequence[str]) -> list[Array]:
    """Some of an oracle's inputs, as float64."""
    return [np.asarray(inputs[name], dtype=np.float64) for name in names]
