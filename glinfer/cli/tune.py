"""``glinfer tune``: find the fastest kernel options of a model on this renderer."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from glinfer.cli import options as opt
from glinfer.cli.bench import formats_of, path_of
from glinfer.cli.common import opened, print_json, progress, show, show_table
from glinfer.engine.loading import read_model
from glinfer.engine.report import plain
from glinfer.errors import counted
from glinfer.formats import Checkpoint
from glinfer.gl.context import Device, open_device
from glinfer.inspect.info import software_device
from glinfer.inspect.tables import Column, Table
from glinfer.inspect.tune.kernels import tune
from glinfer.limits import MAX_TUNE_SECONDS
from glinfer.lower.plans import DEFAULT_WEIGHTS, weights_named
from glinfer.program.tuning import (
    TuningKey,
    default_for,
    file_to_write,
    kernels_file,
    load_tuned,
    runs_on,
    save_kernels,
)
from glinfer.terminal import emit


@click.command("tune")
@click.argument("model", type=opt.FILE, required=False)
@click.option("--weights", metavar="F[,F…]", default=DEFAULT_WEIGHTS, show_default=True, help="Weight formats to tune.")
@click.option("--redo", is_flag=True, help="Search again even if a tuned choice is saved.")
@click.option(
    "--seconds",
    type=opt.Seconds(0, MAX_TUNE_SECONDS, min_open=True, max_open=True),
    default=30.0,
    show_default=True,
    help="Approximate time limit of a search: two thirds for single tokens, the rest for prompts.",
)
@opt.device_options
@opt.json_option
def tune_command(model: str | None, weights: str, redo: bool, seconds: float, as_json: bool, **options: Any) -> None:
    """Find and show the fastest kernel options of the fast plan for MODEL on this renderer.

    Options for single tokens are chosen by the time of a token, then options for many rows by the time of a prompt. The
    prompt has 512 tokens, or fills a shorter context. The choice is saved in the cache folder for this renderer,
    driver, model shape and weight format; every later load uses it, and this command then shows it without a search.
    Tuning does not change results: a choice must compute the same logits as the simplest options. Without MODEL, Gab's
    full shape is tuned with the random weights of 'glinfer demo'. A new choice for a GPU is also compared with the
    software renderer, if there is one.

    \b
    glinfer tune shakespeare --weights f32,q8
    glinfer tune shakespeare --redo --seconds 60
    """
    _, checkpoint = read_model(path_of(model))
    checkpoint.check_finite()
    formats = [weights_named(name, checkpoint.formats()) for name in formats_of(weights)]
    with opened(options) as device:
        found = [_tuned(device, checkpoint, name, seconds, redo) for name in formats]
        defaults = [default_for(device, name) for name in formats]
    if as_json:
        print_json(found)
        return
    for tuned, default in zip(found, defaults, strict=True):
        _show(tuned, dataclasses.asdict(default))


def _tuned(device: Device, checkpoint: Checkpoint, weights: str, seconds: float, redo: bool) -> dict[str, Any]:
    """Return the saved choice, or search for one; as JSON values."""
    key = TuningKey.of(device, checkpoint.config, weights)
    kept, report = load_tuned(key), None
    tuned = None if redo or kept is None or not runs_on(device, kept.kernels) else kept
    path = kernels_file(key)
    if tuned is None:
        file_to_write(key)  # else the search could not be kept
        with progress(f"tuning {weights}") as advance:
            report = tune(device, checkpoint, weights, seconds=seconds, on_progress=advance)
        tuned = report.tuned
        save_kernels(key, tuned)
    searched = ("finished", "prompt", "seconds", "trials")
    return {
        "weights": weights,
        **dataclasses.asdict(tuned),
        "file": None if path is None else str(path),
        "searched": report is not None,
        **{name: plain(getattr(report, name, [] if name == "trials" else None)) for name in searched},
        "software": None if report is None else _on_software(device, checkpoint, weights),
        "renderer": device.description,
    }


def _on_software(device: Device, checkpoint: Checkpoint, weights: str) -> dict[str, Any] | None:
    """The time of a token on the software renderer, to compare with a GPU; None if there is none."""
    index = None if device.in_main_memory else software_device()
    if index is None:
        return None
    with open_device(index, api="es") as other:
        tuned = tune(other, checkpoint, weights, seconds=_SOFTWARE_SECONDS).tuned
        return {"device": index, "milliseconds": tuned.milliseconds, "renderer": other.description}


_SOFTWARE_SECONDS = 2.0
_TRIALS = (
    Column("change", lambda trial: ", ".join(f"{name} {value}" for name, value in trial["change"].items())),
    Column("time", lambda trial: trial["ratio"], ".0%"),
    Column("verdict", lambda trial: trial["verdict"]),
)


def _show(tuned: dict[str, Any], default: dict[str, Any]) -> None:
    if tuned["searched"]:
        show_table(Table("Trials", _TRIALS, tuned["trials"]))
        ended = "until nothing was faster" if tuned["finished"] else "until the time limit"
        emit(f"{counted(len(tuned['trials']), 'trial')} in {tuned['seconds']:.0f} s, {ended}\n")
    rows: list[tuple[str, ...]] = [(name, str(value), str(default[name])) for name, value in tuned["kernels"].items()]
    rows.append(("ms/token", f"{tuned['milliseconds']:.3f}", f"{tuned['default_milliseconds']:.3f}"))
    if tuned["prompt"] is not None:
        tokens, *times = tuned["prompt"].values()
        rows.append((f"ms/prompt of {tokens} tokens", *(f"{milliseconds:.2f}" for milliseconds in times)))
    show((f"weights {tuned['weights']}", "tuned", "default"), rows)
    if (software := tuned["software"]) is not None:
        faster = (
            f"; use it with --device {software['device']}" if software["milliseconds"] < tuned["milliseconds"] else ""
        )
        emit(f"\n{software['milliseconds']:.3f} ms/token on {software['renderer']}{faster}")
    where = "not saved: GLINFER_CACHE is empty" if tuned["file"] is None else f"saved in {tuned['file']}"
    emit(f"\n{where} · {tuned['renderer']}\n")
