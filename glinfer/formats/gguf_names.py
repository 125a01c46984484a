"""The tensors of GGUF's architectures: which there are, under which names, and how they differ from glinfer's.

Source of the names and of what is changed in them: gguf-py/gguf/constants.py and convert_hf_to_gguf.py of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.formats.families import FAMILIES, GEMMA, GPT2, LLAMA, MISTRAL, QWEN2, QWEN3, weight_shapes

ARCHITECTURES = {GPT2: "gpt2", LLAMA: "llama", MISTRAL: "llama", QWEN2: "qwen2", QWEN3: "qwen3", GEMMA: "gemma"}
"""GGUF's ``general.architecture`` of each family that it knows."""
EMBEDDING, POSITIONS, HEAD = "token_embd.weight", "position_embd.weight", "output.weight"
ROPE_FREQS = "rope_freqs.weight"
"""By how much each pair of a head turns slower than usual, float32 [head_dim / 2]; in some files of Llama's."""

_LIKE_GPT2 = {
    "ln_1": "attn_norm",
    "attn.out_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.fc_in": "ffn_up",
    "mlp.fc_out": "ffn_down",
}
_LIKE_LLAMA = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OUTSIDE = {
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_QUERY = "attn.q_proj"


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file.

    Attributes:
        name: in the file.
        shape: as NumPy has it, matrices [out, in].
        tensors: glinfer's names of what it holds; of several the rows follow each other.
        heads: where not 0, the rows of so many heads have the elements of each rotary pair side by side; glinfer has
            the first elements of all pairs of a head, then the second ones.
        plus_one: whether 1 has been added to every number.
    """

    name: str
    shape: tuple[int, ...]
    tensors: tuple[str, ...]
    heads: int = 0
    plus_one: bool = False


def stored_tensors(config: ModelConfig) -> Iterator[StoredTensor]:
    """Every tensor that the file of a model has to have; ``rope_freqs.weight`` is not among them.

    The family is one of :data:`ARCHITECTURES`.
    """
    like_llama = FAMILIES[config.model_type].rotary
    names, block = (_LIKE_LLAMA, "model.layers.") if like_llama else (_LIKE_GPT2, "transformer.h.")
    turned = ARCHITECTURES[config.model_type] == "llama"
    for ours, shape in weight_shapes(config).items():
        place, _, part = ours.rpartition(".")
        if not place.startswith(block):
            yield StoredTensor(f"{_OUTSIDE[place]}.{part}", shape, (ours,), plus_one=_is_shifted(config, ours))
            continue
        index, _, role = place.removeprefix(block).partition(".")
        if not like_llama and role in (_QUERY, "attn.k_proj", "attn.v_proj"):
            if role == _QUERY:  # which stands for all three
                fused = tuple(ours.replace(".q_proj.", f".{letter}_proj.") for letter in "qkv")
                yield StoredTensor(f"blk.{index}.attn_qkv.{part}", (3 * shape[0], *shape[1:]), fused)
            continue
        heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}
        yield StoredTensor(
            f"blk.{index}.{names[role]}.{part}",
            shape,
            (ours,),
            heads=heads.get(role, 0) if turned else 0,
            plus_one=_is_shifted(config, ours),
        )


def _is_shifted(config: ModelConfig, name: str) -> bool:
    """Gemma multiplies by 1 + weight; its files have the sum."""
    return config.model_type == GEMMA and name.endswith("norm.weight")


def halves_apart(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """Rows (or numbers) with pairs side by side, put in the order in which glinfer has them; a copy."""
    by_pair = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return by_pair.swapaxes(1, 2).reshape(rows.shape)


def halves_together(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """The reverse of :func:`halves_apart`; llama.cpp's converter calls it ``permute``."""
    by_half = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return by_half.swapaxes(1, 2).reshape(rows.shape)
