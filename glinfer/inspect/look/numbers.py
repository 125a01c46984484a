"""Numbers about arrays, as ``look.json`` has them: ranges and means, what is odd, where attention goes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.models.oracle import MASK_LIMIT

Floats = npt.NDArray[np.floating]
Numbers = dict[str, float | int | None]


@dataclass
class Tally:
    """Counts and sums over an array that comes in parts."""

    count: int = 0
    zeros: int = 0
    nan: int = 0
    infinite: int = 0
    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    squares: float = 0.0

    def add(self, part: Floats) -> None:
        """Count a part."""
        known = np.isfinite(part)
        finite = np.asarray(part if known.all() else part[known], dtype=np.float64).reshape(-1)
        nan = 0 if finite.size == part.size else int(np.count_nonzero(np.isnan(part)))
        self.count += part.size
        self.nan += nan
        self.infinite += part.size - finite.size - nan
        self.zeros += finite.size - int(np.count_nonzero(finite))
        if finite.size:
            self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))
            self.total += float(finite.sum())
            self.squares += float(np.dot(finite, finite))

    def numbers(self) -> Numbers:
        """The counts by name, and ``min``, ``max``, ``mean`` and ``std`` of what is finite: None where nothing is."""
        found: Numbers = {name: getattr(self, name) for name in ("count", "zeros", "nan", "infinite")}
        finite = self.count - self.nan - self.infinite
        if not finite:
            return found | dict.fromkeys(("min", "max", "mean", "std"))
        mean = self.total / finite
        spread = math.sqrt(max(0.0, self.squares / finite - mean * mean))
        return found | {"min": self.low, "max": self.high, "mean": mean, "std": spread}


def layer_of(name: str) -> int | None:
    """The block that a tensor's name has in it, as in ``model.layers.3.mlp.up_proj.weight``; None if there is none."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def statistics(name: str, array: Floats) -> dict[str, Any]:
    """What a captured tensor holds; scores that a mask made −1e30 are ``masked``, and counted nowhere else."""
    masked = np.isfinite(array) & (array <= -MASK_LIMIT)
    tally = Tally()
    tally.add(array[~masked])
    told = {"name": name, "layer": layer_of(name), "shape": list(array.shape)}
    return {**told, **tally.numbers(), "masked": int(np.count_nonzero(masked))}


def attention_numbers(probs: Floats) -> list[dict[str, float | None]]:
    """Of each head of attention [heads, S, S] how far it spreads, and where it goes; means over the queries.

    ``entropy_bits`` is 0 where every query looks at one token. ``to_first``, ``to_itself`` and ``to_previous`` are
    shares from 0 to 1, the first and the last over queries that have a token before them: None for a single token.
    """
    found: list[dict[str, float | None]] = []
    for head in probs.astype(np.float64):
        with np.errstate(divide="ignore", invalid="ignore"):
            bits = np.where(head > 0, -head * np.log2(head), 0.0).sum(axis=1)
        later = head[1:]
        values: Mapping[str, float] = {
            "entropy_bits": float(bits.mean()),
            "to_first": float(later[:, 0].mean()) if len(later) else math.nan,
            "to_itself": float(np.diagonal(head).mean()),
            "to_previous": float(np.diagonal(later).mean()) if len(later) else math.nan,
        }
        found.append({name: value if math.isfinite(value) else None for name, value in values.items()})
    return found
