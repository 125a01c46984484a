"""Contexts beyond the trained one, with scaling of type ``dynamic``, against transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from goldens.models import EVEN, Made, prompt, write_model
from rope_tables import rope_table
from settings_files import config_with

import glinfer
from glinfer.errors import ConfigError
from glinfer.families.layer import Rope
from glinfer.formats.huggingface.config import read_config
from glinfer.lower.ropes import rope_of

TRAINED, FACTOR, CONTEXT = 24, 4.0, 80
OF_RANGE = 1e-4
LLAMA = {**EVEN, "model_type": "llama", "max_position_embeddings": TRAINED}
SCALING = {"type": "dynamic", "factor": FACTOR}


def test_a_context_may_be_as_long_as_the_factor_says(tmp_path: Path) -> None:
    config = config_with(tmp_path / "d", LLAMA, rope_scaling=SCALING)
    assert (config.max_position_embeddings, config.most_positions, config.long_after) == (TRAINED, 96, 0)
    assert config.with_context(96).max_position_embeddings == config.with_context(96).most_positions == 96
    assert config.with_context(96).with_context(30).long_after == TRAINED
    assert config.with_context(10).long_after == 0
    with pytest.raises(ConfigError, match="the context is 97; expected 1 to 96, the positions of this model"):
        config.with_context(97)
    for other in (None, {"type": "linear", "factor": 4.0}):
        plain = config_with(tmp_path / "o", LLAMA, rope_scaling=other)
        with pytest.raises(ConfigError, match="the context is 25; expected 1 to 24"):
            plain.with_context(25)


def test_tables_have_the_plain_angles_and_those_of_the_context(tmp_path: Path) -> None:
    config = config_with(tmp_path, LLAMA, rope_scaling=SCALING).with_context(CONTEXT)
    rope = config.layer(0).rope
    assert isinstance(rope, Rope)
    table = rope_of(config, rope)
    grown = rope.theta * (FACTOR * CONTEXT / TRAINED - (FACTOR - 1)) ** (rope.dim / (rope.dim - 2))
    for rows, theta in ((table[:CONTEXT], rope.theta), (table[CONTEXT:], grown)):
        np.testing.assert_array_equal(rows, rope_table(CONTEXT, rope.dim, theta)[0])


@pytest.fixture
def peer() -> Callable[[Path, list[int]], np.ndarray]:
    """Logits of transformers after the last of some tokens, all in one run."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (make test-all installs it)")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

    def logits(path: Path, ids: list[int]) -> np.ndarray:
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
        with torch.no_grad():
            return np.asarray(model(torch.tensor([ids])).logits[0, -1].numpy())

    return logits


@pytest.mark.slow
@pytest.mark.gl
def test_logits_are_those_of_transformers(tmp_path: Path, peer: Callable[[Path, list[int]], np.ndarray]) -> None:
    """Of texts within the trained context, and of those that fill the context; of others with the context's base."""
    settings = {**LLAMA, "rope_scaling": SCALING}
    path, text = write_model(Made(settings), tmp_path / "dynamic"), prompt(CONTEXT)
    config = read_config(path / "config.json")
    head = config.rotary_dim
    base = config.rope_theta * (FACTOR * CONTEXT / TRAINED - (FACTOR - 1)) ** (head / (head - 2))
    fixed = write_model(Made({**LLAMA, "rope_theta": base, "max_position_embeddings": CONTEXT}), tmp_path / "fixed")
    with glinfer.load(path, context=CONTEXT) as model:
        for tokens, other in ((1, path), (TRAINED, path), (TRAINED + 1, fixed), (50, fixed), (CONTEXT, path)):
            expected = peer(other, text[:tokens])
            found = model.logits(text[:tokens])
            assert np.abs(found - expected).max() <= OF_RANGE * np.ptp(expected), tokens
        with model.session() as session:
            session.prefill(text[: TRAINED - 2])
            for tokens in range(TRAINED - 2, TRAINED + 4):
                expected = peer(path if tokens <= TRAINED else fixed, text[:tokens])
                assert np.abs(session.logits() - expected).max() <= OF_RANGE * np.ptp(expected), tokens
                session.step(text[tokens])
    with glinfer.load(path) as model:
        assert model.config.max_position_embeddings == TRAINED
