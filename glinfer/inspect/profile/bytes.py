"""What draws read and write, and what textures take, in bytes: from the plan alone, without OpenGL.

What a draw **reads** is the texels in use of each of its inputs, each once: weights whole, of embedding tables the rows
that are looked up, of caches the tokens that are held, of activations what was written last. A shader fetches most of
them more than once, which counts once: it is what has to come out of memory at least, not what goes through the
texture units. What a draw **writes** is the texels that it covers, each once; where blending adds to a target, that is
read too.
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
from glinfer.models.session import Session
from glinfer.models.transforms.fold import POSITIONS, ROPE, TABLE
from glinfer.ops.fused.cached import heads_in
from glinfer.ops.spec import DrawSpec, Params

Values = Mapping[str, int | float]
_FLOAT_BYTES = 4
_BLOCK = re.compile(r"\.(\d+)\.")
_TABLES = (TABLE, POSITIONS, ROPE)


@dataclass(frozen=True)
class Read:
    """What a draw reads of one input."""

    sampler: str
    tensor: str
    format: str
    bytes: int


@dataclass(frozen=True)
class Traffic:
    """Of one draw in one run: what it reads of each input and of targets that it adds to, and bytes written."""

    reads: tuple[Read, ...]
    written: int

    @property
    def read(self) -> int:
        """Bytes read in all."""
        return sum(read.bytes for read in self.reads)


@dataclass(frozen=True)
class TextureUse:
    """One texture: the tensor in it, its kind and the part of the model that it belongs to, its size in texels."""

    name: str
    kind: str
    part: str
    format: str
    width: int
    height: int
    bytes: int


def traffic(plan: Plan, values: Values, max_texture_size: int) -> list[Traffic]:
    """What each draw of a plan reads and writes in a run with these values."""
    flow = _Flow(plan, values, max_texture_size)
    return [flow.take(spec) for spec in plan.draws]


class _Flow:
    """Walks the draws of a plan in order, and knows how much of each tensor is in use."""

    def __init__(self, plan: Plan, values: Values, max_texture_size: int) -> None:
        self.plan, self.values, self.edge = plan, values, max_texture_size
        self.in_use: dict[str, int] = {}

    def take(self, spec: DrawSpec) -> Traffic:
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
        return Traffic(tuple(reads), written * len(spec.outputs))

    def layout(self, name: str) -> TexelLayout:
        return self.plan.table[name].layout_within(self.edge)

    def used(self, name: str) -> int:
        """What a draw reads of a tensor of which nothing else is known."""
        tensor, root = self.plan.table[name], self.plan.root(name)
        if tensor.kind == "input":
            return self.rows(name, int(self.values.get("rows", tensor.shape[0])))
        if tensor.kind == "activation" and root in self.in_use:
            return self.in_use[root]
        return self.layout(name).nbytes

    def rows(self, name: str, count: int, share: float = 1.0) -> int:
        """Bytes of so many rows of a tensor, or of a share of their columns."""
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
        """Bytes of one target that a draw writes."""
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
        """Rows of a table that are looked up: one for each row that is in use."""
        return int(self.values.get("rows", spec.extent(self.values)[0]))


Special = Callable[[_Flow, DrawSpec, Params], dict[str, int]]


def _looked_up(*samplers: str) -> Special:
    """Tables of which one row is read for each token."""

    def found(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
        bound = dict(spec.inputs)
        return {each: flow.rows(bound[each], flow.tokens(spec)) for each in samplers if each in bound}

    return found


def _embed_token(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
    return {each: flow.rows(name, int(each != "picks" or params["token"] < 0)) for each, name in spec.inputs}


def _cached_scores(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
    """Of a cache, the keys of all tokens that the last one sees, and its queries."""
    return {"cache": _seen(params) + _FLOAT_BYTES * heads_in(params).width}


def _cached_values(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
    return {"cache": _seen(params)}


def _seen(params: Params) -> int:
    """Bytes of the keys, or of the values, of all tokens that the one at ``position`` sees."""
    heads, tokens = heads_in(params), int(params["position"]) + 1
    return _FLOAT_BYTES * heads.kv_floats * (min(tokens, heads.window) if heads.window else tokens)


def _tiles(flow: _Flow, spec: DrawSpec, params: Params) -> dict[str, int]:
    held = int(flow.values["strip_first"]) + int(flow.values["rows"])
    return {"cache": _FLOAT_BYTES * heads_in(params).kv_floats * held}


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
    """Matrices with all heads side by side, of which the columns of one are read."""

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
    "take_row": _take_row,
    "attend": _attend,
    "attention_scores": _heads("q", "k"),
    "attention_values": _heads("v"),
    "concat_head": _concat_head,
    "linear": _linear,
}
"""Ops that do not read the whole of what is in use of some input: bytes by sampler, for those inputs."""


def part_of(name: str, kind: str) -> str:
    """The part of the model that a tensor belongs to, such as ``block 3``; its kind alone decides that of some."""
    if kind == "activation":
        return "scratch"
    if kind == "input":
        return "inputs"
    if found := _BLOCK.search(name):
        return f"block {found[1]}"
    of_families = {table for each in FAMILIES.values() for table in (each.names.embeddings, each.names.positions)}
    return "embeddings" if name in _TABLES or name.removesuffix(".weight") in of_families else "head"


def textures_of(*sessions: Session) -> list[TextureUse]:
    """Every texture of some sessions, each once though several use it."""
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


def least_seconds(reads: Iterable[Read], bytes_per_second: Mapping[str, float]) -> float:
    """How long fetching some inputs takes at these rates by format; a format without one counts as the slowest."""
    slowest = min(bytes_per_second.values())
    return sum(read.bytes / bytes_per_second.get(read.format, slowest) for read in reads)
