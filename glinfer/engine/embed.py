"""Embeddings: run many texts together in the plan ``encode``, then cut, normalise or rank their vectors."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from glinfer.closing import Closing
from glinfer.config import ModelConfig
from glinfer.engine.engine import EMBEDS, Engine
from glinfer.engine.ids import Ids, check_tokens, check_within, list_of_texts
from glinfer.engine.option_names import named_options
from glinfer.engine.pace import Pace
from glinfer.engine.progress import Progress, no_progress, run_steps
from glinfer.engine.run.decode import DecodeSession, RecomputeSession
from glinfer.engine.textures import WeightSource
from glinfer.errors import InputError, NumbersError
from glinfer.formats.embedding import Embedding
from glinfer.kernels.fused.rows import input_names, row_table
from glinfer.lower.feed import encode_feed, rows_of
from glinfer.lower.fused.encode import EMBEDDINGS, TEXTS
from glinfer.lower.fused.rows import ROWS
from glinfer.lower.options import PlanOptions
from glinfer.program.session import Session
from glinfer.text.encoder import EncodedText, TextEncoder
from glinfer.text.tokenizer import Tokenizer

Vectors = npt.NDArray[np.float32]


class EncodeEngine(Engine):
    """Runs checked texts through the plan ``encode``; the texts of a run do not affect each other."""

    def __init__(self, options: PlanOptions, bound: Session, source: WeightSource) -> None:
        """Take over the bound plan."""
        super().__init__(options, bound, source)
        self.config, self._targets = options.config, options.kernels.rows_per_draw
        self._rows, self._texts = (row_table(bound.plan.table[name].shape[0]) for name in (ROWS, TEXTS))
        self._names = [f"{EMBEDDINGS}.{number}" for number in range(len(input_names(self._targets)))]
        self._pace = Pace(bound, self._targets)
        self.width = bound.plan.table[self._names[0]].shape[1]

    def _new_session(self, own: bool) -> DecodeSession:
        return RecomputeSession(self.config, self._refused)

    def _refused(self, *_: object, **__: object) -> NoReturn:
        raise InputError(EMBEDS)

    scheduler = _new_scorer = forward = _refused

    def steps(
        self, texts: Sequence[EncodedText], skipped: Sequence[int] | None = None
    ) -> Generator[tuple[int, int], None, Vectors]:
        """Yield (finished texts, texts) after each run, and return the vectors; NumbersError for NaN or an infinity.

        Vectors are float32 [texts, width], without the first ``skipped`` tokens of each text, by default none.
        """
        skipped = [0] * len(texts) if skipped is None else skipped
        found, done = np.zeros((len(texts), self.width), np.float32), 0
        for run in self._runs(texts):
            self.bound.require_alive()
            since = time.perf_counter()
            positions = 0 if self.config.family.rotary else self.config.max_position_embeddings
            chosen, first = [texts[index] for index in run], [skipped[index] for index in run]
            tables, pooling = (self._rows, self._texts), self.config.pooling
            given = encode_feed(*tables, chosen, first, self._targets, positions=positions, pooling=pooling)
            self.bound.write(ROWS, self._rows)
            self.bound.write(TEXTS, self._texts)
            self.bound.run(given, flush_every=self.options.kernels.flush_every)
            self._pace.measure(int(given["rows"]), len(self._rows), since)
            found[run] = self.bound.read_interleaved(self._names, len(run))[:, : self.width]
            if not np.isfinite(found[run]).all():
                raise NumbersError(
                    "a vector contains NaN or infinity; expected finite numbers: the model's output is broken"
                )
            done += len(run)
            yield done, len(texts)
        return found

    def _runs(self, texts: Sequence[EncodedText]) -> Iterator[list[int]]:
        """The indices of the texts of each run, longest first, so that a run has texts of similar length."""
        lengths = [rows_of(len(text.ids), self._targets) for text in texts]
        run, used = list[int](), 0
        for index in sorted(range(len(texts)), key=lambda each: -len(texts[each].ids)):
            if run and (used + lengths[index] > self._pace.rows(len(self._rows)) or len(run) == len(self._texts)):
                yield run
                run, used = [], 0
            run.append(index)
            used += lengths[index]
        if run:
            yield run


@dataclass(frozen=True)
class Ranked:
    """The index of a text and its score for a query; higher is better."""

    index: int
    score: float


@dataclass(frozen=True)
class EmbedRequest:
    """Checked texts to embed: their tokens, the first tokens of each that its vector leaves out, and the vectors' form.

    ``dimensions`` is the number of elements to keep, None for all; ``unit`` scales vectors to length 1.
    """

    encoded: list[EncodedText]
    skipped: list[int]
    dimensions: int | None
    unit: bool

    @property
    def tokens(self) -> int:
        """Tokens of all texts."""
        return sum(len(text.ids) for text in self.encoded)


class Embedder:
    """Computes vectors or scores of texts, with the model's prompts and tokenizer."""

    def __init__(self, encoder: EncodeEngine, embedding: Embedding, tokenizer: Callable[[], Tokenizer]) -> None:
        """Use ``encoder`` with the settings ``embedding``; ``tokenizer`` is called at first use."""
        self.encoder, self.embedding, self._tokenizer = encoder, embedding, tokenizer

    @cached_property
    def texts(self) -> TextEncoder:
        """Encodes texts, cut to the model's longest text."""
        most, config = self.embedding.most_tokens, self.encoder.config
        context = config.max_position_embeddings
        return TextEncoder(self._tokenizer(), min(most or context, context), lower=self.embedding.lower)

    def request(
        self,
        texts: Sequence[str | Sequence[int]],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
    ) -> EmbedRequest:
        """Check and encode a call of :meth:`glinfer.engine.model.Model.embed`; any thread may call this."""
        if self.embedding.ranks:
            raise InputError("this model scores pairs of texts and makes no vectors; use rerank")
        if dimensions is not None:
            dimensions = check_within("dimensions", dimensions, self.encoder.width)
        before = self.prompt(prompt_name, prompt)
        encoded, skipped = self.encoded(texts, before), [self._uncounted(before)] * len(texts)
        unit = self.embedding.normalizes if normalize is None else normalize
        return EmbedRequest(encoded, skipped, dimensions, unit)

    def _uncounted(self, before: str) -> int:
        """The number of prompt tokens left out of the vectors."""
        return 0 if self.embedding.counts_prompt or not before else self.texts.length(before)

    def steps(self, request: EmbedRequest) -> Generator[tuple[int, int], None, Vectors]:
        """Yield (finished texts, texts) after each run, and return the vectors."""
        vectors = yield from self.encoder.steps(request.encoded, request.skipped)
        return finished(vectors, request.dimensions, unit=request.unit)

    def prompt(self, name: str | None, text: str | None) -> str:
        """The prompt before each text: one of the model's by name, or a given text; InputError if there is none."""
        prompts = self.embedding.prompts
        if text is not None:
            if name is not None:
                raise InputError("found both prompt_name and prompt; give one of them")
            if not isinstance(text, str):
                raise InputError(f"the prompt is {type(text).__name__}; expected a str")
            return text
        chosen = self.embedding.default_prompt if name is None else name
        if name is not None and name not in prompts:
            known = f"expected {' or '.join(map(repr, prompts))}" if prompts else "this model names no prompts"
            raise InputError(f"prompt_name is {name!r}; {known}; for a text of your own, use prompt=… (--prompt)")
        return prompts.get(chosen, "")

    def encoded(self, texts: Sequence[str | Sequence[int]], before: str = "") -> list[EncodedText]:
        """The tokens of texts, with the prompt ``before`` each string; token ids get no prompt.

        Raises InputError for other types, for texts that are empty or too long, and for invalid ids.
        """
        config, found = self.encoder.config, list[EncodedText]()
        strings = [f"{before}{text}" for text in texts if isinstance(text, str)]
        whole = iter(self.texts.texts(strings) if strings else ())  # lists of ids need no tokenizer
        for index, text in enumerate(texts):
            if isinstance(text, str):
                each = next(whole)
            elif isinstance(text, (list, tuple)):
                ids = check_tokens(f"text {index}", text, config)
                each = EncodedText(ids, [0] * len(ids))
            else:
                raise InputError(f"text {index} is {type(text).__name__}; expected a str, or token ids")
            count, most = len(each.ids), config.max_position_embeddings
            if not 1 <= count <= most:
                raise InputError(f"text {index} has {count} tokens; expected 1 to {most}")
            found.append(each)
        return found

    def rank_request(self, query: str, texts: Sequence[str]) -> EmbedRequest:
        """Check and encode a call of :meth:`glinfer.engine.model.Model.rerank`; any thread may call this."""
        checked(query, texts)
        if not self.embedding.ranks:
            asked = self._prompt_among("query")
            kept = self._prompt_among("document", "passage")
            encoded = [*self.encoded([query], asked), *self.encoded(texts, kept)]
            skipped = [self._uncounted(asked), *([self._uncounted(kept)] * len(texts))]
            return EmbedRequest(encoded, skipped, None, unit=True)
        if self.encoder.width != 1:
            raise InputError(f"this model gives {self.encoder.width} scores for a pair of texts; expected one")
        form = self.embedding.pair
        pairs = self.texts.framed(form, query, texts) if form else self.texts.pairs(query, texts)
        return EmbedRequest(pairs, [0] * len(texts), None, unit=False)

    def _prompt_among(self, *names: str) -> str:
        """The model's first prompt among these names, or its default."""
        prompts = self.embedding.prompts
        return next((prompts[name] for name in names if name in prompts), self.prompt(None, None))

    def rank_steps(self, request: EmbedRequest) -> Generator[tuple[int, int], None, list[Ranked]]:
        """Yield (finished texts, texts) after each run, and return the ranked texts, best first."""
        found = yield from self.steps(request)
        if not self.embedding.ranks:
            cosines = found[1:].astype(np.float64) @ found[0].astype(np.float64)
            return ranked(cosines.clip(-1.0, 1.0))  # float32 vectors of length 1 may be a little longer
        scores = found[:, 0].astype(np.float64)
        return ranked(sigmoid(scores) if self.embedding.squashes else scores)


def checked(query: str, texts: Sequence[str]) -> None:
    """Refuse a query or texts that are not strings with an InputError that names the first."""
    for index, text in enumerate((query, *texts)):
        if not isinstance(text, str):
            what = f"text {index - 1}" if index else "the query"
            raise InputError(f"{what} is {type(text).__name__}; expected a str")


def sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """1 / (1 + exp(-x)), without overflow."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -x)))


def ranked(scores: npt.NDArray[Any]) -> list[Ranked]:
    """Texts with their scores, best first; ties keep their order."""
    return [Ranked(int(index), float(scores[index])) for index in np.argsort(-scores, kind="stable")]


def finished(vectors: Vectors, dimensions: int | None, *, unit: bool) -> Vectors:
    """Cut vectors to their first ``dimensions`` elements, and scale them to length 1 with ``unit``."""
    cut = vectors if dimensions is None else vectors[:, :dimensions]
    if not unit:
        return cut
    # As PyTorch's normalize: a zero vector stays zero.
    lengths = np.sqrt(np.einsum("td,td->t", cut, cut, dtype=np.float64))
    return np.asarray(cut / np.maximum(lengths, 1e-12)[:, None], dtype=np.float32)


_NO_SCORES = (
    "this model generates text and was not trained to score pairs; expected a Qwen3-Reranker, a model with a "
    "classifier, or one that embeds texts"
)


class Embeds(Closing):
    """The methods of an embedding model; other models refuse them."""

    engine: Engine
    config: ModelConfig
    embedding: Embedding

    @abstractmethod
    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer."""

    @abstractmethod
    def logits(self, prompt: str | Ids) -> npt.NDArray[np.float32]:
        """The logits of the next token."""

    @named_options()
    def embed(
        self,
        texts: str | Iterable[str | Ids],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        dimensions: int | None = None,
        normalize: bool | None = None,
        on_progress: Progress = no_progress,
    ) -> Vectors:
        """The vectors of texts, float32 [n, D]; for one string [D].

        Many texts share a run; a vector does not depend on the other texts. Texts that exceed the model's limit are cut
        at their end.

        Args:
            texts: strings (need a tokenizer), or lists of token ids that include special tokens.
            prompt_name: the name of the model's prompt to put before each text, such as ``query``; by default the
                model's default prompt.
            prompt: the text of a prompt instead.
            dimensions: elements of each vector to keep, for models trained for it (Kusupati et al. 2022).
            normalize: whether vectors have length 1; by default as the model's files say.
            on_progress: called with (finished texts, texts) after each run.

        Raises:
            InputError: the model embeds no texts, or a text or an option is invalid.
            NumbersError: the model's output is broken.
        """
        self._require_open()
        one = isinstance(texts, str)
        request = self.embedder.request(
            [texts] if isinstance(texts, str) else list_of_texts(texts),
            prompt_name=prompt_name,
            prompt=prompt,
            dimensions=dimensions,
            normalize=normalize,
        )
        found = run_steps(self.embedder.steps(request), on_progress)
        return found[0] if one else found

    @named_options()
    def rerank(self, query: str, texts: Iterable[str], *, on_progress: Progress = no_progress) -> list[Ranked]:
        """Texts with their scores for a query, best first.

        * A model trained on pairs scores each text together with the query.
        * An embedding model compares vectors, with its prompts ``query`` and ``document`` if it has them.
        * A Qwen 3 that generates text gets the prompt of Qwen3-Reranker; a score is the probability of "yes" against
          "no".

        ``on_progress`` is called with (finished texts, texts) after each run.

        Raises:
            InputError: the model cannot score texts, or a text is invalid.
            NumbersError: the model's output is broken.
        """
        self._require_open()
        if not isinstance(self.engine, EncodeEngine):
            return run_steps(self._answer_steps(query, list_of_texts(texts)), on_progress)
        request = self.embedder.rank_request(query, list_of_texts(texts))
        return run_steps(self.embedder.rank_steps(request), on_progress)

    def _answer_steps(self, query: str, texts: list[str]) -> Generator[tuple[int, int], None, list[Ranked]]:
        """Scores of a model that generates text: the probability of "yes" against "no" after the prompt."""
        tokenizer = self.require_tokenizer()
        answers = [tokenizer.encode_plain(word) for word in ("yes", "no")]
        form = self.config.family.rerank_prompt
        if not form or any(len(ids) != 1 for ids in answers):
            raise InputError(_NO_SCORES)
        checked(query, texts)
        (yes,), (no,) = answers
        most, scores = self.config.max_position_embeddings, []
        for each in TextEncoder(tokenizer, most).framed(form, query, texts):
            logits = self.logits(each.ids).astype(np.float64)
            scores.append(sigmoid(logits[yes] - logits[no]))
            yield len(scores), len(texts)
        return ranked(np.array(scores))

    @cached_property
    def embedder(self) -> Embedder:
        """Checks and encodes texts, in any thread, and runs them in steps; InputError if the model embeds none."""
        if not isinstance(self.engine, EncodeEngine):
            raise InputError(
                "this model generates text and makes no vectors; expected one that embeds texts, such as minilm"
            )
        return Embedder(self.engine, self.embedding, self.require_tokenizer)
