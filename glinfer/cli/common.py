"""Options, readers, tables and progress bars shared by commands; tables and bars import rich when they are shown."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

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
from glinfer.engine.progress import Progress, StagedProgress, no_staged_progress
from glinfer.engine.report import plain
from glinfer.engine.run.oracle import EXECUTORS
from glinfer.errors import InputError
from glinfer.formats import Checkpoint, find_model
from glinfer.formats.files import decode_text, replacing, shown
from glinfer.formats.huggingface.config import read_config
from glinfer.gl.context import Device, Limits, open_device
from glinfer.hub import named_on_a_hub, title_of
from glinfer.inspect.tables import Column, Table
from glinfer.inspect.tables import megabytes as megabytes
from glinfer.lower.plans import (
    CACHES,
    DEFAULT_PLAN,
    DEFAULT_WEIGHTS,
    PLANS,
    USUAL_TEXTURE_SIZE,
    WEIGHTS,
    check_choice,
    plan_for,
)
from glinfer.quant.formats import DEFAULT_CACHE
from glinfer.terminal import HIDDEN, emit, printable

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod
    from rich.progress import ProgressColumn

Command = TypeVar("Command", bound=Callable[..., Any])
LIMITS = {"driver": None, "webgl2": Limits.webgl2_minimum()}
"""Values of ``--limits``."""


def out() -> Console:
    """Return a console on standard output, which leaves a closed pipe to the command group."""
    from rich.console import Console

    class Piped(Console):
        def on_broken_pipe(self) -> None:
            raise  # the error that rich has caught; rich would exit with status 1

    # Paths and renderer names are shown literally, without markup for "[x]" and ":x:".
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 110
    return Piped(highlight=False, markup=False, emoji=False, width=width)


def json_text(value: Any) -> str:
    """Format one JSON document; NaN and infinities become null, and control characters are escaped."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    return HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_json(value: Any) -> None:
    """Print one JSON document."""
    emit(json_text(value))


def show(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """Print a table of texts, see :func:`show_table`; columns in ``numbers`` are aligned right."""
    made = [Column(name, itemgetter(place), "" if name in numbers else None) for place, name in enumerate(columns)]
    show_table(Table("", made, list(rows)))


def show_table(made: Table, *, drop: Sequence[str] = ()) -> None:
    """Print a table, its total in bold; a table of unnamed columns has no header.

    Columns are at least as wide as their longest word or number, and the console as wide as its table; columns named
    in ``drop`` are omitted in this order if space is short.
    """
    from rich.cells import cell_len
    from rich.table import Table as ShownTable

    console, rows = out(), [[printable(cell) for cell in row] for row in made.texts()]
    texts = [[name, *(row[place] for row in rows)] for place, name in enumerate(made.names)]
    # Numbers do not wrap; their headings do.
    least = [
        max(map(cell_len, (*" ".join(cells).split(), *(cells[1:] if column.right else ()))), default=0)
        for column, cells in zip(made.columns, texts, strict=True)
    ]
    most = [max(cell_len(line) for cell in cells for line in cell.splitlines() or [""]) for cells in texts]
    kept = list(range(len(texts)))

    def total() -> int:
        return sum(least[place] for place in kept) + 2 * (len(kept) - 1)

    for name in drop:
        if total() > console.width:
            kept = [place for place in kept if made.names[place] != name]
    room = max(0, console.width - total())
    for place in sorted(kept, key=lambda place: most[place] - least[place]):
        given = min(room, most[place] - least[place])
        least[place], room = least[place] + given, room - given
    console.width = max(console.width, total())
    shown = ShownTable(box=None, pad_edge=False, header_style="bold", show_header=any(made.names))
    for place in kept:
        justify: JustifyMethod = "right" if made.columns[place].right else "left"
        shown.add_column(made.names[place], justify=justify, width=least[place], overflow="fold")
    styles = ["bold red" if made.alarming(item) else None for item in made.items]
    for row, style in zip(rows, [*styles, "bold"], strict=False):
        shown.add_row(*(row[place] for place in kept), style=style)
    console.print(shown)


def sizes_text(sizes: Mapping[str, int]) -> str:
    """List nonzero sizes: ``weight 12.0 MB, cache 512 B``."""
    return ", ".join(f"{name} {megabytes(size)}" for name, size in sizes.items() if size)


class NamedPath(click.Path):
    """The path of a file that is read twice, resumed or replaced, so that ``-`` is refused."""

    def __init__(self, what: str = "file") -> None:
        """Name what the path is of in errors."""
        super().__init__()
        self._what = what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse ``-``, which would be a file of that name."""
        if value == "-" and param is not None:
            raise InputError(f"{param.opts[-1]} needs a {self._what}, not standard input or output")
        return super().convert(value, param, ctx)


class Seconds(click.FloatRange):
    """A range of times, without infinity and NaN, which click would take."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse a number that is not finite."""
        found = super().convert(value, param, ctx)
        return found if math.isfinite(found) else self.fail(f"found {found}; expected a finite number", param, ctx)


def read_text(path: str) -> str:
    """Read UTF-8 text from a file, a pipe, or standard input (``-``); InputError if that fails."""
    if path == "-":
        return decode_text(sys.stdin.buffer.read(), "standard input")
    if path.lstrip().startswith(("{", "[")) and not os.path.lexists(path):
        raise InputError(f"found JSON, {shown(path)}; expected the name of a file that has it, or - for standard input")
    try:
        return decode_text(Path(path).read_bytes(), shown(path), "a text file")
    except (OSError, ValueError) as error:
        raise InputError(f"{shown(path)}: cannot read it: {getattr(error, 'strerror', None) or error}") from None


class _OnlyTriedError(Exception):
    """Rolls back a trial of writing a file."""


def check_writable(path: str) -> None:
    """Refuse a file that cannot be written, before anything is computed."""
    with suppress(_OnlyTriedError), replacing(path):
        raise _OnlyTriedError


def options(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Join options into one decorator; help lists them in this order."""

    def decorated(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorated


def params_of(*decorators: Callable[[Any], Any]) -> dict[str, click.Parameter]:
    """The parameters that decorators add to a command, by name, in the order of its help."""
    return {str(each.name): each for each in click.command()(options(*decorators)(lambda: None)).params}


def _device_or_list(context: click.Context, _: click.Parameter, value: str | None) -> str | None:
    if value != "list":
        return value
    from glinfer.inspect.info import list_devices

    devices = list_devices()
    # This eager option is processed before --json, so look for --json in the raw arguments.
    arguments = getattr(context.find_root().command, "arguments", ())
    if "--json" in arguments and any(each.name == "as_json" for each in context.command.params):
        print_json(devices)
        context.exit(0)
    kinds = {True: "software", False: "hardware"}
    rows = [(str(each.index), each.renderer or f"unusable: {each.problem}", kinds[each.software]) for each in devices]
    show(("device", "renderer", "kind"), rows, numbers=("device",))
    context.exit(0)
    return None


device_option = click.option(
    "--device",
    metavar="N|auto|list",
    is_eager=True,
    expose_value=True,
    callback=_device_or_list,
    help="EGL device to render on; 'list' lists all devices. Default: $GLINFER_DEVICE, else auto.",
)
"""The ``--device`` option."""
device_options = options(
    device_option,
    click.option(
        "--api",
        "--gl",  # the older name
        "api",
        type=click.Choice(["es", "desktop"]),
        help="OpenGL ES 3.0 through EGL (default) or desktop OpenGL 3.3.",
    ),
    click.option(
        "--limits",
        type=click.Choice(list(LIMITS)),
        default="driver",
        callback=lambda _, __, name: LIMITS[name],
        help="Limits: the driver's (default) or WebGL2's guaranteed minimum, without extensions.",
    ),
)
"""``--device``, ``--api`` and ``--limits``, whose value is Limits, or None for the driver's."""
cache_option = click.option(
    "--cache",
    type=click.Choice(CACHES),
    default=DEFAULT_CACHE,
    show_default=True,
    help="Format of the fast plan's key-value cache: floats, half floats (half the memory), or 8 bits with a scale per "
    "32 values (about a quarter).",
)
gelu_option = click.option(
    "--gelu", type=click.Choice(["tanh", "erf"]), help="Form of GELU. Default: the checkpoint's."
)
context_option = click.option(
    "--context",
    type=int,
    help="Maximum sequence length in tokens; each token takes memory. Default: the model's positions, at most "
    f"{USUAL_CONTEXT} if they are rotary.",
)
plan_option = click.option(
    "--plan",
    type=click.Choice(list(PLANS)),
    default=DEFAULT_PLAN,
    show_default=True,
    help="'fast' runs each token once; 'reference' runs the published passes over the whole sequence for every token.",
)
weights_option = click.option(
    "--weights",
    type=click.Choice(WEIGHTS),
    default=DEFAULT_WEIGHTS,
    show_default=True,
    help="Weight format: 'file' keeps the file's format; f32 and f16 are floats; formats with fewer bits are faster "
    "and less exact. 'auto' is q8 for GGUF blocks, else 'file'.",
)
model_options = options(plan_option, weights_option, cache_option, gelu_option, context_option)
"""``--plan``, ``--weights``, ``--cache``, ``--gelu`` and ``--context``."""


def split_name(text: str) -> tuple[str, str]:
    """Split ``NAME=PATH`` into (name, path); the name is empty if missing, or if ``text`` itself is a path.

    A name may contain slashes, as in ``org/name``.
    """
    name, _, path = text.partition("=")
    is_path = os.path.lexists(text) or name.startswith((".", "~", "/")) or name.endswith("/") or "\\" in name
    return ("", text) if is_path or not name or not path else (name, path)


def _named_paths(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
    """Map the names of ``--lora`` to paths, for :func:`glinfer.engine.loading.load_model`."""
    found: dict[str, str] = {}
    for value in values:
        name, path = split_name(value)
        name = name or DEFAULT_ADAPTER
        if name in found:
            what = "without a name" if name == DEFAULT_ADAPTER else f"with the name {name}"
            raise InputError(f"found two adapters {what}; give each its own name: --lora NAME={shown(path)}")
        found[name] = path
    return found or None


lora_option = click.option(
    "--lora",
    multiple=True,
    metavar="[NAME=]DIR",
    callback=_named_paths,
    help="LoRA adapter: a PEFT directory or a GGUF file. Repeatable, with a NAME for each.",
)
"""``--lora``: adapters by name."""


def one_adapter(given: dict[str, Any]) -> None:
    """Apply the only adapter whatever its name, for commands that write one text; InputError if there are several."""
    if given["lora"] is not None:
        if len(given["lora"]) > 1:
            raise InputError(f"found {len(given['lora'])} adapters; expected one for the whole text; give --lora once")
        (given["lora"],) = given["lora"].values()


cache_limit_options = options(
    click.option("--memory", type=click.IntRange(1), metavar="MiB", help="Limit for a model's caches. Default: 1024."),
    click.option("--piece", type=click.IntRange(1), help="Prompt tokens processed between decode steps. Default: 512."),
)
"""``--memory`` and ``--piece`` of commands that answer requests."""


def take_scheduler(given: dict[str, Any]) -> dict[str, Any]:
    """Remove ``slots``, ``memory`` and ``piece`` from ``given``; return them for SchedulerOptions."""
    taken = {name: given.pop(name) for name in ("slots", "memory", "piece")}
    return taken | {"memory": None if taken["memory"] is None else taken["memory"] << 20}


tokenizer_option = click.option(
    "--tokenizer",
    type=click.Path(),
    help="Tokenizer: a .bpe file, a tokenizer.json or its directory, or a .gguf file, whose chat template is used too. "
    "Default: the one in or next to the model, if it matches.",
)
mmproj_option = click.option(
    "--mmproj",
    type=click.Path(),
    metavar="FILE",
    help="llama.cpp's image encoder of a .gguf model. Default: the only mmproj file beside it.",
)
image_option = click.option(
    "--image",
    "images",
    type=click.Path(),
    multiple=True,
    metavar="FILE",
    help="Image for the user's first message, if the model takes images. Repeatable.",
)
strict_option = click.option(
    "--strict",
    is_flag=True,
    help="Stop at NaN or infinite logits and name the pass that produced them. Default: warn once and never choose "
    "such tokens.",
)
executor_option = click.option(
    "--executor",
    type=click.Choice(EXECUTORS),
    default="gl",
    help="Backend for the plan's passes: OpenGL (default) or float64 NumPy, which is slow but needs no renderer.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
config_option = click.option(
    "--config",
    "config_text",
    help="Shape to use instead of a MODEL: gab, gift_of_gab, a config.json, or values such as blocks=6,heads=8. "
    "Further keys: dim, vocab, context, family, kv_heads, inner; defaults are Gab's.",
)


def opened(options: Mapping[str, Any]) -> Device:
    """Open the device that :data:`device_options` name."""
    return open_device(options["device"], api=options["api"], limits=options["limits"])


def loaded(path: str, **options: Any) -> Model:
    """Load a model with a command's options, and show a progress bar for the upload."""
    how = {name: value for name, value in options.items() if name not in ("tokenizer", "strict", "lora")}
    found = fetched(path, tell=say, **how)  # before the bar, because a download shows its own
    with progress("uploading weights") as advance:
        return load_model(found, on_upload=advance, **options)


def model_title(name: str) -> str:
    """Shorten a model name that a user gave, for titles."""
    wanted = named_on_a_hub(name)
    if wanted is None:
        return title_of(find_model(name))
    return f"{wanted.repo.rpartition('/')[2]}{f':{wanted.quant}' if wanted.quant else ''}"


def say(line: str) -> None:
    """Print a line on standard error."""
    emit(line, err=True)


def say_written(*paths: str | None) -> None:
    """Name the files that options asked for, after the output."""
    for path in filter(None, paths):
        say(f"wrote {path}")


@contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Show a transient bar on a terminal's standard error within the block."""
    with stage_bars() as advance:
        advance(what, 0, 0)
        yield partial(advance, what)


def bar_columns() -> tuple[ProgressColumn, ...]:
    """Make the columns of a bar: stage, bar, percentage and elapsed time."""
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

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
    if not sys.stderr.isatty():
        yield no_staged_progress
        return
    from rich.console import Console
    from rich.progress import Progress as ProgressBar

    console = Console(stderr=True)
    # Redirected, the bar would write through PrintableStream, which shows signs of its escapes.
    with ProgressBar(*bar_columns(), console=console, transient=True, redirect_stderr=False) as bar:
        task = bar.add_task("", total=None)
        yield lambda stage, done, total: bar.update(
            task, description=printable(stage), completed=done, total=total or None
        )


def shape_asked_for(text: str, options: Mapping[str, Any]) -> ModelConfig:
    """Parse ``--config``, a path to a config.json or numbers such as ``blocks=6,heads=8``; apply gelu and context.

    ConfigError for inconsistent numbers, FormatError for a file that cannot be read or an unknown kind of model.
    """
    config = read_config(Path(text)) if text.endswith(".json") else ModelConfig.from_options(text)
    return usual_context(config.with_gelu(options["gelu"]), options["context"])


def planned_edge(limits: Limits | None) -> int:
    """Return the maximum texture size, by ``--limits``, of plans built without a renderer."""
    return USUAL_TEXTURE_SIZE if limits is None else limits.max_texture_size


def check_one_source(model: str | None, config_text: str | None, *, needed: bool = True) -> None:
    """Refuse a MODEL together with ``--config``; if ``needed``, require one of them (InputError)."""
    if one_of({"a MODEL": model, "--config": config_text}) is None and needed:
        raise InputError("found neither a MODEL nor --config; give one of them")


def one_of(values: Mapping[str, Any]) -> str | None:
    """Return the name of the value that is given; None if all are None; InputError if two are given."""
    found = [name for name, value in values.items() if value is not None]
    if len(found) > 1:
        raise InputError(f"found both {found[0]} and {found[1]}; give one of them")
    return found[0] if found else None


def model_or_shape(model: str | None, config_text: str | None, options: Mapping[str, Any]) -> Checkpoint:
    """Load the checkpoint of a MODEL, or make random weights of the shape of ``--config`` if its plan fits textures.

    InputError for both or neither, or without such a plan; PlanError for a shape too large, before weights are made.
    """
    check_one_source(model, config_text)
    plan, how = options["plan"], {name: options[name] for name in ("weights", "cache")}
    check_choice(plan, **how)
    if model is not None:
        return read_model(model, gelu=options["gelu"], context=options["context"])[1]
    config = shape_asked_for(config_text or "", options)
    plan_for(config, plan, **how, max_texture_size=planned_edge(options["limits"]))
    return random_weights(config, plan, **how)


def parse_ids(text: str, what: str = "token ids") -> list[int]:
    """Parse whole numbers such as ``13,132,251``; ``what`` names them in the InputError for other text."""
    numbers = []
    for part in filter(None, map(str.strip, text.split(","))):
        try:
            numbers.append(int(part))
        except ValueError:
            found = part if len(part) <= 40 else f"{part[:40]}…"
            raise InputError(f"found {found!r} in the {what}; expected whole numbers such as 13,132,251") from None
    return numbers


def user_message(images: Sequence[str], text: object) -> dict[str, Any]:
    """A user's message of a text about images."""
    parts = [{"type": "image", "image": image} for image in images]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}
