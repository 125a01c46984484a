"""``glinfer products``: how fast each strategy multiplies matrices, and how good the choice by shape is."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from glinfer.cli.common import LIMITS, device_options, json_option, out, print_json, progress, table
from glinfer.errors import InputError
from glinfer.tensors.device import Device
from glinfer.tools.bench_matmul import (
    NEAR,
    SAMPLES,
    ShapeTimes,
    measured_map,
    random_products,
    share_near,
    sweep,
    usual_products,
)


@click.command("products")
@click.option(
    "--random",
    "count",
    type=click.IntRange(min=0),
    default=60,
    show_default=True,
    help="Random shapes beside the usual ones.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the random shapes.")
@click.option("--usual/--no-usual", default=True, help="The shapes that models have.")
@click.option(
    "--samples", type=click.IntRange(min=1), default=SAMPLES, show_default=True, help="Of which the median counts."
)
@click.option("--map", "show_map", is_flag=True, help="Print the maps of strategies that these times make.")
@device_options
@json_option
def products(count: int, seed: int, usual: bool, samples: int, show_map: bool, as_json: bool, **options: Any) -> None:
    """Time every strategy of 'matmul' on many shapes, and compare the one that is chosen by shape with the fastest.

    Strategies take turns on each shape. A choice counts as good within 10% of the fastest.

    \b
    glinfer products
    glinfer products --no-usual --random 400 --seed 7 --map
    """
    if not (usual or count):
        raise InputError("found no shapes to time; leave --no-usual out, or give --random a number")
    shapes = [*(usual_products() if usual else []), *random_products(count, seed)]
    with Device(options["device"], api=options["api"], limits=LIMITS[options["limits"]]) as device:
        with progress("multiplying") as advance:
            found = sweep(device, shapes, samples, advance)
        renderer = device.description
    if as_json:
        print_json({"renderer": renderer, "near": share_near(found), "products": [_json(each) for each in found]})
        return
    _show(found)
    if show_map:
        _show_maps(found)
    good = sum(each.ratio <= NEAR for each in found)
    share = share_near(found)
    click.echo(f"the choice is within {NEAR - 1:.0%} of the fastest in {good} of {len(found)} shapes ({share:.0%})")
    click.echo(renderer)


def _json(each: ShapeTimes) -> dict[str, Any]:
    return {**dataclasses.asdict(each), "fastest": each.best, "ratio": each.ratio}


def _show(found: list[ShapeTimes]) -> None:
    shown = table(
        "products",
        "weight",
        "fastest",
        "ms",
        "GMAC/s",
        "chosen",
        "times the fastest",
        numbers=("ms", "GMAC/s", "times the fastest"),
    )
    for each in found:
        product = each.product
        shape = f"{product.m}×{product.k} · {product.k}×{product.n}"
        taken = each.seconds[each.best]
        shown.add_row(
            shape if product.count == 1 else f"{product.count} of {shape}",
            "[n, k]" if product.transposed else "[k, n]",
            each.best,
            f"{taken * 1e3:.3f}",
            f"{product.count * product.m * product.n * product.k / taken / 1e9:.1f}",
            each.chosen,
            f"{each.ratio:.2f}",
        )
    out().print(shown)


def _show_maps(found: list[ShapeTimes]) -> None:
    for title, one_row in (("one row", True), ("many rows", False)):
        part = [each for each in found if (each.product.count * each.product.m == 1) is one_row]
        if part:
            click.echo(f"map of {title}, from {len(part)} shapes:")
            click.echo("\n".join(f'        "{line}",' for line in measured_map(part)))
