"""GPT-2: Gab's passes with biases in the attention and a tied head, against NumPy in float64."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glinfer
from glinfer.cli.app import run
from glinfer.config import ModelConfig
from glinfer.formats import load_checkpoint, save_checkpoint
from glinfer.formats.checkpoint import Checkpoint, check_checkpoint
from glinfer.formats.tensors import head_weight, weight_shapes
from glinfer.ops.published.linear import ACTIVATIONS, activate
from qa.peers.peer import open_peers

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
IDS = [1, 5, 9, 77, 3, 100, 0]
TIED = ModelConfig(101, 36, 3, 2, 40, intermediate_size=70, model_type="gpt2", tie_word_embeddings=True)
UNTIED = dataclasses.replace(TIED, tie_word_embeddings=False, hidden_act="gelu", layer_norm_eps=1e-4)
OF_RANGE = 1e-4  # of the logits' range, as float32 allows
PLANS = ("fast", "reference")


def random_gpt2(config: ModelConfig, seed: int = 0) -> Checkpoint:
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in weight_shapes(config).items():
        gain = ".ln_" in name and name.endswith("weight")
        tensors[name] = (0.2 * rng.standard_normal(shape) + gain).astype(np.float32)
    return Checkpoint(config, tensors, "random GPT-2")


def float64_logits(checkpoint: Checkpoint, ids: list[int]) -> Array:
    """The logits [tokens, V] after each token: GPT-2 as Radford et al. (2019) describe it."""
    config = checkpoint.config
    weights = {name: np.asarray(tensor, np.float64) for name, tensor in checkpoint.tensors.items()}

    def linear(x: Array, name: str) -> Array:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + config.layer_norm_eps)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def heads(x: Array) -> Array:
        return x.reshape(len(x), config.num_attention_heads, -1).swapaxes(0, 1)

    x = weights["transformer.wte.weight"][ids] + weights["transformer.wpe.weight"][: len(ids)]
    hidden_future = np.triu(np.full((len(ids), len(ids)), -np.inf), 1)
    for block in range(config.num_hidden_layers):
        prefix = f"transformer.h.{block}"
        normed = norm(x, f"{prefix}.ln_1")
        q, k, v = (heads(linear(normed, f"{prefix}.attn.{letter}_proj")) for letter in "qkv")
        scores = q @ k.swapaxes(1, 2) / np.sqrt(config.head_dim) + hidden_future
        probs = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (probs / probs.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(len(ids), -1)
        x = x + linear(mixed, f"{prefix}.attn.out_proj")
        inner = activate(linear(norm(x, f"{prefix}.ln_2"), f"{prefix}.mlp.fc_in"), ACTIVATIONS[config.hidden_act])
        x = x + linear(inner, f"{prefix}.mlp.fc_out")
    return np.asarray(norm(x, "transformer.ln_f") @ weights[head_weight(config)].T)


@pytest.fixture(params=[TIED, UNTIED], ids=["tied", "untied"])
def checkpoint(request: pytest.FixtureRequest) -> Checkpoint:
    made = random_gpt2(request.param)
    check_checkpoint(made)
    return made


@pytest.fixture
def path(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    file = tmp_path / "m.safetensors"
    save_checkpoint(checkpoint, file)
    return file


def test_a_tied_head_has_no_tensor_and_attention_has_biases() -> None:
    tied, untied = weight_shapes(TIED), weight_shapes(UNTIED)
    assert set(untied) - set(tied) == {"lm_head.weight"}
    assert "lm_head.bias" not in untied
    assert tied["transformer.h.1.attn.k_proj.bias"] == (36,)
    assert (head_weight(TIED), head_weight(UNTIED)) == ("transformer.wte.weight", "lm_head.weight")
    gab = weight_shapes(dataclasses.replace(UNTIED, model_type="gab"))
    assert set(untied) - set(gab) == {
        f"transformer.h.{block}.attn.{name}_proj.bias" for block in range(2) for name in ("q", "k", "v", "out")
    }


@pytest.mark.parametrize("plan", PLANS)
def test_every_position_agrees_with_float64(checkpoint: Checkpoint, path: Path, plan: str) -> None:
    expected = float64_logits(checkpoint, IDS)
    with glinfer.load(path, plan=plan) as model:
        for tokens in range(1, len(IDS) + 1):
            error = np.abs(model.logits(IDS[:tokens]) - expected[tokens - 1]).max()
            assert error <= OF_RANGE / 10 * np.ptp(expected), tokens


@pytest.mark.slow
def test_a_token_at_a_time_and_in_chunks_it_is_the_same(checkpoint: Checkpoint, path: Path) -> None:
    expected = float64_logits(checkpoint, IDS)
    with glinfer.load(path) as model, model.session() as session:
        for place, token in enumerate(IDS):
            session.step(token)
            assert np.abs(session.logits() - expected[place]).max() <= OF_RANGE / 10 * np.ptp(expected)
        scored = model.score([IDS])[0]
    shifted = expected[:-1] - expected[:-1].max(-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    assert np.allclose(scored.logprobs, log_probs[np.arange(6), IDS[1:]], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["q8", *(pytest.param(name, marks=pytest.mark.slow) for name in ("f16", "q16"))])
def test_packed_weights_stay_close(checkpoint: Checkpoint, path: Path, weights: str) -> None:
    expected = float64_logits(checkpoint, IDS)[-1]
    with glinfer.load(path, weights=weights) as model:
        assert np.abs(model.logits(IDS) - expected).max() <= 0.05 * np.ptp(expected)


@pytest.mark.slow
def test_greedy_tokens_are_the_same_by_both_plans_and_to_the_end_of_the_context(path: Path) -> None:
    texts = []
    for plan in PLANS:
        with glinfer.load(path, plan=plan) as model:
            texts.append(model.generate(IDS, max_tokens=33, temperature=0))
    assert texts[0] == texts[1]
    assert len(texts[0]) == 33


@pytest.mark.parametrize("plan", PLANS)
def test_every_draw_is_verified(path: Path, plan: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(path), "--plan", plan, "--draws"]) == 0, capsys.readouterr().out


@pytest.mark.slow
def test_pytorch_runs_it_too(checkpoint: Checkpoint) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (make test-all installs it)")
    expected = float64_logits(checkpoint, IDS)[-1]
    for peer in open_peers(["torch"], checkpoint):  # on a machine with CUDA there are several, some in half precision
        share = OF_RANGE if "fp32" in peer.label else 0.05
        assert np.abs(peer.prefill(IDS) - expected).max() <= share * np.ptp(expected), peer.label
        peer.close()


def test_it_does_not_fit_a_gab_file(checkpoint: Checkpoint, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = path.with_name("m.gab")
    assert run(["convert", str(path), str(out)]) == 2
    assert "the model is of the family 'gpt2'" in capsys.readouterr().err
    assert not out.exists()
    again = path.with_name("again.safetensors")
    assert run(["convert", str(path), str(again)]) == 0
    loaded = load_checkpoint(again)
    assert loaded.config == checkpoint.config
    assert all(np.array_equal(loaded.tensors[name], tensor) for name, tensor in checkpoint.tensors.items())
