"""Load a server for long, and check that its process and its answers stay as they were.

Clients ask ``glinfer serve``'s own server for everything at once (:mod:`qa.soak.requests`), some of them going away in
the middle. From time to time they pause, until the server has nothing to do, and a sample is taken of its process
(:mod:`qa.soak.served`). The requests are a few hundred, drawn by a seed, and come again and again. At the end each is
sent once more, alone, to a new server with one place, by a client whose key it has never seen, so that nothing that
others have asked is reused: every answer of the whole run has to be that one, letter for letter.
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
from glinfer.gl.context import open_device
from qa.serve_load import AnswerError, started, stream_events
from qa.soak.models import ADAPTER, CHATS, EMBEDS, write_models
from qa.soak.processor import Spent, Window, spent
from qa.soak.requests import WRITES, Asked, draw_requests, fingerprint, first_requests, joined, tokens_of
from qa.soak.run import MIN_SAMPLES, MIN_TOKENS, WARM_UP, Recording, SoakCheck, SoakReport
from qa.soak.served import Settings
from qa.soak.watch import Calibration, Sample, Speed

SPEED_DRIFT = 0.03
"""Largest change of speed from the first quarter to the last, as a fraction."""
DEFAULT_TOKENS, DEFAULT_SECONDS, DEFAULT_REQUESTS = 1_000_000, 3600.0, 240
_PROBE = {"model": WRITES, "prompt": "ROMEO:", "max_tokens": 24, "temperature": 0}
_PROBE_SECONDS, _MIN_PROBES = 1.0, 12
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

    def __init__(
        self, address: str, answers: Answers, clients: int, seed: int, measure: Callable[[], Spent | None] | None = None
    ) -> None:
        """Prepare so many clients; ``measure`` says what the server and the machine have spent so far."""
        self._address, self._answers, self._clients = address, answers, clients
        self._draw, self._measure = random.Random(seed), measure or (lambda: None)
        self._ended, self._began, self._asking = 0.0, 0.0, False
        self._window: Spent | None = Spent()
        self._tokens = 0

    @property
    def seconds(self) -> float:
        """How long they have asked so far; samples do not count."""
        return self._ended + (time.perf_counter() - self._began if self._asking else 0.0)

    def window(self) -> Window | None:
        """What the server did since the last time that this was asked; None where the system does not say."""
        found, tokens = self._window, self._answers.tokens - self._tokens
        self._window, self._tokens = Spent(), self._answers.tokens
        return None if found is None else Window(tokens, found.server, found.others)

    def each(self, times: int) -> None:
        """Send every request so many times."""
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

        before = self._measure()
        asyncio.run(self._run(next_place))
        after = self._measure()
        if self._window is not None:
            self._window = None if before is None or after is None else self._window + (after - before)

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
    speed_drift: float = SPEED_DRIFT,
    device: str | None = None,
    on_progress: StagedProgress = no_staged_progress,
) -> SoakReport:
    """Load a server until so many tokens have run, or for so long, and take samples on the way.

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
        speed_drift: largest change of speed, as a fraction.
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
    ):
        if found < least:
            raise InputError(f"{name} is {found}; expected at least {least}")
    run, asked = Recording(seed), draw_requests(seed, requests)
    answers, facts = Answers.to(asked), dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="glinfer-soak-") as folder:
        chats, adapter, embeds = write_models(Path(folder))
        models = {WRITES: str(model), CHATS: str(chats), EMBEDS: str(embeds)}
        settings = Settings(models, {CHATS: {ADAPTER: str(adapter)}}, slots, clients * 2, (), device)
        with started(settings.command()) as (address, process), _Probe(address, device) as probe:
            load = Load(address, answers, clients, seed, lambda: spent(process.pid))
            facts = httpx.get(f"{address}/v1/models/{WRITES}").json()

            def share() -> float:
                """How much of the run is done, by tokens or by time, whichever is more."""
                return max(answers.tokens / tokens, load.seconds / seconds)

            def sample() -> None:
                window = load.window()
                speed = probe.speed()
                differs = sorted({asked[place].kind for place in answers.other})
                so_far = {"tokens": answers.tokens, "sequences": answers.total}
                found = {**_counts(process), **so_far, **speed._asdict()}
                found["window"] = window if run.samples else None  # what is compiled in the warm-up is no speed
                run.samples.append(Sample(**found, seconds=run.seconds, differs=tuple(differs)))

            try:
                on_progress("warming up", 0, 0)
                Load(address, Answers.to(first_requests()), clients, seed).each(_WARM_UPS)
                load.each(_WARM_UPS)
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
    return run.report(
        renderer=facts.get("renderer", ""),
        plan="server",
        weights=facts.get("weights", ""),
        cache="f32",
        tokens=answers.tokens,
        sequences=answers.total,
        uses=answers.counts,
        checks=judge_answers(answers, alone),
        speed_drift=speed_drift,
    )


def judge_answers(answers: Answers, alone: Answers) -> tuple[SoakCheck, ...]:
    """Whether the answers to each request were those that it has alone, and none failed."""
    compared = [place for place, again in enumerate(alone.first) if again is not None]
    odd = answers.differing(alone)
    said = "; ".join(json.dumps(dict(answers.asked[place].body))[:200] for place in odd[:_SHOWN])
    same = SoakCheck("answers as alone", len(compared), len(compared) - len(odd), None, 0.0, not odd, "requests", said)
    failed = answers.failed + alone.failed
    told = "; ".join(f"{count} × {error}" for error, count in failed.most_common(_SHOWN))
    return same, SoakCheck("requests that failed", 0, failed.total(), None, 0.0, not failed, "requests", told)


class _Probe:
    """The speed of a server for one client, in turns with work that never changes, see :mod:`qa.soak.watch`."""

    def __init__(self, address: str, device: str | None) -> None:
        self._http = httpx.Client(base_url=address, timeout=300, verify=False, headers={"Connection": "close"})
        self._device = open_device(device)
        self._calibration = Calibration(self._device)

    def speed(self) -> Speed:
        """The speed of one client that asks again and again."""
        times, calibration = list[float](), self._calibration
        calibration.begin()
        ends = time.perf_counter() + _PROBE_SECONDS
        while len(times) < _MIN_PROBES or time.perf_counter() < ends:
            began = time.perf_counter()
            count = tokens_of(self._http.post("/v1/completions", json=_PROBE).json())
            times.append((time.perf_counter() - began) / count)
            calibration.round()
            for _ in range(4):
                calibration.turn()
        return calibration.speed(times)

    def __enter__(self) -> _Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self._calibration.close()
        self._device.close()


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
