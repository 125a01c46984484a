"""The record of a family of models: everything that distinguishes its models from those of other families.

A record is data. Formats read from it how a model is recognised and what its files call things; the builders of plans
read from it what to compute. Sizes, and settings that differ between models of one family, are in
:class:`glinfer.config.ModelConfig`, windows of single layers among them.
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
        layer: the prefix of names inside a layer, with a place for its number.
        attention_norm, mlp_norm: the norms before the two branches of a layer.
        attention_post_norm, mlp_post_norm: the norms behind the branches.
        projection: the projections of queries, keys and values, with a place for the letter; without one, a single
            matrix holds the rows of all three.
        head_norm: the norms of heads of queries and keys, with a place for the letter.
        conv_in, conv, conv_out: the matrix before a convolution, with the rows of B, C and x; the convolution's own
            weights, which differ from element to element; and the matrix behind it.
        decay_rate, decay_shift: the whole names of the vectors that make the decays of a delta rule, see
            :func:`glinfer.ops.flat.delta.log_decay`.
        delta_in: the matrices before a delta rule, with a place for the letters ``qkv`` of queries, keys and values,
            ``z`` of gates, ``a`` of decays, and ``b`` of the shares that are written.
        delta_conv, delta_norm, delta_out: the convolution over queries, keys and values; the norm of the heads of
            results; and the matrix behind it.
        gate, up: the two first matrices of a gated MLP; one name for both means a single matrix with the rows of both.
        token_types, embedding_norm: the vectors that are added to embeddings by the kind of their text, and the norm
            behind the sum, where a family has them.
        dense: the matrices behind the pooling, with a place for their number.
        letters: what stands in those places where it is not the letter or the number itself.
        sinks: the logits that each head's softmax has beside those of the tokens, where a family has them.
        router: the matrix whose outputs choose the experts of a layer, where layers have them. ``gate``, ``up`` and
            ``down`` then have a place for an expert's number; without one, a single tensor holds those of all experts.
        shared_router, shared_gate, shared_up, shared_down: the vector that weighs the expert that all tokens share, and
            its matrices, where layers have one.
        endings: what follows a name where it is not ``.weight`` or ``.bias``, by role and part, such as ``gate.bias``.
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
        """The name for one of the roles above, in a layer or outside of all layers."""
        name: str = getattr(self, role).format(self.letters.get(letter, letter))
        return name if layer is None else self.layer.format(layer) + name

    def vocabulary(self, *, tied: bool) -> str:
        """The name of the head, which is that of the embeddings if the two are tied."""
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
"""The same of models like BERT, whose norms stand over the sums."""
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
"""Settings that would change the maths, and the values with which they do not."""


@dataclass(frozen=True)
class ExpertSettings:
    """What a ``config.json`` says about experts.

    Attributes:
        count: how many a layer has; ``keys`` are the names of the setting, which have to agree.
        used: how many of them a token uses.
        normed: the default of ``norm_topk_prob``; None where the weights of the chosen ones always add up to 1.
        limit, slope: the defaults of ``swiglu_limit`` and ``swiglu_alpha``, see
            :class:`glinfer.families.layer.Experts`; 0 in a family without them.
        turned: whether matrices of floats are stored as [experts, in, out].
        alternate: whether the rows of gate and up take turns in the tensor that holds both.
        shared: the default of ``shared_expert_intermediate_size``, which has to be the width of the other experts; 0 in
            a family without an expert that all tokens share.
    """

    count: int
    used: int
    keys: tuple[str, ...] = ("num_experts", "num_local_experts")
    normed: bool | None = False
    limit: float = 0.0
    slope: float = 0.0
    turned: bool = False
    alternate: bool = False
    shared: int = 0


@dataclass(frozen=True)
class HuggingFace:
    """The ``config.json`` and the weights of a family as Hugging Face's transformers saves them.

    Attributes:
        sizes: defaults of the fields :data:`SIZES`; 0 where the value follows from other fields.
        activation: the default, under its name in the file.
        activations: the settings that name the activation, with the names that each knows; given ones have to agree.
        eps: the default epsilon of norms; ``eps_key`` is its name in the file.
        tied: default of ``tie_word_embeddings``.
        keys: the names of a field in the file, if they differ from ours; several are synonyms and have to agree.
        old_keys: the name of a field in old files, used if the file has no other.
        null_heads: whether ``num_key_value_heads`` may be null, which means one for each head of queries.
        always_biased: whether the attention has its biases whatever the file says.
        window: the layers that may have a sliding window: none, all, those after ``max_window_layers``, those that
            ``layer_types`` names, by default all but each ``period``-th, or those with tokens on both sides that
            ModernBERT has; ``conv`` where no layer has one, and ``layer_types`` names those that convolve;
            ``delta`` where none has one, and ``layer_types`` names those with the delta rule.
        usual_window: the window of a file that does not mention one.
        partial_rotary: whether heads may turn in part; ``rotary_share`` is the share of a file that does not say.
        period_key: the name of the period in the file, if it has one.
        usual_scaling: the scaling of angles of a file that names none.
        local_theta: the default base of angles of layers with a window, where they have their own; 0 where not.
        no_rope: the default distance of layers whose queries and keys do not turn; 0 where all turn.
        scalars: settings that scale or bound something, with their defaults; null and 0 bound nothing. Their names are
            fields of :class:`glinfer.config.ModelConfig`, or ``query_pre_attn_scalar``, whose root divides scores.
        only: settings that would change the maths, with the harmless values; other values are refused.
        names: the names of tensors in the file; None if they are those of the checkpoint.
        prefix: the beginning of names that some files leave out.
        transposed: whether matrices inside layers are stored as [in, out].
        buffers: a regular expression for tensors, without prefix, that are not weights of the model and are ignored.
        first_position: the number of the first position; those before it stand in the file and are not used.
        both_ways: the family of its models with ``use_bidirectional_attention``; empty where those are refused.
        wrapped: the ``model_type`` of models whose ``text_config`` describes one of this family, beside what they have
            for pictures.
        classifier: the end of names of architectures that end with a classifier; empty if there are none.
        classifier_names: what the matrices of the classifier are called, and the activation between them.
        classifier_pooling: the vector that it takes, as ``pooling`` of :class:`glinfer.config.ModelConfig` has it.
        experts: what the file says about experts; None in a family without them.
        quantized: the ``quant_method`` of a ``quantization_config`` that is read: of ``mxfp4``, the matrices of experts
            are blocks of four bits and their scales, in two tensors.
        delta_by_key: whether the matrices before a delta rule have their rows by heads of keys: of each the queries,
            the keys, and the values and gates of the heads that share it; in another matrix the shares and decays.
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
    """The architecture of a family in GGUF files; families may share one, and files are then read as the first of them.

    Attributes:
        architecture: ``general.architecture``.
        activation: ``hidden_act`` of all its models, which the file does not say.
        pairs_together: whether the two elements that rotary positions turn together are neighbours in the rows of
            queries and keys; then ``rope_freqs.weight`` may slow each pair down.
        attention_bias: whether its attention may have biases.
        partial_rotary: whether heads may turn in part; then a file may have one tensor of factors of angles for short
            texts and one for long ones.
        names: the names of tensors in the file.
        period: each so many-th layer sees all positions, the others a window; 0 where layers are alike.
        window: the window of a file that names none.
        local_theta: the base of angles of layers with a window, where they have their own.
        no_rope: the distance of layers whose queries and keys do not turn.
        scalars: the key and the default of fields of :class:`glinfer.config.ModelConfig` that scale or bound something.
        scaled_by_width: the number of layers of the one model whose scores are divided by the root of its width over
            its heads, where others have the root of a head's width.
        inner_key: the key of the inner width of an MLP, or of each expert's.
        normed_experts: whether the weights of the chosen experts add up to 1, which the file does not say.
        fixed: fields of :class:`glinfer.config.ModelConfig` that all its models have, which the file does not say.
        whole_pairs: whether YaRN's ramp begins and ends at whole pairs, which the file does not say.
        keys_in_turn: whether heads of values of a delta rule take turns in the heads of keys that they share; otherwise
            those of one head of keys are neighbours.
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


@dataclass(frozen=True)
class Manifest:
    """The JSON manifest of a family, see :mod:`glinfer.formats.manifest.model`.

    Attributes:
        format: the beginning of its ``format``.
        version: its ``format_version``.
        only: the one supported value of each setting, which is also the default; those that are fields of
            :class:`glinfer.config.ModelConfig` are taken from here.
        prefix: the beginning of the names of tensors, which the file may leave out.
        renamed: the ends of names in the file, and what they become in the checkpoint.
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
        norms: where a layer has norms, see :data:`glinfer.families.layer.NormPlaces`.
        norm_offset: a number that is added to the weights of norms; GGUF files store the sum.
        positions: learned, or rotary: elements turn with those half a head apart, or with their neighbours.
        rope_theta: the default base of rotary angles.
        gated: whether the MLP has a gate.
        head_norms: what of queries and keys is normalised, see :data:`glinfer.families.layer.HeadNorms`.
        convolves: whether layers may have a convolution in place of attention.
        sinks: whether the softmax of each head of a layer has a learned logit more, to which no value belongs.
        delta_rule: whether layers may have the gated delta rule in place of attention.
        gated_attention: whether results of attention are multiplied by gates, which queries have beside them.
        experts: whether each layer has many gated MLPs, of which each token uses a few.
        shared_expert: whether every token uses one more, see :class:`glinfer.families.layer.Experts`.
        scaled_embeddings: whether embeddings are multiplied by the square root of the width.
        looks: whether a token sees those before it, or all of its text; models of the second kind embed texts.
        token_types, embedding_norm: whether embeddings have vectors of token types, and a norm behind their sum.
        norm_biases: whether LayerNorm has a bias.
        first_norm: whether there is a norm before the attention of the first layer.
        biases: the matrices among ``q``, ``k``, ``v``, ``o``, ``router``, ``gate``, ``up``, ``down`` and ``head`` that
            always have a bias.
        attention_biases, mlp_biases: the matrices that have a bias in a model with ``attention_bias`` or ``mlp_bias``.
        published: whether the reference plan of float weights is the published algorithm, 244 passes for Gab.
        usual: fields of :class:`glinfer.config.ModelConfig` for a shape given as options.
        huggingface, gguf, manifest: how files of these formats hold it; None if none does.
        gab1: whether GAB1 files hold it; its weights are always floats.
        gguf_as: the family that its models become in GGUF files; missing biases are 0, that of the head is folded in.
        own_chat: when its models chat in Gab's form: never, if the tokenizer has the tokens for it, or always.
        stops: tokens that end a text; empty if the model's files name ids.
        rerank_prompt: what its rerankers that continue texts answer "yes" or "no" to, with {query} and {text} in it;
            empty if there are none.
        exact_vocabulary: whether a tokenizer beside a model belongs to it only if it has exactly as many tokens.
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
        """Whether its models only embed texts: tokens see those after them, so nothing can be continued."""
        return self.looks == "both"

    @property
    def rotary(self) -> bool:
        """Whether positions are rotations of queries and keys."""
        return self.positions != "learned"
