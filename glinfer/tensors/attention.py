"""Kernels for attention: in steps whose matrices can be inspected, and fused."""

from __future__ import annotations

import math

import numpy.typing as npt

from glinfer.errors import InputError
from glinfer.ops.flat.attend import attend
from glinfer.ops.flat.product import Product, Strategy
from glinfer.tensors.base import expect_floats
from glinfer.tensors.matmul import After, Products
from glinfer.tensors.tensor import Tensor


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
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
    ) -> Tensor:
        """``scale · q · kᵀ`` of each head (Vaswani et al. 2017; grouped-query, Ainslie et al. 2023).

        Args:
            q: [..., H, S, D], of float32 or float16.
            k: [..., G, T, D], where G divides H: head h of q uses head h / (H / G) of k.
            scale: the factor; 1 / √D by default.
            causal: whether query s sees keys up to ``offset + s`` only; other scores become −1e30, far below any score
                and finite, so that softmax gives an exact 0.
            offset: number of keys before that of query 0.
            strategy, dtype, out: see :meth:`matmul`.

        Returns:
            [..., H, S, T].

        Raises:
            InputError: the shapes do not fit, or the offset is negative.
        """
        heads, product = _grouped("attention_scores", q, k, "k", transposed=True)
        if q.shape[-1] != k.shape[-1]:
            raise InputError(f"attention_scores: q is {list(q.shape)} and k is {list(k.shape)}; their last axes differ")
        factor = _factor("attention_scores", q, scale)
        after = After(scale=factor, causal=_offset("attention_scores", offset) if causal else None)
        shape = (*heads, q.shape[-2], k.shape[-2])
        return self._product("attention_scores", {"q": q, "k": k}, product, shape, after, strategy, dtype, out)

    def attention_values(
        self,
        probs: Tensor,
        v: Tensor,
        *,
        strategy: str | Strategy | None = None,
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
    ) -> Tensor:
        """``probs · v`` of each head: the weighted sum of the values.

        Args:
            probs: [..., H, S, T], of float32 or float16.
            v: [..., G, T, E], where G divides H.
            strategy, dtype, out: see :meth:`matmul`.

        Returns:
            [..., H, S, E].

        Raises:
            InputError: the shapes do not fit.
        """
        heads, product = _grouped("attention_values", probs, v, "v", transposed=False)
        if probs.shape[-1] != v.shape[-2]:
            raise InputError(
                f"attention_values: probs is {list(probs.shape)} and v is {list(v.shape)}; they differ in the keys"
            )
        shape = (*heads, probs.shape[-2], v.shape[-1])
        reads = {"probs": probs, "v": v}
        return self._product("attention_values", reads, product, shape, After(), strategy, dtype, out)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        causal: bool = False,
        offset: int = 0,
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
    ) -> Tensor:
        """``softmax(scale · q · kᵀ) · v`` of each head, fused: an online softmax without a matrix of scores.

        Args:
            q: [..., H, S, D], of float32 or float16.
            k, v: [..., G, T, D] and [..., G, T, E], where G divides H.
            scale, causal, offset: see :meth:`attention_scores`.
            dtype: the result's type, float32 or float16.
            out: the tensor to write to; a new one by default.

        Returns:
            [..., H, S, E].

        Raises:
            InputError: the shapes do not fit, or the offset is negative.
        """
        heads, _ = _grouped("attention", q, k, "k", transposed=True)
        if q.shape[-1] != k.shape[-1] or v.shape[:-1] != k.shape[:-1]:
            raise InputError(
                f"attention: q, k and v are {list(q.shape)}, {list(k.shape)} and {list(v.shape)}; expected "
                "[..., H, S, D], [..., G, T, D] and [..., G, T, E]"
            )
        expect_floats("attention", v=v)
        shape = (*heads, q.shape[-2], v.shape[-1])
        factor = _factor("attention", q, scale)
        passes = self._passes("attention")
        if 0 in shape or not k.shape[-2]:  # without keys there is nothing to sum
            return passes.computed_zeros(shape, dtype, out, q=q, k=k, v=v)
        draws = attend(
            "attention",
            "attention",
            passes.read("q", q),
            passes.read("k", k),
            passes.read("v", v),
            passes.computed("y", shape, dtype, out),
            heads=q.shape[-3] if q.ndim > 2 else 1,
            kv_heads=k.shape[-3] if k.ndim > 2 else 1,
            queries=q.shape[-2],
            keys=k.shape[-2],
            scale=factor,
            causal=_offset("attention", offset) if causal else None,
            kernels=passes.kernels,
            scratch=passes.scratch,
        )
        passes.draw(*draws)
        (y,) = passes.run()
        return y


def _grouped(call: str, x: Tensor, y: Tensor, name: str, *, transposed: bool) -> tuple[tuple[int, ...], Product]:
    """The leading axes of the result, and the products of x's heads with the heads of y that they share.

    Raises:
        InputError: the heads of y do not divide those of x, or other axes differ.
    """
    expect_floats(call, **{"probs" if name == "v" else "q": x, name: y})
    if x.ndim < 2 or x.ndim != y.ndim or x.shape[:-3] != y.shape[:-3] or _ungrouped(x, y):
        raise InputError(
            f"{call}: found {list(x.shape)} and {list(y.shape)}; expected [..., heads, rows, columns] of the same "
            "leading axes, the heads of the second dividing those of the first"
        )
    heads, kv_heads = (x.shape[-3], y.shape[-3]) if x.ndim > 2 else (1, 1)
    shared = heads // max(1, kv_heads)
    n, k = (y.shape[-2], y.shape[-1]) if transposed else (y.shape[-1], y.shape[-2])
    product = Product(
        x.shape[-2],
        n,
        k,
        transposed=transposed,
        batch=(math.prod(x.shape[:-3]), kv_heads, shared),
        x_steps=(heads, shared, 1),
        weight_steps=(kv_heads, 1, 0),
    )
    return x.shape[:-2], product


def _ungrouped(x: Tensor, y: Tensor) -> int:
    """The remainder when the heads of y divide those of x."""
    if x.ndim < 3:
        return 0
    return x.shape[-3] % y.shape[-3] if y.shape[-3] else x.shape[-3]


def _factor(call: str, q: Tensor, scale: float | None) -> float:
    if scale is None and not q.shape[-1]:
        raise InputError(f"{call}: q is {list(q.shape)}, without columns to set the scale; give a scale")
    return 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale


def _offset(call: str, offset: int) -> int:
    if offset < 0:
        raise InputError(f"{call}: offset is {offset}; expected the number of keys before that of query 0, at least 0")
    return offset
