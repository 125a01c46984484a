"""Requests to a served soak, drawn by a seed, and what of their answers has to be the same each time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qa.serve_load import WORDS
from qa.soak.models import ADAPTER, CHATS, EMBEDS
from tests.helpers.tiny_embedders import WORDS as KNOWN_WORDS

WRITES = "writes"
"""The name of the model that the soak is given."""
_SPEECH = "Now is the winter of our discontent "
_SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0}, {"temperature": 1.0, "top_k": 0, "top_p": 1.0}, {"temperature": 0.8, "top_p": 0.9},
    {"top_k": 20}, {"min_p": 0.05}, {"repetition_penalty": 1.2}, {"presence_penalty": 0.5, "frequency_penalty": 0.3},
)  # fmt: skip
_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "kind": {"enum": ["king", "fool"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
_STRUCTURES: tuple[dict[str, Any], ...] = (
    {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": _PERSON}}},
    {"guided_regex": "[A-Z]{3}-[0-9]{2}"},
    {"guided_choice": ["yes", "no", "perhaps"]},
    {"guided_grammar": 'start: "a" ("b" | "c")~3'},
)
_NO_SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 1}}}}
_IN_PIECES = {"stream": True, "stream_options": {"include_usage": True}}
_CHANGING = frozenset({"id", "created", "created_at", "prompt_tokens_details", "cached_tokens"})
"""Fields of an answer that differ from time to time: names, times, and what was in a cache already."""

_COMPLETIONS = "/v1/completions"
KINDS = {
    **{"completions": 6, "streams": 4, "left": 4, "adapted": 3, "chats": 1, "scores": 2, "embeddings": 2},
    **{"rerankings": 1, "structures": 2, "attention": 1, "tokens": 1, "mistakes": 1},
}
"""Times that each kind occurs in one deck."""


@dataclass(frozen=True)
class Asked:
    """A request of a kind, whose client may go away after some pieces of the stream, or which has to be refused."""

    kind: str
    path: str
    body: Mapping[str, Any]
    leaves_after: int | None = None
    refused: bool = False


def draw_requests(seed: int, count: int) -> list[Asked]:
    """``count`` different requests; each kind comes once before one comes again."""
    draw, found, deck = random.Random(seed), list[Asked](), list[str]()
    while len(found) < count:
        if not deck:
            again = [kind for kind, times in KINDS.items() for _ in range(times - 1)] if found else []
            deck = [*again, *KINDS]
            draw.shuffle(deck)
        found.append(draw_request(deck.pop(), draw))
    return found


def first_requests() -> list[Asked]:
    """Requests whose answers share a long beginning, for every model that writes.

    Its keys and values are copied from one sequence to another, by framebuffers and a texture that are made once.
    """
    body = {"prompt": _SPEECH * 3, "max_tokens": 8, "seed": 1, "n": 3}
    return [Asked("first", _COMPLETIONS, {**body, "model": model}) for model in (WRITES, CHATS, ADAPTER)]


def steady(data: Any) -> Any:
    """An answer without what differs from time to time."""
    if isinstance(data, dict):
        return {name: steady(value) for name, value in data.items() if name not in _CHANGING}
    return [steady(each) for each in data] if isinstance(data, list) else data


def joined(events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What the pieces of a stream say together: texts and reasons by choice, and the counts of the last piece."""
    texts, reasons, usage = dict[int, str](), dict[int, str](), None
    for event in events:
        for choice in event.get("choices", ()):
            index = choice["index"]
            piece = choice["text"] if "text" in choice else choice["delta"].get("content")
            texts[index] = texts.get(index, "") + (piece or "")
            if choice.get("finish_reason"):
                reasons[index] = choice["finish_reason"]
        usage = event.get("usage") or usage
    return {"texts": texts, "reasons": reasons, "usage": steady(usage)}


def fingerprint(status: int, answer: Any) -> str:
    """An answer as text, to be compared letter for letter; floats have all their digits."""
    return json.dumps([status, steady(answer)], sort_keys=True)


def _text(draw: random.Random, most: int = 24) -> str:
    beginning = _SPEECH * draw.choice((1, 2)) if draw.random() < 0.3 else ""
    return beginning + " ".join(draw.choices(WORDS, k=draw.randint(1, most)))


def _sampling(draw: random.Random, most: int = 48) -> dict[str, Any]:
    return {**draw.choice(_SAMPLING), "seed": draw.getrandbits(31), "max_tokens": draw.randint(1, most)}


def _sentences(draw: random.Random, fewest: int, most: int) -> list[str]:
    words = [word for word in KNOWN_WORDS if word[0] != "#"]
    return [" ".join(draw.choices(words, k=draw.randint(1, 30))) for _ in range(draw.randint(fewest, most))]


def draw_request(kind: str, draw: random.Random) -> Asked:
    """A request of a kind; tokens of the model that chats are bytes, so its prompts are shorter."""
    model = draw.choice((WRITES, CHATS))
    body: dict[str, Any] = {"model": model, "prompt": _text(draw, 24 if model == WRITES else 8), **_sampling(draw)}
    match kind:
        case "completions":  # whole, some with log-probabilities, several choices or a string that ends them
            ids = [draw.randrange(256) for _ in range(draw.randint(1, 40))]
            more = draw.choice(({}, {"logprobs": 2}, {"n": 2}, {"stop": ["the", "\n"]}))
            return Asked(kind, _COMPLETIONS, {**body, "prompt": draw.choice((body["prompt"], ids)), **more})
        case "streams":
            return Asked(kind, _COMPLETIONS, {**body, **_IN_PIECES})
        case "left":  # streams whose clients go away after some pieces, or before the first
            return Asked(kind, _COMPLETIONS, {**body, **_IN_PIECES, "max_tokens": 120}, draw.choice((0, 1, 3, 8, 20)))
        case "adapted":
            model = draw.choice((CHATS, ADAPTER, f"{CHATS}:{ADAPTER}"))
            return Asked(kind, _COMPLETIONS, {**body, "model": model, "prompt": _text(draw, 12)})
        case "chats":  # conversations of one to three messages, whole or in pieces
            roles = ("user", "assistant", "user")[: draw.choice((1, 3))]
            body = {"model": draw.choice((CHATS, ADAPTER)), **_sampling(draw), **draw.choice(({}, _IN_PIECES))}
            messages = [{"role": role, "content": _text(draw, 5)} for role in roles]
            return Asked(kind, "/v1/chat/completions", {**body, "messages": messages})
        case "structures":
            return Asked(kind, _COMPLETIONS, {**body, "max_tokens": 60, **draw.choice(_STRUCTURES)})
        case "scores":
            texts = [f"{_text(draw)}." for _ in range(draw.randint(1, 3))]
            return Asked(kind, "/v1/score", {"model": model, "input": texts})
        case "embeddings":
            return Asked(kind, "/v1/embeddings", {"model": EMBEDS, "input": _sentences(draw, 1, 6)})
        case "rerankings":
            query, *texts = _sentences(draw, 3, 6)
            return Asked(kind, "/v1/rerank", {"model": EMBEDS, "query": query, "documents": texts})
        case "attention":
            return Asked(kind, "/v1/attention", {"model": WRITES, "prompt": _text(draw), "block": draw.randrange(2)})
        case "tokens":
            return Asked(kind, "/tokenize", {"model": model, "prompt": _text(draw)})
    assert kind == "mistakes", kind
    wrong: dict[str, Any] = draw.choice(
        ({"model": "nobody"}, {"prompt": _SPEECH * 500}, {"temperature": -1}, _NO_SCHEMA, {"unknown": True},
         {"prompt": None, "max_tokens": None, "input": ["a"]})
    )  # fmt: skip
    path = "/v1/embeddings" if "input" in wrong else _COMPLETIONS
    return Asked(kind, path, {**body, "model": WRITES, **wrong}, refused=True)
