"""``glinfer generate --batch``: prompts of a file run together, results into another file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from glinfer.batch.files import (
    BatchTotals,
    FinishedLines,
    ResultFile,
    check_out,
    check_prompts,
    file_digest,
    read_batch,
    read_finished,
    run_batch,
)
from glinfer.cli.common import loaded, options, print_json, progress
from glinfer.engine.defaults import default_sampling, merged
from glinfer.errors import InputError
from glinfer.formats import find_model
from glinfer.formats.files import shown
from glinfer.text.assembler import TextAssembler

_OPTIONS = ("batch", "out", "restart", "slots", "memory")


batch_options = options(
    click.option("--batch", type=click.Path(), metavar="FILE", help="Prompts, a JSON object a line. Needs --out."),
    click.option("--out", type=click.Path(), help="With --batch: the file for the results; a later run goes on."),
    click.option("--restart", is_flag=True, help="With --batch: discard what OUT has, and start over."),
    click.option("--slots", type=click.IntRange(min=1), help="With --batch: how many prompts at once."),
    click.option("--memory", type=click.IntRange(min=1), metavar="MB", help="With --batch: for caches, at most."),
)
"""``--batch`` and its options."""


@dataclass(frozen=True)
class BatchChoice:
    """Values of ``--batch`` and its options."""

    batch: str
    out: str
    restart: bool
    slots: int | None
    memory: int | None


def take_batch(given_options: dict[str, Any], *, single: bool) -> BatchChoice | None:
    """Take these options out of ``given_options``; None without ``--batch``. ``single`` tells of a PROMPT or ``--ids``.

    Raises:
        InputError: options are missing or contradict each other.
    """
    given = {name: given_options.pop(name) for name in _OPTIONS}
    if given["batch"] is None:
        for name, value in given.items():
            if value not in (None, False):
                raise InputError(f"--{name} belongs to --batch FILE; give both or neither")
        return None
    if single:
        raise InputError("--batch takes its prompts from a file; leave out PROMPT and --ids")
    if given["batch"] == "-":
        raise InputError("--batch needs a file, not standard input: a run that was stopped reads it again")
    if given["out"] is None:
        raise InputError("--batch needs --out FILE for the results")
    return BatchChoice(**given)


def generate_batch(
    model: str,
    choice: BatchChoice,
    *,
    max_tokens: int,
    stop: tuple[str, ...],
    sampling: Mapping[str, Any],
    as_json: bool,
    quiet: bool,
    **model_options: Any,
) -> None:
    """Check what needs no model, then load it and finish the remaining prompts."""
    TextAssembler(stop)  # a bad --stop is no line's fault
    chosen = dataclasses.asdict(merged(default_sampling(model), sampling))
    defaults = {"max_tokens": max_tokens, "stop": stop, "stop_ids": None, **chosen}
    lines = read_batch(choice.batch, defaults)
    check_out(choice.out, choice.batch)
    files = (find_model(model), model_options["tokenizer"])
    made_with = (
        *(None if path is None else file_digest(path) for path in files),
        *(model_options[name] for name in ("weights", "cache", "gelu", "context")),
    )
    finished = FinishedLines() if choice.restart else read_finished(choice.out, choice.batch, lines, made_with)
    before = len(finished.keys)
    todo = [line for line in lines if line.key not in finished.keys]
    totals = BatchTotals()
    told: dict[str, Any] = {name: model_options[name] for name in ("plan", "weights", "cache")} | {"renderer": None}
    results = ResultFile(choice.out, finished)
    if todo:
        with loaded(model, **model_options) as opened:
            told |= {"weights": opened.weights, "renderer": opened.device.description}
            with progress("checking prompts") as advance:
                check_prompts(opened, todo, choice.batch, advance)
            try:
                with results, progress("generating") as advance:
                    advance(before, len(lines))
                    run_batch(
                        opened,
                        todo,
                        results,
                        totals,
                        made_with=made_with,
                        slots=choice.slots,
                        memory=None if choice.memory is None else choice.memory * 1_000_000,
                        on_progress=lambda done, _: advance(before + done, len(lines)),
                    )
            except KeyboardInterrupt:
                if not quiet:
                    click.echo(_interrupted(choice, results.lines, len(lines)), err=True)
                raise
    else:
        with results:
            results.open()  # which cuts off half a line
    if as_json:
        print_json(_summary(choice, totals, before, told))
    elif not quiet:
        click.echo(_closing(choice, totals, before, told["renderer"]), err=True)


def _interrupted(choice: BatchChoice, done: int, total: int) -> str:
    again = "the same command without --restart" if choice.restart else "the same command"
    return f"interrupted: {done} of {total} lines are finished in {shown(choice.out)}; {again} goes on"


def _closing(choice: BatchChoice, totals: BatchTotals, before: int, renderer: str | None) -> str:
    if renderer is None:
        return f"nothing to do: all lines are finished in {shown(choice.out)}; --restart starts over"
    parts = [
        f"{totals.lines} line{'' if totals.lines == 1 else 's'} done" + (f", {before} before" if before else ""),
        f"{totals.tokens} tokens",
        f"{totals.tokens_per_second:.2f} tok/s",
        f"{totals.draws} draws",
        renderer,
    ]
    if totals.dropped:
        parts.insert(0, f"contexts were full: the oldest {totals.dropped} tokens were dropped")
    return " · ".join(parts)


def _summary(choice: BatchChoice, totals: BatchTotals, before: int, told: dict[str, Any]) -> dict[str, Any]:
    return {
        "batch": choice.batch,
        "out": choice.out,
        "finished_before": before,
        **dataclasses.asdict(totals),
        "tokens_per_second": totals.tokens_per_second,
        **told,
    }
