"""``glinfer info``: show this machine's renderer and a model's requirements."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import click

from glinfer.cli import options as opt
from glinfer.cli.common import megabytes, opened, print_json, show
from glinfer.engine.fetching import described_model, named_source, origin_report
from glinfer.engine.loading import for_use
from glinfer.errors import ContextError, GLError
from glinfer.formats import Checkpoint, load_checkpoint
from glinfer.gl.context import Device
from glinfer.gl.pretend import PRETENCES, open_pretended
from glinfer.gl.self_test import failure
from glinfer.inspect.info import EXTENSIONS, RendererReport, advice, model_report, renderer_report, text_report
from glinfer.lower.plans import check_choice
from glinfer.terminal import emit


@click.command()
@click.argument("model", type=opt.FILE, required=False)
@opt.model_options
@opt.device_options
@click.option(
    "--pretend",
    type=click.Choice(list(PRETENCES)),
    metavar="NAME",
    help="Pretend a device without extensions (webgl2), or one with a fault.",
)
@opt.json_option
def info(model: str | None, as_json: bool, **options: Any) -> None:
    """Show the renderer, its limits, and whether glinfer can run here; with MODEL, also its requirements.

    If glinfer cannot run, one line reports what is missing and how to install it, and the exit status is 2. MODEL's
    requirements are then shown for a renderer with typical limits.
    """
    how = {name: options[name] for name in ("plan", "weights", "cache")}
    check_choice(**how)
    checkpoint: Checkpoint | None = None
    facts: dict[str, Any] = {}
    with contextlib.ExitStack() as held:
        if model is not None:
            path = held.enter_context(described_model(model)).path
            whole = named_source(load_checkpoint(path), model)
            checkpoint = for_use(whole, gelu=options["gelu"], context=options["context"])
            how["positions"] = whole.config.max_position_embeddings
            facts = {**text_report(path, checkpoint.config), "origin": origin_report(checkpoint)}

        def model_on(device: Device | None) -> dict[str, Any] | None:
            return None if checkpoint is None else {**model_report(checkpoint, device=device, **how), **facts}

        try:
            with _opened(options) as device:
                report, about = renderer_report(device), model_on(device)
                hint = "" if as_json or report.self_test else advice(device)
        except ContextError as error:
            about = model_on(None)
            if as_json:
                print_json({"can_run": False, "problem": str(error), "model": about})
            elif about is not None and checkpoint is not None:
                _show_model(checkpoint, about, "fits typical limits")
            raise
    if as_json:
        print_json({**report.to_json(), "model": about})
        return
    _show_renderer(report)
    if hint:
        emit(hint)
    if about is not None and checkpoint is not None:
        emit()
        _show_model(checkpoint, about)
    if report.self_test:
        raise GLError(failure(report.renderer, report.self_test))


def _opened(options: dict[str, Any]) -> Device:
    if options["pretend"] is None:
        return opened(options)
    device = options["device"] or "0"
    if not device.isdecimal():
        raise ContextError(f"found the device {device!r}; --pretend expects a number from 'glinfer info --device list'")
    return open_pretended(options["pretend"], int(device))


def _show_renderer(report: RendererReport) -> None:
    facts = {
        "renderer": report.renderer,
        "vendor": report.vendor,
        "version": report.version,
        "context": "OpenGL ES through EGL" if report.api == "es" else "desktop OpenGL through glcontext",
    }
    present = {name: f"{'yes' if found else 'no '}  {EXTENSIONS[name]}" for name, found in report.extensions.items()}
    tests = {f"test of {name}": f"failed: {why}" for name, why in report.self_test.items()}
    tests |= {} if tests else {"self-test": "passed"}
    show(("", ""), [*facts.items(), *present.items(), *tests.items()])
    emit()
    here, least = dataclasses.asdict(report.limits), dataclasses.asdict(report.webgl2_minimum)
    rows = [(name.replace("_", " "), _number(here[name]), _number(least[name])) for name in here]
    show(("limit", "here", "WebGL2 guarantees"), rows, numbers=("here", "WebGL2 guarantees"))
    if report.can_run:
        emit("\nglinfer can run here")


def _number(value: float) -> str:
    return ("no", "yes")[value] if isinstance(value, bool) else f"{value:g}"


def _show_model(checkpoint: Checkpoint, about: dict[str, Any], fits: str = "fits this renderer") -> None:
    rows = {"model": checkpoint.source}
    if origin := about["origin"]:
        rows["from"] = f"{origin['repo']} at {origin['commit']}, {origin['file']}"
    rows |= {name: str(value) for name, value in about["config"].items()}
    rows |= {"context": _context(about), **dict(_around(about))}
    rows["tensors"] = ", ".join(f"{count} in {name}" for name, count in about["formats"].items())
    rows["parameters"] = f"{about['parameters']:,}"
    cache = f", cache in {about['cache']}" if about["plan"] == "fast" else ""
    rows["plan"] = f"{about['plan']}, weights in {about['weights']}{cache}"
    if about["draws"] is not None:
        estimate = " (an estimate for a renderer with the simplest kernels)" if about["draws_are_an_estimate"] else ""
        rows["draws/token"] = f"{about['draws']}{estimate}"
    rows |= {f"{kind} textures": megabytes(count) for kind, count in about["texture_bytes"].items()}
    rows[fits] = "yes" if about["fits"] else f"no: {about['problem']}"
    show(("", ""), rows.items())


def _context(about: dict[str, Any]) -> str:
    context, positions = about["context"], about["config"]["max_position_embeddings"]
    if context == positions:
        return f"{context} tokens, all positions of the model"
    return f"{context} of the model's {positions} positions; --context changes this"


def _around(about: dict[str, Any]) -> Iterator[tuple[str, str]]:
    tokenizer, chat = about["tokenizer"], about["chat"]
    if tokenizer is None:
        yield "tokenizer", f"no: {about['tokenizer_problem']}"
    else:
        yield "tokenizer", f"{tokenizer['kind']}, {tokenizer['tokens']:,} tokens"
        yield "chat template", f"{chat['form']}, from {chat['from']}" if chat["form"] else f"no: {chat['problem']}"
    ends = ", ".join(f"{token['text']} ({token['id']})".lstrip() for token in about["end_tokens"])
    yield "end tokens", ends or about.get("end_tokens_problem", "none")
    sampling = ", ".join(f"{name} {value}" for name, value in about["sampling"].items())
    yield "sampling", sampling or about.get("sampling_problem", "none in its files")
