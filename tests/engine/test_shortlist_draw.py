"""The pass ``shortlist`` against float64, and choices out of what it leaves against the sampler's on the whole rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from block_draw import KERNELS
from logit_rows import Floats, over, some_logits
from tiers import tiered

from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.engine.shortlist import sample_shortlist
from glinfer.gl.context import Device, Limits, open_device
from glinfer.models.fast import token as fast
from glinfer.models.fast.shortlist import fill_table
from glinfer.models.oracle import relative_error
from glinfer.ops import OPS
from glinfer.ops.fused.rows import row_table
from glinfer.ops.fused.shortlist import Shortlist, pieces_for
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.noise import Drawn

pytestmark = pytest.mark.gl

OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
    {"temperature": 0.9, "top_p": 0.9},
    {"temperature": 0, "repetition_penalty": 1.3},
    {"min_p": 0.05},
    {"temperature": 0.7, "repetition_penalty": 1.2},
    {"temperature": 1.2, "top_k": 200, "repetition_penalty": 0.8},
    {"temperature": 0.01, "top_k": 3},
    {"temperature": 1.5, "top_p": 0.5},
)


def check(logits: Floats, numbers: Sequence[int], draws: Sequence[Drawn], found: Sequence[Shortlist]) -> None:
    """Logits and ids to the last bit, sums and scores as close as float32 is."""
    table, vocab = row_table(len(numbers)), logits.shape[1]
    fill_table(table, numbers, draws)
    params, cols = {"ROWS": 1, "VOCAB": vocab, "PIECES": pieces_for(vocab)}, 4 * pieces_for(vocab)
    expected = OPS["shortlist"].oracle({"x0": logits, "rows": table}, params, (len(numbers), cols))
    for each, best, facts in zip(found, *expected.reshape(2, len(numbers), -1, 4), strict=True):
        assert np.array_equal(each.best, best.astype(np.float32))
        assert np.array_equal(each.facts[:, :2], facts[:, :2])
        assert relative_error(each.rest, facts[:, 2]) < 1e-5
        assert relative_error(each.drawn, facts[:, 3]) < 1e-6


def samplers(count: int) -> list[Sampler]:
    made = [Sampler(SamplingOptions(seed=number, **OPTIONS[number % len(OPTIONS)])) for number in range(count)]
    for number, sampler in enumerate(made):
        sampler.step = 7 * number
    return made


@tiered("name", list(KERNELS), keep=(1, 2))
def test_every_form_against_float64(device: Device, name: str) -> None:
    number = list(KERNELS).index(name)
    kernels, targets = KERNELS[name], (1, 8, 4, 2)[number % 4]
    vocab = (3000, 300, 49152, 5)[number % 4]
    logits = some_logits(targets * 2 if targets > 1 else 1, vocab)
    with over(device, logits, kernels, targets) as made:
        for numbers in ([0], list(range(len(logits)))[::-1], [len(logits) - 1, 0][: len(logits)]):
            draws = [sampler.draw for sampler in samplers(len(numbers))]
            check(logits, numbers, draws, made.run(numbers, draws))


@tiered("vocab", [1, 2, 3, 4, 5, 63, 65, 511, 2049, 151_936], keep=(0, 7, 8))
def test_every_vocabulary(device: Device, vocab: int) -> None:
    logits = some_logits(1, vocab, seed=vocab)
    with over(device, logits, KERNELS["llvmpipe"]) as made:
        for draw in (None, (7, 1.25)):
            check(logits, [0], [draw], made.run([0], [draw]))


@tiered("seed", list(range(8)), keep=1)
def test_tokens_are_the_samplers_on_the_very_logits(device: Device, seed: int) -> None:
    told = 0
    for vocab in (70, 5256, 49152):
        logits, chosen = some_logits(16, vocab, seed), samplers(16)
        history = np.random.default_rng(seed).integers(0, vocab, (16, 60))
        history[:, :20] = np.argsort(-logits, axis=1)[:, :40:2]
        with over(device, logits, KERNELS["llvmpipe"], 8) as made:
            lists = made.run(range(16), [sampler.draw for sampler in chosen])
        for row, (sampler, found) in enumerate(zip(chosen, lists, strict=True)):
            whole = Sampler(sampler.options)
            whole.step = sampler.step
            token = sample_shortlist(sampler, found, history[row])
            told += token is not None
            assert token in (None, whole.sample(logits[row], history[row])), sampler.options
    assert told >= 36, "of 48"


def test_a_row_has_the_bits_it_has_alone(device: Device) -> None:
    logits = some_logits(8, 3000)
    draws = [sampler.draw for sampler in samplers(8)]
    with over(device, logits, KERNELS["llvmpipe"], 8) as made:
        together = made.run(range(8), draws)
        for row in (0, 3, 7):
            (alone,) = made.run([row], [draws[row]])
            assert np.array_equal(alone.best, together[row].best)
            assert np.array_equal(alone.facts, together[row].facts)


@pytest.mark.parametrize(("bad", "where"), [(np.nan, 0), (np.nan, 2999), (-np.nan, 1471), (np.inf, 5)])
def test_broken_logits_are_seen(device: Device, bad: float, where: int) -> None:
    """Wherever they are, and with 4 better ones in the same piece."""
    logits = some_logits(1, 3000)
    logits[0, where % 512 :: 512] = 50
    logits[0, where] = bad
    with over(device, logits, KERNELS["llvmpipe"]) as made:
        (found,) = made.run([0], [(3, 1.0)])
    assert not found.sound
    assert sample_shortlist(Sampler(SamplingOptions(top_k=4)), found) is None


def test_logits_of_any_size_are_compared(device: Device) -> None:
    logits = some_logits(1, 3000)
    with over(device, logits, KERNELS["llvmpipe"]) as made:
        for scale, draw in ((1e37, None), (1e-30, (5, 1.0)), (100.0, (5, 1e4)), (1.0, (5, 1e-12))):
            scaled = logits * np.float32(scale)
            made.session.write(fast.LOGITS, scaled)
            check(scaled, [0], [draw], made.run([0], [draw]))


def test_nothing_is_made_per_token_and_everything_is_released(device: Device) -> None:
    logits = some_logits(8, 300)
    with over(device, logits, KERNELS["llvmpipe"], 8) as made:
        made.run([1], [None])
        before = dict(device.live_objects())
        for row in range(8):
            issued = made.lists.session.draws_issued
            made.run([row, 0], [(row, 1.0), None])
            assert made.lists.session.draws_issued == issued + 1
        assert dict(device.live_objects()) == before
    assert not any(device.live_objects().values())


def test_within_what_webgl2_guarantees() -> None:
    logits = some_logits(8, 9000)
    with (
        open_device(limits=Limits.webgl2_minimum()) as device,
        over(device, logits, KernelOptions(rows_per_draw=4), 4) as made,
    ):
        draws = [sampler.draw for sampler in samplers(8)]
        check(logits, range(8), draws, made.run(range(8), draws))


@pytest.mark.desktop
def test_desktop_opengl_gives_the_same() -> None:
    logits = some_logits(8, 3000)
    with open_device(api="desktop") as device:
        for kernels in (KERNELS["plain"], replace(KERNELS["plain"], lookup_texture=True)):
            with over(device, logits, kernels, 8) as made:
                draws = [sampler.draw for sampler in samplers(8)]
                check(logits, range(8), draws, made.run(range(8), draws))
