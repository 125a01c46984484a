"""The fused draws of a gated delta rule, or of a scan, see :mod:`glinfer.kernels.fused.delta`."""

from __future__ import annotations

from glinfer.graph.nodes import Branch, DeltaMixing
from glinfer.kernels.flat.delta import DELTA_EPS
from glinfer.kernels.fused.delta import (
    RING,
    DeltaHeads,
    DeltaRun,
    delta_conv,
    delta_correct,
    delta_fold,
    delta_norm,
    delta_recall,
    delta_scores,
    delta_solve,
    delta_unit,
    input_ring,
)
from glinfer.kernels.fused.rows import RowInterleaved
from glinfer.kernels.fused.scan import scan_gate, scan_norm, scan_row
from glinfer.kernels.spec import TensorSpec
from glinfer.lower.fused.base import LoweringBase
from glinfer.program.points import View


def draw_delta_rule(
    lowering: LoweringBase, layer: int, branch: Branch, node: DeltaMixing, *, ends: bool
) -> TensorSpec | None:
    """Draw a layer's delta rule or scan; each row of the run has a slot of one tensor.

    Returns:
        The results of all value heads [slots, values]; None with ``ends``, which draws only what later tokens need.
    """
    kind, heads, taps = branch.name, DeltaHeads(node.rule), lowering.config.layer(layer).taps
    name, table = f"h.{layer}.{kind}", lowering.table
    rows_in_order = table.shape[0] if lowering.together and table is not None else 0
    run = DeltaRun(name, heads, lowering.kernels, table, lowering.every, rows_in_order)
    found = lowering.rows(f"{kind}.projected", heads.projected)
    lowering.product(lowering.recipes.mixing_in(layer, branch), lowering.hidden[0], found)
    projected = lowering.by_row(layer, f"{kind}.rows", found, f"{kind}.projected")
    layouts = heads.layouts(taps, lowering.cache_slots // lowering.every, lowering.max_texture_size)
    inputs, cache, even, odd = (lowering.plan.laid_out(f"{name}.{each}", "cache", layouts[each]) for each in layouts)
    states = even, odd

    # Queries, keys and values after the convolution. Rows in order get unit lengths in a separate pass.
    solves = rows_in_order > 0 and not node.rule.scan
    raw, mixed = (lowering.row_vector(f"{kind}.{part}", heads.mixed) for part in ("raw", "given"))
    weight, decay = (lowering.weight(f"{name}.{part}") for part in ("taps", "decay"))
    unit = not rows_in_order and not node.rule.scan
    to, eps = raw if solves else mixed, DELTA_EPS
    lowering.plan.draw(delta_conv(run, projected, inputs, cache, weight, decay, to, length=taps, eps=eps, unit=unit))
    lowering.store(f"{name}.store", RowInterleaved((projected,)), inputs, ring=input_ring(taps))
    if solves:
        lowering.plan.draw(delta_unit(run, raw, mixed, eps=DELTA_EPS))

    # The row that later tokens read: a scan keeps its values, a delta rule keeps corrections.
    keys = None if node.rule.scan else lowering.row_vector(f"{kind}.scores.keys", heads.per_head)
    queries = None if ends else lowering.row_vector(f"{kind}.scores.queries", heads.per_head)
    if keys is not None or queries is not None:
        lowering.plan.draw(delta_scores(run, mixed, cache, keys, queries))
    kept = lowering.row_vector(f"{kind}.kept", heads.kept)
    if keys is None:
        lowering.plan.draw(scan_row(run, mixed, kept))
    else:
        lowering.plan.draw(delta_recall(run, mixed, keys, cache, states, kept, queries=False))
        if solves:
            uncorrected, kept = kept, lowering.row_vector(f"{kind}.corrected", heads.kept)
            solved = lowering.row_vector(f"{kind}.solved", heads.per_head)
            lowering.plan.draw(delta_solve(run, mixed, keys, solved), delta_correct(run, uncorrected, solved, kept))
    lowering.store(f"{name}.row_store", RowInterleaved((kept,)), cache, f"{kind}.store", RING)
    lowering.plan.draw(*(delta_fold(run, cache, states, parity) for parity in (0, 1)))
    if queries is None:
        return None

    # The results of the queries, gated and normalised.
    results, out = (lowering.row_vector(f"{kind}.{part}", heads.rule.values) for part in ("results", "mixed"))
    lowering.plan.draw(delta_recall(run, mixed, queries, cache, states, results, queries=True))
    eps, groups = lowering.config.layer_norm_eps, node.rule.norm_groups
    if node.rule.scan:
        gated = lowering.row_vector(f"{kind}.gated", heads.rule.values) if groups else out
        lowering.plan.draw(scan_gate(run, mixed, results, projected, decay, gated))
        if node.norm is not None:
            lowering.plan.draw(scan_norm(run, gated, lowering.weight(f"{name}.norm"), out, groups=groups, eps=eps))
    elif node.norm is not None:
        lowering.plan.draw(delta_norm(run, results, projected, lowering.weight(f"{name}.norm"), out, eps=eps))
    lowering.value(f"blocks.{layer}.{kind}.mixed", View(heads.rule.values))
    return out
