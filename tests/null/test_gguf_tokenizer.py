"""Tokenizers out of GGUF metadata: llama.cpp's ids, the bytes of tokens, what is put around a text, what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.generation.gguf_tokenizer import gguf_ids, gguf_stops, gguf_tokenizer
from glinfer.generation.gguf_words import EXPRESSIONS
from glinfer.generation.stops import default_stops
from glinfer.generation.templates import find_template
from glinfer.generation.tokenizer import Tokenizer, find_tokenizer

K = "tokenizer.ggml."
CORPUS = Path(__file__).resolve().parents[3] / "shared" / "text" / "tinyshakespeare.txt"
LINES = [
    "hello world, the quick brown fox don't I'LL we've 12345 3.14",
    "if (x == 1) {\n    return;\n}\r\n\n\n\tx   y",
    "日本語 привет мир naïve été 🚀🚀 مرحبا हिन्दी",
] * 30
ATOMS = [
    "hello", "The", " ", "  ", "   ", "     ", "\n", "\n\n", "\r\n", "\t", "1", "12", "123", "12345", "٣", "x=", "(){}",
    "don't", "I'LL", "'S", "we've", "’s", "é", "e\u0301", "日本語", "。", "🚀", "привет", "ÀB", "<|im_end|>", "<tool>",
    "<s>", "</s>", "<unk>", "<0x0A>", "_", "$", "+", "`", "\u00a0", "\u2003", "\x0b", "\x85", "½", "Ⅷ", "!?", "...",
    "a.b", "http://x.y/z?q=1", "\0", "한국어", "हिन्दी", "ไทย", "<|im_", "end|>",
]  # fmt: skip


def texts(count: int) -> Iterator[str]:
    chosen = random.Random(7)
    yield from ("", " ", "\n", "hello world", "  two  spaces  ")
    for _ in range(count):
        yield "".join(chosen.choices(ATOMS, k=chosen.randint(1, 12)))


def learned() -> list[str]:
    return [*LINES, CORPUS.read_text()[:50_000]] if CORPUS.exists() else LINES


@lru_cache(maxsize=1)
def learned_bytes() -> tuple[list[str], list[str]]:
    """The tokens and the merges of a small byte-level BPE."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        learned(), trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    )
    model = json.loads(library.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), [" ".join(merge) for merge in model["merges"]]


def byte_level(pre: str = "gpt-2", **changes: Any) -> dict[str, Any]:
    tokens, merges = learned_bytes()
    extra = ["<|im_start|>", "<|im_end|>", "<tool>"]
    return {
        K + "model": "gpt2",
        K + "pre": pre,
        K + "tokens": [*tokens, *extra],
        K + "merges": merges,
        K + "token_type": [1] * len(tokens) + [3, 3, 4],
        K + "bos_token_id": len(tokens),
        K + "eos_token_id": len(tokens) + 1,
        **{K + name: value for name, value in changes.items()},
    }


@lru_cache(maxsize=1)
def learned_pieces() -> tuple[str, ...]:
    """Pieces as SentencePiece orders them: the joined ones first, then single characters."""
    library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    library.train_from_iterator(learned(), trainers.BpeTrainer(vocab_size=900, show_progress=False))
    vocabulary = json.loads(library.to_str())["model"]["vocab"]
    return tuple(sorted(vocabulary, key=lambda piece: (len(piece) == 1, vocabulary[piece])))


def piece_level(**changes: Any) -> dict[str, Any]:
    pieces = list(learned_pieces())
    in_bytes = [f"<0x{value:02X}>" for value in range(256)]
    extra = ["<|im_start|>", "<|im_end|>", "<tool>", "    "]
    return {
        K + "model": "llama",
        K + "tokens": ["<unk>", "<s>", "</s>", *in_bytes, *pieces, *extra],
        K + "scores": [0.0] * 259 + [-float(rank) for rank in range(len(pieces))] + [-1000.0] * 4,
        K + "token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces) + [3, 3, 4, 4],
        K + "bos_token_id": 1,
        K + "eos_token_id": 2,
        K + "unknown_token_id": 0,
        **{K + name: value for name, value in changes.items()},
    }


def made(metadata: Mapping[str, Any]) -> Tokenizer:
    return Tokenizer(gguf_tokenizer(metadata, "m.gguf"))


def write(path: Path, metadata: Mapping[str, Any]) -> Path:
    """A GGUF file with this metadata and no tensors."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_context_length, 64), (writer.add_embedding_length, 8), (writer.add_block_count, 1),
        (writer.add_head_count, 1), (writer.add_feed_forward_length, 8), (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_rope_dimension_count, 8),
    ):  # fmt: skip
        add(value)
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class TestLlamaCpp:
    """The ids are those of llama.cpp, with control tokens as text and as tokens."""

    def compare(self, path: Path, count: int) -> None:
        llama_cpp = pytest.importorskip("llama_cpp")
        theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
        ours = Tokenizer.from_file(path)
        for text in texts(count):
            plain = theirs.tokenize(text.encode(), add_bos=False, special=False)
            assert ours.encode(text, allow_special=False) == plain, ascii(text)
            assert ours.encode(text) == theirs.tokenize(text.encode(), add_bos=True, special=True), ascii(text)

    # One name for each way to cut; "default" is also what it is where the file has no name.
    @pytest.mark.parametrize("pre", sorted({cuts: name for name, cuts in EXPRESSIONS.items()}.values()))
    def test_bytes(self, tmp_path: Path, pre: str) -> None:
        self.compare(write(tmp_path / "m.gguf", byte_level(pre)), 100)

    @pytest.mark.parametrize("pre", ["smollm", "qwen2", "llama-bpe", "starcoder", "mpt"])
    def test_names_for_the_same_cut(self, tmp_path: Path, pre: str) -> None:
        self.compare(write(tmp_path / "m.gguf", byte_level(pre, add_eos_token=True)), 40)

    @pytest.mark.parametrize(
        "changes", [{}, {"add_space_prefix": False}, {"add_bos_token": False, "add_eos_token": True}]
    )
    def test_pieces(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        self.compare(write(tmp_path / "m.gguf", piece_level(**changes)), 500)


class TestBytes:
    def test_decoding_gives_the_text_back(self) -> None:
        for tokenizer in (made(byte_level()), made(piece_level())):
            for text in texts(300):
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

    @pytest.mark.parametrize("kind", [byte_level, piece_level])
    def test_text_cannot_spell_one(self, kind: Any) -> None:
        tokenizer = made(kind())
        control = set(tokenizer.control_tokens.values())
        for text in texts(100):
            assert control.isdisjoint(tokenizer.encode(text, allow_special=False))
        assert not control.isdisjoint(tokenizer.encode("a<|im_end|>"))

    def test_the_ends_of_a_text(self) -> None:
        size = len(byte_level()[K + "tokens"])
        assert gguf_ids(byte_level(), "m") == {"bos": size - 3, "eos": size - 2}
        assert gguf_stops(byte_level(), "m") == (size - 2,)
        both = byte_level(eos_token_id=5, eot_token_id=6, eom_token_id=size)
        assert gguf_stops(both, "m") == (5, 6, size - 2), "those that it names, then those known by their text"
        usual = piece_level()
        del usual[K + "eos_token_id"]
        assert gguf_stops(usual, "m")[0] == 2


class TestBadMetadata:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"model": None}, "found no tokenizer"),
            ({"model": "none"}, "found no tokenizer"),
            ({"model": "bert"}, "found a tokenizer of kind 'bert'; expected kind 'gpt2'"),
            ({"model": ["gpt2"]}, "found a tokenizer of kind"),
            ({"pre": "martian"}, "cut into words in a way that is not known here .*'martian'"),
            ({"pre": 5}, "is 5"),
            ({"tokens": None}, "tokens is NoneType; expected a list of str"),
            ({"tokens": [1, 2]}, "tokens is a list of something else"),
            ({"tokens": []}, "its vocabulary is empty"),
            ({"tokens": ["a", "b", "a"]}, "has 'a' more than once"),
            ({"tokens": ["a" * 5000]}, "a token of 5000 characters"),
            ({"token_type": [1]}, "token_type has 1 elements for"),
            ({"merges": "a b"}, "merges is str; expected a list of str"),
            ({"merges": ["zzzz zzzz"]}, "its merges do not go with its tokens"),
            ({"merges": ["a"]}, "its merges do not go with its tokens"),
            ({"bos_token_id": "x"}, "bos_token_id is 'x'; expected a token id"),
            ({"add_bos_token": 1}, "add_bos_token is 1; expected true or false"),
        ],
    )
    def test_of_bytes(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(FormatError, match=f"^m.gguf: .*{words}") as error:
            made(byte_level(**changes))
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"scores": [0.0]}, "scores has 1 elements for"),
            ({"scores": ["x"]}, "scores is a list of something else; expected a list of float"),
            ({"add_space_prefix": "yes"}, "add_space_prefix is 'yes'"),
        ],
    )
    def test_of_pieces(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(FormatError, match=f"^m.gguf: .*{words}"):
            made(piece_level(**changes))

    def test_an_id_outside_the_vocabulary_names_nothing(self) -> None:
        assert gguf_ids(byte_level(bos_token_id=1 << 31, eos_token_id=-1), "m") == {}


class TestFinding:
    def shape(self, metadata: Mapping[str, Any], more: int = 0) -> ModelConfig:
        return ModelConfig(len(metadata[K + "tokens"]) + more, 8, 2, 1, 16, model_type="gpt2")

    def test_the_files_own_goes_first(self, tmp_path: Path) -> None:
        metadata = byte_level()
        path = write(tmp_path / "m.gguf", metadata)
        (tmp_path / "tokenizer.json").write_text("{")
        found, reason = find_tokenizer(path, None, self.shape(metadata))
        assert found is not None
        assert (reason, found.encode("hello")) == ("", made(metadata).encode("hello"))
        assert default_stops(path, found, self.shape(metadata)) == (metadata[K + "eos_token_id"],)

    def test_one_that_cannot_be_used_is_a_reason_and_no_error(self, tmp_path: Path) -> None:
        metadata = byte_level("martian")
        path = write(tmp_path / "m.gguf", metadata)
        found, reason = find_tokenizer(path, None, self.shape(metadata))
        assert found is None
        assert reason.startswith("the checkpoint's own tokenizer cannot be used: ")
        assert "'martian'" in reason
        without = write(tmp_path / "n.gguf", {K + "model": "none"})
        assert find_tokenizer(without, None, self.shape(metadata))[0] is None
        assert default_stops(without, None, self.shape(metadata)) == ()

    def test_one_larger_than_the_model_is_a_reason(self, tmp_path: Path) -> None:
        metadata = byte_level()
        found, reason = find_tokenizer(write(tmp_path / "m.gguf", metadata), None, self.shape(metadata, -1))
        assert found is None
        assert "the vocabulary in the checkpoint has" in reason

    def test_the_chat_template(self, tmp_path: Path) -> None:
        path = write(tmp_path / "m.gguf", {**byte_level(), "tokenizer.chat_template": "{{ bos_token }}x"})
        template = find_template(path)
        assert template is not None
        assert template.tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
        assert template.render([]) == "<|im_start|>x"
        assert find_template(write(tmp_path / "n.gguf", byte_level())) is None
