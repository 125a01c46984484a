"""A small SmolVLM with random weights: a directory as transformers saves it, and llama.cpp's two files of the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from PIL import Image
from safetensors.numpy import load_file, save_file
from tokenizers import decoders, models, pre_tokenizers

from glinfer.config import ModelConfig
from glinfer.families import TOWERS
from glinfer.formats import random_checkpoint

Array = np.ndarray[Any, Any]
SIDE, PATCH, SCALE, LONGEST = 32, 4, 2, 64
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
    **TOWERS["siglip"].usual,
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
PROCESSOR = {
    "do_image_splitting": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "max_image_size": {"longest_edge": SIDE},
    "size": {"longest_edge": LONGEST},
    "resample": 1,
}


def weights(seed: int = 7) -> tuple[dict[str, Array], dict[str, Array]]:
    """The tensors of the language model and of the image encoder, under glinfer's names."""
    text, tower = (random_checkpoint(config, seed=seed, scale=0.2).tensors for config in (TEXT, TOWER))
    grown = {name: 1.5 * array if "patch_embedding.weight" in name else array for name, array in tower.items()}
    return dict(text), grown


def write_smolvlm(folder: Path, dtype: str = "float32", seed: int = 7, **config: Any) -> Path:
    """A directory of the model; ``config`` changes settings of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(folder)
    text, tower = weights(seed)
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
        "text_config": {
            "model_type": "llama",
            "vocab_size": TEXT.vocab_size,
            "hidden_size": TEXT.hidden_size,
            "intermediate_size": TEXT.intermediate_size,
            "num_hidden_layers": TEXT.num_hidden_layers,
            "num_attention_heads": TEXT.num_attention_heads,
            "num_key_value_heads": TEXT.num_key_value_heads,
            "head_dim": TEXT.head_dim,
            "max_position_embeddings": TEXT.max_position_embeddings,
            "rms_norm_eps": TEXT.layer_norm_eps,
            "pad_token_id": 0,
            "tie_word_embeddings": False,
        },
        "vision_config": {
            "model_type": "smolvlm_vision",
            "hidden_size": TOWER.hidden_size,
            "intermediate_size": TOWER.intermediate_size,
            "num_hidden_layers": TOWER.num_hidden_layers,
            "num_attention_heads": TOWER.num_attention_heads,
            "image_size": SIDE,
            "patch_size": PATCH,
        },
    }
    (folder / "config.json").write_text(json.dumps({**values, **config}))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 256 + 1}))
    return folder


def _write_tokenizer(folder: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = tokenizers.Tokenizer(models.BPE({text: token for token, text in enumerate(letters)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(CONTROL)
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))


def tensors_of(folder: Path) -> dict[str, Array]:
    """The tensors of a written directory."""
    return dict(load_file(folder / "model.safetensors"))


def picture(width: int = 70, height: int = 50, seed: int = 0) -> Image.Image:
    """An image of smooth colours."""
    random = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)
    return Image.fromarray(random).resize((width, height), Image.Resampling.BICUBIC)


def about(image: object, text: str = "What is it?") -> list[dict[str, Any]]:
    """A conversation of one question about an image."""
    return [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": text}]}]
