"""The noise that a shader repeats: pinned numbers, exactness and independence; see also test_noise_shader.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whole_noise import gumbel, uniform_bits

from glinfer.errors import InputError
from glinfer.kernels import noise
from glinfer.kernels.noise import gumbel_at, mix, noise_key

SHADER = Path(__file__).resolve().parents[2] / "shaders" / "common" / "noise.glsl"
Array = np.ndarray[Any, Any]


# ---- the numbers themselves: changing one changes every seeded text


@pytest.mark.parametrize(
    ("seed", "step", "key"),
    [
        (0, 0, 2222320593),
        (0, 1, 2960344232),
        (1, 0, 368580346),
        (2**32, 0, 2127712513),
        (2**64 + 5, 7, 3083679043),
        (10**30, 2**32 + 3, 3171773355),
    ],
)
def test_keys_are_what_they_always_were(seed: int, step: int, key: int) -> None:
    assert noise_key(seed, step) == key
    assert type(noise_key(seed, step)) is int


@pytest.mark.filterwarnings("error")
def test_a_seed_of_thousands_of_digits_and_numpys_numbers_are_seeds() -> None:
    assert noise_key(10**5000, 1) == 3629817535
    assert noise_key(np.uint64(2**64 - 1), np.int32(4)) == noise_key(2**64 - 1, 4)  # type: ignore[arg-type]


def test_one_seed_never_repeats_a_key_and_mixing_is_one_to_one() -> None:
    assert len({noise_key(2**40, step) for step in range(10_000)}) == 10_000
    # A function that is not one to one would map about 8 pairs of these to the same value.
    assert np.unique(mix(np.arange(2**18, dtype=np.uint32) * np.uint32(16384 + 1))).size == 2**18
    seeds = [0, *(1 << place for place in range(0, 320, 16)), *(3 << place for place in range(0, 320, 32))]
    assert len({noise_key(seed, 0) for seed in seeds}) == len(set(seeds)), "every word of a seed counts"


def test_bits_are_what_they_always_were() -> None:
    bits = uniform_bits(noise_key(1, 0), 4)
    assert bits.dtype == np.uint32
    assert bits.tolist() == [1324893875, 2444534366, 2789195744, 2516056425]


def test_noise_is_what_it_always_was() -> None:
    found = gumbel(1, 0, 4)
    assert found.dtype == np.float32
    assert found.tolist() == np.array([-0.16221362, 0.57342964, 0.84004587, 0.6259536], np.float32).tolist()


def test_all_ways_to_the_noise_agree() -> None:
    whole = gumbel(9, 3, 1000)
    some = np.array([999, 0, 500, 500])
    assert np.array_equal(gumbel_at(noise_key(9, 3), some), whole[some])
    assert np.array_equal(gumbel(9, 3, 10), whole[:10])
    assert gumbel(9, 3, 0).shape == (0,)


# ---- exactness


def test_the_logarithms_are_right_over_the_whole_range() -> None:
    # Both ends in full, where a rounded logarithm would show most, and every 61st number between.
    k = np.unique(np.r_[0 : 2**16, 2**16 : 2**23 : 61, 2**23 - 2**16 : 2**23]).astype(np.uint32)
    exact = -np.log(-np.log((k + 0.5) * 2.0**-23))
    found = noise._gumbel_of(k << np.uint32(9))
    assert found.dtype == np.float32
    assert np.abs(found - exact).max() < 1e-6
    assert (np.diff(found) >= 0).all()
    assert found[0] == pytest.approx(-2.8115, abs=1e-4)
    assert found[-1] == pytest.approx(16.6355, abs=1e-4)


def test_the_shader_asks_for_full_precision() -> None:
    # Without it a phone computes with 16 bits. Elsewhere nothing would show.
    assert {"precision highp float;", "precision highp int;"} <= set(SHADER.read_text("utf-8").splitlines())


# ---- independence. Everything below is deterministic; 5 standard deviations leave room for no honest failure.

VOCAB = 2048
ROWS = 300


def too_regular_or_not(cells: Array, count: int) -> float:
    """By how many standard deviations chi-square is off, for ``count`` cells that are equally probable."""
    seen = np.bincount(cells.ravel(), minlength=count)
    assert seen.size == count
    expected = cells.size / count
    chi_square = float(((seen - expected) ** 2).sum() / expected)
    return (chi_square - (count - 1)) / float(np.sqrt(2 * (count - 1)))


@pytest.fixture(
    scope="module", params=["steps", *(pytest.param(name, marks=pytest.mark.slow) for name in ("high seeds", "keys"))]
)
def rows(request: pytest.FixtureRequest) -> Array:
    """uint32 [ROWS, VOCAB]: the bits of neighbouring steps, seeds above 32 bits, or keys."""
    key_of: dict[str, Callable[[int], int]] = {
        "steps": lambda n: noise_key(7, n),
        "high seeds": lambda n: noise_key(n << 32 | 7, 3),
        "keys": lambda n: n,
    }
    return np.array([uniform_bits(key_of[request.param](n), VOCAB) for n in range(ROWS)])


@pytest.mark.parametrize("shift", [9, 28])  # the lowest bits that are used, and the highest
def test_neighbours_are_independent(rows: Array, shift: int) -> None:
    part = (rows >> np.uint32(shift) & np.uint32(15)).astype(np.int64)
    pairs = {
        "row, next row": 16 * part[:-1] + part[1:],
        "token, next token": 16 * part[:, :-1] + part[:, 1:],
        "token, next token of the next row": 16 * part[:-1, :-1] + part[1:, 1:],
        "token, token with another lowest bit": 16 * part[:, ::2] + part[:, 1::2],
        "token, token 1024 on": 16 * part[:, :1024] + part[:, 1024:],
    }
    for name, cells in pairs.items():
        assert abs(too_regular_or_not(cells, 256)) < 5, name


def test_nothing_is_correlated(rows: Array) -> None:
    # In units of one standard deviation of a uniform number.
    u = ((rows >> 9) / 2**23 - 0.5) * np.sqrt(12)
    between_rows = (u @ u.T / np.sqrt(VOCAB))[np.triu_indices(ROWS, 1)]
    assert np.abs(between_rows).max() < 5.5  # the largest of 45,000
    assert between_rows.std() == pytest.approx(1, abs=0.02)
    assert np.abs(u.mean(axis=0) * np.sqrt(ROWS)).max() < 5  # no token is favoured, whatever the key
    assert np.abs(u.mean(axis=1) * np.sqrt(VOCAB)).max() < 5


def test_no_two_rows_hold_the_same_numbers_in_another_order(rows: Array) -> None:
    # 300 × 2048 random 32-bit numbers hold about 44 equal pairs.
    assert rows.size - np.unique(rows).size < 80


def test_noise_has_the_gumbel_distribution() -> None:
    values = gumbel(5, 0, 200_000).astype(np.float64)
    places = (np.exp(-np.exp(-values)) * 100).astype(np.int64)
    assert abs(too_regular_or_not(places, 100)) < 5
    assert values.mean() == pytest.approx(0.5772, abs=0.015)


# ---- bad input


@pytest.mark.parametrize("place", ["seed", "step", "key"])
def test_bad_numbers_are_refused(place: str) -> None:
    calls: dict[str, Callable[[Any], Any]] = {
        "seed": lambda wrong: gumbel(wrong, 0, 3),
        "step": lambda wrong: gumbel(0, wrong, 3),
        "key": lambda wrong: gumbel_at(wrong, np.arange(3)),
    }
    for wrong in (-1, -(10**5000), 1.5, True, "3", None, np.float32(2)):
        with pytest.raises(InputError, match=rf"\Athe .*{place} is [^\n]*; expected an integer [^\n]*\Z"):
            calls[place](wrong)


def test_a_key_of_more_than_32_bits_is_refused() -> None:
    with pytest.raises(InputError, match="noise key is too large; expected an integer from 0 to 4294967295"):
        gumbel_at(2**32, np.arange(3))
