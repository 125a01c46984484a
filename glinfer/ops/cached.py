"""Attention of one new token over a cache: scores, then softmax and weighted sum in one pass, all heads at once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.blocks import BLOCK_FLOATS, BlockLayout
from glinfer.ops.kernels import Kernels
from glinfer.ops.spec import Array, DrawSpec, Op, Params, Shapes, TensorSpec, float64, register

SLOT_TOKENS = BLOCK_FLOATS
"""Tokens of one slot of the scores: one block a head."""
MASKED = -1e30


def score_slots(tokens: int) -> int:
    """How many slots of scores so many tokens take."""
    return -(-tokens // SLOT_TOKENS)


def _layout(name: str, tensor: TensorSpec) -> BlockLayout:
    if not isinstance(tensor.layout, BlockLayout):
        raise PlanError(f"draw {name}: {tensor.name} does not lie in blocks")
    return tensor.layout


def _defines(name: str, heads: int, head_floats: int, **tensors: TensorSpec) -> list[tuple[str, int | float]]:
    if head_floats % 16:
        raise PlanError(f"draw {name}: a head of {head_floats} floats; expected whole quads of 16, padded with zeros")
    defines: list[tuple[str, int | float]] = [("HEADS", heads), ("HEAD_TEXELS", head_floats // 4)]
    for prefix, tensor in tensors.items():
        defines += _layout(name, tensor).defines(prefix)
    return defines


def cached_scores(
    name: str,
    cache: TensorSpec,
    out: TensorSpec,
    *,
    heads: int,
    head_floats: int,
    kernels: Kernels,
) -> DrawSpec:
    """``out[t] = q[position] · k[t]`` for each head and every token t up to position; -1e30 after it.

    cache [positions, 3 · heads · head_floats] = q | k | v, the query already scaled; out [slots, heads · 64], a slot
    64 tokens of each head. Run values: position, score_slots.
    """
    return DrawSpec(
        name=name,
        kind="attn.scores",
        op="cached_scores",
        inputs=(("cache", cache.name),),
        outputs=(out.name,),
        size=("score_slots", out.shape[1]),
        defines=(
            *_defines(name, heads, head_floats, CACHE=cache, OUT=out),
            ("QUAD", int(kernels.quad)),
            ("LOOKUP_TEXTURE", int(kernels.lookup_texture)),
        ),
        per_run=(("position", "position"),),
        cover=kernels.cover,
    )


def cached_values(
    name: str,
    scores: TensorSpec,
    cache: TensorSpec,
    out: TensorSpec,
    *,
    heads: int,
    head_floats: int,
    kernels: Kernels,
) -> DrawSpec:
    """``out = softmax(scores) @ v`` for each head, [1, heads · head_floats]; see :func:`cached_scores`.

    With ``kernels.split_values`` an instance takes 64 tokens, and blending adds the instances up.
    """
    parts: list[tuple[str, int | float]] = [("PARTS", 1)] if kernels.split_values else []
    return DrawSpec(
        name=name,
        kind="attn.values",
        op="cached_values",
        inputs=(("scores", scores.name), ("cache", cache.name)),
        outputs=(out.name,),
        size=(1, out.shape[1]),
        defines=(
            *_defines(name, heads, head_floats, SCORES=scores, CACHE=cache, OUT=out),
            *parts,
            ("QUAD", int(kernels.quad)),
            ("LOOKUP_TEXTURE", int(kernels.lookup_texture)),
        ),
        per_run=(("position", "position"),),
        cover=kernels.cover,
        instances="score_slots" if parts else 1,
        clears=bool(parts),
        adds=bool(parts),
    )


def _check_cache(shapes: Shapes, params: Params) -> int:
    width = int(params["HEADS"] * params["HEAD_TEXELS"] * 4)
    shapes.expect("cache", None, 3 * width)
    # Whole slots of tokens are read, whatever the position.
    shapes.require(shapes.rows("cache") % SLOT_TOKENS == 0, f"the cache has {shapes.rows('cache')} rows")
    shapes.require(params["position"] < shapes.rows("cache"), f"position {params['position']} is outside the cache")
    return width


def _check_scores(shapes: Shapes, params: Params) -> None:
    _check_cache(shapes, params)
    shapes.expect("output", shapes.rows("cache") // SLOT_TOKENS, params["HEADS"] * SLOT_TOKENS)


def _check_values(shapes: Shapes, params: Params) -> None:
    shapes.expect("output", 1, _check_cache(shapes, params))
    shapes.expect("scores", shapes.rows("cache") // SLOT_TOKENS, params["HEADS"] * SLOT_TOKENS)


def _heads(cache: Array, params: Params, part: int) -> Array:
    """[heads, positions, head_floats] of the queries (part 0), keys (1) or values (2)."""
    heads, floats = int(params["HEADS"]), int(params["HEAD_TEXELS"]) * 4
    columns = cache[:, part * heads * floats : (part + 1) * heads * floats]
    return np.asarray(columns.reshape(cache.shape[0], heads, floats).transpose(1, 0, 2))


def _oracle_scores(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (cache,) = float64(inputs, ["cache"])
    heads, position = int(params["HEADS"]), int(params["position"])
    used = cache[: position + 1]
    scores = np.einsum("hd,htd->ht", _heads(used, params, 0)[:, -1], _heads(used, params, 1))
    padded = np.full((heads, size[0] * SLOT_TOKENS), MASKED)
    padded[:, : position + 1] = scores
    return padded.reshape(heads, size[0], SLOT_TOKENS).transpose(1, 0, 2).reshape(size)


def _oracle_values(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    cache, scores = float64(inputs, ["cache", "scores"])
    heads, position = int(params["HEADS"]), int(params["position"])
    slots = score_slots(position + 1)
    by_head = scores[:slots].reshape(slots, heads, SLOT_TOKENS).transpose(1, 0, 2).reshape(heads, -1)[:, : position + 1]
    weights = np.exp(by_head - by_head.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.asarray(np.einsum("ht,htd->hd", weights, _heads(cache[: position + 1], params, 2)).reshape(size))


register(Op("cached_scores", ("cache",), (), _check_scores, _oracle_scores))
register(Op("cached_values", ("scores", "cache"), (), _check_values, _oracle_values))
