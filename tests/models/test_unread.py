"""What a plan computes is read, or is its result: with one input bound to another tensor, validate refuses the plan."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from changed_plans import rebound
from tiers import tiered
from tiny_models import in_formats, tiny

from glinfer.errors import PlanError
from glinfer.families import DECODERS, FAMILIES
from glinfer.kernels.options import KernelOptions, default_kernels
from glinfer.lower.fused.choice import choice_plan
from glinfer.lower.fused.encode import encode_plan
from glinfer.lower.fused.rows import batch_plan, chunk_plan, drafted_plan
from glinfer.lower.fused.token import fast_plan
from glinfer.lower.options import PlanOptions
from glinfer.lower.plans import plan_for
from glinfer.program.plan import Plan

KERNELS = (
    KernelOptions(),
    default_kernels("llvmpipe (LLVM 15.0.6, 256 bits)", 64.0),
    default_kernels("NVIDIA H100", 2047.0, "q8"),
)
SHOWN = ("gab", "bert", "gpt_oss", "qwen3_next")


def plans_of(family: str, kernels: KernelOptions) -> Iterator[Plan]:
    """A plan of each kind of a small model."""
    further: dict[str, Any] = {} if family in DECODERS else {"pooling": "mean"}
    config = tiny(family, 16, hidden_size=32, intermediate_size=64, **further)
    options = PlanOptions(config, "f32", kernels, 2048)
    if config.embeds:
        yield encode_plan(options, rows=48)
        return
    fast, few = fast_plan(options), {"rows": 4, "cache_slots": 64}
    yield from (fast, chunk_plan(options, export_residual=True, **few), chunk_plan(options, likelihoods=True, **few))
    yield from (batch_plan(options, sequences=2, capacity=64), drafted_plan(options, **few))
    yield choice_plan(fast, kernels=kernels, max_texture_size=2048, masked=True)
    for formats in (None, in_formats(config, "F16").formats()):
        yield plan_for(config, "reference", formats=formats, tokens=12)


def only_readers(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """(draw, sampler, tensor) of each input that nothing else reads, between the write before it and the next one.

    The next write to a cache may be in the next run. States are left out: the next run may read them, so a plan may
    leave them unread, as it leaves keys and values of the last layer of a prompt.
    """
    reads = [
        (place, draw.name, sampler, plan.root(tensor))
        for place, draw in enumerate(plan.draws)
        for sampler, tensor in (*draw.inputs, *(("", name) for name in draw.writes if draw.needs_output))
    ]
    for place, draw, sampler, tensor in reads:
        if ".state." in tensor:
            continue
        ends = [at for at, each in enumerate(plan.draws) if tensor in map(plan.root, each.writes)]
        begin, end = (
            max((at for at in ends if at < place), default=-1),
            min((at for at in ends if at >= place), default=1 << 30),
        )
        others = [each for each in reads if each[3] == tensor and begin < each[0] <= end]
        if plan.table[tensor].kind == "cache" and begin >= 0 and end > place + len(plan.draws):
            others += [each for each in reads if each[3] == tensor and each[0] <= ends[0]]
        if sampler and len(others) == 1 and tensor not in map(plan.root, plan.results):
            yield draw, sampler, tensor


def twins(plan: Plan, tensor: str) -> list[str]:
    """The tensors that another one could be taken for."""
    like = plan.table[tensor]
    shared = (like.shape, like.format, like.layout)
    return [each.name for each in plan.tensors if (each.shape, each.format, each.layout) == shared and each != like]


def refusal(plan: Plan) -> str:
    """What validate says; empty where it accepts the plan."""
    try:
        plan.validate()
    except PlanError as error:
        return str(error)
    return ""


@tiered("family", [*SHOWN, *sorted(set(FAMILIES) - set(SHOWN))], keep=len(SHOWN))
def test_an_input_bound_to_another_tensor_is_refused(family: str) -> None:
    kernels = KERNELS[sorted(FAMILIES).index(family) % len(KERNELS)]
    found, unread = 0, 0
    for plan in plans_of(family, kernels):
        cases = [(*each, twin) for each in only_readers(plan) for twin in twins(plan, each[2])]
        for draw, sampler, tensor, twin in random.Random(1).sample(cases, min(12, len(cases))):
            said = refusal(rebound(draw, sampler, twin, plan))
            assert said, f"{family}, {plan.name}: {draw} reads {twin} as {sampler}, and nothing reads {tensor}"
            found += 1
            unread += tensor in said and "read" in said
    assert unread > found // 4 > 0, "few were refused because a tensor is unread"
