"""Benchmark of structured output: milliseconds a token with a JSON schema and without, in turns.

What a mask costs is told by a text that is the same with it and without: how long it takes to choose a token depends on
how sure the model is, which differs between free text and JSON.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from glinfer.engine.defaults import merged
from glinfer.engine.ids import check_ids
from glinfer.engine.model import Model
from glinfer.engine.progress import Progress, no_progress
from glinfer.engine.report import Report
from glinfer.engine.stream import GenerationStats, TokenStream
from glinfer.inspect.report import Spread
from glinfer.structured.constraint import Constraint
from glinfer.structured.structure import Structure

TOKENS = 96
"""Default for the tokens of each counted run."""
PROMPT = "A JSON object:\n"
FREE, MASKED, CHOSEN, FORCED = "free text", "the same, masked", "every token chosen", "with forced tokens"
_ANYTHING = "(?s:.*)"
_PAUSE_SECONDS = 0.02


class _Unforced(Constraint):
    """A constraint that never forces a token, so that each is chosen under its mask."""

    def forced(self, most: int) -> list[int]:
        return []


@dataclass(frozen=True)
class StructureRow(Report):
    """One way to write texts.

    Attributes:
        way: FREE, MASKED (by a structure that allows any text, so it is the same one), CHOSEN or FORCED.
        tokens: tokens of the newest run.
        forced: those of them that the schema forced.
        texts: texts of the newest run; a new one begins where one is complete.
        each: milliseconds a token.
    """

    way: str
    tokens: int
    forced: int
    texts: int
    each: Spread


@dataclass(frozen=True)
class StructureReport(Report):
    """The cost of a JSON schema for one model on one machine; ``vocab`` is the model's number of tokens."""

    derived = ("slower", "microseconds")

    model: str
    weights: str
    vocab: int
    renderer: str
    runs: int
    rows: tuple[StructureRow, ...]

    def _median(self, way: str) -> float:
        return next(row.each.median for row in self.rows if row.way == way)

    @property
    def slower(self) -> float:
        """How much longer a token takes under a mask than the same one without, as a share of that."""
        return self._median(MASKED) / self._median(FREE) - 1.0

    @property
    def microseconds(self) -> float:
        """The same in microseconds."""
        return 1000.0 * (self._median(MASKED) - self._median(FREE))


def bench_structure(
    model: Model,
    schema: str,
    runs: int,
    *,
    tokens: int = TOKENS,
    seed: int = 1,
    on_progress: Progress = no_progress,
) -> StructureReport:
    """Time tokens of free text and of texts with a schema, sampled; the first of each warms up and is not counted.

    Args:
        model: with a tokenizer.
        schema: the JSON schema, as text.
        runs: counted runs of each.
        tokens: the tokens of a run; texts begin anew until there are so many.
        seed: of the first text.
        on_progress: receives (finished runs, runs).

    Raises:
        InputError: the model has no tokenizer, or the schema cannot be used.
    """
    anything, structure = Structure.checked("regex", _ANYTHING), Structure.checked("json_schema", schema)
    ids = model.require_tokenizer().encode(PROMPT)
    made: dict[str, Callable[[], Constraint | None]] = {
        FREE: lambda: None,
        MASKED: lambda: model.compiler().constraint(anything, kind=_Unforced),
        CHOSEN: lambda: model.compiler().constraint(structure, kind=_Unforced),
        FORCED: lambda: model.compiler().constraint(structure),
    }
    times: dict[str, list[float]] = {way: [] for way in made}
    newest: dict[str, tuple[int, int, int]] = {}
    turns = list(itertools.product(range(runs + 1), made))
    session = model.session()
    for turn, (run, way) in enumerate(turns):
        time.sleep(_PAUSE_SECONDS)
        found: list[GenerationStats] = []
        while (left := tokens - sum(each.tokens for each in found)) > 0:
            stream = TokenStream(
                session,
                check_ids(ids, model.config),
                merged(model.sampling, {"temperature": 1.0, "seed": seed + len(found)}),
                max_tokens=left,
                constraint=made[way](),
            )
            for _ in stream:
                pass
            found.append(stream.stats)
        newest[way] = sum(each.tokens for each in found), sum(each.forced for each in found), len(found)
        if run > 0:
            times[way].append(1000.0 * sum(each.seconds for each in found) / newest[way][0])
        on_progress(turn + 1, len(turns))
    rows = tuple(StructureRow(way, *newest[way], Spread.of(times[way])) for way in made)
    config = model.config
    return StructureReport(config.model_type, model.weights, config.vocab_size, model.device.description, runs, rows)
