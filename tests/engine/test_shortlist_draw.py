"""The pass ``shortlist`` against float64, and choices out of what it leaves against the sampler's on the whole rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from block_draw import KERNELS
from logit_rows import Floats, over, packed, some_logits
from tiers import tiered

from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.engine.shortlist import sample_shortlist
from glinfer.gl.context import Device
from glinfer.models.fast import token as fast
from glinfer.models.fast.shortlist import fill_table
from glinfer.models.oracle import relative_error
from glinfer.ops import OPS
from glinfer.ops.fused.allowed import allowed_tokens, mask_words
from glinfer.ops.fused.rows import row_table
from glinfer.ops.fused.sample import NO_SCORE
from glinfer.ops.fused.shortlist import Shortlist, pieces_for
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


@tiered("name", ["llvmpipe", "GPU", "one by one"])
def test_every_form_against_float64(device: Device, name: str) -> None:
    number = list(KERNELS).index(name)
    kernels, targets = KERNELS[name], (1, 8, 4, 2)[number % 4]
    vocab = (3000, 300, 49152, 5)[number % 4]
    logits = some_logits(targets * 2 if targets > 1 else 1, vocab)
    with over(device, logits, kernels, targets) as made:
        for numbers in ([0], list(range(len(logits)))[::-1], [len(logits) - 1, 0][: len(logits)]):
            draws = [sampler.draw for sampler in samplers(len(numbers))]
            check(logits, numbers, draws, made.run(numbers, draws))


@tiered("vocabs", [(300, 3000), (1, 2, 3, 4, 5, 63, 65, 511, 2049, 151_936)], ids=["usual", "others"])
def test_every_vocabulary(device: Device, vocabs: Sequence[int]) -> None:
    for vocab in vocabs:
        logits = some_logits(1, vocab, seed=vocab)
        with over(device, logits, KERNELS["llvmpipe"]) as made:
            for draw in (None, (7, 1.25)):
                check(logits, [0], [draw], made.run([0], [draw]))


@tiered("vocabs", [(300,), (70, 5256, 49152)], ids=["small", "large"])
def test_tokens_are_the_samplers_on_the_very_logits(device: Device, vocabs: Sequence[int]) -> None:
    told = 0
    for vocab in vocabs:
        logits, chosen = some_logits(16, vocab, 0), samplers(16)
        history = np.random.default_rng(0).integers(0, vocab, (16, 60))
        history[:, :20] = np.argsort(-logits, axis=1)[:, :40:2]
        with over(device, logits, KERNELS["llvmpipe"], 8) as made:
            lists = made.run(range(16), [sampler.draw for sampler in chosen])
        for row, (sampler, found) in enumerate(zip(chosen, lists, strict=True)):
            whole = Sampler(sampler.options)
            whole.step = sampler.step
            token = sample_shortlist(sampler, found, history[row])
            told += token is not None
            assert token in (None, whole.sample(logits[row], history[row])), sampler.options
    assert told >= 12 * len(vocabs), "of 16 each"


def test_a_row_has_the_bits_it_has_alone(device: Device) -> None:
    logits = some_logits(16, 300)
    draws = [sampler.draw for sampler in samplers(8)]
    with over(device, logits, KERNELS["llvmpipe"], 8) as made:
        together = made.run(range(8), draws)
        for row in (0, 3, 7):
            (alone,) = made.run([row], [draws[row]])
            assert np.array_equal(alone.best, together[row].best)
            assert np.array_equal(alone.facts, together[row].facts)


def test_broken_logits_are_seen(device: Device) -> None:
    """Wherever they are, and with 4 better ones in the same piece."""
    for bad, where in ((np.nan, 0), (np.nan, 2999), (-np.nan, 1471), (np.inf, 5)):
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


# Choices among allowed tokens


def some_masks(count: int, vocab: int) -> Floats:
    """Rows that allow everything, half, a few, and one token."""
    random = np.random.default_rng(3)
    shares = np.array([1.0, 0.5, 0.02, 0.0])[np.arange(count) % 4]
    allowed = random.random((count, vocab)) < shares[:, None]
    allowed[np.arange(count), random.integers(0, vocab, count)] = True
    return allowed


def test_bits_of_the_table() -> None:
    for vocab in (1, 31, 32, 33, 127, 128, 129, 300):
        allowed = some_masks(4, vocab)
        words = packed(allowed)
        assert words.shape == (4, mask_words(vocab))
        assert words.shape[1] % 4 == 0
        assert 32 * words.shape[1] - vocab < 128
        for row, each in zip(words, allowed, strict=True):
            assert np.array_equal(allowed_tokens(row, vocab), each)
            assert [int(row[token // 32]) >> token % 32 & 1 for token in range(vocab)] == each.astype(int).tolist()


@tiered(
    ("name", "vocab", "targets"),
    [
        ("llvmpipe", 1000, 1),
        ("GPU", 1000, 4),
        ("one by one", 130, 1),
        ("mantissa", 1000, 4),
    ],
)
def test_every_form_under_a_mask_against_float64(device: Device, name: str, vocab: int, targets: int) -> None:
    """Rows in another order than the table's, so that a pass that takes the table's row for the logits' shows."""
    logits = some_logits(8, vocab)
    numbers = [5, 0, 7, 2] if targets > 1 else [3, 0, 3, 6]
    allowed = some_masks(4, vocab)
    masks = packed(allowed)
    draws: list[Drawn] = [None, (12345, 0.7), (99, 1.0), None]
    table = row_table(len(numbers))
    fill_table(table, numbers, draws)
    inputs = {"x0": logits, "rows": table, "mask": masks}
    with over(device, logits, KERNELS[name], targets) as made:
        candidates, lists = made.run_masked(numbers, draws, masks)
    params = {"ROWS": 1, "VOCAB": vocab, "MASK": 1, "PIECES": pieces_for(vocab)}
    expected = OPS["pick_allowed"].oracle(inputs, params, (4, 64)).reshape(4, 16, 4)
    found = candidates.reshape(4, 16, 4)
    assert np.array_equal(found[:, :, 1], expected[:, :, 1])
    assert relative_error(found[:, :, 0], expected[:, :, 0]) < 1e-6
    none = expected[:, :, 0] == float(NO_SCORE)
    assert none.any(), "every lane has an allowed token: nothing shows that one without has no candidate"
    best, facts = OPS["shortlist"].oracle(inputs, params, (4, 4 * pieces_for(vocab))).reshape(2, 4, -1, 4)
    for row, each in enumerate(lists):
        assert np.array_equal(each.best, best[row].astype(np.float32))
        assert np.array_equal(each.facts[:, :2], facts[row][:, :2])
        assert relative_error(each.rest, facts[row][:, 2]) < 1e-5
        assert relative_error(each.drawn, facts[row][:, 3]) < 1e-6
