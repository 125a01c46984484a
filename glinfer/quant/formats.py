"""The registry of weight formats: those of files and textures, and the values of ``weights=`` and ``cache=``.

To add a block format, add a row to :data:`BLOCK_FORMATS`; for a packing of words, add a row to :data:`WORD_FORMATS`.
Other tables of layouts are derived from these two. Shaders identify a format by its number:
shaders/common/group_form.glsl decodes groups of 32 weights of blocks, and shaders/common/unpack.glsl reads words.

Textures hold blocks sorted into groups (:mod:`glinfer.quant.groups`), and formats with tables or fewer than four bits
as four-bit codes (:mod:`glinfer.quant.coded`). :mod:`glinfer.quant.tables` has the number of each code, and
shaders/common/codes.glsl computes it.

The block formats and their names are GGML's (ggml-common.h, ggml-quants.c), except two with one float32 scale for a
whole row: ``Q8_ROW`` of 8-bit and ``Q16_ROW`` of 16-bit integers. Their rows are the integers, then the scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from glinfer.errors import InputError
from glinfer.quant.tables import (
    FP4_TABLE,
    IQ1_TABLE,
    IQ2_TABLE,
    IQ3_S_TABLE,
    IQ3_XXS_TABLE,
    IQ4_TABLE,
    TERNARY_TABLE,
    CodeTable,
)

F32, F16 = "F32", "F16"
"""The formats of a file's tensors without blocks."""
FROM_FILE = "file"
"""The value of ``weights=`` that keeps every matrix in the format of its file."""
TEXEL_BYTES = 16
GROUP = 32
"""Weights that a shader unpacks together; a block is a whole number of groups, or its row is padded to one."""
SCALE_BYTES = 4
"""Bytes of the float32 scale at the end of a row of ``Q8_ROW`` or ``Q16_ROW``."""
HALF, PAIR, SIX_BITS, FOUR_BITS, FLOATS = "half", "pair", "six bits", "four bits", "floats"
SIGNED_BYTES, POWER = "signed bytes", "power"
SCALE_NUMBERS = {HALF: 0, PAIR: 1, SIX_BITS: 2, FOUR_BITS: 3, FLOATS: 4, SIGNED_BYTES: 5, POWER: 6}
"""The kinds of a group's scales, and their numbers in shaders/common/group_form.glsl."""
WIDE, WIDE_NUMBER = "wide", 99
"""The packing of a matrix whose rows have different formats, and its number in shaders."""
BLOCK_GROUPS = 8
"""Groups of a block of 256 weights, which share half floats."""
Define = tuple[str, int | float]


@dataclass(frozen=True)
class Plane:
    """Bytes of a block with ``bits`` of each number: chunk c, bits b, byte j belong to number (c · 8/bits + b) · w + j.

    Attributes:
        start, nbytes: the byte range in a block.
        chunks: number of chunks, of w = nbytes / chunks bytes each.
        bits: bits of one number.
        position: position of the lowest of these bits in the number.
    """

    start: int
    nbytes: int
    chunks: int
    bits: int
    position: int = 0


@dataclass(frozen=True)
class GroupForm:
    """The layout of a format's blocks in groups of 32 weights; see :mod:`glinfer.quant.groups`.

    Attributes:
        planes: the bytes of the numbers.
        scales: contents of a group's scale word: ``half``, d; ``pair``, d and a minimum; ``six bits``, a factor and a
            minimum's factor; ``four bits``, both of these for each half of the group; ``floats``, a float32 scale and a
            float32 minimum for each half; ``signed bytes``, a signed factor for each half; ``power``, a power of two,
            the upper half of a float32.
        scale_start: offset of the half floats in a block.
        factor_start: offset of the factors in a block.
        low_bits: bits of a number in the low words, 4 or 8.
        high_words: words of a group with the bits above the low four.
        offset: subtracted from every number.
        table: the table of the numbers if they are codes, which have no offset.
    """

    planes: tuple[Plane, ...]
    scales: str
    scale_start: int = 0
    factor_start: int = 0
    low_bits: int = 4
    high_words: int = 0
    offset: int = 0
    table: CodeTable | None = None

    @property
    def low_words(self) -> int:
        """Words of a group with the low bits of its numbers."""
        return GROUP * self.low_bits // 32

    @property
    def shared(self) -> bool:
        """Whether blocks of 256 share the half floats, so that a group has only small factors."""
        return self.scales in (SIX_BITS, FOUR_BITS, SIGNED_BYTES)

    @property
    def scale_words(self) -> int:
        """Words of a group's scale."""
        return 4 if self.scales == FLOATS else 1

    @property
    def scale_bytes(self) -> int:
        """Bytes of a number of a scale in a row."""
        return 2 if self.shared or self.scales in (HALF, POWER) else 4

    @property
    def scale_texels(self) -> int:
        """Texels of the scales of four groups, of four outputs each."""
        return 2 if self.scale_bytes == 2 else 4 * self.scale_words

    def section_texels(self, inputs: int) -> list[int]:
        """Texels of each section of a row of ``inputs`` weights: low bits, high bits, scales, half floats of blocks."""
        groups = -(-inputs // GROUP)
        numbers = 4 * self.low_words, 4 * self.high_words, self.scale_words * self.scale_bytes
        each = [groups * nbytes for nbytes in numbers]
        return [-(-nbytes // TEXEL_BYTES) for nbytes in (*each, 4 * groups // BLOCK_GROUPS * self.shared)]

    def defines(self) -> list[Define]:
        """The defines of shaders/common/group_form.glsl."""
        return [
            ("FORM_LOW", self.low_bits),
            ("FORM_HIGH", self.high_words),
            ("FORM_SCALES", SCALE_NUMBERS[self.scales]),
            ("OFFSET", self.offset),
            ("FORM_TABLE", int(self.table is not None)),
            *([] if self.table is None else self.table.defines()),
        ]


@dataclass(frozen=True)
class BlockFormat:
    """A block format.

    Attributes:
        name: GGML's name, or ``Q8_ROW`` or ``Q16_ROW``.
        number: the format's number in shaders.
        weights: weights of a block; 0 if a row is one block.
        nbytes: bytes of a block, or of one weight if a row is one block.
        scales: (start, count) of the half floats in a block.
        groups: the layout in groups of 32 in textures; None for formats whose bytes keep their order.
    """

    name: str
    number: int
    weights: int
    nbytes: int
    scales: tuple[int, int] = (0, 0)
    groups: GroupForm | None = None

    def row_bytes(self, inputs: int) -> int:
        """Bytes of a row of ``inputs`` weights in a file."""
        if not self.weights:
            return inputs * self.nbytes + SCALE_BYTES
        return inputs // self.weights * self.nbytes

    def section_texels(self, inputs: int) -> list[int]:
        """Texels of each section of a row in a texture; without groups the numbers, then the scale of the row."""
        if self.groups is not None:
            return self.groups.section_texels(inputs)
        return [-(-inputs * self.nbytes // TEXEL_BYTES), int(not self.weights)]

    def defines(self, inputs: int) -> list[Define]:
        """The defines of shaders/common/weights.glsl: the format, the first texel of each section, and the form."""
        texels = self.section_texels(inputs)
        names = ("SCALES_AT",) if self.groups is None else ("HIGH_AT", "SCALES_AT", "SHARED_AT")
        starts = [(name, sum(texels[: number + 1])) for number, name in enumerate(names)]
        return [("FORMAT", self.number), *starts, *([] if self.groups is None else self.groups.defines())]


def _coded(name: str, number: int, nbytes: int, scale_at: int | None, table: CodeTable) -> BlockFormat:
    """A format of codes in blocks of 256 weights; ``scale_at`` is the offset of the half float in a block."""
    scales = (0, 0) if scale_at is None else (scale_at, 1)
    return BlockFormat(name, number, 256, nbytes, scales, GroupForm((), SIGNED_BYTES, table=table))


_Q4_0 = GroupForm((Plane(2, 16, 1, 4),), HALF, offset=8)
_Q4_1 = GroupForm((Plane(4, 16, 1, 4),), PAIR)
_Q5_0 = GroupForm((Plane(6, 16, 1, 4), Plane(2, 4, 4, 1, 4)), HALF, high_words=1, offset=16)
_Q5_1 = GroupForm((Plane(8, 16, 1, 4), Plane(4, 4, 4, 1, 4)), PAIR, high_words=1)
_Q8_0 = GroupForm((Plane(2, 32, 1, 8),), HALF, low_bits=8)
_Q2_K = GroupForm((Plane(16, 64, 2, 2),), FOUR_BITS, scale_start=80)
_Q3_K = GroupForm((Plane(32, 64, 2, 2), Plane(0, 32, 1, 1, 2)), SIGNED_BYTES, 108, 96, offset=4)
_Q4_K = GroupForm((Plane(16, 128, 4, 4),), SIX_BITS, factor_start=4)
_Q5_K = GroupForm((Plane(48, 128, 4, 4), Plane(16, 32, 1, 1, 4)), SIX_BITS, factor_start=4, high_words=1)
_Q6_K = GroupForm((Plane(0, 128, 2, 4), Plane(128, 64, 2, 2, 4)), SIGNED_BYTES, 208, 192, high_words=2, offset=32)
_IQ4_NL = GroupForm((Plane(2, 16, 1, 4),), HALF, table=IQ4_TABLE)
_MXFP4 = GroupForm((Plane(1, 16, 1, 4),), POWER, table=FP4_TABLE)

BLOCK_FORMATS = {
    made.name: made
    for made in (
        BlockFormat("BF16", 1, 1, 2),
        BlockFormat("Q4_0", 2, 32, 18, (0, 1), _Q4_0),
        BlockFormat("Q4_1", 3, 32, 20, (0, 2), _Q4_1),
        BlockFormat("Q5_0", 4, 32, 22, (0, 1), _Q5_0),
        BlockFormat("Q5_1", 5, 32, 24, (0, 2), _Q5_1),
        BlockFormat("Q8_0", 6, 32, 34, (0, 1), _Q8_0),
        BlockFormat("Q2_K", 7, 256, 84, (80, 2), _Q2_K),
        BlockFormat("Q3_K", 8, 256, 110, (108, 1), _Q3_K),
        BlockFormat("Q4_K", 9, 256, 144, (0, 2), _Q4_K),
        BlockFormat("Q5_K", 10, 256, 176, (0, 2), _Q5_K),
        BlockFormat("Q6_K", 11, 256, 210, (208, 1), _Q6_K),
        BlockFormat("Q8_ROW", 12, 0, 1),
        BlockFormat("Q16_ROW", 13, 0, 2),
        BlockFormat("IQ4_NL", 14, 32, 18, (0, 1), _IQ4_NL),
        BlockFormat("MXFP4", 15, 32, 17, (0, 0), _MXFP4),
        _coded("IQ4_XS", 16, 136, 0, IQ4_TABLE),
        _coded("IQ3_S", 17, 110, 0, IQ3_S_TABLE),
        _coded("IQ3_XXS", 18, 98, 0, IQ3_XXS_TABLE),
        _coded("IQ2_S", 19, 82, 0, IQ2_TABLE),
        _coded("IQ2_XS", 20, 74, 0, IQ2_TABLE),
        _coded("IQ2_XXS", 21, 66, 0, IQ2_TABLE),
        _coded("IQ1_M", 22, 56, None, IQ1_TABLE),
        _coded("IQ1_S", 23, 50, 0, IQ1_TABLE),
        _coded("TQ1_0", 24, 54, 52, TERNARY_TABLE),
        _coded("TQ2_0", 25, 66, 64, TERNARY_TABLE),
    )
}
"""The block formats by name."""
BY_NUMBER = {form.number: form for form in BLOCK_FORMATS.values()}
"""The block formats by their number in shaders."""
GROUP_FORMS = {name: form.groups for name, form in BLOCK_FORMATS.items() if form.groups is not None}
"""The layouts of the block formats that products read in groups, by name."""
_WIDE_FORM = GroupForm((), FLOATS, low_bits=8)


def block_format(name: str) -> BlockFormat:
    """The block format named ``name``.

    Raises:
        InputError: no block format has this name.
    """
    if name not in BLOCK_FORMATS:
        raise InputError(f"there is no packed format {name!r}; known: {', '.join(BLOCK_FORMATS)}")
    return BLOCK_FORMATS[name]


def is_grouped(packing: str) -> bool:
    """Whether products read a packing in groups of 32 weights."""
    return packing == WIDE or packing in GROUP_FORMS


def group_form(packing: str) -> GroupForm:
    """The group layout of a packing.

    Raises:
        InputError: it has no blocks of 32 or 256 weights.
    """
    if packing == WIDE:
        return _WIDE_FORM
    if packing not in GROUP_FORMS:
        raise InputError(f"{packing} has no groups of {GROUP} weights; known: {', '.join(GROUP_FORMS)}")
    return GROUP_FORMS[packing]


def group_number(packing: str) -> int:
    """The number of a packing in groups in shaders."""
    return WIDE_NUMBER if packing == WIDE else block_format(packing).number


def packing_of_group(number: int) -> str:
    """The packing in groups with this number in shaders."""
    return WIDE if number == WIDE_NUMBER else BY_NUMBER[number].name


@dataclass(frozen=True)
class WordFormat:
    """A packing of weights in words, which are the channels of texels; see :mod:`glinfer.quant.words`.

    Attributes:
        name: the name of the packing.
        number: the packing's number in shaders/common/unpack.glsl.
        bits: bits of one weight.
        texture: the texture format of the words.
        scaled: whether the weights are integers with scales.
        keeps: the file format whose bits the words keep; empty for a packing of floats.
    """

    name: str
    number: int
    bits: int
    texture: str = "rgba32ui"
    scaled: bool = False
    keeps: str = ""

    @property
    def piece_texels(self) -> int:
        """Texels of a tile of 4 outputs × 4 inputs."""
        return self.bits // 8 if self.texture == "rgba32ui" else 4


WORD_FORMATS = {
    made.name: made
    for made in (
        WordFormat("f32", 0, 32, "rgba32f"),
        WordFormat("f16", 1, 16, "rgba16f", keeps=F16),
        WordFormat("q16", 2, 16, scaled=True),
        WordFormat("q8", 3, 8, scaled=True),
        WordFormat("bf16", 4, 16, keeps="BF16"),
        WordFormat("i16", 5, 16, scaled=True, keeps="Q16_ROW"),
        WordFormat("i8", 6, 8, scaled=True, keeps="Q8_ROW"),
    )
}
"""The word packings by name."""


def is_scaled(packing: str) -> bool:
    """Whether a packing has integers, with their scales outside the words."""
    return packing in WORD_FORMATS and WORD_FORMATS[packing].scaled


KEPT = {
    **{form.keeps: name for name, form in WORD_FORMATS.items() if form.keeps},
    **{name: name for name in GROUP_FORMS},
}
"""The packing that keeps the bits of a file's format, by that format."""


class WeightChoice(NamedTuple):
    """A value of ``weights=``: the packings of matrices and of the vocabulary's matrix, and the embeddings' texture."""

    matrices: str
    vocabulary: str
    embeddings: str


WEIGHT_FORMATS: Mapping[str, WeightChoice] = {
    "f32": WeightChoice("f32", "f32", "rgba32f"),
    "f16": WeightChoice("f16", "f16", "rgba16f"),
    "q16": WeightChoice("q16", "q16", "rgba16f"),
    "q8l": WeightChoice("q8", "q16", "rgba16f"),
    "q8": WeightChoice("q8", "q8", "rgba16f"),
}
"""The values of ``weights=`` besides ``file``.

``q8l`` keeps 16 bits in the vocabulary's matrix, whose errors directly change the choice of the token.
"""


class CacheChoice(NamedTuple):
    """A value of ``cache=``: the texture formats of caches, and of rows before they are stored.

    Attributes:
        attention: format of keys and values, and of queries in the same texture.
        rows: format of keys, values and queries when they are computed.
    """

    attention: str
    rows: str


CACHE_FORMATS: Mapping[str, CacheChoice] = {
    "f32": CacheChoice("rgba32f", "rgba32f"),
    "f16": CacheChoice("rgba16f", "rgba16f"),
    "q8": CacheChoice("rgba8i", "rgba32f"),
}
"""The values of ``cache=``; ``q8`` is int8 with a scale for each group, see :mod:`glinfer.quant.bytes`."""
DEFAULT_CACHE = "f32"
