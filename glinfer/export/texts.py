"""Tokenizer and chat form for the site of a model that generates text.

The runtime implements Gab's tokenizers. For those of Hugging Face and GGUF files the page uses the library
``@huggingface/tokenizers``, and for chat templates ``@huggingface/jinja``. Both differ from Python's libraries, so the
export includes the ids of probe texts and conversations, which the page checks first.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from os import PathLike
from typing import Any

from glinfer.engine.defaults import default_sampling
from glinfer.errors import InputError
from glinfer.export.card import examples_for
from glinfer.export.embedding import PROBES, characters_of, splits_as_bert
from glinfer.export.libraries import JINJA, MARKDOWN, TOKENIZERS
from glinfer.formats import BpeModel, Checkpoint
from glinfer.formats.gguf.vocabulary import steps_of
from glinfer.formats.sampling import NAMES
from glinfer.text.chat import ChatTemplate, TemplateChat, find_chat, template_of
from glinfer.text.stops import default_stops
from glinfer.text.templates import JinjaTemplate, Message, find_template
from glinfer.text.tokenizer import Tokenizer, find_tokenizer

NORMALIZERS = frozenset(
    {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Replace", "Prepend", "Precompiled"}
)
PRE_TOKENIZERS = frozenset(
    {"Split", "ByteLevel", "Digits", "Metaspace", "Whitespace", "WhitespaceSplit", "CharDelimiterSplit", "Punctuation",
     "FixedLength", "BertPreTokenizer"}
)  # fmt: skip
"""Steps of a ``tokenizer.json`` in web/text/steps.js, apart from BertNormalizer with BertPreTokenizer."""
CONVERSATIONS: tuple[tuple[Message, ...], ...] = (
    ({"role": "user", "content": "Hello"},),
    (
        {"role": "user", "content": " \n Hi, 'é' & \"🚀\"\n\n"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\n  Yes:\n- a\n- b\n"},
        {"role": "user", "content": "a  b\t"},
    ),
    ({"role": "system", "content": "  Be kind.\n"}, {"role": "user", "content": "Hello"}),
    (
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2 "},
        {"role": "user", "content": "3"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "5"},
    ),
)
"""Probe conversations; the page compares its ids of a template's rendering with Python's."""
_SYSTEM = "Be kind."


@dataclass(frozen=True)
class TextSupport:
    """The text support of a site.

    Attributes:
        tokenizer: contents of ``tokenizer.json``; None if the page has no tokenizer.
        about: entries for ``model`` of ``plan.json``.
        libraries: the libraries of the page, keys of :data:`glinfer.export.libraries.LIBRARIES`.
        embedding: entries for ``embedding`` of ``plan.json``.
        read: the tokenizer in Python; None if the page has none.
    """

    tokenizer: Mapping[str, Any] | None
    about: dict[str, Any]
    libraries: tuple[str, ...] = ()
    embedding: Mapping[str, Any] = field(default_factory=dict)
    read: Tokenizer | None = None


def continued_texts(
    path: str | PathLike[str], given: str | PathLike[str] | None, checkpoint: Checkpoint
) -> tuple[TextSupport, list[str]]:
    """Find the tokenizer, stop ids and chat form of a model that generates text, and note what the page lacks."""
    config = checkpoint.config
    found, why = find_tokenizer(path, given, config)
    sampling = default_sampling(path)
    about: dict[str, Any] = {
        "stop_ids": list(default_stops(path, found, config)),
        "before": [] if found is None else found.around[0],
        "chat": None,
        "why": None,
        "examples": [],
        "generation": {name: getattr(sampling, name) for name in NAMES},
    }
    if found is None:
        return TextSupport(None, about), [f"the site takes token ids only: {why}"]
    vocabulary = found.vocabulary
    has_library = not isinstance(vocabulary, BpeModel)
    libraries: tuple[str, ...] = (TOKENIZERS, JINJA) if has_library else ()
    try:
        entry = (
            tokenizer_entry(vocabulary, found.control_tokens)
            if isinstance(vocabulary, BpeModel)
            else library_entry(found)
        )
    except InputError as error:
        about["why"] = str(error)
        return TextSupport(None, about), [f"the site takes token ids only: {error}"]
    about["chat"], about["why"] = _chat_of(path, found, checkpoint, has_library=has_library)
    about["examples"] = examples_for(path, chats=about["chat"] is not None)
    notes = [f"the site generates text but does not chat: {about['why']}"] if about["why"] else []
    if about["chat"] is not None:
        libraries = (*libraries, MARKDOWN)
    return TextSupport(entry, about, libraries, read=found), notes


def library_entry(tokenizer: Tokenizer) -> dict[str, Any]:
    """Make the contents of a site's ``tokenizer.json`` for a tokenizer of the library.

    ``library`` is the tokenizer's ``tokenizer.json`` without the ids around a text, which are ``before`` and ``after``.
    ``pieces`` has the bytes of each id in base64, ``probes`` texts with their ids in each pipeline of
    web/text/library.js.
    """
    values: dict[str, Any] = json.loads(tokenizer.library_json())
    values.update(truncation=None, padding=None, post_processor=None, decoder=None)
    _check_steps(values)
    before, after = tokenizer.around
    whole = slice(len(before), -len(after) or None)
    names = list(tokenizer.control_tokens)[:3]
    texts = (*PROBES, " ".join(f"{name}a{name[:-1]} {name}" for name in names), "'ſ 'S 1234567 ٣٤ a²³ \n\n\n  x\n \t")
    return {
        "kind": "library",
        "library": values,
        "characters": characters_of(values),
        "pieces": [base64.b64encode(tokenizer.token_bytes(token)).decode() for token in range(tokenizer.vocab_size)],
        "control": dict(tokenizer.control_tokens),
        "prefix": tokenizer.prefix,
        "before": before,
        "after": after,
        "probes": [
            {
                "text": text,
                "whole": tokenizer.encode(text)[whole],
                "plain": tokenizer.encode(text, allow_special=False),
                "later": tokenizer.encode_plain(text),
            }
            for text in texts
        ],
    }


def _check_steps(values: Mapping[str, Any]) -> None:
    """Refuse steps that web/text/steps.js does not implement."""
    if splits_as_bert(values):
        return
    for name, several, known in (
        ("normalizer", "normalizers", NORMALIZERS),
        ("pre_tokenizer", "pretokenizers", PRE_TOKENIZERS),
    ):
        for step in steps_of(values[name], several):
            if step["type"] not in known:
                raise InputError(f"the page does not support the {name} {step['type']} of this model's tokenizer")


def _chat_of(
    path: str | PathLike[str], tokenizer: Tokenizer, checkpoint: Checkpoint, *, has_library: bool
) -> tuple[dict[str, Any] | None, str | None]:
    """The entry of the chat form for ``plan.json``, or None; and why the page does not support an existing form."""
    try:
        form = find_chat(path, tokenizer, checkpoint.config)
    except InputError as error:
        return None, str(error) if find_template(path) is not None else None
    if isinstance(form, ChatTemplate):
        thinks = form.think if form.answer == form.assistant else None
        return {"user": form.user, "assistant": form.assistant, "end": form.end, "think": thinks}, None
    template = template_of(path, tokenizer, checkpoint.config)
    if not has_library or template is None or not isinstance(form, TemplateChat):
        return None, "the page renders templates only with tokenizers of Hugging Face and of GGUF files"
    return template_entry(template, tokenizer, form.stop_ids), None


def template_entry(template: JinjaTemplate, tokenizer: Tokenizer, stop_ids: Sequence[int]) -> dict[str, Any]:
    """Describe a chat template: source, named tokens, ids that end a reply, and probe conversations."""
    while True:
        started = _minute()
        probes = [
            {"messages": list(messages), "ids": _ids(template, tokenizer, messages)} for messages in CONVERSATIONS
        ]
        if _minute() == started:  # templates may print the time
            break
    system: Message = {"role": "system", "content": _SYSTEM}
    try:
        takes_system = _SYSTEM in template.render([system, *CONVERSATIONS[0]])
    except InputError:
        takes_system = False
    return {
        "template": template.source,
        "tokens": dict(template.tokens),
        "stop_ids": list(stop_ids),
        "system": takes_system,
        "probes": probes,
        "clock": started,
    }


def _minute() -> list[int]:
    now = datetime.now()
    return [now.year, now.month, now.day, now.hour, now.minute]


def _ids(template: JinjaTemplate, tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int] | None:
    """The ids of a conversation; None if the template refuses it."""
    try:
        return template.ids(tokenizer, messages)
    except InputError:
        return None


def tokenizer_entry(model: BpeModel, control: Mapping[str, int]) -> dict[str, Any]:
    """Make the contents of a site's ``tokenizer.json``: merges, bytes of each id in base64, and control tokens."""
    return {
        "kind": "bpe1",
        "merges": [list(merge) for merge in model.merges],
        "pieces": [base64.b64encode(piece).decode() for piece in model.vocabulary],
        "control": dict(control),
    }
