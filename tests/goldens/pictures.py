"""A small SmolVLM with random weights: a directory as transformers saves it, and llama.cpp's two files of the same."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from PIL import Image
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers

from glinfer.config import ModelConfig
from glinfer.families import TOWERS
from glinfer.formats import random_checkpoint
from glinfer.graph.model import graph_of

from .gguf_file import write_gguf_file

Array = np.ndarray[Any, Any]
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SIDE, PATCH, SCALE, LONGEST, SEED = 34, 4, 2, 68, 8
TEXT = ModelConfig(
    320, 64, 4, 2, 640, 96, 1e-5, "silu", "llama", num_key_value_heads=2, head_dim=16, tie_word_embeddings=False
)
TOWER = ModelConfig(
    (SIDE // PATCH) ** 2,
    48,
    4,
    2,
    (SIDE // PATCH) ** 2,
    80,
    1e-6,
    model_type="siglip",
    patch_size=PATCH,
    patches_per_token=SCALE**2,
    dense=((64, False, "none"),),
    **TOWERS["siglip"].options,
)
TOKENS = (SIDE // PATCH // SCALE) ** 2
CONTROL = [
    *("<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<global-img>", "<image>"),
    *(f"<row_{row}_col_{col}>" for row in range(1, 5) for col in range(1, 5)),
]
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
"""SmolVLM's own."""
IMAGE_SIZES = [(70, 50), (30, 90), (34, 34), (68, 40), (200, 10), (9, 33)]
"""Widths and heights."""
PROCESSOR = {
    "do_image_splitting": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "max_image_size": {"longest_edge": SIDE},
    "size": {"longest_edge": LONGEST},
    "resample": 1,
}


def settings_of(config: ModelConfig, *names: str, **further: Any) -> dict[str, Any]:
    """These fields of a configuration for a config.json, with ``further`` settings."""
    return {**{name: getattr(config, name) for name in names}, **further}


def text_settings(config: ModelConfig, **further: Any) -> dict[str, Any]:
    """The settings of a language model."""
    names = ("model_type", "vocab_size", *SIZES, "num_key_value_heads", "head_dim", "max_position_embeddings")
    return settings_of(config, *names, rms_norm_eps=config.layer_norm_eps, **further)


def weights() -> tuple[dict[str, Array], dict[str, Array]]:
    """The tensors of the language model and of the image encoder, under glinfer's names."""
    text, tower = (random_checkpoint(config, seed=SEED, scale=0.2).tensors for config in (TEXT, TOWER))
    grown = {name: 1.5 * array if "patch_embedding.weight" in name else array for name, array in tower.items()}
    return dict(text), grown


def write_smolvlm(folder: Path, dtype: str = "float32", **config: Any) -> Path:
    """A directory of the model; ``config`` changes settings of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, CONTROL, TEMPLATE)
    text, tower = weights()
    tensors = {name.replace("model.", "model.text_model.", 1): array for name, array in text.items()}
    for name, array in tower.items():
        is_patch = name.endswith("patch_embedding.weight")
        tensors[f"model.{name}"] = array.reshape(-1, 3, PATCH, PATCH) if is_patch else array
    stored = {name: np.ascontiguousarray(array, dtype) for name, array in tensors.items()}
    save_file(stored, folder / "model.safetensors")
    values = {
        "model_type": "smolvlm",
        "architectures": ["SmolVLMForConditionalGeneration"],
        "image_token_id": 256 + CONTROL.index("<image>"),
        "pad_token_id": 0,
        "scale_factor": SCALE,
        "tie_word_embeddings": False,
        "text_config": text_settings(TEXT, pad_token_id=0, tie_word_embeddings=False),
        "vision_config": settings_of(TOWER, *SIZES, "patch_size", model_type="smolvlm_vision", image_size=SIDE),
    }
    return write_settings(folder, {**values, **config}, PROCESSOR)


def write_settings(folder: Path, values: dict[str, Any], processor: dict[str, Any]) -> Path:
    """The files of settings; a text ends with the second control token."""
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 256 + 1}))
    return folder


def write_tokenizer(folder: Path, control: list[str], template: str) -> None:
    """A tokenizer of bytes and control tokens, and the chat template."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {text: token for token, text in enumerate([*letters[:-1], "he"])}  # GGUF files need a merge
    library = tokenizers.Tokenizer(models.BPE(ids, [("h", "e")]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(control)
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))


def picture(width: int = 70, height: int = 50, seed: int = 0) -> Image.Image:
    """An image of smooth colours."""
    random = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)
    return Image.fromarray(random).resize((width, height), Image.Resampling.BICUBIC)


def about(image: object, text: str = "What is it?") -> list[dict[str, Any]]:
    """A conversation of one question about an image."""
    return [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": text}]}]


def write_clip(path: Path, keys: dict[str, Any], tensors: Iterable[tuple[str, Array]]) -> Path:
    """llama.cpp's file of an image encoder: metadata by the end of their key, None for none, and tensors by name."""
    return write_gguf_file(path, "clip", {f"clip.{name}": value for name, value in keys.items()}, dict(tensors))


def clip_sizes(tower: ModelConfig, text: ModelConfig) -> dict[str, Any]:
    """The metadata of an encoder's sizes."""
    return {
        "has_vision_encoder": True,
        "use_gelu": True,
        "vision.patch_size": tower.patch_size,
        "vision.embedding_length": tower.hidden_size,
        "vision.feed_forward_length": tower.intermediate_size,
        "vision.block_count": tower.num_hidden_layers,
        "vision.attention.head_count": tower.num_attention_heads,
        "vision.attention.layer_norm_epsilon": tower.layer_norm_eps,
        "vision.projection_dim": text.hidden_size,
        "vision.image_mean": [0.5, 0.5, 0.5],
        "vision.image_std": [0.5, 0.5, 0.5],
    }


def write_mmproj(path: Path, **changes: object) -> Path:
    """llama.cpp's file of the image encoder; ``changes`` are metadata by the end of their key, None for none."""
    keys: dict[str, Any] = {
        **clip_sizes(TOWER, TEXT),
        "projector_type": "idefics3",
        "vision.image_size": SIDE,
        "vision.projector.scale_factor": SCALE,
        "vision.preproc_image_size": LONGEST,
        **changes,
    }
    ours, theirs, tensors = TOWERS["siglip"].names, TOWERS["siglip"].in_gguf.names, list[tuple[str, Array]]()
    for tensor in graph_of(TOWER).tensors():
        array = weights()[1][tensor.name(ours)]
        if tensor.role == "patches" and tensor.part == "weight":
            array = array.reshape(-1, 3, PATCH, PATCH)
        kind = np.float16 if array.ndim == 2 and tensor.role != "embeddings" else np.float32
        tensors.append((tensor.name(theirs), np.ascontiguousarray(array, kind)))
    return write_clip(path, keys, tensors)
