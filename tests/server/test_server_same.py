"""The same request with the same seed gives the same text and log-probabilities, bit for bit, whatever else runs."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
import pytest
from running_server import Running, running

from glinfer.engine.batch import SchedulerOptions
from glinfer.server.served import ModelSource

WORDS = ("ROMEO:", "JULIET:", "the king", "my lord", "what light", "this night", "thou art", "love", "crown")
SPEECH = "Now is the winter of our discontent made glorious summer by this sun of York; "


def request(number: int, *, logprobs: bool = False) -> dict[str, Any]:
    """Request ``number``: of every kind in turn, some with a long common beginning."""
    draw = random.Random(number)
    beginning = SPEECH * draw.choice([1, 3]) if number % 3 == 0 else ""
    prompt = beginning + " ".join(draw.choices(WORDS, k=draw.randint(1, 30)))
    options: dict[str, Any] = draw.choice(
        [
            {"temperature": 0},
            {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
            {"temperature": 0.8, "top_p": 0.9},
            {"repetition_penalty": 1.2},
            {"presence_penalty": 0.5, "frequency_penalty": 0.3},
        ]
    )
    found = {"model": "shakespeare", "prompt": prompt, "seed": number, "max_tokens": draw.randint(1, 24), **options}
    return found | ({"logprobs": 2} if logprobs else {})


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
        limits = httpx.Limits(max_connections=at_once)
        async with httpx.AsyncClient(base_url=server.url, timeout=600, limits=limits, verify=False) as http:

            async def one(place: int) -> None:
                async with gate:
                    if place in mine:
                        found[place] = answer(await http.post("/v1/completions", json=mine[place]))
                    elif place % 5 == 0:
                        body = {**request(100_000 + place), "stream": True, "max_tokens": 200}
                        async with http.stream("POST", "/v1/completions", json=body) as stream:
                            await anext(stream.aiter_bytes())
                    elif place % 7 == 0:
                        await http.post("/v1/score", json={"model": "shakespeare", "input": SPEECH * 3})
                    else:
                        await http.post("/v1/completions", json=request(100_000 + place))

            await asyncio.gather(*(one(place) for place in range(len(watched) + others)))
        return [found[place] for place in sorted(found)]

    return asyncio.run(run())


def compare(count: int, others: int, *, slots: int, piece: int | None, at_once: int) -> None:
    def source(slots: int, piece: int | None) -> ModelSource:
        return ModelSource("shakespeare", "shakespeare", {}, SchedulerOptions(slots=slots, piece=piece))

    watched = [request(number, logprobs=number % 2 == 0) for number in range(count)]
    with running(source(1, None)) as server:
        alone = [answer(server.post("/v1/completions", body)) for body in watched]
    with running(source(slots, piece)) as server:
        found = among_others(server, watched, others, at_once=at_once)
    assert found == alone


@pytest.mark.gl
def test_alone_and_among_others() -> None:
    compare(10, 30, slots=6, piece=32, at_once=16)


@pytest.mark.slow
@pytest.mark.gl
def test_many_among_nine_times_as_many_others(whole: bool) -> None:
    compare(*((200, 1800) if whole else (40, 360)), slots=8, piece=24, at_once=40)
