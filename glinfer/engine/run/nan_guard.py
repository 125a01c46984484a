"""Detect NaN, infinities and zeros alone in logits read back, and trace them to the pass where they began."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.errors import GlinferWarning, NumbersError
from glinfer.kernels import DrawSpec
from glinfer.kernels.fused.sample import NO_SCORE, all_zero, best_candidate, best_candidates, ordinary
from glinfer.kernels.spec import Array
from glinfer.program.capture import span_of
from glinfer.program.oracle import written_rows
from glinfer.program.session import Session

Floats = npt.NDArray[np.float32]


class _Finder:
    """Examines the output of each draw until one has a value that is not finite."""

    def __init__(self) -> None:
        self.found = ""

    def drawn(self, session: Session, spec: DrawSpec, values: Mapping[str, int | float]) -> None:
        """See :class:`glinfer.program.session.Observer`."""
        for name in () if self.found else spec.outputs:
            numbers = written_by(session, spec, name, values)
            broken = ~np.isfinite(numbers)
            if broken.any():
                first = numbers[broken][0]
                kind = "NaN" if np.isnan(first) else f"{first:+}"
                span = span_of(session.plan, values)
                over = f"token {span.first}" if span.count == 1 else f"a run over {span.count} tokens"
                self.found = (
                    f"{kind} began in pass {spec.name} (shaders/{spec.shader}.frag), {over}, "
                    f"{int(broken.sum())} of {broken.size} numbers"
                )
                if session.plan.table[name].format == "rgba16f":
                    self.found += "; half floats end at 65504: try cache='f32' (--cache f32)"


def written_by(session: Session, spec: DrawSpec, name: str, values: Mapping[str, int | float]) -> Array:
    """The part of an output that a draw of a session has just written, [rows, columns]."""
    (rows, cols), first = spec.extent(values), spec.first_row(values)
    if spec.cover != "scatter":
        return session.read_rows(name, first, rows)[:, :cols]
    inputs = {each: session.read(each) for each in spec.reads}
    return session.read(name)[written_rows(spec, inputs, values)][:, :cols]


class NanGuard:
    """Checks the logits of one model for NaN and infinities.

    If ``strict``, each of them ends the run; otherwise only logits without a usable number do, and the first NaN or
    infinity causes a warning. ``traces`` runs the sequence again token by token to find the pass where it began.
    ``zeros`` allows logits that are all 0, as in a model of zeros that is only timed.
    """

    def __init__(self, bound: Session, new_session: Callable[[], AbstractContextManager[Any]]) -> None:
        """Check the bound plan; ``new_session`` makes a session for tracing."""
        self.strict, self.traces, self.zeros = False, True, False
        self._bound, self._new_session = bound, new_session
        self._warned = self._tracing = False

    def look(self, logits: Floats, ids: Sequence[int]) -> None:
        """Check the largest of the logits [vocab] of the token after ``ids``; -inf marks a token that is never chosen.

        Raises NumbersError for NaN or +inf with ``strict``, or if no token can be chosen.
        """
        if (np.isfinite(logits.max()) and (self.zeros or logits.any())) or self._tracing:
            return
        if not logits.any():
            self._report(f"all {logits.size} logits after {len(ids)} tokens are 0", ids, usable=False)
        lost, endless = int(np.isnan(logits).sum()), int(np.isposinf(logits).sum())
        usable = np.isfinite(logits).any() or endless > 0
        parts = [f"{count} {kind}" for count, kind in ((lost, "NaN"), (endless, "+inf")) if count]
        found = f"{' and '.join(parts) or 'all -inf'}, of {logits.size} logits after {len(ids)} tokens"
        self._report(found, ids, usable=bool(usable))

    def usable(self, logits: Floats) -> Floats:
        """Replace NaN by -inf and +inf by the largest number, so that a token can be chosen."""
        if np.isfinite(logits.max()):
            return logits
        finite = np.nan_to_num(logits, nan=-np.inf, posinf=float(np.finfo(np.float32).max), neginf=-np.inf)
        return np.asarray(finite, dtype=np.float32)

    def choice(self, candidates: Floats, ids: Sequence[int], further: Sequence[int] = ()) -> int:
        """The best of the candidates [64] of a run over ``ids`` and ``further`` ids.

        Raises NumbersError for an infinite score with ``strict``, or if no candidate has a score.
        """
        best, whole = candidates[::4].max(), [*ids, *further]
        if not self.zeros and all_zero(candidates[None])[0]:
            self._report(f"the best logits after {len(whole)} tokens are all 0", whole, usable=False)
        if not NO_SCORE < best < np.inf:
            usable = bool(best == np.inf)
            found = f"the best logit after {len(whole)} tokens is {best if usable else 'not a number'}"
            self._report(found, whole, usable=usable)
        return best_candidate(candidates)

    def choices(
        self, candidates: Floats, ids: Mapping[int, Sequence[int]]
    ) -> tuple[dict[int, int], dict[int, NumbersError]]:
        """The tokens and the errors of :meth:`choice`, for the rows of ``candidates`` [rows, 64] that ``ids`` names."""
        tokens, sound = best_candidates(candidates)[0], ordinary(candidates)
        chosen, broken = dict[int, int](), dict[int, NumbersError]()
        for row, held in ids.items():
            try:
                chosen[row] = int(tokens[row]) if sound[row] else self.choice(candidates[row], held)
            except NumbersError as error:
                broken[row] = error
        return chosen, broken

    def _report(self, found: str, ids: Sequence[int], *, usable: bool) -> None:
        """Raise an error, or warn once; later warnings are neither traced nor shown."""
        if usable and not self.strict and self._warned:
            return
        message = f"the model's output is broken: {found}"
        if self.traces:
            message += f"; {self.trace(ids) or 'a run token by token has none'}"
        if self.strict or not usable:
            raise NumbersError(f"{message}; check the weights (glinfer verify), or try more bits or another --device")
        self._warned = True
        note = "such tokens are never chosen (strict=True, --strict: stop here)"
        warnings.warn(f"{message}; {note}", GlinferWarning, stacklevel=4)

    def trace(self, ids: Sequence[int]) -> str:
        """Run tokens one by one, and describe the first pass that writes NaN or an infinity; empty if none does."""
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
                    if finder.found:
                        break
        finally:
            self._tracing = False
            observers.remove(finder)
        return finder.found
