"""``glinfer draws``: draw calls of a token by pass, and texture memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from glinfer.cli import options as opt
from glinfer.cli.common import (
    check_one_source,
    opened,
    planned_edge,
    print_json,
    say,
    shape_from_options,
    show_table,
    sizes_text,
)
from glinfer.config import ModelConfig
from glinfer.engine.fetching import described_model, found_model
from glinfer.engine.loading import random_weights, read_model
from glinfer.errors import GlinferError, InputError
from glinfer.formats.checkpoint import Checkpoint
from glinfer.inspect.draws import DrawReport, measured, planned
from glinfer.inspect.tables import Column, Table
from glinfer.lower.plans import PLANS, is_published, plan_for, same_draws, weights_for, weights_named
from glinfer.lower.weights.low_rank import AdapterRanks
from glinfer.program.plan import DrawRow, draw_table
from glinfer.program.session import check_textures_fit
from glinfer.program.tuning import kernels_for
from glinfer.terminal import emit


@click.command()
@click.argument("model", type=opt.FILE, required=False)
@opt.config_option
@click.option("--tokens", type=int, default=1, show_default=True, help="Sequence length; sizes depend on it.")
@click.option("--measure", is_flag=True, help="Also run a token and check that it issues the same number of draws.")
@opt.lora_option
@opt.model_options
@opt.device_options
@opt.json_option
def draws(
    model: str | None, config_text: str | None, tokens: int, measure: bool, as_json: bool, **options: Any
) -> None:
    """Count the draw calls of one token, by pass, and the plan's texture memory.

    Without --measure no graphics driver is needed: the plan is counted and checked against --limits. If renderers need
    different numbers of passes, the count is marked as an estimate. With --measure the plan is built for --device and
    the last token of the sequence is run (with random weights if only --config is given); the exit status is 1 if the
    counts differ.

    \b
    glinfer draws --config blocks=6,heads=8
    glinfer draws --config family=llama,blocks=16,heads=32,kv_heads=8,dim=2048
    glinfer draws model.gab --measure --tokens 16
    """
    check_one_source(model, config_text)
    if options["lora"] is not None and model is None:
        raise InputError("--lora needs a MODEL; give one instead of --config")
    name = options["plan"]
    how: dict[str, Any] = {"cache": options["cache"]}
    checkpoint: Checkpoint | None = None
    if model is not None:
        # Without --measure the weights do not matter and are not downloaded.
        with described_model(found_model(model, tell=say) if measure else model) as described:
            given = {name: options[name] for name in ("gelu", "context", "lora")}
            checkpoint = read_model(described.path, **given)[1]
        how["adapters"] = AdapterRanks.of(checkpoint.adapters, default=min(1, len(checkpoint.adapters)))
        config, formats = checkpoint.config, checkpoint.formats()
    else:
        config, formats = shape_from_options(config_text or "", options["gelu"], options["context"]), None
    how["weights"] = weights = weights_named(options["weights"], formats, name)
    how |= {"formats": formats, "tokens": tokens, "max_texture_size": planned_edge(options["limits"])}
    if not measure:
        plan = plan_for(config, name, **how)
        report = planned(config, plan, tokens, how["max_texture_size"])
        report = dataclasses.replace(report, estimate=not same_draws(config, name, formats))
    else:
        with opened(options) as device:
            how["max_texture_size"] = device.limits.max_texture_size
            how["kernels"] = kernels_for(device, config, weights)
            plan = plan_for(config, name, **how)
            plan.check_limits(device.limits)  # before random weights are generated
            check_textures_fit(plan, device)
            checkpoint = checkpoint or random_weights(config, name, weights, options["cache"])
            report = measured(checkpoint, plan, tokens, device, weights=weights_for(checkpoint, name, weights))
    plans = {each: report.table.total if each == name else _total(config, each, how) for each in PLANS}
    if as_json:
        print_json({**report.to_json(), "plans": plans})
    else:
        _show(report, _difference(plans, is_published(config, formats), measure and name == "reference"))
    if not report.agrees:
        raise click.exceptions.Exit(1)


def _total(config: ModelConfig, name: str, how: dict[str, Any]) -> int | None:
    """Count the draws of another plan in its default formats; None if the model has no such plan."""
    how = {key: value for key, value in how.items() if key not in ("weights", "cache")}
    try:
        return draw_table(plan_for(config, name, **how), how["tokens"]).total
    except GlinferError:
        return None


def _difference(plans: dict[str, int | None], published: bool, measured: bool) -> str:
    fast, reference = (plans[name] for name in ("fast", "reference"))
    if fast is None or reference is None:
        return f"only the {'reference' if fast is None else 'fast'} plan runs this model"
    passes = "published passes" if published else "unfused passes"
    return (
        f"fast plan {fast} draws/token (fused passes, cached keys and values) · reference plan "
        f"{'' if published or measured else 'about '}{reference} ({passes}, the whole sequence for each token)"
    )


_COLUMNS = (
    *(Column("pass", "kind"), Column("shader", "shader"), Column("draws", "count", "")),
    *(
        Column("output", lambda row: f"{row.cols}×{row.rows}" if row.shader else "", ""),
        Column("share", "share", ".1%"),
    ),
)


def _show(report: DrawReport, difference: str) -> None:
    total = DrawRow("total", "", report.table.total, 0, 0, 1.0)
    show_table(Table("Draws", _COLUMNS, report.table.rows, total))
    emit(
        f"plan {report.table.plan} · {report.table.total} draws/token · "
        f"sizes are columns×rows of the last matrix, for token {report.table.tokens} of a sequence"
    )
    emit(difference)
    if report.estimate:
        emit(
            "this is an estimate for a renderer with the simplest kernels; how many passes a norm or a product needs "
            "depends on the renderer. --measure counts them on this machine"
        )
    name, width, height = report.largest
    emit(f"textures: {sizes_text(report.texture_bytes)}; the largest is {name} with {width}×{height} texels")
    if report.issued is not None:
        verdict = "agrees with the plan" if report.agrees else "DIFFERS from the plan"
        emit(f"issued {report.issued} draw calls in a real run: {verdict} · {report.renderer}")
