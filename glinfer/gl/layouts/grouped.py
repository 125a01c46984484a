"""The layout of matrices in GGML's blocks for products, sorted into groups of 32 weights; pure NumPy, no GL.

A line holds half a block of outputs (8 lanes, see :mod:`glinfer.gl.layouts.blocks`) and one round: 32 outputs × 128
inputs, which are four groups. shaders/common/grouped.glsl reads its texels in order: the low bits of the numbers, word
by word; then the bits above; then the scales. A texel holds a word of each of four outputs. With ``quad`` each fragment
of a quad computes one of the four groups for all 16 outputs of the quad; otherwise each fragment computes all groups
for its own four outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.gl.layouts.blocks import BLOCK_FLOATS, blocks_for
from glinfer.gl.layouts.matrix import FORMATS, TexelFormat, check_whole
from glinfer.gl.layouts.packing import LineLayout, lines_within
from glinfer.quant.formats import GROUP, GroupForm, group_form
from glinfer.quant.groups import Groups, Words, groups_in, words_of_groups
from glinfer.quant.threads import in_threads

ROUND_GROUPS = 4
_LANES = 8


def rounds_for(inputs: int) -> int:
    """Rounds of four groups in a row of ``inputs`` weights."""
    return -(-inputs // (GROUP * ROUND_GROUPS))


def line_texels(form: GroupForm) -> int:
    """Texels of one lane and one round."""
    return ROUND_GROUPS * (form.low_words + form.high_words) + form.scale_texels + int(form.shared)


def words_for(weights: str, inputs: int) -> int:
    """Words of a row of ``inputs`` weights in a plan's tensor."""
    return 4 * sum(group_form(weights).section_texels(inputs))


@dataclass(frozen=True)
class GroupedLayout(LineLayout):
    """The words [rows, cols] of a matrix in GGML's blocks, made by ``words_of`` or ``wide_words`` of
    :mod:`glinfer.quant.ggml`.

    Attributes:
        rows: outputs; padded to whole blocks of 64.
        cols: words of a row.
        weights: the format, a key of :data:`glinfer.quant.formats.GROUP_FORMS`, or ``wide``.
        inputs: weights of a row; padded to whole rounds of 128 with numbers whose scale is zero.
        quad: how the fragments of a quad share the work.
    """

    weights: str
    inputs: int
    quad: bool

    @classmethod
    def of(cls, outputs: int, inputs: int, weights: str, quad: bool, max_texture_size: int) -> GroupedLayout:
        """The layout in textures of at most ``max_texture_size`` texels a side; PlanError if none holds it."""
        lines = lines_within(
            blocks_for(outputs),
            2 * rounds_for(inputs),
            _LANES * line_texels(group_form(weights)),
            max_texture_size,
            f"a matrix of {outputs}×{inputs} weights",
        )
        return cls(*lines, outputs, words_for(weights, inputs), weights, inputs, quad)

    @property
    def form(self) -> GroupForm:
        """The sorted form of the format's blocks."""
        return group_form(self.weights)

    @property
    def format(self) -> TexelFormat:
        """32-bit words."""
        return FORMATS["rgba32ui"]

    @property
    def paired(self) -> tuple[int, int]:
        """First texel of a lane whose words hold the scales of two outputs each, and the texel after the last one."""
        scales = self._fields()[2]
        return (scales.start, scales.stop) if self.form.scale_bytes == 2 else (0, 0)

    @property
    def _outputs(self) -> tuple[int, ...]:
        """Axes of the outputs: block, half of it, quad of it, the member that owns four outputs, its outputs."""
        return (self.blocks, 2, 2, 4, 4)

    @property
    def _rounds(self) -> int:
        return rounds_for(self.inputs)

    def pack(self, matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Texels [h, w, 4] of the words [rows, cols]; padding is zero."""
        check_whole(self, matrix)
        lines = np.empty((self.blocks, self.lines_per_block, self.line, 4), dtype=np.uint32)

        def sort(blocks: range) -> None:
            rows = matrix[BLOCK_FLOATS * blocks.start : BLOCK_FLOATS * blocks.stop]
            lines[blocks.start : blocks.stop] = replace(self, rows=len(rows), blocks=len(blocks))._lined(rows)

        in_threads(sort, self._strips(4 * BLOCK_FLOATS * self.cols))
        return self._join(lines)

    def _lined(self, matrix: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
        groups = groups_in(matrix, self.form, self.inputs)
        lines = np.empty((*self._outputs[:2], self._rounds, self.line // _LANES, _LANES, 4), dtype=np.uint32)
        for field, part in zip(self._fields(), self._parts(groups), strict=True):
            lines[:, :, :, field] = part
        return lines.reshape(self.blocks, -1, self.line, 4)

    def unpack(self, texels: npt.NDArray[Any], rows: int, cols: int) -> npt.NDArray[Any]:
        """The words [rows, cols]; the inverse of pack."""
        lines = self._split(texels).reshape(*self._outputs[:2], self._rounds, -1, _LANES, 4)
        low, high, scale, shared = (lines[:, :, :, field] for field in self._fields())
        return words_of_groups(self._groups_from(low, high, scale, shared), self.form)[:rows, :cols]

    def _fields(self) -> list[slice]:
        """The texels of a lane that hold the low bits, the bits above, the scales, and the scales of blocks."""
        form = self.form
        counts = [4 * form.low_words, 4 * form.high_words, form.scale_texels, int(form.shared)]
        ends = np.cumsum(counts).tolist()
        return [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]

    # Axes of the arrays: block, half, quad, third, output; round, group of it; word. With quad the third axis of the
    # outputs is the accumulator and the group the lane's member, otherwise the other way round.
    def _ordered(self, array: Words, words: int) -> Words:
        """[rows, groups, words] as texels [block, half, round, word, accumulator, lane, output]."""
        padded = np.zeros((self.blocks * BLOCK_FLOATS, ROUND_GROUPS * self._rounds, words), dtype=np.uint32)
        padded[: array.shape[0], : array.shape[1]] = array
        shaped = padded.reshape(*self._outputs, self._rounds, ROUND_GROUPS, words)
        ordered = shaped.transpose(0, 1, 5, 7, 3, 2, 6, 4) if self.quad else shaped.transpose(0, 1, 5, 7, 6, 2, 3, 4)
        return ordered.reshape(*self._outputs[:2], self._rounds, words, 4, _LANES, 4)

    def _restored(self, ordered: Words, words: int) -> Words:
        """The inverse of :meth:`_ordered`."""
        shaped = ordered.reshape(*self._outputs[:2], self._rounds, words, 4, 2, 4, 4)
        back = shaped.transpose(0, 1, 5, 4, 7, 2, 6, 3) if self.quad else shaped.transpose(0, 1, 5, 6, 7, 2, 4, 3)
        groups = -(-self.inputs // GROUP)
        return back.reshape(self.blocks * BLOCK_FLOATS, ROUND_GROUPS * self._rounds, words)[: self.rows, :groups]

    def _parts(self, groups: Groups) -> list[Words]:
        form, head = self.form, (*self._outputs[:2], self._rounds)
        low = self._ordered(groups.low, form.low_words)
        if form.low_bits == 8:  # word t and word 4 + t side by side
            low = low.reshape(*head, 2, 4, 4, _LANES, 4).transpose(0, 1, 2, 4, 5, 3, 6, 7)
        high = self._ordered(groups.high, form.high_words)
        words = form.scale_words
        scale = self._ordered(groups.scale.reshape(*groups.low.shape[:2], words), words)
        shared = np.zeros((*head, 0, _LANES, 4), dtype=np.uint32)
        if form.scale_bytes == 2:
            pairs = scale[..., 0::2] | (scale[..., 1::2] << np.uint32(16))  # two outputs a word
            # Accumulators 2p and 2p + 1 share texel p.
            scale = pairs.reshape(*head, 2, 2, _LANES, 2).transpose(0, 1, 2, 3, 5, 4, 6)
        if form.shared:
            by_round = np.repeat(groups.shared[..., 0], 2, axis=1)
            padded = np.zeros((self.blocks * BLOCK_FLOATS, self._rounds), dtype=np.uint32)
            padded[: by_round.shape[0], : by_round.shape[1]] = by_round
            shaped = padded.reshape(*self._outputs, self._rounds).transpose(0, 1, 5, 2, 3, 4)
            shared = shaped.reshape(*head, 1, _LANES, 4)
        return [part.reshape(*head, -1, _LANES, 4) for part in (low, high, scale, shared)]

    def _groups_from(self, low: Words, high: Words, scale: Words, shared: Words) -> Groups:
        form, head = self.form, (*self._outputs[:2], self._rounds)
        if form.low_bits == 8:
            low = low.reshape(*head, 4, 4, 2, _LANES, 4).transpose(0, 1, 2, 5, 3, 4, 6, 7)
        shares = np.zeros((self.rows, -(-self.inputs // 256), 0), dtype=np.uint32)
        if form.scale_bytes == 2:
            pairs = scale.reshape(*head, 2, _LANES, 2, 2).transpose(0, 1, 2, 3, 5, 4, 6).reshape(*head, 4, _LANES, 2)
            scale = np.stack([pairs & 0xFFFF, pairs >> np.uint32(16)], axis=-1).reshape(*head, 4, _LANES, 4)
        if form.shared:
            back = shared.reshape(*head, 2, 4, 4).transpose(0, 1, 3, 4, 5, 2).reshape(-1, self._rounds)
            shares = back[: self.rows, ::2, None]
        scales = self._restored(scale, form.scale_words)
        return Groups(
            self._restored(low, form.low_words),
            self._restored(high, form.high_words),
            scales if form.scale_words > 1 else scales[..., 0],
            shares,
        )
