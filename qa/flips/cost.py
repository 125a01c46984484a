"""``python -m qa check-cost``: the time that a comparison of textures takes between two tokens."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from glinfer.cli.common import (
    config_option,
    context_option,
    device_options,
    gelu_option,
    json_option,
    megabytes,
    model_or_shape,
    opened,
    out,
    plan_option,
    print_json,
    progress,
    table,
)
from glinfer.engine.loading import bind
from glinfer.engine.model import Loaded, Model
from glinfer.engine.progress import Progress, no_progress
from glinfer.engine.report import Report
from glinfer.formats import Checkpoint
from glinfer.gl.context import Device
from glinfer.inspect.timing import Spread
from glinfer.models.choice import check_choice


@dataclass(frozen=True)
class CheckCost(Report):
    """The time of comparisons of one weight format.

    Attributes:
        weights: the format.
        bytes: texture memory of the weights.
        share: the part that a sampled comparison looks at.
        sampled: milliseconds of one.
        whole: milliseconds of a whole comparison.
        token: milliseconds of the token before each sampled comparison.
        ok: whether all of them found nothing.
    """

    weights: str
    bytes: int
    share: float
    sampled: Spread
    whole: float
    token: Spread
    ok: bool


def check_cost(
    checkpoint: Checkpoint,
    device: Device,
    weights: str,
    *,
    plan: str = "fast",
    share: float = 0.01,
    on_progress: Progress = no_progress,
) -> CheckCost:
    """Time sampled comparisons, each after a token, over all textures twice; and a whole one.

    The first time over them makes a framebuffer for each texture, and is not counted.
    """
    with Model(Loaded(bind(checkpoint, device, plan, weights), None, "only ids are run", (), False)) as model:
        calls = math.ceil(1 / share)
        ok = True
        for _ in range(calls):
            ok &= model.verify_textures(share).ok
        sampled, tokens = list[float](), list[float]()
        with model.session() as session:
            session.prefill([1, 2, 3])
            for call in range(2 * calls):
                with timed(tokens):
                    session.generate_ids(1)
                with timed(sampled):
                    ok &= model.verify_textures(share).ok
                on_progress(call + 1, 2 * calls)
        whole: list[float] = []
        with timed(whole):
            report = model.verify_textures()
        ok &= report.ok
        return CheckCost(weights, report.checked.bytes, share, Spread.of(sampled), whole[0], Spread.of(tokens), ok)


@contextmanager
def timed(times: list[float]) -> Iterator[None]:
    """Append the milliseconds that the block takes."""
    start = time.perf_counter()
    yield
    times.append(1e3 * (time.perf_counter() - start))


@click.command("check-cost")
@click.argument("model", type=click.Path(), required=False)
@config_option
@plan_option
@click.option("--weights", default="f32,q8", show_default=True, metavar="W[,W…]", help="Weight formats.")
@click.option(
    "--share",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=0.01,
    show_default=True,
    help="Fraction of the texture memory to compare at once.",
)
@gelu_option
@context_option
@device_options
@json_option
def check_cost_command(
    model: str | None,
    config_text: str | None,
    weights: str,
    share: float,
    device: str | None,
    api: str | None,
    limits: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Time model.verify_textures(share) between the tokens of MODEL, and a full comparison.

    \b
    python -m qa check-cost --config ""
    python -m qa check-cost model.gguf --weights file --share 0.001
    """
    formats = [name for name in weights.split(",") if name]
    for name in formats:
        check_choice(options["plan"], name)
    checkpoint = model_or_shape(model, config_text, {**options, "weights": formats[0], "cache": "f32"})
    checkpoint.check_finite()
    with opened(device, api, limits) as renderer, progress("timing") as advance:
        costs = [
            check_cost(checkpoint, renderer, name, plan=options["plan"], share=share, on_progress=advance)
            for name in formats
        ]
        description = renderer.description
    if as_json:
        print_json([cost.to_json() for cost in costs])
    else:
        columns = ("memory", f"share {share:g}: median ms", "slowest ms", "whole: ms", "token: ms")
        shown = table("weights", *columns, numbers=columns)
        for cost in costs:
            times = cost.sampled.median, cost.sampled.slowest, cost.whole, cost.token.median
            shown.add_row(cost.weights, megabytes(cost.bytes), *(f"{each:.2f}" for each in times))
        out().print(shown)
        click.echo(f"\n{description}")
    if not all(cost.ok for cost in costs):
        raise click.exceptions.Exit(1)
