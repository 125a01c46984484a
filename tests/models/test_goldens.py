"""Whole models against what the original engines computed: next-token probabilities of goldens/gab.json."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from goldens import ModelWriter, gab_records
from tiers import tiered

import glinfer
from glinfer.engine.model import Model
from glinfer.gl.context import Limits

pytestmark = pytest.mark.gl

BROWSER_TOLERANCE = 5e-6  # the browser engine's own float32 is up to 4e-6 off a float64 computation
CPU_TOLERANCE = 1e-6
PLANS = {"reference": {"plan": "reference"}, "fast": {"plan": "fast", "weights": "f32"}}
"""The options of each plan, in float32."""
LIMITS = {"driver": None, "webgl2": Limits.webgl2_minimum()}
CASES = [
    *(("tiny", "reference", "webgl2"), ("odd", "fast", "driver"), ("full", "fast", "driver")),
    *(("tiny", "fast", "webgl2"), ("odd", "reference", "driver"), ("full", "fast", "webgl2")),
]
"""Each model, plan and limits by themselves, and pairs of them."""


def check(model: Model, name: str, record: dict[str, Any]) -> None:
    before = model.device.draws_issued
    probs = model.probs(record["tokens"])
    issued = model.device.draws_issued - before
    published = model.plan.name == "reference"
    assert probs.dtype == np.float32
    assert probs.shape == (model.config.vocab_size,)
    assert int(probs.argmax()) == record["argmax"]
    compared = 0
    for key, tolerance in (("webgl_probs", BROWSER_TOLERANCE), ("cpu_probs", CPU_TOLERANCE)):
        if key in record:
            expected = np.array(record[key])
            assert expected.shape == probs.shape
            difference = np.abs(probs - expected).max()
            # docs/performance.md quotes these lines, which `pytest -s` prints.
            print(f"{name}, plan {model.plan.name}, {len(record['tokens'])} tokens, {key}: {difference:.1e}")
            assert difference <= tolerance, key
            compared += 1
    assert compared, "a record without probabilities proves nothing"
    if published:
        assert issued == model.draws().total
    if published and "draw_calls" in record:
        assert issued == record["draw_calls"]


@tiered(("name", "plan", "limits"), CASES, keep=3)
def test_probabilities_draw_calls_and_the_first_greedy_token(
    golden_model: ModelWriter, name: str, plan: str, limits: str
) -> None:
    with glinfer.load(golden_model(name), limits=LIMITS[limits], **PLANS[plan]) as model:
        # The longest first: what a longer sequence left in the textures must not reach a shorter one.
        for record in sorted(gab_records(name), key=lambda record: -len(record["tokens"])):
            check(model, name, record)
        assert model.generate(record["tokens"], max_tokens=1, temperature=0) == [record["argmax"]]


def test_a_short_prompt_of_the_full_size_model_by_the_reference_plan(golden_model: ModelWriter) -> None:
    with glinfer.load(golden_model("full"), plan="reference") as model:
        check(model, "full", min(gab_records("full"), key=lambda record: len(record["tokens"])))
