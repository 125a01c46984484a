"""Engines that ``glinfer bench`` times: decoders of one sequence, and of many sequences in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from glinfer.config import ModelConfig
from glinfer.engine.batch import MAX_CACHE_BYTES, SchedulerOptions, places_for, sequence_bytes
from glinfer.engine.decode import DecodeSession
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest
from glinfer.errors import InputError
from glinfer.quant.formats import DEFAULT_CACHE


class Decoder(Protocol):
    """An engine that holds one sequence and decodes greedily."""

    @property
    def label(self) -> str:
        """Name in the report."""

    def prefill(self, ids: Sequence[int]) -> object:
        """Empty the cache and run ``ids`` together; returns the logits after the last one, in host memory."""

    def decode_greedy(self, token: int, count: int) -> list[int]:
        """Append ``token`` and ``count`` greedy tokens, each read back; returns the latter."""

    def rewind(self, length: int) -> None:
        """Truncate the cache to its first ``length`` tokens."""


class OpenedDecoder(Decoder, Protocol):
    """A decoder that holds resources until it is closed."""

    def close(self) -> None:
        """Release the resources; harmless when repeated."""


class FastDecoder:
    """The fast plan as a decoder; ``decode_pipelined`` reads all choices back together."""

    def __init__(self, label: str, session: DecodeSession) -> None:
        """Take over an empty session."""
        self.label, self.session = label, session

    def prefill(self, ids: Sequence[int]) -> object:
        """Empty the cache and run ``ids`` in chunks; returns the logits [vocab] after the last one, a NumPy array."""
        self.session.rewind(len(self.session))
        self.session.prefill(ids)
        return self.session.logits()

    def decode_greedy(self, token: int, count: int) -> list[int]:
        """Append ``token`` and ``count`` greedy tokens, each read back; returns the latter."""
        self.session.step(token)
        return [self.session.generate_ids(1)[0] for _ in range(count)]

    def decode_pipelined(self, token: int, count: int) -> list[int]:
        """Decode as :meth:`decode_greedy`, with one readback for all tokens."""
        self.session.step(token)
        return self.session.generate_ids(count)

    def rewind(self, length: int) -> None:
        """Truncate the sequence to its first ``length`` tokens."""
        self.session.rewind(len(self.session) - length)


class BatchDecoder:
    """Several sequences of a model in one scheduler, each with its own prompt; close it before the model."""

    def __init__(self, model: Model, sequences: int, capacity: int) -> None:
        """Bind a scheduler of sequences of up to ``capacity`` tokens; see :func:`room_for`.

        Raises:
            PlanError: it does not fit the renderer.
        """
        self.sequences = sequences
        self._scheduler = model.scheduler(slots=sequences, longest=capacity, memory=MAX_CACHE_BYTES)
        self._prompts: list[list[int]] = []

    @property
    def draws(self) -> int:
        """Draw calls of a step."""
        return len(self._scheduler.batch.session.plan.draws)

    def prefill(self, ids: Sequence[int]) -> None:
        """Run ``ids`` rotated by n positions as the prompt of sequence n."""
        self._prompts = [rotated(ids, place) for place in range(self.sequences)]
        self._run(self._prompts, 1)

    def decode_greedy(self, start: int, count: int) -> list[list[int]]:
        """Append ``count`` greedy tokens to the first ``start`` + 1 tokens of each prompt; returns them by sequence.

        The prompts must be longer than ``start``. Tokens in the caches are not run again.
        """
        return self._run([prompt[: start + 1] for prompt in self._prompts], count)

    def _run(self, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
        options = {"max_tokens": count, "temperature": 0.0}
        running = [self._scheduler.insert(BatchRequest(prompt, options)) for prompt in prompts]
        while len(self._scheduler):
            self._scheduler.next()
        return [each.ids for each in running]

    def close(self) -> None:
        """Release the batch's caches; harmless when repeated."""
        self._scheduler.close()


def rotated(ids: Sequence[int], places: int) -> list[int]:
    """Move the first ``places`` ids to the end."""
    return [int(token) for token in np.roll(np.asarray(ids), -places)]


def room_for(
    config: ModelConfig, sizes: Sequence[int], context: int, max_texture_size: int, cache: str = DEFAULT_CACHE
) -> int:
    """Return the capacity of each sequence of several batches that hold ``context`` tokens each.

    Args:
        config: the model's shape.
        sizes: sequences of each batch; all batches share the memory that one gets by default.
        context: tokens.
        max_texture_size: of the renderer, in texels.
        cache: the format of keys and values.

    Raises:
        InputError: a size is below 1, or memory does not suffice.
    """
    left, capacity = MAX_CACHE_BYTES, context
    for size in sizes:
        if size < 1:
            raise InputError(f"found a batch of {size} sequences; expected at least 1")
        limits = SchedulerOptions(slots=size, memory=left, longest=context)
        count, capacity = places_for(config, limits, max_texture_size, cache)
        if count < size:
            raise InputError(
                f"found room for {count} sequences of {capacity} tokens, expected {size}: {left / 1e6:.1f} MB are left "
                f"for caches, in textures of at most {max_texture_size} texels a side; time fewer, or a shorter context"
            )
        left -= size * sequence_bytes(config, capacity, cache)
    return capacity
