"""Clients of a soak: they send requests in rounds, and keep what differs between the answers to one request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx

from qa.serve_load import AnswerError, stream_events
from qa.soak.requests import Asked, fingerprint, first_requests, joined

_WARM_UPS = 2
"""Times that every request is sent before the first sample: what is kept of the first is gone on with the second."""
_IMPATIENCE = 0.03
"""Seconds after which a client goes away that does not wait for the first piece."""


class Answer(NamedTuple):
    """An answer: as text to be compared, the text of its first choice, and its tokens with those of the prompt."""

    fingerprint: str
    text: str
    tokens: int


@dataclass
class Answers:
    """What came of some requests.

    Attributes:
        asked: the requests.
        whole: the fingerprints of all whole answers to each, and the text of one of them.
        begun: the longest beginnings of texts that clients had who went away.
        counts: answers by kind.
        failed: what was no answer, by kind and error.
        tokens: tokens of all answers and their prompts.
    """

    asked: Sequence[Asked]
    counts: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    tokens: int = 0

    def __post_init__(self) -> None:
        """Start without answers."""
        self.whole: list[dict[str, str]] = [{} for _ in self.asked]
        self.begun = [""] * len(self.asked)

    def add(self, place: int, answer: Answer, *, left: bool) -> None:
        """Count an answer, or what a client had of one who went away."""
        self.counts[self.asked[place].kind] += 1
        self.tokens += answer.tokens
        if left:
            self.begun[place] = max(self.begun[place], answer.text, key=len)
        else:
            self.whole[place][answer.fingerprint] = answer.text

    def differing(self, alone: Answers) -> list[int]:
        """Indices of the requests whose answers here are not the only one of ``alone``."""
        pairs = enumerate(zip(self.whole, self.begun, alone.whole, strict=True))
        return [
            place
            for place, (whole, begun, again) in pairs
            if not whole.keys() <= again.keys() or not next(iter(again.values()), "").startswith(begun)
        ]


async def ask(http: httpx.AsyncClient, asked: Asked, *, stays: bool = False, key: str = "") -> Answer:
    """Send a request and take its answer; a client that ``stays`` waits for the end of each.

    Raises:
        AnswerError: it was no whole answer, or no refusal where one was due.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else None
    if asked.leaves_after == 0 and not stays:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(http.post(asked.path, json=asked.body, headers=headers), _IMPATIENCE)
        return Answer("", "", 0)
    if asked.body.get("stream"):
        events = []
        async with contextlib.aclosing(stream_events(http, asked.path, dict(asked.body), headers)) as pieces:
            async for event in pieces:
                events.append(event)
                if not stays and len(events) == asked.leaves_after:
                    break
        found = joined(events)
        count = found["usage"]["total_tokens"] if found["usage"] else len(events)
        return Answer(fingerprint(200, found), found["texts"].get(0, ""), count)
    got = await http.post(asked.path, json=asked.body, headers=headers)
    answer: dict[str, Any] = got.json()
    if (got.status_code != 200) is not asked.refused or got.status_code >= 500:
        raise AnswerError(f"{got.status_code} {json.dumps(answer)[:200]}")
    text = answer["choices"][0].get("text", "") if "choices" in answer else ""
    return Answer(fingerprint(got.status_code, answer), text, (answer.get("usage") or {}).get("total_tokens", 0))


class Load:
    """Clients that ask without a pause between two samples: every request equally often, in rounds of random order."""

    def __init__(self, address: str, answers: Answers, clients: int, seed: int, keys: Sequence[str] = ()) -> None:
        """Take the server's address and where answers go; no client asks before :meth:`until` or :meth:`each`.

        With ``keys`` each request is sent with one of its own, by clients that wait for every end.
        """
        self._address, self._answers, self._clients, self._keys = address, answers, clients, keys
        self._draw = random.Random(seed)

    def warm_up(self) -> None:
        """Send what makes the first of everything, and every request so often that each is gone on with."""
        Load(self._address, Answers(first_requests()), self._clients, 0).each(_WARM_UPS)
        self.each(_WARM_UPS)

    def each(self, times: int) -> float:
        """Send every request ``times`` times; returns tokens a second."""
        rounds = iter(range(times - 1))
        return self.until(lambda: next(rounds, None) is None)

    def until(self, done: Callable[[], bool], on_request: Callable[[], object] = lambda: None) -> float:
        """Send every request, round by round, until ``done`` at the end of a round; returns tokens a second."""
        places = range(len(self._answers.asked))
        left = self._draw.sample(places, len(places))

        def next_place() -> int | None:
            on_request()
            if not left and not done():
                left.extend(self._draw.sample(places, len(places)))
            return left.pop() if left else None

        async def run() -> None:
            await asyncio.gather(*(self._client(next_place) for _ in range(self._clients)))

        before, began = self._answers.tokens, time.perf_counter()
        asyncio.run(run())
        return (self._answers.tokens - before) / (time.perf_counter() - began)

    async def _client(self, next_place: Callable[[], int | None]) -> None:
        answers, keys = self._answers, self._keys
        async with httpx.AsyncClient(base_url=self._address, timeout=300, verify=False) as http:
            while (place := next_place()) is not None:
                asked = answers.asked[place]
                try:
                    found = await ask(http, asked, stays=bool(keys), key=keys[place] if keys else "")
                    answers.add(place, found, left=asked.leaves_after is not None and not keys)
                except (AnswerError, httpx.HTTPError, OSError) as error:
                    answers.failed[f"{asked.kind}: {type(error).__name__} {error}"[:300]] += 1
                    await asyncio.sleep(0.1)
