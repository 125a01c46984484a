"""Chooses the fastest strategy for a product, by measured maps over the size of the output and the length of k.

Line i of a map is for outputs of 2**i texels (all products and rows, four columns a texel), and its letter j is for
k = 4 · 2**j. A size between two is rounded to the nearer one, a size beyond the edge to the edge.
"""

from __future__ import annotations

import math

from glinfer.errors import PlanError
from glinfer.gl.layouts.flat import texels_for
from glinfer.kernels.flat.product import STRATEGIES, Product, Strategy
from glinfer.kernels.options import KernelOptions

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
_MAX_INSTANCES = 32
_MIN_PART_UNITS = 32
_FRAGMENTS = {
    "gpu": {"packed": 1024, "split_k": 4096, "reduce": 2048},
    "llvmpipe": {"packed": 512, "split_k": 16384, "reduce": 16384},
}
"""Number of fragments that keeps a renderer busy, which the choice of targets and parts aims at."""


def output_texels(product: Product) -> int:
    """Texels of the output of all products."""
    return product.count * product.m * texels_for(product.n)


def exact_cell(product: Product) -> tuple[float, float]:
    """(line, column) of a product in a map, before rounding."""
    return math.log2(output_texels(product)), math.log2(max(1.0, product.k / 4))


def candidates(product: Product, kernels: KernelOptions, *, blends: bool) -> list[Strategy]:
    """Every strategy that can compute a product on a renderer, with targets or parts for the product's shape."""
    full, texels = _FRAGMENTS[kernels.product_table], output_texels(product)
    found = [Strategy("small")]
    if product.m > 1:
        targets = 2
        while 2 * targets <= min(kernels.rows_per_draw, product.m) and (
            product.count * -(-product.m // (2 * targets)) * texels_for(product.n) >= full["packed"]
        ):
            targets *= 2
        found.append(Strategy("packed", targets=targets))
    # A part has at least _MIN_PART_UNITS steps, unless already two parts have fewer.
    most = max(2, product.units // _MIN_PART_UNITS)
    parts = {name: min(max(2, round(full[name] / texels)), most) for name in ("split_k", "reduce")}
    if blends:
        found.append(Strategy("split_k", parts=min(parts["split_k"], _MAX_INSTANCES)))
    found.append(Strategy("reduce", parts=parts["reduce"]))
    if kernels.quad and product.m == product.count == 1:
        found.append(Strategy("matvec"))
    return found


def choose(product: Product, kernels: KernelOptions, *, blends: bool) -> Strategy:
    """The strategy that the renderer's map chooses for a product."""
    return explained(product, kernels, blends=blends)[0]


def explained(product: Product, kernels: KernelOptions, *, blends: bool) -> tuple[Strategy, str]:
    """The strategy that the renderer's map chooses for a product, and a readable reason."""
    charts, rows = (ONE_ROW, "one row") if product.count * product.m == 1 else (MANY_ROWS, "many rows")
    chart = charts[kernels.product_table]
    line, column = (round(edge) for edge in exact_cell(product))
    letters = chart[min(line, len(chart) - 1)]
    mapped = name = LETTERS[letters[min(column, len(letters) - 1)]]
    if name == "matvec" and product.table_format and kernels.product_table == "llvmpipe":
        name = "reduce"  # sixteen columns' groups of packed weights are more than a CPU's registers hold
    possible = {strategy.name: strategy for strategy in candidates(product, kernels, blends=blends)}
    while name not in possible:
        name = _INSTEAD[name]
    chosen = possible[name]
    parts = chosen.parts_of(product.units)
    how = f", {chosen.targets} rows a fragment" if chosen.targets > 1 else f" in {parts} parts" if parts > 1 else ""
    found = f"{output_texels(product)} texels of output and k = {product.k}"
    why = f"{name}{how}; the {kernels.product_table} map for {rows} has {mapped} for {found}"
    return chosen, why if name == mapped else f"{why}, which is impossible or slower here"


def resolve(wanted: str | Strategy | None, product: Product, kernels: KernelOptions, *, blends: bool) -> Strategy:
    """The requested strategy, or by default the one chosen by shape.

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
        f"{product.k}×{product.n} here; omit it, or use one of {', '.join(each.name for each in possible)}"
    )
