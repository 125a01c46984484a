"""The scan of Mamba-2 (Dao and Gu 2024): the passes that it does not share with the delta rule.

A scan is the rule of :mod:`glinfer.kernels.fused.delta` with ``u_t = step_t x_t`` for a correction. Its queries,
keys and values are C, B and x, and its decay is ``rate · step``. It has that module's rows, caches and passes, and its
own for the rows of the cache, its gates and the norm after them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.gl.layouts.blocks import BLOCK_FLOATS
from glinfer.kernels.fused.delta import DeltaHeads, DeltaRun, widths
from glinfer.kernels.fused.draws import Defines
from glinfer.kernels.published.linear import ACTIVATIONS, activate
from glinfer.kernels.spec import Array, DrawSpec, Params, TensorSpec, float64, op


def scan_row(run: DeltaRun, x: TensorSpec, out: TensorSpec) -> DrawSpec:
    """The rows of the cache, out [rows, heads.kept], from x [rows, heads.mixed]: keys, decays, values times steps."""
    return run.draw("row", "scan_row", {"x": x}, [out], placed=False)


def scan_gate(
    run: DeltaRun, x: TensorSpec, results: TensorSpec, gates: TensorSpec, decay: TensorSpec, out: TensorSpec
) -> DrawSpec:
    """``out = (results + skip · v) · silu(z)``; results and out [rows, values].

    x has rows of ``heads.mixed`` floats with v, and gates rows of ``heads.projected`` floats with z. The third row of
    decay [3, heads] is skip.
    """
    defines: Defines = [("GATE_BLOCK", run.heads.z_at // BLOCK_FLOATS), ("ACTIVATION", ACTIVATIONS["silu"])]
    inputs = {"x": x, "results": results, "gates": gates, "decay": decay}
    return run.draw("gated", "scan_gate", inputs, [out], defines, placed=False)


def scan_norm(run: DeltaRun, x: TensorSpec, gains: TensorSpec, out: TensorSpec, *, groups: int, eps: float) -> DrawSpec:
    """``out = x / sqrt(mean(x²) + eps) · gains``, the mean over each of ``groups`` parts; x, out [rows, values]."""
    defines: Defines = [("GROUP_TEXELS", run.heads.values // groups // 4), ("EPS", float(eps))]
    return run.draw("mixed", "scan_norm", {"x": x, "gains": gains}, [out], defines, placed=False)


@op("scan_row", ("x",), (), widths("mixed", "kept"))
def _oracle_row(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    heads, x = DeltaHeads.of(params), float64(inputs, ["x"])[0][: size[0]]
    steps = x[:, heads.beta_at : heads.beta_at + heads.rule.heads, None]
    values = x[:, heads.v_at : heads.v_at + heads.values].reshape(size[0], heads.rule.heads, -1)
    found = [x[:, heads.k_at : heads.v_at], x[:, heads.g_at : heads.beta_at], (steps * values).reshape(size[0], -1)]
    return np.concatenate(found, axis=1)


@op("scan_gate", ("x", "results", "gates", "decay"), (), widths("mixed", "values"))
def _oracle_gate(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, results, gates, decay = float64(inputs, ["x", "results", "gates", "decay"])
    heads, rows = DeltaHeads.of(params), size[0]
    v = x[:rows, heads.v_at : heads.v_at + heads.values]
    z = gates[:rows, heads.z_at : heads.z_at + heads.values]
    skipped = results[:rows] + np.repeat(decay[2], heads.rule.value) * v
    return np.asarray(skipped * activate(z, ACTIVATIONS["silu"]))


@op("scan_norm", ("x", "gains"), (), widths("values", "values"))
def _oracle_norm(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    x, gains = float64(inputs, ["x", "gains"])
    parts = x[: size[0]].reshape(size[0], -1, 4 * int(params["GROUP_TEXELS"]))
    normed = parts / np.sqrt((parts**2).mean(axis=-1, keepdims=True) + params["EPS"])
    return np.asarray(normed.reshape(size) * gains[0])
