"""Tokenizers out of GGUF metadata: llama.cpp's ids, the bytes of tokens, what is put around a text, what is refused."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from each_case import each_case
from gguf_embedders import word_pieces
from goldens import recorded
from goldens.gguf_models import (
    COMPARED_TEXTS,
    K,
    byte_level,
    learned_digest,
    piece_level,
    texts,
    unigram,
    vocabularies,
    write_vocabulary,
)
from goldens.llama import llama_ids
from tiny_embedders import VOCABULARY

from glinfer.config import ModelConfig
from glinfer.errors import FormatError, GlinferWarning
from glinfer.formats.gguf.words import COMPOSED
from glinfer.text.stops import default_stops
from glinfer.text.templates import find_template
from glinfer.text.tokenizer import Tokenizer, find_tokenizer
from glinfer.text.tokenizers.gguf import gguf_stops, gguf_tokenizer, named_tokens


def made(metadata: Mapping[str, Any]) -> Tokenizer:
    return Tokenizer(gguf_tokenizer(metadata, "m.gguf"))


MARKED = "q\u00cc"
"""A "q" and the byte CC, with which U+0301 begins, as vocabularies write bytes; no letter is composed of the two."""


def with_a_mark(pre: str, token: str = MARKED) -> dict[str, Any]:
    """A vocabulary with that token."""
    metadata = byte_level(pre)
    metadata[K + "tokens"] = [*metadata[K + "tokens"], token]
    metadata[K + "merges"] = [" ".join(token), *metadata[K + "merges"]]
    metadata[K + "token_type"] = [*metadata[K + "token_type"], 1]
    return metadata


CUTS = {f"{pre}, a mark": with_a_mark(pre) for pre in ("qwen2", "qwen35")}
CUTS |= {f"{pre}, an end": byte_level(pre, add_eos_token=True) for pre in ("smollm", "starcoder", "mpt")}


def composed(name: str, text: str) -> str:
    """A text as vocabularies compose it that do; llama.cpp does not."""
    return unicodedata.normalize("NFC", text) if name.split(",")[0] in COMPOSED else text


class TestLlamaCpp:
    """The ids are those of llama.cpp for composed text, with control tokens as text and as tokens."""

    def test_the_vocabulary_is_the_recorded_one(self) -> None:
        assert recorded("llama_ids")["learned"] == learned_digest(), "tokenizers learns other merges now"

    @each_case("name", vocabularies())
    def test_recorded_ids(self, name: str) -> None:
        ours, theirs = made(vocabularies()[name]), recorded("llama_ids")[name]
        for text, ids in zip(COMPARED_TEXTS, theirs["special"], strict=True):
            assert ours.encode(text) == ids or composed(name, text) != text, ascii(text)
        for text, ids in zip(COMPARED_TEXTS, theirs.get("plain", ()), strict=False):
            if composed(name, text) == text:
                assert ours.encode(text, allow_special=False) == ids, ascii(text)

    @each_case("name", sorted(COMPOSED | {"gpt-2", "llama-bpe", "default"}))
    def test_letters_and_marks_are_composed_where_the_models_do(self, name: str) -> None:
        tokenizer = made(byte_level(name))
        apart, text = "cafe\u0301 Vie\u0323\u0302t \u1112\u1161\u11ab", "caf\u00e9 Vi\u1ec7t \ud55c"
        assert (tokenizer.encode(apart) == tokenizer.encode(text)) == (name in COMPOSED)
        assert (tokenizer.decode(tokenizer.encode(apart)) == text) == (name in COMPOSED)

    def test_marks_stay_with_their_letters(self) -> None:
        """A token of a letter and the first byte of a mark is found where the two are cut together."""
        text = "caq\u0301"
        apart, together = (made(with_a_mark(pre)).encode(text, allow_special=False) for pre in ("qwen2", "qwen35"))
        tokens = with_a_mark("qwen35")[K + "tokens"]
        assert tokens.index(MARKED) in together
        assert tokens.index(MARKED) not in apart

    @pytest.mark.parametrize(("text", "token"), [("helloWorld", "oW"), ("a\u5b57", "a\u00e5")])
    def test_kimi_cuts_words_at_capitals_and_chinese_characters(self, text: str, token: str) -> None:
        """llama.cpp does the latter alone, unlike the tokenizer with which the models were trained."""
        apart, together = (made(with_a_mark(pre, token)).encode(text) for pre in ("kimi-k2", "llama-bpe"))
        number = with_a_mark("kimi-k2", token)[K + "tokens"].index(token)
        assert (number in apart, number in together) == (False, True)

    @pytest.mark.slow
    @each_case("name", [*vocabularies(), *CUTS])
    def test_of_every_kind(self, tmp_path: Path, name: str) -> None:
        llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (make test-all)")
        path = write_vocabulary(tmp_path / "m.gguf", CUTS[name] if name in CUTS else vocabularies()[name])
        theirs, ours = llama_cpp.Llama(str(path), vocab_only=True, verbose=False), Tokenizer.from_file(path)
        for text in texts(40):
            given = composed(name, text).encode()
            plain = theirs.tokenize(given, add_bos=False, special=False)
            assert ours.encode(text, allow_special=False) == plain, ascii(text)
            assert ours.encode(text) == theirs.tokenize(given, add_bos=True, special=True), ascii(text)


class TestBytes:
    def test_decoding_gives_the_text_back(self) -> None:
        for tokenizer in (made(byte_level()), made(piece_level())):
            for text in texts(60):
                # SentencePiece puts a space before each text, that after a token that it found as a whole, too.
                if "<tool>" not in text and "    " not in text:
                    assert tokenizer.decode(tokenizer.encode(text, allow_special=False)) == text

    def test_of_every_type(self) -> None:
        tokenizer = made(piece_level())
        assert tokenizer.token_bytes(1) == b"<s>"
        assert tokenizer.token_bytes(3 + 0xE9) == b"\xe9"
        assert tokenizer.token_bytes(tokenizer.vocab_size - 1) == b"    "
        assert b" hello" in [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        alone = made(byte_level())
        pieces = [alone.token_bytes(token) for token in range(alone.vocab_size)]
        assert {data for data in pieces if len(data) == 1} == {bytes([value]) for value in range(256)}
        assert pieces[-1] == b"<tool>"

    def test_without_types_bytes_and_named_tokens_are_known(self) -> None:
        metadata = piece_level()
        del metadata[K + "token_type"]
        tokenizer = made(metadata)
        assert tokenizer.token_bytes(3 + 0xE9) == b"\xe9"
        assert dict(tokenizer.control_tokens) == {"<unk>": 0, "<s>": 1, "</s>": 2}

    def test_an_empty_token_keeps_its_place(self) -> None:
        metadata = byte_level()
        metadata[K + "tokens"][-1] = ""
        assert made(metadata).vocab_size == len(metadata[K + "tokens"])


class TestControlTokens:
    def test_are_those_of_the_file(self) -> None:
        tokenizer = made(byte_level())
        size = tokenizer.vocab_size
        assert dict(tokenizer.control_tokens) == {"<|im_start|>": size - 3, "<|im_end|>": size - 2}

    def test_the_ends_of_a_text(self) -> None:
        size = len(byte_level()[K + "tokens"])
        assert named_tokens(byte_level(), "m") == {"bos": "<|im_start|>", "eos": "<|im_end|>"}
        assert gguf_stops(byte_level(), "m") == (size - 2,)
        both = byte_level(eos_token_id=5, eot_token_id=6, eom_token_id=size)
        assert gguf_stops(both, "m") == (5, 6, size - 2), "those that it names, then those known by their text"
        usual = piece_level()
        del usual[K + "eos_token_id"]
        assert gguf_stops(usual, "m")[0] == 2

    def test_the_end_of_a_message_ends_no_reply_of_several(self) -> None:
        """As in gpt-oss, whose thoughts end with ``<|end|>``."""

        def ended_by(*more: str) -> set[str]:
            values = byte_level()
            tokens, types = [*values[K + "tokens"], *more], [*values[K + "token_type"], *[3] * len(more)]
            values |= {K + "tokens": tokens, K + "token_type": types}
            return {tokens[token] for token in gguf_stops(values, "m")}

        assert ended_by("<|end|>") == {"<|im_end|>", "<|end|>"}
        assert ended_by("<|end|>", "<|return|>") == {"<|im_end|>", "<|end|>", "<|return|>"}
        assert ended_by("<|end|>", "<|call|>", "<|return|>") == {"<|im_end|>", "<|return|>", "<|call|>"}


class TestBadMetadata:
    @each_case(
        ("changes", "words"),
        [
            ({"model": None}, "found no tokenizer"),
            ({"model": "rwkv"}, "found a tokenizer of kind 'rwkv'; expected one of the kinds 'gpt2'"),
            ({"pre": "martian"}, "its pre-tokenizer is not supported .*'martian'"),
            ({"tokens": None}, "tokens is NoneType; expected a list of str"),
            ({"tokens": []}, "its vocabulary is empty"),
            ({"tokens": ["a" * 5000]}, "a token of 5000 characters"),
            ({"token_type": [1]}, "token_type has 1 elements for"),
            ({"merges": "a b"}, "merges is str; expected a list of str"),
            ({"merges": ["zzzz zzzz"]}, "its merges do not match its tokens: .*zzzz"),
            ({"merges": ["a"]}, "its merges do not match its tokens"),
            ({"merges": [" a b"]}, "its merges do not match its tokens: .*' a'"),
            (
                {"merges": ["q q"]},
                "its merges do not match its tokens: merge 0 is of 'q' and 'q', but no token is 'qq'",
            ),
            ({"bos_token_id": "x"}, "bos_token_id is 'x'; expected a token id"),
            ({"add_bos_token": 1}, "add_bos_token is 1; expected true or false"),
        ],
    )
    def test_of_bytes(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(FormatError, match=f"^m.gguf: .*{words}"):
            made(byte_level(**changes))

    @each_case(
        ("changes", "words"),
        [
            ({"scores": [0.0]}, "scores has 1 elements for"),
            ({"scores": ["x"]}, "scores is a list of other types; expected a list of float"),
            ({"scores": [math.nan] * len(piece_level()[K + "tokens"])}, "scores has a number that is not finite"),
            ({"add_space_prefix": "yes"}, "add_space_prefix is 'yes'"),
        ],
    )
    def test_of_pieces(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(FormatError, match=f"^m.gguf: .*{words}"):
            made(piece_level(**changes))


class TestFinding:
    def shape(self, metadata: Mapping[str, Any], more: int = 0) -> ModelConfig:
        return ModelConfig(len(metadata[K + "tokens"]) + more, 8, 2, 1, 16, model_type="gpt2")

    def test_the_files_own_goes_first(self, tmp_path: Path) -> None:
        metadata = byte_level()
        path = write_vocabulary(tmp_path / "m.gguf", metadata)
        (tmp_path / "tokenizer.json").write_text("{")
        found, reason = find_tokenizer(path, None, self.shape(metadata))
        assert found is not None
        assert (reason, found.encode("hello")) == ("", made(metadata).encode("hello"))
        assert default_stops(path, found, self.shape(metadata)) == (metadata[K + "eos_token_id"],)

    def test_one_that_cannot_be_used_is_a_reason_and_no_error(self, tmp_path: Path) -> None:
        metadata = byte_level("martian")
        path = write_vocabulary(tmp_path / "m.gguf", metadata)
        found, reason = find_tokenizer(path, None, self.shape(metadata))
        assert found is None
        assert reason.startswith("the checkpoint's own tokenizer cannot be used: ")
        assert "'martian'" in reason
        path = write_vocabulary(tmp_path / "large.gguf", byte_level())
        assert "the vocabulary in the checkpoint has" in find_tokenizer(path, None, self.shape(byte_level(), -1))[1]
        without = write_vocabulary(tmp_path / "n.gguf", {K + "model": "none"})
        assert find_tokenizer(without, None, self.shape(metadata))[0] is None
        assert default_stops(without, None, self.shape(metadata)) == ()

    def test_the_chat_template(self, tmp_path: Path) -> None:
        path = write_vocabulary(tmp_path / "m.gguf", {**byte_level(), "tokenizer.chat_template": "{{ bos_token }}x"})
        template = find_template(path)
        assert template is not None
        assert template.tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
        assert template.render([]) == "<|im_start|>x"
        assert find_template(write_vocabulary(tmp_path / "n.gguf", byte_level())) is None


class TestWordPiece:
    def metadata(self, **changes: Any) -> dict[str, Any]:
        return {**word_pieces(VOCABULARY), **{K + name: value for name, value in changes.items()}}

    def test_ids_are_those_of_the_same_vocab_txt(self, tmp_path: Path) -> None:
        (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
        theirs = Tokenizer.from_file(tmp_path / "vocab.txt")
        for text in ("The CAT plays", "in the\train.", "[SEP] dogs été é", "x" * 101, "", "cat?dog[MASK]"):
            found = made(self.metadata()).encode(text)
            assert found == theirs.encode(text)
            assert made(self.metadata()).decode(found) == theirs.decode(found)
        assert made(self.metadata()).vocab_size == len(VOCABULARY)

    def test_letters_stay_where_the_file_says_so(self) -> None:
        kept = made(self.metadata(**{"normalizer.lowercase": False}))
        assert kept.encode("The é") == [2, 1, VOCABULARY.index("é"), 3]

    @each_case(
        ("changes", "words"),
        [
            ({"seperator_token_id": 1 << 20}, "it has no token 'sep', which WordPiece needs"),
            ({"normalizer.lowercase": "no"}, "normalizer.lowercase is 'no'; expected true or false"),
        ],
    )
    def test_bad_metadata(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(FormatError, match=f"^m.gguf: .*{words}"):
            made(self.metadata(**changes))


class TestUnigram:
    """XLM-RoBERTa's vocabulary: pieces with scores."""

    metadata = staticmethod(unigram)
    TEXTS = ("the cat", "  the   cats. ", "", "hat", "the 日本 cat", "tehcat", "</s> the")

    def test_ids(self) -> None:
        found = made(self.metadata())
        pieces = [found.token_bytes(token) for token in found.encode("the cats")]
        assert pieces == [b"<s>", b" the", b" cat", b"s", b"</s>"]
        assert found.encode("日x") == [0, 7, 3, 2]
        assert found.decode(found.encode_plain(" the  cat")) == "the cat"

    @pytest.mark.slow
    def test_ids_are_those_of_llama_cpp(self, tmp_path: Path) -> None:
        path = write_vocabulary(tmp_path / "m.gguf", self.metadata())
        ours = Tokenizer.from_file(path)
        for text, ids in zip(self.TEXTS, llama_ids(path, self.TEXTS), strict=True):
            assert ours.encode(text) == ids, text

    def test_bad_metadata(self) -> None:
        with pytest.raises(FormatError, match="precompiled_charsmap is str; expected a list of bytes"):
            made(self.metadata(precompiled_charsmap="x"))
        with pytest.raises(FormatError, match="precompiled_charsmap is damaged"):
            made(self.metadata(precompiled_charsmap=[1, 2, 3]))
        # One that promises 3 GB, for which the library would make room.
        with pytest.raises(FormatError, match="precompiled_charsmap is damaged"):
            made(self.metadata(precompiled_charsmap=[0, 0, 64, 192]))


class TestTokensTwice:
    """A vocabulary may have a text for two ids: the first is that of text, and both give it."""

    @each_case(
        ("kind", "text"), [(byte_level, "the"), (piece_level, "\u2581hello"), (TestUnigram().metadata, "\u2581cat")]
    )
    def test_text_gets_the_first(self, kind: Any, text: str) -> None:
        metadata = kind()
        tokens, first = metadata[K + "tokens"], metadata[K + "tokens"].index(text)
        for name, value in (("tokens", text), ("token_type", 1), ("scores", 0.0)):
            if K + name in metadata:
                metadata[K + name] = [*metadata[K + name], value]
        with pytest.warns(GlinferWarning, match=f"^m.gguf: its vocabulary has '{text}' more than once; text gets the"):
            tokenizer = made(metadata)
        spelled = tokenizer.token_bytes(first)
        assert tokenizer.token_bytes(len(tokens)) == spelled
        assert tokenizer.encode(spelled.decode().lstrip(), allow_special=False) == [first]
        assert tokenizer.vocab_size == len(tokens) + 1

    def test_a_control_token_is_the_first(self) -> None:
        metadata = byte_level()
        first = len(metadata[K + "tokens"]) - 3
        metadata[K + "tokens"] = [*metadata[K + "tokens"], "<|im_start|>"]
        metadata[K + "token_type"] = [*metadata[K + "token_type"], 3]
        with pytest.warns(GlinferWarning):
            tokenizer = made(metadata)
        assert tokenizer.control_tokens["<|im_start|>"] == first
        assert tokenizer.encode("<|im_start|>") == [first]
