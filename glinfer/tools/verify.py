"""Do textures hold exactly what was uploaded, and does every draw compute what it should?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glinfer.formats import Checkpoint
from glinfer.generation.model import check_ids
from glinfer.gl.context import Device
from glinfer.gl.layout import Layout
from glinfer.gl.program import Program
from glinfer.gl.replay import Draw, replay
from glinfer.gl.texture import Texture
from glinfer.models.gab import TOKENS
from glinfer.models.oracle import relative_error, run_draw
from glinfer.models.plan import Plan
from glinfer.models.session import Session, weight_matrix
from glinfer.ops import DrawSpec
from glinfer.ops.spec import Array

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
    """One draw against float64 on the draw's own inputs as read back from the GPU."""

    index: int
    name: str
    shader: str
    rows: int
    cols: int
    max_relative_error: float
    unwritten: int

    @property
    def passed(self) -> bool:
        """Within tolerance, every element written, no NaN where the oracle has none."""
        return self.unwritten == 0 and self.max_relative_error <= DRAW_TOLERANCE


@dataclass(frozen=True)
class VerifyReport:
    """Everything that one run of verify found."""

    renderer: str
    textures: tuple[TextureCheck, ...]
    special: tuple[SpecialCheck, ...]
    draws: tuple[DrawCheck, ...] = ()

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
        return stored and not self.bad_textures and self.first_bad_draw is None

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
        }


def verify_textures(
    checkpoint: Checkpoint, plan: Plan, device: Device, on_check: Callable[[TextureCheck], None] | None = None
) -> list[TextureCheck]:
    """Upload each weight of the plan, read it back through a framebuffer, compare bit for bit.

    One texture lives at a time, so a checkpoint larger than texture memory can be checked as well.
    """
    checks = []
    for tensor in plan.of_kind("weight"):
        expected = np.ascontiguousarray(weight_matrix(tensor, checkpoint.tensors))
        layout = Layout.of(tensor.shape, tensor.format, device.limits.max_texture_size)
        texture = Texture(device, layout, tensor.name, layout.pack(expected))
        try:
            found = np.ascontiguousarray(texture.read())
        finally:
            texture.release()
        checks.append(_compare(tensor.name, layout, expected, found))
        if on_check is not None:
            on_check(checks[-1])
    return checks


def _compare(name: str, layout: Layout, expected: Array, found: Array) -> TextureCheck:
    identical = bool(np.array_equal(expected.view(np.uint32), found.view(np.uint32)))
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
    shader_root: Path | None = None,
    on_check: Callable[[DrawCheck], None] | None = None,
) -> list[DrawCheck]:
    """Run one forward draw by draw, each compared with float64 on the very inputs that the GPU had.

    Every target is filled with NaN first, so that an element a draw leaves unwritten is seen.

    Raises:
        InputError: the ids are none that the model can run.
    """
    ids = check_ids(ids, checkpoint.config)
    session = Session(plan, checkpoint.tensors, device, shader_root=shader_root)
    try:
        return _DrawChecker(session, checkpoint, {"rows": len(ids)}, on_check).run(ids)
    finally:
        session.release()


class _DrawChecker:
    def __init__(
        self,
        session: Session,
        checkpoint: Checkpoint,
        values: dict[str, int],
        on_check: Callable[[DrawCheck], None] | None,
    ) -> None:
        self.session, self.checkpoint, self.values, self.on_check = session, checkpoint, values, on_check
        self.weights = {
            tensor.name: weight_matrix(tensor, checkpoint.tensors) for tensor in session.plan.of_kind("weight")
        }
        # How much of each tensor is in use: what its last writer wrote.
        self.extents = {TOKENS: (values["rows"], 1)}
        self.inputs: dict[str, Array] = {}
        self.checks: list[DrawCheck] = []

    def run(self, ids: Sequence[int]) -> list[DrawCheck]:
        self.session.write(TOKENS, np.asarray(ids, dtype=np.int32)[:, None])
        self.session.run(self.values, before=self.before, after=self.after)
        return self.checks

    def before(self, spec: DrawSpec) -> None:
        self.inputs = {
            name: self.weights[name] if name in self.weights else self.session.read(name, *self.extents[name])
            for name in spec.reads
        }
        for name in spec.writes:
            self.session.texture(name).fill(np.nan)

    def after(self, spec: DrawSpec) -> None:
        rows, cols = self.extents[spec.outputs[0]] = spec.extent(self.values)
        found = self.session.read(spec.outputs[0], rows, cols)
        expected = run_draw(spec, self.inputs, self.values)
        unwritten = int(np.count_nonzero(np.isnan(found) & ~np.isnan(expected)))
        error = relative_error(np.nan_to_num(found, nan=0.0) if unwritten else found, expected)
        check = DrawCheck(len(self.checks), spec.name, spec.op, rows, cols, error, unwritten)
        self.checks.append(check)
        if self.on_check is not None:
            self.on_check(check)
