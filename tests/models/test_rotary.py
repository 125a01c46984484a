"""Options, renderers and textures of models with rotary positions; what they compute is in test_families.py."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from made_models import IDS, OF_RANGE, fresh, of_family, opened, worst

import glinfer
from glinfer.errors import InputError
from glinfer.formats import Checkpoint, random_checkpoint, save_checkpoint

pytestmark = pytest.mark.gl

LLAMA = of_family("llama").config


# Options of glinfer.load


@pytest.mark.slow
def test_a_smaller_context_is_the_same_model(tmp_path: Path) -> None:
    wide = random_checkpoint(dataclasses.replace(LLAMA, max_position_embeddings=200), scale=0.2)
    save_checkpoint(wide, tmp_path / "wide.safetensors")
    with (
        glinfer.load(tmp_path / "wide.safetensors") as whole,
        glinfer.load(tmp_path / "wide.safetensors", context=11) as short,
    ):
        assert (whole.config.max_position_embeddings, short.config.max_position_embeddings) == (200, 11)
        edge = whole.device.limits.max_texture_size
        caches = [model.plan.texture_bytes(edge, "cache") for model in (whole, short)]
        assert caches[1] < 0.3 * caches[0]
        assert worst(short.logits(IDS[:11]), whole.logits(IDS[:11])) <= OF_RANGE
        with pytest.raises(InputError, match=r"\A[^\n]*12[^\n]*11[^\n]*\Z"):
            short.logits(IDS[:12])
        assert len(short.generate(IDS[:5], max_tokens=20, temperature=0)) == 20


@pytest.mark.slow
def test_a_long_model_gets_the_usual_context(tmp_path: Path) -> None:
    file = tmp_path / "long.safetensors"
    save_checkpoint(random_checkpoint(dataclasses.replace(LLAMA, max_position_embeddings=131072)), file)
    with glinfer.load(file) as model:
        assert model.config.max_position_embeddings == 4096
    with glinfer.load(file, context=5000) as model:
        assert model.config.max_position_embeddings == 5000


# Queries that are larger at later positions


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
BETA = 0.4


@pytest.mark.parametrize(
    ("family", "plan"), [("llama", "fast"), ("llama", "reference"), ("qwen3", "fast"), ("qwen3", "reference")]
)
def test_queries_are_scaled_by_their_position(family: str, plan: str) -> None:
    """In one layer the last token alone asks, so its logits are those of a model with larger scores."""
    shape = dataclasses.replace(of_family(family).config, num_hidden_layers=1, sliding_window=0)

    def made(scale: float = 1.0, **scaling: float) -> Checkpoint:
        multiplier = scale * shape.head_dim**-0.5
        config = dataclasses.replace(shape, rope_scaling={**YARN, **scaling}, attention_multiplier=multiplier)
        return random_checkpoint(config, seed=3, scale=0.4)

    with opened(made(llama_4_scaling_beta=BETA), plan) as model:
        for tokens in (8, 9, 20):
            scale = 1 + BETA * math.log(1 + (tokens - 1) // 8)
            with opened(made(scale), plan) as other:
                expected = other.logits(IDS[:tokens])
            assert worst(model.logits(IDS[:tokens]), expected) <= OF_RANGE, tokens
            if plan == "fast":
                assert worst(fresh(model, IDS[:tokens]), expected) <= OF_RANGE, tokens
                (score,) = model.score([IDS[: tokens + 1]])
                likely = expected[IDS[tokens]] - np.logaddexp.reduce(expected.astype(np.float64))
                assert score.logprobs[-1] == pytest.approx(likely, abs=1e-4)
        with opened(made(), plan) as other:
            assert worst(other.logits(IDS[:20]), expected) > 100 * OF_RANGE


def test_heads_that_rotate_in_part_cannot_scale_queries() -> None:
    config = dataclasses.replace(LLAMA, rope_scaling={**YARN, "llama_4_scaling_beta": 0.1}, partial_rotary_factor=0.5)
    with pytest.raises(InputError, match="elements of a head rotate; expected all, as queries are scaled"):
        opened(random_checkpoint(config))
