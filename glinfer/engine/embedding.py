"""The methods ``embed`` and ``rerank`` of a model."""

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

_NONE = "this model generates text and makes no vectors; expected one that embeds texts, such as all-MiniLM-L6-v2"


_NO_SCORES = (
    "this model generates text and was not trained to score pairs; expected a Qwen3-Reranker, a model with a "
    "classifier, or one that embeds texts"
)


class Embeds(Closing):
    """The methods of an embedding model; other models refuse them.

    Attributes:
        engine: the bound plans.
        config: the model's shape.
        embedding: prompts, lengths and other settings of an embedding model.
    """

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

        * A model trained on pairs scores each text together with the query.
        * An embedding model compares vectors, with its prompts ``query`` and ``document`` if it has them.
        * A Qwen 3 that generates text gets the prompt of Qwen3-Reranker; a score is the probability of "yes" against
          "no".

        Args:
            query: the question that the texts should answer.
            texts: the texts.
            on_progress: called with (finished texts, texts) after each run.

        Raises:
            InputError: the model cannot score texts, or a text is invalid.
            NumbersError: the model's output is broken.
        """
        self._require_open()
        if not isinstance(self.engine, EncodeEngine):
            return self._answered(query, _listed(texts), on_progress)
        request = self.embedder.rank_request(query, _listed(texts))
        found: list[Ranked] = run_steps(self.embedder.rank_steps(request), on_progress)
        return found

    def _answered(self, query: str, texts: list[str], on_progress: Progress) -> list[Ranked]:
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
            on_progress(len(scores), len(texts))
        return ranked(np.array(scores))

    @cached_property
    def embedder(self) -> Embedder:
        """Checks and encodes texts, in any thread, and runs them in steps.

        Raises:
            InputError: the model does not embed texts.
        """
        if not isinstance(self.engine, EncodeEngine):
            raise InputError(_NONE)
        return Embedder(self.engine.encoder, self.embedding, self.require_tokenizer)


def _listed(texts: Iterable[str | Ids]) -> list[str]:
    """Texts as a list.

    Raises:
        InputError: not an iterable of texts.
    """
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise InputError(f"the texts are {type(texts).__name__}; expected a list of them")
    return list(texts)  # type: ignore[arg-type]
