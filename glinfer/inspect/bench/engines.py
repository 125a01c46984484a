"""Engines that ``glinfer bench`` times: decoders of one sequence, and of many sequences in a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from glinfer.config import ModelConfig
from glinfer.engine.batch import MAX_CACHE_BYTES, Batch, SchedulerOptions, sequence_bytes, slots_and_capacity
from glinfer.engine.model import Model, StreamOptions
from glinfer.engine.requests import BatchRequest
from glinfer.errors import InputError
from glinfer.quant.formats import DEFAULT_CACHE
from glinfer.structured.structure import PARTIAL

Samplings = Mapping[str, Mapping[str, Any]]
"""Options of a request that differ from the model's defaults, by their name in a report."""

DEFAULT, GREEDY = "default", "greedy"
BOTH: Samplings = {DEFAULT: {"seed": 1}, GREEDY: {"temperature": 0.0}}
_NO_FILTERS = {"temperature": 0.7, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "seed": 1}
EVERY_OPTION: Samplings = {
    **BOTH,
    "temperature only": _NO_FILTERS,
    "min_p 0.05": {**_NO_FILTERS, "min_p": 0.05},
    "repetition 1.1": {"seed": 1, "repetition_penalty": 1.1},
    "presence 0.5": {"seed": 1, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    "logit_bias": {"seed": 1, "logit_bias": {0: 1.0}},
    "logprobs 5": {"seed": 1, "logprobs": 5},
}


def structured(schema: str) -> Samplings:
    """Default sampling under a mask that allows any text, which does not change the text, and with a JSON schema."""
    given = {"seed": 1, "incomplete": PARTIAL}
    return {
        "any text, masked": {**given, "regex": "(?s:.*)", "stop_ids": ()},
        "schema": {**given, "json_schema": schema},
    }


class Decoder(Protocol):
    """An engine that holds one sequence."""

    @property
    def label(self) -> str:
        """Name in the report."""

    def prefill(self, ids: Sequence[int]) -> object:
        """Empty the cache and run ``ids`` at once; returns the logits after the last one, in host memory."""

    @property
    def ways(self) -> Mapping[tuple[str, bool], Callable[[int, int], list[int]]]:
        """Functions that append a token and up to a number of chosen ones, and return the chosen ones.

        The keys are the sampling, and whether all tokens are read back at once.
        """

    def rewind(self, length: int) -> None:
        """Truncate the cache to its first ``length`` tokens."""

    def close(self) -> None:
        """Release the engine; harmless when repeated."""


class FastDecoder:
    """The fast plan as a decoder, with the samplings that :meth:`glinfer.engine.model.Model.stream` supports."""

    def __init__(self, label: str, model: Model, samplings: Samplings) -> None:
        """Start without tokens."""
        self.label, self._model, self._session, self._ids = label, model, model.session(), list[int]()
        self.ways = {
            (name, pipelined): partial(self._decode, given, pipelined)
            for name, given in samplings.items()
            if given.keys() <= StreamOptions.__annotations__.keys()
            for pipelined in (False, True)
        }

    def prefill(self, ids: Sequence[int]) -> object:
        """Empty the cache and run ``ids`` in chunks; returns the logits [vocab] after the last one, a NumPy array."""
        self._ids = list(ids)
        self._session.rewind(len(self._session))
        self._session.prefill(ids)
        return self._session.logits()

    def _decode(self, given: Mapping[str, Any], pipelined: bool, token: int, count: int) -> list[int]:
        stream = self._model.stream([*self._ids, token], max_tokens=count, **given)
        stream.chunk = count if pipelined else 1
        chosen = list(stream)
        self._ids += [token, *chosen]
        return chosen

    def rewind(self, length: int) -> None:
        """Truncate the sequence to its first ``length`` tokens."""
        del self._ids[length:]

    def close(self) -> None:
        """Close the model."""
        self._model.close()


class BatchDecoder:
    """Several sequences of a model in one scheduler, each with its own prompt; close it before the model."""

    def __init__(self, model: Model, sequences: int, capacity: int, samplings: Samplings = BOTH) -> None:
        """Bind a scheduler of sequences of up to ``capacity`` tokens, see :func:`room_for`.

        PlanError if it does not fit the renderer.
        """
        self.sequences, self.samplings = sequences, samplings
        self._scheduler = model.scheduler(slots=sequences, longest=capacity, memory=MAX_CACHE_BYTES)
        self._prompts: list[list[int]] = []

    @property
    def draws(self) -> int:
        """Draw calls of a step."""
        assert isinstance(self._scheduler.batch, Batch)
        return len(self._scheduler.batch.session.plan.draws)

    def prefill(self, ids: Sequence[int]) -> None:
        """Run ``ids`` rotated by n positions as the prompt of sequence n."""
        self._prompts = [[*ids[first:], *ids[:first]] for first in range(self.sequences)]
        self._run(self._prompts, 1, GREEDY)

    def decode(self, start: int, count: int, sampling: str) -> list[list[int]]:
        """Append up to ``count`` tokens to the first ``start`` + 1 tokens of each prompt; returns them by sequence.

        The prompts must be longer than ``start``. Tokens in the caches are not run again.
        """
        return self._run([prompt[: start + 1] for prompt in self._prompts], count, sampling)

    def _run(self, prompts: Sequence[Sequence[int]], count: int, sampling: str) -> list[list[int]]:
        options = {**self.samplings[sampling], "max_tokens": count}
        running = [self._scheduler.insert(BatchRequest(prompt, options)) for prompt in prompts]
        while len(self._scheduler):
            self._scheduler.next()
        return [each.ids for each in running]

    def close(self) -> None:
        """Release the batch's caches; harmless when repeated."""
        self._scheduler.close()


def room_for(
    config: ModelConfig, sizes: Sequence[int], context: int, max_texture_size: int, cache: str = DEFAULT_CACHE
) -> int:
    """Return the capacity of each sequence of several batches that hold ``context`` tokens each.

    The batches have ``sizes`` sequences, and share the memory that one gets by default. InputError if a size is below
    1, or memory does not suffice.
    """
    left, capacity = MAX_CACHE_BYTES, context
    for size in sizes:
        if size < 1:
            raise InputError(f"found a batch of {size} sequences; expected at least 1")
        limits = SchedulerOptions(slots=size, memory=left, longest=context)
        count, capacity = slots_and_capacity(config, limits, max_texture_size, cache)
        if count < size:
            raise InputError(
                f"found room for {count} sequences of {capacity} tokens, expected {size}: {left / 1e6:.1f} MB are left "
                f"for caches, in textures of at most {max_texture_size} texels a side; time fewer, or a shorter context"
            )
        left -= size * sequence_bytes(config, capacity, cache)
    return capacity
