"""Settings of embedding models and rerankers: prompts, lengths, and the post-processing of vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Embedding:
    """The settings of an embedding model or a reranker.

    Attributes:
        prompts: the text to put before an input, by name, such as ``query``.
        default_prompt: the name of the prompt used by default; empty for none.
        counts_prompt: whether pooling includes the tokens of the prompt.
        normalizes: whether vectors are normalised to length 1.
        most_tokens: the longest text in tokens; 0 for the whole context.
        lower: whether texts are converted to lower case.
        ranks: whether the model scores pairs of texts; its vectors are then the scores.
        squashes: whether scores go through a sigmoid, as for binary classifiers.
        pair: the template of a pair, with {query} and {text}, if the tokenizer has none; empty otherwise.
    """

    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    counts_prompt: bool = True
    normalizes: bool = False
    most_tokens: int = 0
    lower: bool = False
    ranks: bool = False
    squashes: bool = False
    pair: str = ""
