"""What differs from layer to layer: the record of a layer, and plans of layers with all that a family may have."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from made_models import of_family, opened

from glinfer.config import ModelConfig
from glinfer.engine.model import Model
from glinfer.errors import ConfigError, PlanError
from glinfer.families import FAMILIES
from glinfer.families.layer import FULL, SLIDING, LayerConfig, Rope
from glinfer.families.names import Names
from glinfer.families.record import Family
from glinfer.formats import random_checkpoint
from glinfer.gl.context import open_device
from glinfer.lower.plans import plan_for

Array = np.ndarray[Any, Any]
APART = Names(mlp_norm="pre_feedforward_layernorm")
BOTH = Family(
    "both", names=APART, layer=LayerConfig(norms="both", head_norms="head"), norm_offset=1.0, scaled_embeddings=True
)
PLAIN = Family("plain")
SHAPE = ModelConfig(
    61, 64, 4, 4, 90, 96, 1e-5, "silu", "plain", num_key_value_heads=2, head_dim=20, tie_word_embeddings=True
)
BOTH_SIDES = dataclasses.replace(
    SHAPE,
    model_type="both",
    sliding_window=17,
    layer_types=(SLIDING, FULL),
    rope_theta=3e4,
    rope_local_base_freq=500.0,
    rope_scaling=(("rope_type", "linear"), ("factor", 2.0)),
    attention_multiplier=0.31,
    attn_logit_softcapping=1.5,
    final_logit_softcapping=2.0,
)
"""Norms on both sides, windows with angles of their own, caps."""
IN_PART = dataclasses.replace(
    SHAPE, rotary_layers=(1, 1, 1, 0), partial_rotary_factor=0.5, residual_multiplier=0.4, attention_multiplier=0.1
)
"""Factors, and partly rotary heads."""
IDS = [int(token) for token in np.random.default_rng(2).integers(0, 61, 40)]
"""More than windows of 17 show."""


@pytest.fixture(autouse=True)
def records(monkeypatch: pytest.MonkeyPatch) -> None:
    for family in (BOTH, PLAIN):
        monkeypatch.setitem(FAMILIES, family.name, family)


# The record


def test_a_layer_is_as_its_family_and_its_configuration_say() -> None:
    config = BOTH_SIDES
    local, whole = config.layer(0), config.layer(1)
    common: dict[str, Any] = {"norms": "both", "head_norms": "head", "score_scale": 0.31, "score_cap": 1.5}
    common |= {"head_dim": 20, "kv_heads": config.num_key_value_heads, "inner": config.intermediate_size}
    assert local == LayerConfig(window=17, rope=Rope(500.0, 20), **common)
    assert whole == LayerConfig(window=0, rope=Rope(3e4, 20, config.rope_scaling), **common)
    assert [config.layer(index) for index in (2, 3)] == [local, whole]
    assert config.embedding_scale == 8.0


def test_the_windows_of_layers() -> None:
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [0, 0, 0, 0]),
        ({"sliding_window": 5}, [5, 5, 5, 5]),
        ({"sliding_window": 5, "max_window_layers": 3}, [0, 0, 0, 5]),
        ({"sliding_window": 5, "layer_types": [SLIDING, SLIDING, FULL]}, [5, 5, 0, 5]),
        ({"layer_types": (SLIDING, FULL)}, [0, 0, 0, 0]),
    ]
    for changes, windows in cases:
        config = dataclasses.replace(SHAPE, **changes)
        assert [config.layer(index).window for index in range(4)] == windows
        assert ModelConfig.from_json(config.to_json()) == config


def test_layers_without_angles_and_heads_that_turn_in_part() -> None:
    ropes = [IN_PART.layer(index).rope for index in range(4)]
    assert ropes == [Rope(1e4, 10)] * 3 + [None]
    assert IN_PART.layer(0).branch_scale == 0.4
    learned = ModelConfig(61, 64, 4, 2, 90, model_type="gpt2")
    assert learned.layer(0).rope is None


def test_what_no_layer_can_be_is_refused() -> None:
    kinds = "expected a list of full_attention and sliding_attention"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"layer_types": ("convolution",)}, f"layer_types is .*; {kinds}"),
        ({"layer_types": SLIDING}, "layer_types is "),
        ({"rotary_layers": (1, 2)}, r"rotary_layers is \(1, 2\); expected a list of 0 and 1"),
        ({"rotary_layers": (True,)}, "rotary_layers is "),
        ({"layer_types": (FULL,), "max_window_layers": 2}, "layer_types and max_window_layers both"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5; expected at most 1"),
        ({"partial_rotary_factor": 0.0}, "partial_rotary_factor is 0.0; expected a number above 0"),
        ({"attn_logit_softcapping": -1.0}, "attn_logit_softcapping is -1.0; expected a number above 0"),
        ({"logits_scaling": float("nan")}, "logits_scaling is nan"),
        ({"residual_multiplier": 1e9}, "residual_multiplier is 1000000000.0"),
        ({"rope_local_base_freq": 0.5}, "rope_local_base_freq is 0.5; expected a number above 1"),
        ({"embedding_multiplier": "two"}, "embedding_multiplier is 'two'"),
    ]
    for changes, said in cases:
        with pytest.raises(ConfigError, match=said):
            dataclasses.replace(SHAPE, **changes)


def test_an_odd_number_of_elements_cannot_turn() -> None:
    with pytest.raises(PlanError, match="5 of 20 elements of a head turn; expected an even number"):
        plan_for(dataclasses.replace(SHAPE, partial_rotary_factor=0.25), "fast")


# The plans


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    with open_device() as found:
        yield found


def last_token_looks_at(model: Model, block: int) -> Array:
    steps = model.attention_steps(block, IDS)
    try:
        while True:
            next(steps)
    except StopIteration as ended:
        return np.asarray(ended.value)


@pytest.mark.gl
@pytest.mark.slow
@pytest.mark.parametrize("family", ["both", "gpt_oss"])
def test_what_the_last_token_looks_at_is_that_of_the_reference_plan(family: str, device: Any) -> None:
    """Beside sinks the probabilities of tokens add up to less than 1."""
    checkpoint = random_checkpoint(BOTH_SIDES, seed=3, scale=0.2) if family == "both" else of_family(family)
    with opened(checkpoint, "reference", device=device) as model:
        expected = [model.capture(f"blocks.{block}.attn.probs", IDS)[f"blocks.{block}.attn.probs"] for block in (0, 1)]
        found = {"reference": [last_token_looks_at(model, block) for block in (0, 1)]}
    with opened(checkpoint, "fast", device=device) as model:
        found["fast"] = [last_token_looks_at(model, block) for block in (0, 1)]
    for probs in found.values():
        for mine, whole in zip(probs, expected, strict=True):
            assert np.abs(mine - whole[:, -1]).max() <= 1e-5
    sums = np.stack([whole.sum(axis=-1) for whole in expected])
    assert sums.max() <= 1 + 1e-5
    assert sums.min() < 0.9 if checkpoint.config.family.layer.sinks else sums.min() >= 1 - 1e-5
