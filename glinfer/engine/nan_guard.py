"""Detection of NaN and infinities: found in logits that are read back, and traced to the pass where they began.

The check costs one number, the largest logit. Only when that is not finite does the sequence run again, one token at a
time, and the output of each draw is examined.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
import numpy.typing as npt

from glinfer.errors import GlinferWarning, NumbersError
from glinfer.models.capture.point import span_of
from glinfer.models.oracle import written_rows
from glinfer.models.session import Session
from glinfer.ops import DrawSpec
from glinfer.ops.fused.sample import NO_SCORE, best_candidate, best_candidates
from glinfer.ops.spec import Array

Floats = npt.NDArray[np.float32]
_MAX_FLOAT = float(np.finfo(np.float32).max)


class Runs(Protocol):
    """The methods of a sequence of tokens that tracing needs."""

    def prefill(self, ids: Sequence[int]) -> None:
        """Append tokens."""

    def logits(self) -> Floats:
        """Run the tokens that were not run yet."""


class _Finder:
    """Examines the output of each draw until one has a value that is not finite."""

    def __init__(self) -> None:
        self.place = ""

    def drawn(self, session: Session, spec: DrawSpec, values: Mapping[str, int | float]) -> None:
        """See :class:`glinfer.models.session.Observer`."""
        for name in () if self.place else spec.outputs:
            numbers = _written(session, spec, name, values)
            broken = ~np.isfinite(numbers)
            if broken.any():
                first = numbers[broken][0]
                kind = "NaN" if np.isnan(first) else f"{first:+}"
                span = span_of(session.plan, values)
                over = f"token {span.first}" if span.count == 1 else f"a run over {span.count} tokens"
                self.place = (
                    f"{kind} began in pass {spec.name} (shaders/{spec.shader}.frag), {over}, "
                    f"{int(broken.sum())} of {broken.size} numbers"
                )
                if session.plan.table[name].format == "rgba16f":
                    self.place += "; half floats end at 65504: try cache='f32' (--cache f32)"


def _written(session: Session, spec: DrawSpec, name: str, values: Mapping[str, int | float]) -> Array:
    """The part of an output that a draw has written."""
    (rows, cols), first = spec.extent(values), spec.first_row(values)
    if spec.cover != "scatter":
        return session.read_rows(name, first, rows)[:, :cols]
    inputs = {each: session.read(each) for each in spec.reads}
    return session.read(name)[written_rows(spec, inputs, values)][:, :cols]


class NanGuard:
    """A watch over the numbers that one model computes.

    Attributes:
        strict: whether any NaN or infinity ends the run; otherwise only logits without a finite number do, and the
            first of the others causes a warning.
        traces: whether the pass where they began is looked for, by running the sequence again token by token.
    """

    def __init__(self, bound: Session, new_session: Callable[[], AbstractContextManager[Runs]]) -> None:
        """Watch the bound plan; ``new_session`` makes a sequence of tokens for tracing."""
        self.strict, self.traces = False, True
        self._bound, self._new_session = bound, new_session
        self._warned = self._tracing = False

    def look(self, logits: Floats, ids: Sequence[int]) -> None:
        """Check logits [vocab] of the token after ``ids``; -inf stands for a token that is never chosen.

        Raises:
            NumbersError: one is NaN or +inf and the watch is strict, or none is left to choose.
        """
        if np.isfinite(logits.max()) or self._tracing:
            return
        lost, endless = int(np.isnan(logits).sum()), int(np.isposinf(logits).sum())
        usable = np.isfinite(logits).any() or endless > 0
        parts = [f"{count} {kind}" for count, kind in ((lost, "NaN"), (endless, "+inf")) if count]
        found = f"{' and '.join(parts) or 'all -inf'}, of {logits.size} logits after {len(ids)} tokens"
        self._tell(found, ids, usable=bool(usable))

    def usable(self, logits: Floats) -> Floats:
        """Replace NaN by -inf and +inf by the largest number, so that a token can be chosen."""
        if np.isfinite(logits.max()):
            return logits
        finite = np.nan_to_num(logits, nan=-np.inf, posinf=_MAX_FLOAT, neginf=-np.inf)
        return np.asarray(finite, dtype=np.float32)

    def choice(self, candidates: Floats, ids: Sequence[int], further: Sequence[int] = ()) -> int:
        """The best of the candidates [64] of a run over ``ids`` and ``further`` ids.

        Raises:
            NumbersError: the best score is not a number and the watch is strict, or there is none.
        """
        best = candidates[::4].max()
        if not NO_SCORE < best < np.inf:
            usable = bool(best == np.inf)
            whole = [*ids, *further]
            found = f"the best logit after {len(whole)} tokens is {best if usable else 'not a number'}"
            self._tell(found, whole, usable=usable)
        return best_candidate(candidates)

    def choices(
        self, candidates: Floats, ids: Mapping[int, Sequence[int]]
    ) -> tuple[dict[int, int], dict[int, NumbersError]]:
        """:meth:`choice` of some of the rows [rows, 64], by their numbers, each after its own ``ids``.

        Returns:
            The tokens, and the errors of rows that have none.
        """
        tokens, best, _ = best_candidates(candidates)
        sound = (best > NO_SCORE) & (best < np.inf)
        chosen, broken = dict[int, int](), dict[int, NumbersError]()
        for row, held in ids.items():
            try:
                chosen[row] = int(tokens[row]) if sound[row] else self.choice(candidates[row], held)
            except NumbersError as error:
                broken[row] = error
        return chosen, broken

    def _tell(self, found: str, ids: Sequence[int], *, usable: bool) -> None:
        """Raise, or warn the first time; later warnings are suppressed, and their passes not traced."""
        if usable and not self.strict and self._warned:
            return
        message = f"the model's output is broken: {found}"
        if self.traces:
            message += f"; {self.trace(ids) or 'run again token by token, none is'}"
        if self.strict or not usable:
            raise NumbersError(f"{message}; check the weights (glinfer verify), or try more bits or another --device")
        self._warned = True
        note = "no such token is ever chosen (strict=True, --strict: stop here)"
        warnings.warn(f"{message}; {note}", GlinferWarning, stacklevel=4)

    def trace(self, ids: Sequence[int]) -> str:
        """The first pass of a sequence that writes NaN or an infinity, in words; empty where there is none."""
        finder = _Finder()
        observers = self._bound.observers
        observers.append(finder)
        self._tracing = True
        try:
            with self._new_session() as session:
                whole = self._bound.plan.name == "reference"
                for part in [list(ids)] if whole else [[token] for token in ids]:
                    session.prefill(part)
                    session.logits()
                    if finder.place:
                        break
        finally:
            self._tracing = False
            observers.remove(finder)
        return finder.place
