"""Do textures hold exactly what was uploaded, and does every draw compute what it should?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glinfer.formats import Checkpoint
from glinfer.generation.ids import check_ids
from glinfer.gl.blocks import BlockLayout
from glinfer.gl.context import Device
from glinfer.gl.flat import FlatLayout
from glinfer.gl.layout import Layout, TexelLayout
from glinfer.gl.program import Program
from glinfer.gl.replay import Draw, replay
from glinfer.gl.texture import Texture
from glinfer.models.oracle import RunValues, relative_error, run_draw, written_rows
from glinfer.models.plan import Plan
from glinfer.models.session import Session, weight_matrix
from glinfer.ops import DrawSpec
from glinfer.ops.noise import noise_key
from glinfer.ops.spec import Array
from glinfer.tools.draws import runs
from glinfer.tools.verify_greedy import GreedyCheck

Weights = Mapping[str, Array]

DRAW_TOLERANCE = 1e-5
"""Largest error of a draw against float64, relative to the largest value of its output."""

SPECIAL_BITS: dict[str, tuple[int, ...]] = {
    "NaN payloads": (0x7FC00000, 0xFFC00000, 0x7FC12345, 0x7FFFFFFF, 0x7F800001, 0xFFABCDEF),
    "infinities": (0x7F800000, 0xFF800000),
    "negative zero": (0x80000000,),
    "denormals": (0x00000001, 0x80000001, 0x00400000, 0x007FFFFF, 0x807FFFFF),
    "extremes": (0x00800000, 0x80800000, 0x7F7FFFFF, 0xFF7FFFFF),
}
"""Float32 bit patterns that a careless path changes, by class."""


@dataclass(frozen=True)
class TextureCheck:
    """One weight texture after upload and readback."""

    name: str
    width: int
    height: int
    format: str
    bytes: int
    identical: bool
    max_difference: float


@dataclass(frozen=True)
class SpecialCheck:
    """One class of special values: whether its bits survive storage, and a fragment pass that copies them."""

    name: str
    stored: bool
    through_a_draw: bool


@dataclass(frozen=True)
class DrawCheck:
    """One draw against float64 on the draw's own inputs as read back from the GPU.

    ``unwritten`` counts the elements that it left as they were, or made NaN where they should not be, ``strays``
    those that it wrote beside its own rows of a tensor in blocks.
    """

    index: int
    name: str
    shader: str
    rows: int
    cols: int
    max_relative_error: float
    unwritten: int
    strays: int = 0

    @property
    def passed(self) -> bool:
        """Within tolerance, every element written and none beside them, no NaN where the oracle has none."""
        return self.unwritten == self.strays == 0 and self.max_relative_error <= DRAW_TOLERANCE


@dataclass(frozen=True)
class VerifyReport:
    """Everything that one run of verify found."""

    renderer: str
    textures: tuple[TextureCheck, ...]
    special: tuple[SpecialCheck, ...]
    draws: tuple[DrawCheck, ...] = ()
    greedy: GreedyCheck | None = None

    @property
    def bad_textures(self) -> list[TextureCheck]:
        """Textures that gave back other bits."""
        return [check for check in self.textures if not check.identical]

    @property
    def first_bad_draw(self) -> DrawCheck | None:
        """The first draw that differs from the oracle."""
        return next((check for check in self.draws if not check.passed), None)

    @property
    def passed(self) -> bool:
        """Whether everything that was checked holds."""
        stored = all(check.stored for check in self.special)
        chosen = self.greedy is None or self.greedy.passed
        return stored and chosen and not self.bad_textures and self.first_bad_draw is None

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        first = self.first_bad_draw
        return {
            "passed": self.passed,
            "renderer": self.renderer,
            "textures": [dataclasses.asdict(check) for check in self.textures],
            "special_values": [dataclasses.asdict(check) for check in self.special],
            "draws": [{**dataclasses.asdict(check), "passed": check.passed} for check in self.draws],
            "first_bad_draw": None if first is None else first.name,
            "greedy": None if self.greedy is None else self.greedy.to_json(),
        }


def verify_textures(
    checkpoint: Checkpoint,
    plan: Plan,
    device: Device,
    on_check: Callable[[TextureCheck], None] | None = None,
    *,
    weights: Weights | None = None,
) -> list[TextureCheck]:
    """Upload each weight of the plan, read it back through a framebuffer, compare bit for bit.

    One texture lives at a time, so a checkpoint larger than texture memory can be checked as well.

    Args:
        checkpoint: where the weights come from.
        plan: which weights, and where their elements lie.
        device: the renderer to check.
        on_check: told each check as it is made.
        weights: the plan's weights by tensor name, where they are not the checkpoint's own: folded and packed by
            :func:`glinfer.models.fold.fold`, say. Packed weights are compared word for word.
    """
    arrays = checkpoint.tensors if weights is None else weights
    checks = []
    for tensor in plan.of_kind("weight"):
        expected = np.ascontiguousarray(weight_matrix(tensor, arrays))
        layout = tensor.layout_within(device.limits.max_texture_size)
        texture = Texture(device, layout, tensor.name, layout.pack(expected))
        try:
            found = np.ascontiguousarray(texture.read())
        finally:
            texture.release()
        checks.append(_compare(tensor.name, layout, expected, found))
        if on_check is not None:
            on_check(checks[-1])
    return checks


def _compare(name: str, layout: TexelLayout, expected: Array, found: Array) -> TextureCheck:
    bits = f"u{expected.dtype.itemsize}"
    identical = found.dtype == expected.dtype and bool(np.array_equal(expected.view(bits), found.view(bits)))
    difference = 0.0
    if not identical:
        with np.errstate(invalid="ignore", over="ignore"):
            gaps = np.abs(expected.astype(np.float64) - found.astype(np.float64))
        difference = float(np.max(np.where(np.isnan(gaps), np.inf, gaps)))
    return TextureCheck(name, layout.width, layout.height, layout.format.name, layout.nbytes, identical, difference)


def verify_special_values(device: Device) -> list[SpecialCheck]:
    """Store every special bit pattern in an R32F texture, read it back, and read back a copy made by a draw.

    Storage must keep every bit. A draw computes, and OpenGL ES lets it flush denormals and change NaN bits,
    so that column is told, not judged.
    """
    bits = np.array([pattern for group in SPECIAL_BITS.values() for pattern in group], dtype=np.uint32)
    layout = Layout.of((1, bits.size), "r32f", device.limits.max_texture_size)
    source = Texture(device, layout, "special values", layout.pack(bits.view(np.float32)[None, :]))
    target = Texture(device, layout, "their copy")
    program = Program(device, "copy", {"COLS": bits.size}, ["x"])
    try:
        draw = Draw("copy", program, target.framebuffer, (source,), (), (), (1, int(bits.size)))
        replay(device, [draw], {})
        stored = np.ascontiguousarray(source.read()).view(np.uint32)[0]
        copied = np.ascontiguousarray(target.read()).view(np.uint32)[0]
    finally:
        for item in (program, target, source):
            item.release()
    checks, start = [], 0
    for name, patterns in SPECIAL_BITS.items():
        part = slice(start, start + len(patterns))
        checks.append(
            SpecialCheck(
                name,
                bool(np.array_equal(stored[part], bits[part])),
                bool(np.array_equal(copied[part], bits[part])),
            )
        )
        start += len(patterns)
    return checks


def verify_draws(
    checkpoint: Checkpoint,
    plan: Plan,
    device: Device,
    ids: Sequence[int],
    *,
    weights: Weights | None = None,
    shader_root: Path | None = None,
    on_check: Callable[[DrawCheck], None] | None = None,
) -> list[DrawCheck]:
    """Run the ids through a plan, and compare every draw of the last run with float64 on the GPU's own inputs.

    A plan over whole sequences takes one run for that. A plan with a cache takes one token a run: those before the
    last are run as ever, the last one draw by draw. Every target is filled with NaN first, so that an element a draw
    leaves unwritten is seen, and so is one that it writes beside its own rows; a target that a draw adds to keeps
    what it holds.

    Args:
        checkpoint: the model.
        plan: what to run.
        device: the renderer to check.
        ids: the sequence.
        weights: as in :func:`verify_textures`.
        shader_root: another folder of shader files, for trying out changed shaders.
        on_check: told each check as it is made.

    Raises:
        InputError: the ids are none that the model can run.
    """
    ids = check_ids(ids, checkpoint.config)
    arrays = checkpoint.tensors if weights is None else weights
    session = Session(plan, arrays, device, shader_root=shader_root)
    try:
        checker = _DrawChecker(session, arrays, on_check)
        *earlier, (inputs, values) = runs(plan, ids)
        for before in earlier:
            checker.run(*before)
        if "noise" in values:  # with noise in the choice of a token, so that it is checked as well
            values |= {"noise": 1.0, "inverse_temperature": 1.25, "noise_key": noise_key(0, len(ids))}
        return checker.check(inputs, values)
    finally:
        session.release()


class _DrawChecker:
    def __init__(self, session: Session, weights: Weights, on_check: Callable[[DrawCheck], None] | None) -> None:
        self.session, self.on_check, self.table = session, on_check, session.plan.table
        self.weights = {tensor.name: weight_matrix(tensor, weights) for tensor in session.plan.of_kind("weight")}
        # Tensors whose texels are numbered through are read as a whole: rows in use need not be the first.
        self.whole = {tensor.name for tensor in session.plan.tensors if isinstance(tensor.layout, FlatLayout)}
        # How much of each tensor is in use: the first rows that were written, and their columns.
        self.extents = {
            tensor.name: tensor.shape if tensor.name in self.whole else (1, tensor.shape[1])
            for tensor in session.plan.of_kind("cache")
        }
        self.values: RunValues = {}
        self.inputs: dict[str, Array] = {}
        self.saved: dict[str, Array] = {}
        self.checks: list[DrawCheck] = []

    def run(self, inputs: Mapping[str, Array], values: RunValues) -> None:
        """One run without a look at it."""
        self.write(inputs)
        self.session.run(values)
        self.values = values
        for spec in self.session.plan.draws:
            self.note(spec)

    def check(self, inputs: Mapping[str, Array], values: RunValues) -> list[DrawCheck]:
        """One run, every draw of it compared."""
        self.write(inputs)
        self.values = values
        self.session.run(values, before=self.before, after=self.after)
        return self.checks

    def write(self, inputs: Mapping[str, Array]) -> None:
        for name, array in inputs.items():
            self.session.write(name, array)
            self.extents[name] = (array.shape[0], array.shape[1])

    def note(self, spec: DrawSpec) -> None:
        """Keep what is in use now that a draw was made."""
        rows, cols = spec.extent(self.values)
        for name in spec.writes:
            if name not in self.whole:
                used = self.extents[name][0] if self.table[name].kind == "cache" else 0
                self.extents[name] = (max(used, spec.first_row(self.values) + rows), cols)

    def read(self, name: str) -> Array:
        """What is in use of a tensor."""
        return self.session.read(name) if name in self.whole else self.session.read(name, *self.extents[name])

    def before(self, spec: DrawSpec) -> None:
        kept = spec.writes if spec.adds and not spec.clears else ()
        self.inputs = {
            name: self.weights[name] if name in self.weights else self.read(name) for name in (*spec.reads, *kept)
        }
        self.saved = {name: self.read(name) for name in spec.writes if self.table[name].kind == "cache"}
        for name in spec.writes:
            if name not in kept:
                self.session.texture(name).fill(np.nan)

    def after(self, spec: DrawSpec) -> None:
        self.note(spec)
        rows, cols = spec.extent(self.values)
        found = [self.written(spec, name) for name in spec.outputs]
        strays = sum(beside for _, beside in found)
        computed = run_draw(spec, self.inputs, self.values)
        unwritten, error = 0, 0.0
        for (part, _), expected in zip(found, computed if len(found) > 1 else [computed], strict=True):
            missing = int(np.count_nonzero(np.isnan(part) & ~np.isnan(expected)))
            error = max(error, self.error(spec, np.nan_to_num(part, nan=0.0) if missing else part, expected))
            unwritten += missing
        check = DrawCheck(len(self.checks), spec.name, spec.op, rows, cols, error, unwritten, strays)
        self.checks.append(check)
        if self.on_check is not None:
            self.on_check(check)

    def written(self, spec: DrawSpec, name: str) -> tuple[Array, int]:
        """What a draw wrote of one tensor, and how many elements beside that; a cache gets back what it held."""
        (rows, cols), first, strays = spec.extent(self.values), spec.first_row(self.values), 0
        layout = self.session.texture(name).layout
        if name in self.whole or isinstance(layout, BlockLayout):
            held = self.session.read(name)
            places = written_rows(spec, self.inputs, self.values)
            found = held[places, :cols]
            # A triangle covers whole lines of a texture, and so the rows behind those in use, where nobody reads.
            if not spec.adds and (isinstance(layout, BlockLayout) or spec.cover == "scatter"):
                strays = int(np.count_nonzero(~np.isnan(held)) - np.count_nonzero(~np.isnan(found)))
        else:
            places, found = np.arange(first, first + rows), self.session.read(name, rows, cols)
        self.restore(name, places, found)
        return found, strays

    def restore(self, name: str, places: Array, found: Array) -> None:
        """Put back what a cache held beside the rows that were written."""
        if name in self.saved:
            used, cols = self.extents[name]
            matrix = np.zeros((used, cols), dtype=np.float32)
            matrix[: len(self.saved[name])] = self.saved[name]
            matrix[places, : found.shape[1]] = found
            self.session.texture(name).fill(0.0)
            self.session.write(name, matrix)

    def error(self, spec: DrawSpec, found: Array, expected: Array) -> float:
        """The error relative to the output's largest value; of a choice, of its scores, if the ids are right.

        Two scores may be closer together than the noise is exact. So an id is right where it has the score that is
        told, whichever other id has one as large.
        """
        if spec.op != "pick":
            return relative_error(found, expected)
        logits = self.inputs[spec.input("logits")]
        found, expected = found.reshape(-1, 4), expected.reshape(-1, 4)
        ids = np.clip(found[:, 1], 0, logits.shape[1] - 1).astype(np.intp)
        alone = np.full_like(logits, -1e30)
        alone[0, ids] = logits[0, ids]
        told = run_draw(spec, {spec.input("logits"): alone}, self.values).reshape(-1, 4)
        if not np.array_equal(found[:, 1:], told[:, 1:]):
            return float("inf")
        return max(relative_error(found[:, 0], scores[:, 0]) for scores in (told, expected))
