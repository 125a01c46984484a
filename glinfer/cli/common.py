"""Readers, tables and progress bars that commands share; tables and bars import rich when they are shown."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glinfer.config import ModelConfig
from glinfer.engine.loading import fetched, load_model, random_weights, read_model, usual_context
from glinfer.engine.model import Model
from glinfer.engine.progress import Progress, StagedProgress
from glinfer.engine.report import plain
from glinfer.errors import InputError
from glinfer.formats import Checkpoint, find_model
from glinfer.formats.files import decode_text, replacing, shown, unread
from glinfer.formats.huggingface.config import read_config
from glinfer.gl.context import Device, Limits, open_device
from glinfer.hub import named_on_a_hub, title_of
from glinfer.inspect.tables import Column, Table
from glinfer.inspect.tables import megabytes as megabytes
from glinfer.lower.plans import USUAL_TEXTURE_SIZE, check_choice, plan_for
from glinfer.terminal import HIDDEN, emit, printable

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod
    from rich.progress import ProgressColumn


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
    made = [Column(name, itemgetter(index), "" if name in numbers else None) for index, name in enumerate(columns)]
    show_table(Table("", made, list(rows)))


def show_table(made: Table, *, drop: Sequence[str] = ()) -> None:
    """Print a table, its total in bold; a table of unnamed columns has no header.

    Columns are at least as wide as their longest word or number, and the console as wide as its table; columns named
    in ``drop`` are omitted in this order if space is short.
    """
    from rich.cells import cell_len
    from rich.table import Table as ShownTable

    console, rows = out(), [[printable(cell) for cell in row] for row in made.texts()]
    texts = [[name, *(row[index] for row in rows)] for index, name in enumerate(made.names)]
    # Numbers do not wrap; their headings do.
    least = [
        max(map(cell_len, (*" ".join(cells).split(), *(cells[1:] if column.right else ()))), default=0)
        for column, cells in zip(made.columns, texts, strict=True)
    ]
    most = [max(cell_len(line) for cell in cells for line in cell.splitlines() or [""]) for cells in texts]
    kept = list(range(len(texts)))

    def total() -> int:
        return sum(least[index] for index in kept) + 2 * (len(kept) - 1)

    for name in drop:
        if total() > console.width:
            kept = [index for index in kept if made.names[index] != name]
    room = max(0, console.width - total())
    for index in sorted(kept, key=lambda index: most[index] - least[index]):
        given = min(room, most[index] - least[index])
        least[index], room = least[index] + given, room - given
    console.width = max(console.width, total())
    shown = ShownTable(box=None, pad_edge=False, header_style="bold", show_header=any(made.names))
    for index in kept:
        justify: JustifyMethod = "right" if made.columns[index].right else "left"
        shown.add_column(made.names[index], justify=justify, width=least[index], overflow="fold")
    styles = ["bold red" if made.alarming(item) else None for item in made.items]
    for row, style in zip(rows, [*styles, "bold"], strict=False):
        shown.add_row(*(row[index] for index in kept), style=style)
    console.print(shown)


def sizes_text(sizes: Mapping[str, int]) -> str:
    """List nonzero sizes: ``weight 12.0 MB, cache 512 B``."""
    return ", ".join(f"{name} {megabytes(size)}" for name, size in sizes.items() if size)


def read_text(path: str) -> str:
    """Read UTF-8 text from a file, a pipe, or standard input (``-``); InputError if that fails."""
    if path == "-":
        return decode_text(sys.stdin.buffer.read(), "standard input")
    if path.lstrip().startswith(("{", "[")) and not os.path.lexists(path):
        raise InputError(f"found JSON, {shown(path)}; expected the name of a file that has it, or - for standard input")
    try:
        return decode_text(Path(path).read_bytes(), shown(path), "a text file")
    except OSError as error:
        raise InputError(unread(path, error)) from None
    except ValueError as error:
        raise InputError(f"{shown(path)}: cannot read it: {error}") from None


class _OnlyTriedError(Exception):
    """Rolls back a trial of writing a file."""


def check_writable(path: str) -> None:
    """Refuse a file that cannot be written, before anything is computed."""
    with suppress(_OnlyTriedError), replacing(path):
        raise _OnlyTriedError


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


_LINE_SECONDS = 30.0
"""The time between two lines of progress where standard error is not a terminal."""


class _Lines:
    def __init__(self) -> None:
        self._since = time.monotonic()

    def advance(self, stage: str, done: int, total: int) -> None:
        if total and (now := time.monotonic()) - self._since >= _LINE_SECONDS:
            self._since = now
            say(f"{stage}: {done / total:.0%}")


@contextmanager
def stage_bars() -> Iterator[StagedProgress]:
    """Show a transient bar for the current stage on a terminal's standard error; elsewhere a line now and then."""
    if not sys.stderr.isatty():
        yield _Lines().advance
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


def shape_from_options(text: str, gelu: str | None, context: int | None) -> ModelConfig:
    """Parse ``--config``, a path to a config.json or numbers such as ``blocks=6,heads=8``; apply gelu and context.

    ConfigError for inconsistent numbers, FormatError for a file that cannot be read or an unknown kind of model.
    """
    config = read_config(Path(text)) if text.endswith(".json") else ModelConfig.from_options(text)
    return usual_context(config.with_gelu(gelu), context)


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
    config = shape_from_options(config_text or "", options["gelu"], options["context"])
    plan_for(config, plan, **how, max_texture_size=planned_edge(options["limits"]))
    return random_weights(config, plan, **how)


def parse_ids(text: str, what: str = "token ids") -> list[int]:
    """Parse integers such as ``13,132,251``; ``what`` names them in the InputError for other text."""
    numbers = []
    for part in filter(None, map(str.strip, text.split(","))):
        try:
            numbers.append(int(part))
        except ValueError:
            found = part if len(part) <= 40 else f"{part[:40]}…"
            raise InputError(f"found {found!r} in the {what}; expected integers such as 13,132,251") from None
    return numbers


@contextmanager
def opened_drafts(model: Model, drafts: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the options for :meth:`glinfer.engine.model.Model.stream`, with the draft model open on the same device."""
    if "draft" not in drafts:
        yield dict(drafts)
        return
    with loaded(drafts["draft"], device=model.device) as other:
        yield {"draft": other}
