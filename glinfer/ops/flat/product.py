"""What a product of matrices is, how it may be computed, and what is done to its sums: values, no draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.flat import LANES, texels_for
from glinfer.gl.layouts.matrix import Extent
from glinfer.ops.flat.draws import Define, Uniform
from glinfer.ops.published.linear import ACTIVATIONS
from glinfer.ops.spec import Array, TensorSpec
from glinfer.quant.formats import GROUP, block_format

MASKED = -1e30
"""A score that is not seen: far below any other, and finite, so that a softmax over it gives an exact 0, never NaN."""
STRATEGIES = ("packed", "small", "split_k", "reduce", "matvec")
"""How a product may be computed; see :class:`Strategy`."""
Steps = tuple[int, int, int]


@dataclass(frozen=True)
class Product:
    """What is multiplied: ``y[b, m, n] = Σ_k x[b, m, k] · weight[b, k, n]``, or weight[b, n, k] if ``transposed``.

    Attributes:
        m, n, k: edges of one product.
        transposed: whether weight has k along its rows: a linear layer's [out, in].
        table_format: the packed format of weight, of :data:`glinfer.quant.formats.BLOCK_FORMATS`; None for floats. Only
            transposed weights are packed.
        batch: how many products, along three axes.
        x_steps, weight_steps: by how many matrices x and weight step along each of them; 0 where one is used again.
    """

    m: int
    n: int
    k: int
    transposed: bool = False
    table_format: str | None = None
    batch: Steps = (1, 1, 1)
    x_steps: Steps = (0, 0, 0)
    weight_steps: Steps = (0, 0, 0)

    @property
    def count(self) -> int:
        """Products in all."""
        return self.batch[0] * self.batch[1] * self.batch[2]

    @property
    def unit(self) -> int:
        """Inputs that are summed over in one step of the loop; a part has whole steps."""
        return GROUP if self.table_format else 4

    @property
    def units(self) -> int:
        """Steps of the loop. Weights that are not transposed have what is left of k done behind it."""
        return -(-self.k // self.unit) if self.transposed else self.k // self.unit

    def batches(self, steps: Steps) -> list[int]:
        """Which matrix each product takes."""
        return [int(np.dot(index, steps)) for index in np.ndindex(*self.batch)]

    def defines(self, *, mantissa: bool) -> list[Define]:
        """What the shaders need of it; with ``mantissa`` they make floats of packed integers without converting."""
        found: list[Define] = [("K", self.k), ("UNITS", self.units)]
        if self.transposed:
            found.append(("TRANSPOSED", 1))
            form = [("FORMAT", 0)] if self.table_format is None else block_format(self.table_format).defines(self.k)
            found += [*form, ("MANTISSA", int(mantissa and self.table_format is not None))]
            if self.table_format and texels_for(self.k) % (GROUP // LANES):
                found.append(("RAGGED", 1))
        if self.count > 1:
            found += [("BATCHED", 1), ("BATCH1", self.batch[1]), ("BATCH2", self.batch[2])]
            found += [(f"X_BATCH{axis}", step) for axis, step in enumerate(self.x_steps)]
            found += [(f"WEIGHT_BATCH{axis}", step) for axis, step in enumerate(self.weight_steps)]
        return found


@dataclass(frozen=True)
class Strategy:
    """How a product is computed.

    Attributes:
        name: ``packed``: a fragment computes four columns of several rows, a render target each, which a second draw
            puts together; ``small``: a fragment computes four columns of one row, in one draw; ``split_k``: likewise,
            of a part of k, and blending adds the parts up; ``reduce``: the parts are written one below the other, and
            a second draw adds them up; ``matvec``: for one row, the fragments of a quad share k.
        targets: rows of a fragment of ``packed``: 2, 4 or 8.
        parts: how many parts k is split into, at most.
    """

    name: str
    targets: int = 1
    parts: int = 1

    def __post_init__(self) -> None:
        """Refuse what there is not."""
        if self.name not in STRATEGIES:
            raise PlanError(f"there is no strategy {self.name!r}; known: {', '.join(STRATEGIES)}")

    def part_units(self, units: int) -> int:
        """Steps of one part."""
        return max(1, -(-units // max(1, min(self.parts, units))))

    def parts_of(self, units: int) -> int:
        """How many parts so many steps make."""
        return max(1, -(-units // self.part_units(units)))


@dataclass(frozen=True)
class Finish:
    """What is done to the sums: ``activation(scale · sum + bias) + residual``, masked.

    Attributes:
        bias: [1, n].
        activation: a key of :data:`glinfer.ops.published.linear.ACTIVATIONS`.
        residual: of the output's shape.
        scale: a factor.
        causal: None, or how many columns come before that of row 0 of each matrix, a number or a run value's name: in
            row r what comes after column ``causal + r`` becomes −1e30, far below any score and finite.
        window: so does what comes before the last so many columns of those; 0 for nothing.
    """

    bias: TensorSpec | None = None
    activation: str = "none"
    residual: TensorSpec | None = None
    scale: float = 1.0
    causal: Extent | None = None
    window: int = 0

    def inputs(self) -> list[tuple[str, TensorSpec]]:
        """What is sampled."""
        given = (("bias", self.bias), ("residual", self.residual))
        return [(name, tensor) for name, tensor in given if tensor is not None]

    def defines(self) -> list[Define]:
        """What the shaders need of it."""
        found: list[Define] = [("ACTIVATION", ACTIVATIONS[self.activation]), ("SCALE", float(self.scale))]
        found += [(name.upper(), 1) for name, _ in self.inputs()]
        if self.window:
            found.append(("WINDOW", self.window))
        return found if self.causal is None else [*found, ("CAUSAL", 1)]

    def uniforms(self) -> list[Uniform]:
        """What the shaders take beside them."""
        return [] if self.causal is None else [("offset", self.causal)]

    @property
    def plain(self) -> bool:
        """Whether the sums stay as they are."""
        return self == Finish()


def seen_keys(columns: Array, last: Array, window: int) -> Array:
    """Which columns a row sees whose last one is ``last``: all up to it, or with a window so many of them."""
    seen = columns <= last
    return seen & (columns > last - window) if window else seen


PLAIN = Finish()
