"""The base draw of the fused ops, over rows in blocks; for the layout see :mod:`glinfer.gl.layouts.blocks`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.gl.layouts.matrix import Extent
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import DrawSpec, TensorSpec


def block_layout(draw: str, tensor: TensorSpec) -> BlockLayout:
    """The layout of a tensor in blocks.

    Raises:
        PlanError: the tensor is not in blocks.
    """
    if not isinstance(tensor.layout, BlockLayout):
        raise PlanError(f"draw {draw}: {tensor.name} is not in blocks")
    return tensor.layout


def block_draw(
    name: str,
    kind: str,
    op: str,
    inputs: Iterable[tuple[str, str]],
    outputs: Iterable[str],
    size: tuple[Extent, Extent],
    defines: Iterable[tuple[str, int | float]],
    *,
    kernels: KernelOptions,
    quad: bool = False,
    cells: bool = False,
    **further: Any,
) -> DrawSpec:
    """A draw that covers blocks in the way of ``kernels``; ``further`` are other fields of the DrawSpec.

    With ``quad`` the fragments of a quad share the work if the kernels allow it; with ``cells`` a point or quad may
    cover several blocks.
    """
    return DrawSpec(
        name=name,
        kind=kind,
        op=op,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        size=size,
        defines=(*defines, ("QUAD", int(quad and kernels.quad)), ("LOOKUP_TEXTURE", int(kernels.lookup_texture))),
        largest_cell=kernels.largest_cell if cells else 0,
        **{"cover": kernels.cover, **further},
    )
