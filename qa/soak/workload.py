"""Random uses of a model, in random order and at random lengths; :mod:`qa.soak.run` runs them.

A seed fixes the uses and their order. Ids and texts are noise: the cost of a token does not depend on them.
"""

from __future__ import annotations

import contextlib
import random
import string
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest, BatchResult
from glinfer.engine.run.decode import DecodeSession
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.errors import InputError

_SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8},
    {"top_k": 20},
    {"top_p": 0.9, "temperature": 0.7},
    {"min_p": 0.05},
    {"repetition_penalty": 1.2},
)
_CHUNKS = (1, 4, 8)
_OFTEN = {"prompts": 8, "tokens": 4, "streams": 8, "closed": 4, "rewinds": 4, "forks": 4, "logits": 2}
"""Times that a use occurs in one deck; by default once."""
_BATCHES = (2, 3, 4, 5)
_MAX_BATCH_TOKENS = 96
"""Limit for a sequence of a batch, in tokens: batches then have few shapes, whose programs are made in the warm-up."""
_OVERFLOWING = 0.3
"""Tokens that fill whole contexts, as a share of the other tokens."""


class Workload:
    """Random uses of one model.

    Attributes:
        tokens: tokens read or chosen so far; tokens that a full context runs again are not counted.
        sequences: sequences begun: sessions, forks, streams, prompts of batches, scored texts.
        counts: count of each use.
        accepted: names of mistakes that were not refused.
    """

    def __init__(self, model: Model, seed: int, mean: float) -> None:
        """Prepare uses whose sequences have ``mean`` tokens, half read and half chosen; lengths are exponential."""
        self._model, self._random, self._mean = model, random.Random(seed), mean
        self._context, self._vocab = model.config.max_position_embeddings, model.config.vocab_size
        self.tokens = self.sequences = 0
        self.counts: Counter[str] = Counter()
        self.accepted: list[str] = []
        uses: dict[str, Callable[[], None]] = {
            "prompts": self._prompt_at_once,
            "tokens": self._token_by_token,
            "streams": self._stream,
            "closed": self._closed_early,
            "rewinds": self._rewind,
            "forks": self._fork,
            "logits": self._logits,
            "batches": self._batch,
            "captures": self._capture,
            "mistakes": self._mistakes,
        }
        if model.plan.name == "fast":
            uses.update(scores=self._score, guesses=self._guess)
        if model.tokenizer is not None:
            uses.update(texts=self._text, **{"text batches": self._text_batch})
        self._uses = {**uses, "overflows": self._overflow}
        deck = [name for name in uses for _ in range(_OFTEN.get(name, 1))]
        self._full_deck = deck
        self._overflow_odds = min(1.0, _OVERFLOWING * len(deck) * mean / self._context)
        self._deck: list[str] = []

    def everything(self) -> None:
        """Run each use once, and prompts of 1, 2, 4 … tokens up to the context, to make all programs and plans."""
        length = 1
        while length < 2 * self._context:
            with self._session() as session:
                session.prefill(self._read(min(length, self._context)))
                self._choose(session, 1)
            self._model.logits(self._read(min(length, self._context)))
            self.sequences += 1
            length *= 2
        for size in _BATCHES:
            for room in (1, _MAX_BATCH_TOKENS):
                self._batch_of([1, *[room] * (size - 1)], one_by_one=False)
        self._batch_of([1, 1], one_by_one=True)
        for name in self._uses:
            self._use(name)
        if "guesses" in self._uses:
            repeated = self._read(1) * max(1, self._context // 4)
            options: dict[str, Any] = {"speculate": "ngram", "temperature": 0.0}
            self.tokens += len(list(self._model.stream(repeated, max_tokens=self._context, **options)))

    def step(self) -> str:
        """Run one random use and return its name."""
        if not self._deck:
            self._deck = list(self._full_deck)
            if self._random.random() < self._overflow_odds:
                self._deck.append("overflows")
            self._random.shuffle(self._deck)
        name = self._deck.pop()
        self._use(name)
        return name

    def _use(self, name: str) -> None:
        self._uses[name]()
        self.counts[name] += 1

    def _length(self, most: int, mean: float | None = None) -> int:
        """A random length from 1 to ``most``; half a sequence on average."""
        drawn = self._random.expovariate(1.0 / (self._mean / 2 if mean is None else mean))
        return max(1, min(most, round(drawn)))

    def _ids(self, length: int) -> list[int]:
        return [self._random.randrange(self._vocab) for _ in range(length)]

    def _read(self, length: int) -> list[int]:
        """Random ids, counted as read."""
        self.tokens += length
        return self._ids(length)

    def _options(self) -> dict[str, Any]:
        return {**self._random.choice(_SAMPLING), "seed": self._random.randrange(1 << 30)}

    def _sampler(self) -> Sampler:
        return Sampler(SamplingOptions(**self._options()))

    def _session(self) -> DecodeSession:
        self.sequences += 1
        return self._model.session()

    def _choose(self, session: DecodeSession, count: int) -> None:
        session.generate_ids(count, self._sampler())
        self.tokens += count

    def _prompt_at_once(self) -> None:
        with self._session() as session:
            session.prefill(self._read(self._length(self._context)))
            self._choose(session, self._length(self._context))

    def _token_by_token(self) -> None:
        with self._session() as session:
            for token in self._read(self._length(self._context)):
                session.step(token)
                if self._random.random() < 0.2:
                    session.logits()
            session.probs()

    def _stream(self) -> None:
        """Read a stream of ids to its end, through the model's own sequence."""
        prompt = self._read(self._length(self._context))
        stream = self._model.stream(prompt, max_tokens=self._length(self._context), **self._options())
        stream.chunk = self._random.choice(_CHUNKS)
        self.tokens += len(list(stream))
        self.sequences += 1

    def _guess(self) -> None:
        """Read a stream of ids that repeat themselves, whose next ones are guessed and checked together."""
        prompt = (self._ids(self._length(8, mean=3)) * self._context)[: self._length(self._context // 2 or 1, mean=24)]
        length = self._length(self._context, mean=24)
        stream = self._model.stream(prompt, max_tokens=length, speculate="ngram", **self._options())
        self.tokens += len(prompt) + len(list(stream))
        self.sequences += 1

    def _closed_early(self) -> None:
        """Close a stream before its end, forget it, or leave it by an exception."""
        prompt = self._read(self._length(self._context))
        stream = self._model.stream(prompt, max_tokens=self._context, **self._options())
        stream.chunk = self._random.choice(_CHUNKS)
        self.sequences += 1
        way = self._random.randrange(3)
        with contextlib.suppress(_LeftError), stream if way else contextlib.nullcontext():
            for _ in range(self._length(8, mean=3)):
                next(stream, None)
            if way == 1:
                raise _LeftError
        self.tokens += stream.stats.tokens + stream.stats.surplus

    def _rewind(self) -> None:
        with self._session() as session:
            session.prefill(self._read(self._length(self._context)))
            for _ in range(2):
                self._choose(session, self._length(self._context, mean=self._mean / 4))
                session.rewind(self._random.randint(1, len(session)))
                session.prefill(self._read(1))
            session.logits()

    def _fork(self) -> None:
        with self._session() as session:
            session.prefill(self._read(self._length(self._context)))
            forks = [session.fork() for _ in range(self._random.randint(1, 2))]
            self.sequences += len(forks)
            together = [session, *forks]
            for each in together:
                self._choose(each, self._length(self._context, mean=self._mean / 6))
            self._random.shuffle(together)
            for each in together:
                each.close()

    def _logits(self) -> None:
        """Ask for the next token after two continuations of the same ids."""
        ids = self._ids(self._length(self._context - 1, mean=self._mean / 4))
        for _ in range(2):
            self._model.probs([*ids, *self._ids(1)])
        self.tokens += len(ids) + 2
        self.sequences += 1

    def _overflow(self) -> None:
        """Fill a context by reading, and again by choosing."""
        with self._session() as session:
            session.prefill(self._read(self._context - self._context // 8))
            self._choose(session, self._context // 4 + 2)

    def _requests(self, texts: bool) -> Iterator[BatchRequest]:
        most, mean = min(self._context, _MAX_BATCH_TOKENS) // 2, self._mean / 4
        for _ in range(self._random.choice(_BATCHES)):
            options = {"max_tokens": self._length(most, mean), **self._options()}
            length = self._length(most, mean)
            self.sequences += 1
            yield BatchRequest(self._words(length) if texts else self._ids(length), options)

    def _batch(self, texts: bool = False) -> None:
        """Run a few prompts together: as a list or one by one, to the end, closed early, or forgotten."""
        requests = self._requests(texts)
        found = self._model.batch(requests if self._random.random() < 0.3 else list(requests))
        early = self._random.random() < 0.3
        for result in found:
            self.tokens += result.stats.prompt_tokens + result.stats.tokens
            if early:
                break
        if early and self._random.random() < 0.5:
            _close(found)

    def _batch_of(self, counts: list[int], *, one_by_one: bool) -> None:
        """Run the first steps of a batch in which prompt n may choose ``counts[n]`` tokens."""
        requests = [BatchRequest(self._ids(4), {"max_tokens": count}) for count in counts]
        found = self._model.batch(iter(requests) if one_by_one else requests)
        self.tokens += next(found).stats.tokens * 5 * len(counts)
        self.sequences += len(counts)
        _close(found)

    def _text_batch(self) -> None:
        self._batch(texts=True)

    def _words(self, length: int) -> str:
        return "".join(self._random.choice(string.ascii_letters + "  \n.,é") for _ in range(max(1, length // 2)))

    def _text(self) -> None:
        """Stream a text to its end or to a stop string, or close it before."""
        stops = (self._random.choice("etaoin"),) if self._random.random() < 0.5 else ()
        prompt = self._words(self._length(self._context // 2 or 1))
        length = self._length(self._context)
        with self._model.stream(prompt, max_tokens=length, stop=stops, **self._options()) as text:
            text.chunk = self._random.choice(_CHUNKS)
            if self._random.random() < 0.3:
                next(text, "")
            else:
                "".join(text)
        self.tokens += text.stats.prompt_tokens + text.stats.tokens
        self.sequences += 1

    def _score(self) -> None:
        texts = [
            self._read(1 + self._length(self._context, mean=self._mean)) for _ in range(self._random.randint(1, 4))
        ]
        self._model.score(texts)
        self.sequences += len(texts)

    def _capture(self) -> None:
        """Capture a random tensor."""
        self._model.capture(self._random.choice(self._model.names()), self._read(self._length(8, mean=3)))
        self.sequences += 1

    def _mistakes(self) -> None:
        """Make mistakes, each of which has to be refused, while a session is open."""
        model, outside = self._model, [0, self._vocab]
        with self._session() as session:
            session.prefill(self._read(2))
            refused: dict[str, Callable[[], object]] = {
                "no tokens": lambda: model.logits([]),
                "an id outside the vocabulary": lambda: model.logits(outside),
                "a prompt longer than the context": lambda: model.logits([0] * (self._context + 1)),
                "a negative temperature": lambda: model.stream([0], temperature=-1.0),
                "a bad prompt in a batch": lambda: list(model.batch([BatchRequest([0]), BatchRequest(outside)])),
                "a bad id in a session": lambda: session.prefill(outside),
                "a rewind too far": lambda: session.rewind(3),
            }
            for name, use in refused.items():
                try:
                    use()
                    self.accepted.append(name)
                except InputError:
                    pass
            self._choose(session, 1)


def _close(results: Iterator[BatchResult]) -> None:
    if callable(close := getattr(results, "close", None)):
        close()


class _LeftError(Exception):
    """Raised in the middle of reading a stream."""
