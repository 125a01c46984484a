"""``python -m qa flips``: flip bits in the textures of running models, and count how many are found."""

from __future__ import annotations

import click

from glinfer.cli.common import device_options, json_option, opened, print_json, show_table, stage_bars
from glinfer.inspect.tables import Column, Table
from qa.flips.run import FLIPPED_FAMILIES, FLIPPED_FORMATS, SHARE, FlipsReport, flip_everywhere


@click.command("flips")
@click.option(
    "--count", type=click.IntRange(min=1), default=200, show_default=True, help="Bits to flip in each kind of texture."
)
@click.option(
    "--clean", type=click.IntRange(min=0), default=200, show_default=True, help="Comparisons of each intact model."
)
@click.option(
    "--families",
    default=",".join(FLIPPED_FAMILIES),
    show_default=True,
    metavar="F[,F…]",
    help="Families of the random models.",
)
@click.option(
    "--weights",
    default=",".join(FLIPPED_FORMATS),
    show_default=True,
    metavar="W[,W…]",
    help="Formats of their weights; 'reference' is the reference plan.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of models, positions and bits."
)
@device_options
@json_option
def flips_command(
    count: int,
    clean: int,
    families: str,
    weights: str,
    seed: int,
    device: str | None,
    api: str | None,
    limits: str,
    as_json: bool,
) -> None:
    """Flip random bits in live textures one at a time, and count how many the texture comparison finds.

    A full comparison with the weights and a cycle of sampled comparisons with checksums look for each flip, which is
    then undone. A flip counts as found if exactly this texel and bit is named. Intact models are compared too, with
    sequences, batches and scores in between; nothing may be found there.

    \b
    python -m qa flips
    python -m qa flips --count 10 --clean 10 --families llama --weights q8,Q4_0

    The exit status is 1 if a flip is missed or anything else is found.
    """
    with opened(device, api, limits) as renderer, stage_bars() as advance:
        report = flip_everywhere(
            renderer,
            count=count,
            clean=clean,
            seed=seed,
            families=tuple(filter(None, families.split(","))),
            weights=tuple(filter(None, weights.split(","))),
            on_progress=advance,
        )
        description = renderer.description
    if as_json:
        print_json(report.to_json())
    else:
        _show(report, description)
    if not report.passed:
        raise click.exceptions.Exit(1)


def _show(report: FlipsReport, description: str) -> None:
    sampled = f"sampled by {SHARE:g}"
    columns = (
        *(Column(name, name) for name in ("family", "weights", "kind")),
        Column("textures", "textures", ""),
        Column("found whole", lambda count: f"{count.whole} of {count.flips}"),
        Column(sampled, lambda count: f"{count.sampled} of {count.flips}"),
    )
    show_table(Table("Flips", columns, report.flips))
    flips, whole, by_share = (
        sum(numbers) for numbers in zip(*((each.flips, each.whole, each.sampled) for each in report.flips), strict=True)
    )
    click.echo(f"\n{flips:,} flips: {whole:,} found whole, {by_share:,} {sampled}")
    alarms, checks = sum(each.alarms for each in report.clean), sum(each.checks for each in report.clean)
    click.echo(f"{checks:,} comparisons without a fault, with tokens in between: {alarms:,} alarms · {description}")
