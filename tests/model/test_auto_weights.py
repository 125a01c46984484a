"""``weights="auto"``: what is chosen, what is remembered, and where it is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import glinfer
from glinfer.errors import GlinferError
from glinfer.generation import auto_weights
from glinfer.generation.auto_weights import extra_bits


@pytest.mark.parametrize(("most", "chosen"), [(1e-3, "q8"), (0.0, "f32")])
def test_the_fastest_format_within_the_bound_is_chosen(
    monkeypatch: pytest.MonkeyPatch, most: float, chosen: str
) -> None:
    monkeypatch.setattr(auto_weights, "MOST_EXTRA", most)
    monkeypatch.setattr(auto_weights, "TOKENS", 12)
    with glinfer.load("shakespeare", weights="auto") as model:
        assert model.weights == chosen


def test_the_choice_is_remembered_for_the_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GLINFER_CACHE", str(tmp_path))
    monkeypatch.setattr(auto_weights, "TOKENS", 4)
    with glinfer.load("shakespeare", weights="auto") as model:
        first = model.weights
    monkeypatch.setattr(auto_weights, "_Predictions", None)  # nothing may be measured again
    with glinfer.load("shakespeare", weights="auto") as model:
        assert model.weights == first


def test_the_reference_plan_refuses_it() -> None:
    with pytest.raises(GlinferError, match="reference plan keeps its weights in f32, found auto"):
        glinfer.load("shakespeare", plan="reference", weights="auto")


def test_extra_bits_are_divergence_over_entropy() -> None:
    expected, found = np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])
    divergence = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    assert extra_bits(expected, found) == pytest.approx(divergence / np.log(2))
    assert extra_bits(expected, expected) == 0
