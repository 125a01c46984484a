"""The pass ``allowed``, and shortlists under a mask, against float64 and the sampler on masked rows."""

from __future__ import annotations

import numpy as np
import pytest
from block_draw import KERNELS
from logit_rows import Floats, over, packed, some_logits
from tiers import tiered

from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.engine.shortlist import sample_shortlist
from glinfer.gl.context import Device
from glinfer.models.fast.shortlist import fill_table
from glinfer.models.oracle import relative_error
from glinfer.ops import OPS
from glinfer.ops.fused.allowed import allowed_tokens, mask_words
from glinfer.ops.fused.rows import row_table
from glinfer.ops.fused.sample import NO_SCORE, best_candidate
from glinfer.ops.fused.shortlist import pieces_for
from glinfer.ops.noise import Drawn

pytestmark = pytest.mark.gl

OPTIONS = (
    {"temperature": 0.0},
    {"temperature": 1.5},
    {"temperature": 0.8, "top_k": 4},
    {"temperature": 0.9, "top_p": 0.8},
    {"temperature": 1.1, "repetition_penalty": 0.8},
    {"min_p": 0.2},
)


def some_masks(count: int, vocab: int) -> Floats:
    """Rows that allow everything, half, a few, and one token."""
    random = np.random.default_rng(3)
    shares = np.array([1.0, 0.5, 0.02, 0.0])[np.arange(count) % 4]
    allowed = random.random((count, vocab)) < shares[:, None]
    allowed[np.arange(count), random.integers(0, vocab, count)] = True
    return allowed


def masked(logits: Floats, allowed: Floats) -> Floats:
    found = np.where(allowed, logits, np.float32(-np.inf))
    found[~np.isfinite(found).any(axis=1)] = 0.0
    return found


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 127, 128, 129, 300])
def test_bits_of_the_table(vocab: int) -> None:
    allowed = some_masks(4, vocab)
    words = packed(allowed)
    assert words.shape == (4, mask_words(vocab))
    assert words.shape[1] % 4 == 0
    assert 32 * words.shape[1] - vocab < 128
    for row, each in zip(words, allowed, strict=True):
        assert np.array_equal(allowed_tokens(row, vocab), each)
        assert [int(row[token // 32]) >> token % 32 & 1 for token in range(vocab)] == each.astype(int).tolist()


@tiered("name", list(KERNELS), keep=(1, 2))
@pytest.mark.parametrize(("vocab", "targets"), [(130, 1), (1000, 4)])
def test_every_form_against_float64(device: Device, name: str, vocab: int, targets: int) -> None:
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


def test_choices_are_those_of_the_sampler_on_masked_rows(device: Device) -> None:
    vocab, count = 700, 8
    logits, allowed = some_logits(count, vocab), some_masks(count, vocab)
    logits = np.where(np.isfinite(logits), logits, np.float32(-50.0))
    numbers, told, left_open = list(range(count)), 0, 0
    with over(device, logits, KERNELS["plain"]) as made:
        for options in OPTIONS:
            for step in range(3):
                samplers = [Sampler(SamplingOptions(seed=row, **options)) for row in numbers]
                for each in samplers:
                    each.step = step
                history = [int(token) for token in np.random.default_rng(step).integers(0, vocab, 20)]
                draws = [each.draw for each in samplers]
                candidates, lists = made.run_masked(numbers, draws, packed(allowed))
                for row, sampler in enumerate(samplers):
                    whole = Sampler(sampler.options)
                    whole.step = step
                    expected = whole.sample(np.where(allowed[row], logits[row], np.float32(-np.inf)), history)
                    assert allowed[row][expected]
                    listed = sample_shortlist(sampler, lists[row], history)
                    left_open += listed is None
                    told += listed is not None
                    assert listed in (None, expected)
                    if not ({"top_k", "top_p", "min_p", "repetition_penalty"} & options.keys()):
                        assert best_candidate(candidates[row]) == expected
    assert told > 3 * left_open, (told, left_open)


def test_a_mask_of_all_tokens_changes_nothing(device: Device) -> None:
    logits = some_logits(4, 500)
    everything = packed(np.ones((4, 500), dtype=bool))
    draws: list[Drawn] = [None, (7, 1.0), (8, 0.5), None]
    with over(device, logits, KERNELS["plain"]) as made:
        candidates, lists = made.run_masked(range(4), draws, everything)
        plain = made.run(range(4), draws)
    for one, other in zip(lists, plain, strict=True):
        assert np.array_equal(one.best, other.best)
        assert np.array_equal(one.facts, other.facts)
    greedy = [best_candidate(candidates[row]) for row in (0, 3)]
    assert greedy == [int(np.argmax(logits[row])) for row in (0, 3)]
