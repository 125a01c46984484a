"""Tokenizers of GGUF files, from the vocabulary in their metadata (``tokenizer.ggml.*``).

``llama``, SentencePiece's BPE, has no merges: neighbours with the best score join first. ``gemma4`` has merges. In
``bert``, ``▁`` is before tokens that begin a word, instead of ``##`` before tokens that continue one.

Source: llama.cpp's ``llama-vocab.cpp``, which gives the same ids. The merges of ``llama`` are derived as in Hugging
Face's converter of slow tokenizers.
"""

from __future__ import annotations

import base64
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property
from itertools import repeat
from math import isfinite
from types import MappingProxyType
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.processors import TemplateProcessing

from glinfer.errors import FormatError, GlinferWarning
from glinfer.families.settings import Unread, quoted
from glinfer.formats.files import AnyPath
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.gguf.words import BEGIN_WITH_BOS, COMPOSED, EXPRESSIONS, WHOLE_WORDS
from glinfer.limits import MAX_TOKEN_CHARACTERS, MAX_VOCABULARY_CHARACTERS
from glinfer.text.tokenizers.check import check_tokenizer
from glinfer.text.tokenizers.huggingface import HfModel, from_byte_level, from_fallback, library_errors

_PREFIX = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6  # token types; 1 is normal, 5 unused
_MERGES_FOR_EACH, _MERGES_FOR_ALL = 4, 1 << 16  # a vocabulary of 262 144 has 2 merges a token
_KINDS = {
    "gpt2": "BPE of bytes",
    "llama": "SentencePiece's BPE",
    "gemma4": "SentencePiece's BPE with merges",
    "bert": "WordPiece",
    "t5": "SentencePiece's Unigram",
}
_LONGEST_WORD = 100  # characters, as in BERT's own tokenizer; longer words become the unknown token
_USUAL_IDS = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "bert": {"bos": 101, "sep": 102, "unknown": 100},
    "t5": {"eos": 1, "unknown": 2},
}
_NAMED = ("bos", "eos", "eot", "eom", "unknown", "sep")
_SPELLED = {"sep": "seperator"}  # the spelling in the files' keys
_ROBERTA = "roberta-bpe"
MARK = "##"
"""Prefix of WordPiece tokens that continue a word, outside GGUF files."""
# End-of-text tokens for files that do not name them; llama.cpp uses the same texts.
ENDS = frozenset(
    {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
     "<EOT>", "<end_of_utterance>", "<｜end▁of▁sentence｜>", "<|return|>", "<|call|>", "<turn|>"}
)  # fmt: skip
ENDS_A_MESSAGE, ENDS_A_REPLY = "<|end|>", frozenset({"<|return|>", "<|call|>"})


def read_gguf_tokenizer(path: AnyPath) -> HfModel:
    """The tokenizer of the model in a GGUF file; see :func:`gguf_tokenizer`."""
    file = read_gguf_file(path)
    return gguf_tokenizer(file.metadata, file.source)


def gguf_tokenizer(metadata: Mapping[str, Any], source: str) -> HfModel:
    """The tokenizer that a GGUF file's metadata describes.

    Control tokens are those of type control and unknown, and those that the file names as ``bos``, ``eos``, ``eot``,
    ``eom`` or unknown. For SentencePiece's BPE, llama.cpp joins pairs of equal score from left to right; here their
    order may differ. Real vocabularies have distinct scores.
    """
    vocabulary = _Vocabulary(metadata, source)
    if vocabulary.twice:
        twice = quoted(next(iter(vocabulary.twice.values())))
        found = f"{source}: its vocabulary has {twice} more than once; text gets the first id"
        warnings.warn(found, GlinferWarning, stacklevel=2)
    make = {"gpt2": _byte_level, "bert": _word_level, "t5": _scored}.get(vocabulary.kind, _piece_level)
    library = make(vocabulary)
    control = vocabulary.control
    defined = vocabulary.of_type(_USER_DEFINED) - control
    names = vocabulary.names
    library.add_special_tokens([AddedToken(names[token], special=True, normalized=False) for token in sorted(control)])
    library.add_tokens([AddedToken(names[token], special=False, normalized=False) for token in sorted(defined)])
    library.post_processor = vocabulary.around()
    return HfModel(
        _Pieces(vocabulary, control | defined),
        len(names),
        MappingProxyType({names[token]: token for token in sorted(control - vocabulary.twice.keys())}),
        int(vocabulary.kind == "bert" or (vocabulary.kind != "gpt2" and vocabulary.begins_with_space)),
        library,
    )


def named_tokens(metadata: Mapping[str, Any], source: str) -> dict[str, str]:
    """The texts of the tokens that a file names, by Hugging Face's names: ``bos``, ``eos`` and ``unk``."""
    vocabulary = _Vocabulary(metadata, source)
    found = ((name, vocabulary.named.get("unknown" if name == "unk" else name)) for name in ("bos", "eos", "unk"))
    return {name: vocabulary.names[token] for name, token in found if token is not None}


def gguf_stops(metadata: Mapping[str, Any], source: str) -> tuple[int, ...]:
    """The end-of-text ids: ``eos``, ``eot`` and ``eom``, and control tokens known to have the same meaning."""
    vocabulary = _Vocabulary(metadata, source)
    named = [vocabulary.named[name] for name in ("eos", "eot", "eom") if name in vocabulary.named]
    known = {token: vocabulary.tokens[token] for token in sorted(vocabulary.control)}
    # If a reply can have several messages, the end of one does not end it; llama.cpp detects this by the same tokens.
    ends = ENDS - {ENDS_A_MESSAGE} if set(known.values()) >= ENDS_A_REPLY else ENDS
    return tuple(dict.fromkeys(named + [token for token, text in known.items() if text in ends]))


class _Vocabulary:
    """The lists and settings of a vocabulary, checked."""

    def __init__(self, metadata: Mapping[str, Any], source: str) -> None:
        self.metadata, self.source = metadata, source
        kind = metadata.get(_PREFIX + "model")
        if not isinstance(kind, str) or kind not in _KINDS:
            found = "no tokenizer" if kind in (None, "none", "no_vocab") else f"a tokenizer of kind {quoted(kind)}"
            known = ", ".join(f"{name!r} ({words})" for name, words in _KINDS.items())
            raise self.error(f"found {found}; expected one of the kinds {known}")
        self.kind: str = kind
        tokens = self.values("tokens", str)
        self.tokens = [text or f"[EMPTY_{token}]" for token, text in enumerate(tokens)]
        if not tokens:
            raise self.error("its vocabulary is empty")
        self.ids, self.twice = dict(zip(self.tokens, range(len(tokens)), strict=True)), dict[int, str]()
        if len(self.ids) < len(tokens):  # text gets the first id
            self.ids.clear()
            self.twice = {
                token: text for token, text in enumerate(self.tokens) if self.ids.setdefault(text, token) != token
            }
        longest = max(self.tokens, key=len)
        if len(longest) > MAX_TOKEN_CHARACTERS:
            raise self.error(f"a token of {len(longest)} characters exceeds the limit of {MAX_TOKEN_CHARACTERS}")
        self.types = self.values("token_type", int, len(tokens)) if self.has("token_type") else [1] * len(tokens)
        self.named = self._named_ids()

    def error(self, found: str) -> FormatError:
        return FormatError(f"{self.source}: {found}; use token ids with this model, or pass another tokenizer")

    def has(self, name: str) -> bool:
        return _PREFIX + name in self.metadata

    def values(self, name: str, kind: type, count: int | None = None) -> list[Any]:
        """A list in the metadata, with all elements of one type."""
        found = self.metadata.get(_PREFIX + name)
        if not isinstance(found, list) or not all(issubclass(each, kind) for each in set(map(type, found))):
            what = type(found).__name__ if found is None or not isinstance(found, list) else "a list of other types"
            what = quoted(found) if isinstance(found, Unread) else what
            raise self.error(f"{_PREFIX}{name} is {what}; expected a list of {kind.__name__}")
        if kind is float and not all(map(isfinite, found)):
            raise self.error(f"{_PREFIX}{name} has a number that is not finite; expected finite numbers")
        if count is not None and len(found) != count:
            raise self.error(f"{_PREFIX}{name} has {len(found)} elements for {count} tokens")
        return found

    def flag(self, name: str, usual: bool) -> bool:
        found = self.metadata.get(_PREFIX + name, usual)
        if not isinstance(found, bool):
            raise self.error(f"{_PREFIX}{name} is {quoted(found)}; expected true or false")
        return found

    def _named_ids(self) -> dict[str, int]:
        named = {}
        for name in _NAMED:
            key = f"{_PREFIX}{_SPELLED.get(name, name)}_token_id"
            found = self.metadata.get(key, _USUAL_IDS.get(self.kind, {}).get(name))
            if isinstance(found, bool) or not isinstance(found, int | None):
                raise self.error(f"{key} is {quoted(found)}; expected a token id")
            if found is not None and 0 <= found < len(self.tokens):  # in some files an id outside means none
                named[name] = found
        return named

    def of_type(self, kind: int) -> set[int]:
        return {token for token, found in enumerate(self.types) if found == kind}

    @cached_property
    def control(self) -> set[int]:
        return self.of_type(_CONTROL) | self.of_type(_UNKNOWN) | set(self.named.values())

    def is_byte(self, token: int) -> bool:
        """Whether a token spells a byte; without types, SentencePiece's are recognised by their form."""
        if self.has("token_type"):
            return bool(self.types[token] == _BYTE)
        return self.kind in ("llama", "gemma4") and isinstance(from_fallback(self.tokens[token]), bytes)

    @property
    def begins_with_space(self) -> bool:
        """Whether a space precedes every text."""
        return self.flag("add_space_prefix", self.kind != "gemma4")

    @cached_property
    def names(self) -> list[str]:
        """The tokens as they appear in text: WordPiece's user-defined tokens lose their mark."""
        if self.kind != "bert":
            return self.tokens
        defined = self.of_type(_USER_DEFINED)
        return [text.removeprefix("▁") if token in defined else text for token, text in enumerate(self.tokens)]

    def around(self) -> TemplateProcessing | None:
        """The template of the tokens around a text and around a pair of texts, or None."""
        first, last = self._ends()
        begin, end = ([f"{name}:0"] if name else [] for name in (first, last))
        single = [*begin, "$A:0", *end]
        pair = [*single, *begin, "$B:0", *end]
        if self.kind == "bert":  # its second text has type 1
            pair = [*single, "$B:1", f"{last}:1"]
        elif first and last and (self.kind == "t5" or self.metadata.get(_PREFIX + "pre") == _ROBERTA):
            pair = [*single, *end, "$B:0", *end]  # two tokens between the texts
        used = {name for name in (first, last) if name}
        # The template uses names instead of a token's text, which may have spaces and colons.
        special = [
            {"id": name, "ids": [self.named[name]], "tokens": [self.names[self.named[name]]]} for name in sorted(used)
        ]
        return TemplateProcessing(single=single, pair=pair, special_tokens=special) if used else None

    def _ends(self) -> tuple[str, str]:
        """The names of the tokens before and after a text; "" for none."""
        if self.kind == "bert":
            missing = [name for name in ("bos", "sep", "unknown") if name not in self.named]
            if missing:
                raise self.error(f"it has no token {missing[0]!r}, which WordPiece needs")
            return "bos", "sep"
        pre = self.metadata.get(_PREFIX + "pre")
        first = self.flag("add_bos_token", self.kind in ("llama", "gemma4") or pre in BEGIN_WITH_BOS)
        last = self.flag("add_eos_token", self.kind == "t5")
        return "bos" * (first and "bos" in self.named), "eos" * (last and "eos" in self.named)


class _Pieces(Mapping[int, bytes]):
    """The bytes of each token, made on first use, as a text uses few of the tokens."""

    def __init__(self, vocabulary: _Vocabulary, as_they_are: Set[int]) -> None:
        self._tokens, self._as_they_are = vocabulary.tokens, as_they_are
        self._is_byte = vocabulary.is_byte
        self._decode = from_byte_level if vocabulary.kind == "gpt2" else _from_pieces
        self._made: dict[int, bytes] = {}

    def __getitem__(self, token: int) -> bytes:
        if token not in self._made:
            if not 0 <= token < len(self._tokens):
                raise KeyError(token)
            self._made[token] = self._bytes_of(token, self._tokens[token])
        return self._made[token]

    def _bytes_of(self, token: int, text: str) -> bytes:
        if self._is_byte(token) and isinstance(byte := from_fallback(text), bytes):
            return byte
        return text.encode() if token in self._as_they_are else self._decode(text)

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._tokens)))

    def __len__(self) -> int:
        return len(self._tokens)


def _byte_level(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    """Byte-level BPE within words, each byte written as a character."""
    name = vocabulary.metadata.get(_PREFIX + "pre", "default")
    if not isinstance(name, str) or name not in EXPRESSIONS:
        raise vocabulary.error(f"its pre-tokenizer is not supported ({_PREFIX}pre is {quoted(name)})")
    merges = _listed_merges(vocabulary)
    library = _library(vocabulary, merges, ignore_merges=name in WHOLE_WORDS)
    if name in COMPOSED:
        library.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in EXPRESSIONS[name]]
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([*cuts, in_bytes])
    return library


def _listed_merges(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """The merges that the file lists; a space at the beginning belongs to the left token."""
    return [
        (text[:border], text[border + 1 :]) if (border := text.find(" ", 1)) > 0 else (text, "")
        for text in vocabulary.values("merges", str)
    ]


def _piece_level(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    """SentencePiece's BPE: whole texts with ``▁`` for spaces, and bytes for characters without a token."""
    tokens = vocabulary.tokens
    scores = (
        vocabulary.values("scores", float, len(tokens)) if vocabulary.has("scores") else list(repeat(0.0, len(tokens)))
    )
    apart = vocabulary.control | {token for token in range(len(tokens)) if vocabulary.is_byte(token)}
    ids = {text: token for text, token in vocabulary.ids.items() if token not in apart}
    if sum(map(len, ids)) > MAX_VOCABULARY_CHARACTERS:
        most = f"{MAX_VOCABULARY_CHARACTERS} characters together"
        raise vocabulary.error(f"its tokens have more than {most}; expected fewer")
    merges = _listed_merges(vocabulary) if vocabulary.kind == "gemma4" else _merges(vocabulary, ids, scores)
    # Each whole text is one word, which rarely repeats, so the library's cache of words is off.
    unknown = tokens[vocabulary.named["unknown"]] if "unknown" in vocabulary.named else None
    library = _library(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True, cache_capacity=0)
    library.normalizer = _spaces(vocabulary, vocabulary.flag("remove_extra_whitespaces", False))
    if vocabulary.kind == "gemma4":  # runs of line breaks are words
        library.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), "isolated")
    return library


def _spaces(vocabulary: _Vocabulary, merged: bool) -> normalizers.Normalizer:
    """SentencePiece's normalisation: a table of characters, then ``▁`` for each space.

    The file may have the table (``precompiled_charsmap``) and add a leading space (``add_space_prefix``). With
    ``merged``, spaces at the ends are removed and runs of spaces become one.
    """
    charsmap = vocabulary.metadata.get(_PREFIX + "precompiled_charsmap")
    steps: list[Any] = [_charsmap(vocabulary, charsmap)] if charsmap else []
    if merged:  # only at the ends of the text; ^ and $ also match at lines
        steps.append(normalizers.Replace(Regex(r"^(?<!\n) +| +$(?!\n)"), ""))
    if vocabulary.begins_with_space:
        steps.append(normalizers.Prepend("▁"))
    steps.append(normalizers.Replace(Regex(" +") if merged else " ", "▁"))
    return normalizers.Sequence(steps)


def _word_level(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    """WordPiece: the longest matching tokens, from the beginning of each word."""
    control, lower = vocabulary.control, vocabulary.flag("normalizer.lowercase", True)
    ids: dict[str, int] = {}
    for token, text in enumerate(vocabulary.tokens):
        begins = token in control or text.startswith("▁")
        own = (text if token in control else text[1:]) if begins else f"{MARK}{text}"
        ids.setdefault(own, token)
    around = vocabulary.around()  # raises an error without an unknown token
    unknown = vocabulary.tokens[vocabulary.named["unknown"]]
    with library_errors(f"{vocabulary.source}: this is not a vocabulary of WordPiece", FormatError):
        library = tokenizers.Tokenizer(WordPiece(ids, unk_token=unknown, max_input_chars_per_word=_LONGEST_WORD))
        library.normalizer = normalizers.BertNormalizer(
            lowercase=lower, strip_accents=vocabulary.flag("normalizer.strip_accents", lower)
        )
        library.pre_tokenizer, library.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(MARK)
        library.post_processor = around
    return library


def _scored(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    """SentencePiece's Unigram: the segmentation of a text with the largest sum of scores."""
    tokens = vocabulary.tokens
    scores = vocabulary.values("scores", float, len(tokens))
    unknown = vocabulary.named.get("unknown")
    if unknown is None:
        raise vocabulary.error("it has no unknown token, which Unigram needs")
    # The library would use the last of several tokens with the same text; no normalised text has a space.
    distinct = [f" {token} " if token in vocabulary.twice else text for token, text in enumerate(tokens)]
    has_bytes = any(map(vocabulary.is_byte, range(len(tokens))))
    with library_errors(f"{vocabulary.source}: this is not a vocabulary of Unigram", FormatError):
        library = tokenizers.Tokenizer(
            Unigram(list(zip(distinct, scores, strict=True)), unk_id=unknown, byte_fallback=has_bytes)
        )
        library.normalizer = _spaces(vocabulary, vocabulary.flag("remove_extra_whitespaces", True))
    return library


def _charsmap(vocabulary: _Vocabulary, charsmap: Any) -> normalizers.Normalizer:
    """SentencePiece's table of character replacements, checked like that of a ``tokenizer.json``."""
    key = f"{_PREFIX}precompiled_charsmap"
    if not isinstance(charsmap, list) or not all(type(each) is int and -128 <= each < 256 for each in charsmap):
        raise vocabulary.error(f"{key} is {type(charsmap).__name__}; expected a list of bytes")
    data = bytes(each & 0xFF for each in charsmap)
    step = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}
    check_tokenizer({"model": {"type": "Unigram"}, "normalizer": step}, vocabulary.source)
    with library_errors(f"{vocabulary.source}: {key} is damaged", FormatError):
        return normalizers.Precompiled(data)


def _merges(vocabulary: _Vocabulary, ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every split of a token into two other tokens, the best-scored token first."""
    most = _MERGES_FOR_EACH * len(ids) + _MERGES_FOR_ALL
    found: list[tuple[float, int, int]] = []  # ids take less memory than texts
    for text, token in ids.items():
        for cut in range(1, len(text)):
            left, right = ids.get(text[:cut]), ids.get(text[cut:])
            if left is not None and right is not None:
                found.append((scores[token], left, right))
        if len(found) > most:
            raise vocabulary.error(
                f"its {len(ids)} tokens can be made of each other in more than {most} ways; expected fewer"
            )
    texts = vocabulary.tokens
    found.sort(key=lambda merge: (-merge[0], -len(texts[merge[1]]), -len(texts[merge[2]])))
    return [(texts[left], texts[right]) for _, left, right in found]


def _library(vocabulary: _Vocabulary, merges: list[tuple[str, str]], **options: Any) -> tokenizers.Tokenizer:
    what = f"{vocabulary.source}: its merges do not match its tokens"
    try:
        with library_errors(what, FormatError):
            return tokenizers.Tokenizer(BPE(vocab=vocabulary.ids, merges=merges, **options))
    except FormatError:
        for number, (left, right) in enumerate(merges):  # the library does not say which merge it refuses
            for text in (left, right, left + right):
                if text not in vocabulary.ids:
                    raise vocabulary.error(
                        f"its merges do not match its tokens: merge {number} is of {quoted(left)} and "
                        f"{quoted(right)}, but no token is {quoted(text)}"
                    ) from None
        raise


def _from_pieces(text: str) -> bytes:
    return text.replace("▁", " ").encode()
