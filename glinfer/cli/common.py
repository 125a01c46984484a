"""Options, readers, tables and progress bars shared by commands."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar
from rich.table import Column, Table

from glinfer.config import ModelConfig
from glinfer.engine.loading import (
    DEFAULT_ADAPTER,
    USUAL_CONTEXT,
    fetched,
    load_model,
    random_weights,
    read_model,
    usual_context,
)
from glinfer.engine.model import Model
from glinfer.engine.oracle import EXECUTORS
from glinfer.engine.progress import Progress, StagedProgress, no_staged_progress
from glinfer.engine.report import plain
from glinfer.errors import InputError
from glinfer.formats import Checkpoint, find_model
from glinfer.formats.files import decode_text, shown
from glinfer.formats.huggingface.config import read_config
from glinfer.gl.context import Device, Limits, open_device
from glinfer.hub import named_on_a_hub, title_of
from glinfer.inspect.info import list_devices
from glinfer.inspect.report import Table as ReportTable
from glinfer.inspect.report import megabytes as megabytes
from glinfer.models.choice import CACHES, DEFAULT_PLAN, DEFAULT_WEIGHTS, PLANS, USUAL_TEXTURE_SIZE, WEIGHTS
from glinfer.quant.formats import DEFAULT_CACHE
from glinfer.terminal import HIDDEN, emit, printable

Command = TypeVar("Command", bound=Callable[..., Any])
LIMITS = {"driver": None, "webgl2": Limits.webgl2_minimum()}
"""Values of ``--limits``."""


def out() -> Console:
    """Return a console on standard output."""
    # Paths and renderer names are shown literally, without markup for "[x]" and ":x:".
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 110
    return _Console(highlight=False, markup=False, emoji=False, width=width)


class _Console(Console):
    """A console whose tables fit, and that leaves a closed pipe to the command line, which ends all commands alike."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; a table that needs more than the width makes the console wider, so that no name is broken."""
        for each in objects:
            if isinstance(each, FittedTable):
                self.width = max(self.width, each.fit(self.width))
        super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        """Raise the error again that rich has caught; by itself rich exits with status 1."""
        raise


class FittedTable(Table):
    """A table whose columns are never narrower than a word, or a number, in them."""

    def __init__(self, drop: Sequence[str] = ()) -> None:
        """Make a table without columns; those named in ``drop`` are left out, in this order, where room is short."""
        super().__init__(box=None, pad_edge=False, header_style="bold")
        self._drop = list(drop)

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row, its texts printable in a pipe too."""
        super().add_row(*(printable(each) if isinstance(each, str) else each for each in cells), **options)

    def fit(self, width: int) -> int:
        """Choose columns and their widths for lines of ``width`` characters; returns what they take."""
        for name in self._drop:
            if _total(map(_least, self.columns)) > width:
                self.columns = [column for column in self.columns if column.header != name]
        for place, column in enumerate(self.columns):
            column._index = place
        widths = [_least(column) for column in self.columns]
        room = max(0, width - _total(widths))
        for column, least in sorted(zip(self.columns, widths, strict=True), key=lambda each: _most(each[0]) - each[1]):
            given = min(room, _most(column) - least)
            column.width, room = least + given, room - given
        return _total(column.width or 0 for column in self.columns)


def _total(widths: Iterable[int]) -> int:
    """The width of a table, whose columns are two characters apart."""
    each = list(widths)
    return sum(each) + 2 * (len(each) - 1)


def _least(column: Column) -> int:
    """The width of the longest word of a column, or of its longest number, which is not wrapped."""
    cells = list(map(str, column.cells))
    words = [word for text in (str(column.header), *cells) for word in text.split()]
    return max(map(cell_len, (*words, *(cells if column.justify == "right" else ()))), default=0)


def _most(column: Column) -> int:
    texts = (str(column.header), *map(str, column.cells))
    return max(cell_len(line) for text in texts for line in (text.splitlines() or [""]))


def json_text(value: Any) -> str:
    """Format one JSON document; NaN and infinities become null, and what a terminal obeys its JSON escape."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    return HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_json(value: Any) -> None:
    """Print one JSON document."""
    emit(json_text(value))


def table(*columns: str, numbers: tuple[str, ...] = (), drop: Sequence[str] = ()) -> Table:
    """Make an empty table; columns named in ``numbers`` are right-aligned, those in ``drop`` go where room is short."""
    made = FittedTable(drop)
    for column in columns:
        made.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return made


def number_table(*columns: str) -> Table:
    """Make an empty table of numbers."""
    return table(*columns, numbers=columns)


def show_table(made: ReportTable, *, drop: Sequence[str] = ()) -> None:
    """Print the table of a report, its total in bold; columns named in ``drop`` are left out where room is short."""
    names = tuple(column.name for column in made.columns)
    shown = table(*names, numbers=tuple(column.name for column in made.columns if column.right), drop=drop)
    for row in made.rows:
        shown.add_row(*(cell.text for cell in row))
    if made.total:
        shown.add_row(*(cell.text for cell in made.total), style="bold")
    out().print(shown)


def sizes_text(sizes: Mapping[str, int]) -> str:
    """List sizes that are not 0: ``weight 12.0 MB, cache 512 B``."""
    return ", ".join(f"{name} {megabytes(size)}" for name, size in sizes.items() if size)


def read_text(path: str) -> str:
    """Read a text from a file, a pipe, or standard input (``-``), as :func:`glinfer.formats.files.decode_text` does.

    Raises:
        InputError: it cannot be read, or is not UTF-8.
    """
    if path == "-":
        return decode_text(sys.stdin.buffer.read(), "standard input")
    try:
        return decode_text(Path(path).read_bytes(), shown(path), "a text file")
    except (OSError, ValueError) as error:
        raise InputError(f"{shown(path)}: cannot read it: {getattr(error, 'strerror', None) or error}") from None


def options(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Join options into one decorator; help lists them in this order."""

    def decorated(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorated


def _device_or_list(context: click.Context, _: click.Parameter, value: str | None) -> str | None:
    if value != "list":
        return value
    devices = list_devices()
    # This option is looked at before --json, so the arguments are asked.
    arguments = getattr(context.find_root().command, "arguments", ())
    if "--json" in arguments and any(each.name == "as_json" for each in context.command.params):
        print_json(devices)
        context.exit(0)
    shown = table("device", "renderer", "kind", numbers=("device",))
    for entry in devices:
        kind = "software" if entry.software else "hardware"
        shown.add_row(str(entry.index), entry.renderer or f"unusable: {entry.problem}", kind)
    out().print(shown)
    context.exit(0)
    return None


device_option = click.option(
    "--device",
    metavar="N|auto|list",
    is_eager=True,
    expose_value=True,
    callback=_device_or_list,
    help="Which EGL device to render on; 'list' shows them. Default: $GLINFER_DEVICE, else auto.",
)
"""``--device`` alone."""
device_options = options(
    device_option,
    click.option(
        "--api",
        "--gl",  # the older name
        "api",
        type=click.Choice(["es", "desktop"]),
        help="OpenGL ES 3.0 through EGL (default), or desktop OpenGL 3.3.",
    ),
    click.option(
        "--limits",
        type=click.Choice(list(LIMITS)),
        default="driver",
        help="Lay textures out within the driver's limits, or within WebGL2's guaranteed minimum.",
    ),
)
"""``--device``, ``--api`` and ``--limits``."""
cache_option = click.option(
    "--cache",
    type=click.Choice(CACHES),
    default=DEFAULT_CACHE,
    show_default=True,
    help="How the fast plan keeps keys and values: as floats, in half floats, which take half the memory, or in 8 bits "
    "with a scale for each 32, which take about a quarter.",
)
gelu_option = click.option(
    "--gelu", type=click.Choice(["tanh", "erf"]), help="The form of GELU. Default: the checkpoint's own."
)
CONTEXT_HELP = f"all of the model's positions, but at most {USUAL_CONTEXT} where they are rotary."
context_option = click.option(
    "--context", type=int, help=f"Tokens of the longest sequence, which takes memory for each. Default: {CONTEXT_HELP}"
)
plan_option = click.option(
    "--plan",
    type=click.Choice(list(PLANS)),
    default=DEFAULT_PLAN,
    show_default=True,
    help="'fast' runs each token once, 'reference' the published passes over the whole sequence each time.",
)
weights_option = click.option(
    "--weights",
    type=click.Choice(WEIGHTS),
    default=DEFAULT_WEIGHTS,
    show_default=True,
    help="How weights are kept: as the file has them, as floats, or in fewer bits, which are faster and less exact. "
    "'auto' is q8 for GGUF blocks, and otherwise the file's format.",
)
model_options = options(plan_option, weights_option, cache_option, gelu_option, context_option)
"""``--plan``, ``--weights``, ``--cache``, ``--gelu`` and ``--context``."""


def split_name(text: str) -> tuple[str, str]:
    """(NAME, PATH) of ``NAME=PATH``; the name is empty where there is none, and where ``text`` itself is a path.

    A name may have slashes between its parts, as ``org/name`` has.
    """
    name, _, path = text.partition("=")
    is_path = os.path.lexists(text) or name.startswith((".", "~", "/")) or name.endswith("/") or "\\" in name
    return ("", text) if is_path or not name or not path else (name, path)


def _named_paths(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    """The adapters of ``--lora`` by name, as :func:`glinfer.engine.loading.load_model` takes them."""
    found: dict[str, str] = {}
    for value in values:
        name, path = split_name(value)
        name = name or DEFAULT_ADAPTER
        if name in found:
            what = "without a name" if name == DEFAULT_ADAPTER else f"with the name {name}"
            raise InputError(f"found two adapters {what}; give each a name of its own: --lora NAME={shown(path)}")
        found[name] = path
    return found or None


lora_option = click.option(
    "--lora",
    multiple=True,
    metavar="[NAME=]DIR",
    callback=_named_paths,
    help="A LoRA adapter beside the weights: PEFT's directory, or a GGUF file; may be given several times, with names.",
)
"""``--lora``: adapters by name."""


def one_adapter(given: dict[str, Any]) -> None:
    """Let the one adapter of a command that writes one text at a time be that of the text, whatever its name.

    Raises:
        InputError: there are several.
    """
    if given["lora"] is not None:
        if len(given["lora"]) > 1:
            raise InputError(f"found {len(given['lora'])} adapters; expected one, as all text here has the same")
        (given["lora"],) = given["lora"].values()


tokenizer_option = click.option(
    "--tokenizer",
    type=click.Path(),
    help="A .bpe, a tokenizer.json or its directory, or a .gguf, which brings its chat template too. Default: the one "
    "in or beside the model, if it fits.",
)
strict_option = click.option(
    "--strict",
    is_flag=True,
    help="Stop where the model computes NaN or infinite logits, and say in which pass they began. Without it they "
    "are warned of once, and such tokens are never chosen.",
)
executor_option = click.option(
    "--executor",
    type=click.Choice(EXECUTORS),
    default="gl",
    help="What computes the plan's passes: OpenGL (default), or float64 NumPy, which is slow and needs no renderer.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
config_option = click.option(
    "--config",
    "config_text",
    help="A shape instead of a MODEL: gab, gift_of_gab, a config.json, or blocks=6,heads=8,dim=512,vocab=5256,"
    "context=2048 with family=llama, kv_heads, inner and so on; what is left out is as in Gab.",
)


def opened(device: str | None, api: str | None, limits: str) -> Device:
    """Open the device that the options name."""
    return open_device(device, api=api, limits=LIMITS[limits])


def loaded(path: str, *, limits: str, **options: Any) -> Model:
    """Load a model by the options of a command, with a progress bar while its weights are uploaded."""
    options["limits"] = LIMITS[limits]
    how = {name: value for name, value in options.items() if name not in ("tokenizer", "strict", "lora")}
    found = fetched(path, tell=say, **how)  # before a bar is shown, as a download has one of its own
    with progress("uploading weights") as advance, _uncollected():
        return load_model(found, on_upload=advance, **options)


def model_title(name: str) -> str:
    """A short name for a model by the name that a user gave."""
    wanted = named_on_a_hub(name)
    if wanted is None:
        return title_of(find_model(name))
    return f"{wanted.repo.rpartition('/')[2]}{f':{wanted.quant}' if wanted.quant else ''}"


def say(line: str) -> None:
    """Show a line beside the output of a command."""
    emit(line, err=True)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Spare the garbage collector, which would go through a vocabulary's strings again and again while they come."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Show a transient bar on a terminal's standard error within the block."""
    with stage_bars() as advance:
        advance(what, 0, 0)
        yield partial(advance, what)


def bar_columns() -> tuple[ProgressColumn, ...]:
    """Make the columns of a bar: what is done, how far, as long as that is known, and for how long already."""
    return (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("elapsed"),
    )


@contextmanager
def stage_bars() -> Iterator[StagedProgress]:
    """Show a transient bar for the current stage on a terminal's standard error within the block."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield no_staged_progress  # a bar that is disabled writes an empty line in older versions of rich
        return
    with ProgressBar(*bar_columns(), console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda stage, done, total: bar.update(
            task, description=printable(stage), completed=done, total=total or None
        )


def shape_of(text: str) -> ModelConfig:
    """Parse ``--config``: a path to a config.json, or numbers such as ``blocks=6,heads=8``.

    Raises:
        ConfigError: the numbers are inconsistent.
        FormatError: the file cannot be read, or describes an unknown kind of model.
    """
    return read_config(Path(text)) if text.endswith(".json") else ModelConfig.from_options(text)


def shape_asked_for(config_text: str, options: Mapping[str, Any]) -> ModelConfig:
    """Parse ``--config``, with the form of GELU and the context of the options."""
    return usual_context(shape_of(config_text).with_gelu(options["gelu"]), options["context"])


def planned_edge(limits: str) -> int:
    """Return the texture size of plans that are only counted, by ``--limits``."""
    least = LIMITS[limits]
    return USUAL_TEXTURE_SIZE if least is None else least.max_texture_size


def check_one_source(model: str | None, config_text: str | None, *, needed: bool = True) -> None:
    """Refuse a MODEL and ``--config`` together, and if one is ``needed`` neither.

    Raises:
        InputError: both are given, or neither.
    """
    if model is not None and config_text is not None:
        raise InputError("found both a MODEL and --config; give one of them")
    if needed and model is None and config_text is None:
        raise InputError("found neither a MODEL nor --config; give one of them")


def model_or_shape(model: str | None, config_text: str | None, options: Mapping[str, Any]) -> Checkpoint:
    """Load the checkpoint of a MODEL, or make random weights of the shape of ``--config``.

    Raises:
        InputError: both are given, or neither.
    """
    check_one_source(model, config_text)
    if model is not None:
        return read_model(model, gelu=options["gelu"], context=options["context"])[1]
    how = (options[name] for name in ("plan", "weights", "cache"))
    return random_weights(shape_asked_for(config_text or "", options), *how)


def parse_ids(text: str, what: str = "token ids") -> list[int]:
    """Parse whole numbers such as ``13,132,251``; ``what`` names them in errors.

    Raises:
        InputError: a part between the commas is not a whole number.
    """
    numbers = []
    for part in filter(None, map(str.strip, text.split(","))):
        try:
            numbers.append(int(part))
        except ValueError:
            found = part if len(part) <= 40 else f"{part[:40]}…"
            raise InputError(f"found {found!r} in the {what}; expected whole numbers such as 13,132,251") from None
    return numbers
