"""The same request with the same seed gives the same text and log-probabilities, bit for bit, whatever else runs."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import pytest
from running_server import Running

WORDS = ("ROMEO:", "JULIET:", "the king", "my lord", "what light", "this night", "thou art", "love", "crown")
SPEECH = "Now is the winter of our discontent made glorious summer by this sun of York; "
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"repetition_penalty": 1.2},
    {"presence_penalty": 0.5, "frequency_penalty": 0.3},
]


def request(number: int) -> dict[str, Any]:
    """Request ``number``: of every kind in turn, some with a common beginning."""
    draw = random.Random(number)
    prompt = (SPEECH[:24] if number % 3 == 0 else "") + " ".join(draw.choices(WORDS, k=draw.randint(1, 2)))
    found = {"model": "small", "prompt": prompt, "seed": number, "max_tokens": draw.randint(1, 16)}
    return {**found, **draw.choice(OPTIONS), **({} if number % 2 else {"logprobs": 2})}


def answer(found: httpx.Response) -> Any:
    assert found.status_code == 200, found.text
    choice = found.json()["choices"][0]
    return choice["text"], choice["finish_reason"], choice["logprobs"]


def among_others(server: Running, watched: list[dict[str, Any]], others: int, *, at_once: int) -> list[Any]:
    """The answers to some requests, in the midst of others, of which every fifth goes away before it ends."""
    places = random.Random(1).sample(range(len(watched) + others), len(watched))
    mine = dict(zip(sorted(places), watched, strict=True))

    async def run() -> list[Any]:
        gate, found = asyncio.Semaphore(at_once), dict[int, Any]()
        async with httpx.AsyncClient(base_url=server.url, timeout=600, verify=False) as http:

            async def one(place: int) -> None:
                async with gate:
                    if place in mine:
                        found[place] = answer(await http.post("/v1/completions", json=mine[place]))
                    elif place % 5 == 0:
                        body = {**request(100_000 + place), "stream": True}
                        async with http.stream("POST", "/v1/completions", json=body) as stream:
                            await anext(stream.aiter_bytes())
                    elif place % 7 == 0:
                        await http.post("/v1/score", json={"model": "small", "input": SPEECH})
                    else:
                        await http.post("/v1/completions", json=request(100_000 + place))

            await asyncio.gather(*(one(place) for place in range(len(watched) + others)))
        return [found[place] for place in sorted(found)]

    return asyncio.run(run())


@pytest.mark.gl
def test_alone_and_among_others(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    (small,) = (each for each in served.server.worker.served.values() if each.name == "small")
    monkeypatch.setattr(small.scheduler, "piece", 8)
    watched = [request(number) for number in range(10)]
    alone = [answer(served.post("/v1/completions", body)) for body in watched]
    assert among_others(served, watched, 20, at_once=12) == alone
