"""``python -m qa products``: time every strategy of matrix products, and judge the choice by shape."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from glinfer.cli.common import device_options, json_option, print_json, progress, show_table
from glinfer.errors import InputError
from glinfer.inspect.tables import Column, Table
from glinfer.inspect.timing import Work, in_turns, milliseconds
from glinfer.kernels.flat.matmul import matmul
from glinfer.kernels.flat.matmul_choice import LETTERS, candidates, choose, exact_place
from glinfer.kernels.flat.product import Product, Strategy
from glinfer.program.plan import PlanBuilder
from glinfer.program.session import Session
from glinfer.tensors.device import Device

SAMPLES = 7
_SAMPLE_SECONDS = 0.004
_MAX_RUNS = 64
_MAP_SPREAD, _MIN_WEIGHT = 0.8, 1e-3
_MIN_WORK, _MAX_WORK, _MAX_ELEMENTS = 2_000, 100_000_000, 8_000_000
NEAR = 1.1
"""A choice is good if its time is at most this multiple of the fastest strategy's."""


@dataclass(frozen=True)
class ShapeTimes:
    """Seconds of every strategy that can compute one product, by name, and the strategy chosen by shape."""

    product: Product
    seconds: dict[str, float]
    chosen: str

    @property
    def best(self) -> str:
        """The fastest strategy."""
        return min(self.seconds, key=lambda name: self.seconds[name])

    @property
    def ratio(self) -> float:
        """Time of the chosen strategy divided by that of the fastest."""
        return self.seconds[self.chosen] / self.seconds[self.best]


def usual_products() -> list[Product]:
    """Shapes that models have, and odd ones: from one number to square matrices, tall, wide, long and batched."""
    edges = [(m, n, k) for m in (1, 2, 7, 16, 64, 256) for n, k in ((512, 512), (2048, 512), (512, 2048), (64, 64))]
    layers = [Product(m, n, k, transposed=True) for m, n, k in edges[::2]]
    odd = (
        (1, 5256, 512),
        (1, 16, 16384),
        (4, 4, 4096),
        (3, 5, 100000),
        (16, 16, 16384),
        (64, 64, 4096),
        (1, 1, 65536),
        (100, 1, 1000),
        (31, 33, 257),
        (128, 128, 128),
        (257, 255, 129),
        (512, 512, 512),
        (1000, 8, 300),
        (8, 1000, 300),
    )
    heads = [batched(8, *shape) for shape in ((1, 128, 64), (32, 32, 64), (128, 128, 64), (128, 64, 128))]
    return [*(Product(*shape) for shape in (*edges, *odd)), *layers, *heads]


def batched(count: int, m: int, n: int, k: int, *, transposed: bool = False) -> Product:
    """``count`` products of the same shape, each of its own matrices."""
    return Product(m, n, k, transposed, None, (1, 1, count), (0, 0, 1), (0, 0, 1))


def random_products(count: int, seed: int) -> list[Product]:
    """Random shapes with edges spread evenly over the powers of two; a third have one row, a fifth are batches of 8."""
    rng = random.Random(seed)

    def edge(largest: int) -> int:
        return min(largest, round(math.exp(rng.uniform(0.0, math.log(largest)))))

    found: list[Product] = []
    while len(found) < count:
        m, n, k = (1 if rng.random() < 1 / 3 else edge(1500)), edge(4096), edge(70000)
        if rng.random() < 0.5:
            n, k = max(4, n // 4 * 4), max(4, k // 4 * 4)
        transposed, heads = rng.random() < 0.4, rng.random() < 0.2
        if m * n * k <= _MAX_WORK and m * n * k >= _MIN_WORK and (m + n) * k <= _MAX_ELEMENTS:
            found.append(batched(8, m, n, k, transposed=transposed) if heads else Product(m, n, k, transposed))
    return found


class BoundProduct:
    """One product by one strategy, bound to a device."""

    def __init__(self, device: Device, product: Product, strategy: Strategy, rng: np.random.Generator) -> None:
        """Upload random operands and bind the draws."""
        builder = PlanBuilder("bench", 1, ())
        edge = device.context.limits.max_texture_size
        count, weight = product.batch[2], (product.n, product.k) if product.transposed else (product.k, product.n)
        x_count, weight_count = (count if steps[2] else 1 for steps in (product.x_steps, product.weight_steps))
        shapes = {"x": (x_count * product.m, product.k), "weight": (weight_count * weight[0], weight[1])}
        specs = {name: builder.flat(name, "input", *shape, "rgba32f", edge) for name, shape in shapes.items()}
        out = builder.flat("y", "activation", product.count * product.m, product.n, "rgba32f", edge)
        builder.draw(
            *matmul(
                "product",
                "product",
                specs["x"],
                specs["weight"],
                out,
                product=product,
                strategy=strategy,
                kernels=device.kernels,
                scratch=lambda name, rows, cols: builder.flat(name, "activation", rows, cols, "rgba32f", edge),
            )
        )
        self.device = device.context
        self.session = Session(builder.build(), {}, device.context, programs=device.programs)
        for name, shape in shapes.items():
            self.session.write(name, rng.standard_normal(shape, dtype=np.float32))

    def run(self, count: int) -> int:
        """Issue ``count`` runs together and wait for them once; returns their number."""
        for _ in range(count):
            self.session.run({})
        self.device.gl.finish()
        return count

    def release(self) -> None:
        """Release the textures."""
        self.session.release()


def time_product(
    device: Device, product: Product, strategies: Sequence[Strategy], samples: int = SAMPLES
) -> list[float]:
    """Median seconds of each strategy; strategies take turns."""
    rng = np.random.default_rng(1)
    bound = []
    try:
        for strategy in strategies:
            bound.append(BoundProduct(device, product, strategy, rng))
        works = []
        for each in bound:
            each.run(1)  # compiles
            count = int(1000.0 * _SAMPLE_SECONDS / milliseconds(partial(each.run, 1)))
            works.append(Work(partial(each.run, max(1, min(_MAX_RUNS, count)))))
        return [statistics.median(times) / 1000.0 for times in in_turns(works, samples, warm_ups=0)]
    finally:
        for each in bound:
            each.release()


def sweep(
    device: Device,
    shapes: Sequence[Product],
    samples: int = SAMPLES,
    on_progress: Callable[[int, int], object] | None = None,
) -> list[ShapeTimes]:
    """Time every strategy on every shape."""
    found = []
    for number, product in enumerate(shapes):
        strategies = [
            each
            for each in candidates(product, device.kernels, blends=device.blends_floats)
            if each.name not in ("split_k", "reduce") or each.parts_of(product.units) > 1
        ]
        chosen = choose(product, device.kernels, blends=device.blends_floats)
        times = time_product(device, product, strategies, samples)
        seconds = {strategy.name: taken for strategy, taken in zip(strategies, times, strict=True)}
        found.append(ShapeTimes(product, seconds, chosen.name))
        if on_progress is not None:
            on_progress(number + 1, len(shapes))
    return found


def share_near(found: Sequence[ShapeTimes]) -> float:
    """Share of shapes with a good choice, see :data:`NEAR`."""
    return sum(each.ratio <= NEAR for each in found) / len(found)


def measured_map(found: Sequence[ShapeTimes]) -> tuple[str, ...]:
    """Make a map for :mod:`glinfer.kernels.flat.matmul_choice` from measured times.

    Each place takes the strategy with the lowest mean time relative to the fastest, over the shapes around it; near
    shapes count most. The map ends where the shapes do.
    """
    places = np.array([exact_place(each.product) for each in found])
    costs = [
        {name: math.log(taken / each.seconds[each.best]) for name, taken in each.seconds.items()} for each in found
    ]
    lines = []
    last_line, last_column = (math.ceil(last) for last in places.max(axis=0))
    for line in range(last_line + 1):
        letters = ""
        for column in range(last_column + 1):
            distance = ((places - (line, column)) ** 2).sum(axis=1)
            weights = np.exp(-(distance - distance.min()) / (2 * _MAP_SPREAD**2))
            letters += min(LETTERS, key=lambda letter: _mean_cost(LETTERS[letter], costs, weights))
        lines.append(letters)
    return tuple(lines)


def _mean_cost(name: str, costs: Sequence[dict[str, float]], weights: npt.NDArray[np.float64]) -> float:
    pairs = [(weight, min(cost[name], 1.0)) for weight, cost in zip(weights, costs, strict=True) if name in cost]
    total = sum(weight for weight, _ in pairs)
    return sum(weight * cost for weight, cost in pairs) / total if total > _MIN_WEIGHT else math.inf


@click.command("products")
@click.option(
    "--random",
    "count",
    type=click.IntRange(min=0),
    default=60,
    show_default=True,
    help="Number of random shapes.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the random shapes.")
@click.option("--usual/--no-usual", default=True, help="Also use shapes of common models.")
@click.option(
    "--samples", type=click.IntRange(min=1), default=SAMPLES, show_default=True, help="Samples of a time, for a median."
)
@click.option("--map", "show_map", is_flag=True, help="Print the strategy maps that follow from these times.")
@device_options
@json_option
def products(count: int, seed: int, usual: bool, samples: int, show_map: bool, as_json: bool, **options: Any) -> None:
    """Time every strategy of 'matmul' on many shapes, and compare the strategy chosen by shape with the fastest.

    Strategies are interleaved on each shape. A choice counts as good within 10% of the fastest.

    \b
    python -m qa products
    python -m qa products --no-usual --random 400 --seed 7 --map
    """
    if not (usual or count):
        raise InputError("found no shapes to time; leave --no-usual out, or give --random a number")
    shapes = [*(usual_products() if usual else []), *random_products(count, seed)]
    with Device(options["device"], api=options["api"], limits=options["limits"]) as device:
        with progress("multiplying") as advance:
            found = sweep(device, shapes, samples, advance)
        renderer = device.description
    if as_json:
        print_json({"renderer": renderer, "near": share_near(found), "products": [_json(each) for each in found]})
        return
    show_table(Table("Products", _COLUMNS, found))
    if show_map:
        _show_maps(found)
    good = sum(each.ratio <= NEAR for each in found)
    share = share_near(found)
    click.echo(f"the choice is within {NEAR - 1:.0%} of the fastest in {good} of {len(found)} shapes ({share:.0%})")
    click.echo(renderer)


def _json(each: ShapeTimes) -> dict[str, Any]:
    return {**dataclasses.asdict(each), "fastest": each.best, "ratio": each.ratio}


_COLUMNS = (
    Column("products", lambda each: _shape(each.product)),
    Column("weight", lambda each: "[n, k]" if each.product.transposed else "[k, n]"),
    Column("fastest", "best"),
    Column("ms", lambda each: 1e3 * each.seconds[each.best], ".3f"),
    Column("GMAC/s", lambda each: _work(each.product) / each.seconds[each.best] / 1e9, ".1f"),
    Column("chosen", "chosen"),
    Column("times the fastest", "ratio", ".2f"),
)


def _shape(product: Product) -> str:
    shape = f"{product.m}×{product.k} · {product.k}×{product.n}"
    return shape if product.count == 1 else f"{product.count} of {shape}"


def _work(product: Product) -> int:
    return product.count * product.m * product.n * product.k


def _show_maps(found: list[ShapeTimes]) -> None:
    for title, one_row in (("one row", True), ("many rows", False)):
        part = [each for each in found if (each.product.count * each.product.m == 1) is one_row]
        if part:
            click.echo(f"map of {title}, from {len(part)} shapes:")
            click.echo("\n".join(f'        "{line}",' for line in measured_map(part)))
