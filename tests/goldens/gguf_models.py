"""GGUF files that llama.cpp reads too: the shapes of small models, and vocabularies with texts to cut."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from glinfer.config import ModelConfig
from glinfer.families import FAMILIES
from glinfer.formats.gguf.words import EXPRESSIONS

from .gguf_file import write_gguf_file

IDS = [3, 7, 1, 9, 12, 44, 2, 80, 5, 33, 21, 17]
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "intermediate_size": 96,
}
GAB = ModelConfig(96, 64, 4, 2, 64)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


LONG_PHI = {
    "rope_type": "longrope",
    "short_factor": [1.0 + index / 8 for index in range(6)],
    "long_factor": [1.0 + index / 4 for index in range(6)],
    "attention_factor": 1.25,
    "original_max_position_embeddings": 32,
    "max_position_embeddings": 64,
}


GRANITE = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.0625,
    "residual_multiplier": 0.25,
    "logits_scaling": 0.5,
}


SCAN = {
    "layer_types": ("linear_attention", "full_attention"),
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "linear_norm_groups": 2,
    "conv_bias": True,
}


EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2}


LATENT: dict[str, Any] = {
    **{"num_hidden_layers": 3, "head_dim": 24, "kv_lora_rank": 32, "q_lora_rank": 32},
    **{"qk_rope_head_dim": 8, "v_head_dim": 16, "layer_norm_eps": 1e-6},
}
LATENTS: dict[str, Any] = {**EXPERTS, **LATENT}


def config(family: str, **more: Any) -> ModelConfig:
    groups = {} if family == "gpt2" else {"num_key_value_heads": 2}
    act = "gelu_new" if family == "gpt2" or family.startswith("gemma") else FAMILIES[family].activation
    return ModelConfig(**{**SIZES, **groups, "model_type": family, "hidden_act": act, **more})


GEMMA2: dict[str, Any] = {
    "num_hidden_layers": 3,
    "head_dim": 32,
    "tie_word_embeddings": True,
    "sliding_window": 5,
    "layer_types": ("sliding_attention", "full_attention"),
}
GEMMA3 = {
    **GEMMA2,
    "num_hidden_layers": 7,
    "layer_types": ("sliding_attention",) * 5 + ("full_attention",),
    "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0,
}
GEMMA4: dict[str, Any] = {
    **{**GEMMA3, "num_hidden_layers": 6, "layer_types": ("sliding_attention", "sliding_attention", "full_attention")},
    "global_head_dim": 48,
    "attention_multiplier": 1.0,
    "rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
    "final_logit_softcapping": 3.0,
}
QWEN35: dict[str, Any] = {
    "num_hidden_layers": 5,
    "head_dim": 32,
    "partial_rotary_factor": 0.5,
    "layer_norm_eps": 1e-6,
    "layer_types": ("linear_attention", "full_attention"),
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
CONFIGS = {
    "gpt2": config("gpt2", tie_word_embeddings=True),
    "gpt2, own head": config("gpt2"),
    "llama": config("llama", head_dim=32, rope_theta=500000.0),
    "llama, biases": config("llama", attention_bias=True),
    "llama, linear": config("llama", rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "llama, yarn": config("llama", rope_scaling={**YARN, "attention_factor": 1.5}),
    "qwen2": config("qwen2", attention_bias=True, layer_norm_eps=1e-6, rope_scaling=YARN),
    "qwen3": config("qwen3", head_dim=32, tie_word_embeddings=True),
    "gemma": config("gemma", head_dim=32, tie_word_embeddings=True, sliding_window=20),
    "gemma2": config("gemma2", **GEMMA2, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "gemma3": config("gemma3_text", **GEMMA3),
    "gemma4": config(
        "gemma4_text",
        **{**GEMMA4, "hidden_size_per_layer_input": 32, "num_kv_shared_layers": 3, "use_double_wide_mlp": True},
    ),
    "gemma4, dense": config("gemma4_text", **GEMMA4, num_global_key_value_heads=1, attention_k_eq_v=True),
    "gemma4, experts": config(
        "gemma4_moe",
        **{**GEMMA4, **EXPERTS, "num_hidden_layers": 3, "num_global_key_value_heads": 1, "attention_k_eq_v": True},
        **{"norm_topk_prob": True, "shared_intermediate_size": 160},
    ),
    "smollm3": config("smollm3", num_hidden_layers=5, rotary_layers=(1, 1, 1, 0), tie_word_embeddings=True),
    "olmo2": config("olmo2"),
    "mistral3": config(
        "ministral3",
        head_dim=32,
        rope_scaling={
            **YARN,
            **{"original_max_position_embeddings": 4, "attention_factor": 1.0, "llama_4_scaling_beta": 0.3},
        },
    ),
    "olmo2, windows": config(
        "olmo3",
        num_hidden_layers=5,
        sliding_window=5,
        layer_types=("sliding_attention",) * 3 + ("full_attention",),
        rope_theta=500000.0,
        rope_local_base_freq=500000.0,
        rope_scaling=YARN,
    ),
    "qwen3vl": config("qwen3_vl_text", head_dim=32, rope_theta=500000.0, tie_word_embeddings=True),
    "seed_oss": config("seed_oss", attention_bias=True),
    "ernie4_5": config("ernie4_5", tie_word_embeddings=True, rope_theta=500000.0),
    "exaone4": config("exaone4"),  # it has windows in models of 64 layers alone
    "apertus": config("apertus", hidden_act="xielu", rope_theta=1.2e7),
    "hunyuan-dense": config("hunyuan_v1_dense", head_dim=32, tie_word_embeddings=True, rope_theta=5e4),
    "arcee": config("arcee"),
    "nemotron": config("nemotron", partial_rotary_factor=0.5, attention_bias=True, mlp_bias=True),
    "starcoder2": config("starcoder2", tie_word_embeddings=True),
    "stablelm": config("stablelm", partial_rotary_factor=0.25, attention_bias=True, num_key_value_heads=4),
    "chatglm": config("glm", partial_rotary_factor=0.5, attention_bias=True),
    "glm4": config("glm4", partial_rotary_factor=0.5, attention_bias=True),
    "command-r": config("cohere", tie_word_embeddings=True, rope_theta=500000.0, logits_scaling=0.5),
    "cohere2": config(
        "cohere2",
        **{"num_hidden_layers": 5, "sliding_window": 5, "tie_word_embeddings": True, "logits_scaling": 0.5},
        **{"layer_types": ("sliding_attention",) * 3 + ("full_attention",), "rotary_layers": (1, 1, 1, 0)},
    ),
    "exaone": config("exaone", rope_theta=500000.0),
    "gptneox": config("gpt_neox", partial_rotary_factor=0.25, num_key_value_heads=4),
    "llama, experts": config("mixtral", **EXPERTS, norm_topk_prob=True, rope_theta=1e6),
    "glm4moe": config(
        "glm4_moe",
        **{**EXPERTS, "num_hidden_layers": 3, "num_dense_layers": 1, "dense_intermediate_size": 160},
        **{"partial_rotary_factor": 0.5, "attention_bias": True, "norm_topk_prob": True, "use_expert_bias": True},
        **{"shared_intermediate_size": 96, "routed_scaling_factor": 1.5},
    ),
    "dots1": config(
        "dots1",
        **{**EXPERTS, "num_hidden_layers": 3, "num_dense_layers": 1, "dense_intermediate_size": 160},
        **{"norm_topk_prob": True, "use_expert_bias": True, "shared_intermediate_size": 192, "num_key_value_heads": 4},
        routed_scaling_factor=2.5,
    ),
    "deepseek2, softmax": config(
        "deepseek_v2",
        **{**LATENTS, "rope_scaling": {**YARN, "mscale": 0.5, "mscale_all_dim": 0.5}, "shared_intermediate_size": 192},
        dense_intermediate_size=96,
    ),
    "deepseek2, no experts": config("youtu", **LATENT),
    "minicpm3": config(
        "minicpm3", **LATENT, embedding_multiplier=12.0, residual_multiplier=1.4 / 3**0.5, logits_scaling=64 / 256
    ),
    "deepseek2": config(
        "deepseek_v3",
        **{**LATENTS, "num_dense_layers": 1, "dense_intermediate_size": 160, "shared_intermediate_size": 96},
        **{
            "norm_topk_prob": True,
            "use_expert_bias": True,
            "routed_scaling_factor": 2.5,
            "n_group": 2,
            "topk_group": 1,
        },
    ),
    "exaone-moe": config(
        "exaone_moe",
        **{**EXPERTS, "num_hidden_layers": 4, "head_dim": 32, "num_dense_layers": 1, "dense_intermediate_size": 160},
        **{"sliding_window": 5, "layer_types": ("sliding_attention",) * 3 + ("full_attention",)},
        **{"rotary_layers": (1, 1, 1, 0), "norm_topk_prob": True, "use_expert_bias": True},
        **{"routed_scaling_factor": 2.5, "shared_intermediate_size": 192, "n_group": 2, "topk_group": 1},
    ),
    "jais2": config("jais2", attention_bias=True, mlp_bias=True),
    "bitnet": config("bitnet", layer_norm_eps=1e-5, tie_word_embeddings=True, rope_theta=5e5),
    "minimax-m2": config(
        "minimax_m2", **EXPERTS, partial_rotary_factor=0.5, norm_topk_prob=True, use_expert_bias=True, rope_theta=5e6
    ),
    "ernie4_5-moe": config(
        "ernie4_5_moe",
        **{**EXPERTS, "num_hidden_layers": 3, "num_dense_layers": 1, "dense_intermediate_size": 160},
        **{"tie_word_embeddings": True, "norm_topk_prob": True, "use_expert_bias": True, "rope_theta": 500000.0},
        shared_intermediate_size=192,
    ),
    "hunyuan-moe": config(
        "hunyuan_v1_moe",
        **{**EXPERTS, "head_dim": 32, "tie_word_embeddings": True, "rope_theta": 5e4},
        **{"norm_topk_prob": True, "shared_intermediate_size": 160},
    ),
    "phi2": config("phi", hidden_act="gelu_new", partial_rotary_factor=0.5, num_key_value_heads=4),
    "phi3": config("phi3", rope_scaling=LONG_PHI, partial_rotary_factor=0.75, layer_norm_eps=1e-5),
    "granite": config("granite", **GRANITE),
    "lfm2": config(
        "lfm2",
        num_hidden_layers=4,
        layer_types=("conv", "full_attention", "conv"),
        conv_L_cache=3,
        rope_theta=1e6,
        tie_word_embeddings=True,
    ),
    "lfm2moe": config(
        "lfm2_moe",
        **EXPERTS,
        num_hidden_layers=4,
        layer_types=("conv", "full_attention"),
        conv_L_cache=3,
        rope_theta=1e6,
        tie_word_embeddings=True,
        norm_topk_prob=True,
        num_dense_layers=1,
        dense_intermediate_size=160,
        use_expert_bias=True,
    ),
    "qwen35": config("qwen3_5_text", **QWEN35, tie_word_embeddings=True),
    # Heads of values take turns in those of keys.
    "qwen35, shared": config("qwen3_5_text", **{**QWEN35, "linear_num_value_heads": 6, "linear_keys_in_turn": True}),
    "qwen35moe": config(
        "qwen3_5_moe_text",
        **{**QWEN35, **EXPERTS, "linear_num_value_heads": 4, "linear_keys_in_turn": True},
        norm_topk_prob=True,
    ),
    "qwen3next": config("qwen3_next", **{**QWEN35, **EXPERTS, "linear_num_value_heads": 6}, norm_topk_prob=True),
    "qwen2moe": config("qwen2_moe", **EXPERTS, attention_bias=True, shared_expert_intermediate_size=160),
    "qwen3moe": config("qwen3_moe", **EXPERTS, norm_topk_prob=True, head_dim=32),
    "olmoe": config("olmoe", **EXPERTS, num_key_value_heads=4),
    "granitehybrid": config("granitemoehybrid", **GRANITE, **SCAN, rotary_layers=(0,), num_hidden_layers=3),
    "granitehybrid, experts": config(
        "granitemoehybrid_moe",
        **{**EXPERTS, **GRANITE, **SCAN, "num_hidden_layers": 3},
        norm_topk_prob=True,
        rotary_layers=(0,),
        shared_intermediate_size=160,
    ),
    "falcon-h1": config("falcon_h1", **{**SCAN, "layer_types": ("hybrid",), "linear_norm_groups": 0}, head_dim=32),
    "falcon-h1, norms": config("falcon_h1", **{**SCAN, "layer_types": ("hybrid",)}, tie_word_embeddings=True),
    "mamba2": config(
        "mamba2",
        **{**SCAN, "layer_types": ("linear_attention",), "num_attention_heads": 1, "num_key_value_heads": 1},
        intermediate_size=256,
        rotary_layers=(0,),
    ),
    "nemotron_h": config(
        "nemotron_h",
        **{**SCAN, "layer_types": ("linear_attention", "mlp", "full_attention"), "num_hidden_layers": 5},
        rotary_layers=(0,),
    ),
    "nemotron_h_moe": config(
        "nemotron_h_moe",
        **{**SCAN, **EXPERTS, "layer_types": ("linear_attention", "moe", "full_attention"), "num_hidden_layers": 5},
        **{"rotary_layers": (0,), "norm_topk_prob": True, "use_expert_bias": True, "routed_scaling_factor": 2.5},
        shared_intermediate_size=160,
    ),
    "granitemoe": config("granitemoe", **EXPERTS, norm_topk_prob=True, **GRANITE),
    # Angles that turn so far that YaRN's ramp has all pairs, wherever it ends: llama.cpp ends it at whole pairs.
    "gpt-oss": config(
        "gpt_oss",
        **{**EXPERTS, "num_experts_per_tok": 3, "norm_topk_prob": True, "swiglu_limit": 7.0, "swiglu_alpha": 1.702},
        head_dim=32,
        rope_theta=1.6,
        rope_scaling={**YARN, "truncate": False},
        sliding_window=5,
        layer_types=("sliding_attention", "full_attention"),
    ),
    "gemma3, linear": config("gemma3_text", **GEMMA3, rope_scaling={"rope_type": "linear", "factor": 8.0}),
}
COMPARED = {name: made for name, made in CONFIGS.items() if name != "bitnet"}
COMPARED |= {"gab": GAB, "mistral": config("mistral"), "llama3": config("llama", rope_scaling=LLAMA3)}
COMPARED["exaone, llama3"] = config("exaone", rope_scaling=LLAMA3)
"""The models whose logits are compared; llama.cpp does not round as BitNet does."""


# Vocabularies

K = "tokenizer.ggml."
LINES = [
    "hello world, the quick brown fox don't I'LL we've 12345 3.14",
    "if (x == 1) {\n    return;\n}\r\n\n\n\tx   y",
    "日本語 привет мир naïve été 🚀🚀 مرحبا हिन्दी",
] * 30
ATOMS = [
    "hello", "The", " ", "  ", "   ", "     ", "\n", "\n\n", "\r\n", "\t", "1", "12", "123", "12345", "٣", "x=", "(){}",
    "don't", "I'LL", "'S", "we've", "’s", "é", "e\u0301", "日本語", "。", "🚀", "привет", "ÀB", "<|im_end|>", "<tool>",
    "<s>", "</s>", "<unk>", "<0x0A>", "_", "$", "+", "`", "\u00a0", "\u2003", "\x0b", "\x85", "½", "Ⅷ", "!?", "...",
    "a.b", "http://x.y/z?q=1", "\0", "한국어", "हिन्दी", "ไทย", "<|im_", "end|>",
]  # fmt: skip


def texts(count: int) -> Iterator[str]:
    chosen = random.Random(7)
    yield from ("", " ", "\n", "hello world", "  two  spaces  ")
    for _ in range(count):
        yield "".join(chosen.choices(ATOMS, k=chosen.randint(1, 12)))


@lru_cache(maxsize=1)
def learned_bytes() -> tuple[list[str], list[str]]:
    """The tokens and the merges of a small byte-level BPE."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        LINES, trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(library.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [" ".join(merge) for merge in model["merges"]]


def byte_level(pre: str = "gpt-2", **changes: Any) -> dict[str, Any]:
    tokens, merges = learned_bytes()
    extra = ["<|im_start|>", "<|im_end|>", "<tool>"]
    return {
        K + "model": "gpt2",
        K + "pre": pre,
        K + "tokens": [*tokens, *extra],
        K + "merges": merges,
        K + "token_type": [1] * len(tokens) + [3, 3, 4],
        K + "bos_token_id": len(tokens),
        K + "eos_token_id": len(tokens) + 1,
        **{K + name: value for name, value in changes.items()},
    }


@lru_cache(maxsize=1)
def learned_model() -> dict[str, Any]:
    """A vocabulary of pieces with its merges."""
    library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    library.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=900, show_progress=False))
    return dict(json.loads(library.to_str())["model"])


def learned_pieces() -> tuple[str, ...]:
    """Pieces as SentencePiece orders them: the joined ones first, then single characters."""
    vocabulary = learned_model()["vocab"]
    return tuple(sorted(vocabulary, key=lambda piece: (len(piece) == 1, vocabulary[piece])))


def piece_level(**changes: Any) -> dict[str, Any]:
    pieces = list(learned_pieces())
    in_bytes = [f"<0x{value:02X}>" for value in range(256)]
    extra = ["<|im_start|>", "<|im_end|>", "<tool>", "    "]
    return {
        K + "model": "llama",
        K + "tokens": ["<unk>", "<s>", "</s>", *in_bytes, *pieces, *extra],
        K + "scores": [0.0] * 259 + [-float(rank) for rank in range(len(pieces))] + [-1000.0] * 4,
        K + "token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces) + [3, 3, 4, 4],
        K + "bos_token_id": 1,
        K + "eos_token_id": 2,
        K + "unknown_token_id": 0,
        **{K + name: value for name, value in changes.items()},
    }


UNIGRAM = ("<s>", "<pad>", "</s>", "<unk>", "▁the", "▁c", "at", "▁", "t", "h", "e", "c", "a", "▁cat", "s", ".")
"""A vocabulary like XLM-RoBERTa's: pieces with scores."""


def unigram(**changes: Any) -> dict[str, Any]:
    special = {"bos": 0, "eos": 2, "unknown": 3, "seperator": 2, "padding": 1}
    return {
        K + "model": "t5",
        K + "tokens": list(UNIGRAM),
        K + "scores": [0.0] * 4 + [-2.0 - number / 8 for number in range(len(UNIGRAM) - 4)],
        K + "token_type": [3, 3, 3, 2] + [1] * (len(UNIGRAM) - 4),
        K + "add_space_prefix": True,
        K + "remove_extra_whitespaces": True,
        K + "add_bos_token": True,
        K + "add_eos_token": True,
        **{f"{K}{name}_token_id": token for name, token in special.items()},
        **{K + name: value for name, value in changes.items()},
    }


def write_vocabulary(path: Path, metadata: Mapping[str, Any]) -> Path:
    """A GGUF file with this metadata and no tensors."""
    sizes = {"context_length": 64, "embedding_length": 8, "block_count": 1, "feed_forward_length": 8}
    sizes |= {"attention.head_count": 1, "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": 8}
    return write_gguf_file(path, "llama", {**{f"llama.{key}": each for key, each in sizes.items()}, **metadata})


@lru_cache(maxsize=1)
def vocabularies() -> dict[str, dict[str, Any]]:
    """The metadata of files of every kind."""
    return {
        # One name for each way to cut; "default" is also what it is where the file has no name.
        **{pre: byte_level(pre) for pre in sorted({cuts: name for name, cuts in EXPRESSIONS.items()}.values())},
        "pieces": piece_level(),
        "pieces, no space before": piece_level(add_space_prefix=False),
        "pieces, merges": piece_level(model="gemma4", merges=[" ".join(each) for each in learned_model()["merges"]]),
        "pieces, an end": piece_level(add_bos_token=False, add_eos_token=True),
    }


COMPARED_TEXTS = ["".join(random.Random(number).choices(ATOMS, k=12)) for number in range(8)]


def learned_digest() -> str:
    """Of all tokens and merges, which an installed library learned: with others the ids would be others."""
    return hashlib.sha256(json.dumps([learned_bytes(), learned_pieces()]).encode()).hexdigest()
