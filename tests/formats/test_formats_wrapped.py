"""Models of texts and pictures, of which the part that continues texts is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_case import each_case
from goldens.models import MODELS, Made, model_tensors, save_tensors, write_model

import glinfer
from glinfer.errors import FormatError
from glinfer.formats import load_checkpoint
from glinfer.formats.huggingface.config import read_config

MADE = MODELS["gemma3"]
PICTURES = {"vision_config": {"hidden_size": 8, "model_type": "siglip_vision_model"}, "image_token_index": 5}
NAMED = {"as the first files have it": ("language_model.", ""), "as transformers 5 saves it": ("", "language_model.")}


def wrapped(folder: Path, before: str, inside: str, **changes: Any) -> Path:
    """The model as a part of another one, which has matrices for pictures too."""
    plain = write_model(MADE, folder / "plain")
    tensors = model_tensors(Made(MADE.settings, MADE.seed), plain / "config.json")
    renamed = {before + name.replace("model.", f"model.{inside}", 1): tensor for name, tensor in tensors.items()}
    around = "model." if inside else ""
    for name in ("vision_tower.encoder.weight", "multi_modal_projector.norm.weight"):
        renamed[around + name] = np.ones((3, 4), np.float32)
    made = folder / "wrapped"
    made.mkdir()
    settings = {"model_type": "gemma3", "text_config": MADE.settings, **PICTURES, **changes}
    (made / "config.json").write_text(json.dumps({name: each for name, each in settings.items() if each is not ...}))
    save_tensors(renamed, made / "model.safetensors")
    return made


@each_case("names", NAMED.values())
def test_the_part_is_the_model_that_it_would_be_alone(tmp_path: Path, names: tuple[str, str]) -> None:
    found = load_checkpoint(wrapped(tmp_path, *names))
    alone = load_checkpoint(tmp_path / "plain")
    assert found.config == alone.config
    assert found.config.model_type == "gemma3_text"
    assert found.tensors.keys() == alone.tensors.keys()
    assert all(np.array_equal(found.tensors[name], alone.tensors[name]) for name in alone.tensors)


@each_case(
    ("whole", "own", "tied"), [(True, False, True), (False, True, False), (None, True, True), (None, None, False)]
)
def test_the_head_is_tied_as_the_whole_or_else_the_part_says(
    tmp_path: Path, whole: bool | None, own: bool | None, tied: bool
) -> None:
    text = {**MADE.settings, "model_type": "mistral", "tie_word_embeddings": own}
    settings = {"model_type": "mistral3", "text_config": text, "tie_word_embeddings": whole}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    assert read_config(tmp_path / "config.json").tie_word_embeddings is tied


def test_what_is_missing_or_too_much_is_named(tmp_path: Path) -> None:
    folder = wrapped(tmp_path, "language_model.", "", text_config=...)
    with pytest.raises(FormatError, match="model_type is 'gemma3' and text_config is None; expected the settings of"):
        load_checkpoint(folder)
    settings = {"model_type": "gemma3", "text_config": MADE.settings, "quantization_config": {"bits": 4}}
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(FormatError, match="quantization_config is set"):
        load_checkpoint(folder)
    (folder / "config.json").write_text(json.dumps({**settings, "quantization_config": None}))
    save_tensors({"language_model.model.other.weight": np.ones((2, 2), np.float32)}, folder / "model.safetensors")
    with pytest.raises(FormatError, match="found 1 tensors"):
        load_checkpoint(folder)


SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
         "image_size": 28, "patch_size": 14}  # fmt: skip
WHOLES = {
    "gemma3": ("Gemma3", {"vision_config": SMALL, "mm_tokens_per_image": 4}),
    "mistral": ("Mistral3", {"vision_config": {**SMALL, "model_type": "pixtral", "head_dim": 8}}),
    "ministral3": ("Mistral3", {"vision_config": {**SMALL, "model_type": "pixtral", "head_dim": 8}}),
    "qwen3_vl": (
        "Qwen3VL",
        {
            "vision_config": {
                **{"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 60},
                **{"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
            },
            "tie_word_embeddings": True,
        },
    ),
}
"""The class of a whole model in transformers, and its settings besides those of the text, by the text's model."""


@pytest.mark.slow
@pytest.mark.gl
@pytest.mark.parametrize("name", WHOLES)
def test_the_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    """Of a model that transformers itself has made and saved."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (make test-all installs it)")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (make test-all)")
    kind, more = WHOLES[name]
    config = getattr(transformers, f"{kind}Config")(text_config=dict(MODELS[name].settings), **more)
    torch.manual_seed(3)
    peer = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    for weight in peer.parameters():  # so that attention is sharp
        weight.data *= 6 if weight.dim() > 1 else 1
    peer.save_pretrained(tmp_path)
    ids = [5, 80, 3, 140, 9, 77, 12] * 5
    with torch.no_grad():
        expected = peer(torch.tensor([ids])).logits[0, -1].double().numpy()
    with glinfer.load(tmp_path) as model:
        assert np.abs(model.logits(ids) - expected).max() <= 1e-4 * np.ptp(expected)
