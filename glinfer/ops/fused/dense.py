"""The common parts of products of one row and of many: weights, norms, gates and rotation, and the oracle of a row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, BlockLayout, RowLayout, blocks_for
from glinfer.gl.layouts.grouped import GroupedLayout, line_texels, rounds_for, words_for
from glinfer.gl.layouts.packing import ConstantLayout, GemvLayout
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.published.linear import ACTIVATIONS, activate
from glinfer.ops.spec import Array, Params, Shapes, TensorSpec
from glinfer.quant.formats import GROUP, SCALE_NUMBERS, WIDE_NUMBER, WORD_FORMATS, group_number, packing_of_group
from glinfer.quant.ggml import table_of
from glinfer.quant.groups import wide_values
from glinfer.quant.words import decode

Defines = list[tuple[str, int | float]]


@dataclass(frozen=True)
class Matrix:
    """A packed matrix, its constants and its gain.

    Attributes:
        weight: [outputs, words], in a :class:`GemvLayout` or a :class:`GroupedLayout`.
        consts: [outputs, 1 to 6], see :class:`ConstantLayout`.
        inputs: weights of a row.
        gain: [1, inputs], factors of the inputs, for weights that keep the bits of their file.
        gated: whether blocks of 64 outputs of a gate alternate with the blocks that the gate multiplies.
    """

    weight: TensorSpec
    consts: TensorSpec
    inputs: int
    gain: TensorSpec | None = None
    gated: bool = False

    @property
    def outputs(self) -> int:
        """Outputs of the product."""
        rows = self.weight.shape[0]
        return rows // 2 if self.gated else rows


@dataclass(frozen=True)
class Turning:
    """The outputs that rotary positions turn, in pairs that follow each other.

    Attributes:
        table: [positions, head_floats], the cosine and the sine of each pair.
        keys: outputs from the first on that are keys.
        queries: the first output that is a query.
    """

    table: TensorSpec
    keys: int
    queries: int

    def defines(self, name: str) -> Defines:
        """The defines of shaders/common/rope.glsl."""
        if not isinstance(self.table.layout, RowLayout):
            raise PlanError(f"draw {name}: {self.table.name} is no table of rows")
        sizes = {"HEAD_TEXELS": self.table.shape[1], "KEY_TEXELS": self.keys, "QUERY_AT": self.queries}
        return [("ROPE", 1), *((key, size // 4) for key, size in sizes.items()), *self.table.layout.defines("ROPE")]


def dense_defines(
    name: str,
    x: BlockLayout,
    matrix: Matrix,
    out: BlockLayout,
    *,
    norm_eps: float | None,
    activation: str,
    kernels: KernelOptions,
) -> Defines:
    """The defines that shaders/gemv.frag and shaders/gemm.frag share.

    Raises:
        PlanError: a tensor has another layout, or there is no such activation.
    """
    weight, consts = matrix.weight.layout, matrix.consts.layout
    if not isinstance(weight, (GemvLayout, GroupedLayout)) or not isinstance(consts, ConstantLayout):
        raise PlanError(f"draw {name}: expected packed weights and constants")
    if activation not in ACTIVATIONS:
        raise PlanError(f"draw {name}: activation {activation!r}; known: {', '.join(ACTIVATIONS)}")
    if matrix.gated and matrix.weight.shape[0] % (2 * BLOCK_FLOATS):
        raise PlanError(f"draw {name}: {matrix.weight.name} has no pairs of whole blocks of outputs")
    found: Defines = [
        *x.defines("X"),
        *weight.defines("WEIGHT"),
        *consts.defines("CONSTS"),
        *target_defines(out),
        ("SCALED", int(consts.scales)),
        ("CENTRED", int(consts.sums)),
        ("GATED", int(matrix.gated)),
        ("QUAD", int(weight.quad)),
        ("MANTISSA", int(kernels.mantissa)),
        ("FUSED", int(kernels.fused)),
        ("LOOKUP_TEXTURE", int(kernels.lookup_texture)),
        ("ACTIVATION", ACTIVATIONS[activation]),
        ("STEPS", steps_of(weight, matrix.inputs)),
        ("INPUTS", matrix.inputs),
    ]
    if isinstance(weight, GroupedLayout):
        found += [("GROUPED", group_number(weight.weights)), ("GROUPS", matrix.inputs // GROUP)]
        found += grouped_defines(weight)
    else:
        found += [("GROUPED", 0), ("WEIGHTS", WORD_FORMATS[weight.weights].number)]
    if norm_eps is not None:
        found += [("NORM", 1), ("DIM", matrix.inputs), ("EPS", float(norm_eps))]
    if matrix.gain is not None:
        found += [("GAIN", 1), ("GAIN_WIDTH", -(-matrix.inputs // 4))]
    return found


def target_defines(out: BlockLayout) -> Defines:
    """The layout of the outputs, and whether shaders/common/half.glsl rounds them for a target of half floats."""
    return [*out.defines("OUT"), *([("OUT_HALF", 1)] if out.format_name == "rgba16f" else [])]


def grouped_defines(weight: GroupedLayout) -> Defines:
    """The defines of shaders/common/grouped.glsl, besides the layout of the words."""
    form = weight.form
    return [
        ("LINE_TEXELS", line_texels(form)),
        ("FORM_LOW", form.low_bits),
        ("FORM_HIGH", form.high_words),
        ("FORM_SCALES", SCALE_NUMBERS[form.scales]),
        ("OFFSET", form.offset),
    ]


def dense_inputs(matrix: Matrix, turning: Turning | None) -> list[tuple[str, str]]:
    """The inputs besides the rows."""
    found = [("weight", matrix.weight.name), ("consts", matrix.consts.name)]
    if matrix.gain is not None:
        found.append(("gain", matrix.gain.name))
    return found if turning is None else [*found, ("rope", turning.table.name)]


def steps_of(weight: GemvLayout | GroupedLayout, inputs: int) -> int:
    """Steps of the loop over the inputs: of 16 inputs, or for groups rounds of 128."""
    return rounds_for(inputs) if isinstance(weight, GroupedLayout) else 4 * blocks_for(inputs)


def shared_parts(matrix: Matrix, part_steps: int) -> int:
    """Instances that share a product, each of about ``part_steps`` steps of 16 inputs."""
    layout = matrix.weight.layout
    assert isinstance(layout, (GemvLayout, GroupedLayout))
    steps = steps_of(layout, matrix.inputs)
    each = max(1, part_steps // 8) if isinstance(layout, GroupedLayout) and part_steps else part_steps
    return steps // math.gcd(steps, each) if each else 1


def format_name(params: Params) -> str:
    """The weight format that a draw was built for."""
    if params["GROUPED"]:
        return packing_of_group(int(params["GROUPED"]))
    return next(name for name, form in WORD_FORMATS.items() if form.number == params["WEIGHTS"])


def check_dense(shapes: Shapes, params: Params, outputs: int, *, residual: bool) -> None:
    """Require weights and constants for ``outputs`` outputs, and parts that can be added up."""
    rows, inputs = outputs * (1 + int(params["GATED"])), int(params["INPUTS"])
    if params["GATED"]:
        rows = 2 * BLOCK_FLOATS * blocks_for(outputs)
    shapes.expect("consts", rows, 4 * params["SCALED"] + params["CENTRED"] + 1)
    shapes.expect("gain", 1, inputs)
    parts = int(params.get("PARTS", 1))
    if params["GROUPED"]:
        shapes.expect("weight", rows, words_for(format_name(params), inputs))
        steps = rounds_for(inputs)
    else:
        shapes.expect("weight", rows, WORD_FORMATS[format_name(params)].piece_texels * -(-inputs // 4))
        steps = 4 * blocks_for(inputs)
    shapes.require(params["STEPS"] == steps, "STEPS does not fit x")
    shapes.require(params["STEPS"] % (parts * int(params.get("UNROLL", 1))) == 0, f"{steps} steps in {parts} parts")
    after = params["ACTIVATION"] or params["GATED"] or params.get("NORM") or params.get("NORMS") or params.get("ROPE")
    shapes.require(parts == 1 or not (after or residual), "parts are added up without norm, activation or residual")


def dense_rows(inputs: Mapping[str, Array], params: Params, x: Array, norms: Array | None, positions: Array) -> Array:
    """For an oracle: the outputs [rows, outputs] of rows x [rows, inputs], float64, without residual.

    Args:
        inputs: the draw's inputs by sampler.
        params: the draw's params.
        x: the rows.
        norms: factors [rows, 1] of an earlier pass, or None.
        positions: the position of each row, for rotation.
    """
    consts = inputs["consts"].astype(np.float64)
    weight = weights_of(inputs["weight"], consts, params)
    gained = x * inputs["gain"].astype(np.float64) if "gain" in inputs else x
    mean = x.mean(axis=1, keepdims=True) if params["CENTRED"] else np.zeros((len(x), 1))
    y: Array = gained @ weight.T
    if params["CENTRED"]:
        y = y - mean * consts[:, -2]
    if params.get("NORM"):
        norms = 1.0 / np.sqrt(np.mean((x - mean) ** 2, axis=1, keepdims=True) + params["EPS"])
    y = (y if norms is None else y * norms) + consts[:, -1]
    if params["GATED"]:
        pairs = y.reshape(len(y), -1, 2, BLOCK_FLOATS)
        up = pairs[:, :, 1].reshape(len(y), -1)
        return activate(pairs[:, :, 0].reshape(len(y), -1), int(params["ACTIVATION"])) * up
    y = activate(y, int(params["ACTIVATION"]))
    return turned_rows(y, inputs["rope"].astype(np.float64), params, positions) if params.get("ROPE") else y


def weights_of(words: Array, consts: Array, params: Params) -> Array:
    """For an oracle: the matrix [rows, inputs] in float64."""
    inputs = int(params["INPUTS"])
    if params["GROUPED"] == WIDE_NUMBER:
        return wide_values(words)
    if params["GROUPED"]:
        return table_of(words, int(params["GROUPED"]), inputs)
    return decode(words, consts[:, :4] if params["SCALED"] else None, format_name(params), inputs)


def turned_rows(y: Array, table: Array, params: Params, positions: Array) -> Array:
    """For an oracle: the outputs with keys and queries turned."""
    floats, keys, queries = (4 * int(params[name]) for name in ("HEAD_TEXELS", "KEY_TEXELS", "QUERY_AT"))
    turns = table[positions]
    found = y.copy()
    for start, end in ((0, keys), (queries, y.shape[1])):
        part = y[:, start:end].reshape(len(y), -1, floats // 2, 2)
        cos, sin = turns[:, None, 0::2], turns[:, None, 1::2]
        one, two = part[..., 0], part[..., 1]
        moved = np.stack([one * cos - two * sin, one * sin + two * cos], axis=-1)
        found[:, start:end] = moved.reshape(len(y), -1)
    return found
