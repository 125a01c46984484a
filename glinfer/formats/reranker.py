"""Rerankers that answer "yes" or "no", as classifiers with one output: the probability of "yes".

Qwen3-Reranker answers whether a text fits a query. Since softmax([yes, no])[0] is sigmoid(yes - no), the difference of
two rows of the head is a classifier with one output. The rest of the head is not needed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.formats.checkpoint import Checkpoint
from glinfer.formats.tensors import head_weight


def of_two_tokens(checkpoint: Checkpoint, yes: int, no: int) -> Checkpoint:
    """Convert a generative model to a reranker that scores token ``yes`` against token ``no`` after a pair."""
    config = checkpoint.config
    prompt = config.family.rerank_prompt
    if not prompt or not (0 <= yes < config.vocab_size and 0 <= no < config.vocab_size):
        raise FormatError(
            f"{checkpoint.source}: its scored tokens are {yes} and {no}, of a {config.model_type} model of "
            f"{config.vocab_size} tokens; expected two of a model whose prompt for this is known, such as Qwen 3"
        )
    yes_row, no_row = (checkpoint.rows(head_weight(config), token, token + 1)[0] for token in (yes, no))
    return with_classifier(checkpoint, yes_row, no_row, prompt)


def with_classifier(
    checkpoint: Checkpoint, yes: npt.NDArray[np.float32], no: npt.NDArray[np.float32], pair: str
) -> Checkpoint:
    """Replace the head by a classifier on the last token: the difference of two of its rows [D]."""
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
