"""The text parts of a model (tokenizer, template, end tokens, sampling), and how conversion writes them.

A ``.gguf`` holds them in its metadata; other formats have files with Hugging Face's names, or a ``.bpe``, next to them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glinfer.config import ModelConfig
from glinfer.errors import InputError
from glinfer.families.settings import quoted
from glinfer.formats.files import AnyPath, inside, opened
from glinfer.formats.gab.bpe import is_merges_json
from glinfer.formats.gguf.file import is_gguf
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.gguf.vocabulary import VOCABULARY_KEYS, padded, vocabulary_metadata
from glinfer.formats.huggingface.files import GENERATION_CONFIG
from glinfer.formats.json_files import read_json
from glinfer.formats.sampling import find_generation_config, generation_config, recommended_sampling
from glinfer.limits import MAX_CONFIG_BYTES
from glinfer.text.chat import template_of
from glinfer.text.stops import named_stops
from glinfer.text.templates import GGUF_KEY, GGUF_TOOL_KEY, TEMPLATE_FILE, JinjaTemplate
from glinfer.text.tokenizer import Tokenizer, find_tokenizer
from glinfer.text.tokenizers.gguf import gguf_stops, gguf_tokenizer, named_tokens
from glinfer.text.tokenizers.huggingface import CONFIG_FILE, TOKENIZER_FILE, with_decoder
from glinfer.text.tokenizers.slow import WORDS_FILE

_K = "tokenizer.ggml."
_MARKS = (
    "",
    " ",
    "cafe\u0301 \u1112\u1161\u11ab \u212b \ufb01",
    "  two  spaces\r\n\tx  ",
    "don't I'LL 1234567 a\u00b2 '\u017f",
)
_REPEATED, _LONGEST_RUN = " -=*#_.a0\n", 40  # runs of these characters can be merged in several ways
_ENDS = ("eos", "eot", "eom")  # the end tokens in the metadata of a GGUF file


@dataclass(frozen=True)
class TextParts:
    """The parts of a model that process text.

    Attributes:
        reason: why ``tokenizer`` is None.
        template: the Jinja chat template, or None; Gab's chat form needs none.
        stops: the end-of-text ids that its files name.
        sampling: the sampling options that its files name, unchecked.
        generation: its ``generation_config.json``, or None.
    """

    tokenizer: Tokenizer | None
    reason: str = ""
    template: JinjaTemplate | None = None
    stops: tuple[int, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    generation: Path | None = None

    @property
    def _is_gguf(self) -> bool:
        return self.tokenizer is not None and self.tokenizer.path is not None and is_gguf(self.tokenizer.path)


def text_parts(checkpoint: AnyPath, given: AnyPath | None, config: ModelConfig) -> TextParts:
    """Find the text parts of a model, with the ``given`` tokenizer or else its own."""
    tokenizer, reason = find_tokenizer(checkpoint, given, config)
    generation = find_generation_config(checkpoint)
    sampling, source = recommended_sampling(checkpoint)
    generation = generation if source else None  # an unreadable file is not copied
    if tokenizer is None:
        return TextParts(None, reason, sampling=sampling, generation=generation)
    template, stops = template_of(checkpoint, tokenizer, config), named_stops(checkpoint, tokenizer, config)
    return TextParts(tokenizer, "", template, stops, sampling, generation)


# In a GGUF file


def gguf_metadata(parts: TextParts, rows: int) -> dict[str, Any] | None:
    """The metadata of a GGUF file for a model with ``rows`` embedding rows; None without a tokenizer."""
    tokenizer = parts.tokenizer
    if tokenizer is None:
        return None
    if parts._is_gguf:
        assert tokenizer.path is not None
        found = read_gguf_file(tokenizer.path).metadata
        values = padded({key: value for key, value in found.items() if key.startswith(VOCABULARY_KEYS)}, rows)
    else:
        values = vocabulary_metadata(tokenizer.vocabulary, rows)
        if isinstance(tokenizer.vocabulary, Mapping):
            _check_again(tokenizer, values)
    for key in (GGUF_KEY, GGUF_TOOL_KEY):
        values.pop(key, None)
    if parts.template is not None:
        values[GGUF_KEY] = parts.template.source
        if parts.template.tool_source is not None:
            values |= {GGUF_TOOL_KEY: parts.template.tool_source, "tokenizer.chat_templates": ["tool_use"]}
        texts = parts.template.tokens
        ids = {name: tokenizer.special_id(texts.get(f"{name}_token", "")) for name in ("bos", "eos")}
        values.update({f"{_K}{name}_token_id": token for name, token in ids.items() if token is not None})
    _name_stops(values, parts.stops)
    return values


def _check_again(tokenizer: Tokenizer, values: Mapping[str, Any]) -> None:
    """Refuse metadata whose tokenizer encodes a token's text or a special token differently."""
    again = Tokenizer(gguf_tokenizer(values, "the metadata"))
    own, read = tokenizer.vocabulary, again.vocabulary
    assert isinstance(own, Mapping)
    assert isinstance(read, Mapping)
    control = again.control_tokens.keys()  # matched before any merge
    # Scores order the tokens that merges make, not the pairs that make the same token.
    made, remade = (
        dict.fromkeys(text for merge in each["model"]["merges"] if (text := "".join(merge)) not in control)
        for each in (own, read)
    )
    if f"{_K}scores" in values and [*made] != [*remade]:
        raise InputError(
            f"{tokenizer.path}: llama.cpp has no such tokenizer, as its merges do not follow token scores; "
            "convert without it (--no-tokenizer)"
        )
    texts = [f"a {entry['content']} \n{entry['content']}b" for entry in own["added_tokens"]]
    texts += [*_MARKS, *(letter * length for letter in _REPEATED for length in range(2, _LONGEST_RUN))]
    texts += [tokenizer.token_bytes(token).decode(errors="replace") for token in range(tokenizer.vocab_size)]
    other = next((text for text in texts if tokenizer.encode(text) != again.encode(text)), None)
    if other is not None:
        raise InputError(
            f"{tokenizer.path}: a GGUF file cannot hold this tokenizer, as {quoted(other)} would get other ids; "
            "convert without it (--no-tokenizer)"
        )


def _name_stops(values: dict[str, Any], stops: tuple[int, ...]) -> None:
    """Name the end-of-text ids that the metadata lacks."""
    if stops and values.get(f"{_K}eos_token_id") not in stops and not values.get(f"{_K}add_eos_token"):
        values[f"{_K}eos_token_id"] = stops[0]
    for token in stops:
        free = next((name for name in _ENDS if f"{_K}{name}_token_id" not in values), None)
        if token not in gguf_stops(values, "the metadata") and free is not None:
            values[f"{_K}{free}_token_id"] = token


# Beside other files


def sidecar_files(parts: TextParts, target: AnyPath) -> dict[Path, bytes]:
    """The files to write next to ``target``, and their bytes: ``TARGET.bpe``, or Hugging Face's files."""
    tokenizer, target = parts.tokenizer, Path(target)
    found = _generation_config(parts)
    generation = {} if found is None else {target.with_name(GENERATION_CONFIG): found}
    if tokenizer is None or tokenizer.path is None:
        return generation
    source = tokenizer.path
    is_json = source.suffix == ".json" and source.name != WORDS_FILE
    if not is_json and not isinstance(tokenizer.vocabulary, Mapping):
        return {target.with_suffix(".bpe"): _read(source), **generation}
    if parts._is_gguf:
        files = _huggingface_files(tokenizer, source)
    elif not is_json:
        files = {TOKENIZER_FILE: tokenizer.library_json().encode()}
    else:
        files = {TOKENIZER_FILE: _read(source)}
        beside = source.with_name(CONFIG_FILE)
        if not is_merges_json(source) and os.path.lexists(beside):
            files[CONFIG_FILE] = _read(inside(beside))
    if parts.template is not None:
        usual, tools = parts.template.source, parts.template.tool_source
        files.setdefault(CONFIG_FILE, _json(dict(parts.template.tokens)))
        if tools is None:
            files[TEMPLATE_FILE] = usual.encode()
        else:
            both = [{"name": "default", "template": usual}, {"name": "tool_use", "template": tools}]
            files[CONFIG_FILE] = _json({**json.loads(files[CONFIG_FILE]), "chat_template": both})
    return {**{target.with_name(name): data for name, data in files.items()}, **generation}


def _generation_config(parts: TextParts) -> bytes | None:
    """Make ``generation_config.json``: the model's own bytes, unless other files name further end tokens."""
    own = None if parts.generation is None else inside(parts.generation)
    values = generation_config(parts.sampling) if own is None else read_json(own, MAX_CONFIG_BYTES)
    ends = values.get("eos_token_id")
    if parts.stops and (ends if isinstance(ends, list) else [ends]) != list(parts.stops):
        return _json({**values, "eos_token_id": list(parts.stops)})
    if own is not None:
        return _read(own)
    return _json(values) if values else None


def _read(path: Path) -> bytes:
    with opened(path) as (file, size):
        return file.read(size)


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()


def _huggingface_files(tokenizer: Tokenizer, source: Path) -> dict[str, bytes]:
    """``tokenizer.json`` and ``tokenizer_config.json`` for a GGUF file's tokenizer, checked by reading them back."""
    file = read_gguf_file(source)
    model = gguf_tokenizer(file.metadata, file.source)
    config = {f"{name}_token": text for name, text in named_tokens(file.metadata, file.source).items()}
    files = {TOKENIZER_FILE: with_decoder(model).encode(), CONFIG_FILE: _json(config)}
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        again = Tokenizer.from_file(folder)
    if not again.same_as(tokenizer):
        raise InputError(
            f"{file.source}: a {TOKENIZER_FILE} cannot hold this tokenizer, as tokens would have other bytes; convert "
            "without it (--no-tokenizer) and pass the GGUF file with --tokenizer"
        )
    return files
