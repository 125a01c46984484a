"""Kernels for attention: in steps whose matrices can be inspected, and fused."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from glinfer.errors import InputError
from glinfer.gl.layouts.flat import LANES, texels_for
from glinfer.kernels.flat.draws import Define
from glinfer.kernels.flat.product import Product, Strategy
from glinfer.kernels.spec import Op, TensorSpec, register
from glinfer.tensors.base import Result, expect_floats
from glinfer.tensors.matmul import Products
from glinfer.tensors.passes import Passes
from glinfer.tensors.tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack

_FEW_FRAGMENTS, _FRAGMENTS, _MIN_PART_KEYS = 128, 1024, 32
"""Keys of draws with at most _FEW_FRAGMENTS fragments are split into parts, for about _FRAGMENTS fragments in all."""


class Attention(Products):
    """Scores, weighted sums and whole attention, also grouped-query, with fewer key heads than query heads."""

    def attention_scores(
        self,
        q: Tensor,
        k: Tensor,
        *,
        scale: float | None = None,
        causal: bool = False,
        offset: int = 0,
        strategy: str | Strategy | None = None,
        **result: Unpack[Result],
    ) -> Tensor:
        """``scale · q · kᵀ`` of each head (Vaswani et al. 2017; grouped-query, Ainslie et al. 2023).

        Args:
            q: [..., H, S, D], of float32 or float16.
            k: [..., G, T, D], where G divides H: head h of q uses head h / (H / G) of k.
            scale: the factor; 1 / √D by default.
            causal: whether query s sees keys up to ``offset + s`` only; other scores become −1e30, far below any score
                and finite, so that softmax gives an exact 0.
            offset: number of keys before that of query 0.
            strategy: see :meth:`matmul`.

        Returns:
            [..., H, S, T].
        """
        heads, product = _grouped(q, k, "q", "k")
        if q.shape[-1] != k.shape[-1]:
            raise InputError(f"q is {list(q.shape)} and k is {list(k.shape)}; their last axes differ")
        finish: dict[str, Any] = {"scale": _factor(q, scale), "causal": _last_key(causal, offset)}
        shape = (*heads, q.shape[-2], k.shape[-2])
        return self._product({"q": q, "k": k}, product, shape, strategy, **result, **finish)

    def attention_values(
        self, probs: Tensor, v: Tensor, *, strategy: str | Strategy | None = None, **result: Unpack[Result]
    ) -> Tensor:
        """``probs · v`` of each head: the weighted sum of the values.

        Args:
            probs: [..., H, S, T], of float32 or float16.
            v: [..., G, T, E], where G divides H.
            strategy: see :meth:`matmul`.

        Returns:
            [..., H, S, E].
        """
        heads, product = _grouped(probs, v, "probs", "v")
        if probs.shape[-1] != v.shape[-2]:
            raise InputError(f"probs is {list(probs.shape)} and v is {list(v.shape)}; they differ in the keys")
        shape = (*heads, probs.shape[-2], v.shape[-1])
        return self._product({"probs": probs, "v": v}, product, shape, strategy, **result)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        causal: bool = False,
        offset: int = 0,
        **result: Unpack[Result],
    ) -> Tensor:
        """``softmax(scale · q · kᵀ) · v`` of each head, fused: an online softmax without a matrix of scores.

        Args:
            q: [..., H, S, D], of float32 or float16.
            k, v: [..., G, T, D] and [..., G, T, E], where G divides H.
            scale, causal, offset: see :meth:`attention_scores`.

        Returns:
            [..., H, S, E].
        """
        heads, product = _grouped(q, k, "q", "k")
        if q.shape[-1] != k.shape[-1] or v.shape[:-1] != k.shape[:-1]:
            raise InputError(
                f"q, k and v are {list(q.shape)}, {list(k.shape)} and {list(v.shape)}; expected [..., H, S, D], "
                "[..., G, T, D] and [..., G, T, E]"
            )
        expect_floats(v=v)
        factor, last = _factor(q, scale), _last_key(causal, offset)

        def build(passes: Passes, out: TensorSpec, **specs: TensorSpec) -> None:
            _attend(passes, specs, out, product, factor, last)

        return self._run(build, {"q": q, "k": k, "v": v}, (*heads, q.shape[-2], v.shape[-1]), **result)


def _attend(
    passes: Passes, reads: dict[str, TensorSpec], out: TensorSpec, product: Product, scale: float, last: int | None
) -> None:
    """Append the one or two draws of fused attention; query r sees keys up to ``last + r``.

    Online softmax: Milakov and Gimelshein 2018, Dao et al. 2022 (FlashAttention). If few fragments would run, each
    sees a part of the keys, as in Flash-Decoding (Dao et al. 2023), and the second draw merges the parts. It also joins
    the columns of several render targets.
    """
    queries, texels, keys = reads["q"].shape[0], texels_for(out.shape[1]), product.n
    targets = min(passes.kernels.rows_per_draw, 1 << (texels - 1).bit_length())
    fragments = queries * -(-texels // targets)
    wanted = max(1, min(keys // _MIN_PART_KEYS, _FRAGMENTS // fragments)) if fragments <= _FEW_FRAGMENTS else 1
    part_keys = -(-keys // wanted // LANES) * LANES
    parts = -(-keys // part_keys)
    _, kv_heads, shared = product.batch
    defines: list[Define] = [
        ("ROWS", targets),
        ("HEADS", kv_heads * shared),
        ("KV_HEADS", kv_heads),
        ("QUERIES", product.m),
        ("KEYS", keys),
        ("Q_ROWS", queries),
        ("SCALE", float(scale)),
        ("PARTS", parts),
        ("PART_KEYS", part_keys),
        *([] if last is None else [("CAUSAL", 1)]),
    ]
    uniforms, outputs = [] if last is None else [("offset", last)], [out]
    if targets > 1 or parts > 1:
        columns = LANES * -(-(texels + (parts > 1)) // targets)
        outputs = [passes.scratch(f"target{i}", parts * queries, columns) for i in range(targets)]
    passes.step("attend", reads, outputs, defines=defines, uniforms=uniforms)
    if outputs != [out]:
        sources = {f"x{i}": target for i, target in enumerate(outputs)}
        sizes = [("ROWS", targets), ("PARTS", parts), ("OUT_ROWS", queries)]
        passes.step("weave", sources, [out], "attention.weave", defines=sizes)


def _grouped(x: Tensor, y: Tensor, of_x: str, of_y: str) -> tuple[tuple[int, ...], Product]:
    """The leading axes of the result, and the product of each head of x with the head of y that it shares."""
    expect_floats(**{of_x: x, of_y: y})
    fits = x.ndim >= 2 and x.ndim == y.ndim and x.shape[:-3] == y.shape[:-3]
    heads, kv_heads = (x.shape[-3], y.shape[-3]) if fits and x.ndim > 2 else (1, 1)
    if not fits or (heads % kv_heads if kv_heads else heads):
        raise InputError(
            f"found {list(x.shape)} and {list(y.shape)}; expected [..., heads, rows, columns] of the same leading "
            "axes, the heads of the second dividing those of the first"
        )
    shared, transposed = heads // max(1, kv_heads), of_y == "k"
    n, k = y.shape[-2:] if transposed else y.shape[:-3:-1]
    batch = (math.prod(x.shape[:-3]), kv_heads, shared)
    steps: dict[str, Any] = {"x_steps": (heads, shared, 1), "weight_steps": (kv_heads, 1, 0)}
    return x.shape[:-2], Product(x.shape[-2], n, k, transposed=transposed, batch=batch, **steps)


def _factor(q: Tensor, scale: float | None) -> float:
    if scale is None and not q.shape[-1]:
        raise InputError(f"q is {list(q.shape)}, without columns to set the scale; give a scale")
    return 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale


def _last_key(causal: bool, offset: int) -> int | None:
    """The last key that query 0 sees; None for all."""
    if causal and offset < 0:
        raise InputError(f"offset is {offset}; expected the number of keys before that of query 0, at least 0")
    return offset if causal else None


register(Op("attend", ("q", "k", "v")))
register(Op("weave", ("x0",), tuple(f"x{i}" for i in range(1, 8))))
