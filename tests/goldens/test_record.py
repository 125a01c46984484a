"""Every recorded figure is what PyTorch, transformers and llama.cpp compute today."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from . import HERE, recorded

NOT_RECORDED_HERE = {"gab"}
SECTIONS = sorted({path.stem for path in HERE.glob("*.json")} - NOT_RECORDED_HERE)
ROUNDING = 2e-6
"""Of float32, and of the nine digits that are kept."""
LOGITS = 2e-5
"""Of the largest logit of a list, where float32 may add in another order; a fifth of what tests allow glinfer."""
VECTORS = 1e-5
"""Of the largest element of a vector: transformers turns and normalises in float32 also where all else is float64, and
processors round that differently."""
SLACK = {
    **dict.fromkeys(("families", "halves", "adapters", "peers", "llama_logits", "longrope", "images"), LOGITS),
    "embedders": VECTORS,
}
UNSTABLE = {"transformers_version"}


def differences(section: str, theirs: Any, ours: Any, place: str = "") -> Iterator[str]:
    """Where two documents differ by more than rounding."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in {str(key) for key in [*theirs, *ours]} - UNSTABLE:
            pair = [{str(key): value for key, value in each.items()}.get(name) for each in (theirs, ours)]
            yield from differences(section, *pair, f"{place}/{name}")
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        numbers = bool(theirs) and all(isinstance(each, float) for each in [*theirs, *ours])
        allowed = SLACK.get(section, 0.0)
        for index, pair in enumerate(zip(theirs, ours, strict=True)):
            if not numbers:
                yield from differences(section, *pair, f"{place}/{index}")
            elif abs(pair[0] - pair[1]) > allowed * max(map(abs, theirs)) + ROUNDING * abs(pair[0]):
                yield f"{place}/{index}: {pair[0]} was recorded, {pair[1]} is computed"
    elif isinstance(theirs, float) and isinstance(ours, float):
        if abs(theirs - ours) > 10 * ROUNDING * max(1.0, abs(theirs)):
            yield f"{place}: {theirs} was recorded, {ours} is computed"
    elif theirs != ours:
        yield f"{place}: {theirs!r} was recorded, {ours!r} is computed"


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
