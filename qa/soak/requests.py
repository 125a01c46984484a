"""Requests to a served soak, drawn by a seed, and what of their answers has to be the same each time."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
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
Drawn = tuple[Any, ...]


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
            again = [name for name, (times, _) in KINDS.items() for _ in range(times - 1)] if found else []
            deck = [*again, *KINDS]
            draw.shuffle(deck)
        name = deck.pop()
        found.append(Asked(name, *KINDS[name][1](draw)))
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


def _completion(draw: random.Random) -> Drawn:
    """A whole answer, some with log-probabilities, several choices or a string that ends them."""
    more: dict[str, Any] = draw.choice(({}, {"logprobs": 2}, {"n": 2}, {"stop": ["the", "\n"]}))
    prompt = draw.choice((_text(draw), [draw.randrange(256) for _ in range(draw.randint(1, 40))]))
    return _COMPLETIONS, {"model": WRITES, "prompt": prompt, **_sampling(draw), **more}


def _stream(draw: random.Random) -> Drawn:
    return _COMPLETIONS, {"model": WRITES, "prompt": _text(draw), **_sampling(draw), **_IN_PIECES}


def _left(draw: random.Random) -> Drawn:
    """A stream whose client goes away after some pieces, or before the first."""
    path, body = _stream(draw)
    return path, {**body, "model": draw.choice((WRITES, CHATS)), "max_tokens": 120}, draw.choice((0, 1, 3, 8, 20))


def _adapted(draw: random.Random) -> Drawn:
    model = draw.choice((CHATS, ADAPTER, f"{CHATS}:{ADAPTER}"))
    return _COMPLETIONS, {"model": model, "prompt": _text(draw, 12), **_sampling(draw)}


def _chat(draw: random.Random) -> Drawn:
    """A conversation of one to three messages, whole or in pieces."""
    roles = ("user", "assistant", "user")[: draw.choice((1, 3))]
    body = {"model": draw.choice((CHATS, ADAPTER)), **_sampling(draw), **draw.choice(({}, _IN_PIECES))}
    return "/v1/chat/completions", {**body, "messages": [{"role": role, "content": _text(draw, 5)} for role in roles]}


def _score(draw: random.Random) -> Drawn:
    texts = [f"{_text(draw)}." for _ in range(draw.randint(1, 3))]
    return "/v1/score", {"model": draw.choice((WRITES, CHATS)), "input": texts}


def _sentences(draw: random.Random, fewest: int, most: int) -> list[str]:
    words = [word for word in KNOWN_WORDS if word[0] != "#"]
    return [" ".join(draw.choices(words, k=draw.randint(1, 30))) for _ in range(draw.randint(fewest, most))]


def _embedding(draw: random.Random) -> Drawn:
    return "/v1/embeddings", {"model": EMBEDS, "input": _sentences(draw, 1, 6)}


def _rerank(draw: random.Random) -> Drawn:
    query, *texts = _sentences(draw, 3, 6)
    return "/v1/rerank", {"model": EMBEDS, "query": query, "documents": texts}


def _structured(draw: random.Random) -> Drawn:
    body = {"model": draw.choice((WRITES, CHATS)), "prompt": _text(draw, 8), **_sampling(draw)}
    return _COMPLETIONS, {**body, "max_tokens": 60, **draw.choice(_STRUCTURES)}


def _attention(draw: random.Random) -> Drawn:
    return "/v1/attention", {"model": WRITES, "prompt": _text(draw), "block": draw.randrange(2)}


def _tokens(draw: random.Random) -> Drawn:
    return "/tokenize", {"model": draw.choice((WRITES, CHATS)), "prompt": _text(draw)}


def _mistake(draw: random.Random) -> Drawn:
    """A request that has to be refused."""
    wrong: dict[str, Any] = draw.choice(
        ({"model": "nobody"}, {"prompt": _SPEECH * 500}, {"temperature": -1}, _NO_SCHEMA, {"unknown": True},
         {"prompt": None, "max_tokens": None, "input": ["a"]})
    )  # fmt: skip
    path = "/v1/embeddings" if "input" in wrong else _COMPLETIONS
    return path, {"model": WRITES, "prompt": _text(draw), **_sampling(draw), **wrong}, None, True


KINDS: Mapping[str, tuple[int, Callable[[random.Random], Drawn]]] = {
    "completions": (6, _completion), "streams": (4, _stream), "left": (4, _left), "adapted": (3, _adapted),
    "chats": (1, _chat), "scores": (2, _score), "embeddings": (2, _embedding), "rerankings": (1, _rerank),
    "structures": (2, _structured), "attention": (1, _attention), "tokens": (1, _tokens), "mistakes": (1, _mistake),
}  # fmt: skip
"""Times that a kind occurs in one deck, and what draws its path, its body, and the rest of :class:`Asked`."""
