"""Small valid files of every format, made here: what fuzzing begins with."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from glinfer.config import ModelConfig
from glinfer.formats import save_checkpoint
from glinfer.formats.gab.bpe import read_merges_json, write_bpe
from glinfer.formats.tensors import weight_shapes
from glinfer.quant.formats import BLOCK_FORMATS
from tests.goldens.gguf_file import write_gguf_file
from tests.goldens.models import MODELS, Made, write_model
from tests.helpers.tiny_models import in_formats

SIZES: dict[str, Any] = {
    "vocab_size": 6, "hidden_size": 4, "num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 8,
    "intermediate_size": 4,
}  # fmt: skip
LLAMA: dict[str, Any] = {"model_type": "llama", "rms_norm_eps": 1e-5, **SIZES}
GPT2: dict[str, Any] = {"model_type": "gpt2", "vocab_size": 6, "n_embd": 4, "n_head": 2, "n_layer": 1, "n_positions": 8}


def compact(value: object) -> bytes:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def written(write: Callable[[Path], object]) -> dict[str, bytes]:
    """The files that a function writes into a folder, by their paths in it."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        found = [path for path in sorted(Path(folder).rglob("*")) if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def config_of(family: str, **more: Any) -> ModelConfig:
    """A small model; ``hidden_act`` is that of most families."""
    return ModelConfig(**{**SIZES, "model_type": family, "hidden_act": "silu", **more})


def saved(config: ModelConfig, name: str, form: str = "F32", **options: Any) -> bytes:
    """A file of a random model as glinfer writes it, matrices in one format."""
    return written(lambda folder: save_checkpoint(in_formats(config, form), folder / name, **options))[name]


def gab() -> bytes:
    return saved(ModelConfig(3, 2, 1, 1, 2), "m.gab")


MERGES = ((104, 105), (256, 256), (60, 124), (258, 97), (259, 124), (260, 62), (32, 256))
"""hi, hihi, <|, <|a, <|a|, <|a|>, " hi": the last but one is a control token."""


def bpe(merges: tuple[tuple[int, int], ...] = MERGES) -> bytes:
    def write(folder: Path) -> None:
        (folder / "m.json").write_bytes(compact({"merges": merges}))
        write_bpe(read_merges_json(folder / "m.json"), folder / "m.bpe")

    return written(write)["m.bpe"]


def merges_json() -> list[bytes]:
    values = {"reserved": ["hihi", "<|a|>"], "merges": MERGES}
    return [compact(values), compact({"merges": [[97, 98]]}), compact({"merges": [[200, 200], [256, 256], [257, 257]]})]


# safetensors


def own_safetensors() -> list[bytes]:
    forms = ("gab", "gelu_new", "float32"), ("llama", "silu", "float16"), ("qwen3", "silu", "float32")
    return [saved(config_of(family, hidden_act=act), "m.safetensors", dtype=dtype) for family, act, dtype in forms]


def huggingface(settings: Mapping[str, Any] = LLAMA, dtype: str = "float16", shards: int = 1) -> dict[str, bytes]:
    """A directory as transformers writes it."""
    return written(lambda folder: write_model(Made(dict(settings), dtype=dtype), folder, shards))


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
    made = [{**LLAMA, "hidden_size": 8, "rope_scaling": scaling} for scaling in scalings]
    made += {each.settings["model_type"]: each.settings for each in MODELS.values()}.values()
    return [compact(values) for values in made]


# Second-generation Gab

GIFT = config_of("gift_of_gab", hidden_act="gelu", tie_word_embeddings=True, mlp_bias=True)
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


def gguf(config: ModelConfig, form: str) -> bytes:
    return saved(config, "m.gguf", form, dtype="file")


@cache
def ggufs() -> list[bytes]:
    wide = {"hidden_size": 32, "intermediate_size": 32}
    yarn = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 4, "attention_factor": 1.5}
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    far, freqs = (tuple(each.items()) for each in (yarn, llama3))
    narrow = config_of("llama", **wide, num_key_value_heads=1)
    biased = config_of("qwen2", **wide, attention_bias=True)
    return [
        gguf(config_of("llama", rope_scaling=freqs), "F16"),
        gguf(ModelConfig(**SIZES, model_type="gpt2", tie_word_embeddings=True), "F32"),
        gguf(ModelConfig(**SIZES, model_type="gpt2"), "BF16"),
        *(gguf(narrow, form) for form in ("Q8_0", "MXFP4")),
        *(gguf(biased, form) for form in ("Q4_0", "IQ4_NL")),
        gguf(config_of("qwen3", sliding_window=4, rope_scaling=far), "BF16"),
        gguf(ModelConfig(**SIZES, model_type="gemma", tie_word_embeddings=True, head_dim=6), "F16"),
    ]


@cache
def coded_ggufs() -> list[bytes]:
    """Matrices in the formats of grids, whose blocks have 256 weights."""
    few = {"vocab_size": 2, "intermediate_size": 2, "num_attention_heads": 1, "head_dim": 2}
    shape = config_of("llama", hidden_size=256, **few)
    return [gguf(shape, form) for form in BLOCK_FORMATS if form.startswith(("IQ", "TQ")) and form != "IQ4_NL"]


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
    made = []
    for values in (in_bytes, in_pieces, without, default):
        write = lambda folder, values=values: write_gguf_file(folder / "v.gguf", "llama", values)  # noqa: E731
        made.append(written(write)["v.gguf"])
    return made


# Hugging Face tokenizers

ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def slow_tokenizers() -> dict[str, bytes | list[bytes]]:
    """SentencePiece models of both kinds, and a vocabulary with its merges."""

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
    words = compact({word: token for token, word in enumerate(["h", "e", "Ġ", "he", "Ġhe"])})
    merges = "#version: 0.2\nh e\nĠ he\n".encode()
    return {"tokenizer.model": models, "vocab.json": words, "merges.txt": merges}


def tokenizer_jsons() -> list[bytes]:
    words = ["h", "e", "l", "o", "Ġ", "w", "Ċ", "he", "ll", "hell", "hello"]
    vocabulary = {word: token for token, word in enumerate(words)}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    around = processors.TemplateProcessing(single="<s> $A", pair="$A $B:1", special_tokens=[("<s>", 11)])
    split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+|\s+"), "isolated")
    byte_level, in_words = (pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=each) for each in (True, False))
    pieces = ["<unk>", "<s>", "</s>", "<0x0A>", "<0x68>", "▁", "h", "e", "l", "o", "he", "▁he"]
    piece_bpe = models.BPE(
        vocab={piece: token for token, piece in enumerate(pieces)}, merges=[("h", "e"), ("▁", "he")],
        unk_token="<unk>", fuse_unk=True, byte_fallback=True,
    )  # fmt: skip
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    spaces = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    scores = {"<unk>": 0.0, "<s>": 0.0, "▁he": -1.0, "l": -2.0, "lo": -2.5, "▁": -3.0, "h": -4.0, "e": -4.5}
    unigram = models.Unigram(list(scores.items()), unk_id=0)
    metaspace: dict[str, Any] = {"replacement": "▁", "prepend_scheme": "first"}
    made = (
        (models.BPE(vocab=vocabulary, merges=merges), None, byte_level, around, decoders.ByteLevel()),
        (models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True), None,
         pre_tokenizers.Sequence([split, in_words]), None, decoders.ByteLevel()),
        (piece_bpe, spaces, None, None, decoders.Sequence(steps)),
        (unigram, normalizers.NFKC(), pre_tokenizers.Metaspace(**metaspace), None, decoders.Metaspace(**metaspace)),
    )  # fmt: skip
    found = []
    for model, normalizer, pre_tokenizer, post_processor, decoder in made:
        tokenizer = Tokenizer(model)
        tokenizer.add_special_tokens([AddedToken("<s>", lstrip=model is unigram)])
        parts = {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": post_processor}
        for name, part in {**parts, "decoder": decoder}.items():
            if part is not None:
                setattr(tokenizer, name, part)
        found.append(tokenizer.to_str().encode())
    return found


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
