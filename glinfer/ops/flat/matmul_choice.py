"""Which strategy computes a product fastest: maps of what was measured, by the size of the output and the length of k.

A map has a line for each power of two of texels of the output (all products, rows and fours of columns), from 1 on, and
in it a letter for each power of two of fours of k, from 1 on; sizes between are rounded to the nearest, beyond the edge
to the edge.
"""

from __future__ import annotations

import math

from glinfer.errors import PlanError
from glinfer.gl.layouts.flat import texels_for
from glinfer.ops.flat.product import STRATEGIES, Product, Strategy
from glinfer.ops.kernels import Kernels

LETTERS = {"s": "small", "p": "packed", "k": "split_k", "r": "reduce", "v": "matvec"}

ONE_ROW: dict[str, tuple[str, ...]] = {
    "gpu": (
        "vvvsssssvkkkkkk",
        "vvvvssssvvkkkkk",
        "vvvvvsssvvkkkkk",
        "svvvvvsvvkkkkkk",
        "ssvvvsssvkkkkkk",
        "sssvvssvvkkkkkk",
        "sssvvsvvvvkkkkk",
        "sssvvvvvvvkkkrr",
        "sssvvssvvvskkrr",
        "ssssssssvvsrkkr",
        "svvssssssvrrkkk",
    ),
    "llvmpipe": (
        "ssssssssvvvvrrr",
        "ssssssssvvvvrrr",
        "ssssssssvvvvrrr",
        "sssssssvvvvvrrr",
        "ssssssvvvvvrrrr",
        "ssssssvvvvrrrrr",
        "ssssssvvvvrrrrr",
        "ssssssvvvrrrrrr",
        "ssssssvvvrrrrrr",
        "ssssssssvvrrrrr",
        "ssssssvssvvrrrr",
    ),
}
"""The strategies of products of one row."""

MANY_ROWS: dict[str, tuple[str, ...]] = {
    "gpu": (
        "sssssssskkkkkkkk",
        "sssssssskkkkkkkk",
        "ssssssssskkkkkkk",
        "ssssssssskkkkkkk",
        "ssssssssskkkkkkr",
        "ssssssssskkkkkkr",
        "sssssssssskkkkkr",
        "sssssssssskkkrrr",
        "sssssssssskrrrrr",
        "ssssssssssrrrrrr",
        "ssssssssssrrrrrr",
        "ssssssppppppppps",
        "sssssppppppppppp",
        "sssspppppppppppp",
        "sssppppppppppppp",
        "sspppppppppppppp",
        "sspppppppppppppp",
        "sppppppppppppppp",
        "sspppppppppppppp",
        "sspppppppppppppp",
        "sspppppppppppppp",
        "sppppppppppppppp",
    ),
    "llvmpipe": (
        "ssssssssssssrrrr",
        "ssssssssssssrrrr",
        "ssssssssssssrrrr",
        "ssssssssssssrrrr",
        "sssssssssssrrrrr",
        "ssssssssssrrrrrr",
        "ssssssssssrrrrrr",
        "ssssssssrrrrrrrr",
        "ssssssssrrrrrrrr",
        "ssssssssrrrrrrrr",
        "sssssssssrrrrrrr",
        "sssssssspprrrrkk",
        "sssssspppppprkkk",
        "sssssppppppppkkk",
        "sssspppppppppkkk",
        "ssssppppppppppkk",
        "ssssppppppppppkk",
        "sssppppppppppppk",
        "sssppppppppppppp",
        "sssspppppppppppp",
        "sssspppppppppppp",
        "sssppppppppppppp",
    ),
}
"""The strategies of all other products."""

_INSTEAD = {"split_k": "reduce", "reduce": "small", "matvec": "small", "packed": "small"}
_MOST_INSTANCES = 32
_LEAST_UNITS = 32
_FULL = {
    "gpu": {"packed": 1024, "split_k": 4096, "reduce": 2048},
    "llvmpipe": {"packed": 512, "split_k": 16384, "reduce": 16384},
}
"""How many fragments make a draw worth having: targets and parts are chosen to have about as many."""


def output_texels(product: Product) -> int:
    """Texels of the output of all products."""
    return product.count * product.m * texels_for(product.n)


def exact_place(product: Product) -> tuple[float, float]:
    """(line, column) of a product in a map, before rounding."""
    return math.log2(output_texels(product)), math.log2(max(1.0, product.k / 4))


def candidates(product: Product, kernels: Kernels, *, blends: bool) -> list[Strategy]:
    """Every strategy that can compute a product on a renderer, one of each name, its targets or parts by the shape."""
    full, texels = _FULL[kernels.products], output_texels(product)
    found = [Strategy("small")]
    if product.m > 1:
        targets = 2
        while 2 * targets <= min(kernels.targets, product.m) and (
            product.count * -(-product.m // (2 * targets)) * texels_for(product.n) >= full["packed"]
        ):
            targets *= 2
        found.append(Strategy("packed", targets=targets))
    # A part has at least some steps, unless two parts have fewer.
    most = max(2, product.units // _LEAST_UNITS)
    parts = {name: min(max(2, round(full[name] / texels)), most) for name in ("split_k", "reduce")}
    if blends:
        found.append(Strategy("split_k", parts=min(parts["split_k"], _MOST_INSTANCES)))
    found.append(Strategy("reduce", parts=parts["reduce"]))
    if kernels.quad and product.m == product.count == 1:
        found.append(Strategy("matvec"))
    return found


def choose(product: Product, kernels: Kernels, *, blends: bool) -> Strategy:
    """The strategy for a product, by the map of a renderer of this kind."""
    chart = (ONE_ROW if product.count * product.m == 1 else MANY_ROWS)[kernels.products]
    line, column = (round(place) for place in exact_place(product))
    letters = chart[min(line, len(chart) - 1)]
    name = LETTERS[letters[min(column, len(letters) - 1)]]
    if name == "matvec" and product.table_format and kernels.products == "llvmpipe":
        name = "reduce"  # sixteen columns' groups of packed weights are more than a CPU's registers hold
    possible = {strategy.name: strategy for strategy in candidates(product, kernels, blends=blends)}
    while name not in possible:
        name = _INSTEAD[name]
    return possible[name]


def resolve(wanted: str | Strategy | None, product: Product, kernels: Kernels, *, blends: bool) -> Strategy:
    """The strategy that was asked for, or the one that is chosen by shape.

    Raises:
        PlanError: there is no such strategy, or it cannot compute this product on this renderer.
    """
    if wanted is None:
        return choose(product, kernels, blends=blends)
    if isinstance(wanted, Strategy):
        return wanted
    if wanted not in STRATEGIES:
        raise PlanError(f"there is no strategy {wanted!r}; known: {', '.join(STRATEGIES)}")
    possible = candidates(product, kernels, blends=blends)
    for strategy in possible:
        if strategy.name == wanted:
            return strategy
    raise PlanError(
        f"strategy {wanted} cannot compute {product.count} products of {product.m}×{product.k} and "
        f"{product.k}×{product.n} here; leave it out, or take one of {', '.join(each.name for each in possible)}"
    )
