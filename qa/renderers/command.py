"""``python -m qa renderers``: the same checks on every renderer that can be had here, each in its own environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from glinfer.cli.common import print_json, read_text, show_table, stage_bars
from glinfer.cli.options import json_option
from glinfer.engine.progress import StagedProgress
from glinfer.errors import InputError
from glinfer.inspect.tables import Column, Table
from qa.renderers.browsers import check_browser
from qa.renderers.environments import MissingError, launcher, make, variables
from qa.renderers.table import COLUMNS, Cell, Renderer, Row, chosen, row_of, with_bits
from qa.steps import ROOT, StepError

Texts = Mapping[str, Sequence[Sequence[int]]]
_CELLS = "qa.renderers.cells"
_NEWER = "GLIBC_"
_NO_REPORT = "this is not a report to compare with; expected what 'python -m qa renderers --json' prints"


@click.command("renderers")
@click.option("--row", "patterns", multiple=True, metavar="NAME", help="Only rows that match '*zink*'. Repeatable.")
@click.option("--against", type=click.Path(), help="A report printed by --json; compare with its first row instead.")
@json_option
def renderers_command(patterns: tuple[str, ...], against: str | None, as_json: bool) -> None:
    """Run goldens, texts, batches, draws and kernels on every renderer, and compare them with the first, bit for bit.

    Rows are the Mesa versions of several systems with llvmpipe, softpipe and zink, with OpenGL ES and desktop OpenGL,
    an NVIDIA GPU, and exported sites in Chromium, Firefox and WebKitGTK. The systems' packages are downloaded and
    unpacked under .cache/renderers (300 MB each); nothing is installed. Rows that cannot run here are skipped with a
    reason. The exit status is 1 if a check fails, or if bits differ that must be equal.

    \b
    python -m qa renderers
    python -m qa renderers --row 'debian-13/*' --row firefox/llvmpipe
    python -m qa renderers --json > here.json        then on another machine:
    python -m qa renderers --row 'nvidia/*' --against here.json
    """
    selected = chosen(patterns)
    first = None if against is None else first_row(read_text(against))
    if first is not None and patterns:
        selected = [each for each in selected if each.name != first.name]
    with stage_bars() as advance:
        rows = list(run_all(selected, first, advance))
    if as_json:
        print_json({"passed": not any(row.failed for row in rows), "rows": [asdict(row) for row in rows]})
    else:
        _show(rows)
    if any(row.failed for row in rows):
        raise click.exceptions.Exit(1)


def first_row(report: str) -> Row:
    """Read the first row that ran of a report that was printed as JSON.

    Raises:
        InputError: the document is not a report.
    """
    try:
        rows = [row_of(each) for each in json.loads(report)["rows"] if not each["problem"]]
        rows[0].texts["shakespeare"]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise InputError(_NO_REPORT) from None
    return rows[0]


def run_all(selected: Sequence[Renderer], first: Row | None, advance: StagedProgress) -> Iterator[Row]:
    """Run the checks of each renderer; the first that runs is what the others are compared with."""
    for number, renderer in enumerate(selected, start=1):
        advance(f"{number} of {len(selected)}: {renderer.name}", 0, len(COLUMNS))
        row = run_one(renderer, {} if first is None else first.texts, advance)
        if first is None and not row.problem and row.texts:
            first = row
        yield row if first is None else with_bits(renderer, row, first.bits)


def run_one(renderer: Renderer, texts: Texts, advance: StagedProgress) -> Row:
    """Run the checks of one renderer; what is missing, and a process that dies, becomes a row."""
    row, said = Row(renderer.name, renderer.title, renderer.api), dict[str, Cell]()
    try:
        lines = check_browser(renderer, texts) if renderer.browsers else _process(renderer, texts)
        for line in lines:
            if "renderer" in line:
                row = replace(row, renderer=line["renderer"])
                if not all(words in row.renderer for words in renderer.expects):
                    return replace(row, problem=f"not tried: {row.renderer} opens instead")
            else:
                said[line["check"]] = Cell(**line)
                advance(renderer.name, len(said), len(COLUMNS))
    except MissingError as error:
        return replace(row, problem=f"not tried: {error}")
    except StepError as error:
        problem = f"not tried: {error}; it needs the network, and a mirror that has this release"
        return replace(row, problem=problem)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        named = next((check for check in COLUMNS if check not in said), COLUMNS[0])
        said[named] = Cell(named, False, str(error))
    return replace(row, cells=said)


def _process(renderer: Renderer, texts: Texts) -> Iterator[Mapping[str, Any]]:
    """The lines that a process in the renderer's environment prints.

    Raises:
        MissingError: there is no such environment, or no such renderer.
        RuntimeError: the process died.
    """
    command, environment = [sys.executable], {**os.environ, **renderer.variables}
    if renderer.system is not None:
        root = make(renderer.system)
        command, environment = launcher(root), {**environment, **variables(root)}
    environment |= {"GLINFER_API": renderer.api, "GLINFER_CACHE": "", "PYTHONPATH": str(ROOT)}
    environment.setdefault("LP_NUM_THREADS", "0")  # the cells of a row are small
    asked = {"api": renderer.api, "expects": renderer.expects, "tokens": renderer.tokens, "texts": texts}
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([*command, "-m", _CELLS], **pipes, text=True, cwd=ROOT, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(json.dumps(asked))
        process.stdin.close()
        begun = False
        for line in process.stdout:
            begun = True
            yield json.loads(line)
        lines = process.stderr.read().strip().splitlines() or ["it said nothing"]
    if process.returncode and not begun:
        raise MissingError(_why(lines))
    if process.returncode:
        raise RuntimeError(f"the process ended with status {process.returncode}: {lines[-1]}")


def _why(lines: Sequence[str]) -> str:
    """One line of what a process said that opened nothing."""
    if any(_NEWER in line for line in lines):
        return f"{Path(sys.executable).name} needs a newer C library than this system has"
    return lines[-1].removeprefix("glinfer.errors.").removeprefix("ContextError: ")


def _words(row: Row, check: str) -> str:
    """What a check of a renderer found; for one that was not tried the reason, in the first column."""
    if row.problem:
        return row.problem if check == COLUMNS[0] else ""
    words = row.cells[check].words if check in row.cells else "–"
    return f"WRONG: {words}" if check in row.failed else words


def _show(rows: Sequence[Row]) -> None:
    checks = (Column(check, partial(_words, check=check)) for check in COLUMNS)
    columns = (Column("renderer", "title"), Column("API", "api"), *checks)
    show_table(Table("Renderers", columns, rows, alarming=lambda row: bool(row.failed)))
    for row in rows:
        if row.renderer:
            click.echo(f"{row.name}: {row.renderer}")
    tried, wrong = [row for row in rows if not row.problem], [row for row in rows if row.failed]
    verdict = f"{len(wrong)} WRONG" if wrong else "all as expected"
    click.echo(f"\n{len(tried)} of {len(rows)} renderers tried, {verdict}")
