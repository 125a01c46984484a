"""The names of a model's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Names:
    """Names of tensors without ``.weight`` and ``.bias``, in a checkpoint or in the files of one format.

    The defaults are those of Llama in Hugging Face's transformers.

    Attributes:
        layer: the prefix of names inside a layer, with a placeholder for its number.
        attention_norm, mlp_norm: the norms before the two branches of a layer; without the second they share the first.
        attention_post_norm, mlp_post_norm: the norms after the branches.
        projection: the projections of queries, keys and values, with a placeholder for the letter; without one, a
            single matrix holds the rows of all three.
        head_norm: the norms of heads of queries and keys, with a placeholder for the letter.
        output_norm, down_norm: the norms before the matrices that end the branches, if the family has them.
        head_gate: the matrix of one gate for each head of results, if the family has it.
        conv_in, conv, conv_out: the matrix before a convolution, with the rows of B, C and x; the depthwise
            convolution's own weights; and the matrix after it.
        decay_rate, decay_shift: the full names of the vectors for the decays of a delta rule, see
            :func:`glinfer.kernels.flat.delta.log_decay`.
        skip: the full name of the factors by which a scan adds its values to its results.
        delta_in: the matrices before a delta rule, with a placeholder for the letters ``qkv`` of queries, keys and
            values, ``z`` of gates, ``a`` of decays, and ``b`` of the shares that are written.
        delta_conv, delta_norm, delta_out: the convolution over queries, keys and values; the norm of the heads of
            results; and the matrix after it.
        gate, up: the two first matrices of a gated MLP; one name for both means a single matrix with the rows of both.
        patches: the matrix from the pixels of a patch to its first vector, in an image encoder.
        token_types, embedding_norm: vectors added to embeddings by token type, and the norm after the sum, if the
            family has them.
        dense: the matrices after the pooling, with a placeholder for their number.
        dense_norm: the norms before some of these matrices, with a placeholder for the matrix's number.
        letters: replacements for the placeholders, if they are not the letter or the number itself; by role and letter,
            such as ``head_norm.q``, for one role alone.
        sinks: the sink logits of each head's softmax, if the family has them.
        router: the matrix whose outputs choose the experts of a layer, if layers have them. ``gate``, ``up`` and
            ``down`` then have a placeholder for an expert's number; without one, a tensor holds all experts.
        alpha_p, alpha_n: the full names of the learned numbers of xIELU, for positive and for negative inputs.
        router_norm, expert_norm: the norms before router and experts, if they have their own.
        shared_post_norm, expert_post_norm: the norms after the shared expert and after the others.
        expert_scale: the full name of the factors of experts, if they have their own norms.
        expert_bias: the full name of the numbers that choose experts next to their shares, if layers have them.
        expert_sum_bias: the full name of the bias of the sum of experts, if it has one.
        dense_gate, dense_up, dense_down: the matrices of the MLP in layers without experts, if others have them.
        shared_router, shared_gate, shared_up, shared_down: the vector that weights the shared expert, and its matrices,
            if layers have one.
        per_layer_table: the token embeddings of each layer, with a placeholder for its number; without one, a tensor
            holds those of all layers side by side.
        per_layer_in, per_layer_norm: the matrix from the embeddings of a token to those of each layer, and their norm.
        per_layer_gate, per_layer_out, per_layer_post_norm: the two matrices and the norm of a layer's third branch.
        layer_scale: the factor of the stream after a layer.
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
    output_norm: str = ""
    down_norm: str = ""
    head_gate: str = ""
    conv_in: str = "conv.in_proj"
    conv: str = "conv.conv"
    conv_out: str = "conv.out_proj"
    decay_rate: str = "linear_attn.A_log"
    decay_shift: str = "linear_attn.dt_bias"
    skip: str = "mamba.D"
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
    patches: str = ""
    token_types: str = ""
    embedding_norm: str = ""
    dense: str = "dense.{}"
    dense_norm: str = "dense.{}.norm"
    letters: Mapping[str, str] = field(default_factory=dict)
    sinks: str = ""
    router: str = ""
    alpha_p: str = ""
    alpha_n: str = ""
    router_norm: str = ""
    expert_norm: str = ""
    shared_post_norm: str = ""
    expert_post_norm: str = ""
    expert_scale: str = ""
    expert_bias: str = ""
    expert_sum_bias: str = ""
    dense_gate: str = "mlp.gate_proj"
    dense_up: str = "mlp.up_proj"
    dense_down: str = "mlp.down_proj"
    shared_router: str = ""
    shared_gate: str = "mlp.shared_expert.gate_proj"
    shared_up: str = "mlp.shared_expert.up_proj"
    shared_down: str = "mlp.shared_expert.down_proj"
    per_layer_table: str = ""
    per_layer_in: str = "model.per_layer_model_projection"
    per_layer_norm: str = "model.per_layer_projection_norm"
    per_layer_gate: str = "per_layer_input_gate"
    per_layer_out: str = "per_layer_projection"
    per_layer_post_norm: str = "post_per_layer_input_norm"
    layer_scale: str = "layer_scalar"
    endings: Mapping[str, str] = field(default_factory=dict)

    def of(self, role: str, layer: int | None = None, letter: str = "") -> str:
        """The name of one of the roles above, in a layer or outside of all layers."""
        name: str = getattr(self, role).format(self.letters.get(f"{role}.{letter}", self.letters.get(letter, letter)))
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
    skip="ssm_d",
    delta_in="{}",
    delta_conv="ssm_conv1d",
    delta_norm="ssm_norm",
    delta_out="ssm_out",
    mlp_norm="ffn_norm",
    mlp_post_norm="post_ffw_norm",
    gate="ffn_gate",
    up="ffn_up",
    down="ffn_down",
    dense_gate="ffn_gate",
    dense_up="ffn_up",
    dense_down="ffn_down",
    alpha_p="xielu.alpha_p",
    alpha_n="xielu.alpha_n",
    expert_bias="exp_probs_b.bias",
    final_norm="output_norm",
    head="output",
    per_layer_table="per_layer_token_embd",
    per_layer_in="per_layer_model_proj",
    per_layer_norm="per_layer_proj_norm",
    per_layer_gate="inp_gate",
    per_layer_out="proj",
    per_layer_post_norm="post_norm",
    layer_scale="layer_output_scale.weight",
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
EXPERT_NAMES = Names(
    gate="mlp.experts.{}.gate_proj",
    up="mlp.experts.{}.up_proj",
    down="mlp.experts.{}.down_proj",
    router="mlp.gate",
)
"""Names of a family with a list of experts in Hugging Face's transformers, as in Qwen 3."""
GGUF_EXPERT_NAMES = replace(
    GGUF_NAMES,
    gate="ffn_gate_exps",
    up="ffn_up_exps",
    down="ffn_down_exps",
    router="ffn_gate_inp",
    shared_router="ffn_gate_inp_shexp",
    shared_gate="ffn_gate_shexp",
    shared_up="ffn_up_shexp",
    shared_down="ffn_down_shexp",
)
"""Names in GGUF files of models with experts, whose matrices are stacked there."""
GGUF_SCAN_NAMES = replace(GGUF_NAMES, letters={"qkv": "ssm_in", "z": "ssm_in", "a": "ssm_in"})
"""Names in GGUF files of models with the scan of Mamba-2, which join the matrices before it."""


def scanning(names: Names, module: str = "mamba") -> Names:
    """The names of a family with the scans of Mamba-2 in this module of a layer; files join its first products."""
    return replace(
        names,
        decay_rate=f"{module}.A_log",
        decay_shift=f"{module}.dt_bias",
        skip=f"{module}.D",
        delta_in=f"{module}.in_proj_{{}}",
        delta_conv=f"{module}.conv1d",
        delta_norm=f"{module}.norm",
        delta_out=f"{module}.out_proj",
    )
