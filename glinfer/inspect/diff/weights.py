"""Comparison of two checkpoints tensor by tensor: errors, and a guess at what transformed each tensor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.engine.progress import Progress, no_progress
from glinfer.formats import Checkpoint
from glinfer.limits import PIECE_ELEMENTS
from glinfer.models.oracle import relative_error

Floats = npt.NDArray[np.float32]

_EXACT = 1e-6  # error of a scaled or shifted matrix, rounded to float32
_CLOSE = 1e-3  # error of a transposed matrix, rounded to half floats
_IN_BLOCKS = 0.3  # error of the coarsest formats, relative to the largest weight
_ALIKE = 0.99  # correlation of a matrix with its rounding to such a format
_UNRELATED = 0.3
_FEW = 0.25  # share of rows up to which "some rows differ"

IDENTICAL = "identical"


@dataclass(frozen=True)
class TensorDiff:
    """One tensor of two checkpoints.

    Attributes:
        name: name in both.
        kind: ``identical``, ``missing``, ``shape``, ``zero``, ``rounded``, ``digits``, ``transposed``, ``scaled``,
            ``shifted``, ``permuted``, ``rows``, ``format``, ``changed`` or ``unrelated``.
        what: the kind in words, such as ``B is A transposed``.
        largest: largest absolute difference; None without two tensors of one shape.
        relative: the same, relative to the largest weight of A.
    """

    name: str
    kind: str
    what: str
    largest: float | None = None
    relative: float | None = None


@dataclass(frozen=True)
class WeightsDiff:
    """All tensors of two checkpoints, those of A first."""

    tensors: tuple[TensorDiff, ...]

    @property
    def identical(self) -> bool:
        """Whether both have equal tensors."""
        return all(tensor.kind == IDENTICAL for tensor in self.tensors)

    @property
    def groups(self) -> dict[str, list[TensorDiff]]:
        """Tensors that differ, by ``what``, the farthest apart first."""
        found: dict[str, list[TensorDiff]] = {}
        for tensor in self.tensors:
            if tensor.kind != IDENTICAL:
                found.setdefault(tensor.what, []).append(tensor)
        for group in found.values():
            group.sort(key=lambda tensor: -(tensor.relative or 0.0))
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; identical tensors are only counted."""
        different = [dataclasses.asdict(tensor) for tensor in self.tensors if tensor.kind != IDENTICAL]
        return {"tensors": len(self.tensors), "identical": len(self.tensors) - len(different), "different": different}


def diff_weights(a: Checkpoint, b: Checkpoint, on_progress: Progress = no_progress) -> WeightsDiff:
    """Compare the tensors of two checkpoints by name, with one of each unpacked at a time.

    ``on_progress`` receives (compared tensors, tensors).

    Raises:
        InputError: a file has GGML blocks, and the package gguf, which unpacks them, is not installed.
    """
    formats_a, formats_b = a.formats(), b.formats()
    names = [*formats_a, *(name for name in formats_b if name not in formats_a)]
    found = []
    for done, name in enumerate(names, start=1):
        if name not in formats_a or name not in formats_b:
            lacking = "A" if name not in formats_a else "B"
            found.append(TensorDiff(name, "missing", f"missing in {lacking}"))
        else:
            formats = formats_a[name], formats_b[name]
            found.append(compared(name, a.floats(name), b.floats(name), formats))
        on_progress(done, len(names))
    return WeightsDiff(tuple(found))


def compared(name: str, a: Floats, b: Floats, formats: tuple[str, str] = ("F32", "F32")) -> TensorDiff:
    """Compare two vectors or matrices; ``formats`` are those of the files."""
    if a.shape != b.shape:
        if a.ndim == 2 and b.shape == a.T.shape and _transposed(a, b):
            return TensorDiff(name, "transposed", "B is A transposed")
        return TensorDiff(name, "shape", f"A is {list(a.shape)}, B is {list(b.shape)}")
    if np.array_equal(a, b):
        return TensorDiff(name, IDENTICAL, IDENTICAL, 0.0, 0.0)
    facts = _Statistics.of(a, b)
    kind, what = _guess(a, b, facts, formats)
    return TensorDiff(name, kind, what, facts.largest, facts.relative)


def _guess(a: Floats, b: Floats, facts: _Statistics, formats: tuple[str, str]) -> tuple[str, str]:
    """Guess what transformed a tensor; returns (kind, words)."""
    if not facts.peak_b or not facts.peak_a:
        return "zero", f"{'A' if facts.peak_b else 'B'} is zero"
    for name, rounded in (("f16", _to_f16), ("bf16", _to_bf16)):
        if _all(a, b, lambda x, y, to=rounded: np.array_equal(to(x), y)):  # type: ignore[misc]
            return "rounded", f"B is A rounded to {name}"
        if _all(a, b, lambda x, y, to=rounded: np.array_equal(x, to(y))):  # type: ignore[misc]
            return "rounded", f"A is B rounded to {name}"
    if facts.relative <= _EXACT:
        return "digits", "only the last digits differ"
    if a.ndim == 2 and a.shape[0] == a.shape[1] and _transposed(a, b):
        return "transposed", "B is A transposed"
    if facts.off_by(b, a, scale=facts.scale, shift=0.0) <= _EXACT:
        return "scaled", f"B is A × {facts.scale:.6g}"
    if facts.off_by(b, a, scale=1.0, shift=facts.shift) <= _EXACT:
        return "shifted", f"B is A {'+' if facts.shift > 0 else '−'} {abs(facts.shift):.6g}"
    return _permuted(a, b) or _some_rows(a, b) or _apart(facts, formats)


def _apart(facts: _Statistics, formats: tuple[str, str]) -> tuple[str, str]:
    correlation = facts.correlation
    in_a, in_b = formats
    if in_a != in_b and correlation >= _ALIKE and facts.relative <= _IN_BLOCKS:
        if in_a == "F32":
            return "format", f"B is A in {in_b}"
        return "format", f"A is B in {in_a}" if in_b == "F32" else f"A is in {in_a}, B in {in_b}"
    if correlation < _UNRELATED:
        return "unrelated", "B is unrelated to A"
    return "changed", "B is close to A"


@dataclass(frozen=True)
class _Statistics:
    """Statistics of two tensors of one shape, in float64.

    ``scale`` and ``shift`` each bring A closest to B without the other; ``largest`` is the largest absolute
    difference, ``peak_a`` and ``peak_b`` are the largest absolute weights.
    """

    largest: float
    peak_a: float
    peak_b: float
    scale: float
    shift: float
    correlation: float

    @property
    def relative(self) -> float:
        return self.largest / self.peak_a if self.peak_a else math.inf

    @classmethod
    def of(cls, a: Floats, b: Floats) -> _Statistics:
        largest = peak_a = peak_b = 0.0
        aa = bb = ab = sum_a = sum_b = 0.0
        for x, y in _pieces(a, b):
            x, y = x.astype(np.float64), y.astype(np.float64)
            largest = max(largest, float(np.abs(y - x).max()))
            peak_a, peak_b = max(peak_a, float(np.abs(x).max())), max(peak_b, float(np.abs(y).max()))
            aa, bb, ab = aa + float((x * x).sum()), bb + float((y * y).sum()), ab + float((x * y).sum())
            sum_a, sum_b = sum_a + float(x.sum()), sum_b + float(y.sum())
        both = math.sqrt(aa) * math.sqrt(bb)
        correlation = ab / both if both else 0.0
        return cls(largest, peak_a, peak_b, ab / aa if aa else 0.0, (sum_b - sum_a) / a.size, correlation)

    def off_by(self, b: Floats, a: Floats, *, scale: float, shift: float) -> float:
        """Return the error of B against A scaled and shifted, relative to the largest weight of B."""
        worst = 0.0
        for x, y in _pieces(a, b):
            worst = max(worst, float(np.abs(x.astype(np.float64) * scale + shift - y).max()))
            if worst > _EXACT * self.peak_b:
                break  # the answer is known
        return worst / self.peak_b


def _pieces(a: Floats, b: Floats) -> Iterator[tuple[Floats, Floats]]:
    """Yield both tensors a few rows at a time."""
    step = max(1, PIECE_ELEMENTS // max(1, a[0].size))
    for first in range(0, len(a), step):
        yield a[first : first + step], b[first : first + step]


def _all(a: Floats, b: Floats, test: Callable[[Floats, Floats], bool]) -> bool:
    return all(test(x, y) for x, y in _pieces(a, b))


def _to_f16(array: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return array.astype(np.float16).astype(np.float32)


def _to_bf16(array: Floats) -> Floats:
    """Round to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    up = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + up) & np.uint32(0xFFFF0000)).view(np.float32)


def _transposed(a: Floats, b: Floats) -> bool:
    return _all(a.T, b, lambda x, y: np.array_equal(x, y) or relative_error(y, x) <= _CLOSE)


def _permuted(a: Floats, b: Floats) -> tuple[str, str] | None:
    if a.ndim == 1:
        return ("permuted", "elements permuted") if np.array_equal(np.sort(a), np.sort(b)) else None
    for what, one, other in (("rows", a, b), ("columns", a.T, b.T)):
        if sorted(hash(row.tobytes()) for row in one) == sorted(hash(row.tobytes()) for row in other):
            return "permuted", f"{what} permuted"
    return None


def _some_rows(a: Floats, b: Floats) -> tuple[str, str] | None:
    other = np.flatnonzero((a != b).reshape(len(a), -1).any(axis=1))
    if len(other) > _FEW * len(a):
        return None
    of = "elements" if a.ndim == 1 else "rows"
    return "rows", f"{len(other)} of {len(a)} {of} differ, the first is {int(other[0])}"
