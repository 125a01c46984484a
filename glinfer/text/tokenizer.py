"""Tokenizers: Gab's byte-level BPE, and those of Hugging Face models and GGUF files.

Hugging Face's ``tokenizers`` library splits the text for all of them.
"""

from __future__ import annotations

import dataclasses
import json
import operator
import os
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Split
from tokenizers.trainers import BpeTrainer

from glinfer.config import ModelConfig
from glinfer.errors import FormatError, InputError, check_flag
from glinfer.formats.files import AnyPath, check_path, inside, is_directory, opened
from glinfer.formats.gab.bpe import BpeModel, is_merges_json, read_bpe, read_merges_json
from glinfer.formats.gguf.file import is_gguf
from glinfer.formats.gguf.vocabulary import Vocabulary
from glinfer.text.tokenizers.gguf import read_gguf_tokenizer
from glinfer.text.tokenizers.huggingface import (
    TOKENIZER_FILE,
    VOCABULARY_FILE,
    HfModel,
    library_ids,
    read_hf_tokenizer,
)
from glinfer.text.tokenizers.slow import MERGES_FILE, PIECES_FILE, WORDS_FILE, read_slow_tokenizer

_CONTROL = rb"<\|[a-z_]+\|>"
_BYTES = 256
_PIECE = 1 << 14  # characters


END_OF_TURN = "<|end|>"
"""The special token that ends a turn of a chat."""


class Tokenizer:
    """Converts text to token ids and back, with the vocabulary of a Gab, a Hugging Face model or a GGUF file.

    Control tokens, such as ``<|user|>``, tell the model where parts of its input begin and end. Text can spell them;
    ``encode(text, allow_special=False)`` treats such text as ordinary. In BPE1 they are the entries of the form
    ``<|name|>``; a second-generation Gab's JSON also reserves some (``<think>``). In a ``tokenizer.json`` of Hugging
    Face and in a GGUF file they are the tokens marked as special or control.

    Args:
        model: what a reader of :mod:`glinfer.formats.gab.bpe` or :mod:`glinfer.text.tokenizers` returned.
        path: the file or directory that ``model`` was read from, or None.

    Attributes:
        control_tokens: id of every control token by its text.
        path: as given; the chat template and end tokens may be in the same folder.
    """

    def __init__(self, model: BpeModel | HfModel, path: AnyPath | None = None) -> None:
        """Look up the control tokens, and prepare the library."""
        self.path = None if path is None else Path(path)
        self._source = model if isinstance(model, HfModel) else _Merges(model)
        self.control_tokens: Mapping[str, int] = self._source.control_tokens

    @classmethod
    def from_file(cls, path: AnyPath) -> Tokenizer:
        """Read the tokenizer in a BPE1 file, a ``tokenizer.json``, a GGUF file or a model's directory.

        Files of slow tokenizers are read too: a SentencePiece model, and ``vocab.json`` with ``merges.txt``. A
        ``tokenizer.json`` may be Hugging Face's or a second-generation Gab's; its first bytes decide.

        Raises:
            FormatError: a file cannot be read or is damaged, or its kind of tokenizer is not supported.
        """
        folder = is_directory(path)
        if not folder and is_gguf(path):
            return cls(read_gguf_tokenizer(path), path)
        file = Path(path) / TOKENIZER_FILE if folder else path
        if folder and not os.path.lexists(file):
            found = next((each for each in _candidates(Path(path)) if each.is_file()), None)
            return cls(read_hf_tokenizer(path), file) if found is None else cls.from_file(inside(found))
        if Path(path).name in (WORDS_FILE, MERGES_FILE):
            return cls(read_slow_tokenizer(Path(path)), path)
        if (not folder or Path(file).is_file()) and is_merges_json(file):
            return cls(read_merges_json(file), file)
        if folder or Path(path).suffix == ".json" or Path(path).name == VOCABULARY_FILE:
            return cls(read_hf_tokenizer(path), file)
        with opened(path) as (start, _):
            begin = start.read(64)
        if begin.lstrip().startswith(b"{"):
            return cls(read_hf_tokenizer(path), path)
        is_pieces = begin.startswith(b"\n") or Path(path).name == PIECES_FILE  # "\n" is the tag of the first piece
        return cls(read_slow_tokenizer(Path(path)) if is_pieces else read_bpe(path), path)

    @property
    def kind(self) -> str:
        """The algorithm, such as ``BPE`` or ``Unigram``; Gab's own is ``byte-level BPE without words``."""
        if isinstance(self._source, HfModel):
            return type(self._source.library.model).__name__
        return "byte-level BPE without words"

    @property
    def vocab_size(self) -> int:
        """The highest id plus one; a BPE1 vocabulary has a token for every id below it."""
        return self._source.vocab_size

    @property
    def prefix(self) -> int:
        """The number of spaces that the tokenizer puts before a whole text and :meth:`decode` removes."""
        return self._source.prefix

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary for writing a GGUF file: a BPE1 model, or the contents of a ``tokenizer.json``."""
        if isinstance(self._source, _Merges):
            return self._source.model
        values: dict[str, Any] = json.loads(self._source.library.to_str())
        return values

    def library_json(self) -> str:
        """The tokenizer as a ``tokenizer.json``; InputError if the tokenizer is a BPE1 one, which has no such form."""
        if isinstance(self._source, _Merges):
            raise InputError("a BPE1 tokenizer cannot encode texts for embeddings; expected a tokenizer.json")
        return str(self._source.library.to_str())

    def same_as(self, other: Tokenizer) -> bool:
        """Whether two tokenizers have the same tokens, control tokens and merges."""
        own, theirs = self._source, other._source
        if isinstance(own, HfModel) and isinstance(theirs, HfModel):
            same = ("pieces", "control_tokens", "vocab_size", "prefix")
            models = [json.loads(each.library.to_str())["model"] for each in (own, theirs)]
            return all(getattr(own, name) == getattr(theirs, name) for name in same) and (
                models[0].get("merges") == models[1].get("merges")
            )
        return isinstance(own, _Merges) and isinstance(theirs, _Merges) and own.model == theirs.model

    def fits(self, config: ModelConfig, *, exactly: bool = False) -> bool:
        """Whether the model has an embedding row for every token.

        Hugging Face models may have further rows as padding, unless ``exactly`` is set.
        """
        if exactly or isinstance(self._source, _Merges):
            return self.vocab_size == config.vocab_size
        return self.vocab_size <= config.vocab_size

    def encode(self, text: str, *, allow_special: bool = True) -> list[int]:
        """Token ids of ``text``; :meth:`decode` gives exactly ``text`` back, unless a ``tokenizer.json`` changes it.

        A ``tokenizer.json`` may normalise text, lack a token for a character, or put special tokens around the text.
        Without ``allow_special`` no id is a control token or a longer token that contains one: text that spells a
        control token becomes ordinary tokens, and none are put around the text. Two exceptions remain: special tokens
        of a single character, and the unknown token.

        Raises:
            InputError: the text has half a surrogate pair, which has no UTF-8 form.
        """
        check_flag("allow_special", allow_special)
        return self._source.ids(encodable(text), allow_special=allow_special)

    @cached_property
    def around(self) -> tuple[list[int], list[int]]:
        """The ids that the tokenizer puts before and after every text, such as ``<s>`` and ``</s>``."""
        whole, none = (self._source.ids(each, allow_special=True) for each in ("a", ""))
        before = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(whole, none, strict=False)))
        return none[:before], none[before:]

    def encode_more(self, text: str) -> list[int]:
        """Token ids of a text that continues other tokens: as :meth:`encode`, but without special tokens around it.

        Raises:
            InputError: as :meth:`encode`.
        """
        ids = self._later.ids(encodable(text), allow_special=True)
        before, after = map(len, self.around)
        return ids[before : len(ids) - after]

    def beginning(self, text: str, most: int) -> tuple[str, int]:
        """A prefix of a text that surely has more than ``most`` tokens, or all of it; and its minimum number of tokens.

        Encoding a whole text takes time for its full length, even if few tokens are needed. Here pieces are encoded
        separately until they have more than twice ``most`` tokens and 64 more a piece. That margin covers the tokens
        near a piece's ends, which may differ from those of the whole text.

        Raises:
            InputError: as :meth:`encode`.
        """
        tokens = pieces = 0
        while pieces * _PIECE < len(text) and tokens <= 2 * most + 64 * pieces:
            tokens += len(self.encode(text[pieces * _PIECE : (pieces + 1) * _PIECE]))
            pieces += 1
        return text[: pieces * _PIECE], max(0, tokens - 64 * pieces) // 2

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of a text that continues other tokens, without control tokens in it or special tokens around it.

        Raises:
            InputError: as :meth:`encode`.
        """
        return self._later.ids(encodable(text), allow_special=False)

    def encode_mixed(self, parts: Iterable[str | int]) -> list[int]:
        """Token ids of a sequence of texts and control token ids; adjacent texts are joined first.

        Ids are kept, and text never becomes a control token, as in :meth:`encode` without ``allow_special``. Otherwise
        the ids are those of the whole text, without special tokens around it. A control token absorbs the spaces
        next to it if the tokenizer marks it so.

        Raises:
            InputError: as :meth:`encode`.
        """
        ids: list[int] = []
        last: int | None = None
        text = ""
        for part in (*parts, None):
            if isinstance(part, str):
                text += part
                continue
            takes_left, takes_right = self._taking
            text = text.lstrip() if last in takes_right else text
            text = text.rstrip() if part in takes_left else text
            if text:
                ids += (self._source if last is None else self._later).ids(encodable(text), allow_special=False)
            if part is not None:
                ids.append(part)
            last, text = part, ""
        return ids

    @cached_property
    def _later(self) -> HfModel | _Merges:
        """The source for text after a control token: some tokenizers put a space before the first text only."""
        if not isinstance(self._source, HfModel):
            return self._source
        values = self._source.library.to_str()
        never = values.replace('"prepend_scheme":"first"', '"prepend_scheme":"never"')
        if never == values:
            return self._source
        return dataclasses.replace(self._source, library=tokenizers.Tokenizer.from_str(never))

    @cached_property
    def _taking(self) -> tuple[frozenset[int], frozenset[int]]:
        """The special tokens that absorb the spaces before them, and those that absorb the spaces after them."""
        known = self._source.library.get_added_tokens_decoder() if isinstance(self._source, HfModel) else {}
        special = [(token, flags) for token, flags in known.items() if flags.special]
        left, right = (frozenset(token for token, flags in special if getattr(flags, f"{side}strip")) for side in "lr")
        return left, right

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``: their bytes as UTF-8, with U+FFFD for bad bytes.

        The ids are those of a whole text: the space that SentencePiece-like tokenizers put before it is removed.

        Raises:
            InputError: an id is not an integer, or has no token.
        """
        if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
            raise InputError(f"the tokens are {type(ids).__name__}; expected a list of token ids")
        data = b"".join(map(self.token_bytes, ids))
        spaces = min(self._source.prefix, len(data) - len(data.lstrip(b" ")))
        return data[spaces:].decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token within a text, which may begin with a space or end inside a UTF-8 character.

        Rows of the model without a token in its ``tokenizer.json`` have no bytes.

        Raises:
            InputError: ``token`` is not an integer of at least 0, or is outside a BPE1 vocabulary.
        """
        try:
            index = operator.index(token)
        except TypeError:
            raise InputError(f"a token is {type(token).__name__}; expected an integer") from None
        if index < 0 or (index >= self.vocab_size and isinstance(self._source, _Merges)):
            raise InputError(
                f"token {index} is outside the vocabulary; expected 0 to {self.vocab_size - 1}; "
                "the tokens may come from another tokenizer"
            )
        return self._source.pieces.get(index, b"")

    def special_id(self, text: str) -> int | None:
        """The id of the control token spelled ``text``, such as ``<|user|>``, or None."""
        return self.control_tokens.get(text)


def encodable(text: str, called: str = "the text") -> str:
    """Return a text that has a UTF-8 form; ``called`` names it in errors.

    Raises:
        InputError: it is not a str, or has half a surrogate pair.
    """
    if not isinstance(text, str):
        raise InputError(f"{called} is {type(text).__name__}; expected a str")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{called} has half a surrogate pair (U+{ord(text[error.start]):04X}) at character "
            f"{error.start}; expected valid Unicode; take it out or replace it"
        ) from None
    return text


class _Merges:
    """A byte-level BPE without a pre-tokeniser: merges apply in file order over the whole text.

    Control tokens are ordinary merges. The attributes are those of
    :class:`glinfer.text.tokenizers.huggingface.HfModel`.
    """

    prefix = 0

    def __init__(self, model: BpeModel) -> None:
        """Build two tokenizers: with and without the merges that make control tokens."""
        self.model = model
        self.vocab_size = len(model.vocabulary)
        self.pieces: Mapping[int, bytes] = dict(enumerate(model.vocabulary))
        control = re.compile(b"|".join([_CONTROL, *(re.escape(text.encode()) for text in model.reserved)]))
        self.control_tokens: Mapping[str, int] = MappingProxyType(
            {piece.decode(): token for token, piece in self.pieces.items() if control.fullmatch(piece)}
        )
        plain = [merge for merge in model.merges if not control.search(self.pieces[merge[2]])]
        self._full = _library_tokenizer(model.vocabulary, model.merges)
        self._plain = _library_tokenizer(model.vocabulary, plain)

    def ids(self, text: str, *, allow_special: bool) -> list[int]:
        """Token ids of ``text``."""
        library = self._full if allow_special else self._plain
        return library_ids(library, text.encode().decode("latin-1"), allow_special=False)


def find_tokenizer(
    checkpoint: AnyPath, given: AnyPath | Tokenizer | None, config: ModelConfig
) -> tuple[Tokenizer | None, str]:
    """Find the tokenizer of a checkpoint: the given one, else the first one in or next to the checkpoint that fits.

    The candidates are a GGUF file's own vocabulary, then ``<checkpoint>.bpe``, ``model.bpe``, ``tokenizer.json`` and
    the files of a slow tokenizer, next to the checkpoint or in its directory. A ``tokenizer.json`` that was found, not
    given, fits a model of the gab family if both have the same number of tokens. It fits any other model that has a
    row for each of its tokens.

    Returns:
        The tokenizer and "", or None and the reason.

    Raises:
        InputError: the given tokenizer does not fit the model.
        FormatError: the given tokenizer cannot be read.
    """
    if given is not None:
        if not isinstance(given, Tokenizer):
            check_path("the tokenizer", given)
        chosen = given if isinstance(given, Tokenizer) else Tokenizer.from_file(given)
        if not chosen.fits(config):
            raise InputError(
                f"the tokenizer has {chosen.vocab_size} tokens, the model {config.vocab_size}; "
                "they must be the pair that was trained together"
            )
        return chosen, ""
    reasons = []
    advice = "pass the right one with tokenizer=… (--tokenizer) or use token ids"
    own = Path(checkpoint) if is_gguf(checkpoint) else None
    for candidate in (*([own] if own else []), *_candidates(Path(checkpoint))):
        if not candidate.is_file():
            continue
        try:
            beside = Tokenizer.from_file(inside(candidate))
        except FormatError as error:  # the user did not choose this file, and token ids need no tokenizer
            whose = "the checkpoint's own tokenizer" if candidate == own else "the tokenizer next to the checkpoint"
            reasons.append(f"{whose} cannot be used: {error}; {advice}")
            continue
        if beside.fits(config, exactly=config.family.gab1):
            return beside, ""
        where = "the vocabulary in the checkpoint" if candidate == own else f"{candidate} next to the checkpoint"
        reasons.append(f"{where} has {beside.vocab_size} tokens, the model {config.vocab_size}; {advice}")
    return None, reasons[0] if reasons else "no tokenizer was given; pass tokenizer=… (--tokenizer) or use token ids"


def _candidates(path: Path) -> tuple[Path, ...]:
    names = "model.bpe", TOKENIZER_FILE, VOCABULARY_FILE, PIECES_FILE, WORDS_FILE
    if is_directory(path):
        return tuple(path / name for name in names)
    return path.with_suffix(".bpe"), *(path.with_name(name) for name in names)


def _library_tokenizer(pieces: tuple[bytes, ...], merges: Iterable[tuple[int, int, int]]) -> tokenizers.Tokenizer:
    """The library's tokenizer with these merges, for text with one character (U+0000–U+00FF) for each byte.

    The library merges the earliest listed pair first, from left to right. No merge uses a piece made later, so this
    equals applying the merges in order over the whole text. Without a pre-tokeniser each "word" is a whole text,
    which rarely repeats, so the library's cache of words is off.
    """
    names = [piece.decode("latin-1") for piece in pieces]
    vocabulary = {name: token for token, name in enumerate(names)}
    pairs = [(names[left], names[right]) for left, right, _ in merges]
    return tokenizers.Tokenizer(BPE(vocab=vocabulary, merges=pairs, cache_capacity=0))


def learn_bpe(texts: Iterable[str], size: int, first: Iterable[str] = ()) -> BpeModel:
    """Learn a byte-level BPE of at most ``size`` entries: bytes, the ``first`` pieces, then learned merges.

    For learning, the text is cut into words with the space before them, runs of punctuation and runs of space, and
    merges stay within these; the tokenizer itself cuts nothing (see :class:`Tokenizer`). The library's trainer
    learns the merges (Sennrich et al. 2016).

    Args:
        texts: the training texts.
        size: the maximum vocabulary size, at least 256; short texts give fewer entries.
        first: pieces that get the first ids after the bytes, such as control tokens; each adds its prefixes.
    """
    pieces = [bytes([value]) for value in range(_BYTES)]
    ids = {piece: index for index, piece in enumerate(pieces)}
    merges: list[tuple[int, int, int]] = []

    def merge(left: bytes, right: bytes) -> None:
        if left + right not in ids and len(pieces) < size:
            ids[left + right] = len(pieces)
            merges.append((ids[left], ids[right], len(pieces)))
            pieces.append(left + right)

    for text in first:
        piece = text.encode()
        for end in range(1, len(piece)):
            merge(piece[:end], piece[end : end + 1])
    for left, right in _learned_merges(texts, size):
        merge(left, right)
    return BpeModel(tuple(merges), tuple(pieces))


def _learned_merges(texts: Iterable[str], size: int) -> list[tuple[bytes, bytes]]:
    # One character U+0000–U+00FF for each byte: the trainer then works on bytes.
    learner = tokenizers.Tokenizer(BPE())
    learner.pre_tokenizer = Split(tokenizers.Regex(r" ?\w+| ?[^\w\s]+|\s+"), "isolated")
    alphabet = [chr(value) for value in range(_BYTES)]
    trainer = BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    learner.train_from_iterator((text.encode().decode("latin-1") for text in texts), trainer)
    merges = json.loads(learner.to_str())["model"]["merges"]
    return [(left.encode("latin-1"), right.encode("latin-1")) for left, right in merges]
