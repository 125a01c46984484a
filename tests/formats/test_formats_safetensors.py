"""safetensors: lossless both ways, and every file that is not glinfer's is refused in one line."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_case import each_case
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal_by
from safetensors import safe_open
from safetensors.numpy import save_file

from glinfer.config import ModelConfig
from glinfer.errors import FormatError, InputError
from glinfer.formats import (
    Checkpoint,
    random_checkpoint,
    read_gab,
    read_safetensors,
    save_checkpoint,
    weight_shapes,
    write_gab,
    write_safetensors,
)
from glinfer.formats.packed import PackedTensor
from glinfer.quant.ggml import pack

SMALL = ModelConfig.from_options("vocab=3,dim=2,heads=1,blocks=1,context=2")
FLOATS = 89
ODD_BITS = [0, 0x80000000, 1, 0x807FFFFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFC0BEEF, 0x7F800001]
bits = st.one_of(st.sampled_from(ODD_BITS), st.integers(0, 2**32 - 1))
METADATA = {"format": "glinfer", "config": SMALL.to_json()}


def _tensors() -> dict[str, np.ndarray]:
    return {name: np.full(shape, 1.5, np.float32) for name, shape in weight_shapes(SMALL).items()}


@pytest.fixture
def good(tmp_path: Path) -> Path:
    write_safetensors(random_checkpoint(SMALL), tmp_path / "good.safetensors")
    return tmp_path / "good.safetensors"


@settings(max_examples=15, deadline=None)
@given(st.lists(bits, min_size=FLOATS, max_size=FLOATS))
def test_gab_to_safetensors_to_gab_gives_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, words: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("bits")
    data = struct.pack("<7I", 0x47414231, 1, 3, 2, 1, 1, 2) + np.array(words, "<u4").tobytes()
    (folder / "in.gab").write_bytes(data)
    write_safetensors(read_gab(folder / "in.gab"), folder / "m.safetensors")
    write_gab(read_safetensors(folder / "m.safetensors"), folder / "out.gab")
    assert (folder / "out.gab").read_bytes() == data


def test_other_software_finds_the_usual_names_types_and_metadata(good: Path) -> None:
    checkpoint = random_checkpoint(SMALL)
    with safe_open(good, framework="numpy") as file:
        assert file.metadata() == METADATA
        assert set(file.keys()) == set(weight_shapes(SMALL))
        for name, tensor in checkpoint.tensors.items():
            assert file.get_slice(name).get_dtype() == "F32"
            assert np.array_equal(file.get_tensor(name), tensor)


def test_truncated_and_padded_files_name_both_sizes(good: Path) -> None:
    data = good.read_bytes()
    size, header = len(data), 8 + struct.unpack("<Q", data[:8])[0]
    for length in (header, header + 1, size - 4, size - 1):
        good.write_bytes(data[:length])
        assert refusal_by(read_safetensors, good).startswith(
            f"truncated: found {length} bytes, but its header promises {size}: {size - length} bytes short"
        )
    good.write_bytes(data + b"\0\0\0")
    assert refusal_by(read_safetensors, good).startswith(
        f"padded: found {size + 3} bytes, but its header promises {size}: 3 bytes"
    )
    for length in (0, 1, 7):
        good.write_bytes(data[:length])
        assert refusal_by(read_safetensors, good).startswith(f"found {length} bytes; expected at least the 8")
    for length in (8, 9, header - 1):
        good.write_bytes(data[:length])
        assert refusal_by(read_safetensors, good).startswith(
            f"its first 8 bytes promise a safetensors header of {header - 8} bytes in a file of {length};"
        )


@each_case("length", [2**63, 2**64 - 1, 100_000_001])
def test_a_huge_header_is_refused(good: Path, length: int) -> None:
    with good.open("r+b") as file:
        file.write(struct.pack("<Q", length))
        file.truncate(200_000_000)  # sparse: long enough for the last of the three
    cut = f"its first 8 bytes promise a safetensors header of {length} bytes in a file of 200000000; the file is"
    large = "its header has 100000001 bytes, which exceeds the limit of 100000000"
    assert refusal_by(read_safetensors, good).startswith(cut if length > 200_000_000 else large)


def _raw(path: Path, header: bytes, data: bytes = b"") -> Path:
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


@each_case(
    "header",
    [
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a": 3}',
        b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1099511627776, 1099511627776], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, ' + b"9" * 5000 + b"]}}",
        b'{"__metadata__": {"format": 3}, "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
    ],
)
def test_a_damaged_header_is_one_line(tmp_path: Path, header: bytes) -> None:
    message = refusal_by(read_safetensors, _raw(tmp_path / "m.safetensors", header, bytes(4)))
    assert message.startswith((f"damaged safetensors file of {12 + len(header)} bytes: ", "truncated: ", "padded: "))
    assert message.endswith("get the file again")


def test_a_type_that_the_library_does_not_know_is_not_damage(tmp_path: Path) -> None:
    header = b'{"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}'
    message = refusal_by(read_safetensors, _raw(tmp_path / "m.safetensors", header, bytes(4)))
    assert message == "tensor 'a' is 'F99', which is not supported; convert it first"


@each_case(
    ("metadata", "message"),
    [
        (None, "its metadata has no format and no config; expected format 'glinfer' and a config"),
        ({"format": "pt"}, "its metadata has format 'pt' and no config; expected format 'glinfer'"),
        ({"format": "pt", "config": "{}"}, "its metadata has format 'pt' and a config; expected"),
        ({**METADATA, "config": "{"}, "the config in its metadata describes no possible model: the config"),
        (
            {**METADATA, "config": SMALL.to_json().replace('"vocab_size": 3', '"vocab_size": 0')},
            "the config in its metadata describes no possible model: vocab_size is 0; expected",
        ),
    ],
)
def test_metadata_of_others(tmp_path: Path, metadata: dict[str, str] | None, message: str) -> None:
    save_file(_tensors(), tmp_path / "m.safetensors", metadata)
    assert refusal_by(read_safetensors, tmp_path / "m.safetensors").startswith(message)


@each_case(
    ("changes", "message"),
    [
        ({"lm_head.bias": None}, "tensor 'lm_head.bias' is missing; found 17 tensors, expected 18"),
        (
            {"lm_head.bias": None, "lm_head.biass": np.zeros(3, np.float32)},
            "tensor 'lm_head.bias' is missing (found 'lm_head.biass', the nearest name)",
        ),
        (
            {"transformer.wte.wait": np.zeros(3, np.float32)},
            "unknown tensor 'transformer.wte.wait' (expected 'transformer.wte.weight', the nearest name)",
        ),
        ({"zzz": np.zeros(3, np.float32)}, "unknown tensor 'zzz'; found 19 tensors, expected 18"),
        ({"lm_head.bias": np.zeros(4, np.float32)}, "tensor 'lm_head.bias' has shape [4]; expected [3]"),
        (
            {"lm_head.bias": np.zeros(3, np.int32)},
            "tensor 'lm_head.bias' is I32, which is not supported; expected float32",
        ),
    ],
)
def test_wrong_tensors(tmp_path: Path, changes: dict[str, np.ndarray | None], message: str) -> None:
    tensors = {name: tensor for name, tensor in {**_tensors(), **changes}.items() if tensor is not None}
    save_file(tensors, tmp_path / "m.safetensors", METADATA)
    assert refusal_by(read_safetensors, tmp_path / "m.safetensors").startswith(message)


def taken_to_read(config: ModelConfig, path: Path, dtype: str = "float32") -> float:
    """The most memory that reading a model takes, over the size of its file."""
    write_safetensors(random_checkpoint(config), path, dtype=dtype)
    tracemalloc.start()
    try:
        read_safetensors(path)
        return tracemalloc.get_traced_memory()[1] / path.stat().st_size
    finally:
        tracemalloc.stop()


def test_reading_takes_no_more_memory_than_the_file_or_next_to_none(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    assert taken_to_read(ModelConfig(9_000, 256, 4, 2, 16), path) < 1.25
    shape: Any = {"model_type": "gift_of_gab", "hidden_act": "gelu", "tie_word_embeddings": True}
    for dtype in ("float32", "float16"):
        assert taken_to_read(ModelConfig(9_000, 256, 4, 2, 16, **shape), path, dtype) < 0.2


def test_float16_takes_half_the_space_and_reads_back_rounded(tmp_path: Path) -> None:
    checkpoint = random_checkpoint(SMALL, seed=3)
    write_safetensors(checkpoint, tmp_path / "half.safetensors", dtype="float16")
    write_safetensors(checkpoint, tmp_path / "whole.safetensors")
    loaded = read_safetensors(tmp_path / "half.safetensors")
    for name, tensor in checkpoint.tensors.items():
        assert loaded.tensors[name].dtype == np.float32
        np.testing.assert_array_equal(loaded.tensors[name], tensor.astype(np.float16).astype(np.float32))
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("half", "whole")]
    assert abs(sizes[1] - sizes[0] - 2 * checkpoint.parameter_count) < 64  # the headers differ a little


def test_float16_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    checkpoint = random_checkpoint(SMALL)
    tensors = {**checkpoint.tensors, "lm_head.bias": checkpoint.tensors["lm_head.bias"] + np.float32(70000)}
    large = Checkpoint(SMALL, tensors, "large numbers")
    with pytest.raises(FormatError, match=r"'lm_head.bias' has numbers beyond 65504"):
        write_safetensors(large, tmp_path / "half.safetensors", dtype="float16")
    with pytest.raises(InputError, match=r"dtype is 'int8'; expected one of float32, float16"):
        write_safetensors(checkpoint, tmp_path / "half.safetensors", dtype="int8")
    with pytest.raises(InputError, match=r"holds float32, not float16"):
        save_checkpoint(checkpoint, tmp_path / "half.gab", dtype="float16")
    assert list(tmp_path.iterdir()) == []


SHAPE: dict[str, Any] = {"vocab_size": 9, "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}
SHAPE |= {"max_position_embeddings": 16, "intermediate_size": 64}
LLAMA: dict[str, Any] = {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True, "rope_theta": 500000.0}
SCALING: Any = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
WINDOWS: dict[str, Any] = {"num_key_value_heads": 2, "sliding_window": 4, "max_window_layers": 1}
FAMILIES = [
    ModelConfig(**SHAPE, **LLAMA, hidden_act="silu", model_type="llama", rope_scaling=SCALING),
    ModelConfig(**SHAPE, model_type="gemma", tie_word_embeddings=True, head_dim=10, layer_norm_eps=1e-6),
    ModelConfig(**SHAPE, hidden_act="gelu", model_type="gift_of_gab", tie_word_embeddings=True, mlp_bias=True),
    ModelConfig(**SHAPE, **WINDOWS, hidden_act="silu", model_type="mistral"),
]
families = each_case("config", FAMILIES)


def _is_mapped(tensor: object) -> bool:
    while isinstance(tensor, np.ndarray) and not isinstance(tensor, np.memmap):
        tensor = tensor.base
    return isinstance(tensor, np.memmap)


@families
def test_every_family_keeps_its_configuration_and_bits(tmp_path: Path, config: ModelConfig) -> None:
    checkpoint = random_checkpoint(config, seed=2)
    write_safetensors(checkpoint, tmp_path / "m.safetensors")
    loaded = read_safetensors(tmp_path / "m.safetensors")
    assert loaded.config == config
    assert list(loaded.tensors) == list(weight_shapes(config))
    assert not loaded.packed
    for name, tensor in checkpoint.tensors.items():
        assert loaded.tensors[name].dtype == np.float32
        assert loaded.tensors[name].tobytes() == tensor.tobytes()
        assert _is_mapped(loaded.tensors[name])
        assert not loaded.tensors[name].flags.writeable


@families
def test_float16_matrices_of_rotary_families_stay_as_they_are(tmp_path: Path, config: ModelConfig) -> None:
    checkpoint = random_checkpoint(config, seed=2)
    write_safetensors(checkpoint, tmp_path / "half.safetensors", dtype="float16")
    loaded = read_safetensors(tmp_path / "half.safetensors")
    shapes = weight_shapes(config)
    assert set(loaded.packed) == {name for name, shape in shapes.items() if len(shape) == 2}
    assert set(loaded.tensors) == {name for name, shape in shapes.items() if len(shape) == 1}
    for name, tensor in checkpoint.tensors.items():
        assert loaded.floats(name).dtype == np.float32
        np.testing.assert_array_equal(loaded.floats(name), tensor.astype(np.float16).astype(np.float32))
    for name, packed in loaded.packed.items():
        assert (packed.format, packed.shape) == ("F16", shapes[name])
        assert _is_mapped(packed.blocks)
    write_safetensors(loaded, tmp_path / "half.safetensors", dtype="float16")  # over the file that is mapped
    again = read_safetensors(tmp_path / "half.safetensors")
    assert {name: packed.blocks.tobytes() for name, packed in again.packed.items()} == {
        name: packed.blocks.tobytes() for name, packed in loaded.packed.items()
    }


@each_case("form", ["Q8_0", "Q4_0", "BF16", "Q8_ROW", "Q16_ROW", "F16"])
def test_packed_tensors_are_written_unpacked(tmp_path: Path, form: str) -> None:
    config, name = FAMILIES[0], "model.layers.1.mlp.down_proj.weight"
    tensors = dict(random_checkpoint(config).tensors)
    matrix = tensors.pop(name)
    blocks = matrix.astype("<f2").view(np.uint8) if form == "F16" else pack(matrix, form)
    packed = PackedTensor(form, blocks)
    checkpoint = Checkpoint(config, tensors, "packed", {name: packed})
    write_safetensors(checkpoint, tmp_path / "m.safetensors")
    np.testing.assert_array_equal(read_safetensors(tmp_path / "m.safetensors").tensors[name], packed.floats())
    write_safetensors(checkpoint, tmp_path / "half.safetensors", dtype="float16")
    halves = read_safetensors(tmp_path / "half.safetensors").packed[name].halves()
    np.testing.assert_array_equal(halves, packed.floats().astype(np.float16))


@each_case("dtype", ["float32", "float16"])
def test_gpt2_and_gab_are_float32_in_memory(tmp_path: Path, dtype: str) -> None:
    for config in (SMALL, ModelConfig(9, 32, 4, 2, 16, model_type="gpt2", tie_word_embeddings=True)):
        write_safetensors(random_checkpoint(config), tmp_path / "m.safetensors", dtype=dtype)
        loaded = read_safetensors(tmp_path / "m.safetensors")
        assert (loaded.config, set(loaded.tensors), dict(loaded.packed)) == (config, set(weight_shapes(config)), {})
        assert {tensor.dtype for tensor in loaded.tensors.values()} == {np.dtype(np.float32)}


def test_files_from_before_the_rotary_families_still_load(tmp_path: Path) -> None:
    sizes = {"vocab_size": 3, "hidden_size": 2, "num_attention_heads": 1, "num_hidden_layers": 1}
    sizes |= {"max_position_embeddings": 2, "intermediate_size": 8}
    old = {
        **sizes,
        "layer_norm_eps": 1e-05,
        "hidden_act": "gelu_new",
        "model_type": "gab",
        "tie_word_embeddings": False,
    }
    save_file(_tensors(), tmp_path / "m.safetensors", {"format": "glinfer", "config": json.dumps(old)})
    assert read_safetensors(tmp_path / "m.safetensors").config == SMALL
    assert json.loads(SMALL.to_json()) == old  # and what is written now can be read by what was there before
