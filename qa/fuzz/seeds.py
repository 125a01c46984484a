"""Small valid files of every format, made here: what fuzzing begins with."""

from __future__ import annotations

import json
import struct
from functools import cache
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from glinfer.config import ModelConfig
from glinfer.formats.gab.file import float_count
from glinfer.formats.gguf.config import metadata_of
from glinfer.formats.tensors import stored_tensors, weight_shapes
from qa.fuzz.mutate_gguf import ARRAY, STRING, GgufEntry, GgufParts

SIZES: dict[str, Any] = {
    "vocab_size": 6, "hidden_size": 4, "num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 8,
    "intermediate_size": 4,
}  # fmt: skip
LLAMA: dict[str, Any] = {"model_type": "llama", "rms_norm_eps": 1e-5, **SIZES}
GPT2: dict[str, Any] = {"model_type": "gpt2", "vocab_size": 6, "n_embd": 4, "n_head": 2, "n_layer": 1, "n_positions": 8}
_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "U8": "<u1"}


def compact(value: object) -> bytes:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


# GAB1 and BPE1


def gab() -> bytes:
    numbers = np.linspace(-1, 1, float_count(ModelConfig(3, 2, 1, 1, 2)), dtype="<f4")
    return struct.pack("<7I", 0x47414231, 1, 3, 2, 1, 1, 2) + numbers.tobytes()


MERGES = ((104, 105), (256, 256), (60, 124), (258, 97), (259, 124), (260, 62), (32, 256))
"""hi, hihi, <|, <|a, <|a|, <|a|>, " hi": the last but one is a control token."""


def bpe(merges: tuple[tuple[int, int], ...] = MERGES) -> bytes:
    pieces = [bytes([value]) for value in range(256)]
    for left, right in merges:
        pieces.append(pieces[left] + pieces[right])
    made = struct.pack("<4I", 0x42504531, 1, len(pieces), len(merges))
    made += b"".join(struct.pack("<3I", *pair, 256 + index) for index, pair in enumerate(merges))
    made += struct.pack("<I", len(pieces))
    return made + b"".join(struct.pack("<2I", token, len(piece)) + piece for token, piece in enumerate(pieces))


def merges_json() -> list[bytes]:
    values = {"reserved": ["hihi", "<|a|>"], "merges": [list(pair) for pair in MERGES]}
    return [compact(values), compact({"merges": [[97, 98]]}), compact({"merges": [[200, 200], [256, 256], [257, 257]]})]


# safetensors


def safetensors(arrays: dict[str, tuple[str, tuple[int, ...]]], metadata: dict[str, str] | None = None) -> bytes:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    start = 0
    for name, (dtype, shape) in arrays.items():
        nbytes = int(np.prod(shape)) * np.dtype(_DTYPES[dtype]).itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, start + nbytes]}
        start += nbytes
    text = compact(header)
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(index % 60 for index in range(start))


def own_safetensors() -> list[bytes]:
    made = []
    for family, dtype in (("gab", "F32"), ("llama", "F16"), ("qwen3", "F32")):
        config = ModelConfig(**SIZES, model_type=family, hidden_act="silu" if family != "gab" else "gelu_new")
        arrays = {name: (dtype, shape) for name, shape in weight_shapes(config).items()}
        made.append(safetensors(arrays, {"format": "glinfer", "config": config.to_json()}))
    return made


def llama_arrays(dtype: str = "F16") -> dict[str, tuple[str, tuple[int, ...]]]:
    config = ModelConfig(**SIZES, model_type="llama", hidden_act="silu")
    return {name: (dtype, shape) for name, shape in weight_shapes(config).items()}


def gpt2_arrays(dtype: str = "F32") -> dict[str, tuple[str, tuple[int, ...]]]:
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (6, 4), "wpe.weight": (8, 4)}
    for name, shape in {
        "ln_1.weight": (4,), "ln_1.bias": (4,), "attn.c_attn.weight": (4, 12), "attn.c_attn.bias": (12,),
        "attn.c_proj.weight": (4, 4), "attn.c_proj.bias": (4,), "ln_2.weight": (4,), "ln_2.bias": (4,),
        "mlp.c_fc.weight": (4, 16), "mlp.c_fc.bias": (16,), "mlp.c_proj.weight": (16, 4), "mlp.c_proj.bias": (4,),
    }.items():  # fmt: skip
        shapes[f"h.0.{name}"] = shape
    shapes |= {"ln_f.weight": (4,), "ln_f.bias": (4,)}
    return {f"transformer.{name}": (dtype, shape) for name, shape in shapes.items()}


def configs() -> list[bytes]:
    """config.json of every family, with settings of every kind."""
    scalings: list[dict[str, Any]] = [
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 4},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4, "beta_fast": 32, "beta_slow": 1,
         "mscale": 0.7, "mscale_all_dim": 0.7, "attention_factor": 1.1, "truncate": False},
        {"rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [2.0, 3.0],
         "original_max_position_embeddings": 4},
    ]  # fmt: skip
    acts = {"head_dim": 2, "hidden_activation": "gelu_pytorch_tanh"}
    windows = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
    made: list[dict[str, Any]] = [
        *({**LLAMA, "hidden_size": 8, "rope_scaling": scaling} for scaling in scalings),
        {**LLAMA, "tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
        {**LLAMA, "attention_bias": True, "mlp_bias": True, "hidden_act": "gelu", "eos_token_id": [1, 2]},
        {**LLAMA, "model_type": "mistral", "sliding_window": 4, "num_key_value_heads": 1, "head_dim": 6},
        {**LLAMA, "model_type": "qwen2", **windows, "num_key_value_heads": 1},
        {**LLAMA, "model_type": "qwen3", "head_dim": 2, "layer_types": ["full_attention"], "num_key_value_heads": 2},
        {**LLAMA, "model_type": "gemma", **acts, "num_key_value_heads": 2},
        {**GPT2, "n_inner": 16, "activation_function": "gelu", "layer_norm_epsilon": 1e-5, "n_ctx": 8},
    ]
    return [compact(values) for values in made]


# Second-generation Gab

GIFT = ModelConfig(**SIZES, model_type="gift_of_gab", hidden_act="gelu", tie_word_embeddings=True, mlp_bias=True)
ARCHITECTURE: dict[str, Any] = {
    "model_type": "gift_of_gab", **SIZES, "head_dim": 2, "rope_theta": 10000.0, "rope_style": "interleaved",
    "rms_norm_eps": 1e-5, "hidden_act": "gelu", "attention_bias": False, "mlp_bias": True, "tie_word_embeddings": True,
}  # fmt: skip


def manifests() -> list[tuple[bytes, dict[str, bytes]]]:
    """Manifests, with the files of weights that belong to each: one float32 in two shards, one q8."""
    made = []
    for q8 in (False, True):
        tensors, at = [], 0
        for name, shape in weight_shapes(GIFT).items():
            entry: dict[str, Any] = {"name": name.replace("up_proj.bias", "up_bias"), "shape": list(shape)}
            count = int(np.prod(shape))
            if q8 and len(shape) == 2:
                entry |= {"storage": "q8_rowwise_symmetric", "q": {"offset": at, "length": count}}
                entry["scale"] = {"offset": at + count, "length": 4 * shape[0]}
                at += count + 4 * shape[0]
            else:
                entry |= {"storage": "float32", "data": {"offset": at, "length": 4 * count}}
                at += 4 * count
            tensors.append(entry)
        data = bytes(index % 60 for index in range(at))
        names = ("m-q8.bin",) if q8 else ("m-0.bin", "m-1.bin")
        half = at if q8 else at // 2
        files = dict(zip(names, (data[:half], data[half:]), strict=False))
        listed = [{"file": name, "length": len(part)} for name, part in files.items()]
        values = {
            "format": "gift-of-gab-q8" if q8 else "gift-of-gab-f32", "format_version": 2, "endianness": "little",
            "byte_length": at, "architecture": ARCHITECTURE,
            "files": {"weights": listed[0]} if q8 else {"weights_shards": listed}, "tensors": tensors,
        }  # fmt: skip
        made.append((compact(values), files))
    return made


# GGUF

_TYPES = {kind.name: (kind.value, *GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType}
CODED = (*("IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ3_S", "IQ2_S", "IQ4_XS", "IQ1_M", "TQ1_0", "TQ2_0"),)


def gguf(config: ModelConfig, kind: str = "F16", **more: Any) -> bytes:
    """The file of a model of zeros and small numbers, matrices of one type."""
    values, factors = metadata_of(config)
    form = config.family.in_gguf
    values = {"general.architecture": form.architecture, **values, **more}
    parts = GgufParts(entries=[gguf_entry(key, value) for key, value in values.items()])
    shapes = {tensor.name: tensor.shape for tensor in stored_tensors(config, form.names)}
    shapes.update({name: numbers.shape for name, numbers in factors.items()})
    for name, shape in shapes.items():
        chosen = kind if len(shape) == 2 else "F32"
        chosen = "F16" if shape[-1] % _TYPES[chosen][1] else chosen  # rows that are no whole blocks
        number, weights, nbytes = _TYPES[chosen]
        parts.tensors.append((name.encode(), list(reversed(shape)), number, len(parts.data)))
        data = np.ones(shape, "<f4").tobytes() if number == 0 else bytes(int(np.prod(shape)) // weights * nbytes)
        parts.data += data + bytes(-len(data) % 32)
    return parts.build()


def gguf_entry(key: str, value: Any) -> GgufEntry:
    """A piece of metadata in the type that converters give it."""
    name = key.encode()
    if isinstance(value, list):
        kinds = {str: STRING, float: 6, bool: 7, int: 5}
        found = [part.encode() if isinstance(part, str) else part for part in value]
        return GgufEntry(name, ARRAY, found, kinds[type(value[0])])
    if isinstance(value, str):
        return GgufEntry(name, STRING, value.encode())
    return GgufEntry(name, 7 if isinstance(value, bool) else 4 if isinstance(value, int) else 6, value)


@cache
def ggufs() -> list[bytes]:
    wide = {**SIZES, "hidden_size": 32, "intermediate_size": 32}
    yarn = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4, "attention_factor": 1.5}
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    far, freqs = (tuple(each.items()) for each in (yarn, llama3))
    return [
        gguf(ModelConfig(**SIZES, model_type="llama", hidden_act="silu", rope_scaling=freqs), "F16"),
        gguf(ModelConfig(**SIZES, model_type="gpt2", tie_word_embeddings=True), "F32"),
        gguf(ModelConfig(**SIZES, model_type="gpt2"), "BF16"),
        gguf(ModelConfig(**wide, model_type="llama", hidden_act="silu", num_key_value_heads=1), "Q8_0"),
        gguf(ModelConfig(**wide, model_type="qwen2", hidden_act="silu", attention_bias=True), "Q4_0"),
        gguf(ModelConfig(**wide, model_type="qwen2", hidden_act="silu", attention_bias=True), "IQ4_NL"),
        gguf(ModelConfig(**wide, model_type="llama", hidden_act="silu", num_key_value_heads=1), "MXFP4"),
        gguf(ModelConfig(**SIZES, model_type="qwen3", hidden_act="silu", sliding_window=4, rope_scaling=far), "BF16"),
        gguf(ModelConfig(**SIZES, model_type="gemma", tie_word_embeddings=True, head_dim=6), "F16"),
    ]


@cache
def coded_ggufs() -> list[bytes]:
    """Matrices in the formats of grids, whose blocks have 256 weights."""
    shape = ModelConfig(
        **{**SIZES, "hidden_size": 256, "vocab_size": 2, "intermediate_size": 2, "num_attention_heads": 1}, head_dim=2,
        model_type="llama", hidden_act="silu",
    )  # fmt: skip
    return [gguf(shape, kind) for kind in CODED]


TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m.content | trim }}{{ eos_token }}{% endfor %}"


def gguf_vocabularies() -> list[bytes]:
    """Files with a vocabulary and no tensors."""
    key = "tokenizer.ggml."
    letters = ["h", "e", "l", "o", "Ġ", "w", "r", "d", "!", "Ċ"]
    joined = ["he", "ll", "hell", "hello", "Ġw"]
    in_bytes = {
        f"{key}model": "gpt2", f"{key}pre": "llama-bpe", f"{key}tokens": [*letters, *joined, "<|im_end|>", "<tool>"],
        f"{key}merges": ["h e", "l l", "he ll", "hell o", "Ġ w"], f"{key}token_type": [1] * 15 + [3, 4],
        f"{key}bos_token_id": 15, f"{key}eos_token_id": 15, f"{key}add_bos_token": True,
        "tokenizer.chat_template": TEMPLATE,
    }  # fmt: skip
    pieces = ["<unk>", "<s>", "</s>", "<0x0A>", "<0xF0>", "▁h", "ello", "▁hello", *"▁helo w", "hel", "lo", "<tool>"]
    pieces.remove("w")
    in_pieces = {
        f"{key}model": "llama", f"{key}tokens": pieces, f"{key}scores": [-float(rank) for rank in range(len(pieces))],
        f"{key}token_type": [2, 3, 3, 6, 6] + [1] * (len(pieces) - 6) + [4], f"{key}unknown_token_id": 0,
        f"{key}add_space_prefix": True, f"{key}add_eos_token": True,
    }  # fmt: skip
    without = {name: in_pieces[name] for name in (f"{key}model", f"{key}tokens")}
    default = {**in_bytes, f"{key}pre": "default"}
    given = ({"general.architecture": "llama", **values} for values in (in_bytes, in_pieces, without, default))
    return [GgufParts(entries=[gguf_entry(*entry) for entry in values.items()]).build() for values in given]


# Hugging Face tokenizers

ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def _tokenizer(model: dict[str, Any], **parts: Any) -> bytes:
    usual: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": None, "post_processor": None, "decoder": None,
    }  # fmt: skip
    return compact({**usual, **parts, "model": model})


def slow_tokenizers() -> list[bytes]:
    """SentencePiece models of both kinds, and a ``vocab.json`` followed by the lines of ``merges.txt``."""

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3, "<0x0A>": 6, "▁": 1, "h": 1, "e": 1, "he": 1, "▁he": 1, "<tag>": 4}
    pieces = [
        field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", -float(token)) + bytes([3 << 3, kind]))
        for token, (text, kind) in enumerate(kinds.items())
    ]
    models = [
        b"".join(pieces) + field(2, bytes([3 << 3, kind])) + field(3, bytes([3 << 3, 1, 4 << 3, merged]))
        for kind, merged in ((1, 1), (2, 0))
    ]
    words = json.dumps({word: token for token, word in enumerate(["h", "e", "Ġ", "he", "Ġhe"])}).encode()
    return [*models, words + "\n#version: 0.2\nh e\nĠ he\n".encode()]


def tokenizer_jsons() -> list[bytes]:
    words = ["h", "e", "l", "o", "Ġ", "w", "Ċ", "he", "ll", "hell", "hello"]
    merges = [["h", "e"], ["l", "l"], ["he", "ll"], ["hell", "o"]]
    byte_bpe = {"type": "BPE", "vocab": {word: token for token, word in enumerate(words)}, "merges": merges}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    split = {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}| ?\p{L}+|\s+"}, "behavior": "Isolated", "invert": False}
    llama3 = {"type": "Sequence", "pretokenizers": [split, {**byte_level, "use_regex": False}]}
    around = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [11], "tokens": ["<s>"]}},
    }  # fmt: skip
    pieces = ["<unk>", "<s>", "</s>", "<0x0A>", "<0x68>", "▁", "h", "e", "l", "o", "he", "▁he"]
    piece_bpe = {
        "type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
        "vocab": {piece: token for token, piece in enumerate(pieces)}, "merges": ["h e", "▁ he"],
    }  # fmt: skip
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]  # fmt: skip
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, spaces]}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    unigram = {
        "type": "Unigram", "unk_id": 0, "byte_fallback": False,
        "vocab": [["<unk>", 0.0], ["<s>", 0.0], ["▁he", -1.0], ["l", -2.0], ["lo", -2.5], ["▁", -3.0], ["h", -4.0],
                  ["e", -4.5]],
    }  # fmt: skip
    named = [{"id": 11, "content": "<s>", **ADDED}]
    return [
        _tokenizer(byte_bpe, added_tokens=named, pre_tokenizer=byte_level, decoder=byte_level, post_processor=around),
        _tokenizer({**byte_bpe, "ignore_merges": True}, pre_tokenizer=llama3, decoder=byte_level),
        _tokenizer(piece_bpe, added_tokens=[{"id": 1, "content": "<s>", **ADDED}], normalizer=normalizer,
                   decoder={"type": "Sequence", "decoders": steps}),
        _tokenizer(unigram, added_tokens=[{"id": 1, "content": "<s>", **ADDED, "lstrip": True}],
                   normalizer={"type": "NFKC"}, pre_tokenizer=metaspace, decoder=metaspace),
    ]  # fmt: skip


def tokenizer_configs() -> list[bytes]:
    made: tuple[dict[str, Any], ...] = (
        {"bos_token": "<s>", "eos_token": {"content": "</s>", "special": True}, "chat_template": TEMPLATE,
         "additional_special_tokens": ["hello"], "eos_token_id": 2},
        {"added_tokens_decoder": {"12": {"content": "<tool>", **ADDED}, "13": {"content": "x"}},
         "extra_special_tokens": {"image": "<img>"},
         "chat_template": [{"name": "default", "template": "{{ messages }}"}]},
        {"eos_token_id": [1, 2, -1], "pad_token": None},
    )  # fmt: skip
    return [compact(values) for values in made]
