"""Routers whose chosen experts all have tiny sigmoids, against transformers, which adds a constant to their sum."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from goldens.models import MODELS, Made, model_tensors, prompt, save_tensors, write_model

import glinfer
from glinfer.families import FAMILIES

EPS = {
    **dict.fromkeys(("deepseek_v3", "dots1", "exaone_moe", "glm4_moe", "glm4_moe_lite", "solar_open"), 1e-20),
    "nemotron_h_moe": 1e-20,
    "lfm2_moe": 1e-6,
    "minimax_m2": 0.0,
}
"""The constant of each family with sigmoids, from the modules of transformers."""
OF_RANGE = 1e-4


def test_constants_are_those_of_transformers() -> None:
    assert {name: family.share_eps for name, family in FAMILIES.items() if family.sigmoid_router} == EPS


@pytest.mark.slow
@pytest.mark.gl
@pytest.mark.parametrize("family", EPS)
def test_logits_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (make test-all installs it)")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.set_num_threads(1)  # faster for models so small
    write_tiny_shares(MODELS[family], tmp_path)
    peer = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float64, experts_implementation="eager"
    )
    for executor in ("numpy", "gl"):
        with glinfer.load(tmp_path, executor=executor) as model:
            for tokens in range(1, 9):
                ids = prompt(tokens)
                with torch.no_grad():
                    expected = peer(torch.tensor([ids])).logits[0, -1].numpy()
                np.testing.assert_allclose(model.logits(ids), expected, atol=OF_RANGE * np.ptp(expected))


def write_tiny_shares(made: Made, folder: Path) -> None:
    """Write a model whose first experts are always chosen, with logits of about -40 for half of the tokens."""
    write_model(made, folder)
    tensors = model_tensors(made, folder / "config.json")
    for name, weights in tensors.items():
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            tensors[name] = np.maximum(100 - 10 * np.arange(weights.size), 0).astype(np.float32)
        elif name.endswith("gate.weight") and "gate_proj" not in name:
            tensors[name] = 40 * (weights[:1] + 0.1 * weights)
    save_tensors(tensors, folder / "model.safetensors", made.dtype)
