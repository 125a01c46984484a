"""Tokenizers without a tokenizer.json: SentencePiece models, and vocab.json with merges.txt."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from each_case import each_case
from goldens.gguf_models import K, byte_level
from tiny_embedders import VOCABULARY, WORDS

from glinfer.config import ModelConfig
from glinfer.engine.random_model import demo_tokenizer
from glinfer.errors import FormatError, InputError
from glinfer.text.encoder import TextEncoder
from glinfer.text.parts import gguf_metadata, sidecar_files, text_parts
from glinfer.text.tokenizer import Tokenizer, find_tokenizer
from glinfer.text.tokenizers.gguf import gguf_tokenizer

BPE = {3: 2}
LETTERS = ["▁", "t", "h", "e", "a", "\n", "é", "th", "▁th", "▁the", "▁a", "he", "▁▁"]
PIECES = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
PIECES += [(text, -1.0 - number / 4, 1) for number, text in enumerate(LETTERS)]
BYTES = [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])


def message(fields: Mapping[int, Any]) -> bytes:
    """A message of Protocol Buffers."""
    data = b""
    for number, value in fields.items():
        if isinstance(value, float):
            data += varint(number << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, int):
            data += varint(number << 3) + varint(value)
        else:
            text = value.encode() if isinstance(value, str) else value
            data += varint(number << 3 | 2) + varint(len(text)) + text
    return data


def sentencepiece(
    trainer: Mapping[int, Any], normalizer: Mapping[int, Any], pieces: Sequence[tuple[str, float, int]] = PIECES
) -> bytes:
    listed = [message({1: message(dict(enumerate(piece, 1)))}) for piece in pieces]
    return b"".join(listed) + message({2: message(trainer), 3: message(normalizer)})


TEXTS = ("the  hat\nthe", " é the ", "日", "", "a<tag>   the")
# The settings of a model, and the ids that sentencepiece 0.2.3 gives the texts.
RECORDED: dict[str, tuple[Any, ...]] = {
    "BPE": (BPE, {}, [], [12, 3, 5, 7, 4, 8, 10, 6], [3, 9, 12], [3, 0], [], [13, 0, 4, 7, 0, 12]),
    "BPE, as Gemma's": (
        *(BPE | {35: 1}, {3: 0, 4: 0}, BYTES),
        *([10, 6, 15, 5, 7, 4, 8, 10, 6], [3, 9, 12, 3], [246, 167, 181], []),
        [7, 76, 4, 7, 119, 78, 15, 12],
    ),
    "BPE, as Llama's": (
        *(BPE | {35: 1, 40: 0, 41: 1, 42: 2}, {4: 0}, BYTES),
        *([12, 15, 5, 7, 4, 8, 10, 6], [15, 9, 12, 3], [3, 246, 167, 181], []),
        [13, 76, 4, 7, 119, 78, 15, 12],
    ),
    "Unigram": ({}, {}, [], [12, 3, 5, 7, 4, 8, 10, 6], [3, 9, 12], [3, 0], [], [3, 7, 0, 4, 7, 0, 12]),
    "Unigram, bytes": (
        *({35: 1}, {4: 0}, BYTES),
        *([12, 3, 3, 5, 7, 4, 8, 10, 6], [3, 3, 9, 12, 3], [3, 246, 167, 181], []),
        [3, 7, 76, 4, 7, 119, 78, 3, 3, 12],
    ),
    "tokens that the model defines": (
        *(BPE, {3: 0, 4: 0}, [("▁▁▁", 0.0, 4), ("<tag>", 0.0, 4)]),
        *([10, 6, 15, 5, 7, 4, 8, 10, 6], [3, 9, 12, 3], [0], [], [7, 17, 16, 10, 6]),
    ),
}


def shape(rows: int) -> ModelConfig:
    return ModelConfig(rows, 64, 2, 1, 64, intermediate_size=64, model_type="llama")


class TestSentencePiece:
    @each_case("name", RECORDED)
    def test_recorded_ids(self, tmp_path: Path, name: str) -> None:
        trainer, normalizer, more, *ids = RECORDED[name]
        path = tmp_path / "any name"
        path.write_bytes(sentencepiece(trainer, normalizer, [*PIECES, *more]))
        tokenizer = Tokenizer.from_file(path)
        assert [tokenizer.encode_plain(text) for text in TEXTS] == ids
        assert tokenizer.encode("the") == [1, *tokenizer.encode_plain("the")], "<s> begins a text, as in transformers"
        assert dict(tokenizer.control_tokens) == {"<unk>": 0, "<s>": 1, "</s>": 2}
        text = tokenizer.decode(tokenizer.encode_plain("the  hat"))
        assert text == ("the hat" if normalizer.get(4, 1) else "the  hat")
        if more == BYTES:
            assert b"".join(map(tokenizer.token_bytes, tokenizer.encode_plain("日"))).strip() == "日".encode()

    def test_in_a_directory_with_added_tokens_and_converted(self, tmp_path: Path) -> None:
        (folder := tmp_path / "m").mkdir()
        (folder / "tokenizer.model").write_bytes(sentencepiece(BPE | {35: 1}, {4: 0}, [*PIECES, *BYTES]))
        size = len(PIECES) + len(BYTES)
        added = {"<|im_end|>": size + 1, "<think>": size}
        (folder / "added_tokens.json").write_text(json.dumps(added))
        (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
        (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False, "add_eos_token": True}))
        config = shape(size + 2)
        found, _ = find_tokenizer(folder, None, config)
        assert found is not None
        assert Tokenizer.from_file(folder).same_as(found)
        assert found.encode("<think>the<|im_end|>") == [size, 12, size + 1, size + 1]
        assert size + 1 not in found.encode_plain("<|im_end|>")
        parts = text_parts(folder, None, config)
        metadata = gguf_metadata(parts, size + 2)
        assert metadata is not None
        files = sidecar_files(parts, tmp_path / "n.safetensors")
        for path, data in files.items():
            path.write_bytes(data)
        again = Tokenizer(gguf_tokenizer(metadata, "m.gguf")), Tokenizer.from_file(tmp_path / "tokenizer.json")
        for other in again:
            assert [other.encode(text) for text in TEXTS] == [found.encode(text) for text in TEXTS]
            assert other.control_tokens == found.control_tokens

    @each_case(
        ("data", "words"),
        [
            (b"\n\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "is not a SentencePiece model, or a damaged one"),
            (b"\n\x05\n\x09the", "is not a SentencePiece model, or a damaged one"),
            (sentencepiece(BPE, {})[:-3], "is not a SentencePiece model, or a damaged one"),
            (message({1: b"\x0b"}), "is not a SentencePiece model, or a damaged one"),
            (message({1: message({1: b"\xff"})}), "is not a SentencePiece model, or a damaged one"),
            (sentencepiece({40: -1}, {}), "it has no unknown token, which Unigram needs"),
            (sentencepiece({3: 3}, {}), "found a SentencePiece model of words or characters"),
            (sentencepiece(BPE | {24: 1}, {}), "with spaces after words, or too large; expected BPE or Unigram"),
            (sentencepiece(BPE, {2: b"\x01\x02\x03"}), "precompiled_charsmap is damaged"),
        ],
    )
    def test_other_files_are_refused_in_one_line(self, tmp_path: Path, data: bytes, words: str) -> None:
        (path := tmp_path / "tokenizer.model").write_bytes(data)
        with pytest.raises(FormatError, match=words) as error:
            Tokenizer.from_file(path).encode("the")
        assert str(error.value).startswith(f"{path}: ")
        assert "tokenizer.json" in str(error.value)


class TestWords:
    """vocab.json and merges.txt."""

    def folder(self, path: Path, **config: Any) -> Path:
        metadata = byte_level()
        tokens = metadata[K + "tokens"]
        (path / "vocab.json").write_text(json.dumps({text: token for token, text in enumerate(tokens[:-3])}))
        lines = ["#version: 0.2", *metadata[K + "merges"], ""]
        (path / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
        (path / "added_tokens.json").write_text(
            json.dumps({text: len(tokens) - 3 + n for n, text in enumerate(tokens[-3:])})
        )
        (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", **config}))
        return path

    @each_case(
        ("config", "pre"),
        [
            ({}, "gpt-2"),
            ({"tokenizer_class": "GPT2TokenizerFast"}, "gpt-2"),
            ({"tokenizer_class": "Qwen2Tokenizer"}, "qwen2"),
            ({"tokenizer_class": "GPTNeoXTokenizer"}, "mpt"),
        ],
    )
    def test_ids_are_those_of_the_same_gguf_vocabulary(self, tmp_path: Path, config: Any, pre: str) -> None:
        folder = self.folder(tmp_path, **config)
        theirs = Tokenizer(gguf_tokenizer(byte_level(pre), "m.gguf"))
        for path in (folder, folder / "vocab.json", folder / "merges.txt"):
            tokenizer = Tokenizer.from_file(path)
            for text in ("First Citizen: what, ho!\n\nIt's 1234 <tool>", "cafe\u0301 日本", "<|im_end|>", ""):
                assert tokenizer.encode(text, allow_special=False) == theirs.encode(text, allow_special=False), text
        assert "<|im_end|>" in tokenizer.control_tokens

    def test_what_is_missing_or_not_known_is_named(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path, tokenizer_class="BloomTokenizer")
        for damage, words in (
            (lambda: None, "found the class 'BloomTokenizer'; expected a tokenizer of GPT-2 or Qwen"),
            (lambda: self.folder(tmp_path, add_prefix_space=True), "found add_prefix_space; expected"),
            (
                lambda: self.folder(tmp_path) and (folder / "vocab.json").write_text('{"a": -1}'),
                "vocab.json has no ids",
            ),
            (lambda: (folder / "vocab.json").write_text('{"a": 0}'), "its merges do not match its tokens"),
            (lambda: (folder / "merges.txt").write_bytes(b"\xff"), "its merges do not match its tokens"),
            (lambda: (folder / "merges.txt").unlink(), "merges.txt"),
        ):
            damage()
            with pytest.raises(FormatError, match=words) as error:
                Tokenizer.from_file(folder)
            assert "save a tokenizer.json with save_pretrained" in str(error.value)


# WordPiece, and texts and pairs as models that embed them take them


ID = {piece: number for number, piece in enumerate(VOCABULARY)}


def vocabulary(folder: Path, lines: list[str] | None = None, **config: Any) -> Path:
    file = folder / "vocab.txt"
    file.write_bytes("\n".join(VOCABULARY if lines is None else lines).encode())
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return file


class TestWordPiece:
    def test_a_vocabulary_is_a_tokenizer(self, tmp_path: Path) -> None:
        found = Tokenizer.from_file(vocabulary(tmp_path))
        assert found.kind == "WordPiece"
        assert found.vocab_size == len(VOCABULARY)
        pieces = ("[CLS]", "the", "cat", "play", "##s", ".", "[SEP]")
        assert found.encode("The CAT plays.") == [ID[each] for each in pieces]
        assert found.encode("zebra", allow_special=False) == [ID["[UNK]"]]
        assert found.decode(found.encode("the cat plays", allow_special=False)) == "the cat plays"

    def test_the_file_beside_it_is_heeded(self, tmp_path: Path) -> None:
        found = Tokenizer.from_file(vocabulary(tmp_path, do_lower_case=False))
        assert found.encode("The the", allow_special=False) == [ID["[UNK]"], ID["the"]]
        strict = Tokenizer.from_file(vocabulary(tmp_path, strip_accents=False))
        assert strict.encode("é", allow_special=False) == [ID["é"]]
        lax = Tokenizer.from_file(vocabulary(tmp_path, strip_accents=None))
        assert lax.encode("é", allow_special=False) == [ID["e"]]

    @pytest.mark.slow
    def test_as_transformers_has_it(self, tmp_path: Path) -> None:
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")
        vocabulary(tmp_path, tokenizer_class="BertTokenizer")
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        found = Tokenizer.from_file(tmp_path / "vocab.txt")
        for text in ("The cat, sat!", "[SEP] dogs [MASK]", "", "éa 中 mat?", "playing " * 9):
            assert found.encode(text) == theirs(text)["input_ids"], text

    def test_special_tokens_in_a_text_can_be_left_alone(self, tmp_path: Path) -> None:
        found = Tokenizer.from_file(vocabulary(tmp_path))
        assert ID["[SEP]"] in found.encode("a [SEP] b")[1:-1]
        assert ID["[SEP]"] not in found.encode("a [SEP] b", allow_special=False)

    def test_what_is_refused(self, tmp_path: Path) -> None:
        for lines, token in ((WORDS, "UNK"), (["[UNK]", "[CLS]", "[PAD]"], "SEP")):
            with pytest.raises(FormatError, match=rf"found no token '\[{token}\]'; expected a vocabulary of WordPiece"):
                Tokenizer.from_file(vocabulary(tmp_path, lines))
        (tmp_path / "vocab.txt").write_bytes(b"[UNK]\n\xff\xfe")
        with pytest.raises(FormatError, match="byte 6 is not UTF-8; expected one token per line"):
            Tokenizer.from_file(tmp_path / "vocab.txt")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer.from_file(vocabulary(tmp_path))


class TestTexts:
    def test_many_at_once(self, tokenizer: Tokenizer) -> None:
        found = TextEncoder(tokenizer, 9).texts(["a cat", "", "the dog"])
        assert [each.ids for each in found] == [tokenizer.encode(text) for text in ("a cat", "", "the dog")]
        assert all(not any(each.types) for each in found)

    def test_long_texts_are_cut_and_keep_their_end(self, tokenizer: Tokenizer) -> None:
        (found,) = TextEncoder(tokenizer, 6).texts(["the cat sat on the mat in the rain"])
        assert found.ids == [ID[each] for each in ("[CLS]", "the", "cat", "sat", "on", "[SEP]")]

    def test_pairs_have_types_and_the_longer_is_cut(self, tokenizer: Tokenizer) -> None:
        (found,) = TextEncoder(tokenizer, 8).pairs("a cat", ["the dog sat on a mat"])
        assert found.ids == [ID[each] for each in ("[CLS]", "a", "cat", "[SEP]", "the", "dog", "sat", "[SEP]")]
        assert found.types == [0, 0, 0, 0, 1, 1, 1, 1]

    def test_lower_case_where_it_is_asked_for(self, tmp_path: Path) -> None:
        cased = Tokenizer.from_file(vocabulary(tmp_path, do_lower_case=False))
        assert TextEncoder(cased, 9, lower=True).texts(["The"])[0].ids[1] == ID["the"]

    def test_the_length_of_what_stands_before(self, tokenizer: Tokenizer) -> None:
        assert TextEncoder(tokenizer, 9).length("the cat") == 3, "the end of a text does not count"

    def test_what_is_refused(self, tokenizer: Tokenizer) -> None:
        with pytest.raises(InputError, match="text 1 is int; expected a str"):
            TextEncoder(tokenizer, 9).texts(["a", 3])  # type: ignore[list-item]
        with pytest.raises(InputError, match=r"text 0 has half a surrogate pair \(U\+DC80\) at character 1"):
            TextEncoder(tokenizer, 9).texts(["a\udc80"])
        with pytest.raises(InputError, match="texts are limited to 3 tokens, but the tokenizer puts 3 around a pair"):
            TextEncoder(tokenizer, 3)
        with pytest.raises(InputError, match="a BPE1 tokenizer cannot encode texts for embeddings"):
            TextEncoder(Tokenizer(demo_tokenizer(300)), 9)
