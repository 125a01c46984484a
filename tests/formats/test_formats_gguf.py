"""GGUF files: every byte means what the format says, and what cannot be read is refused in one line."""

from __future__ import annotations

import re
import struct
import sys
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_case import each_case
from goldens.gguf_file import write_gguf_file
from refusals import refusal_by

from glinfer.errors import FormatError
from glinfer.families import FAMILIES
from glinfer.formats import weight_shapes
from glinfer.formats.checkpoint import check_checkpoint
from glinfer.formats.gguf.file import GGML_TYPES, header_end
from glinfer.formats.gguf.model import read_gguf
from glinfer.formats.gguf.split import read_gguf_file

gguf = pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")

HEADS, GROUPS, WIDTH, INNER, VOCAB, CONTEXT, LAYERS = 4, 2, 64, 96, 24, 40, 2
HEAD = WIDTH // HEADS
LLAMA: dict[str, Any] = {
    **{"block_count": LAYERS, "context_length": CONTEXT, "embedding_length": WIDTH, "feed_forward_length": INNER},
    **{"attention.head_count": HEADS, "attention.head_count_kv": GROUPS, "attention.layer_norm_rms_epsilon": 1e-5},
    **{"rope.dimension_count": HEAD, "rope.freq_base": 500000.0},
}
GPT2 = {name: LLAMA[name] for name in list(LLAMA)[:5]} | {"attention.layer_norm_epsilon": 1e-5}
Tensors = dict[str, Any]


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def llama_tensors(layers: int = LAYERS) -> Tensors:
    """Under the file's names, rows in the order that llama.cpp wants."""
    found = {"token_embd.weight": drawn(VOCAB, WIDTH), "output_norm.weight": drawn(WIDTH)}
    keys = (GROUPS * HEAD, WIDTH)
    shapes = {
        "attn_norm": (WIDTH,),
        "attn_q": (WIDTH, WIDTH),
        "attn_k": keys,
        "attn_v": keys,
        "attn_output": (WIDTH, WIDTH),
    }
    shapes |= {"ffn_norm": (WIDTH,), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
    for index in range(layers):
        for name, shape in shapes.items():
            found[f"blk.{index}.{name}.weight"] = drawn(*shape) + np.float32(index)
    return {**found, "output.weight": drawn(VOCAB, WIDTH)}


def gpt2_tensors() -> Tensors:
    found = {"token_embd.weight": drawn(VOCAB, WIDTH), "position_embd.weight": drawn(CONTEXT, WIDTH)}
    shapes = {"attn_norm": (WIDTH,), "attn_qkv": (3 * WIDTH, WIDTH), "attn_output": (WIDTH, WIDTH)}
    shapes |= {"ffn_norm": (WIDTH,), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
    for index in range(LAYERS):
        for name, shape in shapes.items():
            found[f"blk.{index}.{name}.weight"] = drawn(*shape)
            found[f"blk.{index}.{name}.bias"] = drawn(shape[0])
    return {**found, "output_norm.weight": drawn(WIDTH), "output_norm.bias": drawn(WIDTH)}


def quantised(array: np.ndarray, kind: str) -> tuple[np.ndarray, str]:
    """A tensor in one of GGML's types."""
    return gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind]), kind


def write(path: Path, architecture: str, values: Mapping[str, Any], tensors: Mapping[str, Any], **more: Any) -> Path:
    """A file made by the package's own writer; keys get the architecture's name, those in ``more`` do not."""
    named = {f"{architecture}.{key}": value for key, value in values.items()}
    return write_gguf_file(
        path, architecture, {**named, **{key.replace("__", "."): value for key, value in more.items()}}, tensors
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def refusal(path: Path, data: bytes | None = None) -> str:
    message = refusal_by(read_gguf, path, data)
    assert len(message) < 150 + 10 * len(FAMILIES)  # some list every family
    return message


# The file


@pytest.mark.skipif(not hasattr(gguf.ReaderField, "contents"), reason="gguf before 0.16 does not give a field's value")
def test_a_file_is_read_as_the_package_reads_it(path: Path) -> None:
    more = {"general__name": "Ä", "a__true": True, "a__float": 0.1, "a__list": [3, 1, 2], "a__words": ["x", "", "→"]}
    tensors = {"f": drawn(3, 5), "h": drawn(2, 7).astype(np.float16), "q": quantised(drawn(4, 64), "Q4_1")}
    tensors |= {"cube": drawn(2, 3, 4), "bytes": np.arange(9, dtype=np.int8)}
    write(path, "other", {"number": 7}, tensors, **more)
    found, reader = read_gguf_file(path), gguf.GGUFReader(path)
    expected = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert dict(found.metadata) == expected
    assert found.metadata["a.words"] == ["x", "", "→"]
    assert found.metadata["a.true"] is True
    assert {tensor.name for tensor in reader.tensors} == set(found.tensors)
    for tensor in reader.tensors:
        ours = found.tensors[tensor.name]
        assert (ours.name, ours.type) == (tensor.name, tensor.tensor_type.name)
        assert ours.shape == tuple(int(size) for size in tensor.shape[::-1])
        assert ours.data.tobytes() == tensor.data.tobytes()
        assert not ours.data.flags.writeable


def good(path: Path) -> bytes:
    few = {"vocab": ["a", "bc", "d"], "scores": [1.0, 2.0]}
    write(path, "llama", {**LLAMA, **few, "block_count": 1, "rope.scaling.type": "none"}, llama_tensors(layers=1))
    return path.read_bytes()


def test_a_file_cut_short_anywhere_is_refused(path: Path) -> None:
    data = good(path)
    header = len(data) - sum(tensor.data.nbytes for tensor in read_gguf_file(path).tensors.values())
    lengths = {*range(0, header + 64, 3), *range(header, len(data), 4099), *range(len(data) - 5, len(data))}
    for length in sorted(lengths):
        refusal(path, data[:length])
    path.write_bytes(data)
    assert read_gguf(path).parameter_count == sum(tensor.size for tensor in llama_tensors(layers=1).values())


def header(tensors: int, values: int, rest: bytes = b"", version: int = 3) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, tensors, values) + rest


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def tensor_entry(*dimensions: int, kind: int = 0, offset: int = 0, name: bytes = b"t") -> bytes:
    count = len(dimensions)
    return string(name) + struct.pack(f"<I{count}QIQ", count, *dimensions, kind, offset)


KEY = string(b"k")
PAD = bytes(200)


@each_case(
    ("data", "message"),
    [
        (b"", "found 0 bytes; expected a GGUF file"),
        (b"GGML" + PAD, "found first bytes 47 47 4d 4c"),
        (header(0, 0, version=1) + PAD, "found GGUF version 1, which is not supported; expected 2 or 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 1, 1) + PAD, "is big-endian, which is not supported"),
        (header(1 << 63, 0) + PAD, "promises 9223372036854775808 tensors"),
        (header(0, 1 << 63) + PAD, "and 9223372036854775808 pieces of metadata"),
        (header(9, 9) + PAD, "too many for 224 bytes; the file is damaged"),
        (header(0, 1, struct.pack("<Q", 1 << 63)) + PAD, "it is truncated; the file is damaged"),
        (header(0, 1, string(b"\xff\xfe") + PAD), "has a name that is not UTF-8; the file is damaged"),
        (header(0, 1, KEY + struct.pack("<IQ", 8, 1000) + PAD), r"metadata 'k' ends at byte 1045"),
        (header(0, 1, KEY + struct.pack("<IIQ", 9, 0, 1 << 62) + PAD), "it is truncated; the file is damaged"),
        (header(0, 1, KEY + struct.pack("<IIQ", 9, 8, 1 << 20) + PAD), "truncated"),
        (header(0, 1, KEY + struct.pack("<IIQ", 9, 9, 1 << 62) + PAD), "has values of type 0|it is truncated"),
        (header(0, 1, KEY + struct.pack("<IIQIQ", 9, 9, 1, 13, 1) + PAD), "of type 13, which is not supported"),
        (header(0, 1, KEY + struct.pack("<I", 13) + PAD), "has values of type 13, which is not supported"),
        (header(0, 1, string(b"k" * 70000) + struct.pack("<IB", 0, 5)), "name of 70000 bytes, which exceeds the limit"),
        (header(0, 2, (KEY + struct.pack("<IB", 0, 5)) * 2 + PAD), "has 'k' twice"),
        (
            header(0, 1, string(b"general.alignment") + struct.pack("<II", 4, 24) + PAD),
            "alignment is 24, which is not supp",
        ),
        (header(0, 1, string(b"general.alignment") + struct.pack("<II", 4, 0) + PAD), "expected a power of two"),
        (header(1, 0, tensor_entry() + PAD), "'t' has 0 dimensions, which is not supported; expected 1 to 4"),
        (header(1, 0, tensor_entry(1, 1, 1, 1, 1) + PAD), "has 5 dimensions"),
        (header(1, 0, tensor_entry(4, 0) + PAD), r"shape \[0, 4\], which is not supported; expected no dimension of 0"),
        (header(1, 0, tensor_entry(1 << 63, 1 << 63) + PAD), "it is truncated"),
        (header(1, 0, tensor_entry(2, offset=1 << 63) + PAD), "it is truncated"),
        (header(1, 0, tensor_entry(48, kind=8) + PAD), "expected whole blocks of 32; the file is damaged"),
        (header(2, 0, tensor_entry(2) * 2 + PAD), "'t' appears twice"),
        (header(0, 0) + PAD, "found no general.architecture"),
    ],
)
def test_hostile_files_are_refused(path: Path, data: bytes, message: str) -> None:
    tracemalloc.start()
    try:
        assert re.search(message, refusal(path, data))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


# Values that cannot be read: no harm under a key that nobody needs


def nested(depth: int) -> bytes:
    """The value of an array of arrays of ... numbers."""
    return struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQHH", 2, 2, 1, 2)


UNREAD = [
    (nested(1), "an array of arrays (not supported)"),
    (nested(3000), "an array of arrays (not supported)"),
    (
        struct.pack("<IIQIQ", 9, 9, 2, 8, 2) + string(b"a") + string(b"\xff") + struct.pack("<IQ", 9, 0),
        "an array of arrays (not supported)",
    ),
    (struct.pack("<IIQ", 9, 0, 99) + bytes(99), "an array of 99 elements (exceeds the limit of 50 in a file)"),
    (
        struct.pack("<IIQ", 9, 8, 99) + string(b"\xff") * 99,
        "an array of 99 elements (exceeds the limit of 50 in a file)",
    ),
    (struct.pack("<I", 8) + string(b"x" * 2000), "a string of 2000 bytes (exceeds the limit of 1000)"),
    (struct.pack("<IIQ", 9, 8, 1) + string(b"x" * 2000), "a string of 2000 bytes (exceeds the limit of 1000)"),
    (struct.pack("<I", 8) + string(b"\xe9"), "a string that is not UTF-8 (the file is damaged, get it again)"),
]


@each_case(("value", "words"), UNREAD)
def test_a_value_that_cannot_be_read_is_refused_where_it_is_needed(
    path: Path, monkeypatch: pytest.MonkeyPatch, value: bytes, words: str
) -> None:
    monkeypatch.setattr("glinfer.formats.gguf.file.MAX_GGUF_ELEMENTS", 50)
    monkeypatch.setattr("glinfer.formats.gguf.file.MAX_GGUF_STRING_BYTES", 1000)
    write(path, "llama", LLAMA, llama_tensors())
    good = path.read_bytes()
    expected = read_gguf(path)

    def having(key: bytes, after: bytes = b"") -> bytes:
        """The same file with one entry more, first; its data stay aligned."""
        tensors, values = struct.unpack("<QQ", good[8:24])
        end = header_end(good, len(good), "")
        assert end is not None
        counts = struct.pack("<QQ", tensors, values + 1 + bool(after))
        head = good[:8] + counts + string(key) + value + after + good[24:end]
        return head + bytes(-len(head) % 32) + good[-(-end // 32) * 32 :]

    number = string(b"own.number") + struct.pack("<IB", 0, 7)
    path.write_bytes(having(b"own.value", number))
    metadata = read_gguf_file(path).metadata
    assert (repr(metadata["own.value"]), metadata["own.number"]) == (words, 7)
    assert read_gguf(path).config == expected.config
    assert refusal(path, having(b"llama.attention.scale")) == f"llama.attention.scale is {words}"
    assert refusal(path, having(b"general.type")) == f"its general.type is {words}; expected a model"
    cut = header(0, 1, string(b"own.value") + value[:-1])
    assert "it is truncated; the file is damaged" in refusal(path, cut)


def test_what_is_skipped_has_a_bound(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glinfer.formats.gguf.file.MAX_GGUF_SKIPPED", 800)
    path.write_bytes(header(0, 1, KEY + nested(99) + PAD))
    assert repr(read_gguf_file(path).metadata["k"]) == "an array of arrays (not supported)"
    assert refusal(path, header(0, 1, KEY + nested(101) + PAD)) == (
        "metadata 'k' has more than 800 elements, which exceeds the limit"
    )


def test_a_tensor_of_a_type_that_is_not_known_is_refused_where_it_is_needed(path: Path) -> None:
    path.write_bytes(header(1, 0, tensor_entry(2, kind=999) + PAD))
    assert read_gguf_file(path).tensors["t"].type == "type 999"
    write(path, "llama", LLAMA, llama_tensors())
    data = path.read_bytes()
    place = data.index(b"output_norm.weight") + len("output_norm.weight") + 4 + 8
    assert data[place : place + 4] == bytes(4)
    assert refusal(path, data[:place] + struct.pack("<I", 999) + data[place + 4 :]).startswith(
        "tensor 'output_norm.weight' is type 999, which is not supported; known: F32"
    )


def test_files_are_read_without_the_package_whose_types_the_table_has(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {int(kind): (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert known.items() <= GGML_TYPES.items()
    good(path)
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert read_gguf(path).config.vocab_size


# The models


def permuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """What convert_hf_to_gguf.py does to Llama's queries and keys."""
    apart = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return apart.swapaxes(1, 2).reshape(weights.shape)


def test_llama(path: Path) -> None:
    ours = {letter: drawn(rows, WIDTH) for letter, rows in (("q", WIDTH), ("k", GROUPS * HEAD))}
    tensors = llama_tensors()
    tensors["blk.1.attn_q.weight"] = permuted(ours["q"], HEADS)
    tensors["blk.1.attn_k.weight"] = permuted(ours["k"], GROUPS)
    for index in range(LAYERS):
        tensors[f"blk.{index}.attn_q.bias"] = permuted(drawn(WIDTH), HEADS)
        tensors[f"blk.{index}.attn_k.bias"] = tensors[f"blk.{index}.attn_v.bias"] = drawn(GROUPS * HEAD)
        tensors[f"blk.{index}.attn_output.bias"] = drawn(WIDTH)
    checkpoint = read_gguf(write(path, "llama", LLAMA, tensors))
    config = checkpoint.config
    check_checkpoint(checkpoint)
    assert list(checkpoint.tensors) == list(weight_shapes(config))
    assert (config.model_type, config.hidden_act, config.tie_word_embeddings) == ("llama", "silu", False)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (HEADS, GROUPS, HEAD)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (VOCAB, WIDTH, INNER)
    assert (config.num_hidden_layers, config.max_position_embeddings) == (LAYERS, CONTEXT)
    assert (config.layer_norm_eps, config.rope_theta, config.rope_scaling) == (1e-5, 500000.0, ())
    assert config.attention_bias
    assert not config.mlp_bias
    found = checkpoint.tensors
    assert np.array_equal(found["model.layers.0.self_attn.q_proj.bias"], drawn(WIDTH))
    assert np.array_equal(found["model.layers.0.self_attn.v_proj.bias"], drawn(GROUPS * HEAD))
    assert np.array_equal(found["model.layers.1.self_attn.q_proj.weight"], ours["q"])
    assert np.array_equal(found["model.layers.1.self_attn.k_proj.weight"], ours["k"])
    block = {"attn_norm": "input_layernorm", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj"}
    block |= {"ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj"}
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    names |= {f"blk.1.{theirs}": f"model.layers.1.{ours}" for theirs, ours in block.items()}
    for theirs, name in (names | {"blk.1.ffn_down": "model.layers.1.mlp.down_proj"}).items():
        assert np.array_equal(found[f"{name}.weight"], tensors[f"{theirs}.weight"]), name


def test_packed_matrices_stay_packed(path: Path) -> None:
    tensors = llama_tensors()
    ours = drawn(WIDTH, WIDTH)
    tensors["blk.0.attn_q.weight"] = quantised(permuted(ours, HEADS), "Q4_0")
    tensors["blk.0.ffn_up.weight"] = quantised(drawn(INNER, WIDTH), "Q5_1")
    tensors["blk.0.attn_v.weight"] = drawn(GROUPS * HEAD, WIDTH).astype(np.float16)
    tensors["blk.0.attn_output.weight"] = quantised(drawn(WIDTH, WIDTH), "BF16")
    tensors["output_norm.weight"] = drawn(WIDTH).astype(np.float16)
    tensors["blk.0.ffn_norm.weight"] = quantised(drawn(WIDTH), "Q8_0")
    checkpoint = read_gguf(write(path, "llama", LLAMA, tensors))
    check_checkpoint(checkpoint)
    layer = "model.layers.0"
    packed = {name.removeprefix(f"{layer}."): tensor.format for name, tensor in checkpoint.packed.items()}
    attention = {"self_attn.q_proj.weight": "Q4_0", "self_attn.v_proj.weight": "F16", "self_attn.o_proj.weight": "BF16"}
    assert packed == {**attention, "mlp.up_proj.weight": "Q5_1"}
    queries = checkpoint.packed[f"{layer}.self_attn.q_proj.weight"]
    assert np.array_equal(queries.blocks, quantised(ours, "Q4_0")[0])
    up = checkpoint.packed[f"{layer}.mlp.up_proj.weight"].blocks
    assert np.array_equal(up, quantised(drawn(INNER, WIDTH), "Q5_1")[0])
    assert not up.flags.owndata
    assert not up.flags.writeable
    halves = drawn(WIDTH).astype(np.float16).astype(np.float32)
    assert np.array_equal(checkpoint.tensors["model.norm.weight"], halves)
    norm = checkpoint.tensors[f"{layer}.post_attention_layernorm.weight"]
    assert norm.dtype == np.float32
    assert np.abs(norm - drawn(WIDTH)).max() < 0.02


def test_gpt2(path: Path) -> None:
    tensors = gpt2_tensors()
    tensors["blk.1.attn_qkv.weight"] = quantised(gpt2_tensors()["blk.1.attn_qkv.weight"], "Q8_0")
    tensors["token_embd.weight"] = drawn(VOCAB, WIDTH).astype(np.float16)
    checkpoint = read_gguf(write(path, "gpt2", GPT2, tensors))
    check_checkpoint(checkpoint)
    config = checkpoint.config
    assert (config.model_type, config.hidden_act, config.tie_word_embeddings) == ("gpt2", "gelu_new", True)
    rows = {letter: slice(place * WIDTH, (place + 1) * WIDTH) for place, letter in enumerate("qkv")}
    for letter, part in rows.items():
        name = f"transformer.h.{{}}.attn.{letter}_proj"
        expected = tensors["blk.0.attn_qkv.weight"][part]
        assert np.array_equal(checkpoint.tensors[f"{name.format(0)}.weight"], expected)
        assert np.array_equal(checkpoint.tensors[f"{name.format(0)}.bias"], tensors["blk.0.attn_qkv.bias"][part])
        packed = checkpoint.packed[f"{name.format(1)}.weight"]
        assert np.array_equal(packed.blocks, tensors["blk.1.attn_qkv.weight"][0][part])
    assert checkpoint.packed["transformer.wte.weight"].format == "F16"
    assert np.array_equal(checkpoint.tensors["transformer.wpe.weight"], tensors["position_embd.weight"])
    assert np.array_equal(checkpoint.tensors["transformer.h.1.mlp.fc_out.bias"], tensors["blk.1.ffn_down.bias"])
    assert np.array_equal(checkpoint.tensors["transformer.ln_f.bias"], tensors["output_norm.bias"])


@each_case(
    ("values", "expected"),
    [
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"rope.scale_linear": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": CONTEXT},
        ),
        (
            {
                **{"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 10},
                **{"rope.scaling.attn_factor": 2.0, "rope.scaling.yarn_beta_fast": 16.0},
                "rope.scaling.yarn_beta_slow": 2.0,
            },
            {
                **{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 10},
                **{"attention_factor": 2.0 * (0.1 * np.log(4.0) + 1.0), "beta_fast": 16.0, "beta_slow": 2.0},
            },
        ),
    ],
)
def test_rope_scaling(path: Path, values: dict[str, Any], expected: dict[str, Any]) -> None:
    found = dict(read_gguf(write(path, "llama", {**LLAMA, **values}, llama_tensors())).config.rope_scaling)
    assert found == pytest.approx(expected)


def test_scaled_queries_and_the_factor_of_llama_cpp(path: Path) -> None:
    """``yarn_log_multiplier`` divides YaRN's usual attention factor by that of the same scale; neither is llama's."""
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 16.0, "rope.scaling.original_context_length": 10}
    values = {"attention.temperature_scale": 0.1, "rope.scaling.yarn_log_multiplier": 1.0}
    found = read_gguf(write(path, "mistral3", {**LLAMA, **yarn, **values}, llama_tensors())).config
    assert found.model_type == "ministral3"
    expected = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 10}
    assert dict(found.rope_scaling) == pytest.approx({**expected, "attention_factor": 1.0, "llama_4_scaling_beta": 0.1})
    with pytest.raises(FormatError, match=r"type is left out; expected yarn, as attention.temperature_scale is set"):
        read_gguf(write(path, "mistral3", {**LLAMA, **values}, llama_tensors()))
    with pytest.raises(FormatError, match=r"yarn_log_multiplier is 1.0, which is not supported"):
        read_gguf(write(path, "llama", {**LLAMA, **yarn, **values}, llama_tensors()))


def test_factors_of_the_pairs(path: Path) -> None:
    factors = np.linspace(1, 8, HEAD // 2, dtype=np.float32)
    checkpoint = read_gguf(write(path, "llama", LLAMA, {**llama_tensors(), "rope_freqs.weight": factors}))
    pairs = dict.fromkeys(("short_factor", "long_factor"), tuple(factors.astype(np.float64).tolist()))
    expected = {"rope_type": "longrope", "attention_factor": 1.0, "factor": 1.0, **pairs}
    assert dict(checkpoint.config.rope_scaling) == {**expected, "original_max_position_embeddings": CONTEXT}
    assert "rope_freqs.weight" not in checkpoint.tensors


@each_case(
    ("values", "tensors", "message"),
    [
        ({"block_count": None}, {}, "llama.block_count is missing, and this architecture needs it"),
        ({"block_count": "two"}, {}, "llama.block_count is 'two'"),
        ({"block_count": 1 << 23}, {}, "found 21 tensors; expected more for the 8388608 blocks"),
        (
            {"block_count": 1 << 31, "nextn_predict_layers": (1 << 31) - 2},
            {},
            "found 21 tensors; expected more for the 2147483648 blocks",
        ),
        ({"attention.head_count_kv": 3}, {}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"attention.head_count_kv": [2, 2]}, {}, ""),
        ({"attention.head_count_kv": [2, 1]}, {}, r"head_count_kv is \[2, 1\]; expected the same for all layers"),
        ({"attention.layer_norm_rms_epsilon": -1.0}, {}, "layer_norm_rms_epsilon is -1.0; expected a number above 0"),
        ({"attention.key_length": 32}, {}, "llama.attention.value_length|llama.rope.dimension_count"),
        ({"attention.value_length": 8}, {}, "llama.attention.value_length is 8; expected 16, the width of a head"),
        ({"rope.dimension_count": 8}, {}, "llama.rope.dimension_count is 8; expected 16"),
        ({"rope.dimension_count": None, "attention.key_length": 15}, {}, "is 15; expected an even number"),
        ({"rope.scaling.type": "longrope"}, {}, "llama.rope.scaling.type is 'longrope', which is not supported"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 0.0}, {}, "rope.scaling.factor is 0.0"),
        ({"expert_count": 8}, {}, "llama.expert_used_count is missing, and this architecture needs it"),
        ({"final_logit_softcapping": 30.0}, {}, "final_logit_softcapping is 30.0, which is not supported"),
        ({"attention.sliding_window": 7}, {}, ""),
        ({}, {"rope_freqs.weight": np.ones(3, np.float32)}, r"'rope_freqs.weight' is F32 \[3\]; expected F32 \[8\]"),
        ({}, {"rope_freqs.weight": np.zeros(8, np.float32)}, "has numbers not above 0"),
        ({"rope.scaling.factor": 2.0}, {"rope_freqs.weight": np.ones(8, np.float32)}, "none of them, as rope_freqs"),
        ({}, {"blk.1.ffn_up.weight": None}, "tensor 'blk.1.ffn_up.weight' is missing; found 20 tensors, expected 21"),
        (
            {},
            {"blk.1.ffn_up.weight": None, "blk.1.ffn_upp.weight": drawn(2)},
            r"'blk.1.ffn_up.weight' is missing \(found 'blk.1.ffn_upp.weight', the nearest name\)",
        ),
        ({}, {"blk.2.ffn_up.weight": drawn(2)}, r"unknown tensor 'blk.2.ffn_up.weight' \(expected 'blk.\d.ffn_up.we"),
        ({}, {"blk.0.attn_q.bias": drawn(WIDTH)}, "tensor 'blk.0.attn_k.bias' is missing"),
        (
            {},
            {"blk.0.ffn_down.weight": drawn(INNER, WIDTH)},
            r"'blk.0.ffn_down.weight' has shape \[96, 64\]; expected \[64, 96\] from the metadata",
        ),
        ({}, {"output.weight": np.zeros((VOCAB, WIDTH), np.int8)}, "is I8, which is not supported; known: F32, F16"),
    ],
)
def test_what_is_no_model_is_refused(path: Path, values: dict[str, Any], tensors: dict[str, Any], message: str) -> None:
    keys = {key: value for key, value in {**LLAMA, **values}.items() if value is not None}
    arrays = {name: array for name, array in {**llama_tensors(), **tensors}.items() if array is not None}
    write(path, "llama", keys, arrays)
    if message:
        assert re.search(message, refusal(path))
    else:
        config = read_gguf(path).config
        assert (config.num_key_value_heads, config.sliding_window) == (2, values.get("attention.sliding_window", 0))


@each_case(
    ("architecture", "more", "message"),
    [
        ("mamba", {}, "found architecture 'mamba', which is not supported; expected one of: gpt2, llama"),
        ("llama\n" * 100, {}, "found architecture 'llama"),
        ("llama", {"general__type": "adapter"}, "general.type is 'adapter'; expected a model"),
    ],
)
def test_other_kinds_of_files(path: Path, architecture: str, more: dict[str, Any], message: str) -> None:
    write(path, architecture, LLAMA, llama_tensors(), **more)
    assert refusal(path).startswith(message) or message in refusal(path)


def test_gpt2_has_a_head_of_keys_for_each_head(path: Path) -> None:
    write(path, "gpt2", {**GPT2, "attention.head_count_kv": 2}, gpt2_tensors())
    assert refusal(path) == "gpt2.attention.head_count_kv is 2; expected 4"
