"""Hugging Face's tokenizer.json: text to ids and back, the bytes of each token, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from each_case import each_case
from goldens import recorded
from goldens.given import SAMPLES, TEXTS, byte_level, entry, piece_level
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors

from glinfer.config import ModelConfig
from glinfer.errors import FormatError, GlinferWarning, InputError
from glinfer.formats import BpeModel, write_bpe
from glinfer.text.stops import default_stops, stop_ids_of
from glinfer.text.tokenizer import Tokenizer, find_tokenizer
from glinfer.text.tokenizers.huggingface import read_hf_tokenizer

PLAIN_BYTES = BpeModel((), tuple(bytes([value]) for value in range(256)))
AFTER_S = "<s> $A"


def unigram() -> tokenizers.Tokenizer:
    """A T5-like tokenizer, whose vocabulary has the special tokens as pieces that text can spell."""
    letters = [(letter, -5.0) for letter in "▁<s>/helowrd"]
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *letters, ("▁hello", -1.0), ("hello", -2.0)]
    library = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.add_special_tokens(["<unk>", "<s>", "</s>"])
    return library


def put(library: tokenizers.Tokenizer, folder: Path, **config: Any) -> Path:
    """Save a tokenizer in a folder, with a ``tokenizer_config.json`` where there is something to put into it."""
    folder.mkdir(exist_ok=True, parents=True)
    library.save(str(folder / "tokenizer.json"))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder / "tokenizer.json"


def shape(vocab: int, family: str = "gpt2") -> ModelConfig:
    return ModelConfig(vocab, 8, 2, 1, 16, model_type=family)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_file(put(byte_level(), tmp_path_factory.mktemp("gpt2")))


@pytest.fixture(scope="module", params=[False, True])
def llama(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_file(put(piece_level(metaspace=request.param), tmp_path_factory.mktemp("llama")))


class TestByteLevel:
    def test_the_ids_are_the_librarys(self, gpt2: Tokenizer) -> None:
        for text in SAMPLES:
            assert gpt2.encode(text) == byte_level().encode(text).ids

    @settings(max_examples=25)
    @given(text=st.text() | st.lists(st.sampled_from(SAMPLES)).map("".join), allow_special=st.booleans())
    def test_decoding_gives_the_text_back(self, gpt2: Tokenizer, text: str, allow_special: bool) -> None:
        ids = gpt2.encode(text, allow_special=allow_special)
        assert gpt2.decode(ids) == text
        assert b"".join(map(gpt2.token_bytes, ids)) == text.encode()

    def test_an_added_token_is_its_text_whatever_letters_it_has(self, gpt2: Tokenizer) -> None:
        # é is also the letter for the byte 0xE9 in the alphabet.
        ids = gpt2.encode("é!<é>")
        assert len(ids) == 2
        assert [gpt2.token_bytes(token) for token in ids] == ["é!".encode(), "<é>".encode()]

    def test_plain_text_makes_no_special_token(self, gpt2: Tokenizer) -> None:
        text = "hello<|endoftext|><é>é!"
        ids = gpt2.encode(text, allow_special=False)
        assert gpt2.decode(ids) == text
        assert not {*gpt2.control_tokens.values()} & {*ids}
        # The others keep their ids, an added one that is not special among them.
        assert ids[-1] == gpt2.encode("é!")[0]
        assert ids[0] == gpt2.encode("hello")[0]

    def test_plain_text_cannot_use_merges_of_a_special_token(self, tmp_path: Path) -> None:
        library = byte_level()
        values = json.loads(library.to_str())
        vocabulary, merges = values["model"]["vocab"], values["model"]["merges"]
        for left, right in (("h", "ellox"), ("hellox", "y")):
            vocabulary.setdefault(right, len(vocabulary))
            vocabulary.setdefault(left + right, len(vocabulary))
            merges.append([left, right])
        merges += [["e", "llox"], ["l", "lox"], ["l", "ox"], ["o", "x"]]
        for name in ("llox", "lox", "ox"):
            vocabulary[name] = len(vocabulary)
        values["model"]["merges"] = sorted(merges, key=lambda pair: "x" not in pair[0] + pair[1])[::-1]
        values["added_tokens"] = [{**values["added_tokens"][0], "content": "hellox", "id": vocabulary["hellox"]}]
        (tmp_path / "tokenizer.json").write_text(json.dumps(values))
        words = Tokenizer.from_file(tmp_path)
        assert words.encode("hellox") == [vocabulary["hellox"]]
        plain = words.encode("helloxy", allow_special=False)
        assert words.decode(plain) == "helloxy"
        assert not {vocabulary["hellox"], vocabulary["helloxy"]} & {*plain}

    def test_a_single_character_that_is_special_can_still_be_written(self, tmp_path: Path) -> None:
        words = Tokenizer.from_file(put(byte_level(), tmp_path, pad_token="!"))
        assert "!" in words.control_tokens
        assert words.decode(words.encode("hello!<|endoftext|>", allow_special=False)) == "hello!<|endoftext|>"

    def test_without_a_decoder_the_pre_tokenizer_tells(self, tmp_path: Path) -> None:
        values = json.loads(byte_level().to_str())
        values["decoder"] = None
        (tmp_path / "tokenizer.json").write_text(json.dumps(values))
        words = Tokenizer.from_file(tmp_path)
        assert words.decode(words.encode(" hello é")) == " hello é"

    def test_padding_and_truncation_of_the_file_are_not_used(self, gpt2: Tokenizer, tmp_path: Path) -> None:
        library = byte_level()
        library.enable_truncation(max_length=2)
        library.enable_padding(length=40)
        text = "hello world, the quick brown fox"
        assert Tokenizer.from_file(put(library, tmp_path)).encode(text) == gpt2.encode(text)


class TestPieces:
    def test_the_ids_are_the_librarys(self, tmp_path: Path) -> None:
        for metaspace in (False, True):
            library = piece_level(metaspace=metaspace)
            words = Tokenizer.from_file(put(library, tmp_path))
            for text in SAMPLES:
                assert words.encode(text) == library.encode(text).ids

    @settings(max_examples=25)
    @given(text=st.text().filter(lambda text: "▁" not in text), allow_special=st.booleans())
    def test_decoding_gives_the_text_back(self, llama: Tokenizer, text: str, allow_special: bool) -> None:
        # Metaspace puts no space before a text that begins with one, and takes one off all the same.
        loses_one = text.startswith(" ") and llama.encode(" x") == llama.encode("x")
        found = llama.decode(llama.encode(text, allow_special=allow_special))
        assert found == (text[1:] if loses_one else text)

    def test_the_space_before_a_text_is_not_of_it_and_the_one_within_is(self, llama: Tokenizer) -> None:
        before, after = llama.encode("the"), llama.encode("the quick")
        assert after[: len(before)] == before
        assert llama.decode(before) == "the"
        assert b"".join(map(llama.token_bytes, before)) == b" the"
        # A stream goes on after other text: it takes the bytes as they are.
        assert b"".join(map(llama.token_bytes, after[len(before) :])) == b" quick"

    def test_tokens_of_bytes_stay_bytes_when_a_file_marks_them_special(self, llama: Tokenizer, tmp_path: Path) -> None:
        names = [f"<0x{value:02X}>" for value in range(256)]
        words = Tokenizer.from_file(put(piece_level(), tmp_path, additional_special_tokens=names))
        assert words.control_tokens == llama.control_tokens
        for allow_special in (True, False):
            assert words.decode(words.encode("a\n🦊", allow_special=allow_special)) == "a\n🦊"

    def test_a_decoder_that_takes_nothing_off_keeps_the_space(self, tmp_path: Path) -> None:
        library = piece_level()
        library.normalizer = normalizers.Replace(" ", "▁")
        library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        words = Tokenizer.from_file(put(library, tmp_path))
        assert words.decode(words.encode(" the fox")) == " the fox"

    def test_special_tokens_of_a_unigram_vocabulary_cannot_be_spelled(self, tmp_path: Path) -> None:
        words = Tokenizer.from_file(put(unigram(), tmp_path))
        assert words.control_tokens == {"<unk>": 0, "<s>": 1, "</s>": 2}
        assert 1 in words.encode("<s>hello</s>")
        ids = words.encode("<s>hello</s>", allow_special=False)
        assert not {0, 1, 2} & {*ids}
        assert words.decode(ids) == "<s>hello</s>"

    def test_text_that_the_vocabulary_cannot_write_is_the_unknown_token(self, tmp_path: Path) -> None:
        words = Tokenizer.from_file(put(unigram(), tmp_path))
        assert words.decode(words.encode("hello日")) == "hello<unk>"


class TestWhatIsPutAround:
    @each_case("metaspace", [False, True])
    def test_the_post_processor_adds_tokens_to_text_but_not_to_plain_text(
        self, tmp_path: Path, metaspace: bool
    ) -> None:
        library = piece_level(metaspace=metaspace)
        library.post_processor = processors.TemplateProcessing(single=AFTER_S, special_tokens=[("<s>", 1)])
        words = Tokenizer.from_file(put(library, tmp_path))
        with_it, without = words.encode("hello"), words.encode("hello", allow_special=False)
        assert with_it == [1, *without]
        assert words.encode("") == [1]
        assert words.encode("", allow_special=False) == []

    @each_case("adds", [True, False])
    def test_add_bos_token_changes_nothing_as_in_transformers(self, tmp_path: Path, adds: bool) -> None:
        names = {"bos_token": "<s>", "add_bos_token": adds}
        library = piece_level()
        assert Tokenizer.from_file(put(library, tmp_path / "a", **names)).encode("hello")[0] != 1
        library.post_processor = processors.TemplateProcessing(single=AFTER_S, special_tokens=[("<s>", 1)])
        assert Tokenizer.from_file(put(library, tmp_path / "b", **names)).encode("hello")[0] == 1

    @each_case("named", [{"eos_token": "</s>"}, {"additional_special_tokens": [{"content": "</s>"}]}])
    def test_tokens_that_the_configuration_names_are_special(self, tmp_path: Path, named: dict[str, Any]) -> None:
        values = json.loads(piece_level().to_str())
        values["added_tokens"] = values["added_tokens"][:2]
        (tmp_path / "tokenizer.json").write_text(json.dumps(values))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**named, "pad_token": "[PAD]"}))
        words = Tokenizer.from_file(tmp_path)
        assert words.control_tokens == {"<unk>": 0, "<s>": 1, "</s>": 2}, "and none that has no id"
        assert words.encode("hello</s>")[-1] == 2

    def test_what_the_configuration_repeats_keeps_its_flags(self, tmp_path: Path) -> None:
        library = byte_level()
        library.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
        words = Tokenizer.from_file(put(library, tmp_path, mask_token="<mask>"))
        assert words.decode(words.encode("hello  <mask>")) == "hello<mask>"


class TestTokensOfTheConfigurationAlone:
    @each_case("kind", recorded("tokens"))
    def test_they_get_the_ids_and_flags_that_transformers_gives(self, tmp_path: Path, kind: str) -> None:
        theirs = recorded("tokens")[kind]
        (tmp_path / "tokenizer.json").write_text(json.dumps(theirs["tokenizer"]))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(theirs["config"]))
        words = Tokenizer.from_file(tmp_path)
        assert [*theirs["ids"]] == TEXTS
        for text, ids in theirs["ids"].items():
            assert words.encode(text) == ids, text
        assert words.vocab_size == theirs["size"]
        assert {"<late>", "<|im_start|>"} <= {*words.control_tokens}
        assert words.control_tokens["<late>"] == words.control_tokens["<|im_start|>"] + 1 == words.vocab_size - 1
        assert words.token_bytes(words.vocab_size - 1) == b"<late>"
        plain = words.encode("hi<|im_start|><late>", allow_special=False)
        assert not {*words.control_tokens.values()} & {*plain}
        assert words.decode(plain) == "hi<|im_start|><late>"

    @each_case("listed", [{"x": entry("<a>")}, {"-1": entry("<a>")}, {"400": "<a>"}, {"400": {"id": 1}}])
    def test_what_is_no_token_is_named(self, tmp_path: Path, listed: dict[str, Any]) -> None:
        put(byte_level(), tmp_path, added_tokens_decoder=listed)
        with pytest.raises(FormatError, match=r"tokenizer_config\.json: added_tokens_decoder has .*; expected a tok"):
            Tokenizer.from_file(tmp_path)


class TestIds:
    def test_rows_without_a_token_have_no_bytes(self, gpt2: Tokenizer, tmp_path: Path) -> None:
        for above in (0, 5, 1 << 40):
            assert gpt2.token_bytes(gpt2.vocab_size + above) == b""
            assert gpt2.decode([gpt2.vocab_size + above, *gpt2.encode("hello")]) == "hello"
        values = json.loads(byte_level().to_str())
        values["model"]["vocab"]["Ġfar"] = 1000
        (tmp_path / "tokenizer.json").write_text(json.dumps({**values, "added_tokens": []}))
        words = Tokenizer.from_file(tmp_path)
        assert words.vocab_size == 1001
        assert (words.token_bytes(1000), words.token_bytes(999)) == (b" far", b"")


def word_level() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))


def with_decoder(decoder: Any) -> Callable[[], tokenizers.Tokenizer]:
    def make() -> tokenizers.Tokenizer:
        library = byte_level()
        library.decoder = decoder
        return library

    return make


class TestRefused:
    @each_case(
        ("make", "error"),
        [
            (word_level, "its model is WordLevel; expected BPE, Unigram or WordPiece"),
            (with_decoder(decoders.BPEDecoder()), "its decoder has BPEDecoder; expected ByteLevel, or ▁"),
            (with_decoder(decoders.Sequence([decoders.ByteLevel(), decoders.CTC()])), "ByteLevel and CTC"),
            (with_decoder(decoders.Replace(tokenizers.Regex("x+"), " ")), "its decoder has Replace"),
            (with_decoder(decoders.Fuse()), "its decoder makes no spaces"),
            (lambda: tokenizers.Tokenizer(models.BPE({"a": 0}, [])), "its decoder has None"),
        ],
    )
    def test_kinds_whose_tokens_have_no_bytes(
        self, tmp_path: Path, make: Callable[[], tokenizers.Tokenizer], error: str
    ) -> None:
        with pytest.raises(FormatError, match=error) as caught:
            Tokenizer.from_file(put(make(), tmp_path))
        assert str(tmp_path) in str(caught.value)

    @each_case(
        "content",
        [
            *(b"", b"{", b"{}", b"\xff\xfe"),
            b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}',
            b'{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}',
            b'{"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, '
            b'"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}',
            b'{"model": ' * 100_000,
        ],
    )
    def test_damaged_files_are_one_line(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "tokenizer.json"
        path.write_bytes(content)
        with pytest.raises(FormatError, match=r"tokenizer\.json: this is not a tokenizer\.json, or a dam") as caught:
            Tokenizer.from_file(path)
        assert len(str(caught.value)) < 500

    def test_other_files_and_folders_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(FormatError, match=r"found a directory without tokenizer\.json"):
            Tokenizer.from_file(tmp_path)
        library = tokenizers.Tokenizer(models.BPE({}, []))
        library.decoder = decoders.ByteLevel()
        with pytest.raises(FormatError, match="its vocabulary is empty"):
            Tokenizer.from_file(path := put(library, tmp_path))
        (tmp_path / "tokenizer_config.json").write_text("{")
        with pytest.raises(FormatError, match=r"tokenizer_config\.json: "):
            read_hf_tokenizer(tmp_path)
        with path.open("wb") as file:
            file.truncate(1 << 31)
        with pytest.raises(FormatError, match="of 2147483648 bytes, which exceeds the limit"):
            Tokenizer.from_file(path)


class TestFinding:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("config.json", "model.safetensors"):
            (tmp_path / name).touch()
        put(byte_level(), tmp_path)
        return tmp_path

    @each_case("name", ["", "config.json", "model.safetensors"])
    @each_case("padding", [0, 7])
    def test_it_is_found_in_the_models_directory(self, folder: Path, gpt2: Tokenizer, name: str, padding: int) -> None:
        found, reason = find_tokenizer(folder / name, None, shape(gpt2.vocab_size + padding))
        assert found is not None
        assert reason == ""
        assert found.encode("hello") == gpt2.encode("hello")
        for place in (folder, folder / "tokenizer.json"):
            other, _ = find_tokenizer("elsewhere.gab", place, shape(gpt2.vocab_size))
            assert other is not None
            assert other.encode("hello") == gpt2.encode("hello")

    def test_one_larger_than_the_model_is_refused(self, folder: Path, gpt2: Tokenizer) -> None:
        size = gpt2.vocab_size
        with pytest.raises(InputError, match=f"the tokenizer has {size} tokens, the model {size - 1}"):
            find_tokenizer(folder, folder, shape(size - 1))
        found, reason = find_tokenizer(folder, None, shape(size - 1))
        assert found is None
        assert f"tokenizer.json next to the checkpoint has {size} tokens, the model {size - 1}" in reason

    def test_a_gab_model_takes_one_it_finds_only_when_the_sizes_are_the_same(
        self, folder: Path, gpt2: Tokenizer
    ) -> None:
        size = gpt2.vocab_size
        assert find_tokenizer(folder / "x.gab", None, shape(size, "gab"))[0] is not None
        assert find_tokenizer(folder / "x.gab", None, shape(size + 1, "gab"))[0] is None
        assert find_tokenizer(folder / "x.gab", folder, shape(size + 1, "gab"))[0] is not None

    def test_a_bpe_file_goes_before_it_and_is_for_models_of_its_own_size(self, folder: Path) -> None:
        write_bpe(PLAIN_BYTES, folder / "model.bpe")
        for path in (folder, folder / "model.safetensors"):
            found, _ = find_tokenizer(path, None, shape(256))
            assert found is not None
            assert found.vocab_size == 256
        (folder / "tokenizer.json").unlink()
        assert find_tokenizer(folder / "m.gab", None, shape(257))[0] is None

    def test_a_kind_that_is_not_read_is_a_reason_and_no_error(self, tmp_path: Path) -> None:
        put(word_level(), tmp_path)
        found, reason = find_tokenizer(tmp_path, None, shape(50))
        assert found is None
        assert "cannot be used" in reason
        assert "WordLevel" in reason


class TestStops:
    @each_case(
        ("generation", "model", "ids"),
        [
            ({"eos_token_id": 3}, {"eos_token_id": 9}, (3,)),
            ({"eos_token_id": [3, 5, 3]}, {}, (3, 5)),
            ({"eos_token_id": None}, {"eos_token_id": 9}, (9,)),
            ({}, {"eos_token_id": 0}, (0,)),
            (None, {"eos_token_id": [9]}, (9,)),
            (None, {"eos_token_id": -1}, ()),
            (None, None, ()),
        ],
    )
    def test_ids_of_a_directory(self, tmp_path: Path, generation: Any, model: Any, ids: tuple[int, ...]) -> None:
        for name, values in (("generation_config.json", generation), ("config.json", model)):
            if values is not None:
                (tmp_path / name).write_text(json.dumps(values))
        for path in (tmp_path, tmp_path / "config.json", tmp_path / "model.safetensors"):
            assert stop_ids_of(path) == ids

    @each_case("value", ["</s>", True, [1, "x"]])
    def test_what_is_no_id_is_refused_or_warned_of(self, tmp_path: Path, value: object) -> None:
        (tmp_path / "config.json").write_text("{")
        with pytest.raises(FormatError, match=r"config\.json"):
            stop_ids_of(tmp_path)
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
        (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 6}))
        words = r"generation_config\.json: eos_token_id is .*; expected a token id .*; using those of config\.json"
        with pytest.warns(GlinferWarning, match=words):
            assert stop_ids_of(tmp_path) == (6,)
        (tmp_path / "generation_config.json").write_text("{")
        assert stop_ids_of(tmp_path) == (6,)
        (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": value}))
        with pytest.raises(FormatError, match=r"config\.json: eos_token_id is .*; expected a token id"):
            stop_ids_of(tmp_path)

    def test_what_ends_a_text(self, tmp_path: Path, gpt2: Tokenizer) -> None:
        chat = Tokenizer.from_file(put(byte_level("<|end|>"), tmp_path))
        (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [7, 5000]}))
        size = gpt2.vocab_size
        assert default_stops(tmp_path, chat, shape(size)) == (7,), "5000 can never come"
        assert default_stops(tmp_path, chat, shape(size, "gab")) == (0,)
        assert default_stops(tmp_path, gpt2, shape(size, "gab")) == ()
        assert default_stops(tmp_path / "none" / "x", chat, shape(size)) == (7,), "as next to the tokenizer"
        chat.path = None
        assert default_stops(tmp_path / "none" / "x", chat, shape(size)) == (0,)
        assert default_stops(tmp_path, None, shape(size, "gab")) == ()
