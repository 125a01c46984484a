"""Vocabularies as GGUF metadata.

Sources: docs/gguf.md of the ggml project for the keys, and llama.cpp's llama-vocab.cpp for pre-tokenisers. The model
"gpt2" is a byte-level BPE: each byte of a token is written as one printable character, as in GPT-2's vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from glinfer.errors import InputError
from glinfer.formats.gab.bpe import BpeModel
from glinfer.formats.gguf.words import COMPOSED, EXPRESSIONS, GPT2_WORDS, WHOLE_WORDS
from glinfer.formats.json_files import is_unicode

Vocabulary = BpeModel | Mapping[str, Any]
"""A BPE1 vocabulary, the contents of a ``tokenizer.json``, or the vocabulary metadata of a GGUF file."""
VOCABULARY_KEYS = "tokenizer."
"""The prefix of the metadata keys of vocabulary and chat template in a GGUF file."""
_MODEL = "tokenizer.ggml.model"
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6  # llama.cpp's types of tokens
_PAD = "[PAD{}]"  # rows without a token, which llama.cpp requires
_CONTROL_PIECE = re.compile(rb"<\|[a-z_]+\|>")
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
_ENDS = ("<|end|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "</s>")
"""Spellings of tokens that end a text, the most specific first."""
_NO_TOKENIZER = "the tokenizer is not the contents of a tokenizer.json; leave it out, or give a BPE1 tokenizer"
_KEEPS_ALL = (("isolated", False), ("removed", True))
_UNCUT = "superbpe"  # separates digits from other text, and cuts nowhere else


def vocabulary_metadata(tokenizer: Vocabulary | None, rows: int) -> dict[str, Any]:
    """The metadata of a tokenizer for a model whose embeddings have ``rows`` rows.

    Args:
        tokenizer: a BPE1 vocabulary, the contents of a ``tokenizer.json``, or the metadata of another GGUF file, which
            is kept unchanged. BPE1 merges over a whole text; llama.cpp separates numbers first, so their ids may
            differ. Control tokens (``<|user|>``) are recognised, not merged. None writes no vocabulary.
        rows: the number of rows.

    Raises:
        InputError: llama.cpp does not support the tokenizer, or it has more tokens than there are rows.
    """
    if tokenizer is None:
        return {_MODEL: "none"}
    if not isinstance(tokenizer, BpeModel) and _MODEL in tokenizer:
        return {key: value for key, value in tokenizer.items() if key.startswith(VOCABULARY_KEYS)}
    try:
        if not isinstance(tokenizer, BpeModel) and _is_of_pieces(tokenizer):
            return _pieces_metadata(tokenizer, rows)
        found = _of_bpe1(tokenizer) if isinstance(tokenizer, BpeModel) else _of_json(tokenizer)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError):
        raise InputError(_NO_TOKENIZER) from None
    tokens, kinds, merges, cut, first, last = found
    _check_found(tokens, merges, (first, last))
    _check_rows(tokens, rows)
    if not merges:
        raise InputError("the tokenizer has no merges; llama.cpp needs some; leave the tokenizer out")
    values: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": cut,
        "tokenizer.ggml.tokens": [tokens.get(token, _PAD.format(token)) for token in range(rows)],
        "tokenizer.ggml.token_type": [kinds.get(token, _UNUSED) for token in range(rows)],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": first is not None,
    }
    if first is not None:
        values["tokenizer.ggml.bos_token_id"] = first
    special = {tokens[token]: token for token, kind in kinds.items() if kind == _CONTROL}
    ends = [special[text] for text in _ENDS if text in special]
    if last is not None:
        values.update({"tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.eos_token_id": last})
    elif ends:
        values["tokenizer.ggml.eos_token_id"] = ends[0]
    return values


_Found = tuple[dict[int, str], dict[int, int], list[str], str, "int | None", "int | None"]
"""Tokens and their types by id, merges, the pre-tokeniser's name, and the tokens that begin and end a text."""


def _check_found(tokens: Mapping[int, str], merges: Iterable[str], around: Iterable[int | None]) -> None:
    """Refuse ids that are not numbers, and texts that are not strings or have no UTF-8 form."""
    ids = [*tokens, *(token for token in around if token is not None)]
    texts = [*tokens.values(), *merges]
    fine = all(type(token) is int and token >= 0 for token in ids)
    if not fine or not all(isinstance(text, str) and is_unicode(text) for text in texts):
        raise InputError(_NO_TOKENIZER)


def padded(values: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Pad a vocabulary's metadata to one token for each row of the model, which llama.cpp requires."""
    found, missing = dict(values), rows - len(values["tokenizer.ggml.tokens"])
    more: dict[str, list[Any]] = {
        "tokens": [_PAD.format(row) for row in range(rows - missing, rows)],
        "token_type": [_UNUSED] * missing,
        "scores": [0.0] * missing,
    }
    for name, extra in more.items():
        key = f"tokenizer.ggml.{name}"
        if key in found:
            found[key] = [*found[key], *extra]
    return found


def _check_rows(tokens: Mapping[int, str], rows: int) -> None:
    if max(tokens, default=-1) >= rows:
        raise InputError(
            f"the tokenizer has {max(tokens) + 1} tokens, the model {rows}; they must be the pair that was trained "
            "together"
        )


def _of_bpe1(model: BpeModel) -> _Found:
    letters = byte_letters()
    tokens, kinds = {}, {}
    for token, piece in enumerate(model.vocabulary):
        is_control = _CONTROL_PIECE.fullmatch(piece) is not None
        tokens[token] = piece.decode() if is_control else "".join(letters[byte] for byte in piece)
        kinds[token] = _CONTROL if is_control else _NORMAL
    # Drop the merges that make control tokens, so that text that spells one does not become it.
    plain = [merge for merge in model.merges if not _CONTROL_PIECE.search(model.vocabulary[merge[2]])]
    return tokens, kinds, [f"{tokens[left]} {tokens[right]}" for left, right, _ in plain], _UNCUT, None, None


def byte_letters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary, as in GPT-2's encoder.py.

    Printable Latin-1 bytes stand for themselves; the others map to the characters from U+0100 on, in order.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(0x100)]


def _of_json(values: Mapping[str, Any]) -> _Found:
    model = values["model"]
    cut, problem = _cut(values, whole_words=bool(model.get("ignore_merges")))
    if model["type"] != "BPE":
        problem = f"its model is {model['type']}"
    if problem:
        raise InputError(
            f"llama.cpp has no such tokenizer: {problem}; expected SentencePiece's BPE, or a byte-level BPE that cuts "
            "text in a way that llama.cpp has a name for, as GPT-2, Llama 3, Qwen 2 or SmolLM do; leave the tokenizer "
            "out (--no-tokenizer)"
        )
    tokens = {token: piece for piece, token in model["vocab"].items()}
    kinds = dict.fromkeys(tokens, _NORMAL)
    _add(values, tokens, kinds)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return tokens, kinds, merges, cut, *_around(values.get("post_processor"))


def _add(values: Mapping[str, Any], tokens: dict[int, str], kinds: dict[int, int]) -> None:
    """Add the tokens that a ``tokenizer.json`` has next to its vocabulary."""
    for added in values.get("added_tokens") or ():
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = _CONTROL if added["special"] else _USER_DEFINED


def _is_of_pieces(values: Mapping[str, Any]) -> bool:
    """Whether a ``tokenizer.json`` is SentencePiece's BPE: whole texts with ▁ for spaces, and tokens for bytes."""
    model, steps = values["model"], list(steps_of(values.get("normalizer"), "normalizers"))
    kinds = [step["type"] for step in steps]
    cuts = steps_of(values.get("pre_tokenizer"), "pretokenizers")
    # The normalizer leaves no spaces, so a Split at spaces does nothing.
    split = all(cut["type"] == "Split" and cut["pattern"] == {"String": " "} and not cut.get("invert") for cut in cuts)
    if not split and not _cuts_line_breaks(values):
        return False
    if model["type"] != "BPE" or not model.get("byte_fallback"):
        return False
    replaced = kinds[-1:] == ["Replace"] and steps[-1]["pattern"] == {"String": " "} and steps[-1]["content"] == "▁"
    return replaced and (len(kinds) == 1 or (kinds[:-1] == ["Prepend"] and steps[0]["prepend"] == "▁"))


def _cuts_line_breaks(values: Mapping[str, Any]) -> bool:
    """Whether runs of line breaks are words, as in Gemma 4."""
    cuts = steps_of(values.get("pre_tokenizer"), "pretokenizers")
    return [(cut["type"], cut.get("pattern"), cut.get("behavior"), cut.get("invert")) for cut in cuts] == [
        ("Split", {"Regex": r"\n+"}, "Isolated", False)
    ]


def _pieces_metadata(values: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """The metadata of SentencePiece's BPE, in which scores replace the order of merges, except in Gemma 4."""
    model = values["model"]
    tokens: dict[int, str] = {token: piece for piece, token in model["vocab"].items()}
    kinds = {token: _BYTE if _BYTE_PIECE.fullmatch(piece) else _NORMAL for token, piece in tokens.items()}
    _add(values, tokens, kinds)
    unknown = model["vocab"].get(model.get("unk_token"))
    if unknown is not None:
        kinds[unknown] = _UNKNOWN
    first, last = _around(values.get("post_processor"))
    _check_found(tokens, (), (first, last))
    _check_rows(tokens, rows)
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault("".join(merge), rank)
    found: dict[str, Any] = {"model": "llama"}
    if _cuts_line_breaks(values):
        found = {"model": "gemma4", "merges": [" ".join(merge) for merge in merges]}
    found |= {
        "tokens": [tokens.get(token, _PAD.format(token)) for token in range(rows)],
        "scores": [-float(ranks.get(tokens.get(token, ""), len(merges))) for token in range(rows)],
        "token_type": [kinds.get(token, _UNUSED) for token in range(rows)],
        "add_space_prefix": len(list(steps_of(values.get("normalizer"), "normalizers"))) == 2,
        "add_bos_token": first is not None,
        "add_eos_token": last is not None,
    }
    named = {"bos": first, "eos": last, "unknown": unknown}
    found.update({f"{name}_token_id": token for name, token in named.items() if token is not None})
    return {f"tokenizer.ggml.{name}": value for name, value in found.items()}


def _cut(values: Mapping[str, Any], *, whole_words: bool) -> tuple[str, str]:
    """llama.cpp's name for the pre-tokeniser, and the reason if it has none.

    Some names also imply that a word that is a token becomes that token before any merge (``whole_words``).
    A name that differs in this is second choice: merges mostly give the same token, and the caller compares ids.
    """
    steps = list(steps_of(values.get("pre_tokenizer"), "pretokenizers"))
    normalizers = [step["type"] for step in steps_of(values.get("normalizer"), "normalizers")]
    if not steps or steps[-1]["type"] != "ByteLevel" or steps[-1]["add_prefix_space"]:
        return "", "it does not cut text into bytes (ByteLevel), or puts a space before it (add_prefix_space)"
    found = [_expression(step) for step in steps[:-1]]
    if steps[-1].get("use_regex", True):
        found.append(GPT2_WORDS)
    names = [name for name, cut in EXPRESSIONS.items() if list(cut) == found]
    if not names:
        return "", "its pre-tokenizer has no name there"
    names = [name for name in names if (["NFC"] if name in COMPOSED else []) == normalizers]
    if not names:
        return "", f"its normalizer ({', '.join(normalizers) or 'none'}) does not match its pre-tokenizer"
    return min(names, key=lambda name: (name in WHOLE_WORDS) != whole_words), ""


def _expression(step: Mapping[str, Any]) -> str | None:
    """The regular expression by which one step cuts, or None if it does something else."""
    if step["type"] == "Digits" and step["individual_digits"]:
        return r"\p{N}"
    # These expressions match the whole text, so nothing is left to remove.
    if step["type"] != "Split" or (step["behavior"].lower(), bool(step.get("invert"))) not in _KEEPS_ALL:
        return None
    found: str | None = step["pattern"].get("Regex")
    return found and found.replace("\r", r"\r").replace("\n", r"\n")


def steps_of(part: Mapping[str, Any] | None, several: str) -> Iterator[Mapping[str, Any]]:
    """The steps of a part of a ``tokenizer.json``, in order; ``several`` is the key of a sequence's steps."""
    waiting = [] if part is None else [part]
    while waiting:
        step = waiting.pop()
        if step["type"] == "Sequence":
            waiting += reversed(step[several])
        else:
            yield step


def _around(part: Mapping[str, Any] | None) -> tuple[int | None, int | None]:
    """The tokens added before and after a text, or None."""
    for step in steps_of(part, "processors"):
        if step["type"] == "TemplateProcessing":
            pieces, special = step["single"], step["special_tokens"]
            ends = [piece.get("SpecialToken", {}).get("id") for piece in (pieces[0], pieces[-1])]
            first, last = (None if name is None else next(iter(special[name]["ids"]), None) for name in ends)
            return first, last
    return None, None
