"""Requests to a scheduler or a batch: a prompt with its options, its progress, and its result."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from glinfer.config import ModelConfig
from glinfer.engine.defaults import merged
from glinfer.engine.ids import Ids, check_count, check_ids, check_keep, check_stop_ids, whole_number
from glinfer.engine.logits import LogitChanges, TokenLogprob
from glinfer.engine.option_names import check_options
from glinfer.engine.own_sampler import OwnSampler
from glinfer.engine.sampler import NEUTRAL, Sampler, SamplingOptions
from glinfer.engine.stream import GenerationStats
from glinfer.errors import InputError
from glinfer.models.transforms.low_rank import NO_ADAPTERS, AdapterRanks
from glinfer.structured.compiler import Compiler
from glinfer.structured.constraint import Constraint
from glinfer.structured.structure import ERROR, OPTIONS, take_structure, wants_whole
from glinfer.text.chat import ChatForm, ReplySplitter
from glinfer.text.reply import ChatPart, ReplyAssembler
from glinfer.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class BatchRequest:
    """One prompt, text or ids, with the options that :meth:`glinfer.engine.model.Model.stream` takes, and four more.

    ``presence_penalty``, ``frequency_penalty`` and ``logit_bias`` are those of
    :class:`glinfer.engine.logits.LogitChanges`. ``logprobs`` is the number of most probable tokens to name beside each
    chosen one; with it, each row of logits is read back. A text that ends before it has the structure that was asked
    for is no error here: ``stats.complete`` says so.

    Attributes:
        prompt: text, or ids.
        options: as above.
        key: the caller's own, which comes back with the result.
        text: whether the result has text; left out, where the prompt is text.
        form: the chat form of a reply, which then has text: control tokens are not shown, thoughts are kept apart, and
            the form's end tokens end it by default.
        calls: whether calls of tools, where the form has them as messages of their own, are kept apart from thoughts.
        client: whose request it is: clients take turns, and a prefix is reused among requests of one client only.
    """

    prompt: str | Ids
    options: Mapping[str, Any] = field(default_factory=dict)
    key: object = None
    text: bool | None = None
    form: ChatForm | None = None
    client: Hashable = None
    calls: bool = False

    @property
    def has_text(self) -> bool:
        """Whether the result has text, so that a tokenizer is needed."""
        return self.form is not None or (isinstance(self.prompt, str) if self.text is None else self.text)


@dataclass(frozen=True)
class BatchResult:
    """The result of a request: the ids, the text of a text prompt, and counts.

    ``stats.draws`` are those of all runs that the sequence took part in, most of them shared with others, and
    ``stats.seconds`` the time from its prompt to its end.

    Attributes:
        request: as it was given.
        ids: the tokens chosen, without a stop id.
        text: the answer, or None.
        stats: counts and times.
        thinking: the thoughts before the answer of a chat.
        logprobs: of each of ``ids``, and of a stop id, where they were asked for.
        error: what broke the sequence, where ``stats.finish_reason`` is ``error``.
    """

    request: BatchRequest
    ids: list[int]
    text: str | None
    stats: GenerationStats
    thinking: str = ""
    logprobs: list[TokenLogprob] | None = None
    error: Exception | None = None


@dataclass(eq=False)
class Running:
    """A checked request that runs: its tokens, how the next one is chosen, and when it ends.

    It ends where a :class:`glinfer.engine.stream.TokenStream` or :class:`glinfer.engine.stream.TextStream` would.

    Attributes:
        able: whether its tokens depend on its logits and sampling alone.
        unsure: whether the next token needs the whole row of logits.
        ids: the tokens chosen so far, without a stop id.
        stats: counts and times; ``stats.finish_reason`` is None until the end.
        held: the tokens of the sequence, prompt included, without those that the context has dropped.
        cached: the number of tokens in ``held`` whose keys and values are in the cache; all but the last before a step.
        prompted: the number of those that the chunk plan has computed.
        waited: how many pieces of other prompts have been run since the last one of this.
        resumes: whether what is not in the cache are forced tokens, which run before the prompts of others.
        queued: forced tokens that are pushed one a step.
        logprobs: of the tokens chosen so far, a stop id among them, if they were asked for.
        adapter: the number of its LoRA adapter.
        keep: how many of the first tokens stay where the context is full.
        before: what the tokenizer puts before every text, which stays too.
        own_sampler: chooses the tokens in place of one with ``sampling``.
        error: what broke the sequence.
    """

    request: BatchRequest
    prompt: list[int]
    sampling: SamplingOptions
    able: bool
    max_tokens: int
    stop_ids: frozenset[int]
    reply: ReplyAssembler | None
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
        self.resumes, self.unsure, self.queued = False, False, deque[int]()
        self.long = False
        """Whether what is cached has turned by the second set of angles, where the model has two."""
        self.sampler = Sampler(self.sampling) if self.own_sampler is None else self.own_sampler
        self.stats = GenerationStats(prompt_tokens=len(self.prompt))
        self.parts: list[ChatPart] = []
        self.logprobs: list[TokenLogprob] = []
        self.error: Exception | None = None
        self._told = 0, 0

    @property
    def owner(self) -> tuple[Hashable, int, bool]:
        """Whose keys and values it may begin with: those of its own client, with its own adapter and angles."""
        return self.request.client, self.adapter, self.long

    @property
    def needs_row(self) -> bool:
        """Whether every token is chosen from the whole row of logits."""
        return self.top is not None or self.own_sampler is not None

    @property
    def changed(self) -> bool:
        """Whether its logits change before a token is chosen."""
        return self.changes is not None or self.sampling.penalises

    @property
    def ended(self) -> bool:
        """Whether the sequence has finished or was cancelled."""
        return self.stats.finish_reason is not None

    def push(self, token: int) -> None:
        """Take the next token, chosen or queued; ``stats.finish_reason`` says whether it was the last one.

        Raises:
            StructureError: its structure is too complex at this place.
        """
        self.cached, self.unsure = len(self.held), False
        if self.queued:
            self.queued.popleft()
        elif self.constraint is not None:
            self.constraint.push(token)
        self._take(token, more=len(self.queued))

    def _take(self, token: int, *, more: int) -> None:
        """Take a token that the constraint knows, and ``more`` behind it."""
        self.held.append(token)
        self.stats.tokens += 1
        if token in self.stop_ids:
            self.end("stop")
            return
        self.ids.append(token)
        if self.reply is not None:
            self.parts += self.reply.push(token)
        if self.reply is not None and self.reply.stopped:
            self.end("stop")
        elif self.constraint is not None and self.constraint.done and not more:
            self.end("stop" if self.constraint.complete else "length")
        elif self.stats.tokens >= self.max_tokens:
            self.end("length")

    def force(self, context: int, *, at_once: int) -> None:
        """Take the tokens that the structure forces next: more than ``at_once`` run as a piece, fewer one a step.

        The last place of the ``context`` is for a token that is chosen.

        Raises:
            StructureError: its structure is too complex at this place.
        """
        if self.constraint is None or self.top is not None or self.ended or self.queued:
            return
        forced = self.constraint.forced(min(self.max_tokens - self.stats.tokens, context - len(self.held)))
        self.stats.forced += len(forced)
        if len(forced) <= at_once:
            self.queued.extend(forced)
            return
        self.resumes = True
        for place, token in enumerate(forced, 1):
            if not self.ended:
                self._take(token, more=len(forced) - place)
                self.sampler.advance()

    def news(self) -> tuple[list[int], list[ChatPart]]:
        """The tokens and pieces of text since the last call."""
        ids, parts = self._told
        self._told = len(self.ids), len(self.parts)
        return self.ids[ids:], self.parts[parts:]

    def end(self, reason: str) -> None:
        """End the sequence; text that was held back for a stop string is released."""
        if self.reply is not None:
            self.parts += self.reply.finish()
            reason = "stop" if self.reply.stopped and reason != "error" else reason
        self.stats.finish_reason = reason
        self.stats.complete = None if self.constraint is None else self.constraint.complete

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


def check_request(
    request: BatchRequest,
    config: ModelConfig,
    tokenizer: Tokenizer | None,
    text_stops: tuple[int, ...] = (),
    sampling: SamplingOptions = NEUTRAL,
    compiler: Callable[[], Compiler] | None = None,
    adapters: AdapterRanks = NO_ADAPTERS,
    before: Sequence[int] = (),
) -> Running:
    """Check a request.

    Args:
        request: the prompt and its options.
        config: the model's shape.
        tokenizer: None for a result without text.
        text_stops: ids that end a text by default.
        sampling: the sampler's options by default.
        compiler: gives what compiles structures, where it is needed.
        adapters: the model's LoRA adapters.
        before: what the model's tokenizer puts before every text.

    Raises:
        InputError: a prompt or an option that cannot be run.
    """
    if not isinstance(request.options, Mapping):
        raise InputError(f"the options are {type(request.options).__name__}; expected a dict of names and values")
    given = dict(request.options)
    for name in ("speculate", "draft"):
        if given.pop(name, None) is not None:
            raise InputError(f"{name} is for one prompt at a time; leave it out where prompts run together")
    check_options("a request", given, DEFAULTS)
    options = {**DEFAULTS, **given}
    structure = take_structure(options)
    wants_whole(options.pop("incomplete"))
    adapter, keep = adapters.number(options.pop("lora")), options.pop("keep")
    max_tokens, stop, stop_ids, top = (options.pop(name) for name in ("max_tokens", "stop", "stop_ids", "logprobs"))
    presence, frequency, bias = (options.pop(name) for name in ("presence_penalty", "frequency_penalty", "logit_bias"))
    function = options.pop("sampler")
    own_sampler = None if function is None else OwnSampler(function, options)
    sampling = merged(sampling, options)
    changed = LogitChanges.checked(presence, frequency, bias, config.vocab_size)
    top = None if top is None else whole_number("of logprobs", top)
    prompt, form = request.prompt, request.form
    if isinstance(prompt, str):
        assert tokenizer is not None  # the model has one, or refused the prompt
        prompt = tokenizer.encode(prompt)
    reply, default_stops = None, tuple[int, ...]()
    if request.has_text:
        assert tokenizer is not None
        reply = ReplyAssembler(tokenizer, stop, None if form is None else ReplySplitter(form, calls=request.calls))
        default_stops = text_stops if form is None else form.stop_ids
    elif structure is not None:
        default_stops = text_stops
    if stop and not request.has_text:
        raise InputError("stop strings need a text prompt; use stop_ids with a prompt of ids")
    ends = frozenset(default_stops if stop_ids is None else check_stop_ids(stop_ids, config))
    ids, most = check_ids(prompt, config), check_count("max_tokens", max_tokens)
    keep = check_keep(keep, config.max_position_embeddings, len(ids))
    constraint = None
    if structure is not None:
        assert compiler is not None
        constraint = compiler().constraint(structure, ends)  # last, since it takes longest
    return Running(
        request,
        ids,
        sampling,
        not any((own_sampler, structure)) and top is None,
        most,
        ends,
        reply,
        changed,
        top,
        constraint,
        adapter,
        keep,
        list(before),
        own_sampler,
    )


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
"""The options of a request, with their defaults; None is the model's own."""
