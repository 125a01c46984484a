"""Compiles structures to constraints with llguidance, and caches the compiled ones.

`llguidance <https://github.com/guidance-ai/llguidance>`_ has the parsers. It gets the bytes of every token within a
text, and the list of control tokens, which a structure allows only where it names them.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Collection
from typing import TYPE_CHECKING
from weakref import WeakSet

from glinfer.errors import InputError, StructureError, required
from glinfer.formats.files import words_of
from glinfer.limits import (
    MAX_COMPILE_BYTES,
    MAX_COMPILE_CLOCK_SECONDS,
    MAX_COMPILE_SECONDS,
    MAX_COMPILED,
    MAX_COMPILED_BYTES,
)
from glinfer.structured import worker
from glinfer.structured.constraint import Constraint
from glinfer.structured.structure import Structure
from glinfer.text.own_process import ProcessError, answer_of
from glinfer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

_END = b"<|end of the text|>"
_UNIMPLEMENTED = re.compile(r"Unimplemented keys: \[(.*)\]")
# Models write a space there, and fixed text can be forced.
_JSON_DEFAULTS: JsonCompileOptions = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_JSON_ALWAYS: JsonCompileOptions = {"lenient": False, "coerce_one_of": False}


class TokenBytes:
    """The tokens of a model, as llguidance's tokenizer interface.

    Attributes:
        tokens: the bytes of each id, empty without a token; the last one is an extra end-of-text token.
        special_token_ids: ids of the control tokens and of the extra end-of-text token.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        """Read the bytes of ``vocab`` tokens."""
        self._tokenizer = tokenizer
        known = min(vocab, tokenizer.vocab_size)
        bytes_of = [tokenizer.token_bytes(token) for token in range(known)]
        self.tokens = [*bytes_of, *(b"" for _ in range(known, vocab)), _END]
        self.eos_token_id = vocab
        self.special_token_ids = [*sorted({*tokenizer.control_tokens.values()} & {*range(vocab)}), vocab]
        special = set(self.special_token_ids)
        self._by_bytes = {data: token for token, data in enumerate(self.tokens) if data and token not in special}
        self._longest = max(map(len, self._by_bytes), default=1)

    def __call__(self, text: str | bytes) -> list[int]:
        """Ordinary tokens that spell a text exactly: the tokenizer's, or the longest ones if the former add a space."""
        data = text if isinstance(text, bytes) else text.encode()
        try:
            ids = self._tokenizer.encode_plain(data.decode())
        except (UnicodeDecodeError, InputError):
            return self._longest_tokens(data)
        known = all(token < self.eos_token_id for token in ids)
        exact = known and b"".join(self.tokens[token] for token in ids) == data
        return ids if exact else self._longest_tokens(data)

    def _longest_tokens(self, data: bytes) -> list[int]:
        ids, start = [], 0
        while start < len(data):
            for length in range(min(self._longest, len(data) - start), 0, -1):
                token = self._by_bytes.get(data[start : start + length])
                if token is not None:
                    ids.append(token)
                    start += length
                    break
            else:
                return []  # no token has this byte; the library then forces nothing
        return ids


class Compiler:
    """Compiles structures for the tokens of one model; thread-safe.

    The newest :data:`glinfer.limits.MAX_COMPILED` compiled structures are cached in memory.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        """Set the tokenizer and the number of the model's tokens; the first structure does the work."""
        self._tokenizer, self._vocab = tokenizer, vocab
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        """Start with an empty cache and a new lock; a forked process may inherit a lock that no thread releases."""
        self._lock = threading.Lock()
        self._tokens: LLTokenizer | None = None
        self._kept: OrderedDict[Structure, LLMatcher] = OrderedDict()

    def __len__(self) -> int:
        """The number of cached structures."""
        return len(self._kept)

    def constraint(self, structure: Structure, stop_ids: Collection[int] = ()) -> Constraint:
        """The constraint of a new text; ``stop_ids`` end it where the structure allows an end.

        Raises:
            StructureError: the structure is invalid, has an unsupported feature, or takes too long to compile.
            InputError: the package llguidance is not installed.
        """
        with self._lock:
            matcher = self._kept.get(structure)
        if matcher is None:
            grammar = _grammar(structure)
            _require_compilable(structure, grammar)  # in a separate process and outside the lock
        with self._lock:
            if matcher is None:
                matcher = self._compiled(structure, grammar)
                self._kept[structure] = matcher
            self._kept.move_to_end(structure)
            while len(self._kept) > 1 and (
                len(self._kept) > MAX_COMPILED or sum(len(each.text) for each in self._kept) > MAX_COMPILED_BYTES
            ):
                self._kept.popitem(last=False)
            return Constraint(matcher.deep_copy(), self._vocab, stop_ids)

    def _compiled(self, structure: Structure, grammar: str) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

        if self._tokens is None:
            wrapper = TokenizerWrapper(TokenBytes(self._tokenizer, self._vocab))
            self._tokens = LLTokenizer(wrapper, n_vocab=self._vocab + 1)
        matcher = LLMatcher(self._tokens, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
        if matcher.is_error():
            raise _refused(structure, matcher.get_error())
        return matcher


_all: WeakSet[Compiler] = WeakSet()


def _begin_all() -> None:
    """Reset all compilers in a process that was just forked."""
    for each in tuple(_all):
        each._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all)


def _grammar(structure: Structure) -> str:
    """The structure in llguidance's form."""
    library = required("llguidance", "structured", "structured output needs")
    matcher: type[LLMatcher] = library.LLMatcher
    if structure.kind == "json_schema":
        try:
            return str(matcher.grammar_from_json_schema(structure.text, _JSON_DEFAULTS, _JSON_ALWAYS))
        except ValueError as error:
            raise _refused(structure, str(error)) from None
    if structure.kind == "regex":
        # The digits of \d besides 0-9 depend on the version of Unicode.
        return str(matcher.grammar_from_lark(f"start: /{library.regex_to_lark(structure.text, 'd')}/"))
    if structure.kind == "choices":
        return str(matcher.grammar_from_lark(f"start: {' | '.join(map(json.dumps, json.loads(structure.text)))}"))
    return str(matcher.grammar_from_lark(structure.text))


def _require_compilable(structure: Structure, grammar: str) -> None:
    try:
        answer = answer_of(
            worker.__file__,
            {"grammar": grammar},
            seconds=MAX_COMPILE_SECONDS,
            memory=MAX_COMPILE_BYTES,
            clock=MAX_COMPILE_CLOCK_SECONDS,
        )
    except ProcessError as problem:
        raise StructureError(f"{structure.kind} cannot be used: its compilation {problem}") from problem
    if error := answer.get("error"):
        raise _refused(structure, str(error))


def _refused(structure: Structure, error: str) -> StructureError:
    """The one-line error for a structure that the library refuses."""
    found = _UNIMPLEMENTED.search(error)
    if found:
        return StructureError(
            f"{structure.kind} has unsupported keywords: {found[1]}; leave them out, or express them differently"
        )
    return StructureError(f"{structure.kind} cannot be used: {words_of(error)}")
