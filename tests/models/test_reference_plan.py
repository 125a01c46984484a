"""The published passes end to end: against the oracle, against leftovers of other runs, in every layout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from made_models import opened
from tiers import tiered

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.formats import random_checkpoint
from glinfer.gl.context import Device, Limits, open_device
from glinfer.gl.layouts.matrix import Layout
from glinfer.inspect.verify.greedy import verify_greedy
from glinfer.lower.plain.gab import TOKENS, reference_plan
from glinfer.program.session import Session

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
ODD = ModelConfig.from_options("blocks=2,heads=4,dim=64,inner=128,vocab=301,context=48")
CONTEXT = ODD.max_position_embeddings
PLAN = reference_plan(ODD)
WEIGHTS = random_checkpoint(ODD, seed=11).tensors
IDS = [int(token) for token in np.random.default_rng(4).integers(0, ODD.vocab_size, CONTEXT)]
TIGHTEST = math.isqrt(max(rows * cols for rows, cols in (tensor.shape for tensor in PLAN.tensors)) - 1) + 1


def forward(session: Session, ids: list[int]) -> dict[str, Array]:
    """What the last draw of every activation wrote, once all draws were made."""
    session.write(TOKENS, np.array(ids, dtype=np.int32)[:, None])
    assert session.run({"rows": len(ids)}) == len(session.plan.draws) == 2 * (8 + 4 * 4) + 4
    extents = {draw.outputs[0]: draw.extent({"rows": len(ids)}) for draw in session.plan.draws}
    return {name: session.read(name, *extent).copy() for name, extent in extents.items()}


def same(found: dict[str, Array], expected: dict[str, Array]) -> list[str]:
    """The names of the tensors that differ in a bit."""
    assert found.keys() == expected.keys()
    return [name for name in found if not np.array_equal(found[name].view(np.uint32), expected[name].view(np.uint32))]


@pytest.mark.parametrize("shape", ["window=4", "kv_heads=2", "head_dim=24"])
def test_a_shape_that_the_published_passes_lack_has_another_reference_plan(shape: str) -> None:
    made = random_checkpoint(ModelConfig.from_options(f"blocks=1,heads=4,dim=64,inner=128,vocab=70,context=16,{shape}"))
    ids = [int(token) for token in np.random.default_rng(5).integers(0, 70, 12)]
    with opened(made) as fast, opened(made, "reference") as reference:
        expected = reference.logits(ids)
        assert np.abs(fast.logits(ids) - expected).max() < 1e-5 * np.abs(expected).max()
        check = verify_greedy(fast.engine, made, ids, 4)
    assert check.chosen == check.expected


@pytest.fixture
def session(device: Device) -> Session:
    return Session(PLAN, WEIGHTS, device)


@tiered(
    "limits",
    [Limits(TIGHTEST, 1, 4, 0, 1.0), Limits.webgl2_minimum(), Limits(TIGHTEST + 7, 4, 16, 16384, 1.0)],
    ids=["tightest", "webgl2", "tight"],
)
def test_smaller_limits_change_no_bit(session: Session, limits: Limits) -> None:
    wrapped = [t.name for t in PLAN.tensors if Layout.of(t.shape, t.format, limits.max_texture_size).wrapped]
    assert len(wrapped) == 0 if limits.max_texture_size >= 2048 else len(wrapped) >= 5
    with open_device(limits=limits) as device:
        small = Session(PLAN, WEIGHTS, device)
        for rows in (1, 5, CONTEXT):
            assert same(forward(small, IDS[:rows]), forward(session, IDS[:rows])) == [], f"{rows} rows"


def test_a_renderer_one_texel_too_small_is_refused_before_anything_is_made() -> None:
    with open_device(limits=Limits(TIGHTEST - 1, 4, 16, 16384, 1.0)) as device:
        with pytest.raises(PlanError, match=r"^tensor \S+: a \d+×\d+ matrix has \d+ elements; the largest texture"):
            Session(PLAN, WEIGHTS, device)
        assert not device.live_objects()
