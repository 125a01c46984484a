"""The lowering of a graph to fused draws, for one row or for many: what all fast plans share.

A norm is in the product after it; keys, values and queries are one product, and so are gate and up; heads are turned
where they are computed; and blending adds branches to the residual stream where that is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from glinfer.families.layer import Experts, Rope
from glinfer.gl.layouts.blocks import BYTES, BlockLayout, blocks_for
from glinfer.gl.layouts.matrix import Extent
from glinfer.graph.nodes import Attention, Branch, Convolution, DeltaMixing, ExpertMlps, Layer, Mlp, Nothing
from glinfer.kernels.flat.delta import DELTA_EPS
from glinfer.kernels.fused.cached import cached_scores, cached_values
from glinfer.kernels.fused.convolve import PARTS, short_conv
from glinfer.kernels.fused.delta import (
    RING,
    DeltaHeads,
    DeltaRun,
    delta_conv,
    delta_correct,
    delta_fold,
    delta_norm,
    delta_recall,
    delta_scores,
    delta_solve,
    delta_unit,
    input_layout,
    input_ring,
)
from glinfer.kernels.fused.dense import Matrix, RawRows, Turning, parts_of_steps, shared_parts
from glinfer.kernels.fused.embed import embed
from glinfer.kernels.fused.experts import mix_experts, route
from glinfer.kernels.fused.gemm import gemm
from glinfer.kernels.fused.low_rank import CHOICE_FLOATS, LowRankSum, lora_down
from glinfer.kernels.fused.norms import post_norm
from glinfer.kernels.fused.per_layer import per_layer_hidden, scale_rows
from glinfer.kernels.fused.rows import RowInterleaved, Vectors, padded
from glinfer.kernels.fused.rowwise import gate_heads, xielu_rows
from glinfer.kernels.fused.sample import pick
from glinfer.kernels.fused.scan import scan_gate, scan_norm, scan_row
from glinfer.kernels.fused.tiles import store_rows
from glinfer.kernels.fused.turn import turn_heads
from glinfer.kernels.spec import Pass, RunValue, TensorSpec
from glinfer.lower.fused.caches import attention_layout
from glinfer.lower.options import PlanOptions
from glinfer.lower.weights.fold import Weights
from glinfer.lower.weights.recipe import Recipe, head_floats
from glinfer.program.plan import PlanBuilder
from glinfer.program.points import CENTRED, View
from glinfer.quant.formats import CACHE_FORMATS

PROJECTED = "per_layer.in"
"""The projections of embeddings for the third branches of all layers."""


class Lowering:
    """A fast plan under construction: the fused draws of a model's graph, for one row; subclasses have many.

    All plans of one model declare a weight, or a cache of equally many slots, with one name and one layout, so that
    they can share the textures.

    Attributes:
        table: the table of rows; None for the one row of the token at the run value ``position``.
        used, counted: the slots of rows that a run computes, and the rows.
        most_rows, prefix: rows of a tensor with a row a slot, and what the names of activations begin with.
        cache_slots, every: slots of the caches, and of each sequence.
        hidden: the residual stream before and after a branch; the same tensors where blending adds to it in place.
        streams: the two tensors of the stream; the same where one is enough.
        stores, normed_heads: whether a pass of its own puts keys and values into the cache, or normalises heads.
        scores, stats: attention's scores, and their statistics where instances share its values.
        picks: the choices of the run before, where rows may take their tokens from these.
        in_bytes: whether keys and values are kept in bytes, and queries where they are computed.
        centred: what the name of the stream ends in where its mean was taken away.
        kept: the caches that the last layer has written, where later tokens need nothing else of it.
        branch: the output of a branch that is normalised before it is added, where layers have that.
    """

    few = False
    """Whether rows are too few to fill a GPU, so that products behind a norm are shared out too."""
    together = False
    """Whether rows may follow each other in a sequence."""
    table: TensorSpec | None = None
    used: Extent = 1
    counted: Extent = 1
    most_rows = 1
    prefix = ""
    scores: TensorSpec
    stats: TensorSpec | None = None
    picks: TensorSpec | None = None
    projected: TensorSpec | None = None
    adapter_table: TensorSpec | None = None
    """The table of rows, where it says which adapter a row has."""

    def __init__(
        self,
        name: str,
        max_rows: int,
        run_values: Sequence[RunValue],
        options: PlanOptions,
        *,
        cache_slots: int,
        every: int,
    ) -> None:
        """An empty plan."""
        self.options, self.max_texture_size = options, options.max_texture_size
        self.config, self.kernels = options.config, options.kernels
        self.cache_format = CACHE_FORMATS[options.cache]
        self.recipes, self.adapters = Weights(options.config, options.weights, options.formats), options.adapters
        self.graph, self.weights = self.recipes.graph, self.recipes.by_name(options.adapters)
        self.plan = PlanBuilder(name, max_rows, run_values, long_after=options.config.long_after)
        self.in_bytes, self.centred = self.cache_format.attention == BYTES, CENTRED if self.recipes.centred else ""
        self.cache_slots, self.every, self.kept = cache_slots, every, list[str]()

    def declare(self, *, in_place: bool, stores: bool) -> None:
        """Declare what all layers share; with ``in_place`` blending adds to the residual stream."""
        width, layer = self.config.hidden_size, self.config.family.layer
        first = self.rows("hidden.a", width)
        self.streams = first, self.rows("hidden.b", width) if layer.scaled or not in_place else first
        self.in_place, self.hidden = in_place, (first, first) if in_place else self.streams
        self.stores, self.normed_heads = stores, bool(layer.head_norms or self.config.kv_lora_rank)
        if stores:
            self.qkv(0)
        if self.normed_heads:
            self.raw(0)
        self.branch = None if self.graph.layer(0).mixing.post_norm is None else self.rows("branch", width)

    def name_of(self, name: str, layer: int) -> str:
        """The name of an activation of attention's heads; layers with other heads than the first have their own."""
        heads, first = self.recipes.heads(layer), self.recipes.heads(0)
        return name if (heads.kv, heads.floats) == (first.kv, first.floats) else f"{name}.{heads.kv}x{heads.floats}"

    def qkv(self, layer: int) -> RowInterleaved:
        """Keys, values and queries of a layer, where they do not go straight into its cache."""
        # In the format of half floats where the cache is, so that every plan rounds keys, values and queries alike.
        return self.rows(self.name_of("attn.qkv", layer), self.recipes.heads(layer).cols, self.cache_format.rows)

    def raw(self, layer: int) -> RowInterleaved:
        """The same before heads are normalised and turned."""
        return self.rows(self.name_of("attn.raw", layer), self.recipes.qkv_floats(layer))

    @property
    def images(self) -> TensorSpec | None:
        """The rows of images among the rows of a run; None where it has none."""
        return None

    def called(self, name: str) -> str:
        """The name of an activation of rows, in plans for many without the branch."""
        return f"{self.prefix}{name.removeprefix('attn.').removeprefix('mlp.')}" if self.prefix else name

    def rows(self, name: str, floats: int, format_name: str = "rgba32f") -> RowInterleaved:
        """An activation of the rows of a run."""
        return RowInterleaved((self.row_vector(name, floats),))

    def row_vector(self, name: str, floats: int) -> TensorSpec:
        """An activation in one tensor, with a row a slot."""
        return self.whole_vector(f"{self.prefix}{name}", self.most_rows, floats)

    def whole_vector(self, name: str, slots: int, floats: int) -> TensorSpec:
        """An activation [slots, floats] in one tensor."""
        return self.blocks(name, slots, floats)

    def by_row(self, layer: int, kind: str, x: RowInterleaved, name: str, rows: Extent = "rows") -> TensorSpec:
        """Draw x in one tensor, a row a slot, which is called ``name``; one row is in one already."""
        return x.tensors[0]

    def in_slots(self, name: str, kind: str = "") -> Pass:
        """A draw over the slots of rows."""
        return Pass(name, self.kernels, kind, self.used)

    def in_rows(self, name: str, kind: str = "") -> Pass:
        """A draw over one tensor with a row a slot."""
        return Pass(name, self.kernels, kind, self.counted)

    def store(
        self, name: str, x: RowInterleaved, cache: TensorSpec, kind: str = "", ring: int = 0, *, gated: bool = False
    ) -> None:
        """Draw the copy of rows, or of B · x, to their tokens' slots in a cache, or in rings of ``ring`` slots."""
        how: dict[str, Any] = {"first": f"ring.{ring}" if ring else "position", "gated": gated}
        how |= {"together": self.together and self.plan.max_rows > ring, "ring": (ring, self.every) if ring else None}
        self.plan.draw(store_rows(self.in_rows(name, kind), x, cache, self.table, **how))

    def product(
        self, recipe: Recipe, x: Vectors | RawRows, out: RowInterleaved, *, raw: bool = False, **further: Any
    ) -> None:
        """Draw a product, with the norm of its recipe, or its bare sums; ``further`` are arguments of :func:`gemm`."""
        if not isinstance(x, RawRows):
            self.adapt(recipe, x)
        further |= self.norms_of(recipe, x) if recipe.norm and not raw else {}
        further |= {"alone": self.table is None, "rows": self.table, "raw": raw}
        self.plan.draw(gemm(self.in_slots(recipe.name), x, self.matrix(recipe), out, **further))

    def norms_of(self, recipe: Recipe, x: Vectors | RawRows) -> dict[str, Any]:
        """The norm of a product's rows, as arguments of :func:`gemm`: here the product computes it."""
        return {"norm_eps": self.config.layer_norm_eps}

    def embed(self, out: RowInterleaved | None = None) -> None:
        """Draw the embeddings of tokens to the stream, or to ``out``."""
        table = f"{self.recipes.head().name}.weight" if self.recipes.table_is_head else "wte"
        wte, wpe, out = self.weight(table), self.weight_if_any("wpe"), out or self.hidden[0]
        how: dict[str, Any] = {"scale": self.config.embedding_scale, "typed": bool(self.config.type_vocab_size)}
        draw = self.in_slots("embed")
        self.plan.draw(embed(draw, wte, wpe, self.picks, out, self.table, images=self.images, **how))
        self.value(f"embed{self.centred}", View(self.config.hidden_size))
        self.embed_layers()

    def head(self) -> RowInterleaved:
        """Draw the logits of each row."""
        logits = self.rows("logits", self.config.vocab_size)
        self.product(self.recipes.head(), self.hidden[0], logits, cap=self.config.final_logit_softcapping)
        self.value("logits", View(self.config.vocab_size, rows="only"))
        return logits

    def pick(self, picks: TensorSpec) -> None:
        """Draw the choice of the token after each row."""
        self.plan.draw(pick(self.in_rows("pick"), self.head(), picks, self.table, first="position"))

    def attend(self, layer: int, node: Attention, cache: TensorSpec) -> Vectors:
        """Draw the attention of a layer over its cache, of one row of each sequence."""
        heads, to = self.recipes.heads(layer), f"blocks.{layer}.attn"
        mixed, queries = self.blocks(self.called(self.name_of("attn.mixed", layer)), self.most_rows, heads.width), None
        if self.in_bytes or node.of.source is not None:  # the cache that the layer reads has no place for queries
            place = self.name_of("queries", layer)
            queries = self.by_row(layer, "attn.queries", self.qkv(layer), place, self.most_rows)
        how: dict[str, Any] = {"rows": self.table, "stats": self.stats}
        scores, values = (self.in_slots(f"h.{layer}.attn.{part}") for part in ("scores", "values"))
        self.plan.draw(cached_scores(scores, cache, self.scores, heads, queries=queries, **how))
        self.value(f"{to}.scores", View("slots", heads.count))
        how["sinks"] = self.weight_if_any(f"h.{layer}.attn.sinks")
        self.plan.draw(cached_values(values, self.scores, cache, mixed, heads, **how))
        self.value(f"{to}.mixed", View(node.of.head_dim, heads.count, cols_apart=heads.floats))
        return RowInterleaved((mixed,)) if self.table is None else mixed

    def value(self, name: str, view: View) -> None:
        """Name what the last draw has written, in the plan of one sequence; ``latent_`` what heads see of a latent."""
        head, _, last = name.rpartition(".")
        if self.config.kv_lora_rank and last in ("q", "k", "v", "mixed", "joined"):
            name = f"{head}.latent_{last}"
        if self.table is None:
            self.plan.value(name, view)

    def blocks(self, name: str, slots: int, floats: int) -> TensorSpec:
        """An activation [slots, floats] in blocks."""
        tiles, pitch = self.kernels.tiles, self.kernels.pitch
        layout = BlockLayout.of((slots, floats), self.max_texture_size, tiles=tiles, pitch=pitch)
        return self.plan.laid_out(name, "activation", layout)

    def cache(self, name: str, slots: int, floats: int) -> TensorSpec:
        """A cache [slots, floats]."""
        return self.plan.laid_out(name, "cache", BlockLayout.by_block((slots, floats), self.max_texture_size))

    def layer_cache(self, layer: int) -> TensorSpec:
        """The cache of one layer: keys and values of tokens, queries once for each ``every`` tokens.

        In bytes it has no queries. Layers that share keys and values share a cache.
        """
        layer = layer if (source := self.config.layer(layer).source) is None else source
        slots, form = (self.cache_slots, self.every), self.cache_format.attention
        layout = attention_layout(self.recipes.heads(layer), *slots, form, self.max_texture_size)
        return self.plan.laid_out(f"h.{layer}.{self.config.layer(layer).branch}.cache", "cache", layout)

    def weight(self, name: str) -> TensorSpec:
        """The weight of this name."""
        layout = self.weights[name].layout
        return self.plan.laid_out(name, "weight", layout(self.kernels.quad, self.max_texture_size))

    def weight_if_any(self, name: str) -> TensorSpec | None:
        """The weight of this name; None where the model has none."""
        return self.weight(name) if name in self.weights else None

    def matrix(self, recipe: Recipe) -> Matrix:
        """The packed matrix of a product with its constants and its gain."""
        weight, consts = (self.weight(f"{recipe.name}.{each}") for each in ("weight", "consts"))
        gain = self.weight_if_any(f"{recipe.name}.gain")
        biased = self.recipes.biased(recipe)
        return Matrix(weight, consts, recipe.width, gain, recipe.gated, biased, self.low_rank(recipe))

    def low_rank(self, recipe: Recipe) -> LowRankSum | None:
        """What adapters add to a product; None where they change none of its matrices."""
        _, ranks = self.adapters.places(recipe)
        if not ranks:
            return None
        down, up = (self.weight(f"{recipe.name}.{each}") for each in ("lora_down", "lora_up"))
        experts = self.config.experts
        used = 1 if experts is None or recipe.experts == 1 else experts.stacked.used
        inner = self.whole_vector(f"lora.inner.{used * ranks}", self.most_rows, used * ranks)
        count, biased = len(self.adapters.names), self.recipes.norm_is_biased(recipe)
        return LowRankSum(down, up, inner, count, biased, self.adapter_table, recipe.experts, used)

    def adapt(self, recipe: Recipe, x: Vectors, **chosen: Any) -> None:
        """Draw the inner vectors of the adapters of a product, for the product that follows, or of chosen experts."""
        low_rank = self.low_rank(recipe)
        if low_rank is None:
            return
        x, parts = x.tensors[0] if isinstance(x, RowInterleaved) and self.table is None else x, 1
        if self.parts_of(recipe) > 1:
            parts = parts_of_steps(4 * blocks_for(recipe.width), self.kernels.part_steps)
        self.plan.draw(lora_down(self.in_rows(f"{recipe.name}.lora"), x, low_rank, parts=parts, **chosen))

    def draw_layer(self, layer: Layer, *, ends: bool = False) -> None:
        """Draw a layer; with ``ends`` only what it keeps for later tokens."""
        found: list[tuple[Branch, Vectors]] = []
        for branch in layer.mixings:
            node = branch.body
            mixed: Vectors | None = None
            if isinstance(node, Convolution):
                mixed = self.convolve(layer.number, node, ends=ends)
            elif isinstance(node, DeltaMixing):
                mixed = self.apply_delta_rule(layer.number, branch, node, ends=ends)
            elif isinstance(node, Attention):
                mixed = self.attention(layer.number, node, ends=ends)
            if mixed is None:
                self.kept += self.plan.last_written
            else:
                found.append((branch, mixed))
        if not ends:
            self.after_mixing(layer, found)

    def convolve(self, layer: int, node: Convolution, *, ends: bool) -> RowInterleaved | None:
        """Draw a layer's convolution; rows that follow each other may exceed its ring, and are stored last."""
        name, width, length = f"h.{layer}.conv", self.config.hidden_size, node.conv.weight.shape[2]
        layout = input_layout(length, width, self.cache_slots // self.every, self.max_texture_size)
        inputs = self.plan.laid_out(f"{name}.inputs", "cache", layout)
        x = self.rows("conv.projected", PARTS * padded(width))
        self.product(self.recipes.mixing_in(layer), self.hidden[0], x)
        if not self.together:
            self.store(f"{name}.store", x, inputs, ring=layout.every, gated=True)
            self.value(f"blocks.{layer}.conv.gated", View(width, rows=layout.every))
        mixed = None if ends else self.rows("conv.mixed", width)
        if mixed is not None:
            draw, taps = self.in_slots(f"{name}.mixed"), self.weight(f"{name}.taps")
            how: dict[str, Any] = {"length": length, "every": self.every, "together": self.together}
            self.plan.draw(short_conv(draw, x, inputs, taps, mixed, self.table, **how))
            self.value(f"blocks.{layer}.conv.mixed", View(width))
        if self.together:
            self.store(f"{name}.store", x, inputs, ring=layout.every, gated=True)
        return mixed

    def attention(self, layer: int, node: Attention, *, ends: bool) -> Vectors | None:
        """Draw keys, values and queries of a layer, what its heads see, and their gates where it has them."""
        cache, to, dim = self.layer_cache(layer), f"blocks.{layer}.attn", node.of.head_dim
        self.keys_and_values(layer, node, cache)
        if ends:
            return None
        heads, mixed = self.recipes.heads(layer), self.attend(layer, node, cache)
        if node.of.gated or node.gate is not None:
            mixed = self.open_gates(layer, mixed, 0 if node.of.gated else heads.floats)
        self.value(f"{to}.joined", View(dim, heads.count, cols_apart=heads.floats, rows="only", joined=True))
        return mixed

    def keys_and_values(self, layer: int, node: Attention, cache: TensorSpec) -> None:
        """Draw keys, values and queries of a layer, and keep keys and values in its cache."""
        recipe, turning, name = self.recipes.qkv(layer), self.turning(layer, node), f"h.{layer}.attn"
        straight = not self.stores and node.of.source is None
        out, clears = (RowInterleaved((cache,)), "rows") if straight else (self.qkv(layer), "all")
        first: dict[str, Any] = {"first": "position"} if straight else {}
        x = self.rounded(recipe, self.hidden[0])
        if not self.normed_heads:
            shared = self.shared(self.shared_norm_parts(recipe, cache), clears)
            self.product(recipe, x, out, turning=turning, **first, **shared)
        else:
            assert turning is not None
            raw = self.raw(layer)
            self.product(recipe, x, raw)
            how: dict[str, Any] = {"head_dim": node.of.head_dim, "eps": self.config.layer_norm_eps, **first}
            how |= {"whole": node.whole, "values": node.of.value_norms, "turned_first": node.of.turned_first}
            how |= {"latent": node.of.latent, "low_at": self.recipes.gates_at}
            gains, draw = self.weight(f"{name}.qkv.turn"), self.in_slots(f"{name}.turn")
            self.plan.draw(turn_heads(draw, raw, gains, turning, out, rows=self.table, **how))
        heads = self.recipes.heads(layer)
        self.name_heads(layer, "q", heads.count, heads.queries_at, straight=straight)
        if node.of.source is not None:
            return
        if not straight:
            self.store(f"{name}.store", out, cache)
        self.name_heads(layer, "k", heads.kv, 0)
        self.name_heads(layer, "v", heads.kv, heads.kv_floats)

    def name_heads(self, layer: int, letter: str, heads: int, start: int, *, straight: bool = True) -> None:
        """Name queries, keys or values, which the last draw has written, ``straight`` into the cache or not."""
        dim = self.config.layer(layer).head_dim
        order = () if letter == "v" else tuple(map(int, self.recipes.turned_places(dim)))
        how: dict[str, Any] = {"start": start, "order": order, "rows": "position" if straight else "only"}
        self.value(f"blocks.{layer}.attn.{letter}", View(dim, heads, cols_apart=head_floats(dim), **how))

    def turning(self, layer: int, node: Attention) -> Turning | None:
        """The outputs that a layer turns by their positions or normalises; None where it does neither."""
        heads, rope = self.recipes.heads(layer), node.of.rope
        if rope is not None:
            return Turning(keys=heads.kv_floats, queries=heads.queries_at, **self.angles(rope))
        return None if node.q_norm is None else Turning(None, heads.kv_floats, heads.queries_at, heads.floats)

    def angles(self, rope: Rope) -> dict[str, Any]:
        """The table of angles, and how rows are found in it."""
        table, long = self.weight(self.recipes.ropes[rope]), self.config.long_after
        positions, back = self.config.max_position_embeddings if long else 0, bool(self.options.sections)
        return {"table": table, "positions": positions, "apart": rope.scales_queries, "back": back}

    def open_gates(self, layer: int, mixed: Vectors, head_floats: int) -> Vectors:
        """Draw the results of attention times their gates, one for each ``head_floats`` of them unless that is 0."""
        raw, draw = self.raw(layer), self.in_slots(f"h.{layer}.attn.gated", "attn.gate")
        out: Vectors
        if isinstance(mixed, TensorSpec):
            raw = RowInterleaved((self.by_row(layer, "attn.rows", raw, "attn.raw"),))
            draw = draw._replace(rows=self.counted)
            out = self.blocks("row.gated", *mixed.shape)
            mixed, target = RowInterleaved((mixed,)), RowInterleaved((out,))
        else:
            out = target = self.rows("attn.gated", mixed.cols)
        gates_at = self.recipes.gates_at
        self.plan.draw(gate_heads(draw, mixed, raw, target, gates_at=gates_at, head_floats=head_floats))
        return out

    def apply_delta_rule(self, layer: int, branch: Branch, node: DeltaMixing, *, ends: bool) -> TensorSpec | None:
        """Draw the delta rule or the scan of a layer, each row in a slot, see :mod:`glinfer.kernels.fused.delta`."""
        kind, heads, of = branch.name, DeltaHeads(node.rule), self.config.layer(layer)
        name, scan = f"h.{layer}.{kind}", node.rule.scan
        piece = self.table.shape[0] if self.together and self.table is not None else 0
        run = DeltaRun(name, heads, self.kernels, self.table, self.every, piece)
        found = self.rows(f"{kind}.projected", heads.projected)
        self.product(self.recipes.mixing_in(layer, branch), self.hidden[0], found)
        projected = self.by_row(layer, f"{kind}.rows", found, f"{kind}.projected")
        layouts = heads.layouts(of.taps, self.cache_slots // self.every, self.max_texture_size)
        inputs, cache, even, odd = (self.plan.laid_out(f"{name}.{each}", "cache", layouts[each]) for each in layouts)
        # Of several consecutive rows of a delta rule lengths are a pass of their own, and corrections are solved for.
        solves = piece > 0 and not scan
        raw, mixed = (self.row_vector(f"{kind}.{part}", heads.mixed) for part in ("raw", "given"))
        taps, decay = (self.weight(f"{name}.{part}") for part in ("taps", "decay"))
        how: dict[str, Any] = {"length": of.taps, "eps": DELTA_EPS, "unit": not piece and not scan}
        draw, given = self.plan.draw, raw if solves else mixed
        draw(delta_conv(run, projected, inputs, cache, taps, decay, given, **how))
        self.store(f"{name}.store", RowInterleaved((projected,)), inputs, ring=input_ring(of.taps))
        if solves:
            draw(delta_unit(run, raw, mixed, eps=DELTA_EPS))
        keys = None if scan else self.row_vector(f"{kind}.scores.keys", heads.per_head)
        queries = None if ends else self.row_vector(f"{kind}.scores.queries", heads.per_head)
        if keys is not None or queries is not None:
            draw(delta_scores(run, mixed, cache, keys, queries))
        kept = self.row_vector(f"{kind}.kept", heads.kept)
        if keys is None:
            draw(scan_row(run, mixed, kept))
        else:
            draw(delta_recall(run, mixed, keys, cache, (even, odd), kept, queries=False))
        if solves and keys is not None:
            apart, kept = kept, self.row_vector(f"{kind}.corrected", heads.kept)
            solved = self.row_vector(f"{kind}.solved", heads.per_head)
            draw(delta_solve(run, mixed, keys, solved))
            draw(delta_correct(run, apart, solved, kept))
        self.store(f"{name}.row_store", RowInterleaved((kept,)), cache, f"{kind}.store", RING)
        draw(*(delta_fold(run, cache, (even, odd), parity) for parity in (0, 1)))
        if queries is None:
            return None
        results, out = (self.row_vector(f"{kind}.{part}", heads.rule.values) for part in ("results", "mixed"))
        draw(delta_recall(run, mixed, queries, cache, (even, odd), results, queries=True))
        eps, groups = self.config.layer_norm_eps, node.rule.norm_groups
        if scan:
            gated = self.row_vector(f"{kind}.gated", heads.rule.values) if groups else out
            draw(scan_gate(run, mixed, results, projected, decay, gated))
            results = gated
        if node.norm is not None:
            gains = self.weight(f"{name}.norm")
            if scan:
                draw(scan_norm(run, results, gains, out, groups=groups, eps=eps))
            else:
                draw(delta_norm(run, results, projected, gains, out, eps=eps))
        self.value(f"blocks.{layer}.{kind}.mixed", View(heads.rule.values))
        return out

    def after_mixing(self, layer: Layer, mixed: list[tuple[Branch, Vectors]]) -> None:
        """Draw the rest of a layer: output projections and the MLP, all added to the residual stream."""
        before, behind = self.hidden  # the stream, and where the next branch leaves it
        number, node = layer.number, layer.mlp.body
        stream, to = View(self.config.hidden_size), f"blocks.{number}"
        inner = self.expanded(number, node, before) if layer.parallel and isinstance(node, Mlp) else None
        for branch, each in mixed:
            self.add(self.recipes.mixing_out(number, branch), each, before, behind)
            before, behind = behind, before
        if mixed:
            self.value(f"{to}.resid_mid{self.centred}", stream)
        if isinstance(node, ExpertMlps):
            self.use_experts(number, node, before, behind)
        elif isinstance(node, Mlp):
            inner = self.expanded(number, node, before) if inner is None else inner
            self.add(self.recipes.down(number), inner, before, behind)
        if not isinstance(node, Nothing):
            before, behind = behind, before
        if layer.per_layer is not None:
            self.value(f"{to}.resid_mlp", stream)
            self.add_per_layer(layer, before, behind)
            before, behind = behind, before
        if layer.scale is not None:
            behind = self.streams[before is self.streams[0]]
            draw = self.in_slots(f"h.{number}.scale")
            self.plan.draw(scale_rows(draw, before, self.weight(draw.name), behind))
            before, behind = behind, behind if self.in_place else before
        self.hidden = before, behind
        self.value(f"{to}.resid_post{self.centred}", stream)

    def embed_layers(self) -> None:
        """Draw the projections of embeddings for the third branches of all layers, where there are any."""
        recipe = self.recipes.per_layer_in()
        if recipe is not None:
            found = self.rows("per_layer.in", len(recipe.rows))
            self.product(recipe, self.hidden[0], found)
            self.projected = self.by_row(0, "per_layer.rows", found, PROJECTED)

    def add_per_layer(self, layer: Layer, residual: RowInterleaved, out: RowInterleaved) -> None:
        """Draw the third branch of a layer, that of its own embedding."""
        number, width = layer.number, self.config.hidden_size_per_layer_input
        recipes = self.recipes.per_layer(number)
        assert recipes is not None
        assert self.projected is not None
        gates, hidden = self.rows("per_layer.gate", width), self.rows("per_layer.hidden", width)
        self.product(recipes[0], residual, gates, activation=self.config.hidden_act)
        table, gain = self.weight(f"h.{number}.per_layer.table"), self.weight("per_layer.gain")
        how: dict[str, Any] = {"rows": self.table, "picks": self.picks, "layer": number}
        draw, how["eps"] = self.in_slots(f"h.{number}.per_layer.hidden"), self.config.layer_norm_eps
        self.plan.draw(per_layer_hidden(draw, gates, self.projected, gain, table, hidden, **how))
        self.value(f"blocks.{number}.per_layer.hidden", View(width))
        self.add(recipes[1], hidden, residual, out)

    def add(self, recipe: Recipe, x: Vectors | RawRows, residual: RowInterleaved, out: RowInterleaved) -> None:
        """Draw a product that is added to the residual stream, normalised before where the layer has that."""
        x = x if isinstance(x, RawRows) else self.rounded(recipe, x)
        if recipe.post_norm:
            assert self.branch is not None
            self.product(recipe, x, self.branch, **self.shared(self.parts_of(recipe), "all"))
            draw = self.in_slots(recipe.named(recipe.post_kind))
            self.norm(draw, self.branch, self.weight(draw.name), out, residual=apart_from(out, residual))
        elif residual is not out:
            self.product(recipe, x, out, residual=residual)
        else:
            self.product(recipe, x, out, adds=True, parts=self.parts_of(recipe))

    def rounded(self, recipe: Recipe, x: Vectors) -> Vectors:
        """Draw the norm before a product whose results are rounded, in one tensor where x is; else return x."""
        if not recipe.rounded:
            return x
        in_order, name = self.in_rows if isinstance(x, TensorSpec) else self.in_slots, f"rounded.{recipe.width}"
        out = self.blocks(f"row.{name}", *x.shape) if isinstance(x, TensorSpec) else self.rows(name, x.cols)
        given, to = (RowInterleaved((each,)) if isinstance(each, TensorSpec) else each for each in (x, out))
        draw = in_order(f"{recipe.name}.norm", f"{recipe.branch}.norm")
        self.norm(draw, given, self.weight(draw.name), to, residual=None, width=recipe.floats)
        return out

    @staticmethod
    def shared(parts: int, clears: str) -> dict[str, Any]:
        """The arguments of a product that instances share, whose sums blending adds up."""
        return {"adds": True, "parts": parts, "clears": clears} if parts > 1 else {}

    def parts_of(self, recipe: Recipe) -> int:
        """Instances that share a product which blending adds to the residual stream."""
        return shared_parts(self.matrix(recipe), self.kernels.part_steps)

    def norm(self, draw: Pass, x: RowInterleaved, gains: TensorSpec, out: RowInterleaved, **how: Any) -> None:
        """Draw the norm of rows, which are rounded or added to others."""
        self.plan.draw(post_norm(draw, x, gains, out, eps=self.config.layer_norm_eps, **how))

    def use_experts(self, layer: int, node: ExpertMlps, residual: RowInterleaved, out: RowInterleaved) -> None:
        """Draw the choice of each row's experts, their products, and the sum that is added to the residual stream."""
        name, x = f"h.{layer}.mlp", self.by_row(layer, "mlp.rows", residual, "mlp.rows")
        recipes, chooses, experts = self.recipes, node.choice, node.choice.stacked
        inner = None if node.apart is None else self.rows("mlp.shared", node.apart.up.outputs)
        if inner is not None:
            self.product(recipes.apart(layer)[0], residual, inner, activation=self.config.hidden_act)
        router = recipes.router(layer)
        logits = self.row_vector("mlp.router", len(router.rows))
        choice = self.row_vector("mlp.choice", CHOICE_FLOATS * experts.used)
        self.adapt(router, x)
        norm_eps = recipes.norm_eps(router)
        self.plan.draw(gemm(self.in_rows(router.name), x, self.matrix(router), logits, norm_eps=norm_eps))
        self.value(f"blocks.{layer}.mlp.router", View(chooses.count))
        bias, scales = (self.weight_if_any(f"{name}.expert_{each}") for each in ("bias", "scale"))
        first = replace(chooses, shared=False) if chooses.apart else chooses
        self.plan.draw(route(self.in_rows(f"{name}.choice"), logits, choice, first, bias=bias, scales=scales))
        parts, choice = self.expert_products(layer, experts, x, choice)
        draw = self.in_slots(f"{name}.mix")
        if node.norms is not None and inner is not None:
            shared, chosen = (self.rows(f"mlp.{each}", out.cols) for each in ("shared_out", "chosen"))
            self.product(recipes.apart(layer)[1], inner, shared)
            rows = self.counted
            self.plan.draw(mix_experts(draw, parts, choice, chosen, experts, residual=None, rows=rows, alone=True))
            self.add_normed(layer, shared, chosen, residual, out)
            return
        if inner is not None:  # added once the experts have read the stream
            summed = out if residual.names == out.names else self.rows("mlp.shared_sum", out.cols)
            if chooses.apart:
                self.add_weighted(layer, replace(chooses, used=0), logits, inner, residual, summed)
            else:
                self.add(recipes.apart(layer)[1], inner, residual, summed)
            residual = summed
        bias, added = self.weight_if_any(f"{name}.sum_bias"), apart_from(out, residual)
        self.plan.draw(mix_experts(draw, parts, choice, out, experts, residual=added, rows=self.counted, bias=bias))

    def add_normed(
        self, layer: int, shared: RowInterleaved, chosen: RowInterleaved, residual: RowInterleaved, out: RowInterleaved
    ) -> None:
        """Draw the sum of experts and the shared one, each normalised, whose norm is added to the stream."""
        first, both = (self.rows(f"mlp.{each}", out.cols) for each in ("shared_normed", "both"))
        for part, x, to, beside in (
            ("shared", shared, first, None),
            ("chosen", chosen, both, first),
            ("sum", both, out, apart_from(out, residual)),
        ):
            draw = self.in_slots(f"h.{layer}.mlp.norm.{part}", "mlp.post_norm")
            self.norm(draw, x, self.weight(draw.name), to, residual=beside, alone=part == "shared")

    def add_weighted(
        self,
        layer: int,
        alone: Experts,
        logits: TensorSpec,
        inner: RowInterleaved,
        residual: RowInterleaved,
        out: RowInterleaved,
    ) -> None:
        """Draw the result of a shared expert of another width times its weight, which is added to the stream."""
        name, found = f"h.{layer}.mlp.shared", self.rows("mlp.shared_out", out.cols)
        self.product(self.recipes.apart(layer)[1], inner, found)
        choice, only = self.row_vector("mlp.shared_choice", CHOICE_FLOATS), Experts(1, 1, normed=False)
        draw, added = self.in_slots(f"{name}.mix", "mlp.mix"), apart_from(out, residual)
        self.plan.draw(
            route(self.in_rows(f"{name}.choice", "mlp.choice"), logits, choice, alone),
            mix_experts(draw, found, choice, out, only, residual=added, rows=self.counted),
        )

    def expert_products(
        self, layer: int, experts: Experts, x: TensorSpec, choice: TensorSpec
    ) -> tuple[Vectors, TensorSpec]:
        """Draw the products of each row with its experts; returns those, and the choices that say where each lies."""
        config, up, down = self.config, self.recipes.up(layer), self.recipes.down(layer)
        inner = self.row_vector("mlp.inner", experts.used * padded(config.intermediate_size))
        parts = self.row_vector("mlp.parts", experts.used * padded(config.hidden_size))
        chosen: dict[str, Any] = {"experts": experts, "choice": choice}
        norm: dict[str, Any] = {"norm_eps": self.recipes.norm_eps(up), "activation": config.hidden_act}
        self.adapt(up, x, choice=choice)
        self.plan.draw(gemm(self.in_rows(up.name), x, self.matrix(up), inner, **norm, **chosen))
        self.adapt(down, inner, choice=choice, apart=config.intermediate_size)
        self.plan.draw(gemm(self.in_rows(down.name), inner, self.matrix(down), parts, apart=True, **chosen))
        return parts, choice

    def expanded(self, layer: int, node: Mlp, stream: RowInterleaved) -> RowInterleaved | RawRows:
        """Draw the MLP's first product, which instances share if its reader finishes it; returns that one's input."""
        recipe, config, width = self.recipes.up(layer), self.config, node.up.outputs
        x = self.rounded(recipe, stream)
        usual = width == config.intermediate_size and config.experts is None
        name = "mlp.inner" if usual else f"mlp.inner.{width}"
        inner = self.rows(name, RawRows.floats(self.matrix(recipe)) if self.raw_inner else width)
        if not self.raw_inner:
            self.product(recipe, x, inner, activation="none" if node.alphas else config.hidden_act)
            if node.alphas:
                linear, inner = inner, self.rows("mlp.activated", width)
                alphas = self.weight(f"h.{layer}.mlp.alphas")
                self.plan.draw(xielu_rows(self.in_slots(f"h.{layer}.mlp.act"), linear, alphas, inner))
            self.value(f"blocks.{layer}.mlp.hidden", View(width))
            return inner
        self.product(recipe, x, inner, adds=True, parts=self.parts_of(recipe), clears="all", raw=True)
        return RawRows(inner, self.matrix(recipe), config.hidden_act, config.layer_norm_eps)

    @cached_property
    def raw_inner(self) -> bool:
        """Whether the MLP's first product leaves bare sums, which no adapter reads, nor adds to after the norm."""
        kernels, first, recipes, places = self.kernels, self.graph.layer(0).mlp, self.recipes, self.adapters.places
        shares = self.few and kernels.part_steps > 0 and kernels.split_inner
        plain = isinstance(first.body, Mlp) and not first.body.alphas
        return (
            shares
            and first.norm is not None
            and not first.norm.rounded
            and plain
            and not any(
                places(recipes.down(layer))[1] or (places(up := recipes.up(layer))[1] and recipes.norm_is_biased(up))
                for layer in (range(self.config.num_hidden_layers) if self.adapters.names else ())
            )
        )

    def shared_norm_parts(self, recipe: Recipe, cache: TensorSpec) -> int:
        """Instances that share keys, values and queries, which go into a slot of a cache; blending adds them up."""
        layout = cache.layout
        assert isinstance(layout, BlockLayout)
        # Sums of half floats would be rounded once for each instance. Bytes are rounded in a pass behind.
        into_slot = layout.format_name == "rgba32f" and layout.slot_is_rectangular
        shared = self.kernels.split_norms and (into_slot or self.in_bytes)
        return self.parts_of(recipe) if shared and self.few else 1


def apart_from(out: RowInterleaved, added: RowInterleaved | None) -> RowInterleaved | None:
    """Rows that a pass has to add; None if blending adds to them, as they are in its targets."""
    return None if added is None or added.names == out.names else added
