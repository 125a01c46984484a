"""The record of a family of models: everything that tells its models from those of others.

A record is data. Formats read from it how a model is recognised and what its files call things; the builders of plans
read from it what is computed. Sizes, and settings that differ between models of one family, are in
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
        layer: beginning of the names of a layer, with its number; the names inside a layer follow it.
        projection: of queries, keys and values, with the letter. A name without a place for the letter means one matrix
            with the rows of all three below each other.
        head_norm: of queries and keys, with the letter.
        gate, up: one name for both means one matrix, likewise.
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
        """The name of what one of the attributes above names, in a layer or outside all."""
        name: str = getattr(self, role).format(letter)
        return name if layer is None else self.layer.format(layer) + name

    def vocabulary(self, *, tied: bool) -> str:
        """The vocabulary's matrix: that of the embeddings where the two are tied."""
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
"""Fields of :class:`glinfer.config.ModelConfig` that a ``config.json`` may leave out."""
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_new", TANH: "gelu_new"}
"""Activations in ``config.json``, and ``hidden_act`` of :class:`glinfer.config.ModelConfig` for each."""
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
        activations: settings that name the activation, and what each calls what; those given have to agree.
        eps: default of the norms' epsilon, and ``eps_key`` its name in the file.
        tied: default of ``tie_word_embeddings``.
        keys: names of a field in the file where it is not the field's own; several mean the same and have to agree.
        old_keys: a name of a field in old files, used where there is no other.
        null_heads: ``num_key_value_heads`` may be null, which means as many as heads.
        always_biased: the attention has its biases whatever the file says.
        window: which layers may have a sliding window: none, all, or those after ``max_window_layers``.
        only: settings with the values that leave the maths as it is; anything else is refused.
        names: of the tensors in the file; None for those of the checkpoint.
        prefix: the beginning of names that some files leave out.
        transposed: matrices inside layers are [in, out].
        buffers: a regular expression for tensors, without prefix, that are no weights and are passed over.
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
    """The architecture of a family in GGUF files. Of families with one architecture, the first is read.

    Attributes:
        architecture: ``general.architecture``.
        activation: ``hidden_act`` of all its models; no key of the file says it.
        pairs_together: rows of queries and keys have the two elements that rotary positions turn together side by side,
            and ``rope_freqs.weight`` may say how much slower each pair turns.
        attention_bias: its attention may have biases.
        names: of the tensors in the file.
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
        format: beginning of its ``format``.
        version: its ``format_version``.
        only: settings of its architecture with the value that each has to have, and has where it is left out; fields of
            :class:`glinfer.config.ModelConfig` are taken from here.
        prefix: beginning of the names of tensors, which the file may leave out.
        renamed: ends of names in the file, and in the checkpoint.
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
        names: of the tensors of a checkpoint; matrices are [out, in].
        norm: ``rms``, or ``layer``, which has a bias too.
        norm_offset: added to the weights of norms; GGUF files have the sum.
        positions: learned, or rotary ones that turn elements half a head apart, or neighbours.
        rope_theta: default of the base of rotary angles.
        gated: the MLP has a gate.
        head_norms: heads of queries and keys are normalised.
        scaled_embeddings: embeddings are multiplied by the square root of the width.
        biases: which of ``q``, ``k``, ``v``, ``o``, ``gate``, ``up``, ``down`` and ``head`` always have a bias.
        attention_biases, mlp_biases: which have one in a model with ``attention_bias`` or ``mlp_bias``.
        published: the reference plan is the published algorithm, 244 passes of Gab, in floats.
        usual: fields of :class:`glinfer.config.ModelConfig` for a shape given as options.
        huggingface, gguf, manifest: how files have it; None where no file of that format does.
        gab1: a GAB1 file holds one; its weights are always floats.
        gguf_as: the family that its models become in GGUF files: missing biases are 0, that of the head is folded in.
        own_chat: its models chat in Gab's form: never, where the tokenizer has the tokens for it, or always.
        stops: tokens that end a text; none where the model's files name ids.
        exact_vocabulary: a tokenizer that lies beside a model belongs to it only with exactly as many tokens.
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
        """Positions are turns of queries and keys."""
        return self.positions != "learned"
