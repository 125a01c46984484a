"""The figures of a Qwen3-VL and a Qwen 3.5 with images, as transformers computes them; see record.py."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.utils.chat_template_utils import render_jinja_template

from . import digest
from .figures import Figures
from .pictures import Array, picture
from .qwen_pictures import PAD, PROCESSOR, QWEN_SIZES, SCALE, TEMPLATE, write_qwen3_vl


def images(
    greedy: Callable[..., list[int]], count: int, write: Callable[[Path], Path] = write_qwen3_vl
) -> dict[str, Any]:
    """Shapes and pixels of images, rows of the encoder, and logits over a prompt and a greedy reply of ``count``."""
    processor, pieces = Qwen2VLImageProcessorPil(**PROCESSOR), {}
    for size in QWEN_SIZES:
        made = processor([picture(*size)], return_tensors="np")
        pixels = made["pixel_values"][::7, ::11].reshape(-1)[:40].tolist()
        pieces["x".join(map(str, size))] = {"grid": made["image_grid_thw"][0].tolist(), "pixels": pixels}
    with tempfile.TemporaryDirectory() as made:
        path = write(Path(made))
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
        peer = transformers.AutoModelForImageTextToText.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        assert not any(peer[1].values()), peer[1]
        model, sha256 = peer[0].eval(), digest(path / "model.safetensors")
    made = processor([picture(), picture(30, 90, 3)], return_tensors="pt")
    grids, pixels = made["image_grid_thw"], made["pixel_values"]
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "A"}] * 2}]
    rendered, *others = render_jinja_template([messages], chat_template=TEMPLATE, add_generation_prompt=True)[0][
        0
    ].split("<|image_pad|>")
    for grid, text in zip(grids, others, strict=True):
        rendered += "<|image_pad|>" * (int(grid.prod()) // SCALE**2) + text

    def logits_of(ids: list[int]) -> Array:
        given = torch.tensor([ids])
        how = {"pixel_values": pixels, "image_grid_thw": grids, "mm_token_type_ids": (given == PAD).int()}
        with torch.no_grad():
            return np.asarray(model(given, **how).logits[0].double().numpy())

    with torch.no_grad():
        seen = model.model.get_image_features(pixels, grids, return_dict=True)
    rows = [torch.cat([*seen.pooler_output]), *(torch.cat([*each]) for each in seen.get("deepstack_features", []))]
    start = tokenizer(rendered, add_special_tokens=False)["input_ids"]
    figures = Figures.of(ids := greedy(logits_of, start, count), logits_of(ids)).to_json()
    seen = [each[::5, ::7].reshape(-1).tolist() for each in rows]
    return {"pieces": pieces, "seen": seen, "prompt": len(start), "sha256": sha256, **figures}
