"""The bar, the closing line and the totals of commands that run the lines of a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from glinfer.cli.common import progress, say
from glinfer.errors import counted
from glinfer.formats.files import AnyPath, shown
from glinfer.jobs.job import BatchFiles, BatchJob


def run_job(job: BatchJob, files: BatchFiles, runner: Any, what: str, draws: Callable[[], int], *, quiet: bool) -> None:
    """Run the remaining lines under a bar; after Ctrl-C say how to resume."""
    try:
        with progress(what) as advance:
            advance(job.before, job.count)
            job.run(runner, on_progress=advance, draws=draws)
    except KeyboardInterrupt:
        if not quiet:
            say_interrupted(files.out, job.written, job.count, restart=files.restart)
        raise


def say_interrupted(out: AnyPath, done: int, count: int, *, restart: bool) -> None:
    """After Ctrl-C say how many of ``count`` results are in the file ``out``, and how to resume."""
    again = "the same command without --restart" if restart else "the same command"
    say(f"interrupted: {shown(out)} has {done} of {counted(count, 'result')}; {again} resumes")


def closing_line(job: BatchJob, files: BatchFiles, renderer: str | None, *, draws: bool = False) -> str:
    """Describe what was done; without a ``renderer`` nothing was left to do."""
    totals = job.totals
    if renderer is None:
        return f"nothing to do: {shown(files.out)} has all results; --restart starts over"
    before = f", {job.before} earlier" if job.before else ""
    parts = (
        f"contexts full: dropped the oldest {counted(totals.dropped, 'token')}" if totals.dropped else "",
        f"{counted(totals.lines, 'line')} done{before}",
        f"{totals.failed} failed, see {shown(files.errors or files.out)}" if totals.failed else "",
        counted(totals.tokens, "token"),
        f"{totals.tokens_per_second:.2f} tok/s",
        counted(totals.draws, "draw") if draws else "",
        renderer,
    )
    return " · ".join(filter(None, parts))


def job_facts(job: BatchJob, left_out: str) -> dict[str, Any]:
    """The totals of a job for JSON, without the one named ``left_out``."""
    totals = dataclasses.asdict(job.totals)
    del totals[left_out]
    return {"finished_before": job.before, **totals, "tokens_per_second": job.totals.tokens_per_second}
