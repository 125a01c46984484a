"""LoRA adapters of products (Hu et al. 2021): each row of a batch may have its own adapter.

An adapter adds ``up @ (down @ x)`` to a product. :func:`lora_down` computes the small inner vector of every row. The
product adds the rest once its sums are complete (shaders/common/low_rank.glsl), before norm and activation. The weights
stay unchanged, so their format does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BLOCK_FLOATS, blocks_for
from glinfer.gl.layouts.packing import GemvLayout
from glinfer.kernels.fused.draws import Defines, Inputs, block_draw
from glinfer.kernels.fused.rows import WANTED, X_ROWS, Vectors, gathered
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, float64, given, op

CHOICE_FLOATS = 4
"""Floats of one choice of an expert: the expert, its weight, and two zeros."""
RANK_STEP = 16
"""An adapter's ranks in one product are padded to a multiple of this."""
ADAPTER = "adapter"
"""Run value and uniform: the number of the adapter of all rows, 0 for none."""
ADAPTER_WORD = WANTED
"""The word of the table of rows with the number of each row's own adapter, if the rows are of many sequences."""

LORA_SAMPLERS = ("lora_t", "lora_up")
"""The inputs of a product that adapters add to."""


@dataclass(frozen=True)
class LowRankSum:
    """The adapters of one product.

    Attributes:
        down: [adapters · experts · ranks, inputs], the matrices A one below the other; inputs padded to whole texels.
        up: [outputs, adapters · (ranks, and 16 more with ``biased``)], the matrices B side by side.
        inner: [rows, used · ranks], written by :func:`lora_down`.
        adapters: the number of adapters.
        biased: whether the first of the 16 columns after an adapter's own is added after the norm.
        rows: the table with each row's adapter; None if a run value selects one for all.
        experts: number of experts of the product, 1 for a product without; ``used``: experts of a row.
    """

    down: TensorSpec
    up: TensorSpec
    inner: TensorSpec
    adapters: int
    biased: bool = False
    rows: TensorSpec | None = None
    experts: int = 1
    used: int = 1

    @property
    def ranks(self) -> int:
        """Ranks of one adapter, or of one of its experts, padded."""
        return self.inner.shape[1] // self.used

    def defines(self, name: str) -> Defines:
        """The defines of a product, for shaders/common/low_rank.glsl."""
        found: Defines = [
            ("LORA", 1),
            ("LORA_STEPS", self.ranks // RANK_STEP),
            ("LORA_ALL_STEPS", 4 * blocks_for(self.up.shape[1])),
            ("LORA_BIASED", int(self.biased)),
            *_packed(name, self.up).defines("LORA_UP"),
        ]
        return [*found, *given(LORA_BY_ROW=self.rows)]

    @property
    def inputs(self) -> Inputs:
        """The inputs of a product besides the table of rows."""
        return {"lora_t": self.inner, "lora_up": self.up.name}

    @property
    def per_run(self) -> tuple[tuple[str, str], ...]:
        """The uniform of a draw that has one adapter for all rows."""
        return () if self.rows is not None else ((ADAPTER, ADAPTER),)


def _packed(name: str, tensor: TensorSpec) -> GemvLayout:
    layout = tensor.layout
    if not isinstance(layout, GemvLayout) or layout.quad or layout.weights != "f32":
        raise PlanError(f"draw {name}: expected {tensor.name} in float32, without quads")
    return layout


def lora_down(
    draw: Pass,
    x: Vectors,
    low_rank: LowRankSum,
    *,
    parts: int = 1,
    choice: TensorSpec | None = None,
    apart: int = 0,
) -> DrawSpec:
    """``inner[r] = down[adapter of r] @ x[r]``; zeros for rows without an adapter.

    x is interleaved, or one tensor with a row a slot. ``parts`` instances share the inputs, and blending adds them.
    With ``choice``, the output of :func:`glinfer.kernels.fused.experts.route`, inner has the vectors of a row's experts
    side by side. With ``apart`` x has ``apart`` inputs for each expert, padded to whole blocks, instead of shared ones.
    """
    together = isinstance(x, TensorSpec)
    width = apart or (x.shape[1] if isinstance(x, TensorSpec) else x.cols)
    steps = 4 * blocks_for(width)
    defines: Defines = [
        *_packed(draw.name, low_rank.down).defines("DOWN"),
        *given(ROWS=together),
        ("TOGETHER", int(together)),
        ("INPUTS", width),
        ("STEPS", steps),
        ("RANKS", low_rank.ranks),
    ]
    how: dict[str, Any] = {"uniforms": (("share", steps // parts),), "per_run": low_rank.per_run}
    defines += given(LORA_BY_ROW=low_rank.rows)
    if choice is not None:
        of_experts = {"EXPERTS": low_rank.experts, "USED": low_rank.used, "X_PART": blocks_for(width) if apart else 0}
        defines += of_experts.items()
    if parts > 1:
        defines.append(("PARTS", parts))
        how |= {"instances": parts, "adds": True, "clears": "all"}
    inputs: Inputs = {"x": x, "down": low_rank.down.name, "rows": low_rank.rows, "choice": choice}
    return block_draw(draw, "lora_down", inputs, low_rank.inner, defines, **how)


def check_low_rank(shapes: Shapes, params: Params, outputs: int) -> None:
    """Require the inputs of a product with adapters, whose matrix has ``outputs`` outputs."""
    bound = {"lora_t", "lora_up"} & set(shapes.by_name)
    shapes.require(len(bound) == (2 if params.get("LORA") else 0), "an adapter has two inputs")
    if not bound:
        return
    ranks = RANK_STEP * int(params["LORA_STEPS"])
    each = ranks + RANK_STEP * int(params["LORA_BIASED"])
    shapes.expect("lora_t", None, ranks * int(params.get("USED", 1)))
    shapes.expect("lora_up", outputs, None)
    columns = shapes.by_name["lora_up"][1]
    shapes.require(columns % each == 0, f"lora_up has {columns} columns; expected a multiple of {each}")
    shapes.require(params["LORA_ALL_STEPS"] == 4 * blocks_for(columns), "LORA_ALL_STEPS does not fit lora_up")


def low_rank_rows(inputs: Mapping[str, Array], params: Params, count: int) -> tuple[Array, Array]:
    """For an oracle: the terms added to the sums [rows, outputs] of ``count`` rows, and those added after the norm."""
    t, up = float64(inputs, ["lora_t", "lora_up"])
    ranks = t.shape[1]
    each = ranks + RANK_STEP * int(params["LORA_BIASED"])
    numbers = adapters_of(inputs, params, count)
    sums, after_norm = np.zeros((count, len(up))), np.zeros((count, len(up)))
    for row, number in enumerate(numbers):
        if number:
            own = up[:, (number - 1) * each : number * each]
            sums[row] = own[:, :ranks] @ t[row]
            if params["LORA_BIASED"]:
                after_norm[row] = own[:, ranks]
    return sums, after_norm


def adapters_of(inputs: Mapping[str, Array], params: Params, count: int) -> list[int]:
    """For an oracle: the number of the adapter of each row."""
    if not params.get("LORA_BY_ROW"):
        return [int(params[ADAPTER])] * count
    return [int(number) for number in inputs["rows"][:count, ADAPTER_WORD]]


def _check(shapes: Shapes, params: Params) -> None:
    ranks, inputs, parts = int(params["RANKS"]), int(params["INPUTS"]), int(params.get("PARTS", 1))
    experts, used = int(params.get("EXPERTS", 1)), int(params.get("USED", 1))
    shapes.expect("output", None, ranks * used)
    shapes.expect("down", None, -(-inputs // 4) * 4)
    each = experts * ranks
    shapes.require(shapes.rows("down") % each == 0 and ranks % RANK_STEP == 0, f"down has no groups of {each} rows")
    shapes.require(("choice" in shapes.by_name) == ("EXPERTS" in params), "experts are chosen by a choice")
    shapes.expect("choice", None, CHOICE_FLOATS * used)
    shapes.require(params["STEPS"] == 4 * blocks_for(inputs), "STEPS does not fit x")
    shapes.require(params["STEPS"] % parts == 0, f"{params['STEPS']} steps in {parts} parts")
    if params["TOGETHER"]:
        part = BLOCK_FLOATS * int(params.get("X_PART", 0))
        shapes.expect("x", None, used * part if part else inputs)
    else:
        shapes.expect(X_ROWS, None, inputs)
        shapes.require("choice" not in shapes.by_name, "rows that choose experts must be in one tensor")


@op("lora_down", ("down",), ("x", *X_ROWS, "rows", "choice"), _check, integers=("rows",), regions=("x",))
def _oracle(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    (down,) = float64(inputs, ["down"])
    x = float64(inputs, ["x"])[0] if params["TOGETHER"] else gathered(inputs, params)
    ranks, width, used = int(params["RANKS"]), int(params["INPUTS"]), int(params.get("USED", 1))
    experts, part = int(params.get("EXPERTS", 1)), BLOCK_FLOATS * int(params.get("X_PART", 0))
    chosen = np.zeros((size[0], used), np.intp)
    if "choice" in inputs:
        chosen = np.asarray(inputs["choice"])[: size[0]].reshape(size[0], used, -1)[:, :, 0].astype(np.intp)
    matrices, found = down.reshape(-1, experts, ranks, down.shape[1]), np.zeros((size[0], used, ranks))
    for row, number in enumerate(adapters_of(inputs, params, size[0])):
        for index, expert in enumerate(chosen[row] if number else ()):
            own = x[row, part * index : part * index + width]
            found[row, index] = matrices[number - 1, expert, :, :width] @ own
    return found.reshape(size)
