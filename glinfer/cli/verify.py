"""``glinfer verify``: textures hold what was uploaded, draws compute what they should."""

from __future__ import annotations

from typing import Any

import click

from glinfer.cli.common import (
    config_option,
    device_options,
    json_option,
    megabytes,
    model_options,
    model_or_shape,
    opened,
    out,
    parse_ids,
    planned_edge,
    print_json,
    progress,
    shape_asked_for,
    table,
)
from glinfer.errors import InputError
from glinfer.generation.ids import check_ids
from glinfer.models.choice import check_choice, plan_for, usual_kernels, weights_for
from glinfer.tools.draws import example_ids
from glinfer.tools.verify import (
    DRAW_TOLERANCE,
    VerifyReport,
    verify_draws,
    verify_special_values,
    verify_textures,
)
from glinfer.tools.verify_greedy import verify_greedy


@click.command()
@click.argument("model", type=click.Path(), required=False)
@config_option
@click.option("--draws", "with_draws", is_flag=True, help="Also run a forward and compare every draw with float64.")
@click.option("--tokens", type=int, help="Length of that forward's sequence. Default 8.")
@click.option("--ids", help="That forward's token ids, such as 13,132,251.")
@click.option(
    "--greedy",
    type=click.IntRange(min=1),
    help="Also choose so many tokens after those, each the likeliest, and compare with what float64 finds likeliest.",
)
@model_options
@device_options
@json_option
def verify(
    model: str | None,
    config_text: str | None,
    with_draws: bool,
    tokens: int | None,
    ids: str | None,
    greedy: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Upload every weight of MODEL, read it back through a framebuffer, and compare bit for bit.

    The fast plan's weights are compared as it packs them, the reference plan's as they are in the file. Also stores
    NaN payloads, infinities, −0 and denormals, which careless paths change. With --draws every pass of the last token
    is compared with float64. The exit status is 1 if anything differs.

    \b
    glinfer verify model.gab --plan reference
    glinfer verify model.gab --weights q8 --draws --tokens 16 --json
    glinfer verify model.gguf --greedy 20
    """
    runs = with_draws or greedy is not None
    if not runs and (tokens is not None or ids is not None):
        raise InputError("--tokens and --ids belong to --draws or --greedy; add one of them")
    if tokens is not None and ids is not None:
        raise InputError("give either --tokens or --ids, and not both")
    name, weights = options["plan"], options["weights"]
    check_choice(name, weights)
    if model is None and config_text is not None:  # told to be too large before random weights of any size are made
        edge = planned_edge(options["limits"])
        plan_for(shape_asked_for(config_text, options), name, weights=weights, max_texture_size=edge)
    checkpoint = model_or_shape(model, config_text, options)
    config, formats = checkpoint.config, checkpoint.formats()
    if runs or name != "reference":  # what is folded and rounded has to be numbers
        checkpoint.check_finite()
    sequence: list[int] = []
    if runs:
        sequence = check_ids(_sequence(ids, 8 if tokens is None else tokens, config), config)
    arrays = weights_for(checkpoint, name, weights)
    with opened(options["device"], options["api"], options["limits"]) as device:
        plan = plan_for(
            config,
            name,
            weights=weights,
            formats=formats,
            kernels=usual_kernels(device, config, weights, formats),
            max_texture_size=device.limits.max_texture_size,
        )
        count = len(plan.of_kind("weight"))
        with progress("checking textures") as advance:
            done = iter(range(1, count + 1))
            textures = verify_textures(checkpoint, plan, device, lambda _: advance(next(done), count), weights=arrays)
        special = verify_special_values(device)
        checks = []
        if with_draws:
            with progress("checking draws") as advance:
                total = len(plan.draws)
                checks = verify_draws(
                    checkpoint,
                    plan,
                    device,
                    sequence,
                    weights=arrays,
                    on_check=lambda check: advance(check.index + 1, total),
                )
        chosen = None
        if greedy is not None:
            chosen = verify_greedy(checkpoint, device, sequence, greedy, plan=name, weights=weights)
        report = VerifyReport(device.description, tuple(textures), tuple(special), tuple(checks), chosen)
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)
    if not report.passed:
        raise click.exceptions.Exit(1)


def _sequence(ids: str | None, tokens: int, config: Any) -> list[int]:
    if ids is not None:
        return parse_ids(ids)
    if not 1 <= tokens <= config.max_position_embeddings:
        raise InputError(f"--tokens is {tokens}; expected 1 to {config.max_position_embeddings}, the context")
    return [int(token) for token in example_ids(config, tokens)]


def _show(report: VerifyReport) -> None:
    console = out()
    shown = table(
        "texture",
        "size",
        "format",
        "bytes",
        "max difference",
        "bits",
        numbers=("size", "bytes", "max difference"),
    )
    for check in report.textures:
        shown.add_row(
            check.name,
            f"{check.width}×{check.height}",
            check.format,
            f"{check.bytes:,}",
            f"{check.max_difference:g}",
            "identical" if check.identical else "DIFFER",
        )
    console.print(shown)
    console.print()
    shown = table("special values", "stored and read back", "copied by a draw")
    for special in report.special:
        shown.add_row(
            special.name,
            "identical" if special.stored else "CHANGED",
            "identical" if special.through_a_draw else "changed (allowed)",
        )
    console.print(shown)
    if report.draws:
        console.print()
        _show_draws(report)
    total = sum(check.bytes for check in report.textures)
    bad = len(report.bad_textures)
    parts = [f"{len(report.textures)} textures, {megabytes(total)}: " + (f"{bad} DIFFER" if bad else "all identical")]
    if report.draws:
        failed = sum(not check.passed for check in report.draws)
        parts.append(f"{len(report.draws)} draws: " + (f"{failed} DIFFER" if failed else "all within tolerance"))
    if report.greedy is not None:
        count = len(report.greedy.chosen)
        parts.append(f"{count} tokens: {report.greedy.agreeing} as float64 chooses them")
    click.echo("\n" + " · ".join([*parts, report.renderer]))


def _show_draws(report: VerifyReport) -> None:
    first = report.first_bad_draw
    worst = sorted(report.draws, key=lambda check: -check.max_relative_error)[:5]
    shown = table(
        "draw",
        "pass",
        "shader",
        "output",
        "relative error",
        "unwritten",
        "stray",
        numbers=("draw", "output", "relative error", "unwritten", "stray"),
    )
    for check in ([first] if first else []) + [check for check in worst if check is not first]:
        shown.add_row(
            str(check.index),
            check.name,
            check.shader,
            f"{check.cols}×{check.rows}",
            f"{check.max_relative_error:.2e}",
            str(check.unwritten),
            str(check.strays),
        )
    click.echo(f"largest errors against float64 (tolerance {DRAW_TOLERANCE:g}):")
    out().print(shown)
    if first:
        click.echo(f"the first draw that differs is number {first.index}, {first.name} (shaders/{first.shader}.frag)")
