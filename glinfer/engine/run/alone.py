"""One sequence by itself: the executor of a scheduler with one slot, over a session."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from glinfer.engine.executor import Choices, Executor, Step
from glinfer.engine.requests import Running
from glinfer.engine.run.decode import DecodeSession
from glinfer.engine.run.drafts import Speculation
from glinfer.errors import ContextError, GLError
from glinfer.structured.constraint import DeadEnd


class Alone(Executor):
    """Runs a sequence in a session, several tokens between two readbacks if the GPU can choose them.

    Others may use the session between two tokens; what they replaced runs again. Tokens computed ahead wait in
    ``Running.queued``.
    """

    slots = 1

    def __init__(self, session: DecodeSession, speculation: Speculation | None = None) -> None:
        """Use a session, which stays open; ``speculation`` drafts tokens."""
        self.config, self._session, self._speculation = session._config, session, speculation
        self.capacity = self.piece = self.config.max_position_embeddings
        # Whether uncached tokens were forced, and whether they have just run: nothing is drafted or timed then.
        self._forced = self._ran = False

    @property
    def draws_issued(self) -> int:
        """Draw calls of the session and of drafts so far."""
        return self._session.draws_issued + (0 if self._speculation is None else self._speculation.draws_issued)

    def run_prompt(self, slot: int, each: Running, most: int) -> tuple[int, int]:
        """See :class:`Executor`; runs all of them."""
        draws = self.draws_issued
        self._hold(each)
        self._ran, self._forced = self.draws_issued > draws, each.resumes
        return len(each.held) - 1 - each.cached, 0

    def _hold(self, each: Running) -> None:
        self._session.use_adapter(each.adapter)
        self._session.keep = each.keep
        self._session.hold(each.held)

    def run(self, active: dict[int, Running], ahead: Collection[int], ends: Sequence[int]) -> Step:
        """See :class:`Executor`; issues nothing, since :meth:`choices` decides how many tokens to run."""
        return Step(active, {})

    def choices(self, step: Step) -> Choices:
        """See :class:`Executor`."""
        ((slot, each),) = step.active.items()
        found = Choices({}, {}, set(), set())
        if each.queued and each.constraint is not None:  # forced tokens run with the next choice
            self._forced = True
            each.sampler.advance()  # each token has its own noise, chosen or not
        elif not each.queued:
            try:
                chosen = self._choose(each)
            except DeadEnd:
                return found._replace(dead={slot})
            except (ContextError, GLError):
                raise
            except Exception as error:  # of its numbers, structure or sampler: ends this sequence alone
                return found._replace(broken={slot: error})
            if each.constraint is not None:
                return found._replace(chosen={slot: chosen[0]})
            each.queued.extend(chosen)
            each.stats.surplus += len(chosen)
        if each.constraint is None:
            each.stats.surplus -= 1
        found.chosen[slot] = each.queued[0]
        return found

    def _choose(self, each: Running) -> list[int]:
        """Choose and append the next tokens, at most a chunk or a draft, without exceeding the context."""
        session, stats = self._session, each.stats
        started, draws = time.perf_counter(), self.draws_issued
        self._hold(each)
        self._ran |= self.draws_issued > draws
        if not self._forced:
            stats.prompt_seconds += time.perf_counter() - started
            stats.prompt_draws += self.draws_issued - draws
            draws = self.draws_issued
        most, saved = min(each.max_tokens - stats.tokens, session.room), session.draws_saved
        drafted, accepted = session.drafted, session.accepted
        chunk = min(each.chunk, most) if each.own_sampler is None and session.chooses(each.sampling) else 1
        try:
            if each.constraint is not None:
                return [session.choose_allowed(each.constraint.mask, each.sampler)]
            if self._speculation is None:
                return session.generate_ids(chunk, each.sampler)
            return self._speculation.choose(session, each.sampler, most=most, chunk=chunk, ready=not self._ran)
        finally:  # issued draws count even if they chose no token
            stats.draws += self.draws_issued - draws
            if not self._forced:  # otherwise ``draws`` has what their run saves
                stats.draws_saved += session.draws_saved - saved
            stats.drafted += session.drafted - drafted
            stats.accepted += session.accepted - accepted
            self._forced = self._ran = False

    def leave(self, each: Running) -> None:
        """See :class:`Executor`."""
        session, ahead = self._session, list(each.queued)
        if ahead and not session.closed and session.ids == [*each.held, *ahead]:
            session.rewind(len(ahead))
        each.queued.clear()
        self._forced = self._ran = False

    def close(self) -> None:
        """Do nothing: the session stays open."""
