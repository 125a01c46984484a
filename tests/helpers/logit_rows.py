"""Rows of logits as a plan leaves them, for the passes that choose tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np

from glinfer.engine.run.choice import Choice
from glinfer.engine.sampler import Sampler
from glinfer.gl.context import Device
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout
from glinfer.kernels import TensorSpec
from glinfer.kernels.fused.allowed import Words, mask_words
from glinfer.kernels.fused.rows import deinterleaved
from glinfer.kernels.options import KernelOptions
from glinfer.lower.fused import rows
from glinfer.lower.fused import token as fast
from glinfer.program.plan import Plan
from glinfer.program.session import Session

Floats = np.ndarray[Any, Any]


class Rows:
    """The logits of some rows as a plan leaves them, for so many targets, and the passes over them."""

    def __init__(self, device: Device, logits: Floats, kernels: KernelOptions, targets: int) -> None:
        vocab, edge = logits.shape[1], device.limits.max_texture_size
        layout = BlockLayout.of((len(logits) // targets, vocab), edge, tiles=kernels.row_tiles)
        names = [fast.LOGITS] if targets == 1 else [f"{rows.LOGITS}.{number}" for number in range(targets)]
        picks = BlockLayout.by_block((len(logits), BLOCK_FLOATS), edge)
        tensors = [TensorSpec(name, layout_shape(layout), "cache", "rgba32f", layout) for name in names]
        self.picks = fast.PICKS if targets == 1 else rows.PICKS
        tensors.append(TensorSpec(self.picks, layout_shape(picks), "cache", "rgba32f", picks))
        self.session = Session(Plan("logits", 1, (), tuple(tensors), ()), {}, device)
        for name, part in zip(names, deinterleaved(logits, targets).reshape(targets, -1, vocab), strict=True):
            self.session.write(name, part)
        self.choices = {
            (masked, changed): Choice(self.session, kernels, masked=masked, changed=changed)
            for masked, changed in product((False, True), repeat=2)
        }

    def run(
        self,
        numbers: Sequence[int],
        samplers: Sequence[Sampler],
        masks: Words | None = None,
        changes: Sequence[int] = (),
    ) -> Floats:
        """The candidates [rows, 64] of some rows of the logits."""
        choice = self.choices[masks is not None, bool(changes)]
        choice.write(numbers, [each.options for each in samplers], [each.draw for each in samplers], masks, changes)
        choice.run(len(numbers))
        return np.asarray(self.session.read(self.picks, len(numbers)))

    def release(self) -> None:
        for choice in self.choices.values():
            choice.session.release()
        self.session.release()


def layout_shape(layout: BlockLayout) -> tuple[int, int]:
    return layout.rows, layout.cols


@contextmanager
def over(device: Device, logits: Floats, kernels: KernelOptions, targets: int = 1) -> Iterator[Rows]:
    made = Rows(device, logits, kernels, targets)
    try:
        yield made
    finally:
        made.release()


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
