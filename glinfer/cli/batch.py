"""``glinfer generate --batch``: run the prompts of a file together and write the results to another file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from glinfer.batch.job import BatchFiles, BatchJob, BatchTotals
from glinfer.batch.manifest import file_digest
from glinfer.batch.prompts import PromptForm, PromptLine, PromptRunner, check_prompts
from glinfer.cli.common import loaded, options, print_json, progress, say
from glinfer.engine.batch import MAX_SLOTS
from glinfer.engine.defaults import default_sampling, merged
from glinfer.engine.fetching import found_model
from glinfer.engine.model import Model
from glinfer.errors import InputError
from glinfer.formats.files import shown
from glinfer.structured.structure import OPTIONS
from glinfer.terminal import emit
from glinfer.text.assembler import TextAssembler

_OPTIONS = ("batch", "out", "restart", "slots", "memory")


batch_options = options(
    click.option("--batch", type=click.Path(), metavar="FILE", help="File of prompts, one JSON object a line."),
    click.option("--out", type=click.Path(), help="With --batch: file for the results; a later run resumes."),
    click.option("--restart", is_flag=True, help="With --batch: discard the results in OUT and start over."),
    click.option("--slots", type=click.IntRange(min=1), help="With --batch: number of prompts to run at once."),
    click.option("--memory", type=click.IntRange(min=1), metavar="MB", help="With --batch: memory limit for caches."),
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
    """Remove these options from ``given_options``; None without ``--batch``. ``single``: a prompt is given too.

    Raises:
        InputError: options are missing or contradict each other.
    """
    given = {name: given_options.pop(name) for name in _OPTIONS}
    if given["batch"] is None:
        for name, value in given.items():
            if value not in (None, False):
                raise InputError(f"--{name} needs --batch FILE; give both or neither")
        return None
    if single:
        raise InputError("--batch reads its prompts from a file; leave out PROMPT, --file and --ids")
    if given["batch"] == "-":
        raise InputError("--batch needs a file, not standard input: a resumed run reads it again")
    if given["out"] is None:
        raise InputError("--batch needs --out FILE for the results")
    return BatchChoice(**given)


def generate_batch(
    model: str,
    choice: BatchChoice,
    *,
    max_tokens: int,
    stop: tuple[str, ...],
    keep: int,
    structured: Mapping[str, Any],
    sampling: Mapping[str, Any],
    as_json: bool,
    quiet: bool,
    **model_options: Any,
) -> None:
    """Check the options, then load the model and run the remaining prompts."""
    TextAssembler(stop)  # refuse a bad --stop before any line is read
    structure: dict[str, Any] = {kind: value for kind, value in structured.items() if kind in OPTIONS}
    model = os.fspath(found_model(model, tell=say))
    chosen = dataclasses.asdict(merged(default_sampling(model), sampling))
    defaults = {"max_tokens": max_tokens, "stop": stop, "stop_ids": None, **structure, **chosen}
    defaults |= {"keep": keep} if keep else {}  # absent from digests of older results
    paths = (model, model_options["tokenizer"])
    digests = [None if path is None else file_digest(path) for path in paths]
    how = {name: model_options[name] for name in ("weights", "cache", "gelu", "context")}
    if model_options["lora"]:  # the unnamed one is for lines that name none
        how["lora"] = {name: file_digest(path) for name, path in model_options["lora"].items()}
    files = BatchFiles(choice.batch, choice.out, restart=choice.restart)
    fingerprint = {"form": "prompts", "model": digests[0], "tokenizer": digests[1], **how}
    form = PromptForm(defaults, (*digests, *how.values()))
    told: dict[str, Any] = {name: model_options[name] for name in ("plan", "weights", "cache")} | {"renderer": None}
    with BatchJob(form, files, fingerprint, manifest_required=False) as job:
        if job.left:
            with loaded(model, **model_options) as opened:
                told |= {"weights": opened.weights, "renderer": opened.device.description}
                _run(opened, job, choice, quiet=quiet)
        else:
            job.finish()
    totals, before = job.totals, job.before
    if as_json:
        print_json(_summary(choice, totals, before, told))
    elif not quiet:
        emit(_closing(choice, totals, before, told["renderer"]), err=True)


def _run(opened: Model, job: BatchJob[PromptLine], choice: BatchChoice, *, quiet: bool) -> None:
    with progress("checking prompts") as advance:
        longest = check_prompts(opened, job.todo(), job.left, choice.batch, advance)
    memory = None if choice.memory is None else choice.memory * 1_000_000
    runner = PromptRunner(opened, min(choice.slots or MAX_SLOTS, job.left), memory, longest)
    try:
        with progress("generating") as advance:
            advance(job.before, job.count)
            job.run(runner, on_progress=advance, draws=lambda: opened.device.draws_issued)
    except KeyboardInterrupt:
        if not quiet:
            emit(_interrupted(choice, job.results.lines, job.count), err=True)
        raise


def _interrupted(choice: BatchChoice, done: int, total: int) -> str:
    again = "the same command without --restart" if choice.restart else "the same command"
    return f"interrupted: {shown(choice.out)} has {done} of {total} results; {again} resumes"


def _closing(choice: BatchChoice, totals: BatchTotals, before: int, renderer: str | None) -> str:
    if renderer is None:
        return f"nothing to do: {shown(choice.out)} has all results; --restart starts over"
    parts = [
        lines_done(totals.lines, before),
        f"{totals.tokens} tokens",
        f"{totals.tokens_per_second:.2f} tok/s",
        f"{totals.draws} draws",
        renderer,
    ]
    if totals.dropped:
        parts.insert(0, f"contexts full: dropped the oldest {totals.dropped} tokens")
    return " · ".join(parts)


def lines_done(lines: int, before: int) -> str:
    """Describe how many lines this run and earlier runs have done."""
    return f"{lines} line{'' if lines == 1 else 's'} done" + (f", {before} earlier" if before else "")


def _summary(choice: BatchChoice, totals: BatchTotals, before: int, told: dict[str, Any]) -> dict[str, Any]:
    counts = dataclasses.asdict(totals)
    del counts["failed"]  # an invalid prompt stops the whole run
    return {
        "batch": choice.batch,
        "out": choice.out,
        "finished_before": before,
        **counts,
        "tokens_per_second": totals.tokens_per_second,
        **told,
    }
