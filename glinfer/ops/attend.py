"""Attention in one pass over keys and values, with an online softmax."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.flat import LANES, texels_for
from glinfer.gl.layout import Extent
from glinfer.ops.flat import Define, Scratch, flat_draw
from glinfer.ops.kernels import Kernels
from glinfer.ops.product import MASKED
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, float64, register


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
    kernels: Kernels,
    scratch: Scratch,
) -> list[DrawSpec]:
    """The draws of ``out = softmax(scale · q · kᵀ) · v``, one or two; no matrix of scores is kept.

    Online softmax: Milakov and Gimelshein 2018, Dao et al. 2022 (FlashAttention).

    Args:
        name: of the first draw; the second is ``<name>.weave``.
        kind: what tables group by.
        q: [sequences · heads · queries, D], a flat tensor.
        k, v: [sequences · kv_heads · keys, D] and [same, E].
        out: [sequences · heads · queries, E].
        heads, kv_heads: of a sequence; each head of keys serves heads / kv_heads heads of queries.
        queries, keys: rows of one head.
        scale: factor of the scores.
        causal: None, or how many keys come before that of query 0, a number or a run value's name: query r sees keys
            up to ``causal + r``.
        kernels: how passes are shaped on the renderer.
        scratch: declares the tensors between the two draws.

    Raises:
        PlanError: the heads do not go together, or a tensor is laid out in another way.
    """
    if heads % kv_heads:
        raise PlanError(
            f"draw {name}: {heads} heads of queries share {kv_heads} heads of keys; expected a whole number each"
        )
    texels = texels_for(v.shape[1])
    targets = min(kernels.targets, 1 << (texels - 1).bit_length())
    defines: list[Define] = [
        ("ROWS", targets),
        ("HEADS", heads),
        ("KV_HEADS", kv_heads),
        ("QUERIES", queries),
        ("KEYS", keys),
        ("Q_ROWS", q.shape[0]),
        ("SCALE", float(scale)),
        *([] if causal is None else [("CAUSAL", 1)]),
    ]
    outputs = [out]
    if targets > 1:
        columns = LANES * -(-texels // targets)
        outputs = [scratch(f"{name}.target{i}", out.shape[0], columns) for i in range(targets)]
    first = flat_draw(
        name,
        kind,
        "attend",
        [("q", q), ("k", k), ("v", v)],
        outputs,
        kernels=kernels,
        defines=defines,
        uniforms=[("offset", causal)] if isinstance(causal, int) else [],
        per_run=[("offset", causal)] if isinstance(causal, str) else [],
    )
    if targets == 1:
        return [first]
    sources = [(f"x{i}", output) for i, output in enumerate(outputs)]
    return [
        first,
        flat_draw(f"{name}.weave", kind, "weave", sources, [out], kernels=kernels, defines=[("ROWS", targets)]),
    ]


def _check(shapes: Shapes, params: Params) -> None:
    sequences = shapes.rows("q") // int(params["HEADS"] * params["QUERIES"])
    rows = sequences * int(params["KV_HEADS"] * params["KEYS"])
    shapes.expect("q", sequences * params["HEADS"] * params["QUERIES"], None)
    shapes.expect("k", rows, shapes.by_name["q"][1])
    shapes.expect("v", rows, None)
    shapes.expect("output", shapes.rows("q"), None)
    shapes.require(params.get("offset", 0) >= 0, f"query 0 sees {params.get('offset', 0)} keys before its own")


def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    q, k, v = float64(inputs, ["q", "k", "v"])
    heads, kv_heads, queries, keys = (int(params[name]) for name in ("HEADS", "KV_HEADS", "QUERIES", "KEYS"))
    mixed = np.concatenate(
        [
            _one_head(q[matrix * queries :][:queries], k[first:][:keys], v[first:][:keys], params)
            for matrix in range(len(q) // queries)
            for first in [((matrix // heads) * kv_heads + matrix % heads // (heads // kv_heads)) * keys]
        ]
    )
    targets = int(params["ROWS"])
    if targets == 1:
        return np.asarray(mixed[: size[0]])
    texels = np.zeros((len(mixed), targets * size[1]))
    texels[:, : mixed.shape[1]] = mixed
    # Behind the last texel of a row every target has that last texel once more.
    last = texels_for(mixed.shape[1]) - 1
    by_texel = texels.reshape(len(mixed), -1, LANES)
    by_texel[:, last + 1 :] = by_texel[:, last : last + 1]
    dealt = by_texel.reshape(len(mixed), -1, targets, LANES)
    return np.moveaxis(dealt, 2, 0).reshape(targets, len(mixed), size[1])


def _one_head(q: Array, k: Array, v: Array, params: Params) -> Array:
    scores = q @ k.T * params["SCALE"]
    if params.get("CAUSAL"):
        seen = np.arange(len(k))[None, :] <= np.arange(len(q))[:, None] + params["offset"]
        scores = np.where(seen, scores, MASKED)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights @ v / weights.sum(axis=1, keepdims=True))


def _check_weave(shapes: Shapes, params: Params) -> None:
    rows, cols = shapes.by_name["output"]
    targets = int(params["ROWS"])
    for i in range(targets):
        shapes.expect(f"x{i}", rows, LANES * -(-texels_for(cols) // targets))


def _oracle_weave(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    sources = float64(inputs, [f"x{i}" for i in range(int(params["ROWS"]))])
    texels = np.stack([source.reshape(len(source), -1, LANES) for source in sources], axis=2)
    return np.asarray(texels.reshape(len(sources[0]), -1)[: size[0], : size[1]])


register(Op("attend", ("q", "k", "v"), (), _check, _oracle))
register(Op("weave", ("x0",), tuple(f"x{i}" for i in range(1, 8)), _check_weave, _oracle_weave))
