"""What fuzzing found, each by itself: the file, and what is said of it now."""

from __future__ import annotations

import base64
import json
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from counting import calls_of
from each_case import each_case
from tiers import tiered

from glinfer.errors import FormatError, GlinferError, InputError
from glinfer.formats import load_checkpoint
from glinfer.formats.gab.bpe import read_merges_json
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.gguf.vocabulary import vocabulary_metadata
from glinfer.formats.huggingface.config import read_config
from glinfer.formats.json_files import read_json
from glinfer.formats.jsonl import parse_object
from glinfer.formats.safetensors import read_safetensors
from glinfer.server.errors import ApiError
from glinfer.server.protocol import ChatCompletionRequest
from glinfer.server.tool_calls import CallDeltas
from glinfer.structured.structure import structure_of
from glinfer.structured.tools import FORMS, ToolForm
from glinfer.text.tokenizer import Tokenizer
from glinfer.text.tokenizers import check as hf_check
from glinfer.text.tokenizers import huggingface as hf_tokenizer
from glinfer.text.tokenizers.check import check_tokenizer
from glinfer.text.tokenizers.gguf import gguf_tokenizer
from glinfer.text.tokenizers.huggingface import read_hf_tokenizer
from glinfer.text.tokenizers.patterns import problem_of
from qa.fuzz import seeds
from qa.fuzz.mutate import build_safetensors, form_of
from qa.fuzz.reads import put

pytestmark = pytest.mark.fuzz

K = "tokenizer.ggml."


def refusal(read: Callable[[], object], kind: type[GlinferError] = FormatError) -> str:
    """The one short line of an error on purpose."""
    with pytest.raises(kind) as caught:
        read()
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 700
    return message


def tokenizer(folder: Path, seed: int = 0, **parts: Any) -> Path:
    """A tokenizer.json with other parts; of its model those that are given."""
    values = json.loads(seeds.tokenizer_jsons()[seed])
    values["model"].update(parts.pop("model", {}))
    return put(folder, "tokenizer.json", seeds.compact({**values, **parts}))


@contextmanager
def within(most: int) -> Iterator[None]:
    """What takes no more bytes than this."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


class TestExpressions:
    """``a*a*a*x`` in a tokenizer.json took 12 seconds for 512 letters, ``(\\w+\\s?)+$`` a second for 1000."""

    def test_forms_that_can_take_for_ever(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are refused by their form: no text is searched with them, and the library never sees the file."""
        monkeypatch.setattr(hf_check, "Regex", used := Mock())
        monkeypatch.setattr(hf_tokenizer, "tokenizers", used)
        for pattern in (
            "(a+)+$", "(a|a)*$", "(a?){30}a{30}x", r"(?:\w+\s?)+!", "((a|b)c)*", "a{1,3}+", "a**", "(?:(?:a+)?)+",
            r"(?<x>a\g<x>?)+$", r"(a)\1*x", "(?~ab)x", "(?x)a", "[^]](b*)*", r"\p{L}(\)*)*", "(?i:'s|'t)+", "(" * 40,
            "a" * 9000,
        ):  # fmt: skip
            assert problem_of(pattern), pattern
            path = tokenizer(tmp_path, pre_tokenizer=split(pattern))
            assert "do not trust this file" in refusal(lambda path=path: read_hf_tokenizer(path))
            assert used.mock_calls == [], pattern
            assert calls_of(lambda pattern=pattern: problem_of(pattern)) < 20 * len(pattern) + 100

    @tiered("pattern", [".*.*.*.*x", r"\s*\s*\s*x", "[^x]*[^y]*z"])
    def test_those_that_take_long_on_a_run_of_one_character(self, pattern: str, tmp_path: Path) -> None:
        assert not problem_of(pattern)
        for parts in (
            {"pre_tokenizer": split(pattern)},
            {"normalizer": {**split(pattern), "type": "Replace", "content": ""}},
        ):
            path = tokenizer(tmp_path, **parts)
            assert "which takes long on " in refusal(lambda path=path: read_hf_tokenizer(path))

    def test_those_of_tokenizers_are_let_through(self, tmp_path: Path) -> None:
        for pattern in (
            r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", r" ?[^(\s|[.,!?…。])]+",
            r"(?i:'s|'ll)?[\p{L}\p{M}]+|\p{N}{1,3}", " {2,}", r"(?=(\d{3})+(?!\d))", "a+?b",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}&&[^\p{Han}]]*[\p{Ll}]+(?i:'s|'t)?", r"(?:ab)+", "x{,3}", r"\{+", "(?<=a)b",
        ):  # fmt: skip
            assert not problem_of(pattern), pattern
            read_hf_tokenizer(tokenizer(tmp_path, pre_tokenizer=split(pattern)))


_WHOLE = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_DOUBLING = {"type": "Sequence", "normalizers": [replace("a", "aa")] * 6}
_CHARSMAP = base64.b64encode(bytes(4) + b"x" * 5000).decode()
_PIECE = {"Sequence": {"id": "A", "type_id": 0}}
_AROUND = {"type": "TemplateProcessing", "single": [_PIECE] * 65, "pair": [_PIECE], "special_tokens": {}}
GROWS = "can make a text more than 1024 times as long"


class TestTokenizers:
    @each_case(
        ("parts", "words"),
        [
            # Steps that double a text, forty times over; a template that puts it 50 000 times beside itself
            ({"normalizer": {"type": "Sequence", "normalizers": [replace("a", "aa")] * 40}}, GROWS),
            ({"normalizer": {"type": "Sequence", "normalizers": [_DOUBLING] * 6}}, GROWS),
            ({"normalizer": replace("a", "b" * 2000)}, GROWS),
            ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [_WHOLE] * 40}}, GROWS),
            ({"decoder": {"type": "Sequence", "decoders": [replace("h", "hh")] * 40}}, GROWS),
            ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": _CHARSMAP}}, GROWS),
            ({"post_processor": _AROUND}, "puts 65 pieces around a text, which exceeds the limit of 64"),
            ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 65}}, "has more than 64 steps"),
            ({"normalizer": replace("", "x")}, "replaces the empty text"),
            ({"normalizer": {"type": "Prepend", "prepend": "▁" * 1025}}, "has a text of 1025 characters"),
            ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "é"}}, "is not base64"),
            ({"model": {"end_of_word_suffix": "</w>"}}, "has end_of_word_suffix '</w>'; expected tokens without marks"),
            # The library counted up to it, for 12 seconds and in 8 GB, when text without special tokens was encoded
            ({"model": {"vocab": {"h": 0, "e": 1 << 31}, "merges": []}},
             "has id 2147483648 for 'e'; expected 16777216 at most"),
        ],
    )  # fmt: skip
    def test_absurd_parts(self, parts: dict[str, Any], words: str, tmp_path: Path) -> None:
        path = tokenizer(tmp_path, **parts)
        assert words in refusal(lambda: read_hf_tokenizer(path))

    def test_a_tower_of_sequences_is_no_recursion(self) -> None:
        tower: dict[str, Any] = {"type": "NFC"}
        for _ in range(5000):
            tower = {"type": "Sequence", "normalizers": [tower]}
        assert "more than 64 steps" in refusal(lambda: check_tokenizer({"model": {}, "normalizer": tower}, "x"))

    def test_half_a_surrogate_pair_is_no_token(self, tmp_path: Path) -> None:
        tokenizer(tmp_path)
        put(tmp_path, "tokenizer_config.json", b'{"bos_token": "\\ud800", "additional_special_tokens": ["\\udfff"]}')
        assert Tokenizer.from_file(tmp_path).encode("hello")
        put(tmp_path, "tokenizer_config.json", b'{"added_tokens_decoder": {"12": {"content": "\\ud800"}}}')
        assert "added_tokens_decoder has" in refusal(lambda: Tokenizer.from_file(tmp_path))

    def test_merges_that_make_the_library_panic(self) -> None:
        metadata = {K + "model": "gpt2", K + "pre": "gpt-2", K + "tokens": ["h", "he"], K + "merges": ["h e"]}
        for merges, words in ((["h e"], "no token is 'e'"), (["hellF\x01 he"], r"no token is 'hellF\x01'")):
            found = {**metadata, K + "merges": merges}
            message = refusal(lambda found=found: gguf_tokenizer(found, "m.gguf"))
            assert "its merges do not match its tokens" in message
            assert words in message

    def test_tokens_that_are_made_of_each_other_in_too_many_ways(self) -> None:
        """Half a megabyte of "a", "aa", "aaa", … has half a million merges, which took 850 MB."""
        runs = ["a" * length for length in range(1, 1025)]
        found = {K + "model": "llama", K + "tokens": ["<unk>", "<s>", "</s>", *runs]}
        with within(32 << 20):
            message = refusal(lambda: gguf_tokenizer(found, "m.gguf"))
        assert "its 1024 tokens can be made of each other in more than 69632 ways" in message

    def test_a_damaged_vocabulary_is_not_converted(self) -> None:
        for change in (
            {"model": {"type": "BPE", "vocab": {"a": "x", "b": 1}, "merges": []}},
            {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [5]}},
            {"model": {"type": "BPE", "vocab": {"\ud800": 0}, "merges": ["a b"]}},
            {"model": {"type": "BPE", "vocab": {"a": -1}, "merges": ["a b"]}},
            {"added_tokens": [{"id": None, "content": "x", "special": True}]},
        ):
            values = json.loads(seeds.tokenizer_jsons()[0]) | change
            said = refusal(lambda values=values: vocabulary_metadata(values, 64), InputError)
            assert "not the contents of a tokenizer.json" in said, change


class TestSecondGeneration:
    def test_a_few_merges_make_no_hundred_megabytes(self, tmp_path: Path) -> None:
        doubling = [[97, 97], *([256 + index, 256 + index] for index in range(24))]
        path = put(tmp_path, "tokenizer.json", seeds.compact({"merges": doubling}))
        with within(16 << 20):
            assert "which exceeds the limit of 4194304" in refusal(lambda: read_merges_json(path))

    def test_reserved_texts_are_few_and_unicode(self, tmp_path: Path) -> None:
        for reserved, words in (
            (["\ud800\ud800"], "no merge makes the reserved text"),
            (["aa"] * 129, "129 reserved texts"),
        ):
            values = {"reserved": reserved, "merges": [[63, 63], [97, 97]]}
            path = put(tmp_path, "tokenizer.json", json.dumps(values).encode())
            assert words in refusal(lambda path=path: Tokenizer.from_file(path))


class TestModels:
    def test_a_number_too_large_to_calculate_with(self, tmp_path: Path) -> None:
        scaling = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 10**400}
        path = put(tmp_path, "config.json", seeds.compact({**seeds.LLAMA, "rope_scaling": scaling}))
        assert "'original_max_position_embeddings' of the rope scaling is 1000" in refusal(lambda: read_config(path))
        for name in ("factor", "attention_factor"):
            for number in (1e-30, 1e29):
                put(tmp_path, "config.json", seeds.compact({**seeds.LLAMA, "rope_scaling": {**scaling, name: number}}))
                assert "of the rope scaling is" in refusal(lambda: read_config(path))

    def test_a_context_of_one_has_no_logarithm_to_divide_by(self, tmp_path: Path) -> None:
        scaling = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0], "factor": 2.0}
        usual = {**seeds.LLAMA, "rope_scaling": scaling}
        assert read_config(put(tmp_path, "config.json", seeds.compact(usual))).rope_scaling
        for name in ("max_position_embeddings", "original_max_position_embeddings"):
            path = put(tmp_path, "config.json", seeds.compact({**usual, name: 1}))
            assert "original_max_position_embeddings is" in refusal(lambda path=path: read_config(path))

    def test_long_names_and_shapes_are_cut_in_messages(self, tmp_path: Path) -> None:
        whole = seeds.huggingface()
        put(tmp_path, "config.json", whole["config.json"])
        document = form_of("model.safetensors").parse(whole["model.safetensors"])
        norm = document["header"]["model.norm.weight"]
        for changed, words in (
            (
                {"x" * 100_000: {**norm, "shape": [0], "data_offsets": [len(document["data"])] * 2}},
                "unknown tensor 'xxx",
            ),
            ({"model.norm.weight": {**norm, "shape": [1] * 20_000 + [4]}}, "has shape [1, 1, 1, 1, 1, 1, ...]"),
        ):
            found = build_safetensors({**document, "header": {**document["header"], **changed}})
            path = put(tmp_path, "model.safetensors", found)
            assert words in refusal(lambda path=path: load_checkpoint(path))

    @tiered("values", [b'{"":0},' * 600_000, b"[]," * 600_000], ids=["objects", "lists"])
    def test_json_of_too_many_values_is_not_parsed(self, values: bytes, tmp_path: Path) -> None:
        text = b'{"a":[' + values + b"0]}"
        path = put(tmp_path, "m.json", text)
        header = put(tmp_path, "model.safetensors", struct.pack("<Q", len(text)) + text)
        put(tmp_path, "config.json", seeds.compact(seeds.LLAMA))
        for read in (
            lambda: read_json(path, 1 << 23),
            lambda: read_safetensors(header),
            lambda: load_checkpoint(header),
        ):
            with within(3 * len(text)):
                assert "values, which exceeds the limit of " in refusal(read)

    def test_metadata_of_too_many_elements_is_not_held(self, tmp_path: Path) -> None:
        count = (1 << 21) + 1
        data = b"GGUF" + struct.pack("<I2Q", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<2IQ", 9, 0, count)
        path = put(tmp_path, "m.gguf", data + bytes(count))
        found = repr(read_gguf_file(path).metadata["a"])
        assert found == "an array of 2097153 elements (exceeds the limit of 2097152 in a file)"


def test_a_line_of_brackets_is_not_parsed() -> None:
    line = b'{"x": [' + b"[]," * 1_100_000 + b"0]}"
    with within(1 << 20):
        assert "has more than 1048576 brackets" in refusal(lambda: parse_object(line, "{}"), InputError)


class TestRequests:
    """Bodies that clients send, and what models write."""

    def test_the_name_of_an_unknown_field_is_cut(self) -> None:
        """Errors repeated it, whatever its length."""
        for place in ("{%s}", '{"messages": [{"role": "user", "content": "x", %s}]}'):
            body = place % ('"' + "x" * 100_000 + '": 1, "model": "m"')
            said = refusal(lambda body=body: ChatCompletionRequest.read(body.encode()), ApiError)
            assert len(said) < 300

    def test_a_call_without_a_name(self) -> None:
        """It was taken for the arguments of a call before it, of which there was none."""
        for form in (each for each in FORMS.values() if isinstance(each, ToolForm)):
            deltas = CallDeltas(form)
            arguments = "" if form.before_arguments == "(" else "{}"
            deltas.push(f"{form.opening}{form.before_name}{form.before_arguments}{arguments}{form.closing}", last=True)
            (call,) = deltas.message()["tool_calls"]
            assert call["function"] == {"name": "", "arguments": "{}"}

    def test_a_schema_may_be_true(self) -> None:
        """The library wants an object."""
        found = structure_of({"json_schema": True})
        assert found is not None
        assert found.text == "{}"
        assert "json_schema is false" in refusal(lambda: structure_of({"json_schema": False}), InputError)
