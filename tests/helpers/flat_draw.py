"""Plans over tensors of four elements a texel, and what tests of such draws and tensors look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pytest
from agreement import same_bits
from one_draw import Array, Case, OneDraw, Values

from glinfer.errors import PlanError
from glinfer.gl.context import Device as Context
from glinfer.kernels.spec import DrawSpec, RunValue, TensorSpec
from glinfer.program.oracle import relative_error, run_plan
from glinfer.program.session import Session
from glinfer.tensors.device import Device
from glinfer.tensors.tensor import TEXTURE_FORMATS, Tensor
from qa.kernels.cases.case import padding as padding


class FlatPlan(OneDraw):
    """A plan of draws over inputs that are all in use, with given run values, on one device."""

    def __init__(self, context: Context, values: Values | None = None) -> None:
        self.context, self.case = context, Case(values or {})
        super().__init__([RunValue(name, 0, 99, usual=at) for name, at in self.case.values.items()])
        self.scratch = partial(self.flat, "activation", "rgba32f")

    def flat(self, kind: str, format_name: str, name: str, rows: int, cols: int) -> TensorSpec:
        return self.builder.flat(name, kind, rows, cols, format_name, self.context.limits.max_texture_size)

    def input(self, name: str, array: Array) -> TensorSpec:
        self.arrays[name] = array
        return self.flat("input", TEXTURE_FORMATS[array.dtype.name], name, *array.shape)

    def spoil(self, session: Session, arrays: Mapping[str, Array]) -> list[Array]:
        return []

    def errors(self) -> dict[str, float]:
        """Run it; the largest relative error of each draw by its name, of statistics of the worst of the four."""
        found, values = {}, self.case.values
        with self.session(self.context, self.case) as session:
            self.bind(session, self.arrays)
            session.run(values)
            for draw, written in run_plan(session.plan, {}, self.arrays, values):
                errors = []
                for name, expected in zip(draw.outputs, written if len(draw.outputs) > 1 else [written], strict=True):
                    texels = session.read(name, *draw.extent(values))
                    step = 4 if draw.op in ("row_stats", "merge_stats") else 1
                    errors += [relative_error(texels[:, n::step], expected[:, n::step]) for n in range(step)]
                found[draw.name] = max(errors)
        return found

    def refuses(self, make: Callable[[], DrawSpec], message: str) -> None:
        """Expect that a draw cannot be made, or does not fit this plan."""

        def build() -> None:
            self.builder.draw(make())
            self.builder.build()

        with pytest.raises(PlanError, match=message):
            build()


def drawn(
    dev: Device,
    build: Callable[..., DrawSpec],
    arrays: Mapping[str, Array],
    out: tuple[int, int],
    form: str = "rgba32f",
    values: Values | None = None,
) -> tuple[Array, Array]:
    """What one draw of a plan writes to the rows of its extent, and what its oracle says.

    ``build`` is given the specs of the arrays in their order, then that of the target; ``values`` are run values.
    """
    one = FlatPlan(dev.context, values)
    specs = [one.input(name, array) for name, array in arrays.items()]
    one.draw(build(*specs, one.flat("activation", form, "out", *out)))
    return one.run(dev.context, one.case, programs=dev.programs)[0], one.expected(one.case)


def holds(tensor: Tensor, expected: Array) -> bool:
    """Whether a new tensor has these bits, and zeros behind them; it is released."""
    with tensor:
        return same_bits(tensor.numpy(), np.asarray(expected, order="C")) and not padding(tensor).any()
