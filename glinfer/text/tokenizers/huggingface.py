"""Hugging Face tokenizers (``tokenizer.json``): the library splits text, this module finds the bytes of each token.

Three families are supported. *Byte-level* tokenizers (GPT-2, Llama 3, Qwen) write each byte as one character of a
printable alphabet. *SentencePiece-like* ones (Llama 2, T5) write a space as ``▁``, put one before the text, and may
write a byte as ``<0x0A>``. The file's ``decoder`` distinguishes these two. *WordPiece* (BERT) puts ``##`` before tokens
that continue a word; it mostly loses spaces and the case of letters, so decoding does not restore the text.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tokenizers
from tokenizers import decoders
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing

from glinfer.errors import FormatError, GlinferError, InputError
from glinfer.families.settings import quoted
from glinfer.formats.files import AnyPath, inside, is_directory, read_whole, shown, words_of
from glinfer.formats.gguf.vocabulary import byte_letters
from glinfer.formats.json_files import check_values, is_unicode, read_json
from glinfer.limits import MAX_TOKENIZER_BYTES, MAX_TOKENIZER_CONFIG_BYTES, MAX_TOKENIZER_VALUES, MAX_TOKENS
from glinfer.text.tokenizers.check import WORD_PIECE, check_kind, check_tokenizer

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
VOCABULARY_FILE = "vocab.txt"
_WORD_PIECE_TOKENS = {"unk": "[UNK]", "sep": "[SEP]", "cls": "[CLS]", "pad": "[PAD]"}
_MASK = "[MASK]"
_WORD_PIECE_FLAGS = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
_MAX_ID_DIGITS = 10
_LONG_TEXT = 1 << 12  # characters; shorter texts take a few milliseconds
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ALPHABET = {letter: byte for byte, letter in enumerate(byte_letters())}  # of byte-level vocabularies

Piece = str | bytes
"""A token inside the decoder: text, or bytes after a step that makes them."""


@dataclass(frozen=True, eq=False)
class HfModel:
    """The contents of a ``tokenizer.json``; made by :func:`read_hf_tokenizer`.

    Attributes:
        pieces: the bytes of every id that has a token; ids may have gaps.
        vocab_size: the highest id plus one.
        control_tokens: id of every special token by its text.
        prefix: the number of spaces that the tokenizer puts before a whole text.
        library: the library's tokenizer.
    """

    pieces: Mapping[int, bytes]
    vocab_size: int
    control_tokens: Mapping[str, int]
    prefix: int
    library: tokenizers.Tokenizer

    def ids(self, text: str, *, allow_special: bool) -> list[int]:
        """Token ids of ``text``; with ``allow_special``, also the special tokens that the file puts around a text."""
        library = self.library if allow_special else self._plain
        with library_errors("the tokenizer cannot encode this text", InputError):
            return library_ids(library, text, allow_special=allow_special)

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        """A copy of the library's tokenizer that treats special tokens as ordinary text.

        The library can skip matching special tokens, but splitting may still produce their names and thus their ids.
        So the copy renames them to names with a space, which normalised text (``Ġ`` or ``▁``) cannot contain. They
        are not removed, since the library derives the ids of added tokens from their number. Special tokens of a
        single character (some models pad with ``!``) keep their names, as text needs them.
        """
        with library_errors("the tokenizer cannot encode text without its special tokens", InputError):
            values = json.loads(self.library.to_str())
            names = {text: f" {token} " for text, token in self.control_tokens.items() if len(text) > 1}
            for added in values["added_tokens"]:
                added["content"] = names.get(added["content"], added["content"])
            model = values["model"]
            if isinstance(model["vocab"], list):
                model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
            else:
                model["vocab"] = {names.get(piece, piece): token for piece, token in model["vocab"].items()}
                if "merges" in model:
                    model["merges"] = [
                        (left, right)
                        for left, right in model["merges"]
                        if not names.keys() & {left, right, left + right}
                    ]
                model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
            values["post_processor"] = None  # it may refer to tokens by their names
            library = tokenizers.Tokenizer.from_str(json.dumps(values))
            library.encode_special_tokens = True
            return library


def library_ids(library: tokenizers.Tokenizer, text: str, *, allow_special: bool) -> list[int]:
    """The ids of a text; a long one is encoded as a batch, which unlike ``encode`` lets other threads run."""
    if len(text) < _LONG_TEXT:
        return list(library.encode(text, add_special_tokens=allow_special).ids)
    (found,) = library.encode_batch_fast([text], add_special_tokens=allow_special)
    return list(found.ids)


def read_hf_tokenizer(path: AnyPath) -> HfModel:
    """Read a ``tokenizer.json``, and the ``tokenizer_config.json`` next to it if it exists.

    Text gets the same ids as from ``AutoTokenizer`` of Hugging Face's transformers 5. As there, ``post_processor``
    alone decides the tokens around a text, and ``add_bos_token`` has no effect. The second file may add tokens
    (``added_tokens_decoder``), which get the next ids, and names further special tokens; names without an id are left
    out, as the model has no row for them. Padding and truncation settings are ignored.
    """
    path = Path(path)
    if path.name == VOCABULARY_FILE:
        return of_library(word_pieces_of(path), path)
    if is_directory(path):
        path /= TOKENIZER_FILE
        if not os.path.lexists(path):
            raise FormatError(
                f"{shown(path.parent)}: found a directory without {TOKENIZER_FILE}; expected a Hugging Face model "
                "with a fast tokenizer; save its tokenizer with save_pretrained of transformers"
            )
        inside(path)
    label = shown(path)
    data = read_whole(path, MAX_TOKENIZER_BYTES, f"a {TOKENIZER_FILE}")
    check_values(data, label, MAX_TOKENIZER_VALUES)
    damaged = f"{label}: this is not a {TOKENIZER_FILE}, or a damaged one"
    with library_errors(damaged, FormatError):
        values = json.loads(data)
    if not isinstance(values, dict) or not isinstance(values.get("model"), dict):
        raise FormatError(f"{damaged}: found no model in it")
    check_tokenizer(values, label)
    del values  # frees many times the size of the file
    with library_errors(damaged, FormatError):
        library = tokenizers.Tokenizer.from_buffer(data)
    return of_library(library, path)


def sidecar_json(path: Path, name: str = CONFIG_FILE) -> dict[str, Any]:
    """The object in a JSON file next to another file; empty without it."""
    file = path.with_name(name)
    return read_json(inside(file), MAX_TOKENIZER_CONFIG_BYTES) if os.path.lexists(file) else {}


def word_pieces_of(path: Path) -> tokenizers.Tokenizer:
    """BERT's tokenizer from a ``vocab.txt``, one token a line, with the ``tokenizer_config.json`` next to it."""
    label = shown(path)
    data = read_whole(path, MAX_TOKENIZER_BYTES, "a vocabulary")
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise FormatError(f"{label}: byte {error.start} is not UTF-8; expected one token per line") from None
    vocabulary = {line.rstrip("\r"): number for number, line in enumerate(lines) if line.rstrip("\r")}
    config = sidecar_json(path)
    named = {name: content_of(config.get(f"{name}_token")) or text for name, text in _WORD_PIECE_TOKENS.items()}
    missing = [text for text in named.values() if text not in vocabulary]
    if missing or len(vocabulary) > MAX_TOKENS:
        found = f"no token {quoted(missing[0])}" if missing else f"{len(vocabulary)} tokens"
        raise FormatError(f"{label}: found {found}; expected a vocabulary of WordPiece, at most {MAX_TOKENS} tokens")
    flags = {name: config.get(name, default) for name, default in _WORD_PIECE_FLAGS.items()}
    with library_errors(f"{label}: this is not a vocabulary of WordPiece", FormatError):
        library = tokenizers.Tokenizer(WordPiece(vocabulary, unk_token=named["unk"]))
        library.normalizer = BertNormalizer(
            lowercase=bool(flags["do_lower_case"]),
            strip_accents=flags["strip_accents"],
            handle_chinese_chars=bool(flags["tokenize_chinese_chars"]),
        )
        library.pre_tokenizer = BertPreTokenizer()
        library.decoder = decoders.WordPiece()
        ends = [(named[name], vocabulary[named[name]]) for name in ("sep", "cls")]
        library.post_processor = BertProcessing(*ends)
        mask = content_of(config.get("mask_token")) or _MASK
        special = [*named.values(), *([mask] if mask in vocabulary else [])]
        library.add_special_tokens(list(dict.fromkeys(special)))
    return library


def content_of(value: object) -> str | None:
    """The text of a token in ``tokenizer_config.json``: the value, or its ``content``; None for other values."""
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


def of_library(library: tokenizers.Tokenizer, path: Path) -> HfModel:
    """The model of a library's tokenizer, with the settings of the file next to ``path``."""
    label = shown(path)
    check_kind(type(library.model).__name__, label)
    library.no_truncation()
    library.no_padding()
    decode, prefix = _decoder(library, label)
    beside, config = path.with_name(CONFIG_FILE), sidecar_json(path)
    named = named_tokens_in(config)
    _add_tokens(library, config.get("added_tokens_decoder"), named, shown(beside))
    _mark_special(library, named, shown(beside))
    pieces, control = _pieces(library, decode)
    if not pieces:
        raise FormatError(f"{label}: its vocabulary is empty; expected at least one token; get the file again")
    return HfModel(MappingProxyType(pieces), max(pieces) + 1, MappingProxyType(control), prefix, library)


def with_decoder(model: HfModel) -> str:
    """A ``tokenizer.json`` with a decoder, which tokenizers from GGUF files lack."""
    library = tokenizers.Tokenizer.from_str(model.library.to_str())
    if library.decoder is not None:
        return str(library.to_str(pretty=True))
    if library.pre_tokenizer is not None and not getattr(library.model, "byte_fallback", False):
        library.decoder = decoders.ByteLevel()
    else:
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        strip = [decoders.Strip(" ", 1, 0)] if model.prefix else []
        library.decoder = decoders.Sequence([*steps, *strip])
    return str(library.to_str(pretty=True))


def _pieces(library: tokenizers.Tokenizer, decode: Callable[[str], bytes]) -> tuple[dict[int, bytes], dict[str, int]]:
    """The bytes of every id, and the ids of the special tokens."""
    own = library.get_vocab(with_added_tokens=False)
    pieces = {token: decode(text) for text, token in own.items()}
    control = {}
    for token, added in library.get_added_tokens_decoder().items():
        # Some files also mark byte tokens as special.
        is_byte = decode is not from_byte_level and isinstance(from_fallback(added.content), bytes)
        if added.special and not is_byte:
            control[added.content] = token
        if added.content in control or (decode is from_byte_level and added.content not in own):
            # Matched in the original text, before its bytes become characters of the alphabet.
            pieces[token] = added.content.encode()
        else:
            pieces[token] = decode(added.content)
    return pieces, control


def named_tokens_in(config: Mapping[str, Any]) -> list[str]:
    """The special tokens in ``tokenizer_config.json``: ``eos_token`` and similar keys, and lists of tokens."""
    named = [value for key, value in config.items() if key.endswith("_token")]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = config.get(key)
        named += more if isinstance(more, list) else more.values() if isinstance(more, dict) else ()
    texts = [content_of(value) for value in named]
    return [text for text in texts if text and is_unicode(text)]


def _add_tokens(library: tokenizers.Tokenizer, listed: object, named: list[str], label: str) -> None:
    """Add the tokens of ``added_tokens_decoder`` as transformers does: in the order of their ids there.

    The library assigns the next ids itself; a token that it already has keeps its id and gets the flags.
    """
    entries = listed if isinstance(listed, dict) else {}
    tokens = {}
    for number, entry in entries.items():
        content = entry.get("content") if isinstance(entry, dict) else None
        is_text = isinstance(content, str) and is_unicode(content)
        if not (number.isascii() and number.isdecimal() and len(number) < _MAX_ID_DIGITS and is_text):
            raise FormatError(
                f"{label}: added_tokens_decoder has {quoted(entry)} for {quoted(number)}; expected a token's id, and "
                "an object with its content and flags"
            )
        flags = {name: bool(entry[name]) for name in _FLAGS if name in entry}
        flags["special"] = flags.get("special", False) or content in named
        tokens[int(number)] = tokenizers.AddedToken(content, **flags)
    with library_errors(f"{label}: its added_tokens_decoder does not match {TOKENIZER_FILE}", FormatError):
        library.add_tokens([tokens[number] for number in sorted(tokens)])


def _mark_special(library: tokenizers.Tokenizer, named: list[str], label: str) -> None:
    """Mark the tokens that ``tokenizer_config.json`` names as special."""
    # Tokens that are already special keep their flags, such as whether they absorb spaces next to them.
    already = {added.content for added in library.get_added_tokens_decoder().values() if added.special}
    known = [text for text in named if text not in already and library.token_to_id(text) is not None]
    with library_errors(f"{label}: its special tokens do not match {TOKENIZER_FILE}", FormatError):
        library.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in known])


def _decoder(library: tokenizers.Tokenizer, label: str) -> tuple[Callable[[str], bytes], int]:
    """A function from a token's text to its bytes, and the number of spaces that the tokenizer puts before a text.

    Without a decoder, the pre-tokenizer that it would undo is used instead.
    """
    if type(library.model).__name__ == WORD_PIECE:
        return _word_pieces(str(library.model.continuing_subword_prefix)), 1
    part = library.decoder or library.pre_tokenizer
    state: dict[str, Any] = {} if part is None else json.loads(part.__getstate__())
    entries = state.get("decoders") or state.get("pretokenizers") or [state]
    kinds = [entry.get("type") for entry in entries]
    if "ByteLevel" in kinds:
        others = [kind for kind in kinds if kind not in ("ByteLevel", "Fuse")]
        if not others or library.decoder is None:
            return from_byte_level, 0
        raise FormatError(f"{label}: its decoder has ByteLevel and {others[0]}; expected only ByteLevel; use token ids")
    steps, prefix = _decoder_steps(entries, label)

    def decode(text: str) -> bytes:
        piece: Piece = text
        for step in steps:
            piece = step(piece)
        return piece.encode() if isinstance(piece, str) else piece

    return decode, prefix


def _decoder_steps(entries: list[dict[str, Any]], label: str) -> tuple[list[Callable[[Piece], Piece]], int]:
    """The steps of a decoder that makes spaces of ▁, and the number of spaces that the tokenizer puts before a text."""
    steps: list[Callable[[Piece], Piece]] = []
    prefix, spaces = 0, False
    for entry in entries:
        kind = entry.get("type")
        if kind == "Metaspace":
            steps.append(_replaced(entry["replacement"], " "))
            prefix = 0 if entry.get("prepend_scheme") == "never" else 1
            spaces = True
        elif kind == "Replace" and "String" in entry["pattern"]:
            steps.append(_replaced(entry["pattern"]["String"], entry["content"]))
            spaces = spaces or entry["content"] == " "
        elif kind == "ByteFallback":
            steps.append(from_fallback)
        elif kind == "Strip" and entry["content"] == " " and not entry["stop"]:
            prefix = entry["start"]
        elif kind != "Fuse":
            raise FormatError(
                f"{label}: its decoder has {kind}; expected ByteLevel, or ▁ for a space (Metaspace, Replace, "
                "ByteFallback, Fuse, Strip); use token ids with this model"
            )
    if not spaces:
        raise FormatError(f"{label}: its decoder makes no spaces; expected ByteLevel or ▁ for a space; use token ids")
    return steps, prefix


def _word_pieces(mark: str) -> Callable[[str], bytes]:
    """The bytes of WordPiece tokens: a space before each that begins a word, and no mark on the others."""
    return lambda text: (text.removeprefix(mark) if mark and text.startswith(mark) else f" {text}").encode()


def _replaced(old: str, new: str) -> Callable[[Piece], Piece]:
    return lambda piece: piece.replace(old, new) if isinstance(piece, str) else piece


def from_fallback(piece: Piece) -> Piece:
    """The byte that a text such as ``<0x0A>`` stands for; other texts unchanged."""
    found = _BYTE.fullmatch(piece) if isinstance(piece, str) else None
    return bytes.fromhex(found[1]) if found else piece


def from_byte_level(text: str) -> bytes:
    """The bytes of a token; a token with characters outside the alphabet is plain text, as in the library."""
    try:
        return bytes([_ALPHABET[character] for character in text])
    except KeyError:
        return text.encode()


@contextlib.contextmanager
def library_errors(what: str, kind: type[GlinferError]) -> Iterator[None]:
    """Turn any error of the library into one line; its panics are not an ``Exception``."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise kind(f"{what}: {words_of(error)}") from None
