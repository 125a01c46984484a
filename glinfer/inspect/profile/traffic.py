"""Memory traffic of draws and sizes of textures in bytes, computed from the plan without OpenGL.

A draw **reads** each texel in use of its inputs once, and of a target that it adds to; it **writes** each texel that
it covers once. Repeated fetches of a texel do not count: this is the minimum traffic from memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from glinfer.families import FAMILIES
from glinfer.gl.layouts.blocks import BLOCK_EDGE, BLOCK_TEXELS, BlockLayout, RowLayout, float_bytes
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.layouts.matrix import Layout, TexelLayout
from glinfer.kernels.spec import DrawSpec, Part, parts_read
from glinfer.lower.ropes import ROPE
from glinfer.program.plan import Plan
from glinfer.program.session import Session

Values = Mapping[str, int | float]
_BLOCK = re.compile(r"\.(\d+)\.")
_TABLES = ("wte", "wpe", ROPE)
"""Tables of the fast plans that a token reads a row of."""


@dataclass(frozen=True)
class Read:
    """Bytes that a draw reads of one input."""

    sampler: str
    tensor: str
    format: str
    bytes: int


@dataclass(frozen=True)
class DrawTraffic:
    """Traffic of one draw in one run: bytes read of each input and of targets that it adds to, and bytes written."""

    reads: tuple[Read, ...]
    written: int

    @property
    def read(self) -> int:
        """Total of bytes read."""
        return sum(read.bytes for read in self.reads)


@dataclass(frozen=True)
class TextureUse:
    """One texture: its tensor, its kind, its part of the model, and its size in texels."""

    name: str
    kind: str
    part: str
    format: str
    width: int
    height: int
    bytes: int


def draw_traffic(plan: Plan, values: Values, max_texture_size: int) -> list[DrawTraffic]:
    """Count what each draw of a plan reads and writes in a run with these values."""
    flow = _Flow(plan, values, max_texture_size)
    return [flow.take(spec) for spec in plan.draws]


class _Flow:
    """Walks the draws of a plan in order and tracks how much of each tensor is in use."""

    def __init__(self, plan: Plan, values: Values, max_texture_size: int) -> None:
        self.plan, self.values, self.edge = plan, values, max_texture_size
        self.in_use: dict[str, int] = {}

    def take(self, spec: DrawSpec) -> DrawTraffic:
        parts = parts_read(spec, self.values)
        written = self.covered(spec)
        reads = []
        for sampler, name in spec.inputs:
            found = self.read(name, parts[sampler]) if sampler in parts else self.used(name)
            if spec.op == "strided_copy":
                found = min(found, written)  # it reads what it writes
            reads.append(Read(sampler, name, self.plan.table[name].format, found))
        for name in spec.outputs:
            if spec.adds and not spec.clears:
                reads.append(Read("", name, self.plan.table[name].format, written))
            self.in_use[self.plan.root(name)] = written
        return DrawTraffic(tuple(reads), written * len(spec.outputs))

    def layout(self, name: str) -> TexelLayout:
        return self.plan.table[name].layout_within(self.edge)

    def read(self, name: str, part: Part) -> int:
        """Return the bytes of a part of a tensor."""
        if part.floats:
            return float_bytes(part.floats, self.plan.table[name].format)
        return round(self.used(name) * part.share) if part.rows is None else self.rows(name, part.rows, part.share)

    def used(self, name: str) -> int:
        """Return the bytes that a draw reads of a tensor by default."""
        tensor, root = self.plan.table[name], self.plan.root(name)
        if tensor.kind == "input":
            return self.rows(name, int(self.values.get("rows", tensor.shape[0])))
        if tensor.kind == "activation" and root in self.in_use:
            return self.in_use[root]
        return self.layout(name).nbytes

    def rows(self, name: str, count: int, share: float = 1.0) -> int:
        """Return the bytes of ``count`` rows of a tensor, or of a share of their columns."""
        layout = self.layout(name)
        count = min(count, layout.rows)
        texel = layout.format.bytes_per_texel
        if isinstance(layout, BlockLayout):
            each = layout.blocks * BLOCK_TEXELS * texel
        elif isinstance(layout, FlatLayout):
            each = layout.row_texels * texel
        elif isinstance(layout, RowLayout):
            each = layout.texels * texel
        elif isinstance(layout, Layout):
            each = layout.cols * texel
        else:
            each = layout.nbytes // layout.rows
        return round(count * each * share)

    def covered(self, spec: DrawSpec) -> int:
        """Return the bytes of one target that a draw writes."""
        name = spec.outputs[0]
        layout, (rows, cols) = self.layout(name), spec.extent(self.values)
        if spec.cover == "triangle":
            width, height = layout.region(rows, cols)
            return width * height * layout.format.bytes_per_texel
        if spec.cover == "strip":
            assert isinstance(layout, BlockLayout)
            return BLOCK_EDGE * rows * layout.kept_height * layout.format.bytes_per_texel
        return self.rows(name, rows)


def part_of(name: str, kind: str) -> str:
    """Name the part of the model that a tensor belongs to, such as ``block 3``, or ``scratch``."""
    if kind == "activation":
        return "scratch"
    if kind == "input":
        return "inputs"
    if found := _BLOCK.search(name):
        return f"block {found[1]}"
    of_families = {table for each in FAMILIES.values() for table in (each.names.embeddings, each.names.positions)}
    return "embeddings" if name.partition(".")[0] in _TABLES or name.removesuffix(".weight") in of_families else "head"


def textures_of(*sessions: Session) -> list[TextureUse]:
    """List the textures of sessions, shared ones once."""
    found: dict[int, TextureUse] = {}
    for session in sessions:
        for tensor in session.plan.tensors:
            if tensor.view_of:
                continue
            texture = session.texture(tensor.name)
            layout = texture.layout
            found[id(texture)] = TextureUse(
                tensor.name,
                tensor.kind,
                part_of(tensor.name, tensor.kind),
                tensor.format,
                layout.width,
                layout.height,
                layout.nbytes,
            )
    return list(found.values())


def min_seconds(reads: Iterable[Read], bytes_per_second: Mapping[str, float]) -> float:
    """Return the time to fetch inputs at these rates by format; a format without a rate counts as the slowest."""
    slowest = min(bytes_per_second.values())
    return sum(read.bytes / bytes_per_second.get(read.format, slowest) for read in reads)
