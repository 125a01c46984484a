"""Compare a model's textures with its weights, or with checksums of their upload."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from glinfer.engine.ids import real_number
from glinfer.engine.report import Report
from glinfer.errors import GlinferError, InputError
from glinfer.formats import Checkpoint
from glinfer.formats.files import FileStamp, shown
from glinfer.gl.layouts.grouped import GroupedLayout
from glinfer.gl.layouts.matrix import TexelLayout
from glinfer.kernels.spec import Array, TensorSpec
from glinfer.lower.plans import weights_for
from glinfer.lower.weights.restore import is_in_file
from glinfer.notebook import table
from glinfer.program.session import Session, WrongTexture, weight_matrix
from glinfer.program.texels import line_checksums

WeightSource = Callable[[], Mapping[str, Array]]
"""Returns the arrays that a plan uploads, by tensor name; raises InputError if they are unavailable."""


def reread(
    read: Callable[[], Checkpoint], files: Mapping[str, FileStamp], plan: str, weights: str
) -> Mapping[str, Array]:
    """The arrays that a plan uploads, from the checkpoint's files again, each made at its first use.

    ``files`` has the stamps of all its files by absolute path; a missing or changed file is an InputError.
    """
    for path, stamp in files.items():
        try:
            found = FileStamp.of(Path(path).stat())
        except OSError as error:
            raise _changed(path, f"gone ({os.strerror(error.errno or 0)})") from None
        if found != stamp:
            what = "written again" if found.size == stamp.size else f"now {found.size} bytes long, not {stamp.size}"
            raise _changed(path, f"{what} since the model was loaded")
    try:
        checkpoint = read()
    except GlinferError as error:
        raise _changed("the model's file", f"no longer readable ({error})") from None
    return weights_for(checkpoint, plan, weights)


def _changed(path: str, what: str) -> InputError:
    return InputError(
        f"{shown(path)} is {what}; expected the unchanged file; compare with the checksums of the upload "
        "(share below 1), which needs no file, or load the model again"
    )


MAX_TEXELS = 16
"""Differing numbers of one texture that a report lists."""


@dataclass(frozen=True)
class TexelDifference:
    """One number of a texture with wrong bits, which ``found`` and ``expected`` have as unsigned integers.

    ``row`` and ``col`` are its position in the tensor, whose columns are words if weights are packed; None in padding.
    """

    x: int
    y: int
    channel: int
    row: int | None
    col: int | None
    found: int
    expected: int


@dataclass(frozen=True)
class TextureCheck(Report):
    """The comparison of one weight's texture, of ``width`` × ``height`` texels.

    Attributes:
        names: the tensor, and the tensors that are views of it.
        identical: whether all checked bits are right.
        lossless: whether the unpacked texels equal the numbers or blocks of the file bit for bit.
        differing: the number of wrong elements; 0 if only checksums of lines could be compared.
        lines: the first differing lines of texels.
        texels: the first differing numbers.
        max_difference: the largest difference of a number, 0 for -0 and 0; infinite where one is NaN.
    """

    derived = ("name", "passed")

    names: tuple[str, ...]
    width: int
    height: int
    format: str
    bytes: int
    identical: bool = True
    lossless: bool = True
    differing: int = 0
    lines: tuple[int, ...] = ()
    texels: tuple[TexelDifference, ...] = ()
    max_difference: float = 0.0

    @property
    def name(self) -> str:
        """Name of the tensor."""
        return self.names[0]

    @property
    def passed(self) -> bool:
        """Whether the texture is right."""
        return self.identical and self.lossless


class Checked(NamedTuple):
    """The amounts that a comparison read back."""

    textures: int
    texels: int
    bytes: int


@dataclass(frozen=True)
class TexturesReport(Report):
    """The result of :meth:`glinfer.engine.model.Model.verify_textures` for a share of the texture memory.

    ``different`` has textures with wrong bits, ``wrong_textures`` the inputs of draws that sample a texture other than
    the one in their plan.
    """

    derived = ("ok",)

    share: float
    checked: Checked
    different: tuple[TextureCheck, ...] = ()
    wrong_textures: tuple[WrongTexture, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not self.different and not self.wrong_textures

    def _repr_html_(self) -> str:
        if self.ok:
            return table(("checked", "number"), self.checked._asdict().items(), "all as they should be")
        rows: list[tuple[object, ...]] = [
            (each.name, f"{each.width}×{each.height} {each.format}", each.differing or f"{len(each.lines)} lines")
            for each in self.different
        ]
        rows += [(f"{each.draw}, {each.sampler}", each.found, each.expected) for each in self.wrong_textures]
        caption = f"{len(rows)} problems in {self.checked.textures} textures"
        return table(("texture, or input of a draw", "found", "different numbers, or expected"), rows, caption)


class TextureComparison:
    """Compares the textures of a model's bound plans, whole or a few lines at a time."""

    def __init__(self, bound: Session, source: WeightSource) -> None:
        """Compare the weights of ``bound``; ``source`` makes the uploaded arrays again."""
        self._bound, self._source = bound, source
        self._next = (0, 0)  # (weight, line) where the next sample begins

    def check(self, share: float = 1.0) -> TexturesReport:
        """Compare whole textures, or the next lines; see :meth:`glinfer.engine.model.Model.verify_textures`."""
        part = real_number(share)
        if not 0 < part <= 1:
            raise InputError(f"share is {share!r}; expected a number above 0 and at most 1")
        self._bound.require_alive()
        if part == 1.0:
            checks = list(self.whole())
            texels = sum(check.width * check.height for check in checks)
            checked = Checked(len(checks), texels, sum(check.bytes for check in checks))
            different = [check for check in checks if not check.passed]
        else:
            checked, different = self._sample(part)
        return TexturesReport(part, checked, tuple(different), tuple(self.wrong_textures()))

    def wrong_textures(self) -> Iterator[WrongTexture]:
        """Find draws of all plans over these weights that sample a texture other than the one in their plan."""
        for session in self._bound.family:
            yield from session.wrong_textures()

    def whole(self) -> Iterator[TextureCheck]:
        """Compare every texture with the weights, one array at a time; InputError if those are unavailable."""
        arrays = self._source()
        for tensor in self._bound.plan.of_kind("weight"):
            yield self._compared(tensor, arrays)

    def _compared(self, tensor: TensorSpec, arrays: Mapping[str, Array]) -> TextureCheck:
        texture, matrix = self._bound.texture(tensor.name), weight_matrix(tensor, arrays)
        layout = texture.layout
        found, expected = texture.read_lines(0, layout.height), layout.pack(matrix)
        same = np.array_equal(as_bits(found), as_bits(expected))
        unpacked = layout.unpack(found, *tensor.shape) if same else None
        lossless = unpacked is None or (
            np.array_equal(as_bits(unpacked), as_bits(matrix)) and is_in_file(arrays, tensor.name, unpacked)
        )
        check = self._described(tensor, lossless=lossless)
        return check if same else _differences(check, layout, found, expected)

    def _described(self, tensor: TensorSpec, *, lossless: bool = True) -> TextureCheck:
        layout, plan = self._bound.texture(tensor.name).layout, self._bound.plan
        names = (tensor.name, *(each.name for each in plan.tensors if each.view_of == tensor.name))
        size = layout.width, layout.height, layout.format.name, layout.nbytes
        return TextureCheck(names, *size, lossless=lossless)

    def _sample(self, share: float) -> tuple[Checked, list[TextureCheck]]:
        bound, weights = self._bound, self._bound.plan.of_kind("weight")
        layouts = [bound.texture(each.name).layout for each in weights]
        left, texels, read, textures = math.ceil(share * sum(each.nbytes for each in layouts)), 0, 0, set[int]()
        different: dict[int, list[int]] = {}
        number, first = self._next
        while left > 0:
            name, layout = weights[number].name, layouts[number]
            line_bytes = layout.nbytes // layout.height
            count = min(layout.height - first, -(-left // line_bytes))
            found = line_checksums(bound.texture(name).read_lines(first, count))
            given = bound.checksums[name][first : first + count]
            if wrong := (first + np.flatnonzero(found != given)).tolist():
                different.setdefault(number, []).extend(wrong)
            left -= count * line_bytes
            read += count * line_bytes
            texels += count * layout.width
            textures.add(number)
            number, first = (number, first + count) if first + count < layout.height else (number + 1, 0)
            number %= len(weights)
            self._next = number, first
        checks = [self._located(weights[number], lines) for number, lines in different.items()]
        return Checked(len(textures), texels, read), checks

    def _located(self, tensor: TensorSpec, lines: list[int]) -> TextureCheck:
        """The check of a weight with differing lines, including texels if the weights are available."""
        check = replace(self._described(tensor), identical=False, lines=tuple(lines[:MAX_TEXELS]))
        texture = self._bound.texture(tensor.name)
        try:
            expected = texture.layout.pack(weight_matrix(tensor, self._source()))
        except InputError:
            return check
        found = texture.read_lines(0, texture.layout.height)
        compared = np.array(expected)
        compared[lines] = found[lines]
        if np.array_equal(as_bits(compared), as_bits(expected)):
            return check  # the file changed too, to the bits of these lines
        return _differences(check, texture.layout, compared, expected)


def as_bits(array: Array) -> Array:
    """View the bits of each element as an unsigned integer of its size."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _differences(check: TextureCheck, layout: TexelLayout, found: Array, expected: Array) -> TextureCheck:
    """Add the differences of texels to a check."""
    channels = layout.format.channels
    shape = layout.height, layout.width, channels
    bits, wanted = as_bits(found).reshape(shape), as_bits(expected).reshape(shape)
    differ = bits != wanted
    lines = np.flatnonzero(differ.any(axis=(1, 2)))
    indices = [(y, *index) for y in lines[:MAX_TEXELS].tolist() for index in np.argwhere(differ[y]).tolist()][
        :MAX_TEXELS
    ]
    pairs = [(int(bits[index]), int(wanted[index])) for index in indices]
    marks = [(*index, one ^ other) for index, (one, other) in zip(indices, pairs, strict=True)]
    texels = [
        TexelDifference(x, y, channel, row, col, *pair)
        for (y, x, channel), (row, col), pair in zip(indices, _elements(layout, found, marks), pairs, strict=True)
    ]
    with np.errstate(invalid="ignore", over="ignore"):
        values, others = (each.reshape(shape)[differ].astype(np.float64) for each in (found, expected))
        gaps = np.abs(values - others)
    return replace(
        check,
        identical=False,
        differing=int(np.count_nonzero(differ)),
        lines=tuple(lines[:MAX_TEXELS].tolist()),
        texels=tuple(texels),
        max_difference=float(np.max(np.where(np.isnan(gaps), np.inf, gaps))),
    )


def _elements(
    layout: TexelLayout, texels: Array, indices: list[tuple[int, int, int, int]]
) -> list[tuple[int | None, int | None]]:
    """The (row, column) of the tensor at each index (y, x, channel, differing bits); (None, None) in padding."""
    marks = np.zeros(texels.shape, dtype=texels.dtype)
    by_index = marks.reshape(layout.height, layout.width, layout.format.channels)
    elements: list[tuple[int | None, int | None]] = []
    for y, x, channel, bits in indices:
        by_index[y, x, channel] = bits if isinstance(layout, GroupedLayout) else 1  # unpacking splits words
        found = np.argwhere(layout.unpack(marks, layout.rows, layout.cols))
        elements.append((int(found[0, 0]), int(found[0, 1])) if len(found) else (None, None))
        by_index[y, x, channel] = 0
    return elements
