"""A product of matrices, the strategies that compute it, and the finish of its sums, as values."""

from __future__ import annotations

from dataclasses import dataclass

from glinfer.errors import PlanError
from glinfer.gl.layouts.flat import LANES, texels_for
from glinfer.kernels.flat.draws import Define, Uniform
from glinfer.kernels.published.linear import ACTIVATIONS
from glinfer.kernels.spec import TensorSpec, given
from glinfer.quant.formats import GROUP, block_format

STRATEGIES = ("packed", "small", "split_k", "reduce", "matvec")
"""The strategies that compute a product; see :class:`Strategy`."""
Steps = tuple[int, int, int]


@dataclass(frozen=True)
class Product:
    """A batch of products, ``y[b, m, n] = Σ_k x[b, m, k] · weight[b, k, n]``, or weight[b, n, k] if ``transposed``.

    Attributes:
        m, n, k: edges of one product.
        transposed: whether weight has k along its rows, as a linear layer's [out, in] has.
        table_format: the packed format of weight, of :data:`glinfer.quant.formats.BLOCK_FORMATS`; None for floats. Only
            transposed weights are packed.
        batch: products along each of three axes.
        x_steps, weight_steps: steps of x and weight along each axis, in matrices; 0 to reuse one matrix.
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
        """Number of products."""
        return self.batch[0] * self.batch[1] * self.batch[2]

    @property
    def unit(self) -> int:
        """Inputs of one step of the loop; a part is a whole number of steps."""
        return GROUP if self.table_format else 4

    @property
    def units(self) -> int:
        """Steps of the loop; for weights that are not transposed, the rest of k comes after the loop."""
        return -(-self.k // self.unit) if self.transposed else self.k // self.unit

    def defines(self, *, mantissa: bool) -> list[Define]:
        """The product's defines; with ``mantissa`` shaders turn packed integers into floats without a conversion."""
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
    """One way to compute a product.

    Attributes:
        name: ``small``: a fragment computes four columns of one row, in one draw; ``packed``: a fragment computes four
            columns of several rows, one in each render target, and a second draw joins the rows; ``split_k``: a
            fragment computes four columns of one row over a part of k, and blending adds the parts; ``reduce``: the
            parts are written below each other, and a second draw adds them; ``matvec``: the fragments of a quad
            share k, for one row.
        targets: rows of a fragment of ``packed``: 2, 4 or 8.
        parts: limit for the parts of k.
    """

    name: str
    targets: int = 1
    parts: int = 1

    def __post_init__(self) -> None:
        """Refuse an unknown name."""
        if self.name not in STRATEGIES:
            raise PlanError(f"there is no strategy {self.name!r}; known: {', '.join(STRATEGIES)}")

    def part_units(self, units: int) -> int:
        """Steps of one part."""
        return max(1, -(-units // max(1, min(self.parts, units))))

    def parts_of(self, units: int) -> int:
        """Number of parts of ``units`` steps."""
        return max(1, -(-units // self.part_units(units)))


@dataclass(frozen=True)
class Finish:
    """The finish of the sums: ``activation(scale · sum + bias) + residual``, capped and masked.

    Attributes:
        bias: [1, n].
        activation: a key of :data:`glinfer.kernels.published.linear.ACTIVATIONS`.
        residual: a tensor of the output's shape.
        scale: a factor.
        causal: None, or the last column that row 0 of each matrix sees: row r sees columns up to ``causal + r``, and
            all others become :data:`MASKED`.
        window: limit for the columns that a row sees, up to its last one; 0 for all.
        cap: bound c of c · tanh(y / c), applied before masking; 0 for none.
    """

    bias: TensorSpec | None = None
    activation: str = "none"
    residual: TensorSpec | None = None
    scale: float = 1.0
    causal: int | None = None
    window: int = 0
    cap: float = 0.0

    def inputs(self) -> dict[str, TensorSpec]:
        """The inputs, by sampler."""
        given = {"bias": self.bias, "residual": self.residual}
        return {name: tensor for name, tensor in given.items() if tensor is not None}

    def defines(self) -> list[Define]:
        """The finish's defines."""
        options = given(BIAS=self.bias, RESIDUAL=self.residual, CAP=float(self.cap), WINDOW=self.window)
        found = [("ACTIVATION", ACTIVATIONS[self.activation]), ("SCALE", float(self.scale)), *options]
        return [*found, *given(CAUSAL=self.causal is not None)]

    def uniforms(self) -> list[Uniform]:
        """The finish's uniforms."""
        return [] if self.causal is None else [("offset", self.causal)]

    @property
    def plain(self) -> bool:
        """Whether the sums stay unchanged."""
        return self == Finish()


PLAIN = Finish()
