"""The fused draws of each part of a layer, for one row or for many: what all fast plans share.

A norm is in the product after it; keys, values and queries are one product, and so are gate and up; heads are rotated
where they are computed; and blending adds branches to the residual stream where that is faster.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

from glinfer.errors import PlanError
from glinfer.families.layer import Experts, Rope
from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.graph.nodes import Attention, Branch, Convolution, DeltaMixing, ExpertMlps, Layer, Mlp, Nothing
from glinfer.kernels.fused.cached import cached_scores, cached_values
from glinfer.kernels.fused.convolve import PARTS, short_conv
from glinfer.kernels.fused.delta import input_layout
from glinfer.kernels.fused.dense import RawRows, Rotation
from glinfer.kernels.fused.embed import embed
from glinfer.kernels.fused.experts import mix_experts, route
from glinfer.kernels.fused.gemm import gemm
from glinfer.kernels.fused.low_rank import CHOICE_FLOATS
from glinfer.kernels.fused.norms import post_norm
from glinfer.kernels.fused.per_layer import per_layer_hidden, scale_rows
from glinfer.kernels.fused.rows import RowInterleaved, Vectors, padded
from glinfer.kernels.fused.rowwise import gate_heads, xielu_rows
from glinfer.kernels.fused.sample import pick
from glinfer.kernels.fused.turn import turn_heads
from glinfer.kernels.spec import Pass, TensorSpec
from glinfer.lower.fused.base import LoweringBase
from glinfer.lower.fused.delta_rule import draw_delta_rule
from glinfer.lower.weights.recipe import Recipe, head_floats
from glinfer.program.points import View

PROJECTED = "per_layer.in"
"""The projections of embeddings for the third branches of all layers."""


class Lowering(LoweringBase):
    """The fused draws of a model's graph, for one row; subclasses have many."""

    def embed(self, out: RowInterleaved | None = None) -> None:
        """Draw the embeddings of tokens to the stream, or to ``out``."""
        table = f"{self.recipes.head().name}.weight" if self.recipes.table_is_head else "wte"
        wte, wpe, out = self.weight(table), self.weight_if_any("wpe"), out or self.hidden[0]
        scale, typed, reads = self.config.embedding_scale, bool(self.config.type_vocab_size), (wte, wpe, self.picks)
        draw = self.in_slots("embed")
        self.plan.draw(embed(draw, *reads, out, self.table, images=self.images, scale=scale, typed=typed))
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
        rows, stats = self.table, self.stats
        scores, values = (self.in_slots(f"h.{layer}.attn.{part}") for part in ("scores", "values"))
        self.plan.draw(cached_scores(scores, cache, self.scores, heads, rows=rows, queries=queries, stats=stats))
        self.value(f"{to}.scores", View("slots", heads.count))
        sinks = self.weight_if_any(f"h.{layer}.attn.sinks")
        self.plan.draw(cached_values(values, self.scores, cache, mixed, heads, rows=rows, sinks=sinks, stats=stats))
        self.value(f"{to}.mixed", View(node.of.head_dim, heads.count, cols_apart=heads.floats))
        return RowInterleaved((mixed,)) if self.table is None else mixed

    def draw_layer(self, layer: Layer, *, ends: bool = False) -> None:
        """Draw a layer; with ``ends`` only what it keeps for later tokens."""
        found: list[tuple[Branch, Vectors]] = []
        for branch in layer.mixings:
            node = branch.body
            mixed: Vectors | None = None
            if isinstance(node, Convolution):
                mixed = self.convolve(layer.number, node, ends=ends)
            elif isinstance(node, DeltaMixing):
                mixed = draw_delta_rule(self, layer.number, branch, node, ends=ends)
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
            rows, every, together = self.table, self.every, self.together
            conv = short_conv(draw, x, inputs, taps, mixed, rows, length=length, every=every, together=together)
            self.plan.draw(conv)
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
        recipe, rotation, name = self.recipes.qkv(layer), self.rotation(layer, node), f"h.{layer}.attn"
        straight = not self.stores and node.of.source is None
        out, clears = (RowInterleaved((cache,)), "rows") if straight else (self.qkv(layer), "all")
        first: dict[str, Any] = {"first": "position"} if straight else {}
        x = self.rounded(recipe, self.hidden[0])
        if not self.normed_heads:
            shared = self.shared(self.shared_norm_parts(recipe, cache), clears)
            self.product(recipe, x, out, rotation=rotation, **first, **shared)
        else:
            assert rotation is not None
            raw = self.raw(layer)
            self.product(recipe, x, raw)
            how: dict[str, Any] = {"head_dim": node.of.head_dim, "eps": self.config.layer_norm_eps, **first}
            how |= {"whole": node.whole, "values": node.of.value_norms, "rotated_first": node.of.rotated_first}
            how |= {"latent": node.of.latent, "low_at": self.recipes.gates_at}
            gains, draw = self.weight(f"{name}.qkv.turn"), self.in_slots(f"{name}.turn")
            self.plan.draw(turn_heads(draw, raw, gains, rotation, out, rows=self.table, **how))
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
        order = () if letter == "v" else tuple(map(int, self.recipes.rotary_index(dim)))
        view = View(dim, heads, 0, head_floats(dim), start, order, rows="position" if straight else "only")
        self.value(f"blocks.{layer}.attn.{letter}", view)

    def rotation(self, layer: int, node: Attention) -> Rotation | None:
        """The outputs that a layer rotates or normalises; None where it does neither."""
        heads, rope = self.recipes.heads(layer), node.of.rope
        if rope is not None:
            return Rotation(keys=heads.kv_floats, queries=heads.queries_at, **self.angles(rope))
        return None if node.q_norm is None else Rotation(None, heads.kv_floats, heads.queries_at, heads.floats)

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

    def after_mixing(self, layer: Layer, mixed: list[tuple[Branch, Vectors]]) -> None:
        """Draw the rest of a layer: output projections and the MLP, all added to the residual stream."""
        before, behind = self.hidden  # the stream, and where the next branch leaves it
        number, node = layer.number, layer.mlp.body
        stream, to = View(self.config.hidden_size), f"blocks.{number}"
        if layer.parallel and isinstance(node, ExpertMlps):
            raise PlanError(
                f"layer {number} has experts in parallel with attention; the fast plan has no draw for these"
            )
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
        draw, eps = self.in_slots(f"h.{number}.per_layer.hidden"), self.config.layer_norm_eps
        reads, rows, picks = (gates, self.projected, gain, table), self.table, self.picks
        self.plan.draw(per_layer_hidden(draw, *reads, hidden, layer=number, eps=eps, rows=rows, picks=picks))
        self.value(f"blocks.{number}.per_layer.hidden", View(width))
        self.add(recipes[1], hidden, residual, out)

    def add(self, recipe: Recipe, x: Vectors | RawRows, residual: RowInterleaved, out: RowInterleaved) -> None:
        """Draw a product that is added to the residual stream, normalised before where the layer has that."""
        x = x if isinstance(x, RawRows) else self.rounded(recipe, x)
        if recipe.post_norm:
            assert self.branch is not None
            self.product(recipe, x, self.branch, **self.shared(self.parts_of(recipe), "all"))
            draw = self.in_slots(recipe.named(recipe.post_kind))
            self.norm(draw, self.branch, self.weight(draw.name), out, residual=separate_from(out, residual))
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
        bias, post_norm = self.weight_if_any(f"{name}.sum_bias"), recipes.down(layer).post_norm
        if post_norm and inner is not None:
            raise PlanError(
                f"layer {layer} has an MLP next to its experts, and a norm after their sum; no draw adds both"
            )
        total, added = (self.branch, None) if post_norm else (out, separate_from(out, residual))
        assert total is not None
        rows, alone = self.counted, bool(post_norm)
        mix = mix_experts(draw, parts, choice, total, experts, residual=added, rows=rows, alone=alone, bias=bias)
        self.plan.draw(mix)
        if post_norm:
            gains = self.weight(f"{name}.post_norm")
            draw = self.in_slots(gains.name)
            self.norm(draw, total, gains, out, residual=separate_from(out, residual))

    def add_normed(
        self, layer: int, shared: RowInterleaved, chosen: RowInterleaved, residual: RowInterleaved, out: RowInterleaved
    ) -> None:
        """Draw the sum of experts and the shared one, each normalised, whose norm is added to the stream."""
        first, both = (self.rows(f"mlp.{each}", out.cols) for each in ("shared_normed", "both"))
        for part, x, to, beside in (
            ("shared", shared, first, None),
            ("chosen", chosen, both, first),
            ("sum", both, out, separate_from(out, residual)),
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
        draw, added = self.in_slots(f"{name}.mix", "mlp.mix"), separate_from(out, residual)
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
        kernels, first, recipes, ranks = self.kernels, self.graph.layer(0).mlp, self.recipes, self.adapters.ranges
        shares = self.few and kernels.part_steps > 0 and kernels.split_inner
        plain = isinstance(first.body, Mlp) and not first.body.alphas
        return (
            shares
            and first.norm is not None
            and not first.norm.rounded
            and plain
            and not any(
                ranks(recipes.down(layer))[1] or (ranks(up := recipes.up(layer))[1] and recipes.norm_is_biased(up))
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


def separate_from(out: RowInterleaved, added: RowInterleaved | None) -> RowInterleaved | None:
    """Rows that a pass has to add; None if blending adds to them, as they are in its targets."""
    return None if added is None or added.names == out.names else added
