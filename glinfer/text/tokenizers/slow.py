"""Tokenizers in files older than ``tokenizer.json``, converted to the metadata of a GGUF file, and then read like it.

``tokenizer.model`` is a protobuf message of SentencePiece; ``vocab.json`` and ``merges.txt`` are a byte-level BPE.
Source: ``sentencepiece_model.proto`` of SentencePiece, and the encoding page of Protocol Buffers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from glinfer.errors import FormatError
from glinfer.families.settings import quoted
from glinfer.formats.files import read_whole, shown
from glinfer.formats.json_files import read_json
from glinfer.limits import MAX_TOKENIZER_BYTES, MAX_TOKENIZER_CONFIG_BYTES, MAX_TOKENS
from glinfer.text.tokenizers.gguf import gguf_tokenizer
from glinfer.text.tokenizers.huggingface import HfModel, named_tokens_in, of_library, sidecar_json, with_decoder

PIECES_FILE, WORDS_FILE, MERGES_FILE = "tokenizer.model", "vocab.json", "merges.txt"
_K = "tokenizer.ggml."
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5  # token types of SentencePiece and GGUF
_MODELS = {1: "t5", 2: "llama"}  # GGUF's names of Unigram and BPE
_CUTS = {"gpt2": "gpt-2", "codegen": "gpt-2", "roberta": "roberta-bpe", "gptneox": "mpt", "cohere": "command-r",
         "qwen2": "qwen2", "qwen3": "qwen2", "qwen3_5": "qwen35"}  # fmt: skip
"""GGUF's names of pre-tokenizers, by the class of transformers' tokenizer or else the type of the model."""


def read_slow_tokenizer(path: Path) -> HfModel:
    """Read a SentencePiece model, or a ``vocab.json`` (or ``merges.txt``) with the other file next to it.

    Special and added tokens come from ``tokenizer_config.json``, ``special_tokens_map.json`` and
    ``added_tokens.json`` next to it.
    """
    config = {**sidecar_json(path, "special_tokens_map.json"), **sidecar_json(path)}
    try:
        values = _words(path, config) if path.name in (WORDS_FILE, MERGES_FILE) else _pieces(path)
        _add_tokens(values, config, sidecar_json(path, "added_tokens.json"), shown(path))
        model = gguf_tokenizer({_K + name: value for name, value in values.items()}, shown(path))
        return of_library(tokenizers.Tokenizer.from_str(with_decoder(model)), path)
    except FormatError as error:
        raise FormatError(f"{error}; or save a tokenizer.json with save_pretrained of transformers") from None


def _add_tokens(values: dict[str, Any], config: Mapping[str, Any], added: Mapping[str, Any], label: str) -> None:
    """Add the tokens of ``added_tokens.json``, mark special ones, and name ``bos`` and ``eos``."""
    lists = {"tokens": "", "token_type": _UNUSED, "scores": 0.0}
    for text, token in added.items():
        if type(token) is not int or not 0 <= token < MAX_TOKENS:
            raise FormatError(f"{label}: added_tokens.json has {quoted(token)} for {quoted(text)}; expected a token id")
        for name, empty in lists.items():
            values[name] += [empty] * (token + 1 - len(values[name]))
        values["tokens"][token], values["token_type"][token] = text, _USER_DEFINED
    ids = {text: token for token, text in reversed(list(enumerate(values["tokens"])))}
    for token in (ids[text] for text in named_tokens_in(config) if text in ids):
        values["token_type"][token] = _CONTROL
    for name in ("bos", "eos"):
        named = named_tokens_in({"_token": config.get(f"{name}_token")})
        values |= {f"{name}_token_id": ids[text] for text in named if text in ids}
        if isinstance(flag := config.get(f"add_{name}_token"), bool):
            values[f"add_{name}_token"] = flag


def _words(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a byte-level BPE: ids by token, and one merge a line in order of priority."""
    name = str(config.get("tokenizer_class") or "")
    known = bool(name) and not name.startswith("PreTrained")
    model = "" if known else sidecar_json(path, "config.json").get("model_type", "gpt2")
    cut = _CUTS.get(str(model or name).lower().removesuffix("fast").removesuffix("tokenizer"), "gpt-2" if model else "")
    words = read_json(path.with_name(WORDS_FILE), MAX_TOKENIZER_CONFIG_BYTES)
    merges = read_whole(path.with_name(MERGES_FILE), MAX_TOKENIZER_BYTES, "merges of a tokenizer")
    lines = merges.decode(errors="replace").splitlines()
    problem = "" if cut else f"found the class {quoted(name)}; expected a tokenizer of GPT-2 or Qwen"
    if config.get("add_prefix_space"):
        problem = "found add_prefix_space; expected a tokenizer that puts no space before a text"
    if not words or not all(type(token) is int and 0 <= token < MAX_TOKENS for token in words.values()):
        problem = f"{WORDS_FILE} has no ids; expected a token id below {MAX_TOKENS} for each text"
    if problem:
        raise FormatError(f"{shown(path)}: {problem}")
    texts = {token: text for text, token in words.items()}
    ids = range(max(texts) + 1)
    return {
        "model": "gpt2",
        "pre": cut,
        "tokens": [texts.get(token, "") for token in ids],
        "token_type": [_NORMAL if token in texts else _UNUSED for token in ids],
        "scores": [0.0 for _ in ids],
        "merges": [line for line in lines if line and not line.startswith("#version")],
    }


def _pieces(path: Path) -> dict[str, Any]:
    """The metadata of a SentencePiece model."""
    data = read_whole(path, MAX_TOKENIZER_CONFIG_BYTES, "a SentencePiece model")
    try:
        fields = list(_fields(data))
        pieces = [{1: b"", 2: bytes(4), 3: _NORMAL, **dict(_fields(value))} for number, value in fields if number == 1]
        trainer, rules = (dict(_fields(b"".join(value for name, value in fields if name == part))) for part in (2, 3))
        texts, types = [piece[1].decode() for piece in pieces], [piece[3] for piece in pieces]
        scores = [struct.unpack("<f", piece[2])[0] for piece in pieces]
        charsmap = list(rules.get(2, b""))
    except (ValueError, struct.error, AttributeError, TypeError):
        raise FormatError(f"{shown(path)}: this is not a SentencePiece model, or a damaged one") from None
    if trainer.get(3, 1) not in _MODELS or trainer.get(24) or not rules.get(5, 1) or len(texts) > MAX_TOKENS:
        raise FormatError(
            f"{shown(path)}: found a SentencePiece model of words or characters, with spaces after words, or too "
            f"large; expected BPE or Unigram with ▁ before words, at most {MAX_TOKENS} tokens"
        )
    # User-defined tokens are matched before spaces become ▁.
    defined = {token for token, kind in enumerate(types) if kind == _USER_DEFINED}
    return {
        "model": _MODELS[trainer.get(3, 1)],
        "tokens": [text.replace("▁", " ") if token in defined else text for token, text in enumerate(texts)],
        "token_type": types,
        "scores": scores,
        "precompiled_charsmap": charsmap,
        "add_space_prefix": bool(rules.get(3, 1)),
        "remove_extra_whitespaces": bool(rules.get(4, 1)),
        "add_bos_token": True,
        "add_eos_token": False,
        "unknown_token_id": trainer.get(40, 0),
        "bos_token_id": trainer.get(41, 1),
        "eos_token_id": trainer.get(42, 2),
    }


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message as (number, value): integers, or the bytes of texts, messages and floats.

    Raises:
        ValueError: the message ends inside a field, or has a group, which is obsolete.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value, at = _varint(data, at) if key & 7 in (0, 2) else ({1: 8, 5: 4}.get(key & 7, len(data)), at)
        if key & 7:
            if value > len(data) - at:
                raise ValueError
            yield key >> 3, data[at : at + value]
            at += value
        else:
            yield key >> 3, value - (1 << 64) if value >> 63 else value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, lowest first, and the index after it."""
    value = 0
    for index, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError
