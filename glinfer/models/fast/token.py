"""The fast plan: one token a run over a cache of keys and values, in the fewest passes.

A layer takes six passes with attention: keys, values and queries together (the norm in the product, heads turned by
their positions, written straight into the cache); the scores of all heads; softmax and weighted sum; output projection
+ residual; the MLP's first product with its gate or activation; its second product + residual. Normalised heads take
one more, and so does the norm behind each branch; experts take three more, the router, the choice and the sum. A layer
with a convolution takes six passes too: one product for its three parts, the product of two of them into the cache,
the convolution with its gate, and the other three. Gates behind attention are one more, and a layer with a delta rule
takes eleven, of which seven lie between its two products (:mod:`glinfer.ops.fused.delta`). A cache in bytes takes a
pass more in each layer with attention, which rounds keys and values: a fragment of the product has four elements, too
few to find a scale from. The embedding, the logits and the choice of the next token take one each: ``6 × layers + 3``
draws.
"""

from __future__ import annotations

from typing import Literal

from glinfer.config import ModelConfig
from glinfer.gl.layouts.blocks import BLOCK_FLOATS
from glinfer.gl.layouts.matrix import Extent
from glinfer.models.fast.parts import PartsBuilder, adapter_values, cache_slots
from glinfer.models.options import PlanOptions
from glinfer.models.plan import Plan
from glinfer.models.points import View
from glinfer.models.ropes import angle_values
from glinfer.models.transforms.low_rank import NO_ADAPTERS, AdapterRanks
from glinfer.models.transforms.recipe import Recipe
from glinfer.ops.fused.cached import SLOT_TOKENS, cached_scores, cached_values, score_slots
from glinfer.ops.fused.convolve import PARTS, part_floats, short_conv, store_gated
from glinfer.ops.fused.dense import RawRows, Turning
from glinfer.ops.fused.embed import embed_token
from glinfer.ops.fused.gates import gate_heads
from glinfer.ops.fused.gemv import gemv
from glinfer.ops.fused.rows import RowInterleaved
from glinfer.ops.fused.sample import pick
from glinfer.ops.fused.tiles import store_row
from glinfer.ops.spec import RunValue, TensorSpec

PICKS, LOGITS, HIDDEN = "picks", "logits", "hidden.a"
HEAD_DRAWS = 2
"""The draws at the end (logits, pick), skipped for prompt tokens."""


def fast_plan(options: PlanOptions) -> Plan:
    """The plan ``fast``: one token a run.

    Inputs: ``position`` of the token in the sequence; ``token``, its id, or -1 for the token that the run before
    chose; ``noise`` (0 or 1), ``inverse_temperature`` and ``noise_key`` for the choice of the next token, see
    :func:`glinfer.ops.fused.sample.pick`; and where the model has two sets of angles, ``long``: 1 for a text that
    turns by the second.

    Raises:
        PlanError: there is no such format, or something does not fit a texture.
    """
    return _FastBuilder(options).build()


def run_values(config: ModelConfig, adapters: AdapterRanks = NO_ADAPTERS) -> list[RunValue]:
    """The run values of the fast plan."""
    context = config.max_position_embeddings
    return [
        RunValue("position", 0, context - 1, usual=("add", "tokens", -1)),
        RunValue("score_slots", 1, score_slots(context), ("ceildiv", ("add", "position", 1), SLOT_TOKENS)),
        RunValue("token", -1, config.vocab_size - 1, usual=0),
        RunValue("noise", 0.0, 1.0),
        RunValue("inverse_temperature", 0.0, 3.4e38),
        RunValue("noise_key", 0, 2**32 - 1),
        *angle_values(config),
        *adapter_values(adapters),
    ]


class _FastBuilder(PartsBuilder[TensorSpec]):
    shares_norms = True

    def __init__(self, options: PlanOptions) -> None:
        config, kernels = options.config, options.kernels
        context = config.max_position_embeddings
        super().__init__("fast", context, run_values(config, options.adapters), options)
        first = self.vector(HIDDEN, config.hidden_size)
        # Blending adds to the stream in place; otherwise it goes from one texture to the other and back.
        self.hidden = (first, first if kernels.part_steps else self.vector("hidden.b", config.hidden_size))
        self.scores = self.blocks("attn.scores", score_slots(context), config.num_attention_heads * BLOCK_FLOATS)
        self.mixed = self.vector("attn.mixed", self.attention_width)
        if not self.has_experts:
            self.inner = self.vector("mlp.inner", self.inner_floats)
        self.logits = self.vector(LOGITS, config.vocab_size)
        self.branch = self.vector("branch", config.hidden_size) if self.has_post_norms else None
        self.raw = self.vector("attn.raw", self.recipes.qkv_floats) if self.turns_apart else None
        self.qkv = self.vector("attn.qkv", self.recipes.heads(0).cols) if self.in_bytes else None
        self.opened = self.vector("attn.gated", self.attention_width) if config.family.gated_attention else None
        if self.convolves:
            self.projected = self.vector("conv.projected", PARTS * part_floats(config.hidden_size))
            self.convolved = self.vector("conv.mixed", config.hidden_size)
        # A run reads the choice of the run before in one draw and writes its own, a slot further, in another.
        self.picks = self.cache(PICKS, context, BLOCK_FLOATS)

    def vector(self, name: str, floats: int) -> TensorSpec:
        return self.blocks(name, 1, floats)

    def value(self, name: str, view: View) -> None:
        self.plan.value(name, view)

    def build(self) -> Plan:
        config, plan = self.config, self.plan
        wte, wpe = self.tables()
        scale = config.embedding_scale
        plan.draw(embed_token("embed", wte, wpe, self.picks, self.hidden[0], scale=scale, kernels=self.kernels))
        plan.value(f"embed{self.centred}", View(config.hidden_size))
        for layer in range(config.num_hidden_layers):
            plan.begin_layer()
            self.layer(layer)
        self.product(self.recipes.head(), self.hidden[0], self.logits, cap=config.final_logit_softcapping)
        plan.value("logits", View(config.vocab_size, rows="only"))
        plan.draw(
            pick("pick", self.logits, self.picks, vocab=config.vocab_size, first="position", kernels=self.kernels)
        )
        return plan.build()

    def inner_of_adapters(self, name: str, ranks: int) -> TensorSpec:
        """Declare the inner vector of an adapter."""
        return self.vector(name, ranks)

    def layer(self, layer: int) -> None:
        of = self.config.layer(layer)
        if of.convolves:
            self.convolution(layer)
        elif of.delta is not None:
            projected = self.row_vector("delta.projected", self.recipes.delta(layer).projected)
            self.product(self.recipes.delta_in(layer), self.hidden[0], projected)
            slots = cache_slots(self.config)
            self.apply_delta_rule(layer, projected, slots, slots)
        else:
            self.attention(layer)
        self.after_mixing(layer)

    def store(self, name: str, x: TensorSpec, cache: TensorSpec) -> None:
        self.plan.draw(store_row(name, RowInterleaved((x,)), cache, kind="delta.store", kernels=self.kernels))

    def convolution(self, layer: int) -> None:
        assert self.projected is not None
        assert self.convolved is not None
        slots, name = cache_slots(self.config), f"h.{layer}.conv"
        cache, x = self.layer_cache(layer, slots, slots), RowInterleaved((self.projected,))
        self.product(self.recipes.conv_in(layer), self.hidden[0], self.projected)
        self.plan.draw(store_gated(f"{name}.store", x, cache, kernels=self.kernels))
        self.value(f"blocks.{layer}.conv.gated", View(self.config.hidden_size, rows="position"))
        taps, mixed = self.of_layer(layer, "conv.taps"), RowInterleaved((self.convolved,))
        length = self.config.layer(layer).taps
        self.plan.draw(short_conv(f"{name}.mixed", x, cache, taps, mixed, length=length, kernels=self.kernels))
        self.value(f"blocks.{layer}.conv.mixed", View(self.config.hidden_size))

    def attention(self, layer: int) -> None:
        recipes, kernels, name = self.recipes, self.kernels, f"h.{layer}.attn"
        heads, slots = recipes.heads(layer), cache_slots(self.config)
        cache, turning = self.layer_cache(layer, slots, slots), self.turning(layer)
        target, first, clears = (cache, "position", "rows") if self.qkv is None else (self.qkv, 0, "all")
        if self.raw is None:
            recipe = recipes.qkv(layer)
            parts = self.shared_norm_parts(recipe, cache)
            self.product(
                recipe,
                self.hidden[0],
                target,
                first=first,
                turning=turning,
                adds=parts > 1,
                parts=parts,
                clears=clears if parts > 1 else "",
            )
        else:
            assert turning is not None
            self.product(recipes.qkv(layer), self.hidden[0], self.raw)
            self.turn_heads(
                layer, RowInterleaved((self.raw,)), turning, RowInterleaved((target,)), rows=None, first=first
            )
        to, dim = f"blocks.{layer}.attn", self.config.head_dim
        self.name_heads(to, "q", heads.count, heads.queries_at)
        if self.qkv is not None:
            self.plan.draw(store_row(f"{name}.store", RowInterleaved((self.qkv,)), cache, kernels=kernels))
        self.name_heads(to, "k", heads.kv, 0)
        self.name_heads(to, "v", heads.kv, heads.kv_floats)
        self.plan.draw(cached_scores(f"{name}.scores", cache, self.scores, heads, kernels=kernels, queries=self.qkv))
        self.value(f"{to}.scores", View("slots", heads.count))
        sinks = self.sinks(layer)
        self.plan.draw(
            cached_values(f"{name}.values", self.scores, cache, self.mixed, heads, kernels=kernels, sinks=sinks)
        )
        self.value(f"{to}.mixed", View(dim, heads.count, cols_apart=heads.floats))
        if self.opened is not None:
            assert self.raw is not None
            mixed, raw, opened = (RowInterleaved((each,)) for each in (self.mixed, self.raw, self.opened))
            at = recipes.gates_at
            self.plan.draw(gate_heads(f"{name}.gated", mixed, raw, opened, gates_at=at, kernels=kernels))
        self.value(f"{to}.joined", View(dim, heads.count, cols_apart=heads.floats, rows="only", joined=True))

    def name_heads(self, to: str, letter: str, heads: int, start: int) -> None:
        """Name queries, keys or values, which the last draw has written."""
        order = self.recipes.turned_places if letter != "v" else ()
        where: Literal["only", "position"] = "only" if self.qkv is not None and letter == "q" else "position"
        floats, places = self.recipes.head_floats, tuple(map(int, order))
        view = View(self.config.head_dim, heads, cols_apart=floats, start=start, order=places, rows=where)
        self.value(f"{to}.{letter}", view)

    def rows_of(self, layer: int, x: TensorSpec) -> tuple[TensorSpec, Extent]:
        return x, 1

    def row_vector(self, name: str, floats: int) -> TensorSpec:
        return self.vector(name, floats)

    def as_rows(self, residual: TensorSpec, out: TensorSpec) -> tuple[RowInterleaved, RowInterleaved, Extent]:
        return RowInterleaved((residual,)), RowInterleaved((out,)), 1

    def post_norm(self, recipe: Recipe, x: TensorSpec, residual: TensorSpec, out: TensorSpec) -> None:
        rows, stream, target = (RowInterleaved((each,)) for each in (x, residual, out))
        self.draw_post_norm(recipe, rows, stream, target, 1)

    def product(
        self,
        recipe: Recipe,
        x: TensorSpec | RawRows,
        out: TensorSpec,
        *,
        residual: TensorSpec | None = None,
        activation: str = "none",
        cap: float = 0.0,
        first: Extent = 0,
        turning: Turning | None = None,
        adds: bool = False,
        parts: int = 1,
        clears: str = "",
        raw: bool = False,
    ) -> None:
        if isinstance(x, TensorSpec):
            self.adapt(recipe, x, 1)
        self.plan.draw(
            gemv(
                recipe.name,
                recipe.kind,
                x,
                self.matrix(recipe),
                out,
                first=first,
                norm_eps=self.config.layer_norm_eps if recipe.norm and not raw else None,
                turning=turning,
                residual=residual,
                activation=activation,
                cap=cap,
                adds=adds,
                parts=parts,
                clears=clears,
                raw=raw,
                kernels=self.kernels,
            )
        )
