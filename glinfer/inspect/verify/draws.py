"""Comparison of every draw with float64, and of OpenGL's state with the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glinfer.engine.engine import Engine
from glinfer.engine.ids import check_ids
from glinfer.engine.report import Report
from glinfer.engine.sampler import SamplingOptions
from glinfer.engine.textures import as_bits
from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.layouts.matrix import TexelLayout
from glinfer.inspect.verify.state import StateCheck, StateFault
from glinfer.kernels import OPS, DrawSpec
from glinfer.kernels.fused.choice import FILTER_WORDS
from glinfer.kernels.fused.rows import fill_choices, row_table
from glinfer.kernels.noise import noise_key
from glinfer.kernels.spec import Array
from glinfer.lower.feed import runs
from glinfer.lower.fused.choice import TABLE
from glinfer.program.oracle import (
    RunValues,
    allowed_errors,
    by_output,
    relative_error,
    rounding,
    run_draw,
    written_rows,
)
from glinfer.program.session import Hook, Session, weight_matrix

_FILTERS = SamplingOptions(top_k=5, top_p=0.9)
DRAW_TOLERANCE = 1e-5
"""Largest accepted error of a draw against float64, relative to the largest value of its output."""


@dataclass(frozen=True)
class DrawCheck(Report):
    """One draw against float64 on its own inputs, read back from the GPU.

    ``unwritten`` counts elements that it left unchanged or made NaN unexpectedly, ``strays`` those outside its rows
    of a tensor in blocks. ``findings`` are OpenGL errors and faults of its state.
    """

    derived = ("passed",)

    index: int
    name: str
    shader: str
    rows: int
    cols: int
    max_relative_error: float
    unwritten: int
    strays: int = 0
    findings: tuple[StateFault, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether all elements, and no others, were written within the tolerance."""
        return self.unwritten == self.strays == 0 and self.max_relative_error <= DRAW_TOLERANCE

    @property
    def passed(self) -> bool:
        """Whether its values are exact and its state has no fault."""
        return self.exact and not self.findings


def verify_draws(
    engine: Engine,
    ids: Sequence[int],
    *,
    on_check: Callable[[DrawCheck], None] | None = None,
    on_bound: Callable[[Session], object] | None = None,
    before: Hook | None = None,
) -> list[DrawCheck]:
    """Run ids through the bound plan of an engine, and compare every draw of the last run with float64.

    Each draw is compared on the GPU's own inputs, except that the oracle uses the weights of ``engine.source``. A plan
    over whole sequences needs one run. A plan with a cache needs one run per token: the last one is compared draw by
    draw, then the choice among filtered tokens. Every target is first filled with NaN, which reveals unwritten elements
    and strays; a target that a draw adds to keeps its contents. After each draw OpenGL's errors and state are checked,
    see :data:`glinfer.inspect.verify.state.KINDS`; in earlier runs, only errors. Afterwards the model continues as
    before: the contents of its caches are computed again.

    ``on_check`` receives each finished check. Two hooks plant faults for tests: ``on_bound`` receives the session
    before the first run, ``before`` each draw right before it runs, after its inputs were read. InputError if the model
    cannot run the ids.
    """
    ids = check_ids(ids, engine.options.config)
    session, *others = engine.sessions_for(len(ids))
    engine.forget_own()
    checker = _DrawChecker(session, engine.source(), on_check, before)
    if on_bound is not None:
        on_bound(session)
    drawn = noise_key(0, len(ids)), 1.25  # also checks the noise in sampling
    *earlier, (inputs, values) = runs(session.plan, ids)
    for number, given in enumerate(earlier):
        checker.run(*given, where=f"run {number + 1} of {len(earlier) + 1}")
    if "noise" in values:
        values |= {"noise": 1.0, "noise_key": drawn[0], "inverse_temperature": drawn[1]}
    checks = checker.run(inputs, values)
    for other in others:
        checker = _DrawChecker(other, {}, on_check, before, first=len(checks))
        table = row_table(other.plan.table[TABLE].shape[0])
        table[0, FILTER_WORDS] = _FILTERS.filter_words
        fill_choices(table, [drawn])
        checks += checker.run({TABLE: table}, other.plan.values_for(1))
    return checks


def _numbers(layout: TexelLayout, held: Array) -> int:
    """Count elements of a tensor that are not NaN; elements that slots share count once."""
    found = ~np.isnan(held)
    if not isinstance(layout, BlockLayout) or not layout.aside:
        return int(np.count_nonzero(found))
    kept = layout.kept_cols
    return int(np.count_nonzero(found[:, :kept]) + np.count_nonzero(found[:: layout.every, kept:]))


class _DrawChecker:
    def __init__(
        self,
        session: Session,
        weights: Mapping[str, Array],
        on_check: Callable[[DrawCheck], None] | None,
        planted: Hook | None,
        *,
        first: int = 0,
    ) -> None:
        self.session, self.on_check, self.table, self.first = session, on_check, session.plan.table, first
        self.planted, self.state = planted, StateCheck(session)
        self.findings: dict[str, list[StateFault]] = {spec.name: [] for spec in session.plan.draws}
        self.weights = {tensor.name: weight_matrix(tensor, weights) for tensor in session.plan.of_kind("weight")}
        # Tensors whose rows in use need not be the first are read whole.
        self.whole = {tensor.name for tensor in session.plan.tensors if isinstance(tensor.layout, FlatLayout)}
        self.whole |= {name for spec in session.plan.draws if OPS[spec.op].rows_written for name in spec.writes}
        # Rows and columns in use of each tensor.
        self.extents = {
            tensor.name: tensor.shape if tensor.name in self.whole else (1, tensor.shape[1])
            for tensor in session.plan.of_kind("cache")
        }
        # Inputs that another plan has written, such as logits, are in use whole.
        self.extents |= {tensor.name: tensor.shape for tensor in session.plan.of_kind("input")}
        self.values: RunValues = {}
        self.inputs: dict[str, Array] = {}
        self.saved: dict[str, Array] = {}
        self.checks: list[DrawCheck] = []

    def run(self, inputs: Mapping[str, Array], values: RunValues, where: str = "") -> list[DrawCheck]:
        """Run and compare every draw; errors of an earlier run, which has a name, are kept for the checks."""
        for name, array in inputs.items():
            self.session.write(name, array)
            self.extents[name] = (array.shape[0], array.shape[1])
        self.values = self.session.compiled.plan.values(values)

        def noted(spec: DrawSpec) -> None:
            self.findings[spec.name] += self.state.errors(where)
            self.note(spec)

        hooks = (self.planted, noted) if where else (self.before, self.after)
        self.session.run(values, before=hooks[0], after=hooks[1])
        return self.checks

    def note(self, spec: DrawSpec) -> None:
        """Update the extents in use after a draw."""
        rows, cols = spec.extent(self.values)
        for name in spec.writes:
            if name not in self.whole:
                used, width = self.extents[name] if self.table[name].kind == "cache" else (0, 0)
                self.extents[name] = (max(used, spec.first_row(self.values) + rows), max(width, cols))

    def read(self, name: str) -> Array:
        """Read the part of a tensor in use."""
        return self.session.read(name) if name in self.whole else self.session.read(name, *self.extents[name])

    def before(self, spec: DrawSpec) -> None:
        kept = spec.writes if spec.needs_output else ()
        self.inputs = {
            name: self.weights[name] if name in self.weights else self.read(name) for name in (*spec.reads, *kept)
        }
        self.saved = {name: self.read(name) for name in spec.writes if self.table[name].kind == "cache"}
        for name in spec.writes:
            if name not in kept:
                self.session.texture(name).fill(np.nan)
        if self.planted is not None:
            self.planted(spec)

    def after(self, spec: DrawSpec) -> None:
        # Before any readback, which changes the state and raises pending errors.
        findings = [*self.findings[spec.name], *self.state.errors()]
        findings += self.state.look(len(self.checks), self.values)
        self.note(spec)
        rows, cols = spec.extent(self.values)
        found = [self.written(spec, name) for name in spec.outputs]
        strays = sum(beside for _, beside in found)
        computed = by_output(spec, run_draw(spec, self.inputs, self.values))
        near = allowed_errors(spec, self.inputs, self.values)
        more = {} if isinstance(near, float) else by_output(spec, near)
        unwritten, error = 0, 0.0
        for (part, _), (name, values) in zip(found, computed.items(), strict=True):
            expected, allowed = rounding(values, self.table[name])
            allowed = allowed + more.get(name, 0.0)
            missing = int(np.count_nonzero(np.isnan(part) & ~np.isnan(expected)))
            part = np.nan_to_num(part, nan=0.0) if missing else part
            error = max(error, self.error(spec, name, part, expected, allowed))
            unwritten += missing
        index = self.first + len(self.checks)
        check = DrawCheck(index, spec.name, spec.shader, rows, cols, error, unwritten, strays)
        if not check.exact:
            findings += self.changed_weights(spec)
        check = replace(check, findings=tuple(findings))
        self.checks.append(check)
        if self.on_check is not None:
            self.on_check(check)

    def changed_weights(self, spec: DrawSpec) -> Iterator[StateFault]:
        """Find weights of a draw whose texture has other bits than were uploaded."""
        for name in dict.fromkeys(spec.reads):
            if name not in self.weights:
                continue
            given, held = self.weights[name], self.session.read(name)
            differ = int(np.count_nonzero(as_bits(given) != as_bits(held)))
            if differ:
                turned = given.shape == held.T.shape and np.array_equal(as_bits(given.T), as_bits(held))
                found = "the matrix transposed" if turned else f"{differ:,} of {given.size:,} elements with other bits"
                yield StateFault("weight", name, found, "the bits that were given")

    def written(self, spec: DrawSpec, name: str) -> tuple[Array, int]:
        """Return a draw's output and the number of strays; restores the rest of a cache."""
        (rows, cols), first, strays = spec.extent(self.values), spec.first_row(self.values), 0
        layout = self.session.texture(name).layout
        if name in self.whole or isinstance(layout, BlockLayout):
            held = self.session.read(name)
            written = written_rows(spec, self.inputs, self.values)
            found = held[written, :cols]
            # A triangle covers whole lines of a texture, which include unused rows.
            if not spec.adds and (isinstance(layout, BlockLayout) or spec.cover == "scatter"):
                strays = _numbers(layout, held) - int(np.count_nonzero(~np.isnan(found)))
        else:
            written, found = np.arange(first, first + rows), self.session.read(name, rows, cols)
        self.restore(name, written, found)
        return found, strays

    def restore(self, name: str, rows: Array, found: Array) -> None:
        """Restore a cache outside the written rows."""
        if name in self.saved:
            used, cols = self.extents[name]
            matrix = np.zeros((used, cols), dtype=np.float32)
            matrix[: len(self.saved[name])] = self.saved[name]
            matrix[rows, : found.shape[1]] = found
            self.session.texture(name).fill(0.0)
            self.session.write(name, matrix)

    def error(self, spec: DrawSpec, name: str, found: Array, expected: Array, allowed: Array | float) -> float:
        """Return the error relative to the output's largest value; for a choice, of its scores if the ids are right.

        ``allowed`` is the rounding to half floats. Two scores may differ by less than the error of the noise, so an id
        is right if it has the reported score.
        """
        if spec.kind == "choice":
            return choice_error(name, found, expected)
        if spec.op != "pick":
            return relative_error(found, expected, allowed)
        logits = self.inputs[spec.input("logits")]
        found, expected = found.reshape(-1, 4), expected.reshape(-1, 4)
        ids = np.clip(found[:, 1], 0, logits.shape[1] - 1).astype(np.intp)
        alone = np.full_like(logits, -1e30)
        alone[0, ids] = logits[0, ids]
        chosen = run_draw(spec, {spec.input("logits"): alone}, self.values).reshape(-1, 4)
        if not np.array_equal(found[:, 1:], chosen[:, 1:]):
            return float("inf")
        return max(relative_error(found[:, 0], scores[:, 0]) for scores in (chosen, expected))


def choice_error(name: str, found: Array, expected: Array) -> float:
    """Return the largest error of the four channels of an output of :mod:`glinfer.kernels.fused.choice`.

    Copied logits, ids and placeholder numbers must be equal; otherwise the error is infinite.
    """
    exact = {"choice.best": 4, "choice.facts": 2}.get(name, 0 if name.startswith("choice.") else 4)
    error = 0.0
    for channel in range(3 if name == "choice.other" else 4):
        part, wanted = found[:, channel::4], expected[:, channel::4]
        if name == "choice.other" and channel == 1:  # the id of a score, of two that are nearly equal
            continue
        none = np.abs(wanted) >= 3e38
        same = slice(None) if channel < exact else none
        if not np.array_equal(part[same].astype(np.float32), wanted[same].astype(np.float32)):
            return float("inf")
        if channel >= exact and not none.all():
            error = max(error, relative_error(part[~none], wanted[~none]))
    return error
