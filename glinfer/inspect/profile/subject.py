"""What is profiled: one run of a plan of a model, which can be repeated as often as one likes.

Of the fast plans that is one token at a place in a sequence, or one run of the plan that takes in prompts; of the
reference plan a whole sequence. Caches hold zeros instead of the tokens before, which changes no time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from glinfer.engine.engine import Engine, FastEngine, WholeEngine
from glinfer.engine.prefill import Prefill
from glinfer.errors import InputError
from glinfer.inspect.draws import example_ids
from glinfer.models.feed import runs
from glinfer.models.session import Session
from glinfer.ops.spec import Array, DrawSpec

USUAL_TOKENS = 128
"""Where in the sequence the token is, or how long the sequence, unless somebody says."""
TOKEN_RUN, PROMPT_RUN, SEQUENCE_RUN = "token", "prompt", "sequence"
"""What a run is: one token behind those before it; many tokens of a prompt; a whole sequence."""


@dataclass(frozen=True)
class Subject:
    """One run of a session, with all that it is given.

    Attributes:
        what: :data:`TOKEN_RUN`, :data:`PROMPT_RUN` or :data:`SEQUENCE_RUN`.
        tokens: in a token's run, its place in the sequence, counted from 1; otherwise how many tokens are run.
        session: what draws.
        draws: how many of the plan's draws a run has.
        values: the run values.
        inputs: arrays for input tensors.
        flush_every: as in :func:`glinfer.gl.replay.replay`.
        sessions: those whose textures the run needs.
        notes: what has to be said of it.
    """

    what: str
    tokens: int
    session: Session
    draws: int
    values: Mapping[str, int | float]
    inputs: Mapping[str, Array]
    flush_every: int
    sessions: tuple[Session, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def specs(self) -> tuple[DrawSpec, ...]:
        """The draws of a run."""
        return self.session.plan.draws[: self.draws]

    def write(self) -> None:
        """Give the input tensors their contents."""
        for name, array in self.inputs.items():
            self.session.write(name, array)

    def run(self) -> None:
        """Issue every draw of the run once."""
        self.session.run(self.values, draws=self.draws, flush_every=self.flush_every)


class Subjects:
    """The runs that a model offers for profiling; close it in the end, which releases what was made for them."""

    def __init__(self, engine: Engine, *, apart: bool = False) -> None:
        """For an engine; ``apart`` in caches of their own, where those of the engine hold a sequence."""
        self.engine = engine
        self._held = ExitStack()
        self._bound = engine.bound
        if apart and not isinstance(engine, WholeEngine):
            self._bound = engine.bound.sharer()
            self._held.callback(self._bound.release)

    def __enter__(self) -> Subjects:
        """Use as a context manager: closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release."""
        self._held.close()

    @property
    def context(self) -> int:
        """Tokens of the longest sequence."""
        return self.engine.options.config.max_position_embeddings

    def at(self, tokens: int | None = None) -> Subject:
        """One token at that place of a sequence, counted from 1; of the reference plan the sequence up to there.

        Raises:
            InputError: there is no such place in the context.
        """
        place = min(USUAL_TOKENS, self.context) if tokens is None else tokens
        self._check("tokens", place)
        ids = [int(token) for token in example_ids(self.engine.options.config, place)]
        engine, bound = self.engine, self._bound
        if not isinstance(engine, WholeEngine):
            inputs, values = runs(bound.plan, ids)[-1]
            return self._subject(TOKEN_RUN, place, bound, len(bound.draws), values, inputs, (bound,))
        # Without a published plan this binds one for sequences of that length, which the engine keeps.
        session = bound if engine.whole is None else engine.whole.run(ids)[0]
        ((inputs, values),) = runs(session.plan, ids)
        sessions = tuple(dict.fromkeys((bound, session)))
        return self._subject(SEQUENCE_RUN, place, session, len(session.draws), values, inputs, sessions)

    def prompt(self, tokens: int) -> Subject:
        """The first run of the plan that takes in a prompt of so many tokens; of the reference plan the sequence.

        Raises:
            InputError: the context has not so many.
            PlanError: the plan does not fit the renderer.
        """
        self._check("prompt_tokens", tokens)
        engine = self.engine
        if not isinstance(engine, FastEngine):
            return self.at(tokens)
        prefill = Prefill(engine.options)
        session = prefill.into(self._bound).session
        self._held.callback(session.release)
        rows = min(tokens, session.plan.max_rows)
        ((inputs, values),) = runs(session.plan, example_ids(engine.options.config, rows).tolist())
        notes = []
        if rows < tokens:
            notes.append(f"a prompt of {tokens} tokens takes several runs: this is the first of them, of {rows}")
        sessions = (self._bound, session)
        return self._subject(PROMPT_RUN, rows, session, len(session.draws), values, inputs, sessions, notes)

    def _subject(
        self,
        what: str,
        tokens: int,
        session: Session,
        draws: int,
        values: Mapping[str, int | float],
        inputs: Mapping[str, Array],
        sessions: tuple[Session, ...],
        notes: Sequence[str] = (),
    ) -> Subject:
        flush_every = 0 if what == SEQUENCE_RUN else self.engine.options.kernels.flush_every
        return Subject(what, tokens, session, draws, values, inputs, flush_every, sessions, tuple(notes))

    def _check(self, name: str, tokens: int) -> None:
        if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= self.context:
            raise InputError(f"{name} is {tokens!r}; expected 1 to {self.context}, the context of this model")
