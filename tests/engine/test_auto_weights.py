"""``weights="auto"``: what is chosen, what is remembered, and where it is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made_models import mixed, of_family
from tiers import tiered

import glinfer
from glinfer.engine import auto_weights
from glinfer.engine.auto_weights import choose_weights, extra_bits
from glinfer.errors import GlinferError
from glinfer.formats import Checkpoint
from glinfer.gl.context import open_device
from glinfer.models.tuning import default_for

pytestmark = pytest.mark.gl


@tiered(("most", "chosen"), [(1e-3, "q8"), (0.0, "f32")])
def test_the_fastest_format_within_the_bound_is_chosen(
    monkeypatch: pytest.MonkeyPatch, most: float, chosen: str
) -> None:
    monkeypatch.setattr(auto_weights, "MAX_EXTRA_BITS", most)
    monkeypatch.setattr(auto_weights, "TOKENS", 12)
    with glinfer.load("shakespeare", weights="auto") as model:
        assert model.weights == chosen


@pytest.mark.slow
def test_the_choice_is_remembered_for_the_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GLINFER_CACHE", str(tmp_path))
    monkeypatch.setattr(auto_weights, "TOKENS", 4)
    with glinfer.load("shakespeare", weights="auto") as model:
        first = model.weights
    monkeypatch.setattr(auto_weights, "_Predictions", None)  # nothing may be measured again
    with glinfer.load("shakespeare", weights="auto") as model:
        assert model.weights == first


@pytest.mark.slow
@pytest.mark.parametrize("make", [of_family, mixed])
def test_of_other_families_too(
    make: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Floats, and blocks of a file; each choice is remembered for its own weights."""
    monkeypatch.setenv("GLINFER_CACHE", str(tmp_path))
    monkeypatch.setattr(auto_weights, "TOKENS", 6)
    made = make("llama")
    with open_device() as device:
        kernels = default_for(device)
        monkeypatch.setattr(auto_weights, "MAX_EXTRA_BITS", 1.0)
        assert choose_weights(made, device, kernels) == "q8"
        assert choose_weights(made, device, kernels) == "q8"
        assert len(list((tmp_path / "weights").iterdir())) == 1
        monkeypatch.setattr(auto_weights, "MAX_EXTRA_BITS", 0.0)
        assert choose_weights(made, device, kernels) == "f32"
        names = [name for name in (made.packed or made.tensors) if "down_proj" in name or "o_proj" in name]
        if made.packed:
            other = {
                name: dataclasses.replace(made.packed[name], blocks=made.packed[name].blocks ^ 1) for name in names[:1]
            }
            changed = dataclasses.replace(made, packed={**made.packed, **other})
        else:
            changed = dataclasses.replace(made, tensors={**made.tensors, names[0]: -made.tensors[names[0]]})
        choose_weights(changed, device, kernels)
    assert len(list((tmp_path / "weights").iterdir())) == 3


def test_the_reference_plan_refuses_it() -> None:
    with pytest.raises(GlinferError, match="reference plan keeps its weights in f32, found auto"):
        glinfer.load("shakespeare", plan="reference", weights="auto")


def test_extra_bits_are_divergence_over_entropy() -> None:
    expected, found = np.log([[0.5, 0.5]]), np.log([[0.25, 0.75]])
    divergence = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    assert extra_bits(expected, found) == pytest.approx(divergence / np.log(2))
    assert extra_bits(expected, expected) == 0
