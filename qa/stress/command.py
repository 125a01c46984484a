"""``python -m qa stress``: repeat textures, kernels and tokens under load, and compare bit for bit."""

from __future__ import annotations

import math
from typing import Any

import click

from glinfer.cli.common import (
    config_option,
    device_options,
    json_option,
    megabytes,
    model_options,
    model_or_shape,
    print_json,
    progress,
)
from glinfer.cli.verify import asked_for, check_everywhere, everywhere_options, nothing_ran
from glinfer.errors import ContextError, InputError
from glinfer.inspect.settings import named
from qa.stress.run import StressCheck, StressReport, stress_everywhere

_DEFAULT_SECONDS = 60.0


@click.command("stress")
@click.argument("model", type=click.Path(), required=False)
@config_option
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=_DEFAULT_SECONDS,
    show_default=True,
    help="Duration for each format on each renderer; the first round always finishes.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="The same seed repeats the same rounds."
)
@everywhere_options
@model_options
@device_options
@json_option
@click.pass_context
def stress_command(
    context: click.Context,
    /,
    model: str | None,
    config_text: str | None,
    seconds: float,
    seed: int,
    all_weights: bool,
    all_devices: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Repeat textures, kernels and tokens of MODEL under load, and compare bit for bit.

    Each round fills textures of random sizes with random bits and reads them back, runs kernels on random shapes, and
    runs the same tokens in one session and in two alternating sessions, while draws of the model are in flight. At
    the end OpenGL objects are counted.

    \b
    python -m qa stress model.gab --seconds 60
    python -m qa stress model.gguf --all-weights --all-devices --json

    \b
    Exit status:
      0  all bits are equal, and no OpenGL object was leaked
      1  something differs, or OpenGL reported an error
      2  bad input, or nothing could be run
    """
    check_everywhere(context)
    if not math.isfinite(seconds):
        raise InputError(f"--seconds is {seconds}; expected seconds, such as 20")
    checkpoint = model_or_shape(model, config_text, options)
    checkpoint.check_finite()
    settings = asked_for(checkpoint, options, all_weights, all_devices)
    with progress("repeating under load") as advance:
        report = stress_everywhere(
            checkpoint,
            settings,
            seconds=seconds,
            seed=seed,
            on_step=lambda gone: advance(int(100 * min(gone, seconds)), int(100 * seconds)),
        )
    if as_json and (report.runs or all_devices or all_weights):
        print_json(report.to_json())
    if not report.runs:
        raise ContextError(nothing_ran(report.unusable))
    if not as_json:
        _show(report)
    if not report.passed:
        raise click.exceptions.Exit(1)


def _show(report: StressReport) -> None:
    for run in report.runs:
        click.echo(f"{named(run.device, run.api)}, weights {run.weights}: {run.renderer}")
        if run.check is not None:
            _show_check(run.check)
        if run.problem:
            click.echo(f"the run ended with an error: {run.problem}")
    for each in report.unusable:
        click.echo(f"{each.where}, unusable: {each.problem}")
    failed = sum(not run.passed for run in report.runs)
    count = f"{len(report.runs)} {'run' if len(report.runs) == 1 else 'runs'}: "
    count += f"{failed} FAILED" if failed else "the same bits in all rounds"
    click.echo(" · ".join([count, *([f"{len(report.unusable)} unusable"] if report.unusable else [])]))


def _show_check(found: StressCheck) -> None:
    before, after = (sum(objects.values()) for objects in (found.objects_before, found.objects_after))
    memory = [f"{count / 1e6:,.0f} MB" for count in (found.memory_before, found.memory_after) if count is not None]
    rounds = f"{found.rounds} {'round' if found.rounds == 1 else 'rounds'}"
    click.echo(
        f"under load for {found.seconds:.1f} s, {rounds} from seed {found.seed} on: {found.textures:,} textures, "
        f"{megabytes(found.texture_bytes)} · {found.kernels:,} kernel calls · {found.tokens:,} tokens again · "
        f"{found.draws:,} draws · objects {before} before, {after} after"
        + (f" · memory {' → '.join(memory)}" if memory else "")
    )
    if found.first_fault is not None:
        click.echo(f"{found.faults} FAULTS, the first: {found.first_fault.text}")
