"""The record of a family of models: everything that distinguishes its models from those of other families.

A record is data. Formats read from it how a model is recognised and what its files call things; the builders of plans
read from it what to compute. Sizes, and settings that differ between models of one family, are in
:class:`glinfer.config.ModelConfig`, windows of single layers among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Names:
    """Names of tensors without ``.weight`` and ``.bias``, in a checkpoint or in the files of one format.

    The defaults are those of Llama in Hugging Face's transformers.

    Attributes:
        layer: the prefix of names inside a layer, with a place for its number.
        projection: the projections of queries, keys and values, with a place for the letter; without one, a single
            matrix holds the rows of all three.
        head_norm: the norms of heads of queries and keys, with a place for the letter.
        gate, up: the two first matrices of a gated MLP; one name for both means a single matrix with the rows of both.
    """

    embeddings: str = "model.embed_tokens"
    positions: str = ""
    layer: str = "model.layers.{}."
    attention_norm: str = "input_layernorm"
    projection: str = "self_attn.{}_proj"
    head_norm: str = "self_attn.{}_norm"
    output: str = "self_attn.o_proj"
    mlp_norm: str = "post_attention_layernorm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    final_norm: str = "model.norm"
    head: str = "lm_head"

    def of(self, role: str, layer: int | None = None, letter: str = "") -> str:
        """The name for one of the roles above, in a layer or outside of all layers."""
        name: str = getattr(self, role).format(letter)
        return name if layer is None else self.layer.format(layer) + name

    def vocabulary(self, *, tied: bool) -> str:
        """The name of the head, which is that of the embeddings if the two are tied."""
        return self.embeddings if tied else self.head


GGUF_NAMES = Names(
    embeddings="token_embd",
    positions="position_embd",
    layer="blk.{}.",
    attention_norm="attn_norm",
    projection="attn_{}",
    head_norm="attn_{}_norm",
    output="attn_output",
    mlp_norm="ffn_norm",
    gate="ffn_gate",
    up="ffn_up",
    down="ffn_down",
    final_norm="output_norm",
    head="output",
)
"""Names in GGUF files, from gguf-py/gguf/constants.py of llama.cpp."""
TANH = "gelu_pytorch_tanh"
SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings"),
)
"""Fields of :class:`glinfer.config.ModelConfig` that have defaults in a ``config.json``."""
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_new", TANH: "gelu_new"}
"""The ``hidden_act`` of :class:`glinfer.config.ModelConfig` for each name of an activation in ``config.json``."""
_SAME_MATHS: Mapping[str, tuple[object, ...]] = {
    "partial_rotary_factor": (1, None),
    "is_causal": (True, None),
    "use_bidirectional_attention": (False, None),
    "per_layer_config": (None,),
}


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
        window: the layers that may have a sliding window: none, all, or those after ``max_window_layers``.
        only: settings that would change the maths, with the harmless values; other values are refused.
        names: the names of tensors in the file; None if they are those of the checkpoint.
        prefix: the beginning of names that some files leave out.
        transposed: whether matrices inside layers are stored as [in, out].
        buffers: a regular expression for tensors, without prefix, that are not weights and are ignored.
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
    window: Literal["none", "all", "later"] = "none"
    only: Mapping[str, tuple[object, ...]] = field(default_factory=lambda: _SAME_MATHS)
    names: Names | None = None
    prefix: str = "model."
    transposed: bool = False
    buffers: str = r"(.*\.)?rotary_emb\.inv_freq"


@dataclass(frozen=True)
class Gguf:
    """The architecture of a family in GGUF files; families may share one, and files are then read as the first of them.

    Attributes:
        architecture: ``general.architecture``.
        activation: ``hidden_act`` of all its models, which the file does not say.
        pairs_together: whether the two elements that rotary positions turn together are neighbours in the rows of
            queries and keys; then ``rope_freqs.weight`` may slow each pair down.
        attention_bias: whether its attention may have biases.
        names: the names of tensors in the file.
    """

    architecture: str
    activation: str = "silu"
    pairs_together: bool = False
    attention_bias: bool = True
    names: Names = GGUF_NAMES


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
        norm_offset: a number that is added to the weights of norms; GGUF files store the sum.
        positions: learned, or rotary: elements turn with those half a head apart, or with their neighbours.
        rope_theta: the default base of rotary angles.
        gated: whether the MLP has a gate.
        head_norms: whether heads of queries and keys are normalised.
        scaled_embeddings: whether embeddings are multiplied by the square root of the width.
        biases: the matrices among ``q``, ``k``, ``v``, ``o``, ``gate``, ``up``, ``down`` and ``head`` that always have
            a bias.
        attention_biases, mlp_biases: the matrices that have a bias in a model with ``attention_bias`` or ``mlp_bias``.
        published: whether the reference plan of float weights is the published algorithm, 244 passes for Gab.
        usual: fields of :class:`glinfer.config.ModelConfig` for a shape given as options.
        huggingface, gguf, manifest: how files of these formats hold it; None if none does.
        gab1: whether GAB1 files hold it; its weights are always floats.
        gguf_as: the family that its models become in GGUF files; missing biases are 0, that of the head is folded in.
        own_chat: when its models chat in Gab's form: never, if the tokenizer has the tokens for it, or always.
        stops: tokens that end a text; empty if the model's files name ids.
        exact_vocabulary: whether a tokenizer beside a model belongs to it only if it has exactly as many tokens.
    """

    name: str
    names: Names = field(default_factory=Names)
    norm: Literal["rms", "layer"] = "rms"
    norm_offset: float = 0.0
    positions: Literal["learned", "halves", "neighbours"] = "halves"
    rope_theta: float = 10000.0
    gated: bool = True
    head_norms: bool = False
    scaled_embeddings: bool = False
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
    exact_vocabulary: bool = False

    @property
    def rotary(self) -> bool:
        """Whether positions are rotations of queries and keys."""
        return self.positions != "learned"
