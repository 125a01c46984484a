"""The core of every batch: check the input, read earlier results, run the remaining lines, write results."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from glinfer.closing import Closing
from glinfer.engine.progress import Progress, no_progress
from glinfer.errors import InputError
from glinfer.formats.files import AnyPath, shown
from glinfer.jobs.files import Target
from glinfer.jobs.index import LineIndex
from glinfer.jobs.lines import LineForm, LineResult, RequestLine, Shard
from glinfer.jobs.manifest import Fingerprint, check_manifest, write_manifest
from glinfer.jobs.results import FinishedLines, ResultFile, check_targets, read_finished

_OTHER_FORMS = (".csv", ".npy", ".parquet", ".safetensors", ".tsv", ".xlsx")


class Runner(Protocol):
    """Answers lines: on this thread, in several processes, or on a cluster."""

    def run(self, lines: Iterator[RequestLine]) -> Iterator[LineResult]:
        """Yield results as they finish; reads a line from ``lines`` when it has room for one."""


@dataclass(frozen=True)
class BatchFiles:
    """The files of a batch, and the part of the input to run.

    Attributes:
        errors: the file of failed results; None writes them to ``out``.
        restart: whether to discard earlier results.
    """

    source: AnyPath
    out: AnyPath
    errors: AnyPath | None = None
    restart: bool = False
    shard: Shard = field(default_factory=Shard)


@dataclass
class BatchTotals:
    """Totals of one run so far; ``seconds`` includes prefill."""

    lines: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    tokens: int = 0
    dropped: int = 0
    draws: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens of all lines a second; 0 before the first."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


class BatchJob(Closing):
    """One run over a batch; use it in a ``with`` block.

    Attributes:
        before: lines that were finished before this run.
        totals: of this run, so far.
    """

    def __init__(
        self, form: LineForm, files: BatchFiles, fingerprint: Fingerprint, *, manifest_required: bool = True
    ) -> None:
        """Check the input and the files; nothing is written before :meth:`run`.

        With ``manifest_required``, earlier results without a manifest are refused.
        """
        self._out = Target(files.out)
        errors = None if files.errors is None else Target(files.errors)
        targets = [each for each in (self._out, errors) if each is not None]
        check_targets(files.source, self._out, errors)
        for each in targets:
            if Path(os.fspath(each.path).removesuffix(each.packing)).suffix.lower() in _OTHER_FORMS:
                raise InputError(f"{shown(each.path)}: results are lines of JSON; give a name that ends in .jsonl")
        self.totals = BatchTotals()
        self._fingerprint = {**fingerprint, "shard": str(files.shard), "errors_apart": errors is not None}
        self.index = LineIndex(form, files.source, files.shard)
        try:
            self.index.scan()
            found = [FinishedLines() for _ in targets]
            if not files.restart:
                if any(each.has_some for each in targets):
                    check_manifest(self._out, self._fingerprint, required=manifest_required)
                found = [read_finished(each, self.index) for each in targets]
        except BaseException:
            self.index.close()
            raise
        self.before = self.index.finished
        self._files = [ResultFile(*each) for each in zip(targets, found, strict=True)]

    @property
    def count(self) -> int:
        """Lines in this run's part of the input, including finished ones."""
        return self.index.count

    @property
    def written(self) -> int:
        """Results in all files, which is right after any interrupt."""
        return sum(each.lines for each in self._files)

    @property
    def left(self) -> int:
        """Lines without a result before this run."""
        return self.count - self.before

    def todo(self) -> Iterator[RequestLine]:
        """The lines that had no result before this run."""
        return self.index.todo()

    def run(
        self,
        runner: Runner,
        *,
        on_progress: Progress = no_progress,
        draws: Callable[[], int] = lambda: 0,
    ) -> None:
        """Run the remaining lines, and write each result when it arrives; ``draws`` counts the draws issued so far."""
        started, before = time.perf_counter(), draws()
        found = runner.run(self.todo())
        try:
            self._open()  # after all checks, so that a refused batch leaves the files unchanged
            write_manifest(self._out, self._fingerprint)
            for result in found:
                self._files[-1 if result.failed else 0].write(result.data)
                self._count(result)
                on_progress(self.before + self.totals.lines, self.count)
        finally:
            # Otherwise an unfinished generator keeps its caches until it is collected.
            if callable(close := getattr(found, "close", None)):
                close()
            self.totals.seconds, self.totals.draws = time.perf_counter() - started, draws() - before
        self._publish()

    def _open(self) -> None:
        for each in self._files:
            each.open()

    def _publish(self) -> None:
        for each in self._files:
            each.target.publish()

    def finish(self) -> None:
        """Finish the files when no lines are left: remove a torn line, and publish compressed and remote files."""
        if not all(each.whole for each in self._files):
            self._open()
            self._publish()

    def _count(self, result: LineResult) -> None:
        totals = self.totals
        totals.lines += 1
        totals.failed += result.failed
        totals.prompt_tokens += result.prompt_tokens
        totals.tokens += result.tokens
        totals.dropped += result.dropped

    def close(self) -> None:
        """Close all files."""
        with ExitStack() as stack:
            for each in (self.index, *self._files):
                stack.callback(each.close)
