"""Products of many rows with the experts that they chose, rows of one expert together.

A product over interleaved rows fetches each weight once for all rows of a slot. To have that for experts too, rows that
chose the same expert share slots here, in **groups** of as many rows as there are render targets. Only the GPU knows
the number of rows of each expert, so three small passes arrange them without a readback, whatever the number of rows:
they count the choices of each expert, place each choice in a group, and list the rows of each group. The groups suffice
for the worst case; unused ones end at once.

Few rows are computed one by one, see :func:`few_rows`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glinfer.families.layer import Experts
from glinfer.gl.layouts.matrix import Extent
from glinfer.kernels.fused.draws import Defines, Inputs, block_draw, of_run
from glinfer.kernels.fused.low_rank import CHOICE_FLOATS
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Array, DrawSpec, Params, Pass, Shapes, TensorSpec, float64, op

SPAN = 16
"""Rows whose choices are counted together."""


_COSTS = {"llvmpipe": (2.3, 32.0)}
"""Costs of groups, by the product table of measured kernels: the rows that take as long one by one as a full group, and
the cost of an unused group, in products of an input with a weight for each input and output."""


def few_rows(rows: int, experts: Experts, width: int, inner: int, kernels: KernelOptions) -> int:
    """Limit for the rows, in whole slots, that are faster one by one than in the groups of a plan of ``rows`` rows.

    Groups pay if an expert has several rows, and unused groups cost time; 0 for kernels that were not measured.
    The two costs fit the processor time of prompts of 4 to 300 tokens in Qwen3-MoE's shape with 8 to 64 experts and
    widths of 128 to 768.
    """
    if kernels.product_table not in _COSTS:
        return 0
    full, empty = _COSTS[kernels.product_table]
    groups = most_groups(rows, kernels.rows_per_draw, experts) / experts.count
    least = full + empty * groups * (1 / width + 1 / inner)  # rows of an expert
    return int(least * experts.count / experts.used) // kernels.rows_per_draw * kernels.rows_per_draw


def tally_rows(rows: int) -> int:
    """Rows of the tensor that counts the choices of ``rows`` rows."""
    return 1 + -(-rows // SPAN)


def most_groups(rows: int, targets: int, experts: Experts) -> int:
    """Limit for the groups of ``targets`` choices that ``rows`` rows need: each expert may have one partial group."""
    choices = rows * experts.used
    return (choices + (targets - 1) * min(experts.count, choices)) // targets


def group_draws(
    draw: Pass,
    choice: TensorSpec,
    tally: TensorSpec,
    places: TensorSpec,
    chosen: TensorSpec,
    experts: Experts,
    *,
    targets: int,
) -> tuple[DrawSpec, DrawSpec, DrawSpec]:
    """The three passes that arrange ``route``'s choices of rows in groups of ``targets`` rows.

    Args:
        tally: [1 + spans, experts], the number of choices of each expert: row 0 for all rows, row 1 + s for rows
            ``SPAN · s`` to ``SPAN · s + SPAN - 1``, so that the other passes examine few choices one by one.
        places: [rows, 4 · used] = (expert, weight, index, 0) of each choice, index = targets · group + row in the
            group. Groups of expert 0 come first, and choices of an expert are in the order of rows.
        chosen: [groups, 4 · targets] = (row, expert, 1, 0) of each row of a group; an empty row has 0 as row and
            third, and an unused group only zeros.
    """
    counts = {"EXPERTS": experts.count, "EXPERT_TEXELS": -(-experts.count // 4), "USED": experts.used}
    both: Inputs = {"choice": choice, "tally": tally}

    def made(part: str, op: str, inputs: Inputs, out: TensorSpec, slots: Extent, targets: int, **how: Any) -> DrawSpec:
        defines: Defines = [*counts.items(), ("ROWS", targets), ("SPAN", SPAN)]
        own = draw._replace(name=f"{draw.name}.{part}", kind="mlp.choice", rows=slots)
        return block_draw(own, op, inputs, out, defines, **how)

    held = of_run("held", draw.rows)
    return (
        made("tally", "tally_experts", {"choice": choice}, tally, tally.shape[0], 1, **held),
        made("places", "place_experts", both, places, draw.rows, targets),
        made("groups", "group_experts", both, chosen, chosen.shape[0], targets, **held),
    )


def _check_choice(shapes: Shapes, params: Params) -> None:
    """Require the inputs of the three passes."""
    held, rows = params.get("held", 0), shapes.rows("choice")
    shapes.expect("choice", None, CHOICE_FLOATS * params["USED"])
    shapes.expect("tally", tally_rows(rows), params["EXPERTS"])
    shapes.require(held <= rows, f"{held} rows of {rows}")


def _check_tally(shapes: Shapes, params: Params) -> None:
    _check_choice(shapes, params)
    shapes.expect("output", tally_rows(shapes.rows("choice")), params["EXPERTS"])


def _check_place(shapes: Shapes, params: Params) -> None:
    _check_choice(shapes, params)
    shapes.expect("output", None, CHOICE_FLOATS * params["USED"])


def _check_groups(shapes: Shapes, params: Params) -> None:
    _check_choice(shapes, params)
    shapes.expect("output", None, CHOICE_FLOATS * params["ROWS"])
    experts = Experts(int(params["EXPERTS"]), int(params["USED"]), normed=True)
    needed = most_groups(int(params["held"]), int(params["ROWS"]), experts)
    shapes.require(shapes.rows("output") >= needed, f"{shapes.rows('output')} groups; {needed} may be needed")


def _chosen(inputs: Mapping[str, Array], params: Params, rows: int) -> Array:
    """The chosen experts of the first rows, [rows, used]."""
    choice = np.asarray(inputs["choice"])[:rows].reshape(rows, int(params["USED"]), CHOICE_FLOATS)
    return np.asarray(choice[:, :, 0].astype(np.intp))


def _first_groups(inputs: Mapping[str, Array], params: Params) -> Array:
    """The first group of each expert, followed by the number of groups."""
    tally = np.asarray(inputs["tally"])[0].astype(np.intp)
    return np.concatenate([[0], np.cumsum(-(-tally // int(params["ROWS"])))])


@op("tally_experts", ("choice",), (), _check_tally)
def _oracle_tally(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    chosen = _chosen(inputs, params, int(params["held"]))
    spans = [chosen[SPAN * span :][:SPAN] for span in range(size[0] - 1)]
    return np.stack([np.bincount(each.reshape(-1), minlength=size[1]) for each in (chosen, *spans)]).astype(np.float64)


@op("place_experts", ("choice", "tally"), (), _check_place)
def _oracle_place(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    chosen, first = _chosen(inputs, params, size[0]), _first_groups(inputs, params)
    found = float64(inputs, ["choice"])[0][: size[0]].reshape(*chosen.shape, CHOICE_FLOATS).copy()
    flat = chosen.reshape(-1)
    for expert in np.unique(flat):
        own = flat == expert
        found.reshape(-1, CHOICE_FLOATS)[own, 2] = int(params["ROWS"]) * first[expert] + np.arange(own.sum())
    return found.reshape(size)


@op("group_experts", ("choice", "tally"), (), _check_groups)
def _oracle_groups(inputs: Mapping[str, Array], params: Params, size: tuple[int, int]) -> Array:
    targets, first = int(params["ROWS"]), _first_groups(inputs, params)
    chosen = _chosen(inputs, params, int(params["held"]))
    found = np.zeros((size[0], targets, CHOICE_FLOATS))
    for expert in range(len(first) - 1):
        own = found[first[expert] : first[expert + 1]].reshape(-1, CHOICE_FLOATS)
        rows = np.nonzero(chosen == expert)[0]
        own[:, 1], own[: len(rows), 0], own[: len(rows), 2] = expert, rows, 1
    return found.reshape(size)
