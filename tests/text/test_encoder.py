"""WordPiece, and texts and pairs as models that embed them take them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_embedders import VOCABULARY, WORDS

from glinfer.engine.random_model import demo_tokenizer
from glinfer.errors import FormatError, InputError
from glinfer.text.encoder import TextEncoder
from glinfer.text.tokenizer import Tokenizer

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
        with pytest.raises(FormatError, match="byte 6 is not UTF-8; expected one token a line"):
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
