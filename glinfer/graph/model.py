"""The graph of a model, from its configuration and the record of its family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import Literal

from glinfer.config import ModelConfig
from glinfer.families.layer import XIELU, DeltaRule, Latent, LayerConfig
from glinfer.graph.nodes import (
    Attention,
    Branch,
    Convolution,
    DeltaMixing,
    ExpertMlps,
    ExpertNorms,
    LatentAttention,
    Layer,
    Linear,
    Mixing,
    Mlp,
    ModelTensor,
    Norm,
    Nothing,
    PerLayer,
)


@lru_cache(maxsize=16)
def graph_of(config: ModelConfig, *, absorbed: bool = False) -> Graph:
    """The graph of a model of this shape; ``absorbed``, latents are keys and values of attention themselves."""
    return Graph(config, absorbed=absorbed)


class Graph:
    """Embeddings, layers and what follows them.

    Layers are made when they are asked for, since a file may name absurdly many.
    """

    def __init__(self, config: ModelConfig, *, absorbed: bool = False) -> None:
        """The graph of a model of this shape, see :func:`graph_of`."""
        self.absorbed = absorbed
        self.config, self.family, self.names = config, config.family, config.family.names
        self._layers: dict[int, Layer] = {}

    @cached_property
    def embeddings(self) -> Linear:
        """The token embeddings [V, D]."""
        return self._table("embeddings", self.config.vocab_size)

    @cached_property
    def positions(self) -> Linear | None:
        """The learned positions [S, D]; None where positions are rotary."""
        return None if self.family.rotary else self._table("positions", self.config.max_position_embeddings)

    @cached_property
    def token_types(self) -> Linear | None:
        """The vectors of token types [types, D], where there are any."""
        types = self.config.type_vocab_size
        return self._table("token_types", types) if types else None

    @cached_property
    def patches(self) -> Linear | None:
        """The product of the pixels of a patch, in an image encoder."""
        floats = self.config.patch_floats
        return self._linear("patches", self.config.hidden_size, floats) if floats else None

    @cached_property
    def embedding_norm(self) -> Norm | None:
        """The norm after the sum of embeddings, where there is one."""
        return self._norm("embedding_norm", None) if self.family.embedding_norm else None

    @cached_property
    def per_layer_in(self) -> Linear | None:
        """The product from embeddings to the inputs of all layers' third branches, where layers have that."""
        rows = self.config.num_hidden_layers * self.config.hidden_size_per_layer_input
        return self._linear("per_layer_in", rows, self.config.hidden_size) if rows else None

    @cached_property
    def per_layer_norm(self) -> Norm | None:
        """The norm of each layer's part of these inputs, where there are any."""
        width = self.config.hidden_size_per_layer_input
        return self._norm("per_layer_norm", None, width=width) if width else None

    @cached_property
    def final_norm(self) -> Norm | None:
        """The norm after the last layer, where there is one."""
        return None if self.family.layer.norms == "sum" else self._norm("final_norm", None)

    @cached_property
    def dense(self) -> tuple[Linear, ...]:
        """The matrices after the pooling."""
        found, inputs = [], self._merged
        for number, (outputs, biased, _) in enumerate(self.config.dense):
            inputs = self._merged if self.config.patch_size and number % 2 == 0 else inputs
            found.append(self._linear("dense", outputs, inputs, letter=str(number), biased=biased))
            inputs = outputs
        return tuple(found)

    @property
    def _merged(self) -> int:
        return self.config.hidden_size * max(1, self.config.patches_per_token)

    @cached_property
    def dense_norms(self) -> Mapping[int, Norm]:
        """The norms before some of these matrices, by the matrix's number: of a classifier's vector before its last
        one, and in an image encoder of joined patches before the first one of each further vector."""
        config = self.config
        numbers = (len(config.dense) - 1,) if config.dense_norm else range(2, 2 + 2 * len(config.deepstack_layers), 2)
        kind = self.family.norm
        return {n: self._norm("dense_norm", None, str(n), self.dense[n].inputs, kind) for n in numbers}

    @cached_property
    def head(self) -> Linear:
        """The product of the logits, whose matrix may be the token embeddings."""
        found = self._linear("head", self.config.vocab_size, self.config.hidden_size)
        return Linear(self.embeddings.name, self.embeddings.weight) if self.config.tie_word_embeddings else found

    def layer(self, number: int) -> Layer:
        """One layer."""
        if number not in self._layers:
            self._layers[number] = self._made(number)
        return self._layers[number]

    @property
    def layers(self) -> Iterator[Layer]:
        """All layers."""
        return map(self.layer, range(self.config.num_hidden_layers))

    def tensors(self) -> Iterator[ModelTensor]:
        """Every tensor of a model in order of computation; a head tied to the embeddings is left out."""
        first = self.embeddings, self.positions, self.token_types, self.patches, self.embedding_norm
        last = self.final_norm, *self.dense_norms.values(), *self.dense
        for node in chain(first, (self.per_layer_in, self.per_layer_norm), self.layers, last):
            yield from () if node is None else node.tensors()
        if not self.config.tie_word_embeddings:
            yield self.head.weight
        if "head" in self.family.biases:
            yield ModelTensor("head", "bias", (self.config.vocab_size,))

    def _table(self, role: str, rows: int) -> Linear:
        return Linear(self.names.of(role), ModelTensor(role, "weight", (rows, self.config.hidden_size)))

    def _norm(
        self, role: str, layer: int | None, letter: str = "", width: int = 0, kind: Literal["rms", "layer", ""] = ""
    ) -> Norm:
        """A norm of the stream, or of ``width`` elements, by RMSNorm unless ``kind`` is another."""
        kind, shape = kind or ("rms" if width else self.family.norm), (width or self.config.hidden_size,)
        weight = ModelTensor(role, "weight", shape, layer, letter)
        bias = ModelTensor(role, "bias", shape, layer, letter) if kind == "layer" and self.family.norm_biases else None
        offset = self.family.norm_offset if weight.is_gain else 0.0
        return Norm(self.names.of(role, layer, letter), weight, bias, kind, offset)

    @cached_property
    def _biased(self) -> frozenset[str]:
        """Roles and letters of the matrices with a bias."""
        config, family = self.config, self.family
        attention = family.attention_biases if config.attention_bias else ()
        conv = ("conv_in", "conv", "conv_out", "delta_conv") if config.conv_bias else ()
        return frozenset((*family.biases, *attention, *(family.mlp_biases if config.mlp_bias else ()), *conv))

    def _linear(
        self,
        role: str,
        rows: int,
        *columns: int,
        layer: int | None = None,
        letter: str = "",
        biased: bool | None = None,
    ) -> Linear:
        if biased is None:
            biased = role in self._biased or letter in self._biased
        bias = ModelTensor(role, "bias", (rows,), layer, letter) if biased else None
        weight = ModelTensor(role, "weight", (rows, *columns), layer, letter)
        return Linear(self.names.of(role, layer, letter), weight, bias)

    def _made(self, number: int) -> Layer:
        of = self.config.layer(number)
        mixing = self._branch(of.branch, "attention", number, of, self._mixing(number, of))
        beside = None
        if of.attends and of.delta is not None:
            beside = self._branch("ssm", "attention", number, of, self._delta(number, of, of.delta))
        body = self._mlps(number, of) if of.mlp else Nothing()
        mlp = self._branch("mlp", "mlp", number, of, body)
        mlp = replace(mlp, norm=mixing.norm) if of.parallel and not self.names.mlp_norm else mlp
        scale = ModelTensor("layer_scale", "", (1,), number) if of.scaled else None
        per_layer = self._per_layer(number, of) if of.per_layer else None
        return Layer(number, mixing, beside, mlp, per_layer, scale, of.parallel)

    def _per_layer(self, number: int, of: LayerConfig) -> Branch:
        width, inner, vocab = self.config.hidden_size, of.per_layer, self.config.vocab_size
        body = PerLayer(
            self._linear("per_layer_gate", inner, width, layer=number),
            self._linear("per_layer_table", vocab, inner, letter=str(number)),
            self._linear("per_layer_out", width, inner, layer=number),
        )
        return Branch("per_layer", None, body, self._norm("per_layer_post_norm", number), None, of.branch_scale)

    def _branch(self, name: str, role: str, number: int, of: LayerConfig, body: Mixing | Mlp | ExpertMlps) -> Branch:
        if isinstance(body, Nothing):
            return Branch(name, None, body, None, None, of.branch_scale)
        first = of.norm_before and (number or role == "mlp" or not self.family.embedding_norm)
        norm = replace(self._norm(f"{role}_norm", number), rounded=of.rounded) if first else None
        behind = self._norm(f"{role}_post_norm", number) if of.norm_behind else None
        post_norm, sum_norm = (behind, None) if of.norm_after else (None, behind)
        return Branch(name, norm, body, post_norm, sum_norm, of.branch_scale)

    def _mixing(self, number: int, of: LayerConfig) -> Mixing:
        config, width = self.config, self.config.hidden_size
        if of.mixing == "none":
            return Nothing()

        def linear(role: str, rows: int, *columns: int, letter: str = "") -> Linear:
            return self._linear(role, rows, *columns, layer=number, letter=letter)

        if of.convolves:
            into, taps = linear("conv_in", 3 * width, width), linear("conv", width, 1, of.taps)
            return Convolution((into,), taps, linear("conv_out", width, width))
        if of.delta is not None and not of.attends:
            return self._delta(number, of, of.delta)
        if of.latent is not None:
            node = self._latent(number, of, of.latent)
            return node.absorbed if self.absorbed else node
        queries, keys = config.num_attention_heads * of.head_dim, of.kv_heads * of.head_dim
        own = of.source is None
        rows = {"q": queries, "k": keys}
        q_norm, k_norm = (
            self._norm("head_norm", number, letter, count if of.head_norms == "width" else of.head_dim)
            if of.head_norms and (own or letter == "q")
            else None
            for letter, count in rows.items()
        )
        return Attention(
            linear("projection", (2 if of.gated else 1) * queries, width, letter="q"),
            linear("projection", keys, width, letter="k") if own else None,
            linear("projection", keys, width, letter="v") if own and not of.one_projection else None,
            linear("head_gate", config.num_attention_heads, width) if of.head_gates else None,
            linear("output", width, queries, letter="o"),
            ModelTensor("sinks", "weight", (config.num_attention_heads,), number) if of.sinks else None,
            q_norm,
            k_norm,
            of,
            self._inner_norm("output_norm", number, queries),
        )

    def _latent(self, number: int, of: LayerConfig, widths: Latent) -> LatentAttention:
        heads, rank, low, width = (
            self.config.num_attention_heads,
            widths.rank,
            widths.query_rank,
            self.config.hidden_size,
        )
        linear = partial(self._linear, "projection", layer=number)
        rotary = of.head_dim - rank
        return LatentAttention(
            linear(low, width, letter="q_a") if low else None,
            self._norm("head_norm", number, "q_a", low) if low else None,
            linear(heads * (widths.key + rotary), low or width, letter="q_b" if low else "q"),
            linear(of.head_dim, width, letter="kv_a"),
            self._norm("head_norm", number, "kv_a", rank),
            linear(heads * (widths.key + widths.value), rank, letter="kv_b"),
            self._linear("output", width, heads * widths.value, layer=number, letter="o"),
            of,
        )

    def _delta(self, number: int, of: LayerConfig, rule: DeltaRule) -> DeltaMixing:
        heads, width, linear = rule.heads, self.config.hidden_size, partial(self._linear, layer=number)
        return DeltaMixing(
            linear("delta_in", rule.channels, width, letter="qkv"),
            linear("delta_in", rule.values, width, letter="z"),
            None if rule.scan else linear("delta_in", heads, width, letter="b"),
            linear("delta_in", heads, width, letter="a"),
            linear("delta_conv", rule.channels, 1, of.taps),
            ModelTensor("decay_shift", "", (heads,), number),
            ModelTensor("decay_rate", "", (heads,), number),
            ModelTensor("skip", "", (heads,), number) if rule.scan else None,
            self._norm("delta_norm", number, width=rule.values if rule.scan else rule.value)
            if rule.norm_groups or not rule.scan
            else None,
            linear("delta_out", width, rule.values),
            rule,
        )

    def _mlps(self, number: int, of: LayerConfig) -> Mlp | ExpertMlps:
        if of.experts is None:
            return self._mlp(number, of, "dense_" if self.family.experts else "")
        config, shared, count = self.config, of.experts.shared, of.experts.count
        alone, width = config.shared_intermediate_size, config.hidden_size
        return ExpertMlps(
            self._linear("router", count, width, layer=number),
            ModelTensor("expert_bias", "", (count,), number) if of.experts.biased else None,
            tuple(self._mlp(number, of, letter=str(expert)) for expert in range(count)),
            self._linear("shared_router", 1, width, layer=number) if shared else None,
            self._mlp(number, of, "shared_", inner=alone or config.shared_expert_intermediate_size)
            if shared or alone
            else None,
            of.experts,
            self._expert_norms(number, count) if of.experts.own_norms else None,
            ModelTensor("expert_sum_bias", "", (width,), number) if "expert_sum_bias" in self._biased else None,
        )

    def _expert_norms(self, number: int, count: int) -> ExpertNorms:
        return ExpertNorms(
            self._norm("router_norm", number),
            self._norm("expert_norm", number),
            self._norm("shared_post_norm", number),
            self._norm("expert_post_norm", number),
            ModelTensor("expert_scale", "", (count,), number),
        )

    def _mlp(self, number: int, of: LayerConfig, prefix: str = "", letter: str = "", inner: int = 0) -> Mlp:
        config, width, inner = self.config, self.config.hidden_size, inner or of.inner
        gate, up, down = (
            self._linear(f"{prefix}{role}", *shape, layer=number, letter=letter)
            for role, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner)))
        )
        roles = ("alpha_p", "alpha_n") if config.hidden_act == XIELU else ()
        alphas = tuple(ModelTensor(role, "", (1,), number) for role in roles)
        return Mlp(gate if self.family.gated else None, up, alphas, down, self._inner_norm("down_norm", number, inner))

    def _inner_norm(self, role: str, number: int, width: int) -> Norm | None:
        """The norm before the matrix that ends a branch, where the family has one."""
        rounded = self.family.layer.rounded
        return replace(self._norm(role, number, width=width), rounded=rounded) if getattr(self.names, role) else None
