"""The record of a model family: everything that distinguishes its models from those of other families.

A record is data. Formats read from it how to recognise a model and the names in its files; plan builders read the
computation. Sizes, and settings that differ between models of one family, such as the windows of single layers, are in
:class:`glinfer.config.ModelConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from glinfer.families.layer import HeadNorms, NormPlaces


@dataclass(frozen=True)
class Names:
    """Names of tensors without ``.weight`` and ``.bias``, in a checkpoint or in the files of one format.

    The defaults are those of Llama in Hugging Face's transformers.

    Attributes:
        layer: the prefix of names inside a layer, with a placeholder for its number.
        attention_norm, mlp_norm: the norms before the two branches of a layer.
        attention_post_norm, mlp_post_norm: the norms after the branches.
        projection: the projections of queries, keys and values, with a placeholder for the letter; without one, a
            single matrix holds the rows of all three.
        head_norm: the norms of heads of queries and keys, with a placeholder for the letter.
        conv_in, conv, conv_out: the matrix before a convolution, with the rows of B, C and x; the depthwise
            convolution's own weights; and the matrix after it.
        decay_rate, decay_shift: the full names of the vectors for the decays of a delta rule, see
            :func:`glinfer.ops.flat.delta.log_decay`.
        delta_in: the matrices before a delta rule, with a placeholder for the letters ``qkv`` of queries, keys and
            values, ``z`` of gates, ``a`` of decays, and ``b`` of the shares that are written.
        delta_conv, delta_norm, delta_out: the convolution over queries, keys and values; the norm of the heads of
            results; and the matrix after it.
        gate, up: the two first matrices of a gated MLP; one name for both means a single matrix with the rows of both.
        token_types, embedding_norm: vectors added to embeddings by token type, and the norm after the sum, if the
            family has them.
        dense: the matrices after the pooling, with a placeholder for their number.
        letters: replacements for the placeholders, if they are not the letter or the number itself.
        sinks: the sink logits of each head's softmax, if the family has them.
        router: the matrix whose outputs choose the experts of a layer, if layers have them. ``gate``, ``up`` and
            ``down`` then have a placeholder for an expert's number; without one, a tensor holds all experts.
        shared_router, shared_gate, shared_up, shared_down: the vector that weights the shared expert, and its matrices,
            if layers have one.
        endings: suffixes instead of ``.weight`` or ``.bias``, by role and part, such as ``gate.bias``.
    """

    embeddings: str = "model.embed_tokens"
    positions: str = ""
    layer: str = "model.layers.{}."
    attention_norm: str = "input_layernorm"
    attention_post_norm: str = "post_attention_layernorm"
    projection: str = "self_attn.{}_proj"
    head_norm: str = "self_attn.{}_norm"
    output: str = "self_attn.o_proj"
    conv_in: str = "conv.in_proj"
    conv: str = "conv.conv"
    conv_out: str = "conv.out_proj"
    decay_rate: str = "linear_attn.A_log"
    decay_shift: str = "linear_attn.dt_bias"
    delta_in: str = "linear_attn.in_proj_{}"
    delta_conv: str = "linear_attn.conv1d"
    delta_norm: str = "linear_attn.norm"
    delta_out: str = "linear_attn.out_proj"
    mlp_norm: str = "post_attention_layernorm"
    mlp_post_norm: str = "post_feedforward_layernorm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    final_norm: str = "model.norm"
    head: str = "lm_head"
    token_types: str = ""
    embedding_norm: str = ""
    dense: str = "dense.{}"
    letters: Mapping[str, str] = field(default_factory=dict)
    sinks: str = ""
    router: str = ""
    shared_router: str = "mlp.shared_expert_gate"
    shared_gate: str = "mlp.shared_expert.gate_proj"
    shared_up: str = "mlp.shared_expert.up_proj"
    shared_down: str = "mlp.shared_expert.down_proj"
    endings: Mapping[str, str] = field(default_factory=dict)

    def of(self, role: str, layer: int | None = None, letter: str = "") -> str:
        """The name of one of the roles above, in a layer or outside of all layers."""
        name: str = getattr(self, role).format(self.letters.get(letter, letter))
        return name if layer is None else self.layer.format(layer) + name

    def vocabulary(self, *, tied: bool) -> str:
        """The name of the head, or of the embeddings if the two are tied."""
        return self.embeddings if tied else self.head


GGUF_NAMES = Names(
    embeddings="token_embd",
    positions="position_embd",
    layer="blk.{}.",
    attention_norm="attn_norm",
    attention_post_norm="post_attention_norm",
    projection="attn_{}",
    head_norm="attn_{}_norm",
    output="attn_output",
    sinks="attn_sinks",
    conv_in="shortconv.in_proj",
    conv="shortconv.conv",
    conv_out="shortconv.out_proj",
    decay_rate="ssm_a",
    decay_shift="ssm_dt.bias",
    delta_in="{}",
    delta_conv="ssm_conv1d",
    delta_norm="ssm_norm",
    delta_out="ssm_out",
    mlp_norm="ffn_norm",
    mlp_post_norm="post_ffw_norm",
    gate="ffn_gate",
    up="ffn_up",
    down="ffn_down",
    final_norm="output_norm",
    head="output",
)
"""Names in GGUF files, from gguf-py/gguf/constants.py of llama.cpp."""
GGUF_SUM_NAMES = replace(
    GGUF_NAMES,
    token_types="token_types",
    embedding_norm="token_embd_norm",
    attention_post_norm="attn_output_norm",
    mlp_post_norm="layer_output_norm",
    final_norm="",
    head="",
)
"""Names in GGUF files of models like BERT, with norms after the residual sums."""
TANH = "gelu_pytorch_tanh"
SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings"),
)
"""Fields of :class:`glinfer.config.ModelConfig` that have defaults in a ``config.json``."""
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_new", TANH: "gelu_new"}
"""The ``hidden_act`` of :class:`glinfer.config.ModelConfig` for each name of an activation in ``config.json``."""
SAME_MATHS: Mapping[str, tuple[object, ...]] = {
    "partial_rotary_factor": (1, None),
    "is_causal": (True, None),
    "use_bidirectional_attention": (False, None),
    "per_layer_config": (None,),
}
"""Settings that would change the computation, and their neutral values."""


@dataclass(frozen=True)
class ExpertSettings:
    """The settings of experts in a ``config.json``.

    Attributes:
        count: default number of experts of a layer; ``keys`` are the setting's names, whose values must agree.
        used: default number of experts of a token.
        normed: the default of ``norm_topk_prob``; None if the weights of the chosen ones always add up to 1.
        limit, slope: the defaults of ``swiglu_limit`` and ``swiglu_alpha``, see
            :class:`glinfer.families.layer.Experts`; 0 in a family without them.
        turned: whether matrices of floats are stored as [experts, in, out], and the rows of gate and up alternate in
            the tensor that holds both.
        shared: the default of ``shared_expert_intermediate_size``, which must be the width of the other experts; 0 in
            a family without a shared expert.
    """

    count: int
    used: int
    keys: tuple[str, ...] = ("num_experts", "num_local_experts")
    normed: bool | None = False
    limit: float = 0.0
    slope: float = 0.0
    turned: bool = False
    shared: int = 0


@dataclass(frozen=True)
class HuggingFace:
    """The ``config.json`` and the weights of a family in the form of Hugging Face's transformers.

    Attributes:
        sizes: defaults of the fields :data:`SIZES`; 0 if the value follows from other fields.
        activation: the default, under its name in the file.
        activations: the settings that name the activation, with the names that each accepts; given ones must agree.
        eps: the default epsilon of norms; ``eps_key`` is its name in the file.
        tied: default of ``tie_word_embeddings``.
        keys: the names of a field in the file, if they differ from ours; several are synonyms and must agree.
        old_keys: the name of a field in old files, used if the file has no other.
        null_heads: whether ``num_key_value_heads`` may be null, which means one for each head of queries.
        always_biased: whether the attention has its biases whatever the file says.
        window: the layers that may have a sliding window: none, all, those after ``max_window_layers``, those in
            ``layer_types`` (by default all but each ``period``-th), or ModernBERT's windows to both sides; ``conv`` or
            ``delta`` for no windows, if ``layer_types`` names the layers with a convolution or the delta rule.
        usual_window: the default window.
        partial_rotary: whether heads may be rotated in part; ``rotary_share`` is the default share.
        period_key: the name of the period in the file, if it has one.
        usual_scaling: the default scaling of angles.
        local_theta: the default base of angles of layers with a window, if they have their own; else 0.
        no_rope: the default period of layers without rotary positions; 0 if all layers have them.
        scalars: settings that scale or bound something, with their defaults; null and 0 bound nothing. Their names are
            fields of :class:`glinfer.config.ModelConfig`, or ``query_pre_attn_scalar``, whose root divides scores.
        only: settings that would change the computation, with their neutral values; other values are refused.
        names: the names of tensors in the file; None if they are those of the checkpoint.
        prefix: the beginning of names that some files omit.
        transposed: whether matrices inside layers are stored as [in, out].
        buffers: a regular expression for tensors, without prefix, that are not weights of the model and are ignored.
        first_position: the number of the first position; the file has earlier ones, which are unused.
        both_ways: the family of its models with ``use_bidirectional_attention``; empty if those are refused.
        wrapped: the ``model_type`` of multimodal models whose ``text_config`` describes a model of this family.
        classifier: the end of names of architectures with a classifier; empty for none.
        classifier_names: the names of the classifier's matrices, and the activation between them.
        classifier_pooling: the classifier's input, as in ``pooling`` of :class:`glinfer.config.ModelConfig`.
        experts: the settings of experts in the file; None in a family without them.
        quantized: the supported ``quant_method`` of a ``quantization_config``: with ``mxfp4``, the matrices of experts
            are blocks of four bits and their scales, in two tensors.
        delta_by_key: whether the rows of the matrices before a delta rule are grouped by key head: its queries, its
            keys, and the values and gates of the value heads that share it; in another matrix the shares and decays.
    """

    sizes: tuple[int, ...]
    activation: str = "silu"
    activations: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: {"hidden_act": ACTIVATIONS})
    eps: float = 1e-6
    eps_key: str = "rms_norm_eps"
    tied: bool = False
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    old_keys: Mapping[str, str] = field(default_factory=dict)
    null_heads: bool = True
    always_biased: bool = False
    window: Literal["none", "all", "later", "listed", "around", "conv", "delta"] = "none"
    period: int = 0
    usual_window: int = 4096
    partial_rotary: bool = False
    rotary_share: float = 1.0
    period_key: str = ""
    usual_scaling: Mapping[str, Any] = field(default_factory=dict)
    local_theta: float = 0.0
    no_rope: int = 0
    scalars: Mapping[str, float] = field(default_factory=dict)
    only: Mapping[str, tuple[object, ...]] = field(default_factory=lambda: SAME_MATHS)
    names: Names | None = None
    prefix: str = "model."
    transposed: bool = False
    buffers: str = r"(.*\.)?rotary_emb\.inv_freq"
    first_position: int = 0
    both_ways: str = ""
    wrapped: tuple[str, ...] = ()
    classifier: str = ""
    classifier_names: tuple[str, ...] = ()
    classifier_pooling: str = "cls"
    experts: ExpertSettings | None = None
    quantized: tuple[str, ...] = ()
    delta_by_key: bool = False


@dataclass(frozen=True)
class Gguf:
    """The architecture of a family in GGUF files; if families share one, files are read as the first of them, or
    as the one whose ``marked_by`` they have.

    Attributes:
        architecture: ``general.architecture``.
        activation: ``hidden_act`` of all its models, which the file lacks.
        pairs_together: whether rotary positions rotate adjacent elements in the rows of queries and keys; then
            ``rope_freqs.weight`` may slow each pair down.
        attention_bias: whether its attention may have biases.
        partial_rotary: whether heads may be rotated in part; then a file may have a tensor of angle factors for short
            texts and one for long ones.
        names: the names of tensors in the file.
        period: every ``period``-th layer sees all positions, the others a window; 0 if layers are alike.
        window: the default window.
        local_theta: the base of angles of layers with a window, if they have their own.
        no_rope: the period of layers without rotary positions.
        scalars: the key and the default of fields of :class:`glinfer.config.ModelConfig` that scale or bound something.
        scaled_by_width: the number of layers of the one model whose scores are divided by the root of its width over
            its heads, while others use the root of a head's width.
        inner_key: the key of the inner width of an MLP, or of each expert's.
        normed_experts: whether the weights of the chosen experts add up to 1, which the file lacks.
        fixed: fields of :class:`glinfer.config.ModelConfig` of all its models, which the file lacks.
        whole_pairs: whether YaRN's ramp begins and ends at whole pairs, which the file lacks.
        keys_in_turn: whether value heads of a delta rule cycle through the key heads; otherwise value heads that share
            a key head are adjacent.
        marked_by: a key that the files of this family have, and those of other families of the architecture lack.
        sections: whether a file lists the pairs of each position of an image; in text, all positions are equal.
    """

    architecture: str
    activation: str = "silu"
    pairs_together: bool = False
    attention_bias: bool = True
    partial_rotary: bool = False
    names: Names = GGUF_NAMES
    period: int = 0
    window: int = 0
    local_theta: float = 0.0
    no_rope: int = 0
    scalars: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    scaled_by_width: int = 0
    inner_key: str = "feed_forward_length"
    normed_experts: bool = True
    fixed: Mapping[str, float] = field(default_factory=dict)
    whole_pairs: bool = True
    keys_in_turn: bool = True
    marked_by: str = ""
    sections: bool = False


@dataclass(frozen=True)
class Manifest:
    """The JSON manifest of a family, see :mod:`glinfer.formats.manifest.model`.

    Attributes:
        format: the beginning of its ``format``.
        version: its ``format_version``.
        only: the one supported value of each setting, which is also the default and the value of the field of
            :class:`glinfer.config.ModelConfig` with that name.
        prefix: the beginning of the names of tensors, which the file may omit.
        renamed: the ends of names in the file, and the ends in the checkpoint.
    """

    format: str
    version: int
    only: Mapping[str, Any]
    prefix: str = "model."
    renamed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Family:
    """One family of models.

    Attributes:
        name: ``model_type``, here and in Hugging Face's configurations.
        names: the names of tensors in a checkpoint; matrices are [out, in].
        norm: RMSNorm (``rms``), or LayerNorm (``layer``), which has a bias too.
        norms: places of norms in a layer, see :data:`glinfer.families.layer.NormPlaces`.
        norm_offset: a number added to the weights of norms; GGUF files store the sum.
        positions: learned, or rotary with pairs half a head apart, or rotary with adjacent pairs.
        rope_theta: the default base of rotary angles.
        gated: whether the MLP has a gate.
        head_norms: normalisation of queries and keys, see :data:`glinfer.families.layer.HeadNorms`.
        convolves: whether layers may have a convolution in place of attention.
        sinks: whether the softmax of each head has an additional learned logit without a value.
        delta_rule: whether layers may have the gated delta rule in place of attention.
        scaled_queries: whether queries may grow with their position, see :func:`glinfer.ops.rotary.query_scales`.
        gated_attention: whether attention's results are multiplied by gates, which are projected with the queries.
        experts: whether each layer has many gated MLPs, of which each token uses a few.
        shared_expert: whether every token uses one more, see :class:`glinfer.families.layer.Experts`.
        scaled_embeddings: whether embeddings are multiplied by the square root of the width.
        looks: whether a token sees only earlier tokens, or its whole text; models of the second kind embed texts.
        token_types, embedding_norm: whether embeddings have vectors of token types, and a norm after the sum.
        norm_biases: whether LayerNorm has a bias.
        first_norm: whether a norm precedes the attention of the first layer.
        biases: the matrices among ``q``, ``k``, ``v``, ``o``, ``router``, ``gate``, ``up``, ``down`` and ``head`` that
            always have a bias.
        attention_biases, mlp_biases: the matrices that have a bias in a model with ``attention_bias`` or ``mlp_bias``.
        published: whether the reference plan of float weights is the published algorithm, 244 passes for Gab.
        usual: fields of :class:`glinfer.config.ModelConfig` for a shape given as options.
        huggingface, gguf, manifest: its form in files of these formats; None for unsupported formats.
        gab1: whether GAB1 files may have it; its weights are always floats.
        gguf_as: the family of its models in GGUF files; missing biases are 0, and the head's bias is folded in.
        own_chat: when its models chat in Gab's form: never, if the tokenizer has the tokens for it, or always.
        stops: tokens that end a text; empty if the model's files name ids.
        rerank_prompt: the prompt of its generative rerankers, which they answer with "yes" or "no", with places for
            {query} and {text}; empty for none.
        exact_vocabulary: whether a tokenizer next to a model belongs to it only if its number of tokens is the same.
    """

    name: str
    names: Names = field(default_factory=Names)
    norm: Literal["rms", "layer"] = "rms"
    norms: NormPlaces = "before"
    norm_offset: float = 0.0
    positions: Literal["learned", "halves", "neighbours"] = "halves"
    rope_theta: float = 10000.0
    gated: bool = True
    head_norms: HeadNorms = ""
    convolves: bool = False
    sinks: bool = False
    delta_rule: bool = False
    scaled_queries: bool = False
    gated_attention: bool = False
    experts: bool = False
    shared_expert: bool = False
    scaled_embeddings: bool = False
    looks: Literal["back", "both"] = "back"
    token_types: bool = False
    embedding_norm: bool = False
    norm_biases: bool = True
    first_norm: bool = True
    biases: tuple[str, ...] = ()
    attention_biases: tuple[str, ...] = ()
    mlp_biases: tuple[str, ...] = ()
    published: bool = False
    usual: Mapping[str, Any] = field(default_factory=dict)
    huggingface: HuggingFace | None = None
    gguf: Gguf | None = None
    manifest: Manifest | None = None
    gab1: bool = False
    gguf_as: str = ""
    own_chat: Literal["never", "with tokens", "always"] = "never"
    stops: tuple[str, ...] = ()
    rerank_prompt: str = ""
    exact_vocabulary: bool = False

    @property
    def encodes(self) -> bool:
        """Whether its models only embed texts: tokens see later tokens, so texts cannot be continued."""
        return self.looks == "both"

    @property
    def in_huggingface(self) -> HuggingFace:
        """The Hugging Face record of a family that has one."""
        assert self.huggingface is not None
        return self.huggingface

    @property
    def in_gguf(self) -> Gguf:
        """The GGUF record of a family that has one."""
        assert self.gguf is not None
        return self.gguf

    @property
    def rotary(self) -> bool:
        """Whether positions are rotations of queries and keys."""
        return self.positions != "learned"
