"""Prefill: run many prompt tokens, or drafted tokens, at once into the caches for decoding."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.engine.pace import Pace
from glinfer.engine.run.choice import Choice
from glinfer.engine.run.fallback import KernelChoice
from glinfer.engine.sampler import SamplingOptions
from glinfer.kernels.fused.low_rank import ADAPTER
from glinfer.kernels.fused.rows import fill_choices, row_table
from glinfer.kernels.noise import Drawn
from glinfer.kernels.options import KernelOptions
from glinfer.lower.feed import chunk_feed
from glinfer.lower.fused.caches import cache_slots
from glinfer.lower.fused.rows import (
    IMAGES,
    LOGITS,
    PICKS,
    ROW_ANGLES,
    ROWS,
    deep_name,
    drafted_plan,
    few_chunk_rows,
    fitting_chunk_plan,
)
from glinfer.lower.options import PlanOptions
from glinfer.lower.ropes import image_angles
from glinfer.program.plan import Plan
from glinfer.program.session import Session
from glinfer.text.images import BEYOND, image_rows, rotary_positions

Floats = npt.NDArray[np.float32]


class Chunks:
    """Runs tokens into the caches of one session."""

    def __init__(self, session: Session, options: PlanOptions) -> None:
        """Use a session of the chunk plan, which its owner releases."""
        kernels, self._options = options.kernels, options
        self.session, self._targets, self._flush_every = session, kernels.rows_per_draw, kernels.flush_every
        self._table, self._texture = row_table(session.plan.table[ROWS].shape[0]), session.texture(ROWS)
        self._pace = Pace(session, self._targets)
        self._pictured = IMAGES in session.plan.table

    def run(
        self,
        ids: Sequence[int],
        position: int,
        base: int = 0,
        adapter: int = 0,
        *,
        held: Sequence[int] = (),
        back: int = 0,
        long: bool = False,
        draws: int | None = None,
    ) -> int:
        """Run the tokens that fit, from ``position`` of the sequence at slot ``base`` on; returns their number.

        ``held`` has at least these tokens and those before; it may be left out in models without images. In plans for
        text alone ``back`` is the number of positions that images before have left out. ``long`` uses the second set
        of angles, in models with two; ``draws`` limits the draws of the run.
        """
        most = min(len(ids), self.session.plan.max_rows)
        rows = self._pace.rows(most)
        if self._pictured:
            # The rows of an image may run another plan first.
            found = write_images(self.session, self._options, [(held[: position + rows], position, 0)])
            ids = [BEYOND if index in found else token for index, token in enumerate(ids[:rows])]
        since = time.perf_counter()  # after the plan of images
        given = chunk_feed(self._table, ids[:rows], position, self._targets, base, long=long, back=back)
        self.session.require_alive()
        self._texture.upload(self._table)
        self.session.run({**given, ADAPTER: adapter}, draws=draws, flush_every=self._flush_every)
        self._pace.measure(rows, most, since)
        self.session.device.limit_queue()
        return rows


class DraftedRows(Chunks):
    """Runs the plan ``drafted`` into the caches of one session."""

    def __init__(self, session: Session, options: PlanOptions) -> None:
        """Use a session of the plan; :meth:`Companions.release` releases it and ``choice``."""
        super().__init__(session, options)
        for target in range(self._targets):  # now, so that drafts make no lasting objects
            session.make_readable(f"{LOGITS}.{target}")
        self._kernels = options.kernels
        self.choice: Choice | None = None

    def choose(
        self,
        ids: Sequence[int],
        position: int,
        options: SamplingOptions | None,
        draws: Sequence[Drawn],
        adapter: int = 0,
        **further: Any,
    ) -> None:
        """Run tokens from ``position`` on, as :meth:`run` does, and choose the token after each with ``options``.

        ``draws`` has the noise and temperature of each choice; without options nothing is chosen. Raises PlanError if
        the plan ``choice`` does not fit.
        """
        self.session.texture(PICKS).fill(math.nan)  # which the driver leaves there if it drops a draw
        picks = options is not None and not options.filters
        if picks:
            fill_choices(self._table, draws)
        self.run(ids, position, adapter=adapter, draws=None if picks else len(self.session.draws) - 1, **further)
        if options is not None and not picks:
            if self.choice is None:
                self.choice = Choice(self.session, self._kernels)
            self.choice.write(range(len(ids)), [options] * len(ids), draws)
            self.choice.run(len(ids))

    def candidates(self, rows: int) -> Floats:
        """The candidates [rows, 64] of the last run."""
        return np.asarray(self.session.read(PICKS, rows), dtype=np.float32)

    def logits(self, row: int) -> Floats:
        """The logits [vocab] of a row of the last run."""
        slot, target = divmod(row, self._targets)
        return np.asarray(self.session.read_rows(f"{LOGITS}.{target}", slot)[0], dtype=np.float32)


def write_images(
    session: Session, options: PlanOptions, pieces: Sequence[tuple[Sequence[int], int, int]]
) -> Mapping[int, Floats]:
    """Write the rows of images among the tokens of a run, and the angles of all of these.

    A piece is a text up to its last token that runs, the position of the first one, and its row. Returns the rows of
    images by row of the run; those without an image need not be zeros in fast plans.
    """
    found, width, table = dict[int, Floats](), options.config.hidden_size, session.plan.table
    for held, first, start in pieces:
        found |= {start + index: row for index, row in image_rows(held[first:]).items()}
    names = [name for name in (IMAGES, *map(deep_name, range(options.deep))) if name in table]
    if found or session.plan.name == "reference":
        for level, name in enumerate(names):
            rows = np.zeros(table[name].shape, np.float32)
            for index, row in found.items():
                rows[index] = row[level * width : (level + 1) * width]
            session.write(name, rows)
    if ROW_ANGLES in table:
        positions = np.zeros((table[ROW_ANGLES].shape[0], 3), np.intp)  # also of padding, which is read, then masked
        for held, first, start in pieces:
            positions[start : start + len(held) - first] = rotary_positions(held)[0][first:]
        angles = image_angles(options.config, options.sections, positions, table[ROW_ANGLES].shape[1])
        session.write(ROW_ANGLES, angles)
    return found


MAX_SINGLE_TOKENS = 3
"""Limit for new tokens that run one by one; more run as a chunk."""
DRAFT_ROWS = (4, 8, 16)
"""Row counts of runs of drafted tokens; a run takes as long as the next larger count."""
MAX_SINGLE_TOKENS_BEFORE = 8
"""Tokens that run one by one before the first chunk, since building its plan and shaders takes about as long."""


class Prefill:
    """The chunk plan of a model, built at first use, for caches of ``cache_slots`` slots in all.

    ``firsts`` has the first session of each chunk plan, by its rows, and of each ``drafted`` plan, by its kernels; the
    other sessions share its scratch textures.
    """

    def __init__(
        self,
        options: PlanOptions,
        *,
        sequences: int = 1,
        capacity: int | None = None,
        export_residual: bool = True,
        choice: KernelChoice | None = None,
    ) -> None:
        """Prepare for caches of ``sequences`` sequences of at most ``capacity`` tokens (default: a whole context).

        ``export_residual`` lets the decode plan continue the last token from its last block. ``choice`` replaces the
        kernels if the driver rejects a shader; by default they are fixed.
        """
        self.kernels = KernelChoice(options.kernels, fixed=True) if choice is None else choice
        self.options, self._export_residual = replace(options, kernels=self.kernels.kernels), export_residual
        self._capacity = cache_slots(options.config) if capacity is None else capacity
        self.cache_slots = sequences * self._capacity
        self.firsts: dict[int | KernelOptions, Session] = {}
        self._singles = 0

    @property
    def rows(self) -> int:
        """The size of a chunk, in tokens."""
        return min(self.options.kernels.chunk, self.options.config.max_position_embeddings, self._capacity)

    def rows_for(self, tokens: int) -> int:
        """The rows of the plan for ``tokens`` tokens; models with experts have a second plan for few tokens."""
        few = few_chunk_rows(self.options)
        return few if tokens <= few < self.rows else self.rows

    def plan(self, rows: int | None = None) -> Plan:
        """The chunk plan of at most ``rows`` rows (default: :attr:`rows`)."""
        return fitting_chunk_plan(
            self.options,
            rows=self.rows if rows is None else rows,
            cache_slots=self.cache_slots,
            every=self._capacity,
            export_residual=self._export_residual,
        )

    def as_chunk(self, tokens: int) -> bool:
        """Whether ``tokens`` new tokens run as a chunk instead of one by one."""
        if tokens <= MAX_SINGLE_TOKENS:
            return False
        if any(isinstance(key, int) for key in self.firsts) or self._singles + tokens > MAX_SINGLE_TOKENS_BEFORE:
            return True
        self._singles += tokens
        return False

    def session_of(self, key: int | KernelOptions, bound: Session, plan: Callable[[], Plan]) -> Session:
        """Bind a plan over the weights and caches of ``bound``; all sessions with one key share scratch textures."""
        first = self.firsts.get(key)
        session = bound.companion(plan() if first is None else first.plan, scratch=first)
        return self.firsts.setdefault(key, session) if first is None else session

    def release(self) -> None:
        """Release the plans whose scratch textures sequences share."""
        for session in self.firsts.values():
            session.release()


class Companions:
    """The plans of a model next to the one that decodes, bound to its caches and logits at first use."""

    def __init__(self, prefill: Prefill, bound: Session) -> None:
        """Bind the plans of ``prefill`` to the session ``bound``."""
        self._prefill, self._bound = prefill, bound
        self.chunks: dict[int, Chunks] = {}
        self._choices: dict[tuple[bool, bool], Choice] = {}
        self._drafted: dict[int, DraftedRows] = {}

    @property
    def draws_issued(self) -> int:
        """Draw calls issued so far, with those of the decoding plan."""
        return self._bound.draws_issued + sum(session.draws_issued for session in self._sessions)

    @property
    def _sessions(self) -> list[Session]:
        choices = (each.choice for each in self._drafted.values() if each.choice is not None)
        chosen = [each.session for each in (*self._choices.values(), *choices)]
        return [*chosen, *(each.session for each in (*self.chunks.values(), *self._drafted.values()))]

    def chunk(self, tokens: int) -> Chunks:
        """The chunk plan for a number of tokens; PlanError if it does not fit the renderer."""
        prefill, rows = self._prefill, self._prefill.rows_for(tokens)

        def made(kernels: KernelOptions) -> Chunks:
            prefill.options = replace(prefill.options, kernels=kernels)
            return Chunks(prefill.session_of(rows, self._bound, partial(prefill.plan, rows)), prefill.options)

        if rows not in self.chunks:
            # Plans share scratch textures, so they need the same kernels.
            self.chunks[rows] = made(prefill.options.kernels) if rows in prefill.firsts else prefill.kernels.make(made)
        return self.chunks[rows]

    def choice(self, *, masked: bool = False, changed: bool = False) -> Choice:
        """The plan that chooses filtered tokens."""
        if (masked, changed) not in self._choices:
            self._choices[masked, changed] = self._prefill.kernels.make(
                lambda kernels: Choice(self._bound, kernels, masked=masked, changed=changed)
            )
        return self._choices[masked, changed]

    def drafted(self, rows: int) -> DraftedRows:
        """The plan for a number of drafted rows."""
        prefill = self._prefill
        width = min(prefill.options.kernels.rows_per_draw, next(size for size in DRAFT_ROWS if size >= rows))

        def made(kernels: KernelOptions) -> DraftedRows:
            kernels = replace(kernels, rows_per_draw=min(kernels.rows_per_draw, width))
            options = replace(prefill.options, kernels=kernels)
            plan = partial(drafted_plan, options, rows=DRAFT_ROWS[-1], cache_slots=prefill.cache_slots)
            return DraftedRows(prefill.session_of(kernels, self._bound, plan), options)

        if width not in self._drafted:
            self._drafted[width] = prefill.kernels.make(made)
        return self._drafted[width]

    def release(self) -> None:
        """Release the plans, except those whose scratch textures other sequences share."""
        for session in self._sessions:
            if session not in self._prefill.firsts.values():
                session.release()
