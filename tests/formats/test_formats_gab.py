"""GAB1: the bytes mean what the format says, and every damaged file is refused in one line."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from goldens import ModelWriter, check_digest, gab_records
from hypothesis import given, settings
from hypothesis import strategies as st

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
    path = tmp_path / "bad.gab"
    path.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        read_gab(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


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


@settings(max_examples=50, deadline=None)
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


@pytest.mark.parametrize("model", ["tiny", "odd"])
def test_published_models_survive_a_round_trip(golden_model: ModelWriter, tmp_path: Path, model: str) -> None:
    checkpoint = read_gab(golden_model(model))
    checkpoint.check_finite()
    write_gab(checkpoint, tmp_path / "copy.gab")
    check_digest(tmp_path / "copy.gab", {record["sha256"] for record in gab_records(model)})


@pytest.mark.parametrize("length", [0, 1, 4, 8, 27])
def test_shorter_than_the_header(tmp_path: Path, length: int) -> None:
    assert _refusal(tmp_path, _good()[:length]).startswith(f"found {length} bytes; expected at least the 28")


@pytest.mark.parametrize("length", [28, 29, 31, 32, 28 + 4 * 10, 28 + 4 * 34, SIZE - 4, SIZE - 1])
def test_truncated(tmp_path: Path, length: int) -> None:
    assert _refusal(tmp_path, _good()[:length]).startswith(
        f"truncated: found {length} bytes, but its header promises {SIZE}: {SIZE - length} bytes short"
    )


@pytest.mark.parametrize("extra", [1, 4, 1000])
def test_padded(tmp_path: Path, extra: int) -> None:
    assert _refusal(tmp_path, _good() + bytes(extra)).startswith(
        f"padded: found {SIZE + extra} bytes, but its header promises {SIZE}: {extra} bytes too long"
    )


def test_wrong_magic_names_found_and_expected(tmp_path: Path) -> None:
    big_endian = struct.pack(">I", MAGIC) + _good()[4:]
    assert _refusal(tmp_path, big_endian).startswith("magic is 0x31424147; expected 0x47414231")
    assert _refusal(tmp_path, bytes(28)).startswith("magic is 0x00000000; expected 0x47414231")


def test_a_tokenizer_file_is_recognised(tmp_path: Path) -> None:
    message = _refusal(tmp_path, struct.pack("<7I", 0x42504531, 1, 256, 0, 256, 0, 1))
    assert message.startswith("this is a BPE1 tokenizer file (magic 0x42504531)")
    assert "0x47414231" in message


@pytest.mark.parametrize("version", [0, 2, 0x01000000])
def test_unknown_version(tmp_path: Path, version: int) -> None:
    data = _file(np.zeros(FLOATS, "<f4"), (MAGIC, version, 3, 2, 1, 1, 2))
    assert _refusal(tmp_path, data).startswith(f"GAB version is {version}; expected 1")


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 2, 1, 1, 2), "vocab_size is 0; expected"),
        ((3, 0, 1, 1, 2), "hidden_size is 0; expected"),
        ((3, 2, 0, 1, 2), "num_attention_heads is 0; expected"),
        ((3, 2, 1, 0, 2), "num_hidden_layers is 0; expected"),
        ((3, 2, 1, 1, 0), "max_position_embeddings is 0; expected"),
        ((3, 512, 7, 1, 2), "hidden_size 512 is not a multiple of num_attention_heads 7"),
        ((0xFFFFFFFF, 2, 1, 1, 2), "vocab_size is 4294967295; expected"),
        ((3, 2, 1, 0xFFFFFFFF, 2), "num_hidden_layers is 4294967295; expected"),
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


def test_sizes_whose_product_wraps_32_bits_are_not_mistaken_for_small_ones(tmp_path: Path) -> None:
    # V × D × 4 is 2^32 here, which a 32-bit product takes for 0.
    data = _file(np.zeros(FLOATS, "<f4"), (MAGIC, 1, 1 << 22, 1 << 8, 1, 1, 1))
    assert _refusal(tmp_path, data).startswith(f"truncated: found {SIZE} bytes, but its header promises 86")


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in {
        tmp_path / "missing.gab": "cannot read it: No such file or directory",
        tmp_path: "found a directory; expected a regular file",
        tmp_path / "pipe": "found a pipe; expected a regular file",
    }.items():
        with pytest.raises(FormatError, match=message):
            read_gab(path)


def _changed(**changes: object) -> Checkpoint:
    """A small checkpoint with tensors replaced, or removed where the value is None (dots written as __)."""
    tensors = dict(random_checkpoint(SMALL).tensors)
    for key, value in changes.items():
        name = key.replace("__", ".")
        tensors.pop(name, None)
        if value is not None:
            tensors[name] = value  # type: ignore[assignment]
    return Checkpoint(SMALL, tensors, "mine")


WTE = np.zeros((3, 2), np.float32)


@pytest.mark.parametrize(
    ("checkpoint", "messages"),
    [
        (
            _changed(transformer__wte__weight=None),
            ["tensor 'transformer.wte.weight' is missing", "found 17 tensors, expected 18"],
        ),
        (
            _changed(transformer__wte__weight=None, transformer__wte__weights=WTE),
            ["tensor 'transformer.wte.weight' is missing (found 'transformer.wte.weights', the nearest name)"],
        ),
        (
            _changed(lm_head__biases=np.zeros(3, np.float32)),
            ["unknown tensor 'lm_head.biases' (expected 'lm_head.bias', the nearest name)", "expected 18"],
        ),
        (
            _changed(transformer__wte__weight=WTE.T),
            ["tensor 'transformer.wte.weight' has shape [2, 3]; expected [3, 2]"],
        ),
        (
            _changed(lm_head__bias=np.zeros((3, 1), np.float32)),
            ["tensor 'lm_head.bias' has shape [3, 1]; expected [3]"],
        ),
        (
            _changed(transformer__wte__weight=WTE.astype(np.float64)),
            ["tensor 'transformer.wte.weight' is float64; expected float32"],
        ),
    ],
)
def test_a_model_with_wrong_tensors_is_not_written(tmp_path: Path, checkpoint: Checkpoint, messages: list[str]) -> None:
    with pytest.raises(FormatError) as caught:
        write_gab(checkpoint, tmp_path / "m.gab")
    assert all(message in str(caught.value) for message in ["mine: ", *messages]), str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ModelConfig(3, 2, 1, 1, 2, intermediate_size=6), "intermediate_size is 6; GAB1 can only hold .* = 8"),
        (ModelConfig(3, 2, 1, 1, 2, layer_norm_eps=1e-6), "layer_norm_eps is 1e-06; GAB1 can only hold 1e-05"),
        (
            ModelConfig(3, 2, 1, 1, 2, model_type="llama"),
            "the family 'llama', with embeddings of its own; GAB1 can",
        ),
        (ModelConfig(3, 2, 1, 1, 2, tie_word_embeddings=True), "the family 'gab', with tied embeddings; GAB1 can only"),
        (ModelConfig(3, 2, 1, 1 << 24, 2), "found 18 tensors; expected 201326598 for the 16777216 blocks"),
    ],
)
def test_a_configuration_that_the_format_cannot_hold_is_not_written(
    tmp_path: Path, config: ModelConfig, message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        write_gab(Checkpoint(config, random_checkpoint(SMALL).tensors, "mine"), tmp_path / "m.gab")
    assert not list(tmp_path.iterdir())


def test_a_failure_half_way_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gab"
    path.write_bytes(b"old")
    from glinfer.formats.gab.file import StoredArray

    whole = StoredArray.join

    def interrupted(self: StoredArray, tensors: object) -> object:
        if self.names[0] == "lm_head.weight":
            raise KeyboardInterrupt
        return whole(self, tensors)  # type: ignore[arg-type]

    monkeypatch.setattr(StoredArray, "join", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_gab(random_checkpoint(SMALL), path)
    assert [p.name for p in tmp_path.iterdir()] == ["m.gab"]
    assert path.read_bytes() == b"old"


def test_the_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"nowhere/m\.gab: cannot write it: No such file or directory"):
        write_gab(random_checkpoint(SMALL), tmp_path / "nowhere" / "m.gab")
