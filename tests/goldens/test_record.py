"""Every recorded figure is what PyTorch, transformers and llama.cpp compute today."""

from __future__ import annotations

import math

import pytest

from . import HERE, recorded
from .rounding import differences, kept

NOT_RECORDED_HERE = {"gab"}
SECTIONS = sorted({path.stem for path in HERE.glob("*.json")} - NOT_RECORDED_HERE)


def test_a_new_record_keeps_what_differs_by_rounding_alone() -> None:
    before = {"same": [[5.0, 1.0]], "moved": [[5.0, 1.0]], "text": "a", "gone": 1.0}
    found = {"new": [[5.0, 1.0]], "same": [[5.0, 1.00001]], "moved": [[5.0, 1.001]], "text": "b"}
    assert kept("families", before, found) == {**found, "same": [[5.0, 1.0]]}
    assert [*kept("families", before, found)] == [*found], "in the new order"
    assert kept("settings", [1.0, "a"], [1.000001, "a"]) == [1.0, "a"]
    assert kept("settings", [1.0, "a"], [1.000001, "b"]) == [1.000001, "b"]
    assert kept("families", {}, found) == found
    assert [*differences("families", [5.0, 1.0], [5.0, math.nan]), *differences("families", 1.0, math.nan)], "NaN"


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS)
def test_it_is_computed_again(section: str) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (make test-all installs it)")
    pytest.importorskip("transformers", reason="transformers is not installed (make test-all installs it)")
    if section.startswith("llama"):
        pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (make test-all)")
    if section == "adapters":
        pytest.importorskip("peft", reason="peft is not installed (make test-all installs it)")
    from .record import SECTIONS as COMPUTED

    assert list(differences(section, recorded(section), COMPUTED[section]())) == []
