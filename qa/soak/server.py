"""Load a server for long, and check that its process and its answers stay as they were.

Clients ask ``glinfer serve``'s own server for everything at once (:mod:`qa.soak.requests`), some of them going away in
the middle. From time to time they pause, until the server has nothing to do, and a sample is taken of its process
(:mod:`qa.soak.served`). The requests are a few hundred, drawn by a seed, and come again and again. At the end each is
sent once more, alone, to a new server with one place, by a client whose key it has never seen, so that nothing that
others have asked is reused: every answer of the whole run has to be that one, letter for letter.

Whether the server has become slower is seen beside a new one, to which the same requests are sent in turns with it: a
machine is not equally fast for an hour, whatever runs on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from glinfer.engine.progress import StagedProgress, no_staged_progress
from glinfer.errors import InputError
from qa.serve_load import AnswerError, started, stream_events
from qa.soak.checks import MIN_SAMPLES, MIN_TOKENS, WARM_UP, Rates, SoakCheck, SoakReport, judge, judge_beside
from qa.soak.models import ADAPTER, CHATS, EMBEDS, write_models
from qa.soak.requests import WRITES, Asked, draw_requests, fingerprint, first_requests, joined, tokens_of
from qa.soak.served import Settings
from qa.soak.watch import Sample

SPEED_DRIFT = 0.03
"""Largest difference of speed between the server and a new one, as a fraction."""
DEFAULT_PAIRS = 20
"""Turns of both servers, of all requests each: on a virtual machine a turn of 11 seconds is some 4% off its median."""
DEFAULT_TOKENS, DEFAULT_SECONDS, DEFAULT_REQUESTS = 1_000_000, 3600.0, 240
_WARM_UPS = 2
"""Times that every request is sent before the first sample: what is kept of the first is gone on with the second."""
_IMPATIENCE = 0.03
"""Seconds after which a client goes away that does not wait for the first piece."""
_SHOWN = 3


@dataclass(frozen=True)
class Answer:
    """An answer: as text to be compared, the text of each choice, and the tokens that the server counts."""

    fingerprint: str
    texts: dict[int, str]
    tokens: int


@dataclass
class Answers:
    """What came of some requests.

    Attributes:
        asked: the requests.
        first: the first whole answer to each, or nothing.
        begun: the longest beginnings of texts that clients had who went away.
        counts: answers by kind.
        other: answers that differ from the first to the same request, by its place.
        failed: what was no answer, by kind and error.
        tokens: tokens of all answers and their prompts.
    """

    asked: Sequence[Asked]
    first: list[Answer | None]
    begun: list[str]
    counts: Counter[str] = field(default_factory=Counter)
    other: Counter[int] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    tokens: int = 0

    @classmethod
    def to(cls, asked: Sequence[Asked]) -> Answers:
        """No answers yet."""
        return cls(asked, [None] * len(asked), [""] * len(asked))

    @property
    def total(self) -> int:
        """How many answers there were."""
        return self.counts.total()

    def add(self, place: int, answer: Answer, *, left: bool) -> None:
        """Count an answer, or what a client had of one who went away."""
        self.counts[self.asked[place].kind] += 1
        self.tokens += answer.tokens
        if left:
            self.begun[place] = max(self.begun[place], answer.texts.get(0, ""), key=len)
            return
        first = self.first[place]
        if first is None:
            self.first[place] = answer
        elif first.fingerprint != answer.fingerprint:
            self.other[place] += 1

    def differing(self, alone: Answers) -> list[int]:
        """Places of the requests whose answers here are not those of ``alone``."""
        found = []
        for place, again in enumerate(alone.first):
            first, begun = self.first[place], self.begun[place]
            same = again is not None and (first is None or first.fingerprint == again.fingerprint)
            same = same and again is not None and again.texts.get(0, "").startswith(begun)
            if (first is not None or begun) and (not same or self.other[place]):
                found.append(place)
        return found


async def ask(http: httpx.AsyncClient, asked: Asked, *, stays: bool = False, key: str = "") -> Answer:
    """Send a request and take its answer; a client that ``stays`` waits for the end of each.

    Raises:
        AnswerError: it was no whole answer, or no refusal where one was due.
    """
    headers = {"Authorization": f"Bearer {key}"} if key else None
    if asked.leaves_after == 0 and not stays:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(http.post(asked.path, json=asked.body, headers=headers), _IMPATIENCE)
        return Answer("", {}, 0)
    if asked.streams:
        events = []
        async with contextlib.aclosing(stream_events(http, asked.path, dict(asked.body), headers)) as pieces:
            async for event in pieces:
                events.append(event)
                if not stays and len(events) == asked.leaves_after:
                    break
        found = joined(events)
        count = tokens_of(found) if found["usage"] else len(events)
        return Answer(fingerprint(200, found), found["texts"], count)
    got = await http.post(asked.path, json=asked.body, headers=headers)
    answer = got.json()
    if (got.status_code != 200) is not asked.refused or got.status_code >= 500:
        raise AnswerError(f"{got.status_code} {json.dumps(answer)[:200]}")
    texts = {0: answer["choices"][0].get("text", "")} if "choices" in answer else {}
    return Answer(fingerprint(got.status_code, answer), texts, tokens_of(answer))


class Load:
    """Clients that ask without a pause between two samples: every request equally often, in rounds of random order."""

    def __init__(self, address: str, answers: Answers, clients: int, seed: int) -> None:
        """Take the server's address and where answers go; no client asks before :meth:`until` or :meth:`each`."""
        self._address, self._answers, self._clients = address, answers, clients
        self._draw = random.Random(seed)
        self._ended, self._began, self._asking = 0.0, 0.0, False
        self._tokens, self._since = 0, 0.0

    @property
    def seconds(self) -> float:
        """How long they have asked so far; samples do not count."""
        return self._ended + (time.perf_counter() - self._began if self._asking else 0.0)

    def rate(self) -> float:
        """Tokens a second since the last time that this was asked."""
        tokens, seconds = self._tokens, self.seconds - self._since
        self._tokens, self._since = 0, self.seconds
        return tokens / seconds if seconds else 0.0

    def warm_up(self) -> None:
        """Send what makes the first of everything, and every request so often that each is gone on with."""
        Load(self._address, Answers.to(first_requests()), self._clients, 0).each(_WARM_UPS)
        self.each(_WARM_UPS)

    def each(self, times: int) -> None:
        """Send every request ``times`` times."""
        rounds = iter(range(times - 1))
        self.until(lambda: next(rounds, None) is None)

    def until(self, done: Callable[[], bool], on_request: Callable[[], object] = lambda: None) -> None:
        """Send every request, round by round, until ``done`` at the end of a round; once at least."""
        left = list(range(len(self._answers.asked)))
        self._draw.shuffle(left)

        def next_place() -> int | None:
            on_request()
            if not left and not done():
                left.extend(range(len(self._answers.asked)))
                self._draw.shuffle(left)
            return left.pop() if left else None

        before = self._answers.tokens
        asyncio.run(self._run(next_place))
        self._tokens += self._answers.tokens - before

    async def _run(self, next_place: Callable[[], int | None]) -> None:
        self._began, self._asking = time.perf_counter(), True
        await asyncio.gather(*(self._client(next_place) for _ in range(self._clients)))
        self._ended, self._asking = self.seconds, False

    async def _client(self, next_place: Callable[[], int | None]) -> None:
        answers = self._answers
        async with httpx.AsyncClient(base_url=self._address, timeout=300, verify=False) as http:
            while (place := next_place()) is not None:
                asked = answers.asked[place]
                try:
                    answers.add(place, await ask(http, asked), left=asked.leaves_after is not None)
                except (AnswerError, httpx.HTTPError, OSError) as error:
                    answers.failed[f"{asked.kind}: {type(error).__name__} {error}"[:300]] += 1
                    await asyncio.sleep(0.1)


def replay(asked: Sequence[Asked], places: Sequence[int], address: str, keys: Sequence[str]) -> Answers:
    """Send the requests at these places one after the other, each with a key of its own, and wait for every end."""
    found = Answers.to(asked)

    async def run() -> None:
        async with httpx.AsyncClient(base_url=address, timeout=300, verify=False) as http:
            for place in places:
                try:
                    found.add(place, await ask(http, asked[place], stays=True, key=keys[place]), left=False)
                except (AnswerError, httpx.HTTPError, OSError) as error:
                    found.failed[f"{asked[place].kind}: {type(error).__name__} {error}"[:300]] += 1

    asyncio.run(run())
    return found


def soak_server(
    model: str,
    tokens: int = DEFAULT_TOKENS,
    seconds: float = DEFAULT_SECONDS,
    *,
    clients: int = 12,
    slots: int = 8,
    requests: int = DEFAULT_REQUESTS,
    seed: int = 0,
    samples: int = 40,
    pairs: int = DEFAULT_PAIRS,
    speed_drift: float = SPEED_DRIFT,
    device: str | None = None,
    on_progress: StagedProgress = no_staged_progress,
) -> SoakReport:
    """Load a server for a number of tokens or seconds, and take samples meanwhile.

    Args:
        model: the model to serve, which has a tokenizer; small random ones that chat and embed are served beside it.
        tokens: tokens of prompts and answers, as the server counts them.
        seconds: limit for the load, in seconds; the warm-up counts, samples and the replay do not. The round of
            requests that is under way then comes to its end.
        clients: how many ask at once.
        slots: sequences of a model at once.
        requests: how many different requests there are.
        seed: seed of the requests and of their order.
        samples: samples to take, evenly from the end of the warm-up to the end; fewer where the time ends before.
        pairs: turns of the server and of a new one at the end, in each of which both have every request once.
        speed_drift: largest difference of their speeds, as a fraction.
        device: as of ``glinfer serve --device``.
        on_progress: receives (stage, what is done of it, all of it), in thousandths of the run, or in requests.

    Raises:
        InputError: a number is too small, or the server has not started or has ended.
    """
    for name, found, least in (
        ("tokens", tokens, MIN_TOKENS),
        ("seconds", seconds, 1),
        ("clients", clients, 1),
        ("requests", requests, 1),
        ("samples", samples, MIN_SAMPLES),
        ("pairs", pairs, 1),
    ):
        if found < least:
            raise InputError(f"{name} is {found}; expected at least {least}")
    began, run, asked = time.perf_counter(), SoakReport("", "server", "", "f32", seed), draw_requests(seed, requests)
    answers, beside = Answers.to(asked), list[SoakCheck]()
    with tempfile.TemporaryDirectory(prefix="glinfer-soak-") as folder:
        chats, adapter, embeds = write_models(Path(folder))
        models = {WRITES: str(model), CHATS: str(chats), EMBEDS: str(embeds)}
        settings = Settings(models, {CHATS: {ADAPTER: str(adapter)}}, slots, clients * 2, (), device)
        with started(settings.command()) as (address, process):
            load = Load(address, answers, clients, seed)
            facts = httpx.get(f"{address}/v1/models/{WRITES}").json()
            run.renderer, run.weights = facts["renderer"], facts["weights"]

            def share() -> float:
                """How much of the run is done, by tokens or by time, whichever is more."""
                return max(answers.tokens / tokens, load.seconds / seconds)

            def sample() -> None:
                differs = sorted({asked[place].kind for place in answers.other})
                seconds = time.perf_counter() - began
                so_far = {"tokens": answers.tokens, "sequences": answers.total, "seconds": seconds}
                found = {**_counts(process), **so_far, "tokens_per_second": load.rate()}
                run.samples.append(Sample(**found, differs=tuple(differs)))

            try:
                on_progress("warming up", 0, 0)
                load.warm_up()
                load.until(lambda: share() >= WARM_UP)
                run.warm_up_tokens, done = answers.tokens, share()
                sample()
                while len(run.samples) < (samples if share() < 1.0 else MIN_SAMPLES):
                    goal = done + max(1.0 - done, 0.0) * len(run.samples) / (samples - 1)
                    load.until(
                        lambda goal=goal: share() >= goal,  # type: ignore[misc]
                        lambda: on_progress("soaking", round(1000 * min(share(), 1.0)), 1000),
                    )
                    sample()
                on_progress("beside a new server", 0, pairs)
                with started(settings.command()) as (new, _):
                    Load(new, answers, clients, seed).warm_up()
                    loads = Load(address, answers, clients, seed), Load(new, answers, clients, seed)
                    rates = turns(*loads, pairs, lambda done: on_progress("beside a new server", done, pairs))
                    beside.append(judge_beside(rates, speed_drift))
            except InputError as error:
                run.stopped = f"after {answers.tokens} tokens: {error}"
        places = [place for place, first in enumerate(answers.first) if first or answers.begun[place]]
        alone = Answers.to(asked)
        if not run.stopped:
            on_progress("replaying alone", 0, len(places))
            keys = tuple(f"client-{place}" for place in range(len(asked)))
            apart = Settings(models, settings.adapters, 1, 1, keys, device)
            with started(apart.command()) as (address, _):
                alone = replay(asked, places, address, keys)
    run.tokens, run.sequences, run.uses = answers.tokens, answers.total, dict(sorted(answers.counts.items()))
    run.checks = [*judge(run.samples), *beside, *judge_answers(answers, alone)]
    run.seconds = time.perf_counter() - began
    return run


def turns(aged: Load, new: Load, pairs: int, on_pair: Callable[[int], object] = lambda done: None) -> list[Rates]:
    """Send every request to both servers in turns, the first of them now this one and now that one."""
    found = list[Rates]()
    for load in (aged, new):
        load.rate()
    for pair in range(pairs):
        for load in (aged, new) if pair % 2 else (new, aged):
            load.each(1)
        found.append(Rates(aged.rate(), new.rate()))
        on_pair(pair + 1)
    return found


def judge_answers(answers: Answers, alone: Answers) -> tuple[SoakCheck, ...]:
    """Whether the answers to each request were those that it has alone, and none failed."""
    compared = [place for place, again in enumerate(alone.first) if again is not None]
    odd = answers.differing(alone)
    said = "; ".join(json.dumps(dict(answers.asked[place].body))[:200] for place in odd[:_SHOWN])
    same = SoakCheck("answers as alone", len(compared), len(compared) - len(odd), None, 0.0, not odd, "requests", said)
    failed = answers.failed + alone.failed
    listed = "; ".join(f"{count} × {error}" for error, count in failed.most_common(_SHOWN))
    return same, SoakCheck("requests that failed", 0, failed.total(), None, 0.0, not failed, "requests", listed)


def _counts(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What the server's process holds, with sequences and connections that have not ended among the objects.

    Raises:
        InputError: it has ended.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(OSError):
        process.stdin.write("count\n")
        process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise InputError(f"the server has ended with status {process.wait()}")
    found: dict[str, Any] = json.loads(line)
    left = {"sequences of requests": found.pop("live"), "connections": found.pop("connections")}
    return {**found, "objects": {**found["objects"], **left}}
