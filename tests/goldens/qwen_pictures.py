"""A small Qwen3-VL with random weights: a directory as transformers saves it, and llama.cpp's file of its encoder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from glinfer.config import ModelConfig
from glinfer.families import TOWERS
from glinfer.families.names import Names
from glinfer.formats import random_checkpoint
from glinfer.graph.model import graph_of

from .models import DELTA, Made, model_tensors
from .pictures import Array, clip_sizes, settings_of, text_settings, write_clip, write_settings, write_tokenizer

PATCH, SCALE, SEED, DEEP = 4, 2, 7, (0, 2)
SECTIONS = (4, 2, 2)
ROPE = {"rope_type": "default", "mrope_section": SECTIONS, "mrope_interleaved": True}
QWEN35: dict[str, Any] = {
    **DELTA,
    "linear_value_head_dim": 16,
    "model_type": "qwen3_5_text",
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "head_dim": 32,
    "rope_parameters": {"rope_theta": 1e5, "partial_rotary_factor": 0.5, **ROPE},
}
"""Settings of the language model of a Qwen 3.5, beside those of a Qwen3-VL."""
TEXT = ModelConfig(
    320,
    64,
    4,
    4,
    640,
    96,
    1e-6,
    "silu",
    "qwen3_vl_text",
    num_key_value_heads=2,
    head_dim=16,
    rope_theta=5e5,
    tie_word_embeddings=False,
)
TOWER = ModelConfig(
    25,
    48,
    4,
    3,
    4096,
    80,
    1e-6,
    model_type="qwen3_vl_vision",
    patch_size=PATCH,
    patches_per_token=SCALE**2,
    deepstack_layers=DEEP,
    dense=((192, True, "gelu"), (64, True, "none")) * (1 + len(DEEP)),
    **TOWERS["qwen3_vl_vision"].options,
)
CONTROL = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
PAD = 256 + CONTROL.index("<|image_pad|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.content is string %}"
    "{{ message.content }}{% else %}{% for part in message.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen's own without tools and thinking."""
QWEN_SIZES = [(70, 50), (30, 90), (8, 8), (200, 10), (9, 33), (300, 200)]
"""Widths and heights of images, some smaller and some larger than the limits."""
PROCESSOR = {
    "size": {"shortest_edge": 512, "longest_edge": 2048},
    "patch_size": PATCH,
    "temporal_patch_size": 2,
    "merge_size": SCALE,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def weights() -> tuple[dict[str, Array], dict[str, Array]]:
    """The tensors of the language model and of the image encoder, under glinfer's names."""
    text, tower = (random_checkpoint(config, seed=SEED, scale=0.2).tensors for config in (TEXT, TOWER))
    return dict(text), dict(tower)


def write_qwen3_vl(folder: Path, dtype: str = "float32", **config: Any) -> Path:
    """A directory of the model; ``config`` changes settings of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, CONTROL, TEMPLATE)
    text, tower = weights()
    tensors = {name.replace("model.", "model.language_model.", 1): array for name, array in text.items()}
    tensors |= {f"model.{name}": each for name, each in joined(tower, TOWERS["qwen3_vl_vision"].in_huggingface.names)}
    save_file({name: np.ascontiguousarray(each, dtype) for name, each in tensors.items()}, folder / "model.safetensors")
    values = {
        "model_type": "qwen3_vl",
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "image_token_id": PAD,
        "video_token_id": PAD + 1,
        "vision_start_token_id": PAD - 2,
        "vision_end_token_id": PAD - 1,
        "tie_word_embeddings": False,
        "text_config": text_settings(TEXT, rope_parameters={"rope_theta": TEXT.rope_theta, **ROPE}),
        "vision_config": {
            **settings_of(TOWER, "model_type", "hidden_size", "intermediate_size", "patch_size"),
            "depth": TOWER.num_hidden_layers,
            "num_heads": TOWER.num_attention_heads,
            "spatial_merge_size": SCALE,
            "temporal_patch_size": 2,
            "out_hidden_size": TEXT.hidden_size,
            "num_position_embeddings": TOWER.vocab_size,
            "deepstack_visual_indexes": DEEP,
        },
    }
    return write_settings(folder, {**values, **config}, PROCESSOR)


def write_qwen3_5(folder: Path) -> Path:
    """A directory of a Qwen 3.5 with the same encoder, without its further vectors."""
    path, tensors = write_qwen3_vl(folder) / "model.safetensors", dict[str, Array]()
    values = json.loads((folder / "config.json").read_text())
    values |= {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"]}
    values["text_config"] = {**values["text_config"], **QWEN35}
    values["vision_config"]["model_type"] = "qwen3_5_vision"
    del values["vision_config"]["deepstack_visual_indexes"]
    (folder / "config.json").write_text(json.dumps(values))
    for name, array in model_tensors(Made(values["text_config"], seed=12), folder / "config.json").items():
        tensors[name.replace("model.", "model.language_model.", 1)] = array
    tensors |= {name: array for name, array in load_file(path).items() if ".visual." in name}
    save_file({name: each for name, each in tensors.items() if "deepstack" not in name}, path)
    return folder


def joined(tower: dict[str, Array], names: Names | None) -> Iterator[tuple[str, Array]]:
    """The encoder's tensors as files with these names have them: attention's three projections in one."""
    assert names is not None
    found: dict[str, list[Array]] = {}
    for tensor in graph_of(TOWER).tensors():
        found.setdefault(tensor.name(names), []).append(tower[tensor.name(TOWER.family.names)])
    for name, parts in found.items():
        array = np.concatenate(parts)
        yield name, array.reshape(-1, 3, 2, PATCH, PATCH) if array.shape == (48, 96) else array


def write_mmproj(path: Path, dtype: str = "float16", **changes: object) -> Path:
    """llama.cpp's file of the image encoder; ``changes`` are metadata by the end of their key, None for none."""
    keys: dict[str, Any] = {
        **clip_sizes(TOWER, TEXT),
        "projector_type": "qwen3vl_merger",
        "vision.image_size": PATCH * 5,
        "vision.spatial_merge_size": SCALE,
        "vision.is_deepstack_layers": [layer in DEEP for layer in range(TOWER.num_hidden_layers)],
        "vision.image_min_pixels": PROCESSOR["size"]["shortest_edge"],  # type: ignore[index]
        "vision.image_max_pixels": PROCESSOR["size"]["longest_edge"],  # type: ignore[index]
        **changes,
    }
    tensors = list[tuple[str, Array]]()
    further = any(keys["vision.is_deepstack_layers"])
    for inner, array in joined(weights()[1], TOWERS["qwen3_vl_vision"].in_gguf.names):
        if "deepstack" in inner and not further:
            continue
        start, _, rest = inner.partition("v.deepstack.")
        name = f"v.deepstack.{DEEP[int(rest[0])]}{rest[1:]}" if rest else start
        kind = dtype if array.ndim > 1 and name != "v.position_embd.weight" else "float32"
        frames = [array] if array.ndim < 5 else [array[:, :, 0], array[:, :, 1]]
        for number, each in enumerate(frames):
            tensors.append((name + (".1" if number else ""), np.ascontiguousarray(each, kind)))
    return write_clip(path, keys, tensors)
