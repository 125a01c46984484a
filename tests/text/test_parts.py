"""Tokenizer, template and end tokens of a model, through the files of every format and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from each_case import each_case
from goldens.gguf_models import K, byte_level, piece_level, texts, vocabularies, write_vocabulary

from glinfer.config import ModelConfig
from glinfer.engine.random_model import demo_tokenizer
from glinfer.errors import InputError
from glinfer.formats import write_bpe
from glinfer.formats.gguf.words import EXPRESSIONS
from glinfer.text.chat import find_chat
from glinfer.text.conversation import Conversation
from glinfer.text.parts import TextParts, gguf_metadata, sidecar_files, text_parts
from glinfer.text.stops import default_stops
from glinfer.text.templates import find_template
from glinfer.text.tokenizer import Tokenizer, find_tokenizer
from glinfer.text.tokenizers.gguf import gguf_tokenizer

pytestmark = pytest.mark.usefixtures("here")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def shape(rows: int, family: str = "llama") -> ModelConfig:
    return ModelConfig(rows, 64, 2, 1, 64, intermediate_size=64, model_type=family)


def written(parts: TextParts, target: Path) -> list[str]:
    files = sidecar_files(parts, target)
    for path, data in files.items():
        path.write_bytes(data)
    return sorted(path.name for path in files)


def check_same(first: Path, second: Path, config: ModelConfig) -> None:
    one, two = (find_tokenizer(path, None, config)[0] for path in (first, second))
    assert one is not None
    assert two is not None
    for text in texts(15):
        for special in (True, False):
            assert one.encode(text, allow_special=special) == two.encode(text, allow_special=special), ascii(text)
    for token in range(one.vocab_size):
        assert one.token_bytes(token) == two.token_bytes(token)
    assert dict(one.control_tokens) == dict(two.control_tokens)
    assert set(default_stops(first, one, config)) == set(default_stops(second, two, config))
    forms = [find_chat(path, tokenizer, config) for path, tokenizer in ((first, one), (second, two))]
    prompts = {(Conversation(form, 64).prompt("hello", reserve=0).ids, frozenset(form.stop_ids)) for form in forms}
    assert len(prompts) == 1


NAMES = ("generation_config", "tokenizer", "tokenizer_config")


def json_of(folder: Path, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer.json of a GGUF vocabulary, without NFC."""
    folder.mkdir()
    source = write_vocabulary(folder / "m.gguf", metadata)
    written(text_parts(source, None, shape(len(metadata[K + "tokens"]))), folder / "m.safetensors")
    values: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    return values


def cut(
    values: Mapping[str, Any], expressions: Sequence[str], behavior: str = "Isolated", **more: Any
) -> dict[str, Any]:
    """A byte-level tokenizer.json that cuts text by other expressions."""
    splits = [
        {"type": "Split", "pattern": {"Regex": each}, "behavior": behavior, "invert": False, **more}
        for each in expressions
    ]
    in_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {**values, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, in_bytes]}}


class TestRoundTrip:
    @each_case("name", vocabularies())
    def test_a_gguf_vocabulary_beside_other_weights_and_back(self, tmp_path: Path, name: str) -> None:
        metadata = vocabularies()[name]
        config = shape(len(metadata[K + "tokens"]))
        source = write_vocabulary(tmp_path / "m.gguf", {**metadata, "tokenizer.chat_template": TEMPLATE})
        (folder := tmp_path / "d").mkdir()
        names = written(text_parts(source, None, config), folder / "m.safetensors")
        assert names == ["chat_template.jinja", *(f"{name}.json" for name in NAMES)]
        check_same(source, folder / "m.safetensors", config)
        again = text_parts(folder / "m.safetensors", None, config)
        back = gguf_metadata(again, config.vocab_size)
        assert back is not None
        check_same(source, write_vocabulary(tmp_path / "back.gguf", back), config)

    def test_a_gab_keeps_its_bpe_byte_for_byte(self, tmp_path: Path) -> None:
        write_bpe(demo_tokenizer(300), tmp_path / "g.bpe")
        parts = text_parts(tmp_path / "g.gab", None, shape(300, "gab"))
        assert written(parts, tmp_path / "new.safetensors") == ["new.bpe"]
        assert (tmp_path / "new.bpe").read_bytes() == (tmp_path / "g.bpe").read_bytes()


class TestGguf:
    def test_a_template_and_ends_of_a_directory_go_into_the_file(self, tmp_path: Path) -> None:
        metadata = byte_level()
        config = shape(len(metadata[K + "tokens"]) + 2)
        (folder := tmp_path / "hf").mkdir()
        source = write_vocabulary(tmp_path / "m.gguf", metadata)
        written(text_parts(source, None, config), folder / "m.safetensors")
        start, end = (Tokenizer.from_file(source).control_tokens[f"<|im_{name}|>"] for name in ("start", "end"))
        settings = {"chat_template": TEMPLATE, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, 5], "temperature": 0.2}))
        found = gguf_metadata(text_parts(folder, None, config), config.vocab_size)
        assert found is not None
        assert found["tokenizer.chat_template"] == TEMPLATE
        assert (found[K + "bos_token_id"], found[K + "eos_token_id"], found[K + "eot_token_id"]) == (start, end, 5)
        path = write_vocabulary(tmp_path / "out.gguf", found)
        template = find_template(path)
        assert template is not None
        assert template.tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
        tokenizer = find_tokenizer(path, None, config)[0]
        assert set(default_stops(path, tokenizer, config)) == {end, 5}
        # Settings for sampling stay beside the weights.
        written(text_parts(folder, None, config), tmp_path / "n.safetensors")
        assert json.loads((tmp_path / "generation_config.json").read_text())["temperature"] == 0.2

    def test_rows_without_a_token_get_one(self, tmp_path: Path) -> None:
        for metadata in (byte_level(), piece_level()):
            rows = len(metadata[K + "tokens"]) + 3
            source = write_vocabulary(tmp_path / f"{metadata[K + 'model']}.gguf", metadata)
            found = gguf_metadata(text_parts(source, None, shape(rows)), rows)
            assert found is not None
            assert found[K + "tokens"][-1] == f"[PAD{rows - 1}]"
            for name in ("tokens", "token_type", "scores"):
                assert len(found.get(K + name, range(rows))) == rows

    def test_merges_that_scores_cannot_say_are_refused(self, tmp_path: Path) -> None:
        config = shape(len(piece_level()[K + "tokens"]))
        source = write_vocabulary(tmp_path / "m.gguf", piece_level())
        (folder := tmp_path / "d").mkdir()
        written(text_parts(source, None, config), folder / "m.safetensors")
        values = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        del values["model"]["merges"][5]
        (folder / "tokenizer.json").write_text(json.dumps(values), "utf-8")
        with pytest.raises(InputError, match="its merges do not follow token scores"):
            gguf_metadata(text_parts(folder / "m.safetensors", None, config), config.vocab_size)

    def test_published_forms_of_tokenizers_go_into_a_gguf_file(self, tmp_path: Path) -> None:
        """What is merged, or cut, in the same way but written otherwise, as in the files of the models named."""
        bytewise, piecewise = (json_of(tmp_path / kind.__name__, kind()) for kind in (byte_level, piece_level))
        first, *others = piecewise["model"]["merges"]
        twice = [merge for merge in others if "".join(merge) == "".join(first)] or [first]
        nothing = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
        forms: dict[str, Any] = {
            "Gemma 3": {**piecewise, "pre_tokenizer": nothing},
            "Llama 2": {
                **piecewise,
                "model": {
                    **piecewise["model"],
                    "merges": [*reversed([first, *twice]), *(m for m in others if m not in twice)],
                },
            },
            "Qwen 3": {**cut(bytewise, EXPRESSIONS["qwen2"]), "normalizer": {"type": "NFC"}},
            "OLMo 2, Phi 4": cut(bytewise, EXPRESSIONS["dbrx"], behavior="Removed", invert=True),
            "gpt-oss": {**cut(bytewise, EXPRESSIONS["gpt-4o"]), "model": {**bytewise["model"], "ignore_merges": True}},
            "DeepSeek V3": cut(
                bytewise, [each.replace(r"\n", "\n").replace(r"\r", "\r") for each in EXPRESSIONS["deepseek-v3"]]
            ),
        }
        for name, values in forms.items():
            (folder := tmp_path / name).mkdir()
            (folder / "tokenizer.json").write_text(json.dumps(values))
            own = Tokenizer.from_file(folder)
            found = gguf_metadata(TextParts(own), own.vocab_size)
            assert found is not None
            again = Tokenizer(gguf_tokenizer(found, "m.gguf"))
            for text in (*texts(15), "cafe\u0301 \u1112\u1161\u11ab", "  a\n\n\tb12345"):
                assert again.encode(text) == own.encode(text), (name, text)

    def test_a_tokenizer_that_would_give_other_ids_is_refused(self, tmp_path: Path) -> None:
        """What GGUF's metadata do not say: spaces that a token takes, two tokens behind a text."""
        values = json_of(tmp_path / "d", byte_level())
        tokens = {entry["content"]: entry["id"] for entry in values["added_tokens"]}
        start, end = "<|im_start|>", "<|im_end|>"
        two = {"type": "TemplateProcessing", "pair": [], "special_tokens": {
            name: {"id": name, "ids": [tokens[name]], "tokens": [name]} for name in (start, end)}}  # fmt: skip
        pieces = [
            {"Sequence": {"id": "A", "type_id": 0}},
            *({"SpecialToken": {"id": name, "type_id": 0}} for name in (start, end)),
        ]
        strips = [{**entry, "rstrip": True} for entry in values["added_tokens"]]
        for change in (
            {"added_tokens": strips},
            {"post_processor": {**two, "single": pieces, "pair": [*pieces, {"Sequence": {"id": "B", "type_id": 1}}]}},
        ):
            (tmp_path / "tokenizer.json").write_text(json.dumps({**values, **change}))
            own = Tokenizer.from_file(tmp_path)
            with pytest.raises(InputError, match=r"a GGUF file cannot hold this tokenizer, as .* would get other"):
                gguf_metadata(TextParts(own), own.vocab_size)

    def test_tokens_that_a_tokenizer_json_would_read_otherwise_are_refused(self, tmp_path: Path) -> None:
        metadata: Mapping[str, Any] = byte_level()
        metadata[K + "tokens"][-1] = "été"  # bytes E9 … in the alphabet of bytes, but text where it is user-defined
        source = write_vocabulary(tmp_path / "m.gguf", metadata)
        parts = text_parts(source, None, shape(len(metadata[K + "tokens"])))
        with pytest.raises(InputError, match="cannot hold this tokenizer"):
            sidecar_files(parts, tmp_path / "n.safetensors")


def test_a_tokenizer_from_elsewhere_brings_template_and_ends(tmp_path: Path) -> None:
    metadata = {**byte_level(), "tokenizer.chat_template": TEMPLATE}
    config = shape(len(metadata[K + "tokens"]))
    given = write_vocabulary(tmp_path / "t.gguf", metadata)
    (alone := tmp_path / "alone").mkdir()
    tokenizer = find_tokenizer(alone / "m.safetensors", given, config)[0]
    assert tokenizer is not None
    assert default_stops(alone / "m.safetensors", tokenizer, config) == (metadata[K + "eos_token_id"],)
    assert find_chat(alone / "m.safetensors", tokenizer, config).stop_ids == (metadata[K + "eos_token_id"],)
    (alone / "chat_template.jinja").write_text("other")
    found = text_parts(alone / "m.safetensors", given, config).template
    assert found is not None
    assert found.source == TEMPLATE
