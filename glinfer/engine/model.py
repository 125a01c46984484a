"""The Model of the public API: text or ids in, text, ids, logits or probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NoReturn, SupportsFloat, SupportsIndex, overload
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from glinfer.engine.batch import MAX_SLOTS, SchedulerOptions
from glinfer.engine.capture import Inspected
from glinfer.engine.chat import ChatOptions, Chatting
from glinfer.engine.defaults import merged
from glinfer.engine.embed import Embeds
from glinfer.engine.engine import EMBEDS, Engine
from glinfer.engine.ids import (
    Ids,
    check_callback,
    check_count,
    check_ids,
    check_keep,
    check_tokens,
    integer,
    list_of_texts,
)
from glinfer.engine.logits import LogitChanges
from glinfer.engine.option_names import check_options, named_options
from glinfer.engine.requests import DEFAULTS, BatchRequest, BatchResult, Running
from glinfer.engine.run.decode import DecodeSession
from glinfer.engine.run.drafts import ModelDrafts, Ngrams, RunTimes, Speculation, check_speculation
from glinfer.engine.run.stats import require_complete
from glinfer.engine.sampler import NEUTRAL, OwnSampler, SamplerFunction, SamplingOptions
from glinfer.engine.scheduler import Scheduler
from glinfer.engine.score import TextScore
from glinfer.engine.stream import GeneratedText, TextStream, TokenStream, read_whole
from glinfer.engine.textures import TexturesReport
from glinfer.engine.tour import Tour, recorded
from glinfer.engine.vision import ImageEncoder
from glinfer.errors import ContextError, InputError, StructureError, check_flag
from glinfer.formats.embedding import Embedding
from glinfer.formats.sampling import NAMES
from glinfer.program.plan import DrawTable, draw_table
from glinfer.structured.structure import ERROR, OPTIONS, requires_complete, take_structure
from glinfer.text.chat import ChatForm, ReplySplitter
from glinfer.text.images import ImageReader
from glinfer.text.labels import token_label
from glinfer.text.reply import ReplyAssembler
from glinfer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from glinfer.structured.compiler import Compiler

_CLOSED = "this model was closed; load it again"


class StreamOptions(ChatOptions, total=False):
    """The options of :meth:`Model.stream` and :meth:`Model.generate`; see :meth:`Model.stream`."""

    stop_ids: Ids | None
    keep: SupportsIndex


class Model(Inspected, Embeds, Chatting):
    """A checkpoint bound to a device; made by :func:`glinfer.load`.

    Streams, :meth:`logits` and :meth:`probs` share one sequence of tokens. With the fast plan, a new prompt reuses the
    prefix that it shares with the last use. :meth:`session` makes separate sequences.

    Attributes:
        config: the model's shape.
        tokenizer: the tokenizer, or None if only ids can be used.
        device: the open OpenGL device.
        engine, bound: the bound plans, and the one that computes a token.
        weights, cache: the formats of the weights, such as ``f32``, and of keys and values.
        kernels: options of the fast plan's passes; the reference plan ignores them.
        sampling: the default sampling options, see :func:`glinfer.engine.defaults.default_sampling`; assign a
            SamplingOptions to change them.
        stop_ids: the ids that end a text by default.
        embedding: prompts, lengths and other settings of an embedding model.
        adapters: the loaded LoRA adapters; ``adapters.names`` has their names.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer | None = None,
        *,
        no_tokenizer: str = "this model was made without a tokenizer; use token ids",
        stop_ids: tuple[int, ...] = (),
        sampling: SamplingOptions = NEUTRAL,
        find_form: Callable[..., ChatForm] | None = None,
        embedding: Embedding | None = None,
        images: ImageReader | str = "this model was made without files, and takes no images",
        image_encoder: ImageEncoder | None = None,
        path: str | None = None,
        owns_device: bool = False,
        strict: bool = False,
    ) -> None:
        """Call :func:`load_model` instead.

        ``no_tokenizer`` is the error without a tokenizer, and ``images`` may be the error without an image encoder.
        ``find_form`` finds the chat form for ``system`` and ``kwargs``. The model releases the ``image_encoder``, and
        the device if it ``owns_device``.
        """
        options = engine.options
        self.engine, self.bound, self.device = engine, engine.bound, engine.bound.device
        self.config, self.weights, self.cache = options.config, options.weights, options.cache
        self.kernels, self.adapters = options.kernels, options.adapters
        engine.nan_guard.strict = strict
        self.tokenizer, self._no_tokenizer, self.stop_ids = tokenizer, no_tokenizer, stop_ids
        self.sampling, self.embedding, self._find_form = sampling, embedding or Embedding(), find_form
        self._images, self._image_encoder = images, image_encoder
        self._closed, self._owns_device, self._path = False, owns_device, path
        self._compiler: Compiler | None = None
        self._run_times, self._same_tokens = RunTimes(), WeakSet[Model]()
        self._own = self.engine.session(own=True)
        self._own.require_tokenizer, self._own.before = self.require_tokenizer, self._before

    def __repr__(self) -> str:
        """Shape, plan, formats, sampling and renderer on one line."""
        config, sampling = self.config, self.sampling
        parts = [
            f"{config.num_hidden_layers} blocks of {config.hidden_size}, {config.vocab_size:,} tokens, context "
            f"{config.max_position_embeddings}",
            f"plan {self.plan.name}, weights {self.weights}, cache {self.cache}",
            ", ".join(f"{name} {getattr(sampling, name):g}" for name in NAMES),
            "closed" if self._closed else self.device.description,
        ]
        return f"<Model {config.model_type}: {'; '.join(parts)}>"

    @property
    def sampling(self) -> SamplingOptions:
        """The default sampling options."""
        return self._sampling

    @sampling.setter
    def sampling(self, options: SamplingOptions) -> None:
        if not isinstance(options, SamplingOptions):
            found = type(options).__name__
            raise InputError(f"sampling is {found}; expected options such as glinfer.SamplingOptions(temperature=0)")
        self._sampling = options

    @property
    def _before(self) -> list[int]:
        """The tokens that the tokenizer puts before every text."""
        return [] if self.tokenizer is None else self.tokenizer.around[0]

    @named_options()
    def session(self, *, keep: SupportsIndex = 0) -> DecodeSession:
        """A new, empty sequence of tokens over the same weights; close it, or use it in a ``with`` block.

        ``keep`` is the number of first tokens to keep when the context is full; tokens that the tokenizer puts before
        every text stay anyway. Raises InputError if no other token would fit, ContextError if the model was closed.
        """
        self._require_tokens()
        keep = check_keep(keep, self.config.max_position_embeddings)
        made = self.engine.session()
        made.require_tokenizer, made.before, made.keep = self.require_tokenizer, self._before, keep
        return made

    def _require_open(self) -> None:
        if self._closed:
            raise ContextError(_CLOSED)
        self.device.require_usable()

    def _require_tokens(self) -> None:
        """Refuse a closed model and an embedding model."""
        self._require_open()
        if self.config.embeds:
            raise InputError(EMBEDS)

    def _ids_of(self, prompt: str | Ids) -> list[int]:
        """The checked ids of a prompt."""
        self._require_tokens()
        return check_ids(self.require_tokenizer().encode(prompt) if isinstance(prompt, str) else prompt, self.config)

    def _require_alone(self) -> None:
        """Refuse steps of several sequences if the model is closed, watched or patched."""
        self._require_open()
        self._require_unobserved("a scheduler")

    def forward(self, prompt: str | Ids) -> int:
        """Run one pass of the reference plan over the whole sequence; returns the draw calls issued.

        Raises InputError if the prompt is invalid, or the plan runs token by token.
        """
        self._require_open()
        return self.engine.forward(self._ids_of(prompt))

    @named_options()
    def logits(self, prompt: str | Ids, *, lora: str | None = None) -> npt.NDArray[np.float32]:
        """Logits [vocab] of the token after ``prompt`` (text or ids), float32; ``lora`` as in :meth:`stream`."""
        return self._holding(prompt, lora).logits()

    @named_options()
    def probs(self, prompt: str | Ids, *, lora: str | None = None) -> npt.NDArray[np.float32]:
        """Softmax probabilities [vocab] of the token after ``prompt``, float32; arguments as in :meth:`logits`."""
        return self._holding(prompt, lora).probs()

    def _holding(self, prompt: str | Ids, lora: str | None) -> DecodeSession:
        """The model's own sequence with the tokens of a prompt."""
        self._require_open()
        self._own.use_adapter(self.adapters.number(lora))
        self._own.hold(self._ids_of(prompt))
        return self._own

    @overload
    def stream(self, prompt: str, **options: Unpack[StreamOptions]) -> TextStream: ...
    @overload
    def stream(self, prompt: Ids, **options: Unpack[StreamOptions]) -> TokenStream: ...
    @named_options()
    def stream(
        self,
        prompt: str | Ids,
        *,
        max_tokens: SupportsIndex = 128,
        temperature: SupportsFloat | None = None,
        top_k: SupportsIndex | None = None,
        top_p: SupportsFloat | None = None,
        min_p: SupportsFloat | None = None,
        repetition_penalty: SupportsFloat | None = None,
        seed: SupportsIndex | None = None,
        stop: str | Sequence[str] = (),
        stop_ids: Ids | None = None,
        on_end: Callable[[], None] | None = None,
        speculate: str | None = None,
        draft: Chatting | None = None,
        json_schema: Mapping[str, Any] | bool | str | type | None = None,
        regex: str | None = None,
        grammar: str | None = None,
        choices: Sequence[str] | None = None,
        incomplete: str = ERROR,
        lora: str | None = None,
        keep: SupportsIndex = 0,
        sampler: SamplerFunction | None = None,
    ) -> TextStream | TokenStream:
        """Continue a prompt piece by piece: text for a text prompt, ids for a prompt of ids.

        Args:
            prompt: text (needs a tokenizer; control tokens such as ``<|user|>`` are recognised), or ids.
            max_tokens: limit for generated tokens. A full context drops the oldest half of its tokens (see
                ``stats.dropped``) and generation continues. Tokens that the tokenizer puts before every text, such as
                ``<s>``, stay.
            temperature: 0 is greedy decoding.
            top_k: only the k likeliest tokens (0: all).
            top_p: only the likeliest tokens whose probabilities reach this sum.
            min_p: only tokens at least this fraction as likely as the likeliest.
            repetition_penalty: above 1 makes tokens already in the sequence less likely.
            seed: the same seed gives the same tokens; None draws a new one.
            stop: strings, or one string, that end a text stream and are not part of the text.
            stop_ids: ids that end the stream (default: for text the tokenizer's ``<|end|>``, or the ``eos_token_id`` of
                a Hugging Face model; for ids none).
            on_end: called once when the stream ends.
            speculate: ``ngram`` drafts the tokens that followed the newest ones earlier in the sequence, and runs
                the drafts together. The text stays the same; text that repeats its prompt is generated faster.
            draft: a smaller model with the same tokenizer, which makes the drafts; it sees no images.
            json_schema: the text is JSON of this schema: an object, its JSON as text, or a pydantic class.
            regex: the whole text matches this regular expression.
            grammar: the text matches this grammar, in llguidance's form of Lark.
            choices: the text is one of these.
            incomplete: ``error`` raises a StructureError with the ``text`` if a text ends before it matches its
                structure; ``partial`` returns it, with ``stats.complete`` False.
            lora: the name of a loaded adapter, or ``base`` for none; by default the adapter that :func:`glinfer.load`
                got without a name, if any.
            keep: the number of first tokens to keep when the context is full; -1 keeps the whole prompt.
            sampler: a function that chooses every token from the logits, float32 [vocab] with -inf for tokens that a
                structure forbids, and the ids so far; returns an id. Its exceptions propagate. It needs a readback of
                all logits for every token.

        Give at most one of json_schema, regex, grammar and choices. They need a tokenizer, and exclude ``speculate``
        and ``draft``. The model's end tokens end the text when its structure allows it, even for a prompt of ids.

        Sampling options that are None use :attr:`sampling`.

        Close the stream if you do not read it to its end, or use it in a ``with`` block.

        Raises:
            InputError: the prompt or an option is invalid.
        """
        options = {name: value for name, value in locals().items() if name in DEFAULTS}
        self._require_open()
        speculates = speculate is not None or draft is not None
        for name in ("sampler", *OPTIONS):
            if speculates and options[name] is not None:
                raise InputError(f"found {name} together with speculation; leave out speculate and draft")
        whole, is_text = incomplete == ERROR, isinstance(prompt, str)
        row = replace(self.checked(BatchRequest(prompt, options)), reply=None)  # a TextStream makes the text
        speculation = self._speculation(speculate, draft) if speculates else None
        tokens = TokenStream(self._own, row, on_end=on_end, speculation=speculation, whole=whole and not is_text)
        return TextStream(tokens, self.require_tokenizer(), stop, whole=whole) if is_text else tokens

    def compiler(self) -> Compiler:
        """The compiler and cache of structures for its tokens, for any thread; InputError without a tokenizer."""
        if self._compiler is None:
            from glinfer.structured.compiler import Compiler  # only structures need it

            self._compiler = Compiler(self.require_tokenizer(), self.config.vocab_size)
        return self._compiler

    def _speculation(self, speculate: str | None, draft: Chatting | None) -> Speculation:
        """The speculation of one stream."""
        check_speculation(speculate, draft)
        if self.plan.name != "fast":
            raise InputError("drafts need the fast plan; leave them out, or plan='reference' (--plan reference)")
        if draft is None:
            return Speculation(Ngrams(), self._run_times)
        if not isinstance(draft, Model) or draft is self:
            found = "the model itself" if draft is self else type(draft).__name__
            raise InputError(f"the draft is {found}; expected another model that glinfer.load has opened")
        draft._require_open()
        self._require_drafts_of(draft)
        return Speculation(ModelDrafts(draft._own, self.config.vocab_size), self._run_times)

    def _require_drafts_of(self, draft: Model) -> None:
        """Refuse a draft model with another vocabulary."""
        own, other = self.tokenizer, draft.tokenizer
        if own is None or other is None:
            same = self.config.vocab_size == draft.config.vocab_size
        else:
            same = draft in self._same_tokens or own.same_as(other)
        if not same:
            raise InputError(
                f"the draft model ({draft.config.vocab_size:,} tokens) has another tokenizer than the model "
                f"({self.config.vocab_size:,} tokens); expected one of the same family with the same vocabulary"
            )
        self._same_tokens.add(draft)  # comparing vocabularies takes a while

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: str, **options: Unpack[StreamOptions]
    ) -> GeneratedText: ...
    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: Ids, **options: Unpack[StreamOptions]
    ) -> list[int]: ...
    @overload
    def generate(self, prompt: Iterable[str], **options: Unpack[StreamOptions]) -> list[GeneratedText]: ...
    @overload
    def generate(self, prompt: Iterable[Ids], **options: Unpack[StreamOptions]) -> list[list[int]]: ...
    @named_options(StreamOptions)
    def generate(
        self, prompt: str | Iterable[Any], **options: Unpack[StreamOptions]
    ) -> GeneratedText | list[int] | list[GeneratedText] | list[list[int]]:
        """Continue a prompt: a string for text, a list of ids for ids; options and errors as in :meth:`stream`.

        The string has ``finish_reason``, ``tokens`` and ``stats``, see :class:`GeneratedText`.

        Several prompts, in a list, an array of rows or another ordered iterable, run together and give a list. Each
        result is the same as alone. No prompts give an empty list.
        """
        listed: Any = prompt
        single = (str, bytes, bytearray, Mapping, set, frozenset)
        ordered = isinstance(prompt, Iterable) and not isinstance(prompt, single)
        if ordered and getattr(prompt, "ndim", True):  # arrays without axes are not iterable
            listed = list(prompt)
            if all(isinstance(each, Iterable) for each in listed):
                return self._generate_many(listed, options)
        return read_whole(self.stream(listed, **options))

    def _generate_many(
        self, prompts: Sequence[str | Ids], options: StreamOptions
    ) -> list[GeneratedText] | list[list[int]]:
        then = options.pop("on_end", None)
        check_callback("on_end", then)
        found: list[Any] = [None] * len(prompts)
        whole = requires_complete(options.get("incomplete", ERROR))
        for result in self.batch([BatchRequest(each, options, index) for index, each in enumerate(prompts)]):
            assert isinstance(result.request.key, int)
            if whole:
                require_complete(result.stats, result.text, f"request {result.request.key}: ")
            found[result.request.key] = result.ids if result.text is None else GeneratedText(result.text, result.stats)
        if then is not None:
            then()
        return found

    @named_options()
    def batch(
        self,
        requests: Iterable[BatchRequest],
        *,
        slots: SupportsIndex | None = None,
        memory: SupportsIndex | None = None,
        longest: SupportsIndex | None = None,
    ) -> Iterator[BatchResult]:
        """Continue many prompts together, and yield results in the order of completion.

        Each result is that of :meth:`stream` with the same options and seed. Nothing runs, and no memory is allocated,
        before the first result is requested. A list is checked at once, and its longest request decides the size of the
        caches. From other iterables a request is read and checked when a slot is free; each cache then has room for a
        whole context, or for ``longest`` tokens.

        Args:
            requests: the prompts with their options.
            slots: limit for concurrent sequences; by default 32, or the length of the list if shorter.
            memory: bytes of texture memory for their caches; by default 1 GiB.
            longest: tokens of the longest sequence, prompt and continuation; by default see above.

        Raises:
            InputError: a prompt or an option is invalid, a single sequence does not fit the memory, or the reference
                plan is in use.
        """
        bounds = self._bounds("batch", slots=slots, memory=memory, longest=longest)
        if isinstance(requests, (list, tuple)):
            running = [self.checked(request, f"request {index}: ") for index, request in enumerate(requests)]
            if not running:
                return iter(())
            bounds.setdefault("longest", max(len(each.prompt) + each.max_tokens for each in running))
            bounds["slots"] = min(bounds.get("slots", MAX_SLOTS), len(running))
            waiting = iter(running)
        elif isinstance(requests, Iterable):
            waiting = map(self.checked, requests)
        else:
            raise InputError(f"the requests are {type(requests).__name__}; expected a list or an iterator of them")
        make = self.engine.scheduler(self.checked, self._require_alone, SchedulerOptions(**bounds))

        def results() -> Iterator[BatchResult]:
            # Bind the plans here, so that an unused iterator holds nothing.
            with make() as scheduler:
                yield from scheduler.results(waiting)

        return results()

    @named_options()
    def scheduler(
        self,
        *,
        slots: SupportsIndex | None = None,
        memory: SupportsIndex | None = None,
        longest: SupportsIndex | None = None,
        piece: SupportsIndex | None = None,
    ) -> Scheduler:
        """A scheduler of prompts that come and go: insert, next, cancel; use it in a ``with`` block.

        Each result is that of :meth:`stream` with the same options and seed. Requests that do not fit wait. A prompt
        reuses the prefix that it shares with an earlier one, such as a system prompt.

        Args:
            slots, memory: as in :meth:`batch`.
            longest: tokens of the longest sequence, prompt and continuation; by default a whole context.
            piece: prompt tokens to run between two decode steps; by default the kernels' chunk, mostly 512. Small
                pieces keep decoding even; large ones speed up prompts.

        Raises:
            InputError: a number is 0, a single sequence does not fit the memory, or the reference plan is in use.
        """
        bounds = self._bounds("scheduler", slots=slots, memory=memory, longest=longest, piece=piece)
        return self.engine.scheduler(self.checked, self._require_alone, SchedulerOptions(**bounds))()

    def _bounds(self, what: str, **given: SupportsIndex | None) -> dict[str, int]:
        """The limits that are not None, checked; refuses a model that cannot run sequences together."""
        self._require_tokens()
        self._require_unobserved(what)
        return {name: check_count(name, number) for name, number in given.items() if number is not None}

    @overload
    def score(  # type: ignore[overload-overlap]
        self, texts: str, *, stride: SupportsIndex | None = None, lora: str | None = None
    ) -> TextScore: ...
    @overload
    def score(
        self, texts: Iterable[str | Ids], *, stride: SupportsIndex | None = None, lora: str | None = None
    ) -> list[TextScore]: ...
    @named_options()
    def score(
        self, texts: str | Iterable[str | Ids], *, stride: SupportsIndex | None = None, lora: str | None = None
    ) -> TextScore | list[TextScore]:
        """Score texts: the log-probability of every token after the first, given the tokens before it.

        Args:
            texts: one string (needs a tokenizer), which gives one score; or a list of strings, or of lists of ids. Each
                text has at least two tokens. Ids may have images in them, see :meth:`chat_ids`.
            stride: tokens between the starts of two windows, for texts longer than the context; by default half of the
                context.
            lora: as in :meth:`stream`.

        Raises:
            InputError: a text is invalid, or the reference plan is in use.
        """
        self._require_tokens()
        self._require_unobserved("score")
        if isinstance(texts, str):
            return self.score([texts], stride=stride, lora=lora)[0]
        ids = []
        for index, text in enumerate(list_of_texts(texts)):
            tokens: Ids = self.require_tokenizer().encode(text) if isinstance(text, str) else text
            ids.append(check_tokens(f"text {index}", tokens, self.config, images=True))
        adapter = self.adapters.number(lora)
        scores = self.engine.score(ids, stride=stride, adapter=adapter) if ids else []
        if (tokenizer := self.tokenizer) is None:
            return scores
        named = ({*each.ids, *each.likeliest.tolist()} for each in scores)
        labels = [{token: token_label(token, tokenizer) for token in tokens} for tokens in named]
        return [replace(score, labels=each) for score, each in zip(scores, labels, strict=True)]

    def checked(self, request: BatchRequest, which: str = "") -> Running:
        """A checked request for :meth:`glinfer.engine.scheduler.Scheduler.add`; any thread may call this.

        Raises InputError if the prompt or an option is invalid; the message starts with ``which``.
        """
        if self.config.embeds:
            raise InputError(f"{which}{EMBEDS}")
        if not isinstance(request, BatchRequest):
            raise InputError(f"{which}a request is {type(request).__name__}; expected BatchRequest(prompt, options)")
        try:
            return self._checked(request)
        except StructureError as error:
            raise StructureError(f"{which}{error}") from None
        except InputError as error:
            raise InputError(f"{which}{error}", f"{which}{error.public}") from None

    def _checked(self, request: BatchRequest) -> Running:
        config = self.config
        if not isinstance(request.options, Mapping):
            raise InputError(f"the options are {type(request.options).__name__}; expected a dict of names and values")
        given = dict(request.options)
        for name in ("speculate", "draft"):
            if given.pop(name, None) is not None:
                raise InputError(f"{name} is for one prompt at a time; leave it out where prompts run together")
        check_options("a request", given, DEFAULTS)
        options = {**DEFAULTS, **given}
        structure = take_structure(options)
        requires_complete(options["incomplete"])
        chosen = {field.name: options[field.name] for field in fields(SamplingOptions)}
        presence, frequency = options["presence_penalty"], options["frequency_penalty"]
        stop, stop_ids, top, function = (options[name] for name in ("stop", "stop_ids", "logprobs", "sampler"))
        prompt, form = request.prompt, request.form
        if not isinstance(form, ChatForm | None):
            raise InputError(f"form is {type(form).__name__}; expected what model.chat_form() returns")
        if request.text is not None:
            check_flag("text", request.text)
        if isinstance(prompt, str):
            prompt = self.require_tokenizer().encode(prompt)
        ids = check_ids(prompt, config)
        reply, default_stops = None, () if structure is None else self.stop_ids
        if request.has_text:
            think = form is not None and form.begins_thoughts(ids)
            splitter = None if form is None else ReplySplitter(form, think=think, calls=request.calls)
            reply = ReplyAssembler(self.require_tokenizer(), stop, splitter)
            default_stops = self.stop_ids if form is None else form.stop_ids
        elif stop:
            raise InputError("stop strings need a text prompt; use stop_ids with a prompt of ids")
        ends = frozenset(default_stops if stop_ids is None else check_tokens("stop_ids", stop_ids, config))
        return Running(
            request,
            ids,
            merged(self.sampling, chosen),
            check_count("max_tokens", options["max_tokens"]),
            ends,
            reply=reply,
            changes=LogitChanges.checked(presence, frequency, options["logit_bias"], config.vocab_size),
            top=None if top is None else integer("of logprobs", top),
            adapter=self.adapters.number(options["lora"]),
            keep=check_keep(options["keep"], config.max_position_embeddings, len(ids)),
            before=self._before,
            own_sampler=None if function is None else OwnSampler(function, chosen),
            constraint=None if structure is None else self.compiler().constraint(structure, ends),  # takes longest
        )

    def draws(self, tokens: SupportsIndex = 1) -> DrawTable:
        """Count the passes for the last of ``tokens`` tokens, by kind; ``.total`` is the number of draw calls.

        In them the reference plan runs all tokens, the fast plan only the last.
        """
        return draw_table(self.plan, tokens)

    def tour(self, text: str | Ids) -> Tour:
        """Run a text or ids, and record what every draw of the last token writes.

        ``tour.draws[17].output`` is an array [rows, columns], and ``tour.write("tour.html")`` writes the page of
        ``glinfer tour``, which notebooks show. Raises InputError if the prompt is invalid or empty.
        """
        self._require_open()
        return recorded(self, text, self._path)

    def verify_textures(self, share: float = 1.0) -> TexturesReport:
        """Check the model's textures bit for bit, and the texture bindings of each draw.

        With ``share=1`` the file is read again, and every texel of every weight, table and constant, padding included,
        is compared with it. A smaller share compares whole lines of texels with checksums of the upload, without the
        file. Each call continues after the last one, so ``ceil(1 / share)`` calls cover every line. Calls between two
        tokens change nothing.

        Raises InputError if ``share`` is not above 0 and at most 1, or if it is 1 and the file is missing or changed.
        """
        self._require_open()
        return self.engine.textures.check(share)

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer; InputError if the model has none."""
        if self.tokenizer is None:
            raise InputError(self._no_tokenizer, "this model has no tokenizer; send token ids")
        return self.tokenizer

    def __reduce__(self) -> NoReturn:
        """Refuse pickles and copies."""
        raise ContextError("a model cannot be pickled or copied, as its GL objects belong to a thread; load it again")

    def close(self) -> None:
        """Release every GL object, those of its sessions too, and the device if this model opened it."""
        if not self._closed:
            if not self.device.closed:
                self.device.activate()  # fails in another thread, before anything changes
            self._closed = True
            try:
                self._own.close(_CLOSED)
                try:
                    self.bound.keep_texels()
                finally:
                    self.bound.release()
                if self._image_encoder is not None:
                    self._image_encoder.release()
            finally:
                if self._owns_device:  # even after an interrupt; releases the rest
                    self.device.close()
