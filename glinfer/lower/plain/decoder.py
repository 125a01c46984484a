"""The reference plan of models without a published one: the whole sequence in each run, one pass an operation.

Every node of the graph becomes the obvious draws, no passes are fused, and a run keeps nothing for the next. Tensors
lie four elements a texel, and weights are in the formats of their files (:mod:`glinfer.lower.plain.weights`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from glinfer.errors import PlanError
from glinfer.families.layer import LayerConfig, Rope
from glinfer.graph.model import graph_of
from glinfer.graph.nodes import (
    Attention,
    Branch,
    Convolution,
    DeltaMixing,
    ExpertMlps,
    LatentAttention,
    Layer,
    Linear,
    Mlp,
    ModelTensor,
    Norm,
    PerLayer,
)
from glinfer.kernels.flat import normalize
from glinfer.kernels.flat.activate import activation, gate, xielu
from glinfer.kernels.flat.convolve import causal_conv
from glinfer.kernels.flat.delta import DELTA_EPS, delta_rule, log_decay, sigmoid, softplus
from glinfer.kernels.flat.elementwise import arithmetic, scale
from glinfer.kernels.flat.experts import expert_weight
from glinfer.kernels.flat.lookup import lookup, position_add
from glinfer.kernels.flat.matmul import matmul
from glinfer.kernels.flat.movement import concat, repack, strided_copy
from glinfer.kernels.flat.normalize import normalized
from glinfer.kernels.flat.product import Finish, Product, Strategy
from glinfer.kernels.flat.rotate import rotate
from glinfer.kernels.flat.strided import Axis
from glinfer.kernels.fused.dense import ANGLES
from glinfer.kernels.spec import DrawSpec, Pass, RunValue, TensorSpec
from glinfer.lower.options import PlanOptions
from glinfer.lower.plain.weights import stored_formats
from glinfer.lower.ropes import QUERIES, angle_values, rope_names
from glinfer.program.plan import Plan, PlanBuilder
from glinfer.program.points import View
from glinfer.quant.formats import F16, F32, block_format

TOKENS, LOGITS, PROBS, LAST_ROW, IMAGES = "tokens", "logits", "probs", "last_row", "images"
ROW_ANGLES = "row.angles"
"""The input with the angles of each row of a text with images."""


def reference_decoder_plan(options: PlanOptions, *, rows: int) -> Plan:
    """The plan of a whole sequence of at most ``rows`` tokens; rows after the end of a shorter one are padding.

    It computes the logits and probabilities, [1, vocab], of the row that the run value ``last_row`` names. The input
    is ``tokens`` [rows, 1].

    Raises:
        PlanError: something does not fit a texture.
    """
    return _PlainLowering(options, rows).build()


class _PlainLowering:
    """A plan under construction: a method for each kind of node."""

    def __init__(self, options: PlanOptions, rows: int) -> None:
        self.config, self.rows, self.images = options.config, rows, options.images
        self.stored = stored_formats(options.config, options.weights, options.formats)
        self.names, self.width = options.config.family.names, options.config.hidden_size
        self.graph = graph_of(options.config)
        self.kernels, self.max_texture_size = options.kernels, options.max_texture_size
        values = [
            RunValue("rows", 1, rows, usual="tokens"),
            RunValue(LAST_ROW, 0, rows - 1, ("add", "rows", -1)),
            *angle_values(options.config, whole=True),
        ]
        self.plan = PlanBuilder("reference", rows, values, long_after=options.config.long_after)
        self.declared: dict[str, TensorSpec] = {}
        self.ropes = rope_names(options.config)
        # Layers whose keys and values others use, and these, by layer.
        self.sources = {self.config.layer(layer).source for layer in range(self.config.num_hidden_layers)}
        self.kept: dict[int, dict[str, TensorSpec]] = {}
        self.number = 0  # of the layer
        self.hidden, self.other = (self.scratch(f"hidden.{letter}", rows, self.width) for letter in "ab")

    def build(self) -> Plan:
        """Draw all passes: embedding, layers, logits and probabilities of the last row."""
        self.embed(self.hidden)
        for layer in self.graph.layers:
            self.layer(layer)
        self.head()
        return self.plan.build()

    def flat(self, name: str, kind: str, rows: int, cols: int, format_name: str = "rgba32f") -> TensorSpec:
        """A tensor, declared at the first call.

        Raises:
            PlanError: it fits no texture.
        """
        if name not in self.declared:
            try:
                made = self.plan.flat(name, kind, rows, cols, format_name, self.max_texture_size)
            except PlanError as error:
                raise PlanError(f"tensor {name}: {error}") from None
            self.declared[name] = made
        found = self.declared[name]
        if found.shape != (rows, cols):
            raise PlanError(f"tensor {name} is {list(found.shape)}; expected {[rows, cols]}")
        return found

    def scratch(self, name: str, rows: int, cols: int) -> TensorSpec:
        """An activation, which all layers share, so its name has no prefix of a layer; there is one for each shape."""
        name = re.sub(r"^h\.\d+\.", "", name)
        if name in self.declared and self.declared[name].shape != (rows, cols):
            name = f"{name}.{rows}x{cols}"
        return self.flat(name, "activation", rows, cols)

    def draw(
        self,
        build: Callable[..., DrawSpec],
        name: str,
        kind: str,
        *inputs: TensorSpec,
        out: TensorSpec | tuple[int, int] | None = None,
        **options: Any,
    ) -> TensorSpec:
        """Draw a pass to ``out``; a shape, by default the first input's, stands for a tensor of the draw's name."""
        shape = inputs[0].shape if out is None else out
        target = shape if isinstance(shape, TensorSpec) else self.scratch(name, *shape)
        self.plan.draw(build(Pass(name, self.kernels, kind), *inputs, target, **options))
        return target

    def vector(self, tensor: ModelTensor) -> TensorSpec:
        """A norm's weight or a bias, [1, n]."""
        return self.flat(tensor.name(self.names), "weight", 1, tensor.shape[0])

    def bias(self, tensor: ModelTensor | None) -> TensorSpec | None:
        """A bias [1, n], where there is one."""
        return None if tensor is None else self.vector(tensor)

    def matrix(self, node: Linear) -> tuple[TensorSpec, str | None]:
        """A matrix and its packed format, None for floats."""
        name, (rows, inputs) = node.weight.name(self.names), node.weight.shape
        kept = self.stored[name]
        if kept in (F32, F16):
            return self.flat(name, "weight", rows, inputs, "rgba32f" if kept == F32 else "rgba16f"), None
        words = 4 * sum(block_format(kept).section_texels(inputs))
        return self.flat(name, "weight", rows, words, "rgba32ui"), kept

    def rope(self, rope: Rope, *, queries: bool) -> TensorSpec:
        """The table of a kind of angles, of queries or of keys."""
        if self.images is not None and self.images.sections:
            return self.flat(ROW_ANGLES, "input", self.rows, rope.dim)
        name = self.ropes[rope] + (QUERIES if queries and rope.scales_queries else "")
        return self.flat(name, "weight", self.config.angle_rows, rope.dim)

    def embed(self, out: TensorSpec) -> None:
        """Draw the embeddings of the tokens, scaled or with positions as the family has them."""
        factor, positions = self.config.embedding_scale, self.graph.positions
        images = self.flat(IMAGES, "input", self.rows, self.width) if self.images else None
        first = self.scratch("embed.tokens", *out.shape) if factor != 1.0 or positions is not None else out
        self.lookup("embed", "embed", self.graph.embeddings, first, images=images)
        if factor != 1.0:
            self.draw(scale, "embed.scale", "embed", first, out=out, factor=factor)
        if positions is not None:
            how: dict[str, Any] = {"length": self.rows, "offset": 0, "padded": True}
            self.draw(position_add, "embed.positions", "embed", first, self.matrix(positions)[0], out=out, **how)
        self.plan.value("embed", View(self.width))
        self.embed_layers(out)

    def lookup(self, name: str, kind: str, node: Linear, out: TensorSpec | None = None, **further: Any) -> TensorSpec:
        """Draw the row of each token in a table of embeddings."""
        tokens, (table, kept) = self.flat(TOKENS, "input", self.rows, 1, "rgba32i"), self.matrix(node)
        target = (self.rows, node.inputs) if out is None else out
        return self.draw(
            lookup, name, kind, tokens, table, out=target, table_format=kept, inputs=node.inputs, **further
        )

    def embed_layers(self, x: TensorSpec) -> None:
        """Draw the projections of embeddings for all layers' third branches, each normalised, where there are any."""
        product, norm = self.graph.per_layer_in, self.graph.per_layer_norm
        if product is None or norm is None:
            return
        name, inner = "per_layer", self.config.hidden_size_per_layer_input
        found = self.linear(f"{name}.in", name, product, x, scale=self.width**-0.5)
        shape = found.shape[0] * self.config.num_hidden_layers, inner
        apart = self.draw(repack, f"{name}.apart", name, found, out=shape)
        normed = self.scratch(f"{name}.normed", *shape)
        self.normalize(f"{name}.norm", name, norm, apart, normed)
        self.draw(repack, f"{name}.inputs", name, normed, out=found.shape)

    def layer(self, layer: Layer) -> None:
        """Draw all branches of a layer."""
        before, (*_, last), to = self.hidden, layer.branches, f"blocks.{layer.number}"
        bodies: dict[type, Callable[[str, str, Any, TensorSpec], TensorSpec]] = {
            Attention: self.attention,
            LatentAttention: self.latent_attention,
            Convolution: self.convolution,
            DeltaMixing: self.delta,
            Mlp: self.mlp,
            ExpertMlps: self.experts,
            PerLayer: self.per_layer,
        }
        self.number = layer.number
        for branch in layer.branches:
            name, own = f"h.{layer.number}.{branch.name}", f"{to}.{branch.name}"
            x = before if layer.parallel or branch is layer.beside else self.hidden
            if branch.norm is not None:
                x = self.norm(f"{name}.norm", f"{branch.name}.norm", branch.norm, x)
                self.plan.value(f"{own}.norm", View(self.width))
            self.end(name, own, branch, bodies[type(branch.body)](name, own, branch.body, x))
            if branch in layer.mixings[-1:]:
                self.plan.value(f"{to}.resid_mid", View(self.width))
            elif branch is not last and branch is not layer.mixing:
                self.plan.value(f"{to}.resid_mlp", View(self.width))
        if self.images is not None and layer.number < self.images.deep:
            rows = self.flat(f"{IMAGES}.{layer.number}", "input", self.rows, self.width)
            self.change_stream(f"h.{layer.number}.images", "images", "add", rows)
        if layer.scale is not None:
            factor = self.vector(layer.scale)
            self.change_stream(f"h.{layer.number}.{last.name}.scale", "scale", "multiply", factor)
        self.plan.value(f"{to}.resid_post", View(self.width))

    def per_layer(self, name: str, to: str, node: PerLayer, x: TensorSpec) -> TensorSpec:
        """Draw the branch of a layer's own embedding."""
        rows, inner, kind = self.rows, node.gate.outputs, "per_layer"
        axes = [Axis(rows, 1, 0), Axis(inner, 0, 1)]
        all_inputs = self.scratch("per_layer.inputs", rows, self.config.num_hidden_layers * inner)
        projected = self.copy(f"{name}.part", kind, all_inputs, (rows, inner), axes, col_offset=self.number * inner)
        found = self.lookup(f"{name}.tokens", kind, node.table)
        scaled = self.draw(scale, f"{name}.scaled", kind, found, factor=inner**0.5)
        total = self.combine(f"{name}.sum", kind, "add", projected, scaled)
        inputs = self.draw(scale, f"{name}.inputs", kind, total, factor=0.5**0.5)
        gates = self.linear(f"{name}.gate", kind, node.gate, x, activation=self.config.hidden_act)
        hidden = self.combine(f"{name}.hidden", kind, "multiply", gates, inputs)
        self.plan.value(f"{to}.hidden", View(inner))
        return self.linear(f"{name}.out", kind, node.out, hidden)

    def end(self, name: str, to: str, branch: Branch, out: TensorSpec) -> None:
        """Draw the end of a branch: its norm and its factor, where it has them, and the sum with the stream."""
        if branch.post_norm is not None:
            out = self.norm(f"{name}.post_norm", f"{branch.name}.post_norm", branch.post_norm, out)
        if branch.scale != 1.0:
            out = self.draw(scale, f"{name}.scaled", f"{branch.name}.scale", out, factor=branch.scale)
        self.plan.value(f"{to}.out", View(self.width))
        self.change_stream(f"{name}.add", "residual", "add", out)

    def change_stream(self, name: str, kind: str, operation: str, x: TensorSpec) -> None:
        """Draw the sum or the product of the stream and x, which is the stream from then on."""
        self.combine(name, kind, operation, self.hidden, x, self.other)
        self.hidden, self.other = self.other, self.hidden

    def combine(
        self, name: str, kind: str, operation: str, a: TensorSpec, b: TensorSpec, out: TensorSpec | None = None
    ) -> TensorSpec:
        """Draw the sum or the product of two tensors, element by element."""
        return self.draw(arithmetic, name, kind, a, b, out=out, operation=operation)

    def norm(self, name: str, kind: str, node: Norm, x: TensorSpec) -> TensorSpec:
        """Draw the norm of x."""
        out = self.scratch("normed" if x.shape[0] == self.rows else f"{name}.normed", *x.shape)
        return self.normalize(name, kind, node, x, out)

    def normalize(
        self,
        name: str,
        kind: str,
        node: Norm | Literal["rms", "softmax"],
        x: TensorSpec,
        out: TensorSpec,
        eps: float = 0,
    ) -> TensorSpec:
        """Draw the norm of the rows of x, by default with the model's epsilon; those without gains are names."""
        eps = eps or self.config.layer_norm_eps
        if isinstance(node, str):
            norm = normalize.Norm(node, eps=0.0 if node == "softmax" else eps)
        else:
            gains: dict[str, Any] = {"offset": node.offset, "rounded": node.rounded}
            norm = normalize.Norm(node.kind, self.vector(node.weight), self.bias(node.bias), eps=eps, **gains)
        self.plan.draw(*normalized(Pass(name, self.kernels, kind), x, out, norm, scratch=self.scratch))
        return out

    def linear(
        self,
        name: str,
        kind: str,
        node: Linear,
        x: TensorSpec,
        out: TensorSpec | None = None,
        **finish: Any,
    ) -> TensorSpec:
        """Draw ``out = activation(scale · x · weightᵀ + bias)``, bounded by a cap, as ``finish`` says.

        Where ``out`` is left out, it is a tensor of the draw's name. With a scale there is no bias, as :class:`Finish`
        adds it unscaled.
        """
        weight, kept = self.matrix(node)
        out = self.scratch(name, x.shape[0], node.outputs) if out is None else out
        product = Product(x.shape[0], node.outputs, x.shape[1], transposed=True, table_format=kept)
        self.multiply(name, kind, x, weight, out, product, Finish(self.bias(node.bias), **finish))
        return out

    def multiply(
        self, name: str, kind: str, x: TensorSpec, weight: TensorSpec, out: TensorSpec, product: Product, finish: Finish
    ) -> None:
        """Draw a product by the plainest strategy."""
        how: dict[str, Any] = {"product": product, "strategy": Strategy("small"), "finish": finish}
        self.plan.draw(*matmul(Pass(name, self.kernels, kind), x, weight, out, **how, scratch=self.scratch))

    def copy(
        self,
        name: str,
        kind: str,
        x: TensorSpec,
        out: TensorSpec | tuple[int, int],
        axes: list[Axis],
        **offsets: int | str,
    ) -> TensorSpec:
        """Draw a copy of elements of x in another order."""
        return self.draw(strided_copy, name, kind, x, out=out, axes=axes, **offsets)

    def attention(self, name: str, to: str, node: Attention, x: TensorSpec) -> TensorSpec:
        """Draw the attention of a layer."""
        rows, dim, gates = self.rows, node.of.head_dim, None
        heads, kv_heads = self.config.num_attention_heads, node.of.kv_heads
        apart = {} if node.of.source is None else dict(self.kept[node.of.source])
        products = ("q", node.q, node.q_norm), ("k", node.k, node.k_norm), ("v", node.v or node.k, None)
        for letter, linear, norm in products:
            if linear is None:
                continue
            count, step = heads if letter == "q" else kv_heads, f"{name}.{letter}"
            each = self.linear(f"{step}_proj", f"attn.{letter}_proj", linear, x)
            if letter == "q" and node.of.gated:
                axes = [Axis(rows, 1, 0), Axis(heads, 0, 2 * dim), Axis(dim, 0, 1)]
                each, gates = (
                    self.copy(f"{name}.{part}", "attn.parts", each, (rows, heads * dim), axes, col_offset=offset)
                    for part, offset in (("q_alone", 0), ("gate", dim))
                )
            if (norm is not None and not node.of.rotated_first) or (letter == "v" and node.of.value_norms):
                each = self.head_norm(step, node, norm or "rms", each, count)
            if letter != "v" and node.of.rope is not None:
                each = self.rotated(step, self.rope(node.of.rope, queries=letter == "q"), each, count)
            if norm is not None and node.of.rotated_first:
                each = self.head_norm(step, node, norm, each, count)
            axes = [Axis(count, 0, dim), Axis(rows, 1, 0), Axis(dim, 0, 1)]
            keeps, shape = letter != "q" and self.number in self.sources, (count * rows, dim)
            out = self.flat(step, "activation", *shape) if keeps else shape
            apart[letter] = self.copy(step, "attn.heads", each, out, axes)
            self.plan.value(f"{to}.{letter}", View(dim, count, rows))
        self.kept[self.number] = {letter: apart[letter] for letter in "kv"}
        joined = self.mix(name, to, node.of, apart, node.sinks)
        if node.gate is not None:
            found = self.linear(f"{name}.gate_proj", "attn.gate", node.gate, x)
            axes = [Axis(rows, 1, 0), Axis(heads, 0, 1), Axis(dim, 0, 0)]
            gates = self.copy(f"{name}.gate", "attn.parts", found, (rows, heads * dim), axes)
        if gates is not None:
            opened = self.draw(sigmoid, f"{name}.opened", "attn.gate", gates)
            joined = self.combine(f"{name}.gated", "attn.gate", "multiply", joined, opened)
        self.plan.value(f"{to}.joined", View(heads * dim))
        if node.out_norm is not None:
            joined = self.norm(f"{name}.out_norm", "attn.norm", node.out_norm, joined)
            self.plan.value(f"{to}.rounded", View(heads * dim))
        return self.linear(f"{name}.out", "attn.out_proj", node.out, joined)

    def latent_attention(self, name: str, to: str, node: LatentAttention, x: TensorSpec) -> TensorSpec:
        """Draw the attention of a layer whose keys and values are products of a latent, for each head."""
        rows, heads, of, rope = self.rows, node.heads, node.widths, node.of.rope
        assert rope is not None
        rotary, apart, low = rope.dim, dict[str, TensorSpec](), x

        def part(step: str, of_rows: TensorSpec, pitch: int, first: int, width: int) -> TensorSpec:
            """Draw elements of each head, ``pitch`` apart; with a pitch of 0 all heads share them."""
            axes = [Axis(heads, 0, pitch), Axis(rows, 1, 0), Axis(width, 0, 1)]
            return self.copy(f"{name}.{step}", "attn.heads", of_rows, (heads * rows, width), axes, col_offset=first)

        def beside(step: str, of_rows: TensorSpec, count: int, pitch: int, first: int) -> TensorSpec:
            """Draw the rotated elements of ``count`` heads side by side."""
            axes = [Axis(rows, 1, 0), Axis(count, 0, pitch), Axis(rotary, 0, 1)]
            shape = rows, count * rotary
            apart = self.copy(f"{name}.{step}_parts", "attn.parts", of_rows, shape, axes, col_offset=first)
            return self.rotated(f"{name}.{step}", self.rope(rope, queries=step == "q"), apart, count)

        def normed(step: str, norm: Norm, of_rows: TensorSpec) -> TensorSpec:
            """Draw the norm of a vector, and name it."""
            out = self.scratch(f"{name}.{step}_normed", *of_rows.shape)
            self.normalize(f"{name}.{step}_norm", "attn.norm", norm, of_rows, out, eps=of.eps)
            self.plan.value(f"{to}.{step}", View(out.shape[1]))
            return out

        if node.low is not None and node.low_norm is not None:
            low = normed("low", node.low_norm, self.linear(f"{name}.low", "attn.q_proj", node.low, x))
        q = self.linear(f"{name}.q_proj", "attn.q_proj", node.q, low)
        both = self.linear(f"{name}.kv_in", "attn.kv_proj", node.latent, x)
        axes = [Axis(rows, 1, 0), Axis(of.rank, 0, 1)]
        latent = self.copy(f"{name}.latent", "attn.parts", both, (rows, of.rank), axes)
        kv = self.linear(f"{name}.kv_proj", "attn.kv_proj", node.kv, normed("latent", node.latent_norm, latent))
        of_q, of_kv = of.key + rotary, of.key + of.value
        rotated = {
            "q": part("q_turns", beside("q", q, heads, of_q, of.key), rotary, 0, rotary),
            "k": part("k_turns", beside("k", both, 1, rotary, of.rank), 0, 0, rotary),
        }
        for letter, source, pitch in (("q", q, of_q), ("k", kv, of_kv)):
            parts = [part(f"{letter}_stays", source, pitch, 0, of.key), rotated[letter]]
            apart[letter] = self.scratch(f"{name}.{letter}", heads * rows, of_q)
            self.plan.draw(concat(Pass(f"{name}.{letter}", self.kernels, "attn.heads"), parts, apart[letter]))
            self.plan.value(f"{to}.{letter}", View(of_q, heads, rows))
        apart["v"] = part("v", kv, of_kv, of.key, of.value)
        self.plan.value(f"{to}.v", View(of.value, heads, rows))
        joined = self.mix(name, to, node.of, apart)
        self.plan.value(f"{to}.joined", View(heads * of.value))
        return self.linear(f"{name}.out", "attn.out_proj", node.out, joined)

    def head_norm(
        self, step: str, node: Attention, norm: Norm | Literal["rms"], x: TensorSpec, heads: int
    ) -> TensorSpec:
        """Draw the norm of heads of queries, keys or values, or of all of a row."""
        kind, shape = "attn.head_norm", x.shape if node.whole else (self.rows * heads, node.of.head_dim)
        by_head = self.draw(repack, f"{step}_heads", kind, x, out=shape)
        normed = self.normalize(f"{step}_norm", kind, norm, by_head, self.scratch(f"{step}_normed", *shape))
        return self.draw(repack, f"{step}_rows", kind, normed, out=x.shape)

    def rotated(self, step: str, table: TensorSpec, x: TensorSpec, heads: int) -> TensorSpec:
        """Draw the rotation of heads of queries or keys."""
        how: dict[str, Any] = {"interleaved": self.config.family.positions == "neighbours"}
        how["position"] = ANGLES if self.config.long_after else 0
        return self.draw(rotate, f"{step}_turned", "attn.rope", x, table, heads=heads, **how)

    def mix(
        self, name: str, to: str, of: LayerConfig, apart: Mapping[str, TensorSpec], sinks: ModelTensor | None = None
    ) -> TensorSpec:
        """Draw scores, probabilities and weighted sums of all heads; returns the sums [rows, heads · D]."""
        rows, heads = self.rows, self.config.num_attention_heads
        (_, dim), width, kv_heads = apart["k"].shape, apart["v"].shape[1], apart["k"].shape[0] // rows
        shared, square = heads // kv_heads, View("keys", heads, rows)
        scores, probs = (self.scratch(f"{name}.{part}", heads * rows, rows) for part in ("scores", "probs"))
        mixed = self.scratch(f"{name}.mixed", heads * rows, width)
        finish = Finish(scale=of.score_scale, cap=of.score_cap, causal=0, window=of.window)
        batch, x_steps, weight_steps = (1, kv_heads, shared), (heads, shared, 1), (kv_heads, 1, 0)
        product = Product(rows, rows, dim, transposed=True, batch=batch, x_steps=x_steps, weight_steps=weight_steps)
        self.multiply(f"{name}.scores", "attn.scores", apart["q"], apart["k"], scores, product, finish)
        self.plan.value(f"{to}.scores", square)
        if sinks is not None:
            self.probs_with_sinks(name, sinks, scores)
        else:
            self.normalize(f"{name}.probs", "attn.probs", "softmax", scores, probs)
        self.plan.value(f"{to}.probs", square)
        product = Product(rows, width, rows, batch=batch, x_steps=x_steps, weight_steps=weight_steps)
        self.multiply(f"{name}.mixed", "attn.mixed", probs, apart["v"], mixed, product, Finish())
        self.plan.value(f"{to}.mixed", View(width, heads, rows))
        axes = [Axis(rows, 1, 0), Axis(heads, rows, 0), Axis(width, 0, 1)]
        return self.copy(f"{name}.joined", "attn.joined", mixed, (rows, heads * width), axes)

    def probs_with_sinks(self, name: str, sinks: ModelTensor, scores: TensorSpec) -> None:
        """Draw the softmax of rows of scores with the sink of their head as one more, which is then left out."""
        count, rows = scores.shape
        of_each_row = [Axis(sinks.shape[0], 0, 1), Axis(rows, 0, 0)]
        column = self.copy(f"{name}.sinks", "attn.sinks", self.vector(sinks), (count, 1), of_each_row)
        joined, shared = (self.scratch(f"{name}.{part}", count, rows + 1) for part in ("with_sinks", "shares"))
        self.plan.draw(concat(Pass(f"{name}.with_sinks", self.kernels, "attn.sinks"), [scores, column], joined))
        self.normalize(f"{name}.shares", "attn.sinks", "softmax", joined, shared)
        axes = [Axis(count, 1, 0), Axis(rows, 0, 1)]
        self.copy(f"{name}.probs", "attn.probs", shared, (count, rows), axes)

    def convolve(self, name: str, kind: str, conv: Linear, x: TensorSpec) -> TensorSpec:
        """Draw the convolution of each element over its tokens; its weights are [positions, D]."""
        width, _, length = conv.weight.shape
        taps = self.flat(conv.weight.name(self.names), "weight", length, width)
        return self.draw(causal_conv, f"{name}.convolved", kind, x, taps, out=x.shape, bias=self.bias(conv.bias))

    def convolution(self, name: str, to: str, node: Convolution, x: TensorSpec) -> TensorSpec:
        """Draw the convolution of a layer, C · conv(B · x)."""
        rows, width = self.rows, self.width
        joined = self.linear(f"{name}.in_proj", "conv.in_proj", node.into[0], x)
        axes = [Axis(rows, 1, 0), Axis(width, 0, 1)]
        b, c, value = (
            self.copy(f"{name}.{letter}", "conv.parts", joined, (rows, width), axes, col_offset=number * width)
            for number, letter in enumerate("bcx")
        )
        gated = self.combine(f"{name}.gated", "conv.gate", "multiply", b, value)
        self.plan.value(f"{to}.gated", View(width))
        convolved = self.convolve(name, "conv", node.conv, gated)
        mixed = self.combine(f"{name}.mixed", "conv.gate", "multiply", c, convolved)
        self.plan.value(f"{to}.mixed", View(width))
        return self.linear(f"{name}.out", "conv.out_proj", node.out, mixed)

    def delta(self, name: str, to: str, node: DeltaMixing, x: TensorSpec) -> TensorSpec:
        """Draw the gated delta rule or the scan of a layer, after its convolution."""
        rows, of = self.rows, node.rule
        kind = "ssm" if of.scan else "delta"
        apart = {
            letter: self.linear(f"{name}.{letter}_proj", f"{kind}.in_proj", each, x)
            for letter, each in (("qkv", node.qkv), ("z", node.z), ("a", node.a), ("b", node.b))
            if each is not None
        }
        convolved = self.convolve(name, f"{kind}.conv", node.conv, apart["qkv"])
        mixed = self.draw(activation, f"{name}.channels", f"{kind}.conv", convolved, activation="silu")
        key, value, by_head = (of.key_heads, of.key), (of.heads, of.value), list[TensorSpec]()
        for letter, (heads, each), start in zip("qkv", (key, key, value), of.starts, strict=True):
            axes = [Axis(rows, 1, 0), Axis(heads, 0, each), Axis(each, 0, 1)]
            shape = rows * heads, each
            by_head.append(self.copy(f"{name}.{letter}", f"{kind}.heads", mixed, shape, axes, col_offset=start))
        q, k, v = by_head
        rate, shift = self.vector(node.rate), self.vector(node.shift)
        g = self.draw(log_decay, f"{name}.g", f"{kind}.decay", apart["a"], rate, shift)
        rule: dict[str, Any] = {"sequence": rows, "in_turn": of.in_turn}
        if "b" in apart:
            beta = self.draw(sigmoid, f"{name}.beta", f"{kind}.decay", apart["b"])
            rule |= {"scale": of.key**-0.5, "norm_eps": DELTA_EPS}
        else:
            beta = self.draw(softplus, f"{name}.beta", f"{kind}.decay", apart["a"], shift)
            rule |= {"scale": 1.0, "scan": True}
        results = self.draw(delta_rule, f"{name}.heads", f"{kind}.rule", q, k, v, g, beta, out=v.shape, **rule)
        if node.skip is not None:
            gated = self.gated_scan(name, node, results, v, apart["z"])
        else:
            assert node.norm is not None
            scaled = self.scratch(f"{name}.heads_normed", *results.shape)
            self.normalize(f"{name}.heads_norm", f"{kind}.head_norm", node.norm, results, scaled)
            gated = self.gated_heads(f"{name}.mixed", f"{name}.joined", kind, scaled, apart["z"])
        self.plan.value(f"{to}.mixed", View(of.values))
        return self.linear(f"{name}.out", f"{kind}.out_proj", node.out, gated)

    def gated_heads(self, name: str, joined: str, kind: str, heads: TensorSpec, z: TensorSpec) -> TensorSpec:
        """Draw the results of heads side by side, and these times their gates."""
        up = self.draw(repack, joined, f"{kind}.joined", heads, out=z.shape)
        return self.draw(gate, name, f"{kind}.gate", z, up=up, activation="silu")

    def gated_scan(self, name: str, node: DeltaMixing, results: TensorSpec, v: TensorSpec, z: TensorSpec) -> TensorSpec:
        """Draw what follows a scan: the sum with its values times their factors, gates, and the norm of groups."""
        rows, of = self.rows, node.rule
        assert node.skip is not None
        axes = [Axis(rows, 0, 0), Axis(of.heads, 0, 1)]
        skip = self.copy(f"{name}.skip", "ssm.skip", self.vector(node.skip), (results.shape[0], 1), axes)
        skipped = self.combine(f"{name}.skipped", "ssm.skip", "multiply", v, skip)
        summed = self.combine(f"{name}.summed", "ssm.skip", "add", results, skipped)
        gated = self.gated_heads(f"{name}.gated", f"{name}.joined", "ssm", summed, z)
        if node.norm is None:
            return gated
        shape = rows * of.norm_groups, of.values // of.norm_groups
        apart = self.draw(repack, f"{name}.groups", "ssm.norm", gated, out=shape)
        normed = self.scratch(f"{name}.normed_groups", *shape)
        self.normalize(f"{name}.group_norm", "ssm.norm", "rms", apart, normed)
        again = self.draw(repack, f"{name}.again", "ssm.norm", normed, out=gated.shape)
        return self.combine(f"{name}.mixed", "ssm.norm", "multiply", again, self.vector(node.norm.weight))

    def mlp(self, name: str, to: str, node: Mlp, x: TensorSpec) -> TensorSpec:
        """Draw an MLP."""
        inner, act = View(node.up.outputs), "none" if node.alphas else self.config.hidden_act
        name = name if self.config.experts is None else f"{name}.dense"
        hidden = self.scratch(f"{name}.inner", self.rows, node.up.outputs)
        if node.gate is None:
            self.linear(f"{name}.up_proj", "mlp.up_proj", node.up, x, hidden, activation=act)
        else:
            gates = self.linear(f"{name}.gate_proj", "mlp.gate_proj", node.gate, x)
            self.plan.value(f"{to}.gate", inner)
            up = self.linear(f"{name}.up_proj", "mlp.up_proj", node.up, x)
            self.plan.value(f"{to}.up", inner)
            self.draw(gate, f"{name}.gate", "mlp.gate", gates, out=hidden, up=up, activation=act)
        if node.alphas:
            out, alphas = self.scratch(f"{name}.activated", *hidden.shape), map(self.vector, node.alphas)
            hidden = self.draw(xielu, f"{name}.act", "mlp.act", hidden, *alphas, out=out)
        self.plan.value(f"{to}.hidden", inner)
        if node.down_norm is not None:
            hidden = self.norm(f"{name}.down_norm", "mlp.norm", node.down_norm, hidden)
            self.plan.value(f"{to}.rounded", inner)
        return self.linear(f"{name}.down", "mlp.down_proj", node.down, hidden)

    def experts(self, name: str, to: str, node: ExpertMlps, x: TensorSpec) -> TensorSpec:
        """Draw every expert of a layer for all rows, and the sum of each row's chosen experts."""
        rows, choice, norms, scale = self.rows, node.choice, node.norms, 1.0
        beside = scales = None
        if norms is not None:
            assert node.shared is not None
            own = f"{name}.shared"
            beside, out = self.scratch(f"{own}.normed", rows, self.width), self.expert(own, own, node.shared, x)
            self.normalize(f"{own}.norm", "mlp.norm", norms.shared, out, beside)
            x, scale = self.norm(f"{name}.router.norm", "mlp.norm", norms.router, self.hidden), self.width**-0.5
            scales = self.vector(norms.scale)
        logits = self.linear(f"{name}.router", "mlp.router", node.router, x, scale=scale)
        if norms is not None:
            x = self.norm(f"{name}.experts.norm", "mlp.norm", norms.experts, self.hidden)
        self.plan.value(f"{to}.router", View(choice.count))
        weight = self.scratch(f"{name}.weight", rows, 1)
        part, sums, other = (self.scratch(f"{name}.{each}", rows, self.width) for each in ("part", "sum.a", "sum.b"))

        def add(own: str, out: TensorSpec, by: TensorSpec, *, first: bool = False) -> None:
            """Add an MLP's result times its weight to the sum."""
            nonlocal sums, other
            self.combine(f"{own}.part", "mlp.mix", "multiply", out, by, sums if first else part)
            if not first:
                self.combine(f"{own}.sum", "mlp.mix", "add", sums, part, other)
                sums, other = other, sums

        for number, mlp in enumerate(node.experts):
            own, by = f"{name}.experts.{number}", weight
            out = self.expert(name, own, mlp, x, experts=choice)
            which: dict[str, Any] = {"expert": number, "bias": self.bias(node.choice_bias), "experts": choice}
            self.draw(expert_weight, f"{own}.weight", "mlp.choice", logits, out=weight, **which)
            if scales is not None:
                factor, by = (self.scratch(f"{name}.{each}", rows, 1) for each in ("factor", "scaled_weight"))
                axes = [Axis(rows, 0, 0), Axis(1, 0, 0)]
                self.copy(f"{own}.factor", "mlp.choice", scales, factor, axes, col_offset=number)
                self.combine(f"{own}.scaled", "mlp.choice", "multiply", weight, factor, by)
            add(own, out, by, first=number == 0)
        own = f"{name}.shared"
        if norms is not None and beside is not None:
            normed = self.norm(f"{name}.chosen.norm", "mlp.norm", norms.chosen, sums)
            return self.combine(f"{name}.both", "mlp.mix", "add", normed, beside, other)
        if node.shared is not None and node.shared_router is not None:
            logit = self.scratch(f"{name}.shared_router", rows, 1)
            self.linear(f"{own}.router", "mlp.router", node.shared_router, x, logit)
            out = self.expert(own if choice.apart else name, own, node.shared, x)
            add(own, out, self.draw(sigmoid, f"{own}.weight", "mlp.choice", logit, out=weight))
        elif node.shared is not None:
            out = self.expert(own, own, node.shared, x)
            return self.combine(f"{own}.sum", "mlp.mix", "add", sums, out, other)
        return sums

    def expert(self, name: str, own: str, node: Mlp, x: TensorSpec, **bounds: Any) -> TensorSpec:
        """Draw the MLP of an expert; all experts of a width share their tensors."""
        parts, act = ("gate_proj", "up_proj", "inner"), self.config.hidden_act
        gates, up, hidden = (self.scratch(f"{name}.{part}", self.rows, node.up.outputs) for part in parts)
        if node.gate is None:
            self.linear(f"{own}.up_proj", "mlp.up_proj", node.up, x, hidden, activation=act)
        else:
            self.linear(f"{own}.gate_proj", "mlp.gate_proj", node.gate, x, gates)
            self.linear(f"{own}.up_proj", "mlp.up_proj", node.up, x, up)
            self.draw(gate, f"{own}.gate", "mlp.gate", gates, out=hidden, up=up, activation=act, **bounds)
        return self.linear(f"{own}.down", "mlp.down_proj", node.down, hidden, self.scratch(f"{name}.down", *x.shape))

    def head(self) -> None:
        """Draw the logits and the probabilities of the row that the run value ``last_row`` names."""
        norm, vocab, plan = self.graph.final_norm, self.config.vocab_size, self.plan
        assert norm is not None
        axes = [Axis(1, 0, 0), Axis(self.width, 0, 1)]
        x = self.copy("last_row", "lm_head", self.hidden, (1, self.width), axes, row_offset=LAST_ROW)
        normed = self.norm("final_norm", "lm_head", norm, x)
        plan.value("final_norm", View(self.width, rows="only"), last_only=True)
        logits, probs = self.scratch(LOGITS, 1, vocab), self.scratch(PROBS, 1, vocab)
        how: dict[str, Any] = {"scale": 1.0 / self.config.logits_scaling, "cap": self.config.final_logit_softcapping}
        self.linear("lm_head", "lm_head", self.graph.head, normed, logits, **how)
        plan.value("logits", View(vocab, rows="only"), last_only=True)
        self.normalize(PROBS, PROBS, "softmax", logits, probs)
        plan.value("probs", View(vocab, rows="only"), last_only=True)
