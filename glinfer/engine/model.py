"""The Model of the public API: text or ids in, text, ids, logits or probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex, overload
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from glinfer.engine.batch import MAX_SLOTS, SchedulerOptions
from glinfer.engine.capture import Inspected
from glinfer.engine.chat import ChatOptions, Chatting
from glinfer.engine.decode import DecodeSession
from glinfer.engine.defaults import merged
from glinfer.engine.drafts import ModelDrafts, Ngrams, RunTimes, Speculation, check_speculation
from glinfer.engine.embedding import Embeds
from glinfer.engine.engine import EMBEDS, Engine
from glinfer.engine.ids import Ids, check_callback, check_count, check_ids, check_keep, check_stop_ids, check_tokens
from glinfer.engine.option_names import named_options
from glinfer.engine.own_sampler import OwnSampler, SamplerFunction
from glinfer.engine.requests import BatchRequest, BatchResult, Running, check_request
from glinfer.engine.sampler import NEUTRAL, SamplingOptions
from glinfer.engine.scheduler import Scheduler
from glinfer.engine.score import TextScore
from glinfer.engine.stream import CHUNK, GeneratedText, TextStream, TokenStream, require_complete
from glinfer.engine.textures import TexturesReport
from glinfer.errors import ContextError, InputError, StructureError
from glinfer.formats.embedding import Embedding
from glinfer.formats.sampling import NAMES
from glinfer.models.plan import DrawTable, Plan, draw_table
from glinfer.models.session import Session
from glinfer.structured.compiler import Compiler
from glinfer.structured.structure import ERROR, structure_of, wants_whole
from glinfer.text.chat import ChatForm
from glinfer.text.labels import token_label
from glinfer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

_CLOSED = "this model was closed; load it again"


class StreamOptions(ChatOptions, total=False):
    """The options of :meth:`Model.stream`, which explains them, and of :meth:`Model.generate`."""

    stop_ids: Ids | None
    keep: SupportsIndex


@dataclass(frozen=True)
class Loaded:
    """The parts of a model.

    Attributes:
        engine: the bound plan and its methods.
        tokenizer: the tokenizer, or None.
        no_tokenizer_reason: the reason why there is none.
        stop_ids: the ids that end a text by default.
        owns_device: whether the device was opened for this model.
        sampling: the options for choosing tokens where a caller gives none.
        find_form: finds the form of the model's chats, given ``system`` and ``kwargs``; or None.
        embedding: what a model that embeds texts does beside its passes.
    """

    engine: Engine
    tokenizer: Tokenizer | None
    no_tokenizer_reason: str
    stop_ids: tuple[int, ...]
    owns_device: bool
    sampling: SamplingOptions = NEUTRAL
    find_form: Callable[..., ChatForm] | None = None
    embedding: Embedding = field(default_factory=Embedding)


class Model(Inspected, Embeds, Chatting):
    """A checkpoint bound to a device; made by :func:`glinfer.load`.

    Streams, :meth:`logits` and :meth:`probs` share one sequence of tokens: with the fast plan, what the last use left
    in it and the next one begins with is not computed again. :meth:`session` makes sequences of their own.

    Attributes:
        config: the model's shape.
        tokenizer: the tokenizer, or None when there is none and only ids can be used.
        device: the open OpenGL device.
        engine: the bound plans and their methods.
        bound: the plan, bound to the device.
        weights: the format of the weights, such as ``f32``.
        cache: that of keys and values.
        kernels: how the fast plan's passes are shaped; the reference plan has no such choice.
        sampling: the options for choosing tokens where a caller gives none, see
            :func:`glinfer.engine.defaults.default_sampling`; assign a SamplingOptions to change them.
        embedding: the prompts, lengths and so on of a model that embeds texts.
        adapters: the LoRA adapters that it was loaded with; ``adapters.names`` has their names.
    """

    def __init__(self, loaded: Loaded, *, strict: bool = False) -> None:
        """Use :func:`load_model`."""
        self.engine, self.tokenizer, options = loaded.engine, loaded.tokenizer, loaded.engine.options
        self.config, self.weights, self.cache, self.kernels = (
            options.config,
            options.weights,
            options.cache,
            options.kernels,
        )
        self.adapters = options.adapters
        self.bound: Session = loaded.engine.bound
        self.device = self.bound.device
        self.engine.nan_guard.strict = strict
        self._no_tokenizer_reason = loaded.no_tokenizer_reason
        self._stop_ids, self.sampling = loaded.stop_ids, loaded.sampling
        self._owns_device, self._find_form = loaded.owns_device, loaded.find_form
        self._closed, self.embedding = False, loaded.embedding
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
    def plan(self) -> Plan:
        """The bound plan."""
        return self.bound.plan

    @property
    def sampling(self) -> SamplingOptions:
        """The options for choosing tokens where a caller gives none."""
        return self._sampling

    @sampling.setter
    def sampling(self, options: SamplingOptions) -> None:
        if not isinstance(options, SamplingOptions):
            found = type(options).__name__
            raise InputError(f"sampling is {found}; expected options such as glinfer.SamplingOptions(temperature=0)")
        self._sampling = options

    @property
    def _before(self) -> list[int]:
        """What the tokenizer puts before every text."""
        return [] if self.tokenizer is None else self.tokenizer.around[0]

    def session(self, *, keep: SupportsIndex = 0) -> DecodeSession:
        """A new sequence of tokens over the same weights, empty; close it, or use it in a ``with`` block.

        Args:
            keep: how many of the first tokens stay when the context is full, beside what the tokenizer puts before
                every text.

        Raises:
            ContextError: the model was closed.
            InputError: no other token would fit the context.
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
        """Refuse a closed model, and one that embeds texts and continues none."""
        self._require_open()
        if self.config.embeds:
            raise InputError(EMBEDS)

    def _ids_of(self, prompt: str | Ids) -> list[int]:
        """The ids of a prompt, checked."""
        self._require_tokens()
        return check_ids(self.require_tokenizer().encode(prompt) if isinstance(prompt, str) else prompt, self.config)

    def _require_alone(self) -> None:
        """Refuse a step of several sequences while the model is closed, watched or patched."""
        self._require_open()
        self._require_unobserved("a scheduler")

    def forward(self, prompt: str | Ids) -> int:
        """Run one pass of the reference plan over the whole sequence; returns the draw calls issued.

        Raises:
            InputError: a prompt that the model cannot run, or another plan, which runs token by token.
        """
        self._require_open()
        return self.engine.forward(self._ids_of(prompt))

    def logits(self, prompt: str | Ids, *, lora: str | None = None) -> npt.NDArray[np.float32]:
        """Logits [vocab] of the token that follows ``prompt``, text or ids, float32; ``lora`` as in :meth:`stream`."""
        self._require_open()
        self._own.use_adapter(self.adapters.number(lora))
        self._own.hold(self._ids_of(prompt))
        return self._own.logits()

    def probs(self, prompt: str | Ids, *, lora: str | None = None) -> npt.NDArray[np.float32]:
        """Softmax probabilities [vocab] of the token after ``prompt``, float32; arguments as in :meth:`logits`."""
        self._require_open()
        self._own.use_adapter(self.adapters.number(lora))
        self._own.hold(self._ids_of(prompt))
        return self._own.probs()

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
            max_tokens: how many tokens at most. When the context is full the oldest half of its tokens is dropped,
                see ``stats.dropped``, and generation goes on. What the tokenizer puts before every text, such as
                ``<s>``, stays.
            temperature: 0 takes the likeliest token every time.
            top_k: only the k likeliest tokens (0: all).
            top_p: only the likeliest tokens whose probabilities reach this sum.
            min_p: only tokens at least this fraction as likely as the likeliest.
            repetition_penalty: above 1 makes tokens already in the sequence less likely.
            seed: the same seed gives the same tokens; None draws a new one.
            stop: a string that ends a text stream, or several; they are not part of the text.
            stop_ids: ids that end the stream (default: for text the tokenizer's ``<|end|>``, or the ``eos_token_id`` of
                a Hugging Face model; none for ids).
            on_end: called once when the stream ends.
            speculate: ``ngram`` guesses that what followed the newest tokens earlier in the sequence follows them
                again, and runs the guesses together. The text stays the same; one that copies from its prompt comes
                faster.
            draft: a smaller model with the same tokenizer, which guesses instead.
            json_schema: the text is JSON of this schema: an object, its JSON as text, or a class of pydantic's.
            regex: the text matches this regular expression as a whole.
            grammar: the text is one of this grammar, in llguidance's form of Lark.
            choices: the text is one of these.
            incomplete: what becomes of a text that ends before it has its structure: ``error`` raises StructureError,
                which has the ``text``, and ``partial`` lets it be; ``stats.complete`` says so.
            lora: the name of one of the adapters that the model was loaded with, or ``base`` for none; left out, the
                one that :func:`glinfer.load` was given without a name, else none.
            keep: how many of the first tokens stay when the context is full; -1 keeps the whole prompt.
            sampler: a function that chooses every token: it gets the logits, float32 [vocab] with -inf for tokens that
                a structure forbids, and the ids so far, and returns an id. What it raises comes through. All logits
                are read back for every token, and none is chosen ahead on the GPU.

        At most one of json_schema, regex, grammar and choices may be given. They need a tokenizer, and do not go with
        ``speculate`` and ``draft``. The model's own end tokens may end the text where its structure allows that, those
        of a prompt of ids too.

        Of temperature, top_k, top_p, min_p and repetition_penalty, what is left out or None is as in :attr:`sampling`.

        A stream that is not read to its end goes on holding what it holds: close it, or use it in a ``with``
        block.

        Raises:
            InputError: a prompt or an option that cannot be run.
        """
        self._require_open()
        given = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "seed": seed,
        }
        sampling = merged(self.sampling, given)
        own_sampler = None if sampler is None else OwnSampler(sampler, given)
        if own_sampler is not None and (speculate is not None or draft is not None):
            raise InputError("sampler does not go with guesses; leave out speculate and draft")
        is_text = isinstance(prompt, str)
        if stop and not is_text:
            raise InputError("stop strings need a text prompt; use stop_ids with a prompt of ids")
        structure = structure_of({"json_schema": json_schema, "regex": regex, "grammar": grammar, "choices": choices})
        if structure is not None and (speculate is not None or draft is not None):
            raise InputError(f"{structure.kind} does not go with guesses; leave out speculate and draft")
        whole = wants_whole(incomplete)
        default_stops = self._stop_ids if is_text or structure is not None else ()
        ends = default_stops if stop_ids is None else check_stop_ids(stop_ids, self.config)
        ids = self._ids_of(prompt)
        tokens = TokenStream(
            self._own,
            ids,
            sampling,
            max_tokens=max_tokens,
            stop_ids=ends,
            on_end=on_end,
            speculation=self._speculation(speculate, draft),
            constraint=None if structure is None else self.compiler().constraint(structure, ends),
            whole=whole and not is_text,
            adapter=self.adapters.number(lora),
            keep=check_keep(keep, self.config.max_position_embeddings, len(ids)),
            sampler=own_sampler,
        )
        return TextStream(tokens, self.require_tokenizer(), stop, whole=whole) if is_text else tokens

    def compiler(self) -> Compiler:
        """What compiles structures for the tokens of this model, and keeps them; any thread may use it.

        Raises:
            InputError: there is no tokenizer.
        """
        if self._compiler is None:
            self._compiler = Compiler(self.require_tokenizer(), self.config.vocab_size)
        return self._compiler

    def _speculation(self, speculate: str | None, draft: Chatting | None) -> Speculation | None:
        """What drafts the tokens of one stream, or None."""
        if speculate is None and draft is None:
            return None
        check_speculation(speculate, draft)
        if self.plan.name != "fast":
            raise InputError("drafts need the fast plan; load the model without plan='reference', or leave them out")
        if draft is None:
            return Speculation(Ngrams(), self._run_times)
        if not isinstance(draft, Model) or draft is self:
            found = "the model itself" if draft is self else type(draft).__name__
            raise InputError(f"the draft is {found}; expected another model that glinfer.load has opened")
        draft._require_open()
        self._require_drafts_of(draft)
        vocab = draft.config.vocab_size
        drafter = ModelDrafts(draft._own, draft.config.max_position_embeddings, vocab, self.config.vocab_size)
        return Speculation(drafter, self._run_times)

    def _require_drafts_of(self, draft: Model) -> None:
        """Refuse a draft model whose ids mean something else."""
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

    def _stream_ids(self, ids: Ids, **options: Any) -> TokenStream:
        return self.stream(ids, **options)

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

        The string knows its ``finish_reason``, ``tokens`` and ``stats``, see :class:`GeneratedText`.

        For several prompts, in a list, an array of rows or any iterable in order, a list of continuations, decoded
        together; each is what it would be alone. No prompts give an empty list.
        """
        if isinstance(prompt, str):
            text = self.stream(prompt, **options)
            text.chunk = CHUNK
            return GeneratedText("".join(text), text.stats)
        listed: Any = prompt
        ordered = isinstance(prompt, Iterable) and not isinstance(prompt, (bytes, bytearray, Mapping, set, frozenset))
        if ordered and getattr(prompt, "ndim", True):  # an array without axes is no iterable
            listed = list(prompt)
            if all(isinstance(each, Iterable) for each in listed):
                return self._generate_many(listed, options)
        ids = self.stream(listed, **options)
        ids.chunk = CHUNK
        return list(ids)

    def _generate_many(
        self, prompts: Sequence[str | Ids], options: StreamOptions
    ) -> list[GeneratedText] | list[list[int]]:
        then = options.pop("on_end", None)
        check_callback("on_end", then)
        found: list[Any] = [None] * len(prompts)
        whole = wants_whole(options.get("incomplete", ERROR))
        for result in self.batch([BatchRequest(each, options, place) for place, each in enumerate(prompts)]):
            assert isinstance(result.request.key, int)
            if whole:
                require_complete(result.stats, result.text)
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
        """Continue many prompts together; results come in the order in which they are finished.

        Each is what :meth:`stream` gives alone with the same options and seed. When one is finished the next takes its
        place. Nothing is run, and no memory taken, before the first result is asked for. A list is checked as a whole
        at once, and its longest prompt says how large the caches are; of anything else each request is taken and
        checked when there is a place for it, and every cache has room for a whole context, or for ``longest``.

        Args:
            requests: the prompts with their options.
            slots: how many sequences at once at most; left out, 32 or as many as there are.
            memory: bytes of texture memory for their caches; left out, 1 GiB.
            longest: how many tokens the longest sequence has, prompt and continuation; left out, see above.

        Raises:
            InputError: a prompt or an option that cannot be run, no memory for a single sequence, or the reference
                plan, which keeps no keys and values.
        """
        bounds = self._bounds("batch", slots=slots, memory=memory, longest=longest)
        if isinstance(requests, (list, tuple)):
            running = [self.checked(request, f"request {place}: ") for place, request in enumerate(requests)]
            if not running:
                return iter(())
            bounds.setdefault("longest", max(len(each.prompt) + each.max_tokens for each in running))
            bounds["slots"] = min(bounds.get("slots", MAX_SLOTS), len(running))
            waiting = iter(running)
        elif isinstance(requests, Iterable):
            waiting = map(self.checked, requests)
        else:
            raise InputError(f"the requests are {type(requests).__name__}; expected a list or an iterator of them")
        options = SchedulerOptions(**bounds)
        make = self.engine.scheduler(self.checked, self._require_alone, options)

        def results() -> Iterator[BatchResult]:
            # In here, so that an iterator that is never asked for anything holds nothing.
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
        """Continue prompts that come and go at any time: insert, next, cancel; use it in a ``with`` block.

        Each gives what :meth:`stream` gives alone with the same options and seed, whatever else runs. What does not fit
        waits. A prompt that begins like one before, such as with the same system prompt, is run from where they part.

        Args:
            slots: how many sequences at once at most; left out, 32.
            memory: bytes of texture memory for their caches; left out, 1 GiB.
            longest: tokens of the longest sequence, prompt and continuation; left out, a whole context.
            piece: how many tokens of prompts are run between two tokens of the other sequences; left out, 512 or what
                the kernels say. Fewer keep the others going evenly, more take prompts in faster.

        Raises:
            InputError: a number is 0, no memory for a single sequence, or the reference plan, which keeps no keys and
                values.
        """
        bounds = self._bounds("scheduler", slots=slots, memory=memory, longest=longest, piece=piece)
        return self.engine.scheduler(self.checked, self._require_alone, SchedulerOptions(**bounds))()

    def _bounds(self, what: str, **given: SupportsIndex | None) -> dict[str, int]:
        """Check the given numbers, and that sequences can run together now; leaves out those that are None."""
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
        """Score texts: the log-probability of every token but the first, given those before it.

        Many tokens are run at once, and short texts together.

        Args:
            texts: one string (needs a tokenizer), which gives one score; or a list of strings, or of lists of ids. Each
                has at least two tokens.
            stride: a text longer than the context is read in windows, each beginning so many tokens after the one
                before; left out, half of the context.
            lora: as in :meth:`stream`.

        Raises:
            InputError: a text that cannot be run, or the reference plan, which keeps no keys and values.
        """
        self._require_tokens()
        self._require_unobserved("score")
        if isinstance(texts, str):
            return self.score([texts], stride=stride, lora=lora)[0]
        if isinstance(texts, bytes) or not isinstance(texts, Iterable):
            raise InputError(f"score takes a text or a list of texts, and found {type(texts).__name__}")
        ids = []
        for place, text in enumerate(texts):
            tokens: Ids = self.require_tokenizer().encode(text) if isinstance(text, str) else text
            ids.append(check_tokens(f"text {place}", tokens, self.config))
        if self.plan.name != "fast":
            raise InputError("score needs the fast plan; load the model without plan='reference'")
        adapter = self.adapters.number(lora)
        scores = self.engine.score(ids, stride=stride, adapter=adapter) if ids else []
        if (tokenizer := self.tokenizer) is None:
            return scores
        named = ({*each.ids, *each.likeliest.tolist()} for each in scores)
        labels = [{token: token_label(token, tokenizer) for token in tokens} for tokens in named]
        return [replace(score, labels=each) for score, each in zip(scores, labels, strict=True)]

    def checked(self, request: BatchRequest, which: str = "") -> Running:
        """A request that is ready for :meth:`glinfer.engine.scheduler.Scheduler.add`; any thread may call this.

        Raises:
            InputError: a prompt or an option that cannot be run; ``which`` begins the message.
        """
        if self.config.embeds:
            raise InputError(f"{which}{EMBEDS}")
        if not isinstance(request, BatchRequest):
            raise InputError(f"{which}a request is {type(request).__name__}; expected BatchRequest(prompt, options)")
        try:
            tokenizer = self.require_tokenizer() if request.has_text or isinstance(request.prompt, str) else None
            return check_request(
                request,
                self.config,
                tokenizer,
                self._stop_ids,
                self.sampling,
                self.compiler,
                self.adapters,
                self._before,
            )
        except StructureError as error:
            raise StructureError(f"{which}{error}") from None
        except InputError as error:
            raise InputError(f"{which}{error}", f"{which}{error.public}") from None

    def draws(self, tokens: SupportsIndex = 1) -> DrawTable:
        """Count the passes for the last of ``tokens`` tokens, by kind, with ``.total`` draw calls.

        The reference plan runs all of the tokens in them again, the fast plan that one alone.
        """
        return draw_table(self.plan, tokens)

    def verify_textures(self, share: float = 1.0) -> TexturesReport:
        """Compare the textures that this model draws with, bit for bit, and what each of its draws samples.

        With ``share=1`` every texel of every weight, table and constant, padding included, is compared with what the
        file says, which is read again. A smaller share compares whole lines of texels with checksums that were kept
        when the weights were uploaded, and needs no file: each call goes on where the last one ended, so that
        ``ceil(1 / share)`` calls see every line. Both may be called between any two tokens, and change nothing.

        Args:
            share: above 0, at most 1; the part of the texture memory to look at.

        Raises:
            InputError: no such share; or with ``share=1``, the file is gone or was changed since it was loaded.
        """
        self._require_open()
        return self.engine.textures.check(share)

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            InputError: there is none.
        """
        if self.tokenizer is None:
            raise InputError(self._no_tokenizer_reason, "this model has no tokenizer; send token ids")
        return self.tokenizer

    def close(self) -> None:
        """Release every GL object, those of its sessions too, and the device if this model opened it.

        Harmless when repeated.
        """
        if not self._closed:
            if not self.device.closed:
                self.device.activate()  # from another thread this fails, and the model stays as it was
            self._closed = True
            try:
                self._own.close(_CLOSED)
                self.bound.release()
            finally:
                if self._owns_device:  # after a Ctrl-C too: it releases whatever is left
                    self.device.close()
