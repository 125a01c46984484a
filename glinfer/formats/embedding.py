"""What a model that embeds texts does beside its passes: prompts, lengths, and what becomes of its vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Embedding:
    """The settings of a model that embeds texts, or that scores pairs of texts.

    Attributes:
        prompts: what stands before a text, by its name, such as ``query``.
        default_prompt: the name of the prompt where none is asked for; empty for none.
        counts_prompt: whether the tokens of a prompt count for the vector of their text.
        normalizes: whether vectors have length 1.
        most_tokens: tokens of the longest text; 0 for the whole context.
        lower: whether texts are made lower case.
        ranks: whether the model scores pairs of texts, and its vectors are scores.
        squashes: whether a score goes through a sigmoid, as one that is trained on yes and no does.
        pair: how a pair is written where the tokenizer does not know: a text with {query} and {text}; empty otherwise.
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
