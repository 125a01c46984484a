"""Memory traffic of draws and sizes of textures in bytes, computed from the plan without OpenGL.

A draw **reads** each texel in use of its inputs once: whole weights, looked-up rows of embedding tables, cached tokens,
and activations as last written. Repeated fetches of a texel count once: this is the minimum traffic from memory, not
the traffic of the texture units. A draw **writes** each texel that it covers once; a target that blending adds to is
read as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from glinfer.families import FAMILIES
from glinfer.gl.layouts.blocks import BLOCK_EDGE, BLOCK_TEXELS, BlockLayout, RowLayout
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.layouts.matrix import Layout, TexelLayout
from glinfer.models.plan import Plan
from glinfer.models.ropes import ROPE
from glinfer.models.session import Session
from glinfer.models.transforms.fold import POSITIONS, TABLE
from glinfer.ops.fused.cached import heads_in
from glinfer.ops.fused.delta import DeltaHeads
from glinfer.ops.spec import DrawSpec, Params
from glinfer.quant.formats import GROUP

Values = Mapping[str, int | float]
_BLOCK = re.compile(r"\.(\d+)\.")
_TABLES = (TABLE, POSITIONS, ROPE)


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
        params = spec.params(self.values)
        special = _SPECIAL[spec.op](self, spec, params) if spec.op in _SPECIAL else {}
        written = self.covered(spec)
        reads = []
        for sampler, name in spec.inputs:
            found = special[sampler] if sampler in special else self.used(name)
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

    def tokens(self, spec: DrawSpec) -> int:
        """Return the number of table rows that are looked up, one for each row in use."""
        return int(self.values.get("rows", spec.extent(self.values)[0]))


Special = Callable[[_Flow, DrawSpec, Params], dict[str, int]]


def _looked_up(*samplers: str) -> Special:
    """Read one row of these tables for each token."""

    def found(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
        bound = dict(spec.inputs)
        return {each: flow.rows(bound[each], flow.tokens(spec)) for each in samplers if each in bound}

    return found


def _embed_token(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
    return {each: flow.rows(name, int(each != "picks" or params["token"] < 0)) for each, name in spec.inputs}


def _cached_scores(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
    """Read the cached keys of all tokens that the last one sees, and its queries if they share the texture."""
    beside = 0 if "queries" in dict(spec.inputs) else heads_in(params).width
    return {"cache": _cached(flow, spec, _seen(params) + beside)}


def _cached_values(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
    return {"cache": _cached(flow, spec, _seen(params))}


def _seen(params: Params) -> int:
    """Return the elements of keys, or of values, of all tokens that the one at ``position`` sees."""
    heads, tokens = heads_in(params), int(params["position"]) + 1
    return heads.kv_floats * (min(tokens, heads.window) if heads.window else tokens)


def _cached(flow: _Flow, spec: DrawSpec, elements: int) -> int:
    """Return the bytes of ``elements`` elements of a draw's cache, with their scales."""
    layout = flow.layout(spec.input("cache"))
    scales = 2 * -(-elements // GROUP) if isinstance(layout, BlockLayout) and layout.scale_blocks else 0
    return elements * layout.format.bytes_per_texel // layout.format.channels + scales


def _tiles(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
    held = int(flow.values["strip_first"]) + int(flow.values["rows"])
    return {"cache": _cached(flow, spec, heads_in(params).kv_floats * held)}


def _short_conv(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
    """Read the rows of the cache that each token sees; the tokens of a prompt share rows."""
    rows = flow.tokens(spec) if "rows" in dict(spec.inputs) else 1
    together = "strip_first" in flow.values or rows == 1
    seen = rows + int(params["LENGTH"]) - 1 if together else rows * int(params["LENGTH"])
    return {"cache": flow.rows(spec.input("cache"), seen)}


def _delta_conv(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
    """Read the rows that each token's convolution sees, without the side blocks."""
    layout = flow.layout(spec.input("cache"))
    assert isinstance(layout, BlockLayout)
    rows = flow.tokens(spec) if "rows" in dict(spec.inputs) else 1
    seen = rows + int(params["LENGTH"]) - 1
    return {"cache": flow.rows(spec.input("cache"), seen, layout.kept_blocks / layout.blocks)}


def _delta_seen(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
    """Read the cache rows from the start of the span before each token's span; the rows of a run share them."""
    rows, span = flow.tokens(spec) if "rows" in dict(spec.inputs) else 1, int(params["SPAN"])
    position = int(params["position"]) if params["ALONE"] else span
    return {"cache": flow.rows(spec.input("cache"), min(position, span + position % span) + rows)}


def _delta_ends(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
    """Read keys and decays of the span before the rows of a run."""
    heads = DeltaHeads.of(params)
    return {"cache": flow.rows(spec.input("cache"), heads.span, heads.u_at / heads.kept)}


def _take_row(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
    target = f"x{int(params['row']) % int(params['ROWS'])}"
    return {sampler: flow.rows(name, int(sampler == target)) for sampler, name in spec.inputs}


def _attend(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
    rows, keys = int(flow.values.get("rows", params["QUERIES"])), int(params["KEYS"])
    seen = min(keys, int(params["offset"]) + rows) if "offset" in params else keys
    if window := int(params.get("WINDOW", 0)):
        seen = min(seen, window + rows - 1)
    return {each: flow.rows(spec.input(each), int(params["KV_HEADS"]) * seen) for each in "kv"}


def _heads(*samplers: str) -> Special:
    """Read the columns of one head in matrices with all heads side by side."""

    def found(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
        share = int(params["HEAD_DIM"]) / int(params["DIM"])
        return {each: round(flow.used(spec.input(each)) * share) for each in samplers}

    return found


def _concat_head(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
    if params.get("FIRST"):
        return {}
    share = 1 - int(params["HEAD_DIM"]) / int(params["DIM"])
    return {"so_far": round(flow.used(spec.input("so_far")) * share)}


def _linear(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
    return {"x": flow.rows(spec.input("x"), 1)} if params.get("LAST_ROW") else {}


_SPECIAL: Mapping[str, Special] = {
    "embed": _looked_up("token_embedding", "position_embedding"),
    "embed_rows": _looked_up("wte", "wpe", "weight", "picks"),
    "embed_token": _embed_token,
    "gemv": _looked_up("rope"),
    "gemm": _looked_up("rope"),
    "turn_heads": _looked_up("rope"),
    "lookup": _looked_up("weight"),
    "position_add": _looked_up("table"),
    "rotate": _looked_up("table"),
    "cached_scores": _cached_scores,
    "cached_values": _cached_values,
    "tile_scores": _tiles,
    "tile_values": _tiles,
    "short_conv": _short_conv,
    "delta_conv": _delta_conv,
    "delta_ends": _delta_ends,
    **dict.fromkeys(("delta_scores", "delta_recall", "delta_row"), _delta_seen),
    "take_row": _take_row,
    "attend": _attend,
    "attention_scores": _heads("q", "k"),
    "attention_values": _heads("v"),
    "concat_head": _concat_head,
    "linear": _linear,
}
"""Ops that read only part of some inputs: functions that return the bytes of those inputs by sampler."""


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
