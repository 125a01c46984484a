"""Where figures differ by more than rounding, and which of them a new record keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

ROUNDING = 2e-6
"""Of float32, and of the nine digits that are kept."""
LOGITS = 2e-5
"""Of the largest logit of a list, where float32 may add in another order; a fifth of what tests allow glinfer."""
LEAST = 0.1
"""What the largest number counts as at least: smaller logits are sums of larger terms, which processors add unlike."""
VECTORS = 1e-5
"""Of the largest element of a vector: transformers turns and normalises in float32 also where all else is float64, and
processors round that differently."""
SLACK = {
    **dict.fromkeys(("families", "halves", "adapters", "peers", "llama_logits", "longrope"), LOGITS),
    **dict.fromkeys(("images", "qwen_images", "qwen35_images"), LOGITS),
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
            elif not abs(pair[0] - pair[1]) <= allowed * max(LEAST, *map(abs, theirs)) + ROUNDING * abs(pair[0]):
                yield f"{place}/{index}: {pair[0]} was recorded, {pair[1]} is computed"
    elif isinstance(theirs, float) and isinstance(ours, float):
        if not abs(theirs - ours) <= 10 * ROUNDING * max(1.0, abs(theirs)):
            yield f"{place}: {theirs} was recorded, {ours} is computed"
    elif theirs != ours:
        yield f"{place}: {theirs!r} was recorded, {ours!r} is computed"


def kept(section: str, before: Any, found: Any) -> Any:
    """New figures, with those of the last record where the two differ by rounding alone: git shows what else moved."""
    if not isinstance(found, dict) or not isinstance(before, dict):
        return found if any(differences(section, before, found)) else before
    news = {name: name not in before or any(differences(section, before[name], each)) for name, each in found.items()}
    return {name: each if news[name] else before[name] for name, each in found.items()}
