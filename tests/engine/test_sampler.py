"""The sampler against hand-worked numbers and a slow, separately written reference."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_noise import gumbel

from glinfer.engine.sampler import MIN_TEMPERATURE, Sampler, SamplingOptions
from glinfer.errors import InputError
from glinfer.kernels.noise import noise_key

LOG_4321 = np.log(np.array([0.4, 0.3, 0.2, 0.1]))


def one_line(error: pytest.ExceptionInfo[InputError]) -> str:
    text = str(error.value)
    assert len(text) < 200
    return text


def reference(logits: list[float], history: list[int], options: SamplingOptions) -> list[float]:
    """The documented steps, one token at a time, in plain Python."""
    scores, penalty = list(logits), options.repetition_penalty
    for token in set(history):
        x = scores[token]
        scores[token] = x * float(np.float32(1 / penalty if x > 0 else penalty))
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    if options.temperature == 0:
        return [1.0 if i == order[0] else 0.0 for i in range(len(scores))]
    top = scores[order[0]]
    p = [math.exp((x - top) / options.temperature) for x in scores]
    keep = order[: options.top_k] if options.top_k else order
    if options.top_p < 1:
        whole, mass, nucleus = math.fsum(p[i] for i in keep), 0.0, []
        for i in keep:
            nucleus.append(i)
            mass += p[i]
            if mass >= options.top_p * whole:
                break
        keep = nucleus
    keep = [i for i in keep if p[i] >= options.min_p * p[order[0]]]
    total = math.fsum(p[i] for i in keep)
    return [p[i] / total if i in keep else 0.0 for i in range(len(scores))]


# ---- options


def test_a_bad_option_is_named_with_what_was_found_and_expected() -> None:
    bad: dict[str, tuple[Any, ...]] = {
        "temperature": (-0.1, math.nan, math.inf, True, "1", None, 10**400, -(10**5000), "x\ny" * 100),
        "top_k": (-2, 1.0, True, "3", None, math.nan),
        "top_p": (-0.01, 1.01, math.nan, False, "0.9", None, math.inf, np.zeros((30, 30))),
        "min_p": (-0.01, 1.01, math.nan, True, "0", None),
        "repetition_penalty": (0.0, -1.0, math.nan, math.inf, True, "1.1", None),
        "seed": (-1, 1.5, True, "7", np.float64(2.0)),
    }
    for field, value in ((field, value) for field, values in bad.items() for value in values):
        with pytest.raises(InputError) as error:
            SamplingOptions(**{field: value})
        text = one_line(error)
        assert text.startswith(f"{field} is ")
        assert "; expected " in text


def test_edges_of_the_ranges_are_allowed_and_numpy_numbers_become_plain() -> None:
    SamplingOptions(temperature=0, top_k=0, top_p=0, min_p=0, repetition_penalty=1e-300, seed=0)
    assert SamplingOptions(top_k=-1).top_k == SamplingOptions(top_k=np.int64(-1)).top_k == 0
    SamplingOptions(temperature=1e300, top_k=10**30, top_p=1, min_p=1, repetition_penalty=1e300, seed=2**200)
    options = SamplingOptions(temperature=np.float32(0.5), top_k=np.int64(3), seed=np.uint8(4))
    assert [type(v) for v in dataclasses.astuple(options)] == [float, int, float, float, float, int]
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.top_k = 1  # type: ignore[misc]


# ---- each step by hand


def distribution(logits: Any, history: Any = (), **options: Any) -> list[float]:
    return list(Sampler(SamplingOptions(**options)).distribution(logits, history).tolist())


def test_top_k_keeps_exactly_k_lower_ids_first_where_equal() -> None:
    assert distribution(np.array([1.0, 5.0, 5.0, 5.0, 0.0]), top_k=2) == [0, 0.5, 0.5, 0, 0]
    assert distribution(np.zeros(4), top_k=3) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    assert distribution(LOG_4321, top_k=99) == pytest.approx([0.4, 0.3, 0.2, 0.1])

    row = np.tile([0.0, 1.0], 1000)  # long enough for a sort that is not stable to show
    assert np.flatnonzero(distribution(row, top_k=10)).tolist() == list(range(1, 20, 2))
    assert np.flatnonzero(distribution(row, top_k=1010)).tolist() == sorted([*range(1, 2000, 2), *range(0, 20, 2)])
    # Ranks are by score, even where the temperature makes all equal.
    assert distribution(np.array([0.0, 1.0]), top_k=1, temperature=1e300) == [0, 1]


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    logits = np.log(np.array([0.25, 0.5, 0.125, 0.125]))
    assert distribution(logits, top_p=0.5) == [0, 1, 0, 0]  # 0.5 reaches 0.5
    assert distribution(logits, top_p=0.51) == pytest.approx([1 / 3, 2 / 3, 0, 0])
    assert distribution(logits, top_p=0.8) == pytest.approx([2 / 7, 4 / 7, 1 / 7, 0])  # of equals, the lower id
    assert distribution(logits, top_p=0.0) == [0, 1, 0, 0]
    assert distribution(logits, top_p=1 - 1e-16) == pytest.approx([0.25, 0.5, 0.125, 0.125])

    # Of 0.4 and 0.3, which top-k leaves, the first holds 57 %: enough for 0.5, although it is only 40 % of everything.
    assert distribution(LOG_4321, top_k=2, top_p=0.5) == [1, 0, 0, 0]
    assert distribution(LOG_4321, top_p=0.5) == pytest.approx([4 / 7, 3 / 7, 0, 0])


@pytest.mark.filterwarnings("error")
def test_extreme_options_still_give_a_distribution() -> None:
    logits = np.array([3e38, 1.0, -3e38, 0.0], dtype=np.float32)
    assert distribution(logits, temperature=5e-324) == [1, 0, 0, 0]
    every = [0, 1, 2, 3]
    # Divided by almost nothing, both positive logits stop at the largest float; -3e38 becomes -0.
    assert distribution(logits, every, repetition_penalty=5e-324) == [0.5, 0.5, 0, 0]
    # The other way round the positive logit becomes almost 0, and the negative ones sink to the limit.
    assert distribution(-logits, every, repetition_penalty=1.7e308) == [0, 0, 0.5, 0.5]
    assert distribution(logits, temperature=1.7e308) == [0.25] * 4


finite_logits = st.lists(
    st.one_of(st.integers(-4, 4).map(float), st.just(-math.inf), st.floats(-30, 30, width=32)), min_size=1, max_size=12
).filter(lambda row: max(row) > -math.inf)


@settings(max_examples=25)
@given(
    logits=finite_logits,
    options=st.builds(
        SamplingOptions,
        temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
        top_k=st.integers(0, 14),
        top_p=st.sampled_from([0.0, 0.123, 0.4567, 0.89, 1.0]),
        min_p=st.sampled_from([0.0, 0.0321, 0.456, 1.0]),
        repetition_penalty=st.sampled_from([0.7, 1.0, 1.3]),
        seed=st.integers(0, 2**32),
    ),
    data=st.data(),
)
def test_distribution_agrees_with_the_reference_and_samples_come_from_it(
    logits: list[float], options: SamplingOptions, data: st.DataObject
) -> None:
    history = data.draw(st.lists(st.integers(0, len(logits) - 1), max_size=6))
    row = np.array(logits)
    sampler = Sampler(options)
    got = sampler.distribution(row, history)
    assert got.tolist() == pytest.approx(reference(logits, history, options), abs=1e-12)
    assert got.sum() == pytest.approx(1.0, abs=1e-12)
    for _ in range(5):
        assert got[sampler.sample(row, history)] > 0


# ---- drawing


def run(count: int, logits: Any, **options: Any) -> list[int]:
    sampler = Sampler(SamplingOptions(**options))
    return [sampler.sample(logits) for _ in range(count)]


def test_every_chosen_token_is_one_step_and_nothing_else_is() -> None:
    for temperature in (0.0, 1.0):
        sampler = Sampler(SamplingOptions(temperature=temperature, seed=11))
        assert sampler.step == 0
        for step in range(4):
            assert sampler.noise_key() == noise_key(11, step)
            sampler.distribution(LOG_4321)
            with pytest.raises(InputError):
                sampler.sample(np.array([math.nan]))
            assert sampler.step == step
            sampler.sample(LOG_4321)
        sampler.advance()
        assert sampler.step == 5


@settings(max_examples=20)
@given(
    row=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=50),
    temperature=st.floats(MIN_TEMPERATURE, 10),
    seed=st.integers(0, 2**70),
)
def test_plain_sampling_is_the_float32_arithmetic_of_a_shader(row: list[float], temperature: float, seed: int) -> None:
    logits = np.array(row, np.float32)
    options = SamplingOptions(temperature=temperature, seed=seed)
    sampler = Sampler(options)
    inverse = np.float32(options.inverse_temperature)
    assert inverse == np.float32(1.0 / temperature)
    for step in range(3):
        scores = logits * inverse + gumbel(seed, step, logits.size)
        assert scores.dtype == np.float32
        assert sampler.sample(logits) == max(range(logits.size), key=lambda token: (scores[token], -token))


@settings(max_examples=25)
@given(
    logits=finite_logits,
    filters=st.fixed_dictionaries(
        {
            "top_k": st.integers(0, 8),
            "top_p": st.sampled_from([0.3, 0.6, 0.9, 1.0]),
            "min_p": st.sampled_from([0.0, 0.03, 0.3]),
        }
    ),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    seed=st.integers(0, 2**32),
)
def test_filters_change_a_choice_only_where_they_remove_the_token(
    logits: list[float], filters: dict[str, Any], temperature: float, seed: int
) -> None:
    row = np.array(logits)
    plain = Sampler(SamplingOptions(temperature=temperature, seed=seed))
    filtered = Sampler(SamplingOptions(temperature=temperature, seed=seed, **filters))
    kept = filtered.distribution(row) > 0
    for step in range(5):
        token, other = plain.sample(row), filtered.sample(row)
        if kept[token]:
            assert other == token
        else:
            scores = row.astype(np.float32) * np.float32(1 / temperature) + gumbel(seed, step, row.size)
            assert other == int(np.argmax(np.where(kept, scores, -np.inf)))


def test_equal_seeds_repeat_and_no_seed_does_not() -> None:
    row = np.zeros(1000)
    assert run(20, row, seed=5) == run(20, row, seed=5)
    assert run(20, row, seed=5) != run(20, row, seed=6)
    assert run(20, row, seed=5) != run(20, row, seed=5 + 2**64)
    assert run(20, row) != run(20, row)

    first = Sampler()
    assert 0 <= first.seed < 2**64
    assert first.seed != Sampler().seed
    again = Sampler(SamplingOptions(seed=first.seed))
    assert [first.sample(row) for _ in range(20)] == [again.sample(row) for _ in range(20)]


# ---- extremes of the draw


@pytest.mark.filterwarnings("error")
def test_a_temperature_below_the_smallest_is_greedy() -> None:
    logits = np.array([0.0, 7.0, 7.0, -3e38], np.float32)
    for temperature in (5e-324, 1e-300, 1e-40, 1e-8, math.nextafter(MIN_TEMPERATURE, 0)):
        options = SamplingOptions(temperature=temperature, seed=1)
        assert (options.greedy, options.inverse_temperature) == (True, 1.0)
        assert set(run(20, logits, temperature=temperature, seed=1)) == {1}
        assert distribution(logits, temperature=temperature) == [0, 1, 0, 0]


def test_the_smallest_temperature_still_draws() -> None:
    options = SamplingOptions(temperature=MIN_TEMPERATURE)
    assert (options.greedy, options.inverse_temperature) == (False, 10_000.0)
    assert (SamplingOptions().greedy, SamplingOptions().inverse_temperature) == (False, 1.0)
    assert set(run(50, np.zeros(2), temperature=MIN_TEMPERATURE, seed=0)) == {0, 1}


@pytest.mark.filterwarnings("error")
def test_enormous_logits_never_lead_to_a_token_that_cannot_be() -> None:
    for high, low in (
        (-3e38, -3e38),
        (3e38, 3e38),
        (-1e300, -1e300),
        (1e300, 1e300),
        (1e-320, -1e-320),
        (1.7e308,) * 2,
    ):
        for temperature in (MIN_TEMPERATURE, 1.0, 1e30, 1.7e308):
            assert set(run(10, np.array([-math.inf, high, low]), temperature=temperature, seed=0)) <= {1, 2}


@pytest.mark.filterwarnings("error")
def test_enormous_logits_that_differ_are_told_apart() -> None:
    for low, high in ((1e300, 2e300), (-2e300, -1e300), (3e38, 3.3e38), (-3e38, 3e38)):
        for temperature in (MIN_TEMPERATURE, 0.3, 1.0):
            assert set(run(5, np.array([low, high, low]), temperature=temperature, seed=0)) == {1}


# ---- bad input


BAD_LOGITS: list[tuple[Any, list[str]]] = [
    ([0.0, math.nan, 1.0, math.nan], ["2 of 4", "NaN", "token 1"]),
    ([0.0, 1.0, math.inf], ["1 of 3", "+inf", "token 2"]),
    ([math.inf, math.nan], ["NaN", "token 1"]),
    ([-math.inf] * 3, ["all 3", "-inf"]),
    (np.zeros((2, 3)), ["(2, 3)", "one non-empty row"]),
    (np.zeros(0), ["(0,)"]),
    (np.float32(1.0), ["()"]),
    (np.zeros(3, dtype=np.int64), ["int64"]),
    (np.zeros(3, dtype=np.complex64), ["complex64"]),
    (["a", "b"], ["expected one non-empty row of floats"]),
    ([[1.0], [1.0, 2.0]], ["not an array of numbers"]),
]


def test_bad_logits() -> None:
    for logits, words in BAD_LOGITS:
        for temperature in (0.0, 1.0):
            sampler = Sampler(SamplingOptions(temperature=temperature, seed=0))
            for method in (sampler.sample, sampler.distribution):
                with pytest.raises(InputError) as error:
                    method(logits, [])
                text = one_line(error)
                assert all(word in text for word in words), text


def test_bad_history_even_where_no_penalty_looks_at_it() -> None:
    histories: list[Any] = [[0, 4], [-1], [1.5], ["0"], [[0]], [True], [10**30], [[0], [1, 2]], None, 3]
    for history in histories:
        with pytest.raises(InputError) as error:
            Sampler().sample(LOG_4321, history)
        assert "expected" in one_line(error)
    with pytest.raises(InputError, match=r"token 4 in the history; expected ids from 0 to 3"):
        Sampler().distribution(LOG_4321, np.array([3, 4, 5], dtype=np.uint64))


def test_history_may_be_any_sequence_or_array_of_ids() -> None:
    expected = distribution(LOG_4321, [1, 2], repetition_penalty=1.5)
    for history in ((1, 2), np.array([1, 2], dtype=np.int32), np.array([2, 1], dtype=np.uint64)):
        assert distribution(LOG_4321, history, repetition_penalty=1.5) == expected
    nothing: list[Any] = [[], (), np.zeros(0, dtype=np.int64)]
    for empty in nothing:
        assert distribution(LOG_4321, empty, repetition_penalty=1.5) == pytest.approx([0.4, 0.3, 0.2, 0.1])


def test_the_callers_arrays_are_not_changed() -> None:
    logits = np.array([3.0, -1.0, 2.0, -np.inf])
    history = np.array([0, 1, 3])
    logits.flags.writeable = history.flags.writeable = False
    options = SamplingOptions(top_k=2, top_p=0.9, min_p=0.1, repetition_penalty=1.2, seed=0)
    Sampler(options).sample(logits, history)
    Sampler(options).distribution(logits, history)
    assert logits.tolist() == [3.0, -1.0, 2.0, -math.inf]
