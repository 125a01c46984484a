"""Whatever the bytes are: one clear error or a valid result, by few calls, in little memory, and nothing else touched.

The seeds must be read, kept cases must not hurt (qa/fuzz/corpus), and neither must some hundred files that are
damaged anew. `make fuzz` searches for longer, and by coverage.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import tiered

from qa.fuzz.run import cases
from qa.fuzz.targets import TARGETS, Target
from qa.fuzz.watch import Outcome, watch

pytestmark = pytest.mark.fuzz

EXAMPLES, WITH_PROCESS = 30, 4
NAMES = list(TARGETS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lru_cache]:  # type: ignore[type-arg]
    """A folder for each target, in which everything was read once: imports open files too."""

    @cache
    def folder_of(name: str) -> Path:
        target, folder = TARGETS[name], tmp_path_factory.mktemp(name)
        target.prepare(folder)
        for data in target.seeds():
            target.read(data, folder)
        return folder

    return folder_of


def outcome_of(target: Target, data: bytes, folder: Path, *, memory: bool = False) -> Outcome:
    return watch(
        target.read, data, folder, processes=target.processes, programs=target.programs, memory=memory, counted=True
    )


@pytest.mark.parametrize("name", NAMES)
def test_seeds_are_read(name: str, folders: lru_cache) -> None:  # type: ignore[type-arg]
    folder = folders(name)
    outcomes = [outcome_of(TARGETS[name], data, folder, memory=True) for data in TARGETS[name].seeds()]
    assert {outcome.kind for outcome in outcomes} == {"accepted"}, outcomes


@pytest.mark.parametrize("name", NAMES)
def test_kept_cases_do_not_hurt(name: str, folders: lru_cache) -> None:  # type: ignore[type-arg]
    folder = folders(name)
    for file in cases(name):
        outcome = outcome_of(TARGETS[name], file.read_bytes(), folder)
        assert not outcome.is_find, f"{file}: {outcome}"


@tiered("times", [1, 20])
@pytest.mark.parametrize("name", NAMES)
def test_damaged_files_do_not_hurt(name: str, folders: lru_cache, times: int) -> None:  # type: ignore[type-arg]
    target, folder = TARGETS[name], folders(name)
    seeds = list(target.seeds())

    @settings(
        max_examples=times * (WITH_PROCESS if target.processes else EXAMPLES), suppress_health_check=list(HealthCheck)
    )
    @given(st.integers(0, len(seeds) - 1), st.integers(0, 2**32 - 1), st.integers(1, 4))
    def damaged(seed: int, chosen: int, damages: int) -> None:
        data, random = seeds[seed], Random(chosen)
        for _ in range(damages):
            data = target.mutate(data, random)
        outcome = outcome_of(target, data[: target.longest], folder, memory=True)
        assert not outcome.is_find, f"{outcome} for {data[: target.longest]!r}"

    damaged()


@pytest.mark.parametrize("name", NAMES)
def test_damage_is_done(name: str) -> None:
    """A mutator that gave its seeds back would let everything pass."""
    target = TARGETS[name]
    for seed in target.seeds():
        made = {target.mutate(seed, Random(chosen)) for chosen in range(60)} - {seed}
        assert len(made) > (20 if len(seed) > 40 else 5)
