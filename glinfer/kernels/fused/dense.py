"""Common parts of products of one row and of many: weights, norms, gates and rotation, and the oracle of a row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout, blocks_for
from glinfer.gl.layouts.grouped import GroupedLayout, line_texels, rounds_for
from glinfer.gl.layouts.packing import ConstantLayout, GemvLayout
from glinfer.kernels.flat.rotate import rotated_pairs
from glinfer.kernels.fused.draws import Defines, Inputs, expect_table
from glinfer.kernels.fused.low_rank import LowRankSum, low_rank_rows
from glinfer.kernels.fused.rows import RowInterleaved, padded
from glinfer.kernels.published.linear import ACTIVATIONS, activate, activation_number, soft_cap
from glinfer.kernels.routing import gated
from glinfer.kernels.spec import Array, Params, Pass, TensorSpec, given
from glinfer.quant.formats import GROUP, WORD_FORMATS, group_number, packing_of_group
from glinfer.quant.ggml import table_of
from glinfer.quant.words import decode

ANGLES = "angles"
"""Run value of plans whose table has two sets of angles: the table row of the first token."""


@dataclass(frozen=True)
class Matrix:
    """A packed matrix, its constants and its gain.

    Attributes:
        weight: [outputs, words], in a :class:`GemvLayout` or a :class:`GroupedLayout`.
        consts: [outputs, 1 to 6], see :class:`ConstantLayout`.
        inputs: weights of a row.
        gain: [1, inputs], factors of the inputs, for weights that keep the bits of their file.
        gated: whether blocks of 64 outputs of a gate alternate with the blocks that the gate multiplies.
        biased: whether the bias may be other than zero.
        low_rank: the adapters of the product.
    """

    weight: TensorSpec
    consts: TensorSpec
    inputs: int
    gain: TensorSpec | None = None
    gated: bool = False
    biased: bool = True
    low_rank: LowRankSum | None = None

    @property
    def only_biases(self) -> bool:
        """Whether the constants have neither scales nor sums of weights."""
        return self.consts.shape[1] == 1

    @property
    def quad(self) -> bool:
        """Whether the fragments of a quad share the inputs."""
        return isinstance(self.weight.layout, (GemvLayout, GroupedLayout)) and self.weight.layout.quad

    @property
    def outputs(self) -> int:
        """Outputs of the product."""
        rows = self.weight.shape[0]
        return rows // 2 if self.gated else rows


@dataclass(frozen=True)
class RawRows:
    """The bare sums of a product of one row or many, whose norm, bias, activation and gate are left to the reader.

    Attributes:
        sums: [rows, 64 · (blocks + 1)], the sums of all rows of the matrix, then one more block. Its texels have the
            sum of the squares of the product's inputs and, if the mean is subtracted, their sum.
        matrix: the matrix of the product; its constants have the bias.
        activation, eps: applied by the reader.
    """

    sums: RowInterleaved
    matrix: Matrix
    activation: str
    eps: float

    @staticmethod
    def floats(matrix: Matrix) -> int:
        """Floats of a row."""
        return BLOCK_FLOATS * (blocks_for(matrix.weight.shape[0]) + 1)

    @property
    def biased(self) -> bool:
        """Whether the reader reads the bias, even if it is zero; a plan must not have unused constants."""
        return self.matrix.biased or self.matrix.only_biases

    @property
    def inputs(self) -> Inputs:
        """The inputs of a reader besides the sums."""
        return {"x_consts": self.matrix.consts.name} if self.biased else {}

    def defines(self, name: str) -> Defines:
        """The defines of a reader, in shaders/gemm.frag."""
        consts = self.matrix.consts.layout
        if not isinstance(consts, ConstantLayout):
            raise PlanError(f"draw {name}: expected packed constants")
        return [
            ("RAW_INPUT", 1),
            *([*consts.defines("XC"), ("XC_BIAS_AT", consts.cols - 1)] if self.biased else []),
            ("X_ACTIVATION", ACTIVATIONS[self.activation]),
            ("X_GATED", int(self.matrix.gated)),
            ("X_BIASED", int(self.biased)),
            ("X_CENTRED", int(consts.sums)),
            ("X_DIM", self.matrix.inputs),
            ("X_EPS", float(self.eps)),
        ]


@dataclass(frozen=True)
class Rotation:
    """The outputs that rotary positions rotate, in adjacent pairs.

    Attributes:
        table: [positions, head_floats], the cosine and the sine of each pair; None if heads are only normalised. Twice
            as wide if queries have their own, in the second half.
        keys: number of keys, which are the first outputs.
        queries: the first output that is a query.
        floats: floats of one head; only used without a table.
        positions: rows of each set of angles if the table has two sets, else 0.
        apart: whether queries have their own cosines and sines.
        by_row: whether the table has a row for each row of a run, in place of positions.
        back: whether rows after an image have the angles of an earlier position.
    """

    table: TensorSpec | None
    keys: int
    queries: int
    floats: int = 0
    positions: int = 0
    apart: bool = False
    by_row: bool = False
    back: bool = False

    @property
    def run_value(self) -> str:
        """The run value that names the row of the table, in a plan of one row."""
        return ANGLES if self.positions or self.back else "position"

    @property
    def defines(self) -> Defines:
        """The defines of shaders/common/rope.glsl; without a table only those of the heads."""
        floats = self.floats if self.table is None else self.table.shape[1] // (1 + self.apart)
        sizes = {"HEAD_TEXELS": floats, "KEY_TEXELS": self.keys, "QUERY_AT": self.queries}
        found: Defines = [(key, size // 4) for key, size in sizes.items()]
        if self.table is None:
            return found
        sets = given(ROPE_SET=self.positions, ROPE_BY_ROW=self.by_row, ROPE_BACK=self.back and not self.by_row)
        return [("ROPE", 1), *found, *sets, *given(QUERY_TURNS=floats // 4 * self.apart)]

    def inputs(self, draw: str) -> Inputs:
        """The input with the angles."""
        return {} if self.table is None else {"rope": expect_table(draw, self.table)}


def dense_defines(
    draw: Pass, matrix: Matrix, *, norm_eps: float | None, activation: str, cap: float, raw: bool
) -> Defines:
    """The defines of shaders/gemm.frag besides those of rows; ``raw`` leaves the gate to the reader.

    Raises:
        PlanError: a tensor has another layout, or there is no such activation.
    """
    name, kernels, weight, consts = draw.name, draw.kernels, matrix.weight.layout, matrix.consts.layout
    if not isinstance(weight, (GemvLayout, GroupedLayout)) or not isinstance(consts, ConstantLayout):
        raise PlanError(f"draw {name}: expected packed weights and constants")
    alternates = matrix.gated and not raw
    if alternates and matrix.weight.shape[0] % (2 * BLOCK_FLOATS):
        raise PlanError(f"draw {name}: {matrix.weight.name} has no pairs of whole blocks of outputs")
    found: Defines = [
        *weight.defines("WEIGHT"),
        *consts.defines("CONSTS"),
        ("SCALED", int(consts.scales)),
        ("CENTRED", int(consts.sums)),
        ("GATED", int(alternates)),
        ("MANTISSA", int(kernels.mantissa)),
        ("FUSED", int(kernels.fused)),
        ("ACTIVATION", activation_number(name, activation)),
        ("STEPS", steps_of(matrix)),
        ("INPUTS", matrix.inputs),
    ]
    if isinstance(weight, GroupedLayout):
        found += [("GROUPED", group_number(weight.weights)), ("GROUPS", matrix.inputs // GROUP)]
        found += grouped_defines(weight)
    else:
        found += [("GROUPED", 0), ("WEIGHTS", WORD_FORMATS[weight.weights].number)]
    if raw:
        found += [("RAW", 1), ("DIM", matrix.inputs)]
    if norm_eps is not None:
        found += [("NORM", 1), ("DIM", matrix.inputs), ("EPS", float(norm_eps))]
    found += given(OUTPUT_CAP=float(cap))
    if matrix.gain is not None:
        found += [("GAIN", 1), ("GAIN_WIDTH", -(-matrix.inputs // 4))]
    if matrix.low_rank is not None:
        found += matrix.low_rank.defines(name)
    return found


def half_defines(out: BlockLayout) -> Defines:
    """Whether shaders/common/half.glsl rounds the outputs for a target of half floats."""
    return given(OUT_HALF=out.format_name == "rgba16f")


def grouped_defines(weight: GroupedLayout) -> Defines:
    """The defines of shaders/common/grouped.glsl, besides the layout of the words."""
    return [("LINE_TEXELS", line_texels(weight.form)), *weight.form.defines()]


def dense_inputs(matrix: Matrix, *, raw: bool = False) -> Inputs:
    """The inputs besides the rows; ``raw`` omits constants that have only a bias."""
    found: Inputs = {"weight": matrix.weight.name}
    if not (raw and matrix.only_biases):
        found["consts"] = matrix.consts.name
    if matrix.gain is not None:
        found["gain"] = matrix.gain.name
    return found if matrix.low_rank is None else {**found, **matrix.low_rank.inputs}


def steps_of(matrix: Matrix) -> int:
    """Steps of the loop over the inputs: of 16 inputs, or for groups rounds of 128."""
    grouped = isinstance(matrix.weight.layout, GroupedLayout)
    return rounds_for(matrix.inputs) if grouped else 4 * blocks_for(matrix.inputs)


def shared_parts(matrix: Matrix, part_steps: int) -> int:
    """Instances that share a product, each of about ``part_steps`` steps of 16 inputs."""
    grouped = isinstance(matrix.weight.layout, GroupedLayout)
    return parts_of_steps(steps_of(matrix), max(1, part_steps // 8) if grouped and part_steps else part_steps)


def parts_of_steps(steps: int, each: int) -> int:
    """Instances that share ``steps`` steps, with about ``each`` steps per instance; 1 if ``each`` is 0."""
    return steps // math.gcd(steps, each) if each else 1


def format_name(params: Params) -> str:
    """The weight format that a draw was built for."""
    if params["GROUPED"]:
        return packing_of_group(int(params["GROUPED"]))
    return next(name for name, form in WORD_FORMATS.items() if form.number == params["WEIGHTS"])


def dense_rows(inputs: Mapping[str, Array], params: Params, x: Array, norms: Array | None, positions: Array) -> Array:
    """For an oracle: the outputs [rows, outputs] of rows x [rows, inputs], float64, without residual.

    Args:
        inputs: the draw's inputs by sampler.
        params: the draw's params.
        x: the rows.
        norms: factors [rows, 1] of an earlier pass, or None.
        positions: the position of each row, for rotation.
    """
    consts = inputs.get("consts", np.zeros((len(inputs["weight"]), 1))).astype(np.float64)
    weight = weights_of(inputs["weight"], consts, params)
    gained = x * inputs["gain"].astype(np.float64) if "gain" in inputs else x
    mean = x.mean(axis=1, keepdims=True) if params["CENTRED"] else np.zeros((len(x), 1))
    y: Array = gained @ weight.T
    after_norm: Array | float = 0.0
    if params.get("LORA"):
        sums, after_norm = low_rank_rows(inputs, params, len(x))
        y = y + sums
    if params["CENTRED"]:
        y = y - mean * consts[:, -2]
    if params.get("RAW"):
        return y
    if params.get("NORM"):
        norms = 1.0 / np.sqrt(np.mean((x - mean) ** 2, axis=1, keepdims=True) + params["EPS"])
    y = (y if norms is None else y * norms) + consts[:, -1] + after_norm
    if params["GATED"]:
        pairs = y.reshape(len(y), -1, 2, BLOCK_FLOATS)
        return gated(pairs[:, :, 0].reshape(len(y), -1), pairs[:, :, 1].reshape(len(y), -1), params)
    y = activate(y, int(params["ACTIVATION"]))
    if params.get("OUTPUT_CAP"):
        y = soft_cap(y, float(params["OUTPUT_CAP"]))
    return rotated_rows(y, inputs["rope"].astype(np.float64), params, positions) if params.get("ROPE") else y


def raw_rows(sums: Array, x: Array, params: Params) -> Array:
    """For an oracle: :class:`RawRows`, from the sums [rows, outputs] and inputs [rows, inputs] of a product.

    The sum of the inputs is omitted if no mean is subtracted.
    """
    count = len(sums)
    blocks = np.zeros((count, padded(sums.shape[1])))
    blocks[:, : sums.shape[1]] = sums
    gathered = np.zeros((count, BLOCK_FLOATS // 4, 4))
    gathered[:, :, 0] = (x**2).sum(axis=1, keepdims=True)
    gathered[:, :, 1] = x.sum(axis=1, keepdims=True) if params["CENTRED"] else 0.0
    return np.concatenate([blocks, gathered.reshape(count, -1)], axis=1)


def finished_rows(raw: Array, consts: Array | None, params: Params) -> Array:
    """For an oracle: the inputs [rows, INPUTS] that a reader computes from :class:`RawRows`."""
    gathered = raw[:, -BLOCK_FLOATS:] / params["X_DIM"]
    squares, whole = gathered[:, :1], gathered[:, 1:2]
    rows = raw.shape[1] - BLOCK_FLOATS if consts is None else len(consts)
    bias = np.zeros(rows) if consts is None else consts[:, -1].astype(np.float64)
    factor = 1.0 / np.sqrt(squares - (whole**2 if params["X_CENTRED"] else 0.0) + params["X_EPS"])
    y = raw[:, :rows] * factor + bias
    kind, inputs = int(params["X_ACTIVATION"]), int(params["INPUTS"])
    if not params["X_GATED"]:
        return activate(y, kind)[:, :inputs]
    pairs = y.reshape(len(y), -1, 2, BLOCK_FLOATS)
    found: Array = (activate(pairs[:, :, 0], kind) * pairs[:, :, 1]).reshape(len(y), -1)[:, :inputs]
    return found


def weights_of(words: Array, consts: Array, params: Params) -> Array:
    """For an oracle: the matrix [rows, inputs] in float64."""
    inputs = int(params["INPUTS"])
    if params["GROUPED"]:
        return table_of(words, int(params["GROUPED"]), inputs)
    return decode(words, consts[:, :4] if params["SCALED"] else None, format_name(params), inputs)


def rotated_rows(y: Array, table: Array, params: Params, positions: Array) -> Array:
    """For an oracle: the outputs with keys and queries rotated."""
    floats, keys, queries = (4 * int(params[name]) for name in ("HEAD_TEXELS", "KEY_TEXELS", "QUERY_AT"))
    apart = 4 * int(params.get("QUERY_TURNS", 0))
    found = y.copy()
    for start, end, first in ((0, keys, 0), (queries, y.shape[1], apart)):
        angles = table[positions, None, first : first + floats]
        by_head = y[:, start:end].reshape(len(y), -1, floats)
        rotated = rotated_pairs(by_head, angles[..., 0::2], angles[..., 1::2], interleaved=True)
        found[:, start:end] = rotated.reshape(len(y), -1)
    return found
