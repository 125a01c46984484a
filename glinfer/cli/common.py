"""Shared parts of the commands: options, opening devices and models, progress, tables, JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from glinfer.config import ModelConfig
from glinfer.engine.loading import USUAL_CONTEXT, load_model, random_weights, read_model, usual_context
from glinfer.engine.model import Model
from glinfer.errors import InputError
from glinfer.formats import Checkpoint
from glinfer.formats.huggingface.config import read_config
from glinfer.gl.context import Device, Limits, open_device
from glinfer.inspect.info import list_devices
from glinfer.models.choice import AUTO, CACHES, DEFAULT_PLAN, DEFAULT_WEIGHTS, PLANS, USUAL_TEXTURE_SIZE, WEIGHTS
from glinfer.quant.formats import DEFAULT_CACHE

Command = TypeVar("Command", bound=Callable[..., Any])
LIMITS = {"driver": None, "webgl2": Limits.webgl2_minimum()}
"""The limits for each value of ``--limits``."""


def out() -> Console:
    """A console for tables and text on standard output."""
    # Paths and renderer names are shown as they are: "[x]" and ":x:" are no markup in them.
    width = None if sys.stdout.isatty() else 110
    return Console(highlight=False, markup=False, emoji=False, width=width)


def json_text(value: Any) -> str:
    """Format one JSON document; NaN and infinities, which JSON lacks, become null."""
    return json.dumps(_without_infinities(value), indent=2, ensure_ascii=False, allow_nan=False)


def print_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    click.echo(json_text(value))


def _without_infinities(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_infinities(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_infinities(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """Make an empty table; the columns named in ``numbers`` are right-aligned."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return made


def megabytes(count: int) -> str:
    """Format a number of bytes for people."""
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{count:,} B"


def device_options(command: Command) -> Command:
    """Add ``--device``, ``--gl`` (as ``api``) and ``--limits``."""
    for option in (
        click.option(
            "--limits",
            type=click.Choice(list(LIMITS)),
            default="driver",
            help="Lay textures out within the driver's limits, or within WebGL2's guaranteed minimum.",
        ),
        click.option(
            "--gl",
            "api",
            type=click.Choice(["es", "desktop"]),
            help="OpenGL ES 3.0 through EGL (default), or desktop OpenGL 3.3.",
        ),
        click.option(
            "--device",
            metavar="N|auto|list",
            is_eager=True,
            expose_value=True,
            callback=_device_or_list,
            help="Which EGL device to render on; 'list' shows them. Default: $GLINFER_DEVICE, else auto.",
        ),
    ):
        command = option(command)
    return command


def _device_or_list(context: click.Context, _: click.Parameter, value: str | None) -> str | None:
    if value != "list":
        return value
    shown = table("device", "renderer", "kind", numbers=("device",))
    for entry in list_devices():
        kind = "software" if entry.software else "hardware"
        shown.add_row(str(entry.index), entry.renderer or f"unusable: {entry.problem}", kind)
    out().print(shown)
    context.exit(0)
    return None


def cache_option(command: Command) -> Command:
    """Add ``--cache``."""
    return click.option(
        "--cache",
        type=click.Choice(CACHES),
        default=DEFAULT_CACHE,
        show_default=True,
        help="How the fast plan keeps keys and values: as floats, or in half floats, which take half the memory.",
    )(command)


def model_options(command: Command) -> Command:
    """Add ``--plan``, ``--weights``, ``--cache``, ``--context`` and ``--gelu``."""
    for option in (
        click.option(
            "--context",
            type=int,
            help="Tokens of the longest sequence, which takes memory for each. Default: all of the model's positions, "
            f"but at most {USUAL_CONTEXT} where they are rotary.",
        ),
        click.option(
            "--gelu",
            type=click.Choice(["tanh", "erf"]),
            help="The form of GELU. Default: the checkpoint's own.",
        ),
        cache_option,
        click.option(
            "--weights",
            type=click.Choice([*WEIGHTS, AUTO]),
            default=DEFAULT_WEIGHTS,
            show_default=True,
            help="How weights are kept: as the file has them, as floats, or in fewer bits, which are faster and less "
            "exact. 'auto' takes the fastest that predicts within 0.1% of f32.",
        ),
        click.option(
            "--plan",
            type=click.Choice(list(PLANS)),
            default=DEFAULT_PLAN,
            show_default=True,
            help="'fast' runs each token once, 'reference' the published passes over the whole sequence each time.",
        ),
    ):
        command = option(command)
    return command


def tokenizer_option(command: Command) -> Command:
    """Add ``--tokenizer``."""
    return click.option(
        "--tokenizer",
        type=click.Path(),
        help="A .bpe or tokenizer.json file. Default: the one beside the model, if it fits.",
    )(command)


def strict_option(command: Command) -> Command:
    """Add ``--strict``."""
    return click.option(
        "--strict",
        is_flag=True,
        help="Stop where the model computes NaN or infinite logits, and say in which pass they began. Without it they "
        "are warned of once, and such tokens are never chosen.",
    )(command)


def json_option(command: Command) -> Command:
    """Add ``--json`` (as ``as_json``)."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")(command)


def opened(device: str | None, api: str | None, limits: str) -> Device:
    """Open the device that the options ask for."""
    return open_device(device, api=api, limits=LIMITS[limits])


def loaded(path: str, *, limits: str, **options: Any) -> Model:
    """Load a model by the options of a command, with a progress bar while its weights are uploaded."""
    with progress("uploading weights") as advance:
        return load_model(path, limits=LIMITS[limits], on_upload=advance, **options)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal's standard error; yields a function that takes (done, total)."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None  # a Progress that is disabled writes an empty line in older versions of rich
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task: TaskID = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def shape_of(text: str) -> ModelConfig:
    """Read ``--config``: a path to a config.json, or numbers such as ``blocks=6,heads=8``.

    Raises:
        ConfigError: the numbers make up no model.
        FormatError: the file cannot be read, or describes no model that runs here.
    """
    return read_config(Path(text)) if text.endswith(".json") else ModelConfig.from_options(text)


def config_option(command: Command) -> Command:
    """Add ``--config`` (as ``config_text``)."""
    return click.option(
        "--config",
        "config_text",
        help="A shape instead of a MODEL: a config.json, or blocks=6,heads=8,dim=512,vocab=5256,context=2048 with "
        "family=llama, kv_heads, inner and so on; what is left out is as in Gab.",
    )(command)


def shape_asked_for(config_text: str, options: Mapping[str, Any]) -> ModelConfig:
    """Read ``--config``, with the form of GELU and the context of the options."""
    return usual_context(shape_of(config_text).with_gelu(options["gelu"]), options["context"])


def planned_edge(limits: str) -> int:
    """The texture size limit for plans that are only counted, by ``--limits``."""
    least = LIMITS[limits]
    return USUAL_TEXTURE_SIZE if least is None else least.max_texture_size


def check_one_source(model: str | None, config_text: str | None, *, needed: bool = True) -> None:
    """Refuse a MODEL and ``--config`` together, and if one is ``needed`` neither.

    Raises:
        InputError: both are given, or neither.
    """
    if (model is not None and config_text is not None) or (needed and model is None and config_text is None):
        raise InputError("give either a MODEL or --config, and not both")


def model_or_shape(model: str | None, config_text: str | None, options: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint of a command that takes a MODEL, or ``--config`` for random weights of that shape.

    Raises:
        InputError: both are given, or neither.
    """
    check_one_source(model, config_text)
    if model is not None:
        return read_model(model, gelu=options["gelu"], context=options["context"])[1]
    how = (options[name] for name in ("plan", "weights", "cache"))
    return random_weights(shape_asked_for(config_text or "", options), *how)


def parse_ids(text: str, what: str = "token ids") -> list[int]:
    """Parse whole numbers such as ``13,132,251``; ``what`` they are is for messages.

    Raises:
        InputError: something between the commas is not a whole number.
    """
    numbers = []
    for part in filter(None, map(str.strip, text.split(","))):
        try:
            numbers.append(int(part))
        except ValueError:
            found = part if len(part) <= 40 else f"{part[:40]}…"
            raise InputError(f"found {found!r} in the {what}; expected whole numbers such as 13,132,251") from None
    return numbers
