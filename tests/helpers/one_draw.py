"""The harness of one-draw tests: a plan of one draw, bound, run over junk, read back and compared with its oracle.

:class:`OneDraw` is the base of all forms. :class:`BlockDraw` is the form over tensors in blocks, of one row or of many:
whatever a shader has no business to read is NaN there, texels between blocks among it. The targets are full of NaN too,
so that what a draw leaves unwritten shows; only what a pass promises is looked at, and nothing beside it may change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from glinfer.gl.context import Device
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BYTES, BlockLayout, RowLayout, blocks_for
from glinfer.gl.layouts.matrix import TexelLayout
from glinfer.kernels.fused.rows import ROW_WORDS, RowInterleaved, row_table
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import DrawSpec, Pass, RunValue, TensorSpec
from glinfer.program.compiled import Cells, cell_edges
from glinfer.program.oracle import relative_error, run_draw, written_rows
from glinfer.program.plan import Plan, PlanBuilder
from glinfer.program.session import Session

if TYPE_CHECKING:
    from typing_extensions import Self

Array = np.ndarray[Any, Any]
Values = Mapping[str, int | float]
OUT, TABLE = "out", "rows"
STALE = 3e38
TOLERANCE = 1e-5


def stale_numbers(array: Array) -> Array:
    """What an earlier run may have left: rows of huge numbers, of the signs in the array, and rows of NaN in turn."""
    huge = np.where(array < 0, -STALE, STALE).astype(array.dtype)
    huge[1::2] = np.nan
    return huge


@dataclass
class Case:
    """One run: its run values, inputs other than the draw's own, and which rows are anybody's (default: all)."""

    values: Values
    arrays: Mapping[str, Array] = field(default_factory=dict)
    real: Array = field(default_factory=lambda: np.ones(1, dtype=bool))

    def changed(self, **arrays: Array) -> Case:
        """The same run with other inputs."""
        return dataclasses.replace(self, arrays={**self.arrays, **arrays})


class OneDraw:
    """A plan of one draw into ``out``, with arrays for everything it reads."""

    def __init__(self, run_values: Iterable[RunValue] = (), max_rows: int = 1) -> None:
        self.builder = PlanBuilder("one draw", max_rows, list(run_values))
        self.arrays: dict[str, Array] = {}

    def draw(self, spec: DrawSpec) -> Self:
        self.builder.draw(spec)
        return self

    @property
    def plan(self) -> Plan:
        return self.builder.build()

    @property
    def spec(self) -> DrawSpec:
        return self.plan.draws[0]

    def given(self, case: Case) -> dict[str, Array]:
        """The arrays of one run by tensor name."""
        return {name: array.copy() for name, array in {**self.arrays, **case.arrays}.items()}

    def expected(self, case: Case) -> Array:
        """What float64 gives, from the same arrays."""
        matrices = {name: np.atleast_2d(array) for name, array in self.given(case).items()}
        return run_draw(self.spec, matrices, case.values)

    def promised(self, case: Case, shape: tuple[int, int]) -> Array:
        """Which numbers of the result a run must have written: those of real rows."""
        return np.broadcast_to(case.real[: shape[0], None], shape)

    @contextmanager
    def session(self, device: Device, case: Case, **options: Any) -> Iterator[Session]:
        """A session with the weights of a case, released at the end of the block."""
        session = Session(self.plan, self.given(case), device, **options)
        try:
            yield session
        finally:
            session.release()

    def run(self, device: Device, *cases: Case, **options: Any) -> list[Array]:
        """What the GPU writes in each run, one after the other in one session: the rows and columns of its extent."""
        with self.session(device, cases[0], **options) as session:
            return [self._run(session, case) for case in cases]

    def _run(self, session: Session, case: Case) -> Array:
        arrays = self.given(case)
        self.bind(session, arrays)
        held = self.spoil(session, arrays)
        assert session.run(case.values) == 1
        return self.read(session, case, arrays, held)

    def bind(self, session: Session, arrays: Mapping[str, Array]) -> None:
        """Write all inputs, those in blocks with NaN wherever no block lies."""
        for tensor in session.plan.of_kind("input"):
            texture = session.texture(tensor.name)
            if isinstance(texture.layout, BlockLayout):
                texture.gl.write(poisoned(texture.layout, arrays[tensor.name]))
            else:
                session.write(tensor.name, arrays[tensor.name])

    def spoil(self, session: Session, arrays: Mapping[str, Array]) -> list[Array]:
        """Fill the targets with NaN; the texels of those that are read back texel by texel."""
        session.texture(OUT).fill(np.nan)
        return []

    def read(self, session: Session, case: Case, arrays: Mapping[str, Array], held: list[Array]) -> Array:
        """The result of one run; ``held`` is what the targets held before it."""
        return session.read(OUT, *self.spec.extent(case.values)).copy()


class BlockDraw(OneDraw):
    """A plan of one draw over tensors in blocks, ``count`` rows at a time.

    Arrays are whole matrices by name, also of what is dealt to several tensors. ``alter`` is given those of one run to
    change some of them as it asks; ``promise`` says which numbers of the result matter where not all of real rows do.
    """

    def __init__(
        self, kernels: KernelOptions, ranges: Mapping[str, tuple[float, float]], edge: int = 2048, count: int = 1
    ) -> None:
        super().__init__(RunValue(name, *ends) for name, ends in ranges.items())
        self.kernels, self.ranges, self.edge, self.count = kernels, ranges, edge, count
        self.parts: dict[str, int] = {}
        self.by_row: set[str] = set()
        self.alter: Callable[[dict[str, Array], Case], None] = lambda arrays, case: None
        self.promise: Callable[[Case, tuple[int, int]], Array] | None = None

    def of(self, rows: int | str = 0) -> Pass:
        """What the draw's builder needs to know; by default all slots of rows, or the one row."""
        return Pass("draw", self.kernels, rows=rows or ("row_slots" if "row_slots" in self.ranges else 1))

    def layout(self, rows: int, cols: int) -> BlockLayout:
        return BlockLayout.of((rows, cols), self.edge, tiles=self.kernels.tiles, pitch=self.kernels.pitch)

    def whole(self, name: str, array: Array, layout: TexelLayout, kind: str = "input") -> TensorSpec:
        self.arrays[name] = array
        return self.builder.laid_out(name, kind, layout)

    def blocks(self, name: str, array: Array) -> TensorSpec:
        """An input, vectors in blocks."""
        return self.whole(name, array, self.layout(*array.shape))

    def cache(self, name: str, array: Array) -> TensorSpec:
        """An input, many vectors, the same block of all of them together."""
        return self.whole(name, array, BlockLayout.by_block(array.shape, self.edge))

    def in_bytes(self, name: str, array: Array) -> TensorSpec:
        """The same in bytes with scales; what the oracle is given is rounded as the texture holds it."""
        layout, alter = BlockLayout.by_block(array.shape, self.edge, format_name=BYTES), self.alter

        def rounded(arrays: dict[str, Array], case: Case) -> None:
            alter(arrays, case)
            arrays[name] = layout.unpack(layout.pack(arrays[name]), *array.shape)

        self.alter = rounded
        return self.whole(name, array, layout)

    def weight(self, name: str, array: Array, layout: TexelLayout) -> TensorSpec:
        return self.whole(name, array, layout, "weight")

    def row_weight(self, name: str, array: Array) -> TensorSpec:
        return self.weight(name, array, RowLayout.of(array.shape, "rgba32f", self.edge))

    def row_input(self, name: str, array: Array) -> TensorSpec:
        return self.whole(name, array, RowLayout.of(array.shape, "rgba32f", self.edge))

    def table(self, rows: int) -> TensorSpec:
        return self.whole(TABLE, row_table(rows), RowLayout.of((rows, ROW_WORDS), "rgba32ui", self.edge))

    def deal(self, name: str, slots: int, cols: int, kind: str = "input") -> RowInterleaved:
        """A matrix without an array of its own."""
        self.parts[name], layout = self.count, self.layout(slots, cols)
        return RowInterleaved(tuple(self.builder.laid_out(f"{name}.{n}", kind, layout) for n in range(self.count)))

    def interleaved(self, name: str, array: Array) -> RowInterleaved:
        """An input whose rows are the run's."""
        self.arrays[name] = array
        self.by_row.add(name)
        return self.deal(name, len(array) // self.count, array.shape[1])

    def out(self, layout: BlockLayout) -> TensorSpec:
        return self.builder.laid_out(OUT, "cache", layout)

    def given(self, case: Case) -> dict[str, Array]:
        arrays = super().given(case)
        for name in self.by_row:
            arrays[name][~case.real] = np.nan
        self.alter(arrays, case)
        given = {name: array for name, array in arrays.items() if name not in self.parts}
        for name, array in arrays.items():
            given.update({f"{name}.{n}": array[n :: self.parts[name]] for n in range(self.parts.get(name, 0))})
        return given

    def promised(self, case: Case, shape: tuple[int, int]) -> Array:
        return super().promised(case, shape) if self.promise is None else self.promise(case, shape)

    def expected(self, case: Case) -> Array:
        """What float64 gives: the rows of all targets in turn."""
        given = self.given(case)
        if "score_slots" in case.values:  # an oracle takes what the pass before has written, and no more
            used = {name: given[name][: int(case.values["score_slots"])] for name in given if "scores" in name}
            given.update(used)
        with np.errstate(all="ignore"):
            return in_turn(run_draw(self.spec, given, case.values))

    def spoil(self, session: Session, arrays: Mapping[str, Array]) -> list[Array]:
        held = []
        for name in self.spec.outputs:
            target = session.texture(name)
            layout = block_layout(target.layout)
            held.append(poisoned(layout, arrays.get(name, np.full((layout.rows, layout.cols), np.nan, np.float32))))
            target.gl.write(held[-1])
        return held

    def read(self, session: Session, case: Case, arrays: Mapping[str, Array], held: list[Array]) -> Array:
        spec, found, cols = self.spec, [], self.spec.extent(case.values)[1]
        places = written_rows(spec, {name: arrays[name] for _, name in spec.inputs}, case.values)
        for name, before in zip(spec.outputs, held, strict=True):
            target = session.texture(name)
            layout = block_layout(target.layout)
            texels = target.framebuffer.read(0, layout.width, layout.height)
            beside = ~self._covered(layout, places, case.values)
            left = np.zeros_like(before) if spec.clears == "all" else before
            same = texels.view(np.uint32) == left.view(np.uint32)
            assert same[beside].all(), f"{name}: something that the pass does not write has changed"
            x, y = layout.texels_of(layout.rows)
            elements = layout.elements(texels[y, x]) if layout.scale_blocks else texels[y, x].reshape(layout.rows, -1)
            found.append(elements[places])
        rows = in_turn(found[0] if len(found) == 1 else np.stack(found))
        promised = self.promised(case, (len(rows), cols))
        padding = slice(cols, BLOCK_FLOATS * blocks_for(cols))
        assert not rows[promised.any(axis=1), padding].any(), "the padding of a vector is zero"
        return rows[:, :cols]

    def _covered(self, layout: BlockLayout, places: Array, values: Values) -> Array:
        """[height, width]: the texels that the pass may write."""
        covered = np.zeros((layout.height, layout.width), dtype=bool)
        if not self.spec.largest_cell:
            x, y = layout.texels_of(layout.rows)
            covered[y[places], x[places]] = True
            return covered
        slots = self.spec.extent(values)[0]
        cells = Cells.of(layout, slots, int(cell_edges(layout, slots, self.spec.largest_cell)))
        for tile in range(layout.tiles):
            left, up = tile * layout.pitch, 4 * cells.edge * (cells.each // cells.across)
            covered[:up, left : left + 4 * cells.edge * cells.across] = True
        return covered


def check(device: Device, one: OneDraw, *cases: Case, what: str = "", tolerance: float = TOLERANCE) -> list[Array]:
    """Every run against the oracle, where the pass promises something; what it wrote."""
    found = one.run(device, *cases)
    for case, result in zip(cases, found, strict=True):
        expected, name = one.expected(case), f"{what} {dict(case.values)}"
        assert result.shape == expected.shape
        promised = one.promised(case, expected.shape)
        assert promised.any()
        wrong = promised & ~np.isfinite(result)
        assert not wrong.any(), f"{name}: {np.argwhere(wrong)[:5].tolist()} are not finite"
        error = relative_error(result[promised], expected[promised])
        assert error <= tolerance, f"{name}: off by {error:.2e}"
    return found


def block_layout(layout: TexelLayout) -> BlockLayout:
    assert isinstance(layout, BlockLayout)
    return layout


def poisoned(layout: TexelLayout, matrix: Array) -> Array:
    """Texels of a matrix in blocks, NaN wherever no block lies; of bytes -1, the bits of a scale that is NaN."""
    layout = block_layout(layout)
    nothing, dtype = (-1, np.int8) if layout.scale_blocks else (np.nan, np.float32)
    texels = np.full((layout.height, layout.width, 4), nothing, dtype=dtype)
    x, y = layout.texels_of(layout.rows)
    packed = layout.pack(matrix)
    texels[y, x] = packed[y, x]
    return texels


def in_turn(parts: Array) -> Array:
    """[targets, slots, cols] → [slots · targets, cols], or the matrix itself of one target."""
    return parts if parts.ndim == 2 else parts.transpose(1, 0, 2).reshape(-1, parts.shape[2])


def normal(seed: int, *shape: int, scale: float = 1.0, offset: float = 0.0) -> Array:
    """Random numbers around ``offset``."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale + offset).astype(np.float32)
