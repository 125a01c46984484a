"""A plan: an immutable tuple of DrawSpecs and the table of tensors they read and write. Needs no GL."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BLOCK_EDGE, BlockLayout
from glinfer.gl.layouts.flat import LANES, FlatLayout
from glinfer.gl.layouts.matrix import FORMATS, Extent, TexelLayout
from glinfer.gl.values import compiled
from glinfer.kernels import OPS, DrawSpec, TensorSpec
from glinfer.kernels.fused.delta import REWINDS
from glinfer.kernels.spec import COVERS, Op, RunValue, Shapes
from glinfer.notebook import table
from glinfer.program.points import CapturePoint, View

if TYPE_CHECKING:  # importing it loads OpenGL
    from glinfer.gl.context import Limits


@dataclass(frozen=True)
class PlanLimits:
    """The limits that a plan can break, in texels, counts and pixels."""

    max_texture_size: int
    max_draw_buffers: int
    max_texture_units: int
    max_point_size: float = math.inf


@dataclass(frozen=True)
class Plan:
    """The draws of one forward pass, and their tensors.

    Attributes:
        name: such as ``reference``, ``fast``, ``chunk``, ``score`` or ``batch``.
        max_rows: the longest sequence, in tokens.
        run_values: the numbers that change from run to run.
        tensors: every tensor in the order of its declaration.
        draws: every pass in order.
        long_after: tokens of the longest text with the first of two sets of angles; 0 where there is one set.
        results: the tensors for the caller or a later run; whatever else a draw writes, a later draw reads.
        last_layer: number of the first draw of the last layer that later tokens need, in a plan for one token.
        points: the named values in the order of computation; only plans of one sequence have them.
        shared: the tensors, besides weights and caches, that another plan has too, over whose textures it is bound.
    """

    name: str
    max_rows: int
    run_values: tuple[RunValue, ...]
    tensors: tuple[TensorSpec, ...]
    draws: tuple[DrawSpec, ...]
    long_after: int = 0
    results: tuple[str, ...] = ()
    last_layer: int = 0
    shared: tuple[str, ...] = ()
    points: Mapping[str, CapturePoint] = field(default_factory=dict, compare=False)

    def is_long(self, tokens: int) -> bool:
        """Whether a text of ``tokens`` tokens has the second set of angles."""
        return 0 < self.long_after < tokens

    @cached_property
    def rewinds(self) -> int:
        """The most tokens by which its caches can be rewound; 0 if they keep all tokens."""
        layouts = (tensor.layout for tensor in self.of_kind("cache"))
        return REWINDS if any(isinstance(each, BlockLayout) and each.rolls for each in layouts) else 0

    def usable(self, tokens: int, reached: int) -> int:
        """How many of the first ``tokens`` remain usable once runs have reached ``reached`` tokens: all or none."""
        return 0 if 0 < self.rewinds < reached - tokens else tokens

    @cached_property
    def table(self) -> Mapping[str, TensorSpec]:
        """The tensors by name."""
        return MappingProxyType({tensor.name: tensor for tensor in self.tensors})

    @cached_property
    def compiled(self) -> dict[object, Any]:
        """What :func:`glinfer.program.compiled.compile_plan` has made of the plan."""
        return {}

    @cached_property
    def sites(self) -> Mapping[str, list[tuple[CapturePoint, int]]]:
        """By name of a draw, the named values that are readable after it, each with the number of its site."""
        found: dict[str, list[tuple[CapturePoint, int]]] = {}
        for point in self.points.values():
            for number, (draw, _) in enumerate(point.sites):
                found.setdefault(draw, []).append((point, number))
        return found

    def of_kind(self, kind: str) -> list[TensorSpec]:
        """The tensors of one kind, in order, without views of others."""
        return [tensor for tensor in self.tensors if tensor.kind == kind and not tensor.view_of]

    def root(self, name: str) -> str:
        """The tensor whose texels a tensor has: itself, unless it is a view of another."""
        return self.table[name].view_of or name

    def shared_with(self, other: Plan, kinds: Collection[str] = ("weight", "cache")) -> list[str]:
        """The tensors whose textures are those of another plan, over which this one is bound."""
        both = (tensor for tensor in self.tensors if not tensor.view_of and tensor.name in other.table)
        return [tensor.name for tensor in both if tensor.kind in kinds or tensor.name in self.shared]

    def values(self, inputs: Mapping[str, int | float]) -> dict[str, int | float]:
        """All run values of a run, from its inputs; PlanError if one is missing or out of range."""
        found: dict[str, int | float] = {}
        for each, computed in self._computed:
            number = inputs.get(each.name) if computed is None else computed(found)
            each.check(number)
            found[each.name] = cast(float, number)
        return found

    @cached_property
    def _computed(self) -> list[tuple[RunValue, Callable[[Mapping[str, Any]], Any] | None]]:
        """The run values, each with the function that computes it; None for an input."""
        return [(each, None if each.value is None else compiled(each.value)) for each in self.run_values]

    def values_for(self, tokens: SupportsIndex, **inputs: int | float) -> dict[str, int | float]:
        """The run values of a run over ``tokens`` tokens, with usual numbers for missing inputs; or a PlanError."""
        if not isinstance(tokens, SupportsIndex) or not 1 <= operator.index(tokens) <= self.max_rows:
            raise PlanError(f"found {tokens!r} tokens; expected 1 to {self.max_rows}, the context of this model")
        counted = {"tokens": operator.index(tokens)}
        return self.values({**{name: number(counted) for name, number in self._usual}, **inputs})

    @cached_property
    def _usual(self) -> list[tuple[str, Callable[[Mapping[str, Any]], Any]]]:
        """The run values, each with the function that gives its usual number from ``tokens``."""
        return [(each.name, compiled(each.smallest if each.usual is None else each.usual)) for each in self.run_values]

    def texture_bytes(self, max_texture_size: int, kind: str | None = None) -> int:
        """Bytes of texture memory of all tensors, or of one kind, on a renderer with textures of this size."""
        return sum(
            tensor.layout_within(max_texture_size).nbytes
            for tensor in self.tensors
            if not tensor.view_of and (kind is None or tensor.kind == kind)
        )

    def validate(self, limits: PlanLimits | Limits | None = None) -> Plan:
        """Prove, without a GPU, that the plan can run; returns the plan.

        Checked: names are unique and known; every op gets the samplers it needs, formats and shapes that fit;
        every read was written by an earlier draw, or is a weight, an input or a cache, and so was whatever a draw
        adds to; no draw samples what it renders to; nothing overwrites a weight or an input; every weight and input is
        read; a later draw reads every write before the next one, or it is a result; what is drawn covers what is
        written; and, with ``limits``, sizes and counts.

        Raises:
            PlanError: naming the draw and the tensor.
        """
        _ = self._proved
        if limits is not None:
            self.check_limits(limits)
        return self

    @cached_property
    def _proved(self) -> bool:
        """Whether the checks of :meth:`validate` passed; a plan never changes, so once is enough."""
        if self.max_rows < 1:
            raise PlanError(f"plan {self.name} is for sequences of at most {self.max_rows} tokens; expected at least 1")
        table = self.table
        if len(table) != len(self.tensors):
            raise PlanError(f"plan {self.name}: two tensors have the same name")
        name, times = Counter(draw.name for draw in self.draws).most_common(1)[0] if self.draws else ("", 1)
        if times > 1:
            raise PlanError(f"plan {self.name}: two draws have the same name: {name}")
        for tensor in self.tensors:
            _check_view(tensor, table)
        known = {tensor.name for tensor in self.tensors if tensor.kind != "activation" and not tensor.view_of}
        read: set[str] = set()
        names = {value.name for value in self.run_values}
        unread: dict[str, dict[Extent, str]] = {}
        try:
            usual = [self.values_for(tokens) for tokens in (self.max_rows, 1)]
        except KeyError as error:
            raise PlanError(f"plan {self.name}: a run value needs {error}; expected an earlier run value") from None
        for draw in self.draws:
            _check_names(draw, table, names)
            _check_flow(draw, self, known)
            _check_formats(draw, table)
            for values in usual:
                _check_shapes(draw, table, values)
            _check_overwrites(draw, self, unread)
            known.update(map(self.root, draw.writes))
            read.update(map(self.root, draw.reads))
        for name in self.results:
            if name not in table or self.root(name) not in known:
                raise PlanError(f"plan {self.name}: no draw writes its result {name}")
        _check_all_read(self, read, unread)
        return True

    def check_limits(self, limits: PlanLimits | Limits) -> None:
        """Refuse a plan that breaks the limits with a PlanError that names the tensor or the draw."""
        for tensor in self.tensors:
            try:
                tensor.layout_within(limits.max_texture_size)
            except PlanError as error:
                raise PlanError(f"tensor {tensor.name}: {error}") from None
        for draw in self.draws:
            edge = BLOCK_EDGE * max(1, draw.largest_cell) if draw.cover == "points" else 0
            for does, count, most in (
                ("writes {} targets", len(draw.outputs), limits.max_draw_buffers),
                ("samples {} textures", len(draw.inputs), limits.max_texture_units),
                ("draws points of {0}×{0} pixels", edge, limits.max_point_size),
            ):
                if count > most:
                    raise PlanError(f"draw {draw.name} {does.format(count)}; this renderer allows {most:g}")


def _op(draw: DrawSpec) -> Op:
    """The op of a draw; with a shader of the caller's own one that takes any inputs."""
    if draw.own is None:
        return OPS[draw.op]
    samplers, nothing = tuple(sampler for sampler, _ in draw.inputs), cast(Any, lambda *_: None)
    return Op(draw.op, samplers, (), nothing, nothing, either=(*samplers, "output"))


def _check_names(draw: DrawSpec, table: Mapping[str, TensorSpec], run_values: set[str]) -> None:
    if draw.op not in OPS and draw.own is None:
        raise PlanError(f"draw {draw.name}: there is no op {draw.op!r}; known: {', '.join(OPS)}")
    if not draw.outputs:
        raise PlanError(f"draw {draw.name} writes nothing")
    for tensor in (*draw.reads, *draw.writes):
        if tensor not in table:
            raise PlanError(f"draw {draw.name}: there is no tensor {tensor!r}")
    op = _op(draw)
    samplers = [sampler for sampler, _ in draw.inputs]
    for sampler in samplers:
        if sampler not in op.samplers + op.optional or samplers.count(sampler) > 1:
            raise PlanError(f"draw {draw.name}: op {draw.op} cannot bind sampler {sampler!r}")
    for sampler in op.samplers:
        if sampler not in samplers:
            raise PlanError(f"draw {draw.name}: op {draw.op} needs sampler {sampler!r}")
    extents = (*draw.size, draw.first, draw.instances, draw.points)
    for key in (*(key for _, key in draw.per_run), *(part for part in extents if isinstance(part, str))):
        if key not in run_values:
            raise PlanError(f"draw {draw.name}: {key!r} is not a run value of the plan; known: {', '.join(run_values)}")
    if draw.cover not in COVERS:
        raise PlanError(f"draw {draw.name} covers its target with {draw.cover!r}; known: {', '.join(COVERS)}")


def _check_view(tensor: TensorSpec, table: Mapping[str, TensorSpec]) -> None:
    if not tensor.view_of:
        return
    root = table.get(tensor.view_of)
    if root is None or root.view_of or root.kind != tensor.kind or root.format != tensor.format:
        raise PlanError(
            f"tensor {tensor.name} is a view of {tensor.view_of}, which is not a tensor of its kind and format"
        )
    ragged = tensor.shape[1] != root.shape[1] and (tensor.shape[1] % LANES or root.shape[1] % LANES)
    if not isinstance(root.layout, FlatLayout) or ragged or tensor.layout != root.layout.reshaped(*tensor.shape):
        raise PlanError(f"tensor {tensor.name} is not within the texels of {tensor.view_of}")


def _check_flow(draw: DrawSpec, plan: Plan, known: set[str]) -> None:
    table, root, written = plan.table, plan.root, {plan.root(name) for name in draw.writes}
    if len(written) != len(draw.writes):
        raise PlanError(f"draw {draw.name} writes one tensor twice: {', '.join(draw.writes)}")
    for tensor in draw.reads:
        if root(tensor) in written:
            raise PlanError(
                f"draw {draw.name} samples {tensor}, which it renders to: a feedback loop, undefined in OpenGL"
            )
        if root(tensor) not in known:
            raise PlanError(f"draw {draw.name} reads {tensor}, which no earlier draw has written")
    for tensor in draw.writes:
        if draw.needs_output and root(tensor) not in known:
            verb = "adds to" if draw.adds else "changes"
            raise PlanError(f"draw {draw.name} {verb} {tensor}, which no earlier draw has written")
        if table[tensor].kind not in ("activation", "cache"):
            raise PlanError(f"draw {draw.name} writes {tensor}, which is {table[tensor].kind}, not an activation")


def _check_overwrites(draw: DrawSpec, plan: Plan, unread: dict[str, dict[Extent, str]]) -> None:
    """Keep the names of the draws whose writes are still unread, by tensor and first row."""
    for tensor in (*draw.reads, *(draw.writes if draw.needs_output else ())):
        unread.pop(plan.root(tensor), None)
    for tensor in draw.writes:
        writers = unread.setdefault(plan.root(tensor), {})
        if draw.first in writers:
            raise PlanError(
                f"draw {draw.name} overwrites {tensor}, which draw {writers[draw.first]} wrote and no draw has read"
            )
        writers[draw.first] = draw.name


def _check_all_read(plan: Plan, read: set[str], unread: Mapping[str, Mapping[Extent, str]]) -> None:
    """Check that draws read every weight and input, and that what they leave unread is a result."""
    for tensor in (*plan.of_kind("weight"), *plan.of_kind("input")):
        if tensor.name not in read:
            raise PlanError(f"plan {plan.name}: no draw reads {tensor.kind} {tensor.name}")
    # The next run may read a cache before it writes it.
    results = {*map(plan.root, plan.results), *(name for name in read if plan.table[name].kind == "cache")}
    for name, writers in unread.items():
        if name not in results:
            raise PlanError(
                f"draw {next(iter(writers.values()))} writes {name}, which no later draw reads; "
                f"plan {plan.name} has the results {', '.join(plan.results) or 'none'}"
            )


def _check_formats(draw: DrawSpec, table: Mapping[str, TensorSpec]) -> None:
    integers, either = _op(draw).integers, _op(draw).either
    for slot, tensor in (*draw.inputs, *(("output", name) for name in draw.writes)):
        format_name = table[tensor].format
        if slot not in either and FORMATS[format_name].is_integer != (slot in integers):
            numbers = "integers" if slot in integers else "floats"
            raise PlanError(f"draw {draw.name}: {slot} {tensor} has format {format_name}; expected {numbers}")


def _check_shapes(draw: DrawSpec, table: Mapping[str, TensorSpec], values: Mapping[str, int | float]) -> None:
    shapes = {sampler: table[tensor].shape for sampler, tensor in draw.inputs}
    shapes["output"] = table[draw.outputs[0]].shape
    for tensor in draw.outputs:
        if table[tensor].shape != shapes["output"]:
            raise PlanError(f"draw {draw.name}: its targets {draw.outputs[0]} and {tensor} differ in shape")
    try:
        _op(draw).check(Shapes(draw.name, shapes), draw.params(values))
    except KeyError as error:
        raise PlanError(f"draw {draw.name}: op {draw.op} needs a define or uniform {error}") from None
    (rows, cols), first = draw.extent(values), draw.first_row(values)
    if first < 0 or first + rows > shapes["output"][0] or cols > shapes["output"][1] or rows < 1 or cols < 1:
        at = f" from row {first}" if first else ""
        raise PlanError(
            f"draw {draw.name} writes {[rows, cols]} elements{at}; {draw.outputs[0]} is {list(shapes['output'])}"
        )
    layout = table[draw.outputs[0]].layout
    if isinstance(layout, BlockLayout):
        if draw.cover == "triangle":
            raise PlanError(f"draw {draw.name}: a target in blocks is covered block by block")
        if draw.cover == "strip" and not layout.in_one_line:
            raise PlanError(f"draw {draw.name}: a strip needs a target with each block of all slots in one line")
    elif draw.cover == "scatter":
        if not draw.vertex or not draw.points:
            raise PlanError(f"draw {draw.name}: scattered points need a number and a vertex shader that places them")
    elif draw.cover != "triangle" or first:
        raise PlanError(f"draw {draw.name}: {draw.cover}, or a first row, need a target in blocks")


class PlanBuilder:
    """Collects tensors and draws in order, then makes the plan. A tensor may be declared again."""

    def __init__(self, name: str, max_rows: int, run_values: Sequence[RunValue], *, long_after: int = 0) -> None:
        """An empty plan for sequences of at most ``max_rows`` tokens; ``long_after`` is that of :class:`Plan`."""
        self.name, self.max_rows, self.run_values = name, max_rows, tuple(run_values)
        self.long_after, self.last_layer, self.shared = long_after, 0, tuple[str, ...]()
        self._tensors: dict[TensorSpec, None] = {}
        self._draws: list[DrawSpec] = []
        self._points: dict[str, CapturePoint] = {}

    def weight(self, name: str, *shape: int) -> TensorSpec:
        """Declare a weight; a vector [n] becomes the matrix [1, n]. PlanError for more than two edges."""
        if len(shape) not in (1, 2):
            raise PlanError(f"weight {name} has shape {list(shape)}; expected a vector or a matrix")
        rows, cols = (1, *shape)[-2:]
        return self._declare(TensorSpec(name, (rows, cols), "weight"))

    def input(self, name: str, rows: int, cols: int, format_name: str) -> TensorSpec:
        """Declare a tensor that is written before each run."""
        return self._declare(TensorSpec(name, (rows, cols), "input", format_name))

    def activation(self, name: str, rows: int, cols: int) -> TensorSpec:
        """Declare a tensor that draws write."""
        return self._declare(TensorSpec(name, (rows, cols), "activation"))

    def flat(self, name: str, kind: str, rows: int, cols: int, format_name: str, max_texture_size: int) -> TensorSpec:
        """Declare a tensor with four elements a texel, see :mod:`glinfer.gl.layouts.flat`."""
        return self.laid_out(name, kind, FlatLayout.of((rows, cols), format_name, max_texture_size))

    def laid_out(self, name: str, kind: str, layout: TexelLayout) -> TensorSpec:
        """Declare a tensor with its own layout."""
        return self._declare(TensorSpec(name, (layout.rows, layout.cols), kind, layout.format.name, layout))

    def view(self, tensor: TensorSpec, rows: int, cols: int) -> TensorSpec:
        """Declare a tensor with four elements a texel as another matrix of the same texels.

        The columns of both are a multiple of four, or equal; otherwise this raises a PlanError.
        """
        if tensor.shape == (rows, cols):
            return tensor
        if not isinstance(tensor.layout, FlatLayout) or (
            cols != tensor.shape[1] and (cols % LANES or tensor.shape[1] % LANES)
        ):
            raise PlanError(f"tensor {tensor.name} cannot be seen as {rows}×{cols}: its rows are not whole texels")
        root = tensor.view_of or tensor.name
        made = TensorSpec(
            f"{root}@{rows}x{cols}", (rows, cols), tensor.kind, tensor.format, tensor.layout.reshaped(rows, cols), root
        )
        return self._declare(made)

    def _declare(self, tensor: TensorSpec) -> TensorSpec:
        self._tensors[tensor] = None
        return tensor

    def begin_layer(self) -> None:
        """Mark the next draw as the first of a layer."""
        self.last_layer = len(self._draws)

    def draw(self, *draws: DrawSpec) -> None:
        """Append passes."""
        self._draws.extend(draws)

    def value(self, name: str, view: View, *, last_only: bool = False) -> None:
        """Name what the last draw so far has written, see :mod:`glinfer.program.capture`.

        A name that is given again has one part more, along its first axis.
        """
        site, known = (self._draws[-1].name, self._draws[-1].outputs[0]), self._points.pop(name, None)
        sites = (site,) if known is None else (*known.sites, site)
        self._points[name] = CapturePoint(name, sites, view, last_only)

    @property
    def last_written(self) -> tuple[str, ...]:
        """Names of the tensors that the last draw so far writes."""
        return tuple(name for draw in self._draws[-1:] for name in draw.writes)

    def build(self, *results: str) -> Plan:
        """The validated plan without unused inputs and activations; its default results are the last draw's."""
        draws, results = tuple(self._draws), results or self.last_written
        used = {name for draw in draws for name in (*draw.reads, *draw.writes)}
        used.update([tensor.view_of for tensor in self._tensors if tensor.name in used])
        tensors = tuple(each for each in self._tensors if each.kind in ("weight", "cache") or each.name in used)
        marks = self.long_after, results, self.last_layer, self.shared, self._points
        return Plan(self.name, self.max_rows, self.run_values, tensors, draws, *marks).validate()


@dataclass(frozen=True)
class DrawRow:
    """One line of a draw table: passes of one kind together, the names of their shaders, and the size of the last."""

    kind: str
    shader: str
    count: int
    rows: int
    cols: int
    share: float


@dataclass(frozen=True, repr=False)
class DrawTable:
    """Number of draws of each kind in one forward pass over ``tokens`` tokens, or of a device so far, with 0 tokens.

    ``milliseconds`` has the time of each kind of which draws were timed.
    """

    plan: str
    tokens: int
    rows: tuple[DrawRow, ...]
    total: int
    milliseconds: Mapping[str, float] = field(default_factory=dict)

    def __int__(self) -> int:
        """The total."""
        return self.total

    def __iter__(self) -> Iterator[DrawRow]:
        """Iterate over :attr:`rows`."""
        return iter(self.rows)

    def __len__(self) -> int:
        """The number of kinds."""
        return len(self.rows)

    def __repr__(self) -> str:
        """The total, and the count of each kind: ``DrawTable(fast, 39 draws: embed 1, …)``."""
        times = {kind: f" in {spent:.3g} ms" for kind, spent in self.milliseconds.items()}
        kinds = ", ".join(f"{row.kind} {row.count}{times.get(row.kind, '')}" for row in self.rows)
        return f"DrawTable({self.plan}, {self.total} draws: {kinds})"

    def _repr_html_(self) -> str:
        times = self.milliseconds
        cells = [
            (row.kind, row.shader, row.count, f"{row.rows}×{row.cols}", f"{row.share:.0%}", times.get(row.kind, ""))
            for row in self.rows
        ]
        headings = ("pass", "shader", "draws", "rows × columns", "of all", *(["ms"] if times else []))
        run = f"for one run of the {self.plan} plan" if self.tokens else f"of the {self.plan}"
        return table(headings, [cell[: len(headings)] for cell in cells], f"{self.total} draws {run}")


def draw_table(plan: Plan, tokens: SupportsIndex) -> DrawTable:
    """Count the passes of a plan by kind; sizes are (rows, cols) of the last output for ``tokens`` tokens."""
    values = plan.values_for(tokens)
    rows = []
    for kind in dict.fromkeys(draw.kind for draw in plan.draws):
        draws = [draw for draw in plan.draws if draw.kind == kind]
        shaders = ", ".join(dict.fromkeys(draw.op for draw in draws))
        rows.append(DrawRow(kind, shaders, len(draws), *draws[-1].extent(values), len(draws) / len(plan.draws)))
    return DrawTable(plan.name, operator.index(tokens), tuple(rows), len(plan.draws))
