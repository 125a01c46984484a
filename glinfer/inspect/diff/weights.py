"""Comparison of two checkpoints tensor by tensor: errors, and a guess at what transformed each tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.engine.progress import Progress, no_progress
from glinfer.engine.report import Report, plain
from glinfer.formats import Checkpoint
from glinfer.inspect.pieces import Rows, WeightRows, spans
from glinfer.quant.words import bfloat16_bits

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
    """One tensor of two checkpoints: the kind of change, and the same in words, such as ``B is A transposed``.

    ``largest`` is the largest absolute difference, ``relative`` the same relative to the largest weight of A; None
    without two tensors of one shape.
    """

    name: str
    kind: str
    what: str
    largest: float | None = None
    relative: float | None = None


@dataclass(frozen=True)
class WeightsDiff(Report):
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
        different = [plain(tensor) for tensor in self.tensors if tensor.kind != IDENTICAL]
        return {"tensors": len(self.tensors), "identical": len(self.tensors) - len(different), "different": different}


def diff_weights(a: Checkpoint, b: Checkpoint, on_progress: Progress = no_progress) -> WeightsDiff:
    """Compare the tensors of two checkpoints by name, a few rows at a time.

    ``on_progress`` receives (compared tensors, tensors). Some GGML formats need the package gguf, else InputError.
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
            found.append(compared(name, WeightRows(a, name), WeightRows(b, name), formats))
        on_progress(done, len(names))
    return WeightsDiff(tuple(found))


def compared(name: str, a: Rows, b: Rows, formats: tuple[str, str] = ("F32", "F32")) -> TensorDiff:
    """Compare two vectors or matrices in pieces; ``formats`` are those of the files."""
    if a.shape != b.shape:
        if len(a.shape) == 2 and b.shape == a.shape[::-1] and _transposed(a, b):
            return TensorDiff(name, "transposed", "B is A transposed")
        return TensorDiff(name, "shape", f"A is {list(a.shape)}, B is {list(b.shape)}")
    if all(np.array_equal(x, y) for x, y in _pairs(a, b)):
        return TensorDiff(name, IDENTICAL, IDENTICAL, 0.0, 0.0)
    facts = _Statistics.of(a, b)
    kind, what = _guess(a, b, facts, formats)
    return TensorDiff(name, kind, what, facts.largest, facts.relative)


def _guess(a: Rows, b: Rows, facts: _Statistics, formats: tuple[str, str]) -> tuple[str, str]:
    """Guess what transformed a tensor; returns (kind, words)."""
    if not facts.peak_b or not facts.peak_a:
        return "zero", f"{'A' if facts.peak_b else 'B'} is zero"
    if facts.rounded:
        return "rounded", facts.rounded[0]
    if facts.relative <= _EXACT:
        return "digits", "only the last digits differ"
    if len(a.shape) == 2 and a.shape[0] == a.shape[1] and facts.rearranged(_CLOSE) and _transposed(a, b):
        return "transposed", "B is A transposed"
    limit = _EXACT * facts.peak_b
    scale, shift = np.float32(facts.scale), np.float32(facts.shift)
    if all(np.abs(x * scale - y).max() <= limit for x, y in _pairs(a, b)):
        return "scaled", f"B is A × {facts.scale:.6g}"
    if all(np.abs(x + shift - y).max() <= limit for x, y in _pairs(a, b)):
        return "shifted", f"B is A {'+' if facts.shift > 0 else '−'} {abs(facts.shift):.6g}"
    if facts.rearranged(_EXACT) and (of := _permuted(a, b)):
        return "permuted", f"{of} permuted"
    if facts.rows <= _FEW * a.shape[0]:
        of = "elements" if len(a.shape) == 1 else "rows"
        return "rows", f"{facts.rows} of {a.shape[0]} {of} differ, the first is {facts.first}"
    return _apart(facts, formats)


def _pairs(a: Rows, b: Rows) -> Iterator[tuple[Floats, Floats]]:
    """Yield the same rows of both, piece by piece."""
    return ((a[rows], b[rows]) for rows in spans(a.shape))


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
    """Statistics of two tensors of one shape.

    ``largest`` is the largest absolute difference, ``peak_a`` and ``peak_b`` are the largest absolute weights.
    ``scale`` and ``shift`` each bring A closest to B without the other. ``squares`` are the sums of squares. ``rows``
    counts the rows that differ, ``first`` is the first of them, and ``rounded`` has the keys of :data:`_ROUNDINGS`
    that explain all differences.
    """

    largest: float
    peak_a: float
    peak_b: float
    scale: float
    shift: float
    correlation: float
    squares: tuple[float, float]
    rows: int
    first: int
    rounded: list[str]

    @property
    def relative(self) -> float:
        return self.largest / self.peak_a if self.peak_a else math.inf

    def rearranged(self, tolerance: float) -> bool:
        """Whether both may have the same elements in another order, by their squares."""
        return not abs(self.squares[0] - self.squares[1]) > tolerance * self.squares[0]

    @classmethod
    def of(cls, a: Rows, b: Rows) -> _Statistics:
        peaks, sums, rows, first, before = np.zeros(3), np.zeros(5), 0, -1, 0
        rounded = list(_ROUNDINGS)
        for x, y in _pairs(a, b):
            differ = np.flatnonzero((x != y).reshape(len(x), -1).any(axis=1))
            first = before + int(differ[0]) if len(differ) and not rows else first
            rows, before = rows + len(differ), before + len(x)
            peaks = np.maximum(peaks, [np.abs(each).max() for each in (y - x, x, y)])  # keeps NaN
            products = [np.einsum("i,i", p.ravel(), q.ravel(), dtype=np.float64) for p, q in ((x, x), (y, y), (x, y))]
            sums += [x.sum(dtype=np.float64), y.sum(dtype=np.float64), *products]
            rounded = [what for what in rounded if _ROUNDINGS[what](x, y)]
        total_a, total_b, aa, bb, ab = sums.tolist()
        both, shift = math.sqrt(aa) * math.sqrt(bb), (total_b - total_a) / math.prod(a.shape)
        scale, correlation = ab / aa if aa else 0.0, ab / both if both else 0.0
        largest, peak_a, peak_b = peaks.tolist()
        return cls(largest, peak_a, peak_b, scale, shift, correlation, (aa, bb), rows, first, rounded)


def _to_f16(array: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return array.astype(np.float16).astype(np.float32)


def _to_bf16(array: Floats) -> Floats:
    return (bfloat16_bits(np.ascontiguousarray(array)) << np.uint32(16)).view(np.float32)


_ROUNDINGS: Mapping[str, Callable[[Floats, Floats], bool]] = {
    "B is A rounded to f16": lambda a, b: np.array_equal(_to_f16(a), b),
    "A is B rounded to f16": lambda a, b: np.array_equal(a, _to_f16(b)),
    "B is A rounded to bf16": lambda a, b: np.array_equal(_to_bf16(a), b),
    "A is B rounded to bf16": lambda a, b: np.array_equal(a, _to_bf16(b)),
}


def _transposed(a: Rows, b: Rows) -> bool:
    """Whether B is A transposed, up to rounding to half floats."""
    whole = np.concatenate([a[rows] for rows in spans(a.shape)], axis=0).T
    peak = float(np.abs(whole).max())
    return all(np.abs(whole[rows] - b[rows]).max() <= _CLOSE * peak for rows in spans(b.shape))


def _permuted(a: Rows, b: Rows) -> str:
    """Name what is permuted: elements, rows or columns; empty if nothing is."""
    if len(a.shape) == 1:
        x, y = (np.sort(np.concatenate([each[rows] for rows in spans(a.shape)])) for each in (a, b))
        return "elements" if np.array_equal(x, y) else ""
    (rows_a, columns_a), (rows_b, columns_b) = _hashes(a), _hashes(b)
    return "rows" if rows_a == rows_b else "columns" if columns_a == columns_b else ""


def _hashes(matrix: Rows) -> tuple[list[int], list[int]]:
    """Return the sorted hashes of all rows, and of all columns."""
    rows, columns = list[int](), [0] * matrix.shape[1]
    for piece in map(matrix.__getitem__, spans(matrix.shape)):
        rows += [hash(row.tobytes()) for row in piece]
        columns = [hash((before, column.tobytes())) for before, column in zip(columns, piece.T, strict=True)]
    return sorted(rows), sorted(columns)
