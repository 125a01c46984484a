"""The base draw of the fused ops, over rows in blocks; for the layout see :mod:`glinfer.gl.layouts.blocks`.

Every builder takes a :class:`glinfer.kernels.spec.Pass` and raises PlanError if a tensor has another layout: not in
blocks, and no table of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BlockLayout, RowLayout
from glinfer.gl.layouts.matrix import Extent
from glinfer.kernels.fused.rows import RowInterleaved, Vectors, table_layout
from glinfer.kernels.spec import DrawSpec, Pass, TensorSpec

Defines = list[tuple[str, int | float]]
Inputs = dict[str, Vectors | str | None]
"""Inputs by name: a tensor, the tensors of a matrix, the name of a tensor whose layout needs no defines, or none."""


def block_layout(draw: str, tensor: TensorSpec) -> BlockLayout:
    """The layout of a tensor in blocks."""
    if not isinstance(tensor.layout, BlockLayout):
        raise PlanError(f"draw {draw}: {tensor.name} is not in blocks")
    return tensor.layout


def expect_table(draw: str, tensor: TensorSpec) -> TensorSpec:
    """Accept a tensor that is a table of rows."""
    if not isinstance(tensor.layout, RowLayout):
        raise PlanError(f"draw {draw}: {tensor.name} is not a table of rows")
    return tensor


def bound(draw: str, inputs: Inputs) -> tuple[list[tuple[str, str]], Defines]:
    """The (sampler, tensor) pairs of inputs, and the defines of their layouts under their names in upper case.

    A matrix x in several tensors has the samplers x0, x1, …; their number is the define ROWS. The input ``rows`` is the
    table of :mod:`glinfer.kernels.fused.rows`.
    """
    pairs: list[tuple[str, str]] = []
    defines: Defines = []
    for name, given in inputs.items():
        if isinstance(given, RowInterleaved):
            pairs += given.inputs(name)
            defines += [*given.layout.defines(name.upper()), ("ROWS", len(given.tensors))]
        elif given is not None:
            pairs.append((name, given if isinstance(given, str) else given.name))
        if isinstance(given, TensorSpec):
            layout = table_layout(given) if name == "rows" else given.layout
            if not isinstance(layout, (BlockLayout, RowLayout)):
                raise PlanError(f"draw {draw}: {given.name} is neither in blocks nor a table of rows")
            defines += layout.defines(name.upper())
    return pairs, defines


def block_draw(
    draw: Pass,
    op: str,
    inputs: Inputs,
    outputs: Vectors | Sequence[TensorSpec],
    defines: Iterable[tuple[str, int | float]] = (),
    *,
    quad: bool = False,
    cells: bool = False,
    **further: Any,
) -> DrawSpec:
    """A draw that covers the pass's rows of blocks in the way of its kernels, in outputs of one layout.

    Its defines are those of :func:`bound`, the outputs' layout as ``OUT_…``, and ``defines``. With ``quad`` the
    fragments of a quad share the work if the kernels allow it; with ``cells`` a point or quad may cover several blocks.
    ``further`` are other fields of the DrawSpec.
    """
    (pairs, layouts), kernels = bound(draw.name, inputs), draw.kernels
    if isinstance(outputs, RowInterleaved):
        layouts.append(("ROWS", len(outputs.tensors)))
        outputs = outputs.tensors
    written = [outputs] if isinstance(outputs, TensorSpec) else outputs
    layouts += block_layout(draw.name, written[0]).defines("OUT")
    layouts += [("QUAD", int(quad and kernels.quad)), ("LOOKUP_TEXTURE", int(kernels.lookup_texture))]
    fields: dict[str, Any] = {
        "size": (draw.rows, written[0].shape[1]),
        "cover": kernels.cover,
        "largest_cell": kernels.largest_cell if cells else 0,
        "defines": (*layouts, *defines),
    }
    names = tuple(each.name for each in written)
    return DrawSpec(draw.name, draw.group, op, tuple(pairs), names, **{**fields, **further})


def of_run(uniform: str, value: Extent) -> dict[str, Any]:
    """The field of a DrawSpec that sets a uniform to a number, or to the run value of a name."""
    return {"per_run" if isinstance(value, str) else "uniforms": ((uniform, value),)}
