"""Checks of a ``tokenizer.json`` before its library runs it, which checks nothing.

A file of a thousand bytes could double a text forty times, or search it for minutes. So every step is checked, and
every expression is tried on a few hundred characters.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Regex, pre_tokenizers

from glinfer.errors import FormatError
from glinfer.families.settings import quoted
from glinfer.formats.gguf.words import EXPRESSIONS
from glinfer.limits import MAX_AROUND_PIECES, MAX_STEP_CHARACTERS, MAX_STEPS, MAX_TEXT_GROWTH, MAX_TOKEN_ID, MAX_TOKENS
from glinfer.text.tokenizers.patterns import problem_of

_PARTS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "decoder": "decoders",
    "post_processor": "processors",
}
"""The parts of a file that have steps, and for each the key that lists several steps."""
WORD_PIECE = "WordPiece"
"""BERT's kind of model: tokens that begin with a mark, mostly ``##``, continue a word."""
_KNOWN = frozenset(itertools.chain.from_iterable(EXPRESSIONS.values()))
_PROBE_LENGTHS = (16, 32, 64, 128, 256, 512)
_PROBE_SECONDS = 0.02  # processor time; a safe expression takes a hundredth of it
_PROBES = 3  # a busy machine can slow a single probe
_MAX_LITERALS = 16  # characters of an expression that are tried besides the usual ones


def check_tokenizer(values: Mapping[str, Any], label: str) -> None:
    """Refuse steps that could do harm, or that no tokenizer of a language model needs."""
    _check_model(values["model"], label)
    growth = 1.0
    for name, several in _PARTS.items():
        for step in _steps(values.get(name), several, f"{label}: its {name}"):
            growth *= _growth(step, f"{label}: its {name}")
            if growth > MAX_TEXT_GROWTH:
                raise FormatError(
                    f"{label}: its {name} can make a text more than {MAX_TEXT_GROWTH} times as long; expected less; "
                    "do not trust this file"
                )


def check_kind(kind: object, label: str) -> None:
    """Refuse kinds of models whose tokens have no bytes."""
    if kind not in ("BPE", "Unigram", WORD_PIECE):
        shown = kind if isinstance(kind, str) and len(kind) < 40 and kind.isidentifier() else quoted(kind)
        raise FormatError(
            f"{label}: its model is {shown}; expected BPE, Unigram or WordPiece; use token ids with this model"
        )


def _check_model(model: Mapping[str, Any], label: str) -> None:
    if "type" in model:  # old files lack it
        check_kind(model["type"], label)
    for mark in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(mark) and model.get("type") != WORD_PIECE:
            raise FormatError(
                f"{label}: its model has {mark} {quoted(model[mark])}; expected tokens without marks at the ends of "
                "words; use token ids with this model"
            )
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, (dict, list)) and len(vocabulary) > MAX_TOKENS:
        raise FormatError(f"{label}: it has {len(vocabulary)} tokens, which exceeds the limit of {MAX_TOKENS}")
    if isinstance(vocabulary, dict) and all(isinstance(token, int) for token in vocabulary.values()):
        by_id: dict[int, str] = {}
        for text, token in vocabulary.items():
            if token > MAX_TOKEN_ID:
                raise FormatError(
                    f"{label}: its vocabulary has id {quoted(token)} for {quoted(text)}; "
                    f"expected {MAX_TOKEN_ID} at most"
                )
            if by_id.setdefault(token, text) != text:
                raise FormatError(
                    f"{label}: its vocabulary has id {token} for {quoted(by_id[token])} and for {quoted(text)}; "
                    "expected a unique id for every token; get the file again"
                )


def _steps(part: object, several: str, where: str) -> Iterator[Mapping[str, Any]]:
    """The steps of a part in order, including those of nested sequences."""
    stack, found = [part], 0
    while stack:
        step = stack.pop()
        if not isinstance(step, dict):
            continue
        found += 1
        if found > MAX_STEPS:
            raise FormatError(f"{where} has more than {MAX_STEPS} steps; expected fewer; do not trust this file")
        listed = step.get(several)
        if step.get("type") == "Sequence" and isinstance(listed, list):
            stack += reversed(listed)
        else:
            yield step


def _growth(step: Mapping[str, Any], where: str) -> float:
    """The largest factor by which a step can lengthen a text, in bytes."""
    kind = step.get("type")
    if kind == "ByteLevel":
        return 2.0  # a non-ASCII byte becomes a character of two bytes
    if kind in ("Replace", "Split"):
        return _matched(step, where)
    if kind in ("Prepend", "Strip"):
        content = step.get("prepend", step.get("content"))
        if isinstance(content, str) and len(content) > MAX_STEP_CHARACTERS:
            raise FormatError(
                f"{where} has a text of {len(content)} characters, which exceeds the limit of {MAX_STEP_CHARACTERS}"
            )
    elif kind == "Precompiled":
        return _longest_replacement(step.get("precompiled_charsmap"), where)
    elif kind == "TemplateProcessing":
        _check_template(step, where)
    return 1.0


def _matched(step: Mapping[str, Any], where: str) -> float:
    pattern, content = step.get("pattern"), step.get("content")
    if isinstance(pattern, dict) and "Regex" in pattern:
        _check_pattern(pattern["Regex"], where)
    if step["type"] == "Split" or not isinstance(pattern, dict) or not isinstance(content, str):
        return 1.0  # it only cuts, or the library refuses it
    nbytes = len(content.encode(errors="replace"))
    if "Regex" in pattern:
        return 1.0 + nbytes  # the expression may match between any two characters
    old = pattern.get("String")
    if old == "":
        raise FormatError(f"{where} replaces the empty text; expected at least one character")
    return max(1.0, nbytes / len(old.encode(errors="replace"))) if isinstance(old, str) else 1.0


def _longest_replacement(charsmap: object, where: str) -> float:
    """The longest text in SentencePiece's table: the size of a trie (4 bytes), the trie, and the texts."""
    if not isinstance(charsmap, str):
        return 1.0
    try:
        data = base64.b64decode(charsmap, validate=True)
    except (binascii.Error, ValueError):
        raise FormatError(f"{where} has a precompiled_charsmap that is not base64; get the file again") from None
    size = int.from_bytes(data[:4], "little")
    if size > len(data):  # the library would allocate this size
        raise FormatError(f"{where}'s precompiled_charsmap is damaged; get the file again")
    texts = data[4 + size :]
    return float(max(1, max(map(len, texts.split(b"\0")))))


def _check_template(step: Mapping[str, Any], where: str) -> None:
    special = step.get("special_tokens")
    counts = [len(step[name]) for name in ("single", "pair") if isinstance(step.get(name), list)]
    if isinstance(special, dict):
        lists = [entry.get("ids") for entry in special.values() if isinstance(entry, dict)]
        counts += [len(ids) for ids in lists if isinstance(ids, list)]
    if max(counts, default=0) > MAX_AROUND_PIECES:
        raise FormatError(
            f"{where} puts {max(counts)} pieces around a text, which exceeds the limit of {MAX_AROUND_PIECES}; "
            "do not trust this file"
        )


def _check_pattern(pattern: object, where: str) -> None:
    """Refuse an expression whose form allows exponential time, or that is slow on a run of one character."""
    if not isinstance(pattern, str) or pattern in _KNOWN:
        return
    problem = problem_of(pattern) or _slowness(pattern)
    if problem:
        raise FormatError(
            f"{where} has the expression {quoted(pattern)}, {problem}; searching a text with it can take very long; "
            "do not trust this file"
        )


def _slowness(pattern: str) -> str:
    try:
        cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    except Exception:  # an invalid expression, which the library reports when it reads the file
        return ""
    literals = list(dict.fromkeys(letter for letter in pattern if letter.isprintable()))[:_MAX_LITERALS]
    # The library skips a text that lacks a literal which the expression requires, so the run ends with all literals.
    for letter, end in itertools.product(dict.fromkeys((*"aA1 \n!é日", *literals)), ("", "\n\n" + "".join(literals))):
        for length in _PROBE_LENGTHS:
            try:
                slow = _takes_long(cut, letter * length + end)
            except BaseException as error:  # the library panics at its own limit of steps
                if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                    raise
                return "which gives up on a run of one character"
            if slow:
                return f"which takes long on a run of {length} characters"
    return ""


def _takes_long(cut: pre_tokenizers.PreTokenizer, text: str) -> bool:
    for _ in range(_PROBES):
        started = time.thread_time()
        cut.pre_tokenize_str(text)
        if time.thread_time() - started <= _PROBE_SECONDS:
            return False
    return True
