"""BitNet directories: ternary matrices from floats and from packed bytes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens.gguf_models import CONFIGS, IDS
from goldens.llama import llama_logits
from goldens.models import MODELS, Made, write_model
from safetensors.numpy import load_file, save_file

import glinfer
from glinfer.errors import FormatError
from glinfer.formats import Checkpoint, load_checkpoint, random_checkpoint, write_gguf

SETTINGS = {**MODELS["bitnet"].settings, "intermediate_size": 104}

QUERIES = "model.layers.1.self_attn.q_proj.weight"
Array = np.ndarray[Any, Any]


def floats(made: Checkpoint) -> dict[str, Array]:
    return {**made.tensors, **{name: each.floats() for name, each in made.packed.items()}}


def scaled(weights: Array) -> tuple[Array, np.float32]:
    scale = np.float32(np.abs(weights).mean(dtype=np.float64))
    return np.clip(np.rint(weights / scale), -1, 1), scale


def write_packed(folder: Path, given: dict[str, Any] = SETTINGS, **changes: Array) -> Path:
    """The same model with four weights a byte, rows of quarters of a matrix in the bits of one row."""
    found: dict[str, Array] = {}
    for name, weights in load_file(write_model(Made(given, seed=3), folder) / "model.safetensors").items():
        found[name] = weights
        if "proj" in name:
            levels, scale = scaled(weights)
            quarters = (levels + 1).astype(np.uint8).reshape(4, -1, weights.shape[1])
            found[name] = quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6
            found[f"{name}_scale"] = np.array([scale], np.float32)
    save_file({**found, **changes}, folder / "model.safetensors")
    settings = {**given, "quantization_config": {**given["quantization_config"], "quantization_mode": "offline"}}
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


def test_a_gguf_file_has_the_weights_and_the_activation_of_a_directory(tmp_path: Path) -> None:
    tied = {**SETTINGS, "tie_word_embeddings": True}
    for folder in (write_packed(tmp_path, tied), write_model(Made(tied, seed=3), tmp_path)):
        made = load_checkpoint(folder)
        write_gguf(made, tmp_path / "m.gguf", dtype="float32")
        found = load_checkpoint(tmp_path / "m.gguf")
        assert found.config == made.config
        assert found.config.hidden_act == "relu2"
        expected = floats(made)
        assert found.tensors.keys() == expected.keys()
        assert all(np.array_equal(found.tensors[name], weights) for name, weights in expected.items())
    with pytest.raises(FormatError, match=r"hidden_activation is 'gelu9', which is not supported; expected one of rel"):
        load_checkpoint(renamed(tmp_path / "m.gguf", b"relu2", b"gelu9"))


@pytest.mark.slow
def test_a_gguf_file_without_an_activation_has_that_of_llama_cpp(tmp_path: Path) -> None:
    """Which knows no other up to llama-cpp-python 0.3.36, and does not round; ReLU squared differs by a quarter."""
    write_gguf(random_checkpoint(CONFIGS["bitnet"], seed=5, scale=0.1), tmp_path / "m.gguf", dtype="float32")
    path = renamed(tmp_path / "m.gguf", b"hidden_activation", b"other_activation_")
    theirs = llama_logits(path, IDS)[-1]
    with glinfer.load(path, executor="numpy") as model:
        assert np.abs(model.logits(IDS) - theirs).max() < 0.02 * np.ptp(theirs)


def renamed(path: Path, old: bytes, new: bytes) -> Path:
    """The file with other bytes in place of some of its metadata."""
    path.write_bytes(path.read_bytes().replace(old, new))
    return path


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
