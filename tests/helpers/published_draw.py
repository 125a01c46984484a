"""Plans of one draw of the published plan's ops, with random contents, in every form.

Rows and columns that are not in use hold NaN, so that a draw which reads one of them gives NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from one_draw import OUT, Array, Case, OneDraw, normal

from glinfer.gl.context import Device
from glinfer.kernels.published.attention import attention_scores, attention_values, concat_head
from glinfer.kernels.published.linear import ACTIVATIONS, linear
from glinfer.kernels.published.rows import embed, layer_norm, softmax
from glinfer.kernels.spec import RunValue, TensorSpec


class PublishedDraw(OneDraw):
    """A plan of one draw over ``rows`` of at most ``max_rows`` rows."""

    def __init__(self, rows: int, max_rows: int) -> None:
        super().__init__([RunValue("rows", 1, max_rows, usual="tokens")], max_rows)
        self.rows, self.case = rows, Case({"rows": rows})

    def weight(self, name: str, array: Array) -> TensorSpec:
        self.arrays[name] = array
        return self.builder.weight(name, *array.shape)

    def input(self, name: str, array: Array, used: tuple[int, int] | None = None) -> TensorSpec:
        """An input of which ``used`` (default: the rows in use) is random and the rest NaN."""
        if array.dtype == np.float32:
            rows, cols = used or (self.rows, array.shape[1])
            array = array.copy()
            array[rows:], array[:, cols:] = np.nan, np.nan
        self.arrays[name] = array
        return self.builder.input(name, *array.shape, "r32i" if array.dtype == np.int32 else "r32f")

    def out(self, rows: int, cols: int) -> TensorSpec:
        return self.builder.activation(OUT, rows, cols)

    def found(self, device: Device) -> Array:
        return self.run(device, self.case)[0]

    def wanted(self) -> Array:
        return self.expected(self.case)


def linear_draw(
    rows: int, max_rows: int, dim: int, out: int, *, bias: bool, residual: bool, activation: str, last_row: bool
) -> PublishedDraw:
    one = PublishedDraw(rows, max_rows)
    height = 1 if last_row else max_rows
    # Residuals and results have one row with last_row, and that one is in use.
    added = one.input("r", normal(4, height, out), (height if last_row else rows, out)) if residual else None
    return one.draw(
        linear(
            "draw",
            "draw",
            one.input("x", normal(1, max_rows, dim)),
            one.weight("w", normal(2, out, dim, scale=dim**-0.5)),
            one.out(height, out),
            bias=one.weight("b", normal(3, out)) if bias else None,
            residual=added,
            activation=activation,
            last_row=last_row,
        )
    )


def softmax_draw(rows: int, max_rows: int, cols: int, *, of: str = "all") -> PublishedDraw:
    """Softmax ``of`` all of a matrix, of its ``rows_in_use``, or of the ``causal_square``."""
    one = PublishedDraw(rows, max_rows)
    shape = {"all": (rows, cols), "rows_in_use": (max_rows, cols), "causal_square": (max_rows, max_rows)}[of]
    x = one.input("x", normal(1, *shape, scale=4.0), (rows, rows if of == "causal_square" else cols))
    options = {} if of == "all" else {of: True}
    return one.draw(softmax("draw", "draw", x, one.out(*shape), **options))


def layer_norm_draw(rows: int, max_rows: int, dim: int, *, eps: float = 1e-5) -> PublishedDraw:
    one = PublishedDraw(rows, max_rows)
    x = one.input("x", normal(1, max_rows, dim, scale=3.0) + np.float32(0.5))
    weight, bias = one.weight("w", normal(2, dim)), one.weight("b", normal(3, dim))
    return one.draw(layer_norm("draw", "draw", x, weight, bias, one.out(max_rows, dim), eps=eps))


def embed_draw(rows: int, max_rows: int, vocab: int, dim: int) -> PublishedDraw:
    one = PublishedDraw(rows, max_rows)
    ids = np.random.default_rng(1).integers(0, vocab, (max_rows, 1), dtype=np.int32)
    wte, wpe = one.weight("wte", normal(2, vocab, dim)), one.weight("wpe", normal(3, max_rows, dim))
    return one.draw(embed("draw", one.input("tokens", ids), wte, wpe, one.out(max_rows, dim)))


def scores_draw(rows: int, max_rows: int, heads: int, head_dim: int, head: int) -> PublishedDraw:
    one = PublishedDraw(rows, max_rows)
    q, k = (one.input(name, normal(seed, max_rows, heads * head_dim)) for seed, name in enumerate("qk"))
    out = one.out(max_rows, max_rows)
    return one.draw(attention_scores("draw", "draw", q, k, out, head=head, head_dim=head_dim))


def values_draw(rows: int, max_rows: int, heads: int, head_dim: int, head: int) -> PublishedDraw:
    one = PublishedDraw(rows, max_rows)
    probs = np.tril(np.random.default_rng(1).random((max_rows, max_rows), dtype=np.float32))
    probs /= probs.sum(axis=1, keepdims=True)
    p, v = one.input("p", probs, (rows, rows)), one.input("v", normal(2, max_rows, heads * head_dim))
    return one.draw(attention_values("draw", "draw", p, v, one.out(max_rows, head_dim), head=head))


def concat_draw(rows: int, max_rows: int, heads: int, head_dim: int, head: int, *, first: bool) -> PublishedDraw:
    one = PublishedDraw(rows, max_rows)
    dim = heads * head_dim
    mixed = one.input("m", normal(1, max_rows, head_dim))
    so_far = None if first else one.input("s", normal(2, max_rows, dim))
    return one.draw(concat_head("draw", "draw", mixed, so_far, one.out(max_rows, dim), head=head))


LINEAR_FORMS = [
    {"bias": number % 2 == 1, "residual": number in (2, 3), "activation": activation, "last_row": number > 2}
    for number, activation in enumerate(ACTIVATIONS)
]


def every_form(
    rows: int, max_rows: int, heads: int, head_dim: int, other: int, head: int
) -> Iterator[tuple[str, Callable[[], PublishedDraw]]]:
    """Every op with every define that its builder can set or leave out, by a name for messages.

    ``other`` is the vocabulary, the inner width, the columns of a plain softmax.
    """
    dim = heads * head_dim
    for form in LINEAR_FORMS:
        flags = [name if value is True else str(value) for name, value in form.items() if value]
        yield f"linear {' '.join(flags)}", lambda form=form: linear_draw(rows, max_rows, dim, other, **form)
    for of in ("all", "rows_in_use", "causal_square"):
        yield f"softmax {of}", lambda of=of: softmax_draw(rows, max_rows, other, of=of)
    yield "layer_norm", lambda: layer_norm_draw(rows, max_rows, dim)
    yield "embed", lambda: embed_draw(rows, max_rows, other, dim)
    yield "attention_scores", lambda: scores_draw(rows, max_rows, heads, head_dim, head)
    yield "attention_values", lambda: values_draw(rows, max_rows, heads, head_dim, head)
    yield "concat_head first", lambda: concat_draw(rows, max_rows, heads, head_dim, head, first=True)
    yield "concat_head", lambda: concat_draw(rows, max_rows, heads, head_dim, head, first=False)
