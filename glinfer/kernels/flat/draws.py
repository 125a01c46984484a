"""The base draw of all ops over tensors of any shape; their layout is :mod:`glinfer.gl.layouts.flat`.

Every builder takes a :class:`glinfer.kernels.spec.Pass`. It raises PlanError if a tensor is not in the flat layout, or
for the name of an activation or operation that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from glinfer.errors import PlanError
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.layouts.matrix import Extent
from glinfer.kernels.spec import DrawSpec, Params, Pass, Shapes, TensorSpec

Define = tuple[str, int | float]
Uniform = tuple[str, int | float | str]
"""A uniform and its value: a number for all runs, or the name of a run value."""
Scratch = Callable[[str, int, int], TensorSpec]
"""Declares a float tensor (name, rows, cols) that only the draws of one call use."""


def flat_layout(draw: str, tensor: TensorSpec) -> FlatLayout:
    """The flat layout of a tensor."""
    if not isinstance(tensor.layout, FlatLayout):
        raise PlanError(f"draw {draw}: {tensor.name} is not in the flat layout, four elements a texel")
    return tensor.layout


def same_shape(shapes: Shapes, params: Params) -> None:
    """Require an output of the shape of x."""
    shapes.expect("output", *shapes.by_name["x"])


def flat_draw(
    draw: Pass,
    op: str,
    inputs: Mapping[str, TensorSpec | None],
    outputs: Sequence[TensorSpec],
    *,
    rows: Extent | None = None,
    defines: Sequence[Define] = (),
    uniforms: Sequence[Uniform] = (),
    **settings: Any,
) -> DrawSpec:
    """A draw that covers the first ``rows`` rows (default: all) of outputs of one layout.

    ``inputs`` are tensors by sampler; None is left out. The defines are each input's layout as ``<SAMPLER>_TEXELS``,
    ``_WIDTH`` and ``_HEIGHT``, the outputs' layout as ``OUT_…``, their columns as ``OUT_COLS``, and ``defines``.
    ``settings`` are further fields of :class:`glinfer.kernels.spec.DrawSpec`.
    """
    layouts: list[Define] = []
    given = {sampler: tensor for sampler, tensor in inputs.items() if tensor is not None}
    for sampler, tensor in given.items():
        layouts += flat_layout(draw.name, tensor).defines(sampler.upper())
    rows_out, cols_out = outputs[0].shape
    layouts += [*flat_layout(draw.name, outputs[0]).defines("OUT"), ("OUT_COLS", cols_out)]
    return DrawSpec(
        draw.name,
        draw.group,
        op,
        inputs=tuple((sampler, tensor.name) for sampler, tensor in given.items()),
        outputs=tuple(output.name for output in outputs),
        size=(rows_out if rows is None else rows, cols_out),
        defines=(*layouts, ("LOOKUP_TEXTURE", int(draw.kernels.lookup_texture)), *defines),
        uniforms=tuple((uniform, value) for uniform, value in uniforms if not isinstance(value, str)),
        per_run=tuple((uniform, value) for uniform, value in uniforms if isinstance(value, str)),
        **settings,
    )
