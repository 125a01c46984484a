"""Vocabularies as metadata of GGUF files.

Source of the keys: docs/gguf.md of the ggml project; of the ways to cut text, llama-vocab.cpp of llama.cpp. The
tokenizer model "gpt2" is a byte-level BPE: each byte of a token is written as one printable character, as in GPT-2's
vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from glinfer.errors import InputError
from glinfer.formats.gab.bpe import BpeModel
from glinfer.formats.json_files import is_unicode

VOCABULARY_KEYS = "tokenizer."
"""The beginning of the keys of vocabulary and chat template in the metadata of a GGUF file."""
_MODEL = "tokenizer.ggml.model"
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5  # llama.cpp's types of tokens
_CONTROL_PIECE = re.compile(rb"<\|[a-z_]+\|>")
_ENDS = ("<|end|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "</s>")
"""Spellings of tokens that end a text, the most specific first."""
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = {_WORDS % r"\p{N}{1,3}": "llama-bpe", _WORDS % r"\p{N}": "qwen2"}
"""Regular expressions that cut text before merging, and llama.cpp's names for them."""
_NO_TOKENIZER = "the tokenizer is not what a tokenizer.json holds; leave it out, or give a BPE1 one"
_UNCUT = "superbpe"  # cuts digits from what is around them, and nothing else


def vocabulary_metadata(tokenizer: BpeModel | Mapping[str, Any] | None, rows: int) -> dict[str, Any]:
    """The metadata of a tokenizer for a model whose embeddings have ``rows`` rows.

    Args:
        tokenizer: a BPE1 vocabulary, what a ``tokenizer.json`` holds, or the metadata of another GGUF file, which stays
            as it is. BPE1 merges over a whole text, llama.cpp cuts numbers out first: it may give them other ids.
            Control tokens (``<|user|>``) are recognised, not merged. With None there is no vocabulary.
        rows: the number of rows.

    Raises:
        InputError: llama.cpp has no such tokenizer, or it has more tokens than there are rows.
    """
    if tokenizer is None:
        return {_MODEL: "none"}
    if not isinstance(tokenizer, BpeModel) and _MODEL in tokenizer:
        return {key: value for key, value in tokenizer.items() if key.startswith(VOCABULARY_KEYS)}
    try:
        found = _of_bpe1(tokenizer) if isinstance(tokenizer, BpeModel) else _of_json(tokenizer)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        raise InputError(_NO_TOKENIZER) from None
    tokens, kinds, merges, cut, first = found
    _check_found(tokens, merges, first)
    if max(tokens, default=-1) >= rows:
        raise InputError(
            f"the tokenizer has {max(tokens) + 1} tokens, the model {rows}; they must be the pair that was trained "
            "together"
        )
    if not merges:
        raise InputError("the tokenizer has no merges; llama.cpp needs some; leave the tokenizer out")
    values: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": cut,
        "tokenizer.ggml.tokens": [tokens.get(token, f"[PAD{token}]") for token in range(rows)],
        "tokenizer.ggml.token_type": [kinds.get(token, _UNUSED) for token in range(rows)],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": first is not None,
    }
    if first is not None:
        values["tokenizer.ggml.bos_token_id"] = first
    special = {tokens[token]: token for token, kind in kinds.items() if kind == _CONTROL}
    ends = [special[text] for text in _ENDS if text in special]
    if ends:
        values["tokenizer.ggml.eos_token_id"] = ends[0]
    return values


_Found = tuple[dict[int, str], dict[int, int], list[str], str, "int | None"]
"""Tokens and their types by id, merges, the name of the cut, and the token that begins a text."""


def _check_found(tokens: Mapping[int, str], merges: Iterable[str], first: int | None) -> None:
    """Refuse ids that are not numbers, and texts that are not strings or have no UTF-8 form."""
    ids = [*tokens, *(() if first is None else (first,))]
    texts = [*tokens.values(), *merges]
    fine = all(type(token) is int and token >= 0 for token in ids)
    if not fine or not all(isinstance(text, str) and is_unicode(text) for text in texts):
        raise InputError(_NO_TOKENIZER)


def _of_bpe1(model: BpeModel) -> _Found:
    letters = byte_letters()
    tokens, kinds = {}, {}
    for token, piece in enumerate(model.vocabulary):
        is_control = _CONTROL_PIECE.fullmatch(piece) is not None
        tokens[token] = piece.decode() if is_control else "".join(letters[byte] for byte in piece)
        kinds[token] = _CONTROL if is_control else _NORMAL
    # Without those that make control tokens, so that a text that spells one does not become it.
    plain = [merge for merge in model.merges if not _CONTROL_PIECE.search(model.vocabulary[merge[2]])]
    return tokens, kinds, [f"{tokens[left]} {tokens[right]}" for left, right, _ in plain], _UNCUT, None


def byte_letters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary, as in GPT-2's encoder.py.

    Printable bytes of Latin-1 stand for themselves, the others are the characters from U+0100 on in their order.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(0x100)]


def _of_json(values: Mapping[str, Any]) -> _Found:
    model = values["model"]
    cut = _cut(values)
    # llama.cpp takes a whole word that is a token before it merges, where text is cut as Llama 3's; otherwise never.
    if model["type"] != "BPE" or not cut or bool(model.get("ignore_merges")) != (cut == "llama-bpe"):
        raise InputError(
            "llama.cpp has no such tokenizer; expected a byte-level BPE that cuts text as GPT-2, Llama 3 or Qwen 2 "
            "does; leave the tokenizer out"
        )
    tokens = {token: piece for piece, token in model["vocab"].items()}
    kinds = dict.fromkeys(tokens, _NORMAL)
    for added in values.get("added_tokens") or ():
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = _CONTROL if added["special"] else _USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return tokens, kinds, merges, cut, _first(values.get("post_processor"))


def _cut(values: Mapping[str, Any]) -> str:
    """llama.cpp's name for the way in which text is cut; empty if it has none."""
    steps = _steps(values.get("pre_tokenizer"), "pretokenizers")
    normalizers = [step["type"] for step in _steps(values.get("normalizer"), "normalizers")]
    if not steps or steps[-1]["type"] != "ByteLevel" or steps[-1]["add_prefix_space"]:
        return ""
    if len(steps) == 1:
        return "gpt-2" if steps[0].get("use_regex", True) and not normalizers else ""
    is_split = len(steps) == 2 and steps[0]["type"] == "Split"
    cut = _PATTERNS.get(str(steps[0]["pattern"].get("Regex")), "") if is_split else ""
    return cut if not normalizers or (cut == "qwen2" and normalizers == ["NFC"]) else ""


def _steps(part: Mapping[str, Any] | None, several: str) -> list[Mapping[str, Any]]:
    if part is None:
        return []
    return list(part[several]) if part["type"] == "Sequence" else [part]


def _first(part: Mapping[str, Any] | None) -> int | None:
    """The token that is put before a text, if one is."""
    for step in _steps(part, "processors"):
        if step["type"] == "TemplateProcessing" and "SpecialToken" in step["single"][0]:
            ids: Iterable[int] = step["special_tokens"][step["single"][0]["SpecialToken"]["id"]]["ids"]
            return next(iter(ids), None)
    return None
