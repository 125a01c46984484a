"""Requests to a scheduler or a batch: a prompt with its options, its progress, and its result."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from glinfer.engine.ids import Ids
from glinfer.engine.logits import LogitChanges, TokenLogprob
from glinfer.engine.run.stats import GenerationStats
from glinfer.engine.sampler import OwnSampler, Sampler, SamplingOptions
from glinfer.errors import counted
from glinfer.structured.constraint import Constraint
from glinfer.structured.structure import ERROR, OPTIONS
from glinfer.text.chat import ChatForm
from glinfer.text.images import rotary_positions
from glinfer.text.labels import shortened
from glinfer.text.reply import ChatPart, ReplyAssembler

_SHOWN = 60
"""Characters of a value in the repr of a result."""


@dataclass(frozen=True)
class BatchRequest:
    """One prompt, text or ids, with the options of :meth:`glinfer.engine.model.Model.stream` and four more.

    ``presence_penalty``, ``frequency_penalty`` and ``logit_bias`` are those of
    :class:`glinfer.engine.logits.LogitChanges`. ``logprobs`` is the number of likeliest tokens to list with each chosen
    token; it needs a readback of each row of logits. Text that does not match its structure is returned as it is, with
    ``stats.complete`` False.

    Attributes:
        key: any value of the caller, returned with the result.
        text: whether the result has text; by default if the prompt is text.
        form: the chat form of a reply, whose result has text: control tokens are hidden, thoughts are separate, and the
            form's end tokens end it by default.
        calls: whether tool calls are separate from thoughts, if the form has them as separate messages; or the control
            tokens of calls within the text, which are then text too.
        client: the owner of the request; clients take turns, and only requests of one client share prefixes.
    """

    prompt: str | Ids
    options: Mapping[str, Any] = field(default_factory=dict)
    key: object = None
    text: bool | None = None
    form: ChatForm | None = None
    client: Hashable = None
    calls: bool | frozenset[int] = False

    @property
    def has_text(self) -> bool:
        """Whether the result has text, which needs a tokenizer."""
        return self.form is not None or (isinstance(self.prompt, str) if self.text is None else self.text)


@dataclass(frozen=True, repr=False)
class BatchResult:
    """The result of a request: the ids, the text of a text prompt, and counts.

    ``stats.draws`` counts the draws of all runs with this sequence, most of them shared with others. ``stats.seconds``
    is the time from start to end, without ``stats.prompt_seconds``.

    Attributes:
        ids: the chosen tokens, without a stop id.
        text: the answer, or None.
        thinking: the thoughts before the answer of a chat.
        logprobs: of each of ``ids``, and of a stop id, if requested.
        error: the error that ended the sequence, if ``stats.finish_reason`` is ``error``.
    """

    request: BatchRequest
    ids: list[int]
    text: str | None
    stats: GenerationStats
    thinking: str = ""
    logprobs: list[TokenLogprob] | None = None
    error: Exception | None = None

    def __repr__(self) -> str:
        """The key, the number of tokens, the finish reason, and the start of the error, the text or the ids."""
        key, answer = self.request.key, self.error or (self.ids if self.text is None else self.text)
        parts = [] if key is None else [f"key {shortened(repr(key), _SHOWN)}"]
        parts += [counted(self.stats.tokens, "token"), str(self.stats.finish_reason), shortened(repr(answer), _SHOWN)]
        return f"BatchResult({', '.join(parts)})"


@dataclass(eq=False)
class Running:
    """A checked request and its sequence: its tokens, how the next token is chosen, and when it ends.

    It ends as a :class:`glinfer.engine.stream.TokenStream` or :class:`glinfer.engine.stream.TextStream` does.

    Attributes:
        unsure: whether the next token needs the whole row of logits.
        ids: the tokens chosen so far, without a stop id.
        stats: counts and times; ``stats.finish_reason`` is None until the end.
        held: the tokens of the sequence, prompt included, without those that the context has dropped.
        cached: the number of tokens in ``held`` whose keys and values are in the cache; all but the last before a step.
        prompted: the number of cached tokens that the chunk plan has computed.
        chunk: tokens that a sequence alone may compute between two readbacks.
        waited: pieces of other prompts run since the last piece of this one.
        resumes: whether the uncached tokens are forced tokens, which run before the prompts of others.
        queued: forced tokens to push, one a step.
        logprobs: of the tokens chosen so far, including a stop id, if requested.
        keep, before: the number of first tokens, and those before every text, that a full context keeps.
        adapter, own_sampler: the number of its LoRA adapter; what chooses the tokens instead of ``sampling``.
        error: the error that ended the sequence.
        calling: whether pieces of a call are new.
        due: the scheduler skips its events until this time (``perf_counter``); the next event has all that is new.
    """

    request: BatchRequest
    prompt: list[int]
    sampling: SamplingOptions
    max_tokens: int
    stop_ids: frozenset[int]
    reply: ReplyAssembler | None = None
    changes: LogitChanges | None = None
    top: int | None = None
    constraint: Constraint | None = None
    adapter: int = 0
    keep: int = 0
    before: list[int] = field(default_factory=list)
    own_sampler: OwnSampler | None = None

    def __post_init__(self) -> None:
        """Start with the prompt alone."""
        self.held, self.ids = list(self.prompt), list[int]()
        self.cached = self.prompted = self.waited = 0
        self.chunk = 1
        self.resumes, self.unsure, self.queued = False, False, deque[int]()
        self.long = False
        """Whether the cached keys use the second set of angles, in models with two."""
        _, self.back = rotary_positions(self.held)
        """How many positions images have left out."""
        self.sampler = Sampler(self.sampling) if self.own_sampler is None else self.own_sampler
        self.stats = GenerationStats(prompt_tokens=len(self.prompt))
        self._parts, self._unread, self.calling = list[ChatPart](), list[int](), False
        self.logprobs: list[TokenLogprob] = []
        self.error: Exception | None = None
        self.due = 0.0
        self._reported = 0, 0
        self._end_if_done()

    @property
    def owner(self) -> tuple[Hashable, int, bool]:
        """Client, adapter and angles; sequences share cached prefixes only if all are equal."""
        return self.request.client, self.adapter, self.long

    @property
    def able(self) -> bool:
        """Whether its tokens depend on its logits and sampling alone."""
        return self.constraint is None and not self.needs_row

    @property
    def needs_row(self) -> bool:
        """Whether every choice needs the whole row of logits."""
        return self.top is not None or self.own_sampler is not None

    @property
    def changed(self) -> bool:
        """Whether penalties or biases change its logits."""
        return self.changes is not None or self.sampling.penalises

    @property
    def ended(self) -> bool:
        """Whether the sequence has finished or was cancelled."""
        return self.stats.finish_reason is not None

    def push(self, token: int) -> None:
        """Append the next token, chosen or queued, and set ``stats.finish_reason`` if it was the last.

        Raises StructureError if the structure is too complex at this point; so does :meth:`force`.
        """
        self.cached, self.unsure = len(self.held), False
        if self.queued:
            self.queued.popleft()
        elif self.constraint is not None:
            self.constraint.push(token)
        self.take(token, more=len(self.queued))

    def take(self, token: int, *, more: int) -> None:
        """Append a token that the constraint has accepted; ``more`` accepted tokens follow it."""
        self.held.append(token)
        self.stats.tokens += 1
        if token in self.stop_ids:
            self.end("stop")
            if more:
                self.stats.complete = False
            return
        self.ids.append(token)
        if self.reply is not None:
            self._unread.append(token)
            if self.reply.decides:
                self._read()
        self._end_if_done(more)

    def _end_if_done(self, more: int = 0) -> None:
        if self.reply is not None and self.reply.stopped:
            self.end("stop")
        elif self.constraint is not None and self.constraint.done and not more:
            self.end("stop" if self.constraint.complete else "length")
        elif self.stats.tokens >= self.max_tokens:
            self.end("length")

    def force(self, context: int, *, at_once: int) -> None:
        """Append the tokens that the structure forces next: more than ``at_once`` as a piece, fewer one a step.

        The last position of the ``context`` is left for a chosen token.
        """
        if self.constraint is None or self.top is not None or self.ended or self.queued:
            return
        forced = self.constraint.forced(min(self.max_tokens - self.stats.tokens, context - len(self.held)))
        self.stats.forced += len(forced)
        if len(forced) <= at_once:
            self.queued.extend(forced)
            return
        self.resumes = True
        for index, token in enumerate(forced, 1):
            if not self.ended:
                self.take(token, more=len(forced) - index)
                self.sampler.advance()

    def has_news(self, now: float) -> bool:
        """Whether an event is due; the end of a sequence and pieces of a call never wait, to keep their order."""
        return self.ended or self.due <= now or self.calling

    def news(self) -> tuple[list[int], list[ChatPart]]:
        """The new tokens and pieces of text since the last call."""
        ids, parts = self._reported
        self._reported, self.calling = (len(self.ids), len(self.parts)), False
        return self.ids[ids:], self.parts[parts:]

    def end(self, reason: str) -> None:
        """End the sequence, and release text held back for a stop string."""
        if self.reply is not None:
            self._read()
            self._parts += self.reply.finish()
            reason = "stop" if self.reply.stopped and reason != "error" else reason
        self.stats.finish_reason = reason
        if self.constraint is not None:
            self.stats.complete = self.constraint.complete and not (self.reply is not None and self.reply.stopped)

    @property
    def parts(self) -> list[ChatPart]:
        """The pieces of text so far."""
        self._read()
        return self._parts

    def _read(self) -> None:
        """Add the text of new tokens. Unless one of them can end the text, that waits until somebody asks."""
        if self.reply is not None and self._unread:
            new, self._unread = self.reply.push(*self._unread), []
            self._parts += new
            self.calling = self.calling or any(part.kind == "call" for part in new)

    @property
    def result(self) -> BatchResult:
        """The ids, text and counts so far."""
        return BatchResult(
            self.request,
            self.ids,
            None if self.reply is None else text_of(self.parts, "answer"),
            self.stats,
            text_of(self.parts, "thinking"),
            None if self.top is None else self.logprobs,
            self.error,
        )


def text_of(parts: Sequence[ChatPart], kind: str) -> str:
    """The text of one kind among the pieces of a reply."""
    return "".join(part.text for part in parts if part.kind == kind)


DEFAULTS: Mapping[str, Any] = {
    "max_tokens": 128,
    **{each.name: None for each in fields(SamplingOptions)},
    "stop": (),
    "stop_ids": None,
    "logprobs": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": None,
    "sampler": None,
    "keep": 0,
    "lora": None,
    **dict.fromkeys(OPTIONS),
    "incomplete": ERROR,
}
"""The options of a request, with their defaults; None stands for the model's default."""
