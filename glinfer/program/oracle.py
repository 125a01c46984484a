"""The second executor of a plan: float64 NumPy, op by op, with no GL anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping

import numpy as np

from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.kernels import OPS, DrawSpec, TensorSpec
from glinfer.kernels.fused.rows import deinterleaved
from glinfer.kernels.spec import Array
from glinfer.program.plan import Plan
from glinfer.quant.bytes import factors_of, from_bytes, peaks_of, scales_for, to_bytes
from glinfer.quant.formats import GROUP

RunValues = Mapping[str, int | float]
_LEVELS, _LEAST = 127.0, 1e-5
_NEAR = 2e-4
"""A float32 may be rounded to the other level where float64 is nearer than this to half way between the two."""


def run_draw(draw: DrawSpec, inputs: Mapping[str, Array], values: RunValues) -> Array:
    """What one draw should write, from its inputs by tensor name: float64 [rows, cols], or [outputs, rows, cols].

    For a draw that adds to its output, the inputs hold the output's former values under its name.
    """
    found = _computed(draw, inputs, values)
    if draw.params(values).get("ROUNDED"):
        return rounded_rows(found)[0]
    if not draw.needs_output:
        return found
    (rows, cols), first = draw.extent(values), draw.first_row(values)
    held = [inputs[name][first : first + rows, :cols] for name in draw.outputs]
    return found + (held[0] if len(held) == 1 else np.stack(held)).astype(np.float64)


def allowed_errors(draw: DrawSpec, inputs: Mapping[str, Array], values: RunValues) -> Array | float:
    """By how much a draw that rounds its results may differ from :func:`run_draw`, in its shape; 0 for others."""
    return rounded_rows(_computed(draw, inputs, values))[1] if draw.params(values).get("ROUNDED") else 0.0


def rounded_rows(x: Array) -> tuple[Array, Array]:
    """Rows that a norm rounds to 8 bits, as BitNet's matrices read them, and the error that float32 may have.

    It is ``round(x · s) / s`` with s = 127 / max|x| of each row; x [.., cols] is the result of a draw with the define
    ROUNDED.
    """
    scale = _LEVELS / np.maximum(np.abs(x).max(axis=-1, keepdims=True), _LEAST)
    levels = x * scale
    return np.rint(levels) / scale, (np.abs(levels - np.floor(levels) - 0.5) < _NEAR) / scale


def _computed(draw: DrawSpec, inputs: Mapping[str, Array], values: RunValues) -> Array:
    by_sampler = {sampler: inputs[tensor] for sampler, tensor in draw.inputs}
    found = OPS[draw.op].oracle(by_sampler, draw.params(values), draw.extent(values))
    if found.ndim == 2:
        return deinterleaved(found, len(draw.outputs))
    # OpenGL drops what a shader writes beyond the targets of a draw.
    return found[0] if len(draw.outputs) == 1 else found[: len(draw.outputs)]


def run_plan(
    plan: Plan,
    weights: Mapping[str, Array],
    inputs: Mapping[str, Array],
    values: RunValues,
    caches: MutableMapping[str, Array] | None = None,
) -> Iterator[tuple[DrawSpec, Array]]:
    """Run every draw in order, yielding each with what it wrote.

    ``weights`` and ``inputs`` are by tensor name, inputs the rows in use. ``caches`` has float64 arrays of earlier runs
    by tensor name, which the run updates; missing ones are added, full of zeros.
    """
    state: dict[str, Array] = dict(inputs)
    for tensor in plan.of_kind("weight"):
        state[tensor.name] = np.asarray(weights[tensor.name]).reshape(tensor.shape)
    caches = {} if caches is None else caches
    for tensor in plan.of_kind("cache"):
        state[tensor.name] = caches.setdefault(tensor.name, np.zeros(tensor.shape))
    for draw in plan.draws:
        for name in (*draw.reads, *draw.writes):
            if plan.root(name) != name and plan.root(name) in state:
                state[name] = state[plan.root(name)].reshape(-1, plan.table[name].shape[1])
        written = run_draw(draw, state, values)
        parts = [stored(part, plan.table[name]) for name, part in by_output(draw, written).items()]
        written = np.stack(parts) if len(parts) > 1 else parts[0]
        for name, part in zip(draw.outputs, parts, strict=True):
            if name in caches:
                caches[name][written_rows(draw, state, values), : part.shape[1]] = part
            else:
                root = plan.root(name)
                state[root] = part if root == name else part.reshape(-1, plan.table[root].shape[1])
        yield draw, written


def by_output(draw: DrawSpec, written: Array) -> dict[str, Array]:
    """The result of :func:`run_draw` by the output's name."""
    return dict(zip(draw.outputs, written if len(draw.outputs) > 1 else [written], strict=True))


def stored(values: Array, tensor: TensorSpec) -> Array:
    """The values that a texture keeps; passes round as shaders/common/half.glsl and bytes.glsl do."""
    if isinstance(tensor.layout, BlockLayout) and tensor.layout.scale_blocks:
        return from_bytes(*to_bytes(_in_groups(values)))[:, : values.shape[1]].astype(np.float64)
    if tensor.format != "rgba16f":
        return values
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16).astype(np.float64)
    return np.where(np.isinf(halves), np.nan, halves)


def rounding(values: Array, tensor: TensorSpec) -> tuple[Array, Array | float]:
    """Values with NaN where a texture has no number for them, and the error that the texture's format allows.

    That is half a step, since a float32 result may be rounded up where float64 is rounded down.
    """
    if isinstance(tensor.layout, BlockLayout) and tensor.layout.scale_blocks:
        # The scale of a float32 may be the next one, a part in 128 larger.
        factors = factors_of(scales_for(peaks_of(_in_groups(values)))).astype(np.float64) * (0.5 + 2.0**-8)
        allowed = np.repeat(factors, GROUP, axis=-1)[:, : values.shape[1]]
        return np.where(np.isnan(allowed), np.nan, values), np.nan_to_num(allowed)
    if tensor.format != "rgba16f":
        return values, 0.0
    numbers = np.where(np.isnan(stored(values, tensor)), np.nan, values)
    # Eleven bits from the first one on, of which none is below 2^-24.
    return numbers, np.ldexp(0.5, np.frexp(np.maximum(np.abs(numbers), 2.0**-14))[1] - 11)


def _in_groups(values: Array) -> Array:
    """Values [rows, cols] padded with zeros to whole groups of bytes."""
    return np.pad(values, [(0, 0), (0, -values.shape[1] % GROUP)])


def written_rows(draw: DrawSpec, inputs: Mapping[str, Array], values: RunValues) -> Array:
    """The rows of its outputs that a draw writes, in the oracle's order."""
    (rows, _), first = draw.extent(values), draw.first_row(values)
    rows_written = OPS[draw.op].rows_written
    if rows_written is None:
        return np.arange(first, first + rows)
    return rows_written({sampler: inputs[tensor] for sampler, tensor in draw.inputs}, draw.params(values), rows)


def final_tensors(
    plan: Plan,
    weights: Mapping[str, Array],
    inputs: Mapping[str, Array],
    values: RunValues,
    caches: MutableMapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Every activation at the end of :func:`run_plan`, and of each cache the rows that were written last."""
    found: dict[str, Array] = {}
    for draw, result in run_plan(plan, weights, inputs, values, caches):
        found.update(by_output(draw, result))
    return found


MASK_LIMIT = 1e29
"""Limit beyond which values are masks (−1e30); they are compared, but do not count for a tensor's scale."""


def relative_errors(found: Array, expected: Array, allowed: Array | float = 0.0) -> Array:
    """|found − expected| − allowed of each element, relative to the tensor's largest unmasked |expected|; float64.

    It is infinite where only one of the two is NaN, and where an infinity is missed.
    """
    expected = np.asarray(expected, dtype=np.float64)
    found = np.asarray(found, dtype=np.float64)
    magnitude = np.abs(expected)
    scale = np.maximum(magnitude, magnitude[magnitude < MASK_LIMIT].max(initial=0.0))
    with np.errstate(invalid="ignore", divide="ignore"):
        errors = np.where(found == expected, 0.0, np.maximum(np.abs(found - expected) - allowed, 0.0) / scale)
    both_nan = np.isnan(found) & np.isnan(expected)
    return np.where(both_nan, 0.0, np.where(np.isnan(errors), np.inf, errors))


def relative_error(found: Array, expected: Array, allowed: Array | float = 0.0) -> float:
    """The largest of :func:`relative_errors`; 0 where there are no elements."""
    return float(relative_errors(found, expected, allowed).max(initial=0.0))
