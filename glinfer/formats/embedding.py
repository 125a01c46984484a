"""Settings of embedding models and rerankers: prompts, lengths, and the post-processing of vectors."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from glinfer.errors import FormatError
from glinfer.families.settings import quoted


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

    def to_json(self) -> str:
        """The settings as one line of JSON, for :meth:`from_json`."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str, source: str) -> Embedding:
        """Read the text of :meth:`to_json`.

        Raises:
            FormatError: it is another text; names ``source``.
        """
        usual = dataclasses.asdict(cls())
        try:
            values = json.loads(text)
            good = values.keys() == usual.keys() and all(type(values[name]) is type(usual[name]) for name in usual)
            good = good and all(isinstance(prompt, str) for prompt in values["prompts"].values())
            good = good and values["default_prompt"] in ("", *values["prompts"]) and values["most_tokens"] >= 0
            good = good and all(values["pair"].count(mark) == bool(values["pair"]) for mark in ("{query}", "{text}"))
        except (ValueError, AttributeError, RecursionError):
            good = False
        if not good:
            found = f"{source}: its metadata has the settings of an embedding model {quoted(text)}"
            raise FormatError(f"{found}; expected those that glinfer wrote; convert the model again")
        return cls(**values)
