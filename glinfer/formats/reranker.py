"""Rerankers that answer "yes" or "no": the probability of "yes" against "no" as the score of one row.

Qwen3-Reranker continues the question whether a text answers a query. softmax([yes, no])[0] is sigmoid(yes - no), so the
difference of the two rows of its head is a classifier with a single output, and nothing else of the head is needed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.formats.checkpoint import Checkpoint
from glinfer.formats.packed import PackedTensor


def of_two_tokens(checkpoint: Checkpoint, yes: int, no: int) -> Checkpoint:
    """A model that continues texts, as one that scores how much likelier it finds one token than another behind a pair.

    Raises:
        FormatError: there is no such token, or the prompt of the model's family is not known.
    """
    config = checkpoint.config
    prompt = config.family.rerank_prompt
    if not prompt or not (0 <= yes < config.vocab_size and 0 <= no < config.vocab_size):
        raise FormatError(
            f"{checkpoint.source}: its score is that of tokens {yes} and {no} of a {config.model_type} model of "
            f"{config.vocab_size} tokens; expected two of a model whose prompt for this is known, such as Qwen 3"
        )
    name = f"{config.family.names.vocabulary(tied=config.tie_word_embeddings)}.weight"
    if name in checkpoint.packed:
        held = checkpoint.packed[name]
        rows = PackedTensor(held.format, held.blocks[[yes, no]]).floats()
    else:
        rows = checkpoint.tensors[name][[yes, no]]
    return with_classifier(checkpoint, rows[0], rows[1], prompt)


def with_classifier(
    checkpoint: Checkpoint, yes: npt.NDArray[np.float32], no: npt.NDArray[np.float32], pair: str
) -> Checkpoint:
    """The same model with the difference of two rows [D] as its classifier, on the last token; the head is left out."""
    config = replace(checkpoint.config, pooling="lasttoken", dense=((1, False, "none"),), tie_word_embeddings=True)
    row = (yes.astype(np.float64) - no).astype(np.float32)[None]
    dropped = {_head(checkpoint.config), _head(config, dense=True)}
    tensors = {name: each for name, each in checkpoint.tensors.items() if name not in dropped}
    packed = {name: each for name, each in checkpoint.packed.items() if name not in dropped}
    tensors[_head(config, dense=True)] = row
    embedding = replace(checkpoint.embedding, ranks=True, squashes=True, normalizes=False, pair=pair)
    return replace(checkpoint, config=config, tensors=tensors, packed=packed, embedding=embedding)


def _head(config: ModelConfig, *, dense: bool = False) -> str:
    names = config.family.names
    return f"{names.of('dense', None, '0') if dense else names.head}.weight"
