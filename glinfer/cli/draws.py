"""``glinfer draws``: how many draw calls a token costs, pass by pass."""

from __future__ import annotations

from typing import Any

import click

from glinfer.cli.common import device_options, json_option, model_options, opened, out, print_json, table
from glinfer.config import ModelConfig
from glinfer.errors import InputError
from glinfer.formats import load_checkpoint, random_checkpoint
from glinfer.models.choice import plan_for, weights_for
from glinfer.models.session import check_fits
from glinfer.models.tuning import default_for
from glinfer.tools.draws import DrawReport, measured, planned


@click.command()
@click.argument("model", type=click.Path(), required=False)
@click.option(
    "--config",
    "config_text",
    help="A shape instead of a MODEL, such as blocks=6,heads=8,dim=512,vocab=5256,context=2048; "
    "what is left out is as in Gab.",
)
@click.option("--tokens", type=int, default=1, show_default=True, help="Length of the sequence; sizes depend on it.")
@click.option("--measure", is_flag=True, help="Run a real token too and check that it issues as many draws.")
@model_options
@device_options
@json_option
def draws(
    model: str | None, config_text: str | None, tokens: int, measure: bool, as_json: bool, **options: Any
) -> None:
    """Count the draw calls of one token, by pass.

    Without --measure no graphics driver is needed: the plan alone is counted. With it, the last token of the
    sequence is really run (on random weights when only --config is given), and the exit status is 1 if the
    counts differ.

    \b
    glinfer draws --config blocks=6,heads=8
    glinfer draws model.gab --measure --tokens 16
    """
    if (model is None) == (config_text is None):
        raise InputError("give either a MODEL or --config, and not both")
    name, weights = options["plan"], options["weights"]
    checkpoint = None if model is None else load_checkpoint(model)
    config = ModelConfig.from_options(config_text or "") if checkpoint is None else checkpoint.config
    config = config.with_gelu(options["gelu"])
    report = planned(config, plan_for(config, name, weights=weights), tokens)
    if measure:
        with opened(options["device"], options["api"], options["limits"]) as device:
            plan = plan_for(
                config,
                name,
                weights=weights,
                kernels=default_for(device),
                max_texture_size=device.limits.max_texture_size,
            )
            check_fits(plan, device)  # before random weights of any size are made
            checkpoint = checkpoint or random_checkpoint(config)
            report = measured(checkpoint, plan, tokens, device, weights=weights_for(checkpoint, name, weights))
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)
    if not report.agrees:
        raise click.exceptions.Exit(1)


def _show(report: DrawReport) -> None:
    shown = table("pass", "shader", "draws", "output", "share", numbers=("draws", "output", "share"))
    for row in report.table.rows:
        shown.add_row(row.kind, row.shader, str(row.count), f"{row.cols}×{row.rows}", f"{row.share:.1%}")
    shown.add_row("total", "", str(report.table.total), "", "100.0%", style="bold")
    out().print(shown)
    click.echo(
        f"plan {report.table.plan} · {report.table.total} draws/token · "
        f"sizes are columns×rows of a matrix, for token {report.table.tokens} of a sequence"
    )
    if report.issued is not None:
        verdict = "agrees with the plan" if report.agrees else "DIFFERS from the plan"
        click.echo(f"issued {report.issued} draw calls in a real run: {verdict} · {report.renderer}")
