"""Plans of one draw over tensors of four elements a texel, and what tests of such draws look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from glinfer.models.oracle import run_draw
from glinfer.models.plan import PlanBuilder
from glinfer.models.session import Session
from glinfer.ops.spec import DrawSpec, RunValue, TensorSpec
from glinfer.tensors.device import Device
from glinfer.tensors.tensor import TEXTURE_FORMATS, Tensor

Array = np.ndarray[Any, Any]


def drawn(
    dev: Device,
    build: Callable[..., DrawSpec],
    arrays: Mapping[str, Array],
    out: tuple[int, int],
    form: str = "rgba32f",
    values: Mapping[str, int | float] | None = None,
) -> tuple[Array, Array]:
    """What one draw of a plan writes to the rows of its extent, and what its oracle says.

    ``build`` is given the specs of the arrays in their order, then that of the target; ``values`` are run values.
    """
    values = values or {}
    run_values = [
        RunValue(name, type(value)(0), type(value)(99), lambda _, v=value: v) for name, value in values.items()
    ]
    builder = PlanBuilder("one draw", 1, run_values)
    size = dev.context.limits.max_texture_size

    def input_of(name: str, array: Array) -> TensorSpec:
        return builder.flat(name, "input", *array.shape, TEXTURE_FORMATS[array.dtype.name], size)

    specs = [input_of(name, array) for name, array in arrays.items()]
    builder.draw(build(*specs, builder.flat("out", "activation", *out, form, size)))
    plan = builder.build()
    session = Session(plan, {}, dev.context, programs=dev.programs)
    try:
        for name, array in arrays.items():
            session.write(name, array)
        session.run(values)
        expected = run_draw(plan.draws[0], arrays, values)
        return session.read("out", *expected.shape), expected
    finally:
        session.release()


def padding(tensor: Tensor) -> Array:
    """What lies behind the columns of every row."""
    layout = tensor.layout
    texels = tensor.storage.texture().framebuffer.read(0, layout.width, layout.height).reshape(-1, 4)
    return texels[: layout.rows * layout.row_texels].reshape(layout.rows, -1)[:, layout.cols :]


def same_bits(found: Array, expected: Array) -> bool:
    return found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()


def holds(tensor: Tensor, expected: Array) -> bool:
    """Whether a new tensor has these bits, and zeros behind them; it is released."""
    with tensor:
        return same_bits(tensor.numpy(), np.asarray(expected, order="C")) and not padding(tensor).any()
