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
    {"temperature": 0},
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"top_k": 20},
    {"min_p": 0.05},
    {"repetition_penalty": 1.2},
    {"presence_penalty": 0.5, "frequency_penalty": 0.3},
)
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
_CHANGING = frozenset({"id", "created", "created_at", "prompt_tokens_details", "cached_tokens"})
"""Fields of an answer that differ from time to time: names, times, and what was in a cache already."""
_OFTEN = {"completions": 6, "streams": 4, "left": 4, "adapted": 3, "scores": 2, "embeddings": 2, "structures": 2}
"""Times that a kind occurs in one deck; by default once."""


@dataclass(frozen=True)
class Asked:
    """A request.

    Attributes:
        kind: the kind of request, by which answers are counted.
        path: the route.
        body: the body, as JSON.
        leaves_after: pieces of the stream after which the client goes away; None if it waits for the end.
        refused: whether the answer has to be a refusal.
    """

    kind: str
    path: str
    body: Mapping[str, Any]
    leaves_after: int | None = None
    refused: bool = False

    @property
    def streams(self) -> bool:
        """Whether the answer comes piece by piece."""
        return self.body.get("stream") is True


def draw_requests(seed: int, count: int) -> list[Asked]:
    """``count`` different requests; each kind comes once before one comes again."""
    draw, found = random.Random(seed), list[Asked]()
    deck: list[str] = []
    while len(found) < count:
        if not deck:
            again = [name for name in _KINDS for _ in range(_OFTEN.get(name, 1) - 1)] if found else []
            deck = [*again, *_KINDS]
            draw.shuffle(deck)
        name = deck.pop()
        found.append(_KINDS[name](name, draw))
    return found


def first_requests() -> list[Asked]:
    """Requests whose answers share a long beginning, for every model that writes.

    Its keys and values are copied from one sequence to another, by framebuffers and a texture that are made once.
    """
    body = {"prompt": _SPEECH * 3, "max_tokens": 8, "seed": 1, "n": 3}
    return [Asked("first", "/v1/completions", {**body, "model": model}) for model in (WRITES, CHATS, ADAPTER)]


def steady(data: Any) -> Any:
    """An answer without what differs from time to time."""
    if isinstance(data, dict):
        return {name: steady(value) for name, value in data.items() if name not in _CHANGING}
    return [steady(each) for each in data] if isinstance(data, list) else data


def joined(events: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What the pieces of a stream say together: texts and reasons by choice, and the counts of the last piece."""
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    usage = None
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


def tokens_of(answer: Any) -> int:
    """Tokens of an answer and of its prompt, as the server counts them; 0 if it does not say."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    return int((usage or {}).get("total_tokens", 0))


def _text(draw: random.Random, most: int = 24) -> str:
    beginning = _SPEECH * draw.choice((1, 2)) if draw.random() < 0.3 else ""
    return beginning + " ".join(draw.choices(WORDS, k=draw.randint(1, most)))


def _sampling(draw: random.Random, most: int = 48) -> dict[str, Any]:
    return {**draw.choice(_SAMPLING), "seed": draw.getrandbits(31), "max_tokens": draw.randint(1, most)}


def _completion(kind: str, draw: random.Random) -> Asked:
    """A whole answer, some with log-probabilities, several choices or a string that ends them."""
    more: dict[str, Any] = draw.choice(({}, {"logprobs": 2}, {"n": 2}, {"stop": ["the", "\n"]}))
    prompt = draw.choice((_text(draw), [draw.randrange(256) for _ in range(draw.randint(1, 40))]))
    return Asked(kind, "/v1/completions", {"model": WRITES, "prompt": prompt, **_sampling(draw), **more})


def _stream(kind: str, draw: random.Random) -> Asked:
    body = {"model": WRITES, "prompt": _text(draw), **_sampling(draw)}
    return Asked(kind, "/v1/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})


def _left(kind: str, draw: random.Random) -> Asked:
    """A stream whose client goes away after some pieces, or before the first."""
    asked = _stream(kind, draw)
    body = {**asked.body, "model": draw.choice((WRITES, CHATS)), "max_tokens": 120}
    return Asked(kind, asked.path, body, leaves_after=draw.choice((0, 1, 3, 8, 20)))


def _adapted(kind: str, draw: random.Random) -> Asked:
    model = draw.choice((CHATS, ADAPTER, f"{CHATS}:{ADAPTER}"))
    return Asked(kind, "/v1/completions", {"model": model, "prompt": _text(draw, 12), **_sampling(draw)})


def _chat(kind: str, draw: random.Random) -> Asked:
    """A conversation of one to three messages, whole or in pieces."""
    roles = ("user", "assistant", "user")[: draw.choice((1, 3))]
    messages = [{"role": role, "content": _text(draw, 5)} for role in roles]
    streams = {"stream": True, "stream_options": {"include_usage": True}} if draw.random() < 0.5 else {}
    body = {"model": draw.choice((CHATS, ADAPTER)), "messages": messages, **_sampling(draw), **streams}
    return Asked(kind, "/v1/chat/completions", body)


def _score(kind: str, draw: random.Random) -> Asked:
    texts = [f"{_text(draw)}." for _ in range(draw.randint(1, 3))]
    return Asked(kind, "/v1/score", {"model": draw.choice((WRITES, CHATS)), "input": texts})


def _sentence(draw: random.Random) -> str:
    return " ".join(draw.choices([word for word in KNOWN_WORDS if word[0] != "#"], k=draw.randint(1, 30)))


def _embedding(kind: str, draw: random.Random) -> Asked:
    texts = [_sentence(draw) for _ in range(draw.randint(1, 6))]
    return Asked(kind, "/v1/embeddings", {"model": EMBEDS, "input": texts})


def _rerank(kind: str, draw: random.Random) -> Asked:
    texts = [_sentence(draw) for _ in range(draw.randint(2, 5))]
    return Asked(kind, "/v1/rerank", {"model": EMBEDS, "query": _sentence(draw), "documents": texts})


def _structured(kind: str, draw: random.Random) -> Asked:
    body = {"model": draw.choice((WRITES, CHATS)), "prompt": _text(draw, 8), **_sampling(draw)}
    return Asked(kind, "/v1/completions", {**body, "max_tokens": 60, **draw.choice(_STRUCTURES)})


def _attention(kind: str, draw: random.Random) -> Asked:
    return Asked(kind, "/v1/attention", {"model": WRITES, "prompt": _text(draw), "block": draw.randrange(2)})


def _tokens(kind: str, draw: random.Random) -> Asked:
    return Asked(kind, "/tokenize", {"model": draw.choice((WRITES, CHATS)), "prompt": _text(draw)})


def _mistake(kind: str, draw: random.Random) -> Asked:
    """A request that has to be refused."""
    body: dict[str, Any] = {"model": WRITES, "prompt": _text(draw), **_sampling(draw)}
    path, wrong = draw.choice(
        (
            ("/v1/completions", {"model": "nobody"}),
            ("/v1/completions", {"prompt": _SPEECH * 500}),
            ("/v1/completions", {"temperature": -1}),
            ("/v1/completions", {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 1}}}}),
            ("/v1/completions", {"unknown": True}),
            ("/v1/embeddings", {"prompt": None, "max_tokens": None, "input": ["a"]}),
        )
    )
    return Asked(kind, path, {**body, **wrong}, refused=True)


_KINDS: Mapping[str, Callable[[str, random.Random], Asked]] = {
    "completions": _completion,
    "streams": _stream,
    "left": _left,
    "adapted": _adapted,
    "chats": _chat,
    "scores": _score,
    "embeddings": _embedding,
    "rerankings": _rerank,
    "structures": _structured,
    "attention": _attention,
    "tokens": _tokens,
    "mistakes": _mistake,
}
