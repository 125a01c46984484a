"""Whole models against what the original engines computed: next-token probabilities of ../shared/gab."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glinfer
from glinfer.formats import load_checkpoint, save_checkpoint
from glinfer.generation.model import Model
from glinfer.gl.context import Limits

SHARED = Path(__file__).resolve().parents[3] / "shared" / "gab"
if not (SHARED / "golden.json").is_file():
    pytest.skip(f"the goldens are not here: {SHARED}/golden.json", allow_module_level=True)

RECORDS: list[dict[str, Any]] = json.loads((SHARED / "golden.json").read_text())
MODELS = sorted({record["model"] for record in RECORDS})
BROWSER_TOLERANCE = 5e-6  # the browser engine's own float32 is up to 4e-6 off a float64 computation
CPU_TOLERANCE = 1e-6


@pytest.fixture(params=MODELS)
def golden(request: pytest.FixtureRequest) -> tuple[Path, list[dict[str, Any]]]:
    """A model file and its records."""
    path = request.getfixturevalue("full_file") if request.param == "full" else SHARED / f"{request.param}.gab"
    return path, [record for record in RECORDS if record["model"] == request.param]


PLANS = {"reference": {"plan": "reference"}, "fast": {"plan": "fast", "weights": "f32"}}


@pytest.fixture(params=PLANS)
def plan(request: pytest.FixtureRequest) -> dict[str, str]:
    """The options of a plan that computes in float32."""
    return PLANS[request.param]


def check(model: Model, record: dict[str, Any]) -> None:
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
            # docs/performance.md quotes these lines; `pytest tests/model/test_goldens.py -s` prints them.
            print(f"{record['model']}, plan {model.plan.name}, {len(record['tokens'])} tokens, {key}: {difference:.1e}")
            assert difference <= tolerance, key
            compared += 1
    assert compared, "a record without probabilities proves nothing"
    if published:
        assert issued == model.draws().total
    if published and "draw_calls" in record:
        assert issued == record["draw_calls"]


def test_there_are_records_of_every_kind() -> None:
    assert MODELS == ["full", "odd", "tiny"]
    assert {"webgl_probs", "cpu_probs", "draw_calls"} <= {key for record in RECORDS for key in record}


def test_the_files_are_the_ones_that_the_goldens_were_made_with(golden: tuple[Path, list[dict[str, Any]]]) -> None:
    path, records = golden
    assert {record["sha256"] for record in records} == {hashlib.sha256(path.read_bytes()).hexdigest()}


@pytest.mark.parametrize("limits", [None, Limits.webgl2_minimum()], ids=["driver", "webgl2"])
def test_probabilities_and_draw_calls(
    golden: tuple[Path, list[dict[str, Any]]], plan: dict[str, str], limits: Limits | None
) -> None:
    path, records = golden
    with glinfer.load(path, limits=limits, **plan) as model:
        # The longest first: what a longer sequence left in the textures must not reach a shorter one.
        for record in sorted(records, key=lambda record: -len(record["tokens"])):
            check(model, record)


def test_probabilities_after_a_conversion(
    golden: tuple[Path, list[dict[str, Any]]], plan: dict[str, str], tmp_path: Path
) -> None:
    path, records = golden
    converted = tmp_path / "converted.safetensors"
    save_checkpoint(load_checkpoint(path), converted)
    with glinfer.load(converted, **plan) as model:
        check(model, min(records, key=lambda record: len(record["tokens"])))


def test_greedy_generation_begins_with_the_golden_argmax(
    golden: tuple[Path, list[dict[str, Any]]], plan: dict[str, str]
) -> None:
    path, records = golden
    record = min(records, key=lambda record: len(record["tokens"]))
    with glinfer.load(path, **plan) as model:
        assert model.generate(record["tokens"], max_tokens=1, temperature=0) == [record["argmax"]]


def test_the_other_form_of_gelu_would_be_noticed(plan: dict[str, str]) -> None:
    record = next(r for r in RECORDS if r["model"] == "tiny" and len(r["tokens"]) == 5)
    with glinfer.load(SHARED / "tiny.gab", gelu="erf", **plan) as model:
        difference = np.abs(model.probs(record["tokens"]) - np.array(record["webgl_probs"])).max()
    assert difference > 2 * BROWSER_TOLERANCE
