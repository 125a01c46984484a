"""Attention in one pass over keys and values, with an online softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.flat import LANES, texels_for
from glinfer.gl.layouts.matrix import Extent
from glinfer.ops.flat.draws import Define, Scratch, Uniform, flat_draw
from glinfer.ops.flat.product import seen_keys
from glinfer.ops.flat.stats import LOWEST
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, float64, register

_FEW_FRAGMENTS, _FRAGMENTS, _MIN_PART_KEYS = 128, 1024, 32
"""Keys of draws with at most _FEW_FRAGMENTS fragments are split into parts, for about _FRAGMENTS fragments in all."""


def attend(
    name: str,
    kind: str,
    q: TensorSpec,
    k: TensorSpec,
    v: TensorSpec,
    out: TensorSpec,
    *,
    heads: int,
    kv_heads: int,
    queries: int,
    keys: int,
    scale: float,
    causal: Extent | None = None,
    window: int = 0,
    kernels: KernelOptions,
    scratch: Scratch,
    parts: int = 0,
) -> list[DrawSpec]:
    """The one or two draws of ``out = softmax(scale · q · kᵀ) · v``, without a matrix of scores.

    Online softmax: Milakov and Gimelshein 2018, Dao et al. 2022 (FlashAttention).

    Args:
        name: the first draw's name; the second is ``<name>.weave``.
        kind: the draws' group in tables.
        q: [sequences · heads · queries, D], a flat tensor.
        k, v: [sequences · kv_heads · keys, D] and [same, E].
        out: [sequences · heads · queries, E].
        heads, kv_heads: heads of a sequence; each head of keys serves heads / kv_heads heads of queries.
        queries, keys: rows of one head.
        scale: factor of the scores.
        causal: None, or the last key that query 0 sees, a number or a run value's name: query r sees keys up to
            ``causal + r``.
        window: limit for the keys that a query sees, up to its last one; 0 for all.
        kernels: the renderer's kernel options.
        scratch: declares the tensors between the two draws.
        parts: limit for the parts of the keys, which run in parallel (as in Flash-Decoding, Dao et al. 2023); 0 for
            the number that gives the renderer enough fragments.

    Raises:
        PlanError: the numbers of heads do not fit, a window lacks ``causal``, or a tensor has another layout.
    """
    if heads % kv_heads:
        raise PlanError(
            f"draw {name}: {heads} heads of queries share {kv_heads} heads of keys; expected a whole number each"
        )
    if window and causal is None:
        raise PlanError(f"draw {name}: a window of {window} keys needs queries that see keys up to their own")
    texels = texels_for(v.shape[1])
    targets = min(kernels.rows_per_draw, 1 << (texels - 1).bit_length())
    wanted = parts or _parts_for(q.shape[0] * -(-texels // targets), keys)
    part_keys = -(-keys // wanted // LANES) * LANES
    parts = -(-keys // part_keys)
    defines: list[Define] = [
        ("ROWS", targets),
        ("HEADS", heads),
        ("KV_HEADS", kv_heads),
        ("QUERIES", queries),
        ("KEYS", keys),
        ("Q_ROWS", q.shape[0]),
        ("SCALE", float(scale)),
        ("PARTS", parts),
        ("PART_KEYS", part_keys),
        *([] if causal is None else [("CAUSAL", 1)]),
        *([("WINDOW", window)] if window else []),
    ]
    outputs, weaving = [out], list[DrawSpec]()
    if targets > 1 or parts > 1:
        columns = LANES * -(-(texels + (parts > 1)) // targets)
        outputs = [scratch(f"{name}.target{i}", parts * out.shape[0], columns) for i in range(targets)]
        weaving.append(_weave(name, kind, outputs, out, parts, kernels))
    uniforms: list[Uniform] = [] if causal is None else [("offset", causal)]
    inputs = [("q", q), ("k", k), ("v", v)]
    draw = flat_draw(name, kind, "attend", inputs, outputs, kernels=kernels, defines=defines, uniforms=uniforms)
    return [draw, *weaving]


def _weave(
    name: str, kind: str, targets: Sequence[TensorSpec], out: TensorSpec, parts: int, kernels: KernelOptions
) -> DrawSpec:
    """The draw that concatenates the columns of all targets, and merges the softmaxes of parts."""
    sources = [(f"x{i}", target) for i, target in enumerate(targets)]
    defines: list[Define] = [("ROWS", len(targets)), ("PARTS", parts), ("OUT_ROWS", out.shape[0])]
    return flat_draw(f"{name}.weave", kind, "weave", sources, [out], kernels=kernels, defines=defines)


def _parts_for(fragments: int, keys: int) -> int:
    """Number of parts of the keys, for a draw of ``fragments`` fragments without parts."""
    return max(1, min(keys // _MIN_PART_KEYS, _FRAGMENTS // fragments)) if fragments <= _FEW_FRAGMENTS else 1


def _check(shapes: Shapes, params: Params) -> None:
    sequences = shapes.rows("q") // int(params["HEADS"] * params["QUERIES"])
    rows = sequences * int(params["KV_HEADS"] * params["KEYS"])
    shapes.expect("q", sequences * params["HEADS"] * params["QUERIES"], None)
    shapes.expect("k", rows, shapes.by_name["q"][1])
    shapes.expect("v", rows, None)
    shapes.expect("output", params["PARTS"] * shapes.rows("q"), None)
    reached = params["PARTS"] * params["PART_KEYS"]
    shapes.require(reached >= params["KEYS"], f"its parts have {reached} keys of {params['KEYS']}")
    shapes.require(params.get("offset", 0) >= 0, f"query 0 sees {params.get('offset', 0)} keys before its own")


def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    q, k, v = float64(inputs, ["q", "k", "v"])
    names = ("HEADS", "KV_HEADS", "QUERIES", "KEYS", "PARTS", "PART_KEYS", "ROWS")
    heads, kv_heads, queries, keys, parts, part_keys, targets = (int(params[name]) for name in names)
    texels, found = texels_for(v.shape[1]), []
    for part in range(parts):
        seen = part * part_keys, min((part + 1) * part_keys, keys)
        for matrix in range(len(q) // queries):
            first = ((matrix // heads) * kv_heads + matrix % heads // (heads // kv_heads)) * keys
            mixed, stats = _one_head(q[matrix * queries :][:queries], k[first:][:keys], v[first:][:keys], params, seen)
            row = np.zeros((queries, texels + 1, LANES))
            row[:, :texels].reshape(queries, -1)[:, : v.shape[1]] = mixed if parts > 1 else mixed / stats[:, 1:]
            row[:, texels, :2] = stats
            found.append(row)
    gathered = np.concatenate(found)
    # Padding texels of a target repeat the last texel of the row.
    places = np.arange(targets * size[1] // LANES)
    kept = np.where((places == texels) & (parts > 1), texels, np.minimum(places, texels - 1))
    by_texel = gathered[:, kept].reshape(len(gathered), -1, targets, LANES)
    if targets == 1 and parts == 1:
        return gathered[:, :texels].reshape(len(gathered), -1)[: size[0], : size[1]]
    by_target = np.moveaxis(by_texel, 2, 0).reshape(targets, len(gathered), size[1])
    return by_target[0] if targets == 1 else by_target


def _one_head(q: Array, k: Array, v: Array, params: Params, seen: tuple[int, int]) -> tuple[Array, Array]:
    """The weighted values of one head over the keys ``seen``, and its (peak, sum) [queries, 2]."""
    scores = q @ k.T * params["SCALE"]
    if params.get("CAUSAL"):
        last = np.minimum(np.arange(len(q))[:, None] + params["offset"], len(k) - 1)
        seen_by = seen_keys(np.arange(len(k)), last, int(params.get("WINDOW", 0)))
        scores = np.where(seen_by, scores, -np.inf)
    scores = scores[:, seen[0] : seen[1]]
    peak = np.maximum(scores.max(axis=1, keepdims=True), LOWEST)
    weights = np.exp(scores - peak)
    return weights @ v[seen[0] : seen[1]], np.concatenate([peak, weights.sum(axis=1, keepdims=True)], axis=1)


def _check_weave(shapes: Shapes, params: Params) -> None:
    rows, cols = shapes.by_name["output"]
    targets, parts = int(params["ROWS"]), int(params["PARTS"])
    for i in range(targets):
        shapes.expect(f"x{i}", parts * rows, LANES * -(-(texels_for(cols) + (parts > 1)) // targets))


def _oracle_weave(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    sources = float64(inputs, [f"x{i}" for i in range(int(params["ROWS"]))])
    parts, texels = int(params["PARTS"]), texels_for(size[1])
    by_texel = np.stack([source.reshape(len(source), -1, LANES) for source in sources], axis=2)
    found = by_texel.reshape(parts, len(sources[0]) // parts, -1, LANES)
    gathered = found[:, :, :texels].reshape(parts, len(found[0]), -1)
    if parts > 1:
        peaks, sums = found[:, :, texels, :1], found[:, :, texels, 1:2]
        scales = np.exp(peaks - peaks.max(axis=0))
        gathered = ((scales * gathered).sum(axis=0) / (scales * sums).sum(axis=0))[None]
    return np.asarray(gathered[0][: size[0], : size[1]])


register(Op("attend", ("q", "k", "v"), (), _check, _oracle))
register(Op("weave", ("x0",), tuple(f"x{i}" for i in range(1, 8)), _check_weave, _oracle_weave))
