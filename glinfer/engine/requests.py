"""Requests to a scheduler or a batch: a prompt with its options, its progress, and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from glinfer.config import ModelConfig
from glinfer.engine.defaults import merged
from glinfer.engine.ids import check_ids, check_max_tokens, check_stop_ids
from glinfer.engine.sampler import NEUTRAL, Sampler, SamplingOptions, gpu_chooses
from glinfer.engine.stream import GenerationStats
from glinfer.errors import InputError
from glinfer.text.assembler import TextAssembler
from glinfer.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class BatchRequest:
    """One prompt, text or ids, with the options that :meth:`glinfer.engine.model.Model.stream` takes.

    ``key`` is the caller's own, and comes back with the result.
    """

    prompt: str | Sequence[int]
    options: Mapping[str, Any] = field(default_factory=dict)
    key: object = None


@dataclass(frozen=True)
class BatchResult:
    """The result of a request: the ids, the text of a text prompt, and counts.

    ``stats.draws`` are those of all runs that the sequence took part in, most of them shared with others, and
    ``stats.seconds`` the time from its prompt to its end.
    """

    request: BatchRequest
    ids: list[int]
    text: str | None
    stats: GenerationStats


@dataclass(eq=False)
class Running:
    """A checked request that runs: its tokens, how the next one is chosen, and when it ends.

    It ends where a :class:`glinfer.engine.stream.TokenStream` or :class:`glinfer.engine.stream.TextStream` would.

    Attributes:
        by_gpu: whether the GPU chooses its tokens by itself.
        ids: the tokens chosen so far, without a stop id.
        stats: counts and times; ``stats.finish_reason`` is None until the end.
        held: the tokens of the sequence, prompt included, without those that the context has dropped.
        cached: the number of tokens in ``held`` whose keys and values are in the cache; all but the last before a step.
        prompted: the number of those that the chunk plan has computed.
    """

    request: BatchRequest
    prompt: list[int]
    sampling: SamplingOptions
    by_gpu: bool
    max_tokens: int
    stop_ids: frozenset[int]
    stop: str | Sequence[str]
    tokenizer: Tokenizer | None

    def __post_init__(self) -> None:
        """Start with the prompt alone."""
        self.held, self.ids = list(self.prompt), list[int]()
        self.cached = self.prompted = 0
        self.sampler = Sampler(self.sampling)
        self.stats = GenerationStats(prompt_tokens=len(self.prompt))
        self.assembler = TextAssembler(self.stop)
        self.pieces: list[str] = []

    @property
    def ended(self) -> bool:
        """Whether the sequence has finished or was cancelled."""
        return self.stats.finish_reason is not None

    def push(self, token: int) -> None:
        """Take the next token; ``stats.finish_reason`` says whether it was the last one."""
        self.cached = len(self.held)
        self.held.append(token)
        self.stats.tokens += 1
        if token in self.stop_ids:
            self.end("stop")
            return
        self.ids.append(token)
        if self.tokenizer is not None:
            self.pieces.append(self.assembler.push(self.tokenizer.token_bytes(token)))
        if self.assembler.stopped:
            self.stats.finish_reason = "stop"
        elif self.stats.tokens >= self.max_tokens:
            self.end("length")

    def end(self, reason: str) -> None:
        """End the sequence; text that was held back for a stop string is released."""
        self.pieces.append(self.assembler.finish())
        self.stats.finish_reason = "stop" if self.assembler.stopped else reason

    @property
    def result(self) -> BatchResult:
        """The ids, text and counts so far."""
        return BatchResult(self.request, self.ids, None if self.tokenizer is None else "".join(self.pieces), self.stats)


def check_request(
    request: BatchRequest,
    config: ModelConfig,
    tokenizer: Tokenizer | None,
    text_stops: tuple[int, ...] = (),
    sampling: SamplingOptions = NEUTRAL,
) -> Running:
    """Check a request.

    Args:
        request: the prompt and its options.
        config: the model's shape.
        tokenizer: None for a prompt of ids.
        text_stops: ids that end a text by default.
        sampling: the sampler's options by default.

    Raises:
        InputError: a prompt or an option that cannot be run.
    """
    options = {**DEFAULTS, **request.options}
    if unknown := sorted(set(options) - set(DEFAULTS)):
        raise InputError(f"there is no option {unknown[0]!r} for a batch; expected some of {', '.join(DEFAULTS)}")
    max_tokens, stop, stop_ids = (options.pop(name) for name in ("max_tokens", "stop", "stop_ids"))
    sampling = merged(sampling, options)
    if isinstance(request.prompt, str):
        assert tokenizer is not None  # the model has one, or refused the prompt
        ids: Sequence[int] = tokenizer.encode(request.prompt)
        default_stops = text_stops
    else:
        ids, default_stops, tokenizer = request.prompt, (), None
        if stop:
            raise InputError("stop strings need a text prompt; use stop_ids with a prompt of ids")
    return Running(
        request,
        check_ids(ids, config),
        sampling,
        gpu_chooses(sampling, config),
        check_max_tokens(max_tokens),
        frozenset(default_stops if stop_ids is None else check_stop_ids(stop_ids, config)),
        stop,
        tokenizer,
    )


DEFAULTS: Mapping[str, Any] = {
    "max_tokens": 128,
    **{each.name: None for each in fields(SamplingOptions)},
    "stop": (),
    "stop_ids": None,
}
"""The options of a request, with their defaults; None is the model's own."""
