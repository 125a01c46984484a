"""Choices out of a shortlist against the sampler's on whole rows; the shader's oracle takes the place of the shader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tiers import tiered

from glinfer.config import ModelConfig
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.engine.shortlist import sample_shortlist
from glinfer.errors import InputError, PlanError
from glinfer.models.choice import plan_for
from glinfer.models.fast.shortlist import fill_table, shortlist_plan
from glinfer.ops import OPS
from glinfer.ops.fused.rows import row_table
from glinfer.ops.fused.sample import NO_SCORE
from glinfer.ops.fused.shortlist import Shortlist, pieces_for
from glinfer.ops.kernels import KernelOptions

Floats = np.ndarray[Any, Any]
VOCABS = (1, 2, 3, 4, 5, 63, 64, 65, 257, 500, 2047, 2048, 2049, 3001, 5256, 49152)


def listed(logits: Floats, sampler: Sampler, random: np.random.Generator | None = None) -> Shortlist:
    """What the pass leaves of one row, its sums and scores as far off as a GPU's may be."""
    table, pieces = row_table(1), pieces_for(logits.size)
    fill_table(table, [0], [sampler.draw])
    inputs = {"x0": logits[None], "rows": table}
    found = OPS["shortlist"].oracle(inputs, {"ROWS": 1, "VOCAB": logits.size, "PIECES": pieces}, (1, 4 * pieces))
    best, facts = np.asarray(found, dtype=np.float32).reshape(2, pieces, 4)
    if random is not None:
        facts[:, 2] *= random.uniform(1 - 2e-5, 1 + 2e-5, pieces).astype(np.float32)
        facts[:, 3] += random.uniform(-2e-6, 2e-6, pieces).astype(np.float32)
    return Shortlist(logits.size, best, facts)


def some_logits(random: np.random.Generator, vocab: int) -> Floats:
    """Logits of one of many kinds: ties, masked tokens, all alike, one far above the others, of every size."""
    logits = random.normal(size=vocab) * random.choice([0.01, 1.0, 3.0, 10.0, 1e30])
    kind = random.integers(7)
    if kind in (1, 6):
        logits = np.round(logits)
    if kind in (2, 6):
        logits[random.random(vocab) < random.choice([0.1, 0.5, 0.99])] = -np.inf
    if kind == 3:
        logits = np.sort(logits)
    if kind == 4:
        logits[:] = logits[0]
    if kind == 5:
        logits[random.integers(vocab)] += 30.0
    if not np.isfinite(logits).any():
        logits[0] = 0.0
    return logits.astype(np.float32)


def some_options(random: np.random.Generator, vocab: int) -> SamplingOptions:
    chosen: dict[str, Any] = {"seed": int(random.integers(1000))}
    chosen["temperature"] = float(random.choice([0.0, 1e-4, 0.01, 0.5, 0.8, 1.0, 1.5, 10.0, 1e3, 1e6, 1e25]))
    every: Mapping[str, list[float]] = {
        "top_k": [1, 2, 5, 40, 200, 600, 3000, vocab],
        "top_p": [0.0, 1e-9, 0.1, 0.5, 0.9, 0.95, 0.999, 1 - 1e-9],
        "min_p": [1e-9, 0.01, 0.05, 0.5, 1.0],
        "repetition_penalty": [1.1, 1.3, 2.0, 0.9, 0.5, 1e6, 1e300, 1e-300],
    }
    for name, values in every.items():
        if random.random() < 0.45:
            value = random.choice(values)
            chosen[name] = int(value) if name == "top_k" else float(value)
    return SamplingOptions(**chosen)


def some_history(random: np.random.Generator, logits: Floats) -> Floats:
    """Any tokens, or the likeliest ones, which a penalty then moves."""
    count = int(random.choice([0, 1, 5, 100, 1000]))
    if random.random() < 0.4:
        return np.argsort(-logits)[:count]
    return random.integers(0, logits.size, count)


@tiered(("seed", "count"), [(0, 160), (1, 1600)])
def test_a_token_that_is_told_is_the_samplers(seed: int, count: int) -> None:
    random, told = np.random.default_rng(seed), 0
    for number in range(count):
        logits = some_logits(random, VOCABS[number % len(VOCABS)])
        options, history = some_options(random, logits.size), some_history(random, logits)
        whole, short = Sampler(options), Sampler(options)
        whole.step = short.step = step = number
        found = sample_shortlist(short, listed(logits, short, random), history)
        if found is None:
            assert short.step == step
            continue
        told += 1
        assert found == whole.sample(logits, history), (logits.size, options)
        assert short.step == step + 1
    assert told > 0.58 * count


USUAL: tuple[dict[str, float], ...] = (
    {"temperature": 0, "repetition_penalty": 1.1},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95},
    {"temperature": 0.8, "top_p": 0.95},
    {"min_p": 0.05},
    {"temperature": 0.8, "repetition_penalty": 1.2},
    {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.1},
    {"temperature": 0.8, "top_k": 40, "repetition_penalty": 0.9},
)


@pytest.mark.slow
def test_usual_options_need_the_whole_row_seldom() -> None:
    """Over logits as models have them: a few dozen likely tokens above a wide bell, 49,152 in all."""
    random, missed = np.random.default_rng(5), 0
    for number in range(70):
        sampler = Sampler(SamplingOptions(seed=number, **USUAL[number % 7]))  # type: ignore[arg-type]
        logits = random.normal(size=49152).astype(np.float32) * 2
        likely = random.integers(0, logits.size, 60)
        logits[likely] += random.uniform(5, 14, likely.size).astype(np.float32)
        history = [*likely[::3], *random.integers(0, logits.size, 200)]
        missed += sample_shortlist(sampler, listed(logits, sampler), history) is None
    assert missed <= 2


def test_all_tokens_of_a_small_vocabulary_are_on_the_list() -> None:
    """So nothing is left open, unless temperatures or rewards are so extreme that -3.4e38 is as good as any logit."""
    random = np.random.default_rng(8)
    for number in range(80):
        logits = random.normal(size=int(random.integers(1, 2049))).astype(np.float32)
        options = some_options(random, logits.size)
        if options.inverse_temperature < 1e-20 or options.repetition_penalty < 1e-9:
            continue
        sampler = Sampler(options)
        found = listed(logits, sampler)
        assert sorted(found.tokens()[0].tolist()) == list(range(logits.size)), number
        assert sample_shortlist(sampler, found, some_history(random, logits)) is not None, options


def test_what_the_list_hides_is_left_open() -> None:
    """Five of the best six tokens are in one piece, and the list has four of each."""
    logits = np.zeros(5000, dtype=np.float32)
    logits[[7, 519, 1031, 1543, 2055, 3]] = 5, 6, 7, 8, 9, 4
    for top_k, told in ((3, True), (4, False), (6, False)):
        # The fourth is as large as what is hidden may be, and so may come after it.
        sampler = Sampler(SamplingOptions(temperature=30.0, top_k=top_k, seed=2))
        expected = Sampler(sampler.options).sample(logits)
        found = sample_shortlist(sampler, listed(logits, sampler))
        assert found == (expected if told else None) or (found == expected and logits[expected] > 6)


@pytest.mark.parametrize(("bad", "where"), [(np.nan, 0), (np.nan, 4999), (np.inf, 77)])
def test_broken_logits_are_never_chosen_from(bad: float, where: int) -> None:
    logits = np.arange(5000, dtype=np.float32) / 500
    logits[where] = bad
    for options in ({"temperature": 0}, {"top_k": 3}):
        sampler = Sampler(SamplingOptions(**options))  # type: ignore[arg-type]
        found = listed(logits, sampler)
        assert not found.sound
        assert sample_shortlist(sampler, found) is None
    assert sample_shortlist(sampler, listed(np.full(70, -np.inf, dtype=np.float32), sampler)) is None


def test_a_history_of_no_tokens_is_refused() -> None:
    sampler = Sampler(SamplingOptions(top_k=3, repetition_penalty=1.1))
    found = listed(np.arange(70, dtype=np.float32), sampler)
    with pytest.raises(InputError, match="token 70 in the history; expected ids from 0 to 69"):
        sample_shortlist(sampler, found, [70])


# The pass


def test_pieces_of_a_vocabulary() -> None:
    for vocab, pieces in ((1, 64), (64, 64), (65, 128), (300, 512), (49152, 512), (151_936, 512), (1 << 24, 4096)):
        assert pieces_for(vocab) == pieces
        assert -(-vocab // pieces) <= 4096, "two steps have to fit a float32"


def test_the_oracle_against_a_plain_loop() -> None:
    random = np.random.default_rng(3)
    for vocab in (1, 5, 130, 700, 3001):
        logits = np.round(random.normal(size=vocab).astype(np.float32) * 4)
        sampler = Sampler(SamplingOptions(temperature=0.7, seed=vocab))
        found = listed(logits, sampler)
        inverse = np.float32(sampler.options.inverse_temperature)
        for piece in range(found.pieces):
            ranked = sorted(range(piece, vocab, found.pieces), key=lambda token: (-logits[token], token))
            best = [float(logits[token]) for token in ranked[:4]] + [float(NO_SCORE)] * max(0, 4 - len(ranked))
            assert found.best[piece].tolist() == best
            steps = [token // found.pieces for token in ranked[:4]] + [0] * max(0, 4 - len(ranked))
            assert found.facts[piece, :2].tolist() == [steps[0] + 4096 * steps[1], steps[2] + 4096 * steps[3]]
            rest = sum(np.exp((float(logits[token]) - best[3]) * float(inverse)) for token in ranked[4:])
            assert found.rest[piece] == pytest.approx(rest, rel=1e-6)
            scores = sampler.perturbed(logits[ranked].astype(np.float64), np.array(ranked, dtype=np.int64))
            assert found.drawn[piece] == scores.max(initial=NO_SCORE)


def plan_of(vocab: int) -> Any:
    config = ModelConfig.from_options(f"vocab={vocab},dim=20,heads=1,blocks=1,context=70")
    return plan_for(config, "fast", max_texture_size=2048)


def test_lists_take_sixteen_kilobytes_or_are_refused() -> None:
    made = shortlist_plan(plan_of(49152), kernels=KernelOptions(), max_texture_size=2048)
    assert made.texture_bytes(2048, "activation") == 16384
    with pytest.raises(PlanError, match="the largest texture here is 8×8"):
        shortlist_plan(plan_of(300), kernels=KernelOptions(), max_texture_size=8)
