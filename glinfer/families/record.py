"""The record of a model family: everything that distinguishes its models from those of other families.

Plan builders read the computation from it, and formats how its files are recognised and read. Sizes, and settings that
differ between models of one family, such as the windows of single layers, are in :class:`glinfer.config.ModelConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import HuggingFace
from glinfer.families.layer import BOTH, CONV, DELTA, MOE, QUERY_BETA, LayerConfig
from glinfer.families.names import Names


@dataclass(frozen=True, eq=False)
class Family:
    """One family of models.

    Attributes:
        name: ``model_type``, here and in Hugging Face's configurations.
        names: the names of tensors in a checkpoint; matrices are [out, in].
        norm: RMSNorm (``rms``), or LayerNorm (``layer``), which has a bias too.
        layer: the parts of its layers: positions of norms, norms of heads, sinks, gates.
        norm_offset: a number added to the weights of norms; GGUF files store the sum.
        uneven_gains: whether the gains of a norm differ so much that rounded matrices must not absorb them.
        positions: learned, or rotary with pairs half a head apart, or rotary with adjacent pairs.
        rope_theta: the default base of rotary angles.
        gated: whether the MLP has a gate.
        single: whether a layer has one branch: it mixes tokens, or it is an MLP.
        scans: whether its layers with a state have the scan of Mamba-2 instead of the gated delta rule.
        activation: the usual ``hidden_act``; GGUF files have no other.
        sigmoid_router: whether the weights of experts are sigmoids, see :class:`glinfer.families.layer.Experts`.
        share_eps: a number that its router adds to the sum of the chosen sigmoids.
        scaled_embeddings: whether embeddings are multiplied by the square root of the width.
        encodes: whether its models only embed texts: tokens see later tokens, so texts cannot be continued.
        by_grid: whether an image encoder takes images of any shape as two frames: learned positions of patches
            are interpolated, and rotary angles follow rows and columns.
        norm_biases: whether LayerNorm has a bias.
        biases: the matrices among ``q``, ``k``, ``v``, ``o``, ``router``, ``gate``, ``up``, ``down``, those of layers
            without experts, and ``head`` that always have a bias.
        attention_biases, mlp_biases: the matrices that have a bias in a model with ``attention_bias`` or ``mlp_bias``;
            ``expert_sum_bias`` for the sum of experts.
        usual: further fields of :class:`glinfer.config.ModelConfig` for a shape given as options, see :attr:`options`.
        huggingface, gguf: its form in files of these formats; None for unsupported formats.
        manifest: the one supported value of each setting of its Gab manifests, see
            :mod:`glinfer.formats.manifest.model`; empty without this format.
        gab1: whether GAB1 files may have it. Its weights are always floats, and a tokenizer next to a model belongs to
            it only if its number of tokens is the same.
        gguf_as: the family of its models in GGUF files; missing biases are 0, and the head's bias is folded in.
        stops: tokens that end a text; empty if the model's files name ids.
        rerank_prompt: the prompt of its generative rerankers, which they answer with "yes" or "no", with {query}
            and {text}; empty for none.
    """

    name: str
    names: Names = field(default_factory=Names)
    norm: Literal["rms", "layer"] = "rms"
    layer: LayerConfig = field(default_factory=LayerConfig)
    norm_offset: float = 0.0
    uneven_gains: bool = False
    positions: Literal["learned", "halves", "neighbours"] = "halves"
    rope_theta: float = 10000.0
    gated: bool = True
    single: bool = False
    scans: bool = False
    activation: str = "silu"
    sigmoid_router: bool = False
    share_eps: float = 0.0
    scaled_embeddings: bool = False
    encodes: bool = False
    by_grid: bool = False
    norm_biases: bool = True
    biases: tuple[str, ...] = ()
    attention_biases: tuple[str, ...] = ()
    mlp_biases: tuple[str, ...] = ()
    usual: Mapping[str, Any] = field(default_factory=dict)
    huggingface: HuggingFace | None = None
    gguf: Gguf | None = None
    manifest: Mapping[str, Any] = field(default_factory=dict)
    gab1: bool = False
    gguf_as: str = ""
    stops: tuple[str, ...] = ()
    rerank_prompt: str = ""

    @property
    def published(self) -> bool:
        """Whether the reference plan of float weights is the published algorithm, 244 passes for Gab.

        It has learned positions, and its tokens see only earlier ones.
        """
        return self.positions == "learned" and not self.encodes

    @property
    def options(self) -> dict[str, Any]:
        """Fields of :class:`glinfer.config.ModelConfig` for a shape given as options."""
        tied = self.encodes or (self.huggingface is not None and self.huggingface.tied)
        return {
            "hidden_act": self.activation,
            "rope_theta": self.rope_theta,
            **({"tie_word_embeddings": True} if tied else {}),
            **({"pooling": "mean"} if self.encodes else {}),
            **({"use_expert_bias": True} if self.names.expert_bias else {}),
            **self.usual,
        }

    @property
    def experts(self) -> bool:
        """Whether each layer has many gated MLPs, of which each token uses a few."""
        return bool(self.names.router)

    @property
    def listed_experts(self) -> bool:
        """Whether only the layers of kind ``moe`` have experts."""
        return MOE in self.usual.get("layer_types", ())

    @property
    def shared_expert(self) -> bool:
        """Whether every token uses one more expert, see :class:`glinfer.families.layer.Experts`."""
        return bool(self.names.shared_router)

    @property
    def token_types(self) -> bool:
        """Whether embeddings have vectors of token types."""
        return bool(self.names.token_types)

    @property
    def embedding_norm(self) -> bool:
        """Whether a norm follows the sum of embeddings; then no other precedes the attention of the first layer."""
        return bool(self.names.embedding_norm)

    @property
    def convolves(self) -> bool:
        """Whether layers may have a convolution in place of attention."""
        return CONV in self.usual.get("layer_types", ())

    @property
    def delta_rule(self) -> bool:
        """Whether layers may have the gated delta rule, or a scan, in place of attention."""
        return DELTA in self.usual.get("layer_types", ()) or self.both

    @property
    def both(self) -> bool:
        """Whether layers may have a scan next to attention."""
        return BOTH in self.usual.get("layer_types", ())

    @property
    def latent(self) -> bool:
        """Whether keys and values are products of a shorter vector, see :class:`glinfer.families.layer.Latent`."""
        return "kv_lora_rank" in self.usual

    @property
    def attends(self) -> bool:
        """Whether layers may have attention."""
        return bool(self.usual.get("layer_types", ()) != (DELTA,))

    @property
    def scaled_queries(self) -> bool:
        """Whether queries may grow with their position, see :func:`glinfer.kernels.rotary.query_scales`."""
        return QUERY_BETA in self.usual.get("rope_scaling", ())

    @property
    def own_chat(self) -> Literal["never", "with tokens", "always"]:
        """When its models chat in Gab's form: never, if the tokenizer has the tokens for it, or always."""
        return "always" if self.gab1 else "with tokens" if self.manifest else "never"

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
