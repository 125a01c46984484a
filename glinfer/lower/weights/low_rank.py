"""The arrays of LoRA adapters next to a product of the fast plans: all adapters of a model in two matrices.

The first matrix, A, absorbs what folding adds to a weight: the gain of the norm before it, and for LayerNorm the
mean; it has the columns of the product. The second one, B, has its rows, alpha / rank and the product's factor.
A product of several matrices has the ranks of each one after the other; the rows of one are zero in those of others.
Of a product with experts each expert has its own ranks, in A one expert below the other, in B in the same columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glinfer.errors import InputError
from glinfer.formats.adapters.adapter import Adapter
from glinfer.kernels.fused.low_rank import ADAPTER, RANK_STEP
from glinfer.kernels.spec import RunValue
from glinfer.lower.weights.recipe import Recipe, taken, weight_name

Wide = npt.NDArray[np.float64]
MAX_ADAPTERS = 256
"""Adapters of one model at once; all are in textures."""
BASE = "base"
"""The name for no adapter."""


@dataclass(frozen=True)
class AdapterRanks:
    """What plans have to know of a model's adapters.

    Attributes:
        names: the adapters, by their number less one.
        ranks: the largest rank of any adapter in each matrix, by the name of the weight.
        default: the number of the adapter of a sequence that names none; 0 for no adapter.
    """

    names: tuple[str, ...]
    ranks: Mapping[str, int]
    default: int = 0

    @property
    def run_values(self) -> list[RunValue]:
        """The run value of plans whose rows all have one adapter, where the model has any."""
        count = len(self.names)
        return [RunValue(ADAPTER, 0, count, usual=self.default)] if count else []

    @classmethod
    def of(cls, adapters: Mapping[str, Adapter], *, default: int = 0) -> AdapterRanks:
        """Those of some adapters, by name.

        Raises:
            InputError: there are too many, or a name is empty or that of no adapter.
        """
        if len(adapters) > MAX_ADAPTERS:
            raise InputError(f"found {len(adapters)} adapters; expected at most {MAX_ADAPTERS}")
        for name in adapters:
            if not isinstance(name, str) or not name or name == BASE or not name.isprintable():
                raise InputError(f"an adapter is named {name!r}; expected a printable text other than {BASE!r}")
        ranks: dict[str, int] = {}
        for adapter in adapters.values():
            for weight, change in adapter.matrices.items():
                ranks[weight] = max(ranks.get(weight, 0), change.rank)
        return cls(tuple(adapters), ranks, default)

    def number(self, name: str | None) -> int:
        """The number of an adapter by its name; None is the default.

        Raises:
            InputError: there is no such adapter.
        """
        if name is None:
            return self.default
        if name == BASE:
            return 0
        if name not in self.names:
            raise InputError(f"there is no adapter {name!r}; expected one of {', '.join((*self.names, BASE))}")
        return self.names.index(name) + 1

    def ranges(self, recipe: Recipe) -> tuple[list[int], int]:
        """The first rank of each source of a product, and the ranks of all, rounded up; 0 where none is changed.

        With experts the ranks are those of one expert, and equal sources of all have the same first rank.
        """
        firsts, total, each = [], 0, len(recipe.sources) // recipe.experts
        for index in range(each):
            firsts.append(total)
            widest = max(self.ranks.get(weight_name(source), 0) for source in recipe.sources[index::each])
            # Whole texels, so that sums are added in one order whatever the ranks of the others.
            total += -(-widest // 4) * 4
        return firsts * recipe.experts, -(-total // RANK_STEP) * RANK_STEP


NO_ADAPTERS = AdapterRanks((), {})


def down_matrix(recipe: Recipe, ranks: AdapterRanks, adapters: Sequence[Adapter], columns: int) -> Wide:
    """A of all adapters, one below the other, [adapters · experts · ranks, columns of sources], before any folding."""
    firsts, each = ranks.ranges(recipe)
    per_expert = len(recipe.sources) // recipe.experts
    found = np.zeros((len(adapters) * recipe.experts * each, columns))
    for number, adapter in enumerate(adapters):
        for index, (source, first) in enumerate(zip(recipe.sources, firsts, strict=True)):
            change = adapter.matrices.get(weight_name(source))
            if change is not None:
                start = (number * recipe.experts + index // per_expert) * each + first
                found[start : start + change.rank] = change.down
    return found


def up_matrix(
    recipe: Recipe, ranks: AdapterRanks, adapters: Sequence[Adapter], rows: Sequence[int], behind: Wide | None
) -> Wide:
    """B of all adapters side by side, [rows of the product, adapters · ranks], each times its scale.

    Args:
        recipe: the product.
        ranks, adapters: all adapters.
        rows: rows of each source.
        behind: what each rank of all adapters is after a norm whatever the input, [adapters · ranks]; then each
            adapter has 16 columns more, of which the first is B times that.
    """
    firsts, each = ranks.ranges(recipe)
    parts = []
    starts = np.cumsum([0, *rows])
    for number, adapter in enumerate(adapters):
        own = np.zeros((int(starts[-1]), each + (RANK_STEP if behind is not None else 0)))
        for index, (source, first) in enumerate(zip(recipe.sources, firsts, strict=True)):
            change = adapter.matrices.get(weight_name(source))
            if change is not None:
                scaled = change.up.astype(np.float64) * (change.scale * recipe.scale)
                own[starts[index] : starts[index + 1], first : first + change.rank] = scaled
        if behind is not None:
            own[:, each] = own[:, :each] @ behind[number * each : (number + 1) * each]
        parts.append(own)
    return taken(np.concatenate(parts, axis=1), recipe.rows)
