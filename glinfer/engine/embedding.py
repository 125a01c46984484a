"""The part of a model that embeds texts: :meth:`embed` and :meth:`rerank`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from glinfer.closing import Closing
from glinfer.config import ModelConfig
from glinfer.engine.embed import Embedder, Ranked, Vectors, checked, ranked, run_steps, sigmoid
from glinfer.engine.engine import EncodeEngine, Engine
from glinfer.engine.ids import Ids
from glinfer.engine.option_names import named_options
from glinfer.engine.progress import Progress, no_progress
from glinfer.errors import InputError
from glinfer.formats.embedding import Embedding
from glinfer.text.encoder import TextEncoder

if TYPE_CHECKING:
    from glinfer.text.tokenizer import Tokenizer

_NONE = (
    "this model continues texts, and has no vectors of them; expected one that embeds texts, such as all-MiniLM-L6-v2"
)


_NO_SCORES = (
    "this model continues texts, and was not trained to score pairs of them; expected a Qwen3-Reranker, a model with a "
    "classifier, or one that embeds texts"
)


class Embeds(Closing):
    """What a model offers if it embeds texts; others refuse.

    Attributes:
        engine: the bound plans.
        config: the model's shape.
        embedding: the prompts, lengths and so on of a model that embeds texts.
    """

    engine: Engine
    config: ModelConfig
    embedding: Embedding

    @abstractmethod
    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer."""

    @abstractmethod
    def logits(self, prompt: str | Ids) -> npt.NDArray[np.float32]:
        """The logits of the token that follows."""

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
        """The vectors of texts, float32 [n, D]; of one string [D].

        Many texts share a run, and a text gets the same numbers whatever stands beside it. Texts longer than the model
        takes are cut at their end.

        Args:
            texts: strings (which need a tokenizer), or lists of token ids, special ones included.
            prompt_name: the name of one of the model's prompts, such as ``query``, which stands before each text; left
                out, the model's default.
            prompt: the text of a prompt instead.
            dimensions: keep so many numbers of each vector, for models that were trained so (Kusupati et al. 2022).
            normalize: whether vectors have length 1; left out, as the model's files say.
            on_progress: told (finished texts, texts) after each run.

        Raises:
            InputError: the model embeds no texts, or a text or an option cannot be run.
            NumbersError: the model's output is broken.
        """
        self._require_open()
        one = isinstance(texts, str)
        request = self.embedder.request(
            [texts] if isinstance(texts, str) else _listed(texts),
            prompt_name=prompt_name,
            prompt=prompt,
            dimensions=dimensions,
            normalize=normalize,
        )
        found: Vectors = run_steps(self.embedder.steps(request), on_progress)
        return found[0] if one else found

    @named_options()
    def rerank(self, query: str, texts: Iterable[str], *, on_progress: Progress = no_progress) -> list[Ranked]:
        """Texts with their scores for a query, best first.

        A model that was trained on pairs scores each text together with the query; one that embeds texts compares their
        vectors, the query behind its prompt ``query`` and the texts behind ``document`` where it has those. A Qwen 3
        that continues texts is asked with the prompt of Qwen3-Reranker, and a score is the probability of "yes" against
        "no"; other models of that kind refuse.

        Args:
            query: what the texts shall answer.
            texts: the texts.
            on_progress: told (finished texts, texts) after each run.

        Raises:
            InputError: the model does neither, or a text cannot be run.
            NumbersError: the model's output is broken.
        """
        self._require_open()
        if not isinstance(self.engine, EncodeEngine):
            return self._answered(query, _listed(texts), on_progress)
        request = self.embedder.rank_request(query, _listed(texts))
        found: list[Ranked] = run_steps(self.embedder.rank_steps(request), on_progress)
        return found

    def _answered(self, query: str, texts: list[str], on_progress: Progress) -> list[Ranked]:
        """Scores by a model that continues texts: the probability of "yes" against "no" behind the prompt."""
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
            on_progress(len(scores), len(texts))
        return ranked(np.array(scores))

    @cached_property
    def embedder(self) -> Embedder:
        """What checks and encodes texts, which any thread may do, and runs them in steps.

        Raises:
            InputError: the model continues texts.
        """
        if not isinstance(self.engine, EncodeEngine):
            raise InputError(_NONE)
        return Embedder(self.engine.encoder, self.embedding, self.require_tokenizer)


def _listed(texts: Iterable[str | Ids]) -> list[str]:
    """Texts as a list.

    Raises:
        InputError: they are none.
    """
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise InputError(f"the texts are {type(texts).__name__}; expected a list of them")
    return list(texts)  # type: ignore[arg-type]
