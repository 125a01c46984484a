"""BitNet directories: ternary matrices from floats and from packed bytes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens.models import MODELS, Made, write_model
from safetensors.numpy import load_file, save_file

from glinfer.errors import FormatError
from glinfer.formats import Checkpoint, load_checkpoint

SETTINGS = {**MODELS["bitnet"].settings, "intermediate_size": 104}
QUERIES = "model.layers.1.self_attn.q_proj.weight"
Array = np.ndarray[Any, Any]


def floats(made: Checkpoint) -> dict[str, Array]:
    return {**made.tensors, **{name: each.floats() for name, each in made.packed.items()}}


def scaled(weights: Array) -> tuple[Array, np.float32]:
    scale = np.float32(np.abs(weights).mean(dtype=np.float64))
    return np.clip(np.rint(weights / scale), -1, 1), scale


def write_packed(folder: Path, **changes: Array) -> Path:
    """The same model with four weights a byte, rows of quarters of a matrix in the bits of one row."""
    found: dict[str, Array] = {}
    for name, weights in load_file(write_model(Made(SETTINGS, seed=3), folder) / "model.safetensors").items():
        found[name] = weights
        if "proj" in name:
            levels, scale = scaled(weights)
            quarters = (levels + 1).astype(np.uint8).reshape(4, -1, weights.shape[1])
            found[name] = quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6
            found[f"{name}_scale"] = np.array([scale], np.float32)
    save_file({**found, **changes}, folder / "model.safetensors")
    settings = {**SETTINGS, "quantization_config": {**SETTINGS["quantization_config"], "quantization_mode": "offline"}}
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def test_packed_weights_are_those_of_floats(tmp_path: Path) -> None:
    given = load_file(write_model(Made(SETTINGS, seed=3), tmp_path / "floats") / "model.safetensors")
    made = floats(load_checkpoint(tmp_path / "floats"))
    packed = floats(load_checkpoint(write_packed(tmp_path / "packed")))
    assert made.keys() == packed.keys() == given.keys()
    for name, weights in given.items():
        levels, scale = scaled(weights)
        expected = levels * scale if "proj" in name else weights
        assert np.array_equal(packed[name], expected), name
        assert np.allclose(made[name], expected, rtol=1e-6, atol=0), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_scales_of_half_precision_are_rounded_to_the_files_type(tmp_path: Path, dtype: str) -> None:
    made = load_checkpoint(write_model(Made(SETTINGS, seed=3, dtype=dtype), tmp_path / "model"))
    matrix, form = made.packed[QUERIES], {"bfloat16": "BF16", "float16": "F16"}[dtype]
    assert matrix.format == form
    wide = floats(load_checkpoint(write_model(Made(SETTINGS, seed=3), tmp_path / "wide")))[QUERIES]
    assert len(np.unique(matrix.floats())) == 3
    assert np.isclose(matrix.floats(), wide, rtol=2**-7, atol=0).mean() > 0.99  # others lie between two levels
    assert np.array_equal(matrix.piece(5, 9), matrix.blocks[5:9])


def test_damaged_packed_weights_are_refused(tmp_path: Path) -> None:
    whole = np.zeros((60, 60), np.float32)
    for number, (changes, words) in enumerate(
        [
            (
                {QUERIES: whole},
                "is F32 [60, 60] and its scale is F32 [1]; expected U8 [rows / 4, inputs]",
            ),
            ({f"{QUERIES}_scale": np.ones(60, np.float32)}, "and its scale is F32 [60]; expected U8"),
            ({QUERIES: np.zeros((16, 60), np.uint8)}, "has shape [64, 60]; expected [60, 60]"),
        ]
    ):
        with pytest.raises(FormatError) as caught:
            load_checkpoint(write_packed(tmp_path / str(number), **changes))
        assert words in str(caught.value)
