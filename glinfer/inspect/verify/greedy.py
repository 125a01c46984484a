"""Greedy tokens of a model compared with those of the float64 oracle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glinfer.engine.engine import Engine
from glinfer.engine.ids import check_ids
from glinfer.engine.report import Report
from glinfer.formats import Checkpoint
from glinfer.formats.checkpoint import with_context
from glinfer.kernels.fused.cached import SLOT_TOKENS
from glinfer.kernels.fused.rows import interleaved
from glinfer.kernels.fused.score import log_probabilities
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Array
from glinfer.lower.feed import runs
from glinfer.lower.fused.caches import cache_slots
from glinfer.lower.fused.rows import SCORES, fitting_chunk_plan, slots_for
from glinfer.lower.options import PlanOptions
from glinfer.lower.plain.gab import LOGITS, TOKENS, reference_plan
from glinfer.lower.plans import USUAL_TEXTURE_SIZE, is_published, weights_for
from glinfer.program.oracle import final_tensors


@dataclass(frozen=True)
class GreedyCheck(Report):
    """Tokens that a model chose greedily, and the likeliest ones by float64 after the same tokens."""

    derived = ("agreeing", "passed")

    chosen: tuple[int, ...]
    expected: tuple[int, ...]

    @property
    def agreeing(self) -> int:
        """Number of equal tokens."""
        return sum(one == other for one, other in zip(self.chosen, self.expected, strict=True))

    @property
    def passed(self) -> bool:
        """Whether all tokens are equal."""
        return self.agreeing == len(self.chosen)


def verify_greedy(engine: Engine, checkpoint: Checkpoint, ids: Sequence[int], count: int) -> GreedyCheck:
    """Choose ``count`` tokens after ids on the device, then compare with the float64 oracle over the whole sequence.

    The oracle computes a plan's passes in NumPy over the device's weights, or over the checkpoint's if those are
    folded. It predicts each token from those that the device chose before. InputError if the model cannot run the ids,
    or with the chosen ones they exceed its context.
    """
    checked, options = check_ids(ids, checkpoint.config), engine.options
    whole = with_context(checkpoint, len(checked) + count)  # refuses a length beyond the context
    with engine.session() as session:
        session.prefill(checked)
        chosen = session.generate_ids(count)
    sequence = [*checked, *chosen]
    run, limit = sequence[:-1], whole.config.long_after
    likeliest = _likeliest(whole, run, options.weights, options.cache)
    if len(checked) <= limit < len(run):  # early tokens use other rotary angles
        first = _likeliest(whole, run[:limit], options.weights, options.cache)
        likeliest = np.concatenate([first, likeliest[limit:]])
    likeliest = likeliest[len(checked) - 1 :]
    return GreedyCheck(tuple(chosen), tuple(int(token) for token in likeliest))


def _likeliest(checkpoint: Checkpoint, ids: Sequence[int], weights: str, cache: str) -> Array:
    """Return the oracle's likeliest token after each id."""
    config, formats, rows = checkpoint.config, checkpoint.formats(), len(ids)
    if not is_published(config, formats):
        edge, kernels = USUAL_TEXTURE_SIZE, KernelOptions()
        plan = fitting_chunk_plan(
            PlanOptions(config, weights=weights, cache=cache, formats=formats, kernels=kernels, max_texture_size=edge),
            rows=rows,
            cache_slots=cache_slots(config) + SLOT_TOKENS,
            likelihoods=True,
        )
        arrays, caches, likeliest = weights_for(checkpoint, "fast", weights), dict[str, Array](), list[Array]()
        for first in range(0, rows, plan.max_rows):
            part = ids[first : first + plan.max_rows]
            ((inputs, values),) = runs(plan, part, first)
            found = final_tensors(plan, arrays, inputs, values, caches)
            slots = slots_for(len(part), kernels.rows_per_draw)
            parts = [found[f"{SCORES}.{number}"][:slots] for number in range(kernels.rows_per_draw)]
            likeliest.append(log_probabilities(interleaved(parts)[: len(part)])[1])
        return np.concatenate(likeliest)
    plan = reference_plan(config, all_rows=True)
    found = final_tensors(plan, checkpoint.tensors, {TOKENS: np.asarray(ids)[:, None]}, {"rows": rows})
    return np.asarray(found[LOGITS][:rows].argmax(axis=1))
