"""The fast plan end to end: draw by draw against float64, and after other runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from agreement import same_bits
from block_draw import KERNELS as FORMS
from subjects import Subject, gab, of_family
from tiers import tiered

from glinfer.config import ModelConfig
from glinfer.engine.loading import prepare
from glinfer.errors import PlanError
from glinfer.gl.context import Device, Limits, open_device
from glinfer.inspect.verify.draws import verify_draws
from glinfer.kernels.options import default_kernels
from glinfer.lower.fused.token import LOGITS, fast_plan
from glinfer.program.oracle import relative_error
from glinfer.program.session import Session

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
KERNELS = {"default": default_kernels("llvmpipe", 255.0), **FORMS}
FLOATS = gab("f32", ModelConfig(37, 64, 4, 2, 70, 128))
"""Whose programs are those of other models with four heads."""
QWEN = of_family("qwen3", "Q8_0")
"""Heads that share keys, are normalised and see a window; a gate; all but the norms in blocks of the file."""
IDS = [int(token) for token in np.random.default_rng(4).integers(0, 37, 70)]
OTHERS = [(token + 1) % 37 for token in IDS]


def make(device: Device, name: str, subject: Subject) -> Session:
    return Session(fast_plan(subject.options(KERNELS[name], device)), subject.folded, device)


def feed(session: Session, ids: Sequence[int], start: int = 0) -> Array:
    """Run the ids from a position on; the logits after the last."""
    for place, token in enumerate(ids, start):
        assert session.run({**session.plan.values_for(place + 1), "token": token}) == len(session.plan.draws)
    return np.array(session.read(LOGITS)[0])


# Right


@tiered(
    ("name", "subject"),
    [
        ("default", FLOATS),
        ("llvmpipe", gab("q8")),
        ("GPU", gab("q16")),
        ("mantissa", gab("q8l", gelu="erf")),
        ("small points", gab("f16")),
        ("one by one", of_family("gpt2", "Q4_0")),
        ("GPU", of_family("mistral", "mixed")),
        ("one by one, looked up", of_family("qwen2", "Q5_1")),
        ("mantissa, one by one", of_family("qwen3", "Q4_K")),
    ],
    ids=lambda value: f"{value.config.model_type}-{value.weights}" if isinstance(value, Subject) else value,
)
def test_every_draw_agrees_with_float64(device: Device, name: str, subject: Subject) -> None:
    """Behind a first token, a full group of 64 scores, and in the second one."""
    kernels = KERNELS[name]
    engine = prepare(subject.checkpoint, device, "fast", subject.weights, kernels).bind(device)
    for tokens in (1, 3, 64, 70):
        checks = verify_draws(engine, IDS[:tokens])
        assert all(check.passed for check in checks), [check for check in checks if not check.passed]
        assert {check.name for check in checks} >= {draw.name for draw in engine.plan.draws}
    engine.bound.release()


def test_points_larger_than_the_renderers_are_refused_before_anything_is_made() -> None:
    with open_device(limits=Limits.webgl2_minimum()) as device:
        with pytest.raises(PlanError, match=r"^draw \S+ draws points of 4×4 pixels; this renderer allows 1$"):
            make(device, "default", FLOATS)
        assert not device.live_objects()


# What earlier runs left


@pytest.mark.slow
def test_tokens_before_a_window_are_seen_by_those_between_alone(device: Device) -> None:
    """Two layers of 20 tokens each: the last sees 39 tokens. Others share sums with those, and round them at most."""
    session = make(device, "llvmpipe", QWEN)
    first = feed(session, IDS[:60])
    for place, seen in ((0, False), (20, False), (21, True), (40, True), (59, True)):
        changed = [*IDS[:place], OTHERS[place], *IDS[place + 1 : 60]]
        error = relative_error(feed(session, changed[place:], place), first)
        assert error > 1e-4 if seen else error < 1e-6, f"token {place}: {error}"
        assert same_bits(feed(session, IDS[place:60], place), first)
