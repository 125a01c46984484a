"""``glinfer info``: the renderer of this machine, and the needs of a model."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from glinfer.cli.common import (
    device_options,
    json_option,
    megabytes,
    model_options,
    opened,
    out,
    print_json,
    table,
)
from glinfer.engine.loading import read_model
from glinfer.errors import ContextError
from glinfer.formats import Checkpoint
from glinfer.inspect.info import EXTENSIONS, RendererReport, model_report, renderer_report
from glinfer.models.choice import check_choice


@click.command()
@click.argument("model", type=click.Path(), required=False)
@model_options
@device_options
@json_option
def info(model: str | None, as_json: bool, **options: Any) -> None:
    """Show the renderer, its limits, and whether glinfer can run here; with MODEL, what it needs.

    When it cannot run, one line says what is missing and how to install it, and the exit status is 2; what
    MODEL needs is told nevertheless, on a renderer with usual limits.
    """
    how = {name: options[name] for name in ("plan", "weights", "cache")}
    check_choice(**how)
    checkpoint = None if model is None else read_model(model, gelu=options["gelu"], context=options["context"])[1]
    about = None
    try:
        with opened(options["device"], options["api"], options["limits"]) as device:
            report = renderer_report(device)
            if checkpoint is not None:
                about = model_report(checkpoint, device=device, **how)
    except ContextError as error:
        if checkpoint is not None:
            about = model_report(checkpoint, device=None, **how)
        if as_json:
            print_json({"can_run": False, "problem": str(error), "model": about})
        elif about is not None and checkpoint is not None:
            _show_model(checkpoint, about, "fits usual limits")
        raise
    if as_json:
        print_json({**report.to_json(), "model": about})
        return
    _show_renderer(report)
    if about is not None and checkpoint is not None:
        click.echo()
        _show_model(checkpoint, about)


def _show_renderer(report: RendererReport) -> None:
    flavour = "OpenGL ES through EGL" if report.api == "es" else "desktop OpenGL through glcontext"
    shown = table("", "")
    shown.show_header = False
    for name, value in (
        ("renderer", report.renderer),
        ("vendor", report.vendor),
        ("version", report.version),
        ("context", flavour),
    ):
        shown.add_row(name, value)
    for name, present in report.extensions.items():
        shown.add_row(name, f"{'yes' if present else 'no '}  {EXTENSIONS[name]}")
    out().print(shown)
    click.echo()
    limits = table("limit", "here", "WebGL2 guarantees", numbers=("here", "WebGL2 guarantees"))
    for field in dataclasses.fields(report.limits):
        here, least = getattr(report.limits, field.name), getattr(report.webgl2_minimum, field.name)
        limits.add_row(field.name.replace("_", " "), f"{here:g}", f"{least:g}")
    out().print(limits)
    click.echo("\nglinfer can run here")


def _show_model(checkpoint: Checkpoint, about: dict[str, Any], fits: str = "fits this renderer") -> None:
    shown = table("", "")
    shown.show_header = False
    shown.add_row("model", checkpoint.source)
    for name, value in about["config"].items():
        shown.add_row(name, str(value))
    shown.add_row("tensors", ", ".join(f"{count} in {name}" for name, count in about["formats"].items()))
    shown.add_row("parameters", f"{about['parameters']:,}")
    cache = f", cache in {about['cache']}" if about["plan"] == "fast" else ""
    shown.add_row("plan", f"{about['plan']}, weights in {about['weights']}{cache}")
    if about["draws"] is not None:
        shown.add_row("draws/token", str(about["draws"]))
    for kind, count in about["texture_bytes"].items():
        shown.add_row(f"{kind} textures", megabytes(count))
    shown.add_row(fits, "yes" if about["fits"] else f"no: {about['problem']}")
    out().print(shown)
