"""Rows of logits as a plan leaves them, for the passes over them: shortlists, and choices among allowed tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from glinfer.engine.shortlist import AllowedPicks, Shortlists
from glinfer.gl.context import Device
from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.models.fast import rows
from glinfer.models.fast import token as fast
from glinfer.models.plan import Plan
from glinfer.models.session import Session
from glinfer.ops import TensorSpec
from glinfer.ops.fused.allowed import Words, mask_words
from glinfer.ops.fused.rows import deinterleaved
from glinfer.ops.fused.shortlist import Shortlist
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.noise import Drawn

Floats = np.ndarray[Any, Any]


class Rows:
    """The logits of some rows as a plan leaves them, for so many targets, and the pass over them."""

    def __init__(self, device: Device, logits: Floats, kernels: KernelOptions, targets: int) -> None:
        self.targets, vocab = targets, logits.shape[1]
        edge = device.limits.max_texture_size
        layout = BlockLayout.of((len(logits) // targets, vocab), edge, tiles=kernels.row_tiles)
        names = [fast.LOGITS] if targets == 1 else [f"{rows.LOGITS}.{number}" for number in range(targets)]
        tensors = tuple(TensorSpec(name, layout_shape(layout), "cache", "rgba32f", layout) for name in names)
        self.session = Session(Plan("logits", 1, (), tensors, ()), {}, device)
        for name, part in zip(names, deinterleaved(logits, targets).reshape(targets, -1, vocab), strict=True):
            self.session.write(name, part)
        self.kernels, self.lists = kernels, Shortlists(self.session, kernels)

    def run(self, numbers: Sequence[int], draws: Sequence[Drawn]) -> list[Shortlist]:
        return self.lists.run(numbers, draws)

    def run_masked(
        self, numbers: Sequence[int], draws: Sequence[Drawn], masks: Words
    ) -> tuple[Floats, list[Shortlist]]:
        """The candidates and the shortlists of these rows among their allowed tokens."""
        picks, lists = AllowedPicks(self.session, self.kernels), Shortlists(self.session, self.kernels, masked=True)
        try:
            return picks.run(numbers, draws, masks), lists.run(numbers, draws, masks)
        finally:
            picks.session.release()
            lists.session.release()


def layout_shape(layout: BlockLayout) -> tuple[int, int]:
    return layout.rows, layout.cols


@contextmanager
def over(device: Device, logits: Floats, kernels: KernelOptions, targets: int = 1) -> Iterator[Rows]:
    made = Rows(device, logits, kernels, targets)
    try:
        yield made
    finally:
        made.session.release()


def some_logits(count: int, vocab: int, seed: int = 0) -> Floats:
    """A few likely tokens above a bell; ties in every other row, tokens that are never chosen in every third."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(count, vocab)).astype(np.float32) * 2
    likely = random.integers(0, vocab, (count, 40))
    np.put_along_axis(logits, likely, np.float32(9) - random.random((count, 40)).astype(np.float32) * 6, axis=1)
    logits[::2] = np.round(logits[::2])
    logits[::3][random.random(logits[::3].shape) < 0.3] = -np.inf
    logits[~np.isfinite(logits).any(axis=1)] = 0
    return logits


def packed(allowed: Floats) -> Words:
    """The table of allowed tokens of booleans [rows, vocab]."""
    rows_, vocab = allowed.shape
    bits = np.zeros((rows_, 32 * mask_words(vocab)), dtype=bool)
    bits[:, :vocab] = allowed
    return np.packbits(bits, axis=1, bitorder="little").view("<u4").astype(np.uint32)
