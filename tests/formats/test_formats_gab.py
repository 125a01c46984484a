"""GAB1: the bytes mean what the format says, and every damaged file is refused in one line."""

from __future__ import annotations

import re
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from each_case import each_case
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal_by

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.formats import Checkpoint, random_checkpoint, read_gab, weight_shapes, write_gab

SMALL = ModelConfig.from_options("vocab=3,dim=2,heads=1,blocks=1,context=2")
MAGIC = 0x47414231
FLOATS = 6 + 4 + (2 + 2 + 16 + 2 + 2 + 24 + 18) + 2 + 2 + 6 + 3
SIZE = 28 + 4 * FLOATS
# Ordinary, extreme and odd floats: both zeros, denormals, infinities, quiet and signalling NaNs with payloads.
ODD_BITS = [0, 0x80000000, 1, 0x807FFFFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFC0BEEF, 0x7F800001]
bits = st.one_of(st.sampled_from(ODD_BITS), st.integers(0, 2**32 - 1))


def _file(floats: np.ndarray, header: tuple[int, ...] = (MAGIC, 1, 3, 2, 1, 1, 2)) -> bytes:
    return struct.pack("<7I", *header) + floats.tobytes()


def _good() -> bytes:
    return _file(np.arange(FLOATS, dtype="<f4"))


def _refusal(tmp_path: Path, data: bytes) -> str:
    return refusal_by(read_gab, tmp_path / "bad.gab", data)


def test_every_array_is_where_the_format_says(tmp_path: Path) -> None:
    (tmp_path / "m.gab").write_bytes(_good())
    checkpoint = read_gab(tmp_path / "m.gab")
    assert checkpoint.config == SMALL
    assert checkpoint.config.hidden_act == "gelu_new"
    tensors = {name: tensor.tolist() for name, tensor in checkpoint.tensors.items()}
    assert list(tensors) == list(weight_shapes(SMALL))
    block = "transformer.h.0"
    assert tensors["transformer.wte.weight"] == [[0, 1], [2, 3], [4, 5]]
    assert tensors["transformer.wpe.weight"] == [[6, 7], [8, 9]]
    assert tensors[f"{block}.ln_1.weight"] == [10, 11]
    assert tensors[f"{block}.ln_1.bias"] == [12, 13]
    assert tensors[f"{block}.attn.q_proj.weight"] == [[14, 16], [15, 17]]  # stored [in, out]
    assert tensors[f"{block}.attn.k_proj.weight"] == [[18, 20], [19, 21]]
    assert tensors[f"{block}.attn.v_proj.weight"] == [[22, 24], [23, 25]]
    assert tensors[f"{block}.attn.out_proj.weight"] == [[26, 28], [27, 29]]
    assert tensors[f"{block}.ln_2.weight"] == [30, 31]
    assert tensors[f"{block}.ln_2.bias"] == [32, 33]
    assert tensors[f"{block}.mlp.fc_in.weight"] == [[34 + 3 * i, 35 + 3 * i] for i in range(8)]
    assert tensors[f"{block}.mlp.fc_in.bias"] == [36 + 3 * i for i in range(8)]  # a row's bias follows it
    assert tensors[f"{block}.mlp.fc_out.weight"] == [[58 + 9 * i + j for j in range(8)] for i in range(2)]
    assert tensors[f"{block}.mlp.fc_out.bias"] == [66, 75]
    assert tensors["transformer.ln_f.weight"] == [76, 77]
    assert tensors["transformer.ln_f.bias"] == [78, 79]
    assert tensors["lm_head.weight"] == [[80, 83], [81, 84], [82, 85]]  # stored [in, out]
    assert tensors["lm_head.bias"] == [86, 87, 88]


def test_tensors_are_read_only_views_of_the_file(tmp_path: Path) -> None:
    config = ModelConfig(1000, 64, 2, 2, 100)
    write_gab(random_checkpoint(config), tmp_path / "m.gab")
    tracemalloc.start()
    try:
        checkpoint = read_gab(tmp_path / "m.gab")
        assert tracemalloc.get_traced_memory()[1] < (tmp_path / "m.gab").stat().st_size / 4
    finally:
        tracemalloc.stop()
    for tensor in checkpoint.tensors.values():
        assert type(tensor) is np.ndarray
        assert tensor.dtype == np.float32
        assert not tensor.flags.writeable
        assert not tensor.flags.owndata


@settings(max_examples=15, deadline=None)
@given(st.lists(bits, min_size=FLOATS, max_size=FLOATS))
def test_any_bit_pattern_survives_a_round_trip(tmp_path_factory: pytest.TempPathFactory, words: list[int]) -> None:
    folder = tmp_path_factory.mktemp("bits")
    data = _file(np.array(words, "<u4"))
    (folder / "in.gab").write_bytes(data)
    write_gab(read_gab(folder / "in.gab"), folder / "out.gab")
    assert (folder / "out.gab").read_bytes() == data


def test_a_file_can_be_written_over_itself(tmp_path: Path) -> None:
    path = tmp_path / "m.gab"
    path.write_bytes(_good())
    checkpoint = read_gab(path)
    write_gab(checkpoint, path)
    assert path.read_bytes() == _good()
    assert checkpoint.tensors["lm_head.bias"].tolist() == [86, 87, 88]  # still mapped


def test_files_of_a_wrong_size_name_both_sizes(tmp_path: Path) -> None:
    for length in (0, 1, 4, 27):
        assert _refusal(tmp_path, _good()[:length]).startswith(f"found {length} bytes; expected at least the 28")
    for length in (28, 29, 32, 28 + 4 * 34, SIZE - 4, SIZE - 1):
        promised = f"truncated: found {length} bytes, but its header promises {SIZE}: {SIZE - length} bytes short"
        assert _refusal(tmp_path, _good()[:length]).startswith(promised)
    for extra in (1, 1000):
        promised = f"padded: found {SIZE + extra} bytes, but its header promises {SIZE}: {extra} bytes too long"
        assert _refusal(tmp_path, _good() + bytes(extra)).startswith(promised)


def test_wrong_magic_or_version_names_found_and_expected(tmp_path: Path) -> None:
    for version in (0, 2, 0x01000000):
        data = _file(np.zeros(FLOATS, "<f4"), (MAGIC, version, 3, 2, 1, 1, 2))
        assert _refusal(tmp_path, data).startswith(f"GAB version is {version}, which is not supported; expected 1")
    big_endian = struct.pack(">I", MAGIC) + _good()[4:]
    assert _refusal(tmp_path, big_endian).startswith("magic is 0x31424147; expected 0x47414231")
    assert _refusal(tmp_path, bytes(28)).startswith("magic is 0x00000000; expected 0x47414231")


@each_case(
    ("numbers", "message"),
    [
        ((0, 2, 1, 1, 2), "vocab_size is 0; expected"),
        ((3, 2, 0, 1, 2), "num_attention_heads is 0; expected"),
        ((3, 2, 1, 1, 0), "max_position_embeddings is 0; expected"),
        ((3, 512, 7, 1, 2), "hidden_size 512 is not a multiple of num_attention_heads 7"),
        ((0xFFFFFFFF, 2, 1, 1, 2), "vocab_size is 4294967295; expected"),
    ],
)
def test_impossible_configuration(tmp_path: Path, numbers: tuple[int, ...], message: str) -> None:
    refusal = _refusal(tmp_path, _file(np.zeros(FLOATS, "<f4"), (MAGIC, 1, *numbers)))
    assert refusal.startswith(f"its header describes no possible model: {message}")


def test_a_huge_header_is_refused_by_size_alone(tmp_path: Path) -> None:
    numbers = (1 << 24, 1 << 22, 1, 1 << 24, 1 << 24)
    tracemalloc.start()
    try:
        message = _refusal(tmp_path, _file(np.zeros(FLOATS, "<f4"), (MAGIC, 1, *numbers)))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    promised = int(message.split("promises ")[1].split(":")[0])
    assert promised > 1 << 72  # far beyond 64 bits: nothing wrapped around


@each_case(
    "name, tensor, message",
    [
        ("transformer.wte.weight", None, "'transformer.wte.weight' is missing; found 17 tensors, expected 18"),
        ("lm_head.biases", np.zeros(3, np.float32), "unknown tensor 'lm_head.biases' (expected 'lm_head.bias', the"),
        ("transformer.wte.weight", np.zeros((2, 3), np.float32), "has shape [2, 3]; expected [3, 2]"),
        (
            "transformer.wte.weight",
            np.zeros((3, 2)),
            "wte.weight' is float64, which is not supported; expected float32",
        ),
    ],
)
def test_a_model_with_wrong_tensors_is_not_written(
    tmp_path: Path, name: str, tensor: np.ndarray | None, message: str
) -> None:
    given = {**random_checkpoint(SMALL).tensors, name: tensor}
    checkpoint = Checkpoint(SMALL, {key: value for key, value in given.items() if value is not None}, "mine")
    with pytest.raises(FormatError, match=re.escape(message)):
        write_gab(checkpoint, tmp_path / "m.gab")
    assert not list(tmp_path.iterdir())


@each_case(
    ("config", "message"),
    [
        (ModelConfig(3, 2, 1, 1, 2, intermediate_size=6), "intermediate_size is 6; GAB1 can only hold .* = 8"),
        (ModelConfig(3, 2, 1, 1, 2, layer_norm_eps=1e-6), "layer_norm_eps is 1e-06; GAB1 can only hold 1e-05"),
        (ModelConfig(3, 2, 1, 1, 2, model_type="llama"), "the family 'llama', with embeddings of its own; GAB1 can"),
        (ModelConfig(3, 2, 1, 1, 2, tie_word_embeddings=True), "the family 'gab', with tied embeddings; GAB1 can only"),
        (ModelConfig(3, 2, 1, 1 << 24, 2), "found 18 tensors; expected more for the 16777216 blocks"),
    ],
)
def test_a_configuration_that_the_format_cannot_hold_is_not_written(
    tmp_path: Path, config: ModelConfig, message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        write_gab(Checkpoint(config, random_checkpoint(SMALL).tensors, "mine"), tmp_path / "m.gab")
    assert not list(tmp_path.iterdir())
