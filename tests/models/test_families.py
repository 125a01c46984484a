"""Every family against the figures of Hugging Face's transformers, or of NumPy where that has no such model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens import check_digest, recorded
from goldens.figures import Array, Figures
from goldens.models import GIFT, HALVES, MODELS, gift_tensors, save_tensors, write_recorded
from tiers import tiered

import glinfer
from glinfer.engine.loading import bind
from glinfer.engine.model import Loaded, Model
from glinfer.formats import Checkpoint, load_checkpoint
from glinfer.gl.context import open_device

pytestmark = pytest.mark.gl

OF_RANGE = 1e-4  # of the logits' range, as float32 allows
PLANS = ("fast", "reference")
FIGURES = {name: Figures.from_json(figures) for name, figures in recorded("families").items()}


def model_of(checkpoint: Checkpoint, plan: str) -> Model:
    return Model(Loaded(bind(checkpoint, open_device(), plan, "file"), None, "none", (), True))


@dataclass
class Peer:
    """A model as glinfer loads it by a plan, and what another engine computed with it."""

    name: str
    load: Callable[..., Model]
    figures: Figures


# One with RMSNorm and heads that share keys, one with LayerNorm and learned positions, four with parts of their own.
QUICK = ("llama", "gpt2", "gemma", "gemma3", "lfm2", "qwen3_5", "gpt_oss-limits")
NAMES = [*MODELS, "gift_of_gab"]
PEERS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]


@pytest.fixture(scope="module", params=PEERS)
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Peer:
    folder, name = tmp_path_factory.mktemp("family"), request.param
    if name in MODELS:
        write_recorded(name, folder)
        return Peer(name, lambda plan: glinfer.load(folder, plan=plan), FIGURES[name])
    tensors = gift_tensors()
    save_tensors(tensors, folder / "gift.safetensors")
    check_digest(folder / "gift.safetensors", {recorded("families")[name]["sha256"]})
    return Peer(name, lambda plan: model_of(Checkpoint(GIFT, tensors, name), plan), FIGURES[name])


@pytest.fixture(scope="module")
def fast(peer: Peer) -> Iterator[Model]:
    with peer.load("fast") as model:
        yield model


def after(model: Model, ids: list[int]) -> Array:
    """The logits after some tokens, from empty caches."""
    with model.session() as session:
        session.prefill(ids)
        return np.asarray(session.logits())


def test_every_position_token_by_token_and_100_greedy_tokens(peer: Peer, fast: Model) -> None:
    """Over 200 tokens: 100 that are given, and what the model itself goes on with."""
    figures, errors, likeliest = peer.figures, list[float](), 0
    assert len(figures.ids) == 200
    assert len(set(figures.ids[100:])) > 5, "a model that says one thing only shows little"
    with fast.session() as session:
        for place in range(200):
            session.step(figures.ids[place] if place < 100 else likeliest)
            logits = session.logits()
            errors.append(figures.error(place, logits))
            likeliest = int(logits.argmax())
            assert likeliest == figures.likeliest[place], place
        held = session.ids
    assert max(errors) <= OF_RANGE, int(np.argmax(errors))
    assert held == figures.ids
    assert fast.generate(figures.ids[:100], max_tokens=30, temperature=0) == figures.ids[100:130]


@pytest.mark.parametrize(
    "lengths", [(7, 200), pytest.param((1, 2, 3, 16, 17, 51, 129), marks=pytest.mark.slow)], ids=["few", "more"]
)
def test_prompts_at_once(peer: Peer, fast: Model, lengths: tuple[int, ...]) -> None:
    """From empty caches each time, to lengths around the edges of chunks and windows."""
    for tokens in lengths:
        assert peer.figures.error(tokens - 1, after(fast, peer.figures.ids[:tokens])) <= OF_RANGE, tokens


def test_scores_are_the_logarithms_of_probabilities(peer: Peer, fast: Model) -> None:
    figures, texts = peer.figures, [peer.figures.ids[:7], peer.figures.ids]
    for ids, score in zip(texts, fast.score(texts), strict=True):
        # Where a text turns by the second set of angles, its beginning by itself does not.
        first = fast.plan.long_after if fast.plan.is_long(len(ids)) else 0
        places = slice(first, len(ids) - 1)
        assert np.abs(score.logprobs[first:] - figures.logprobs[places]).max() <= OF_RANGE * figures.range
        assert score.likeliest.tolist()[first:] == figures.likeliest[places]


# Each length of each family has shaders of its own.
@tiered("peer", NAMES, keep=(NAMES.index("llama"),), indirect=True, scope="module")
@tiered("lengths", [(65,), (1, 200), (2, 7, 63, 64, 131, 199)], ids=["one", "few", "more"])
def test_the_reference_plan(peer: Peer, lengths: tuple[int, ...]) -> None:
    """Sequences of every length are padded to those of a plan; they begin, and end, at their edges."""
    with peer.load("reference") as model:
        for tokens in lengths:
            found = model.logits(peer.figures.ids[:tokens])
            assert peer.figures.error(tokens - 1, found) <= OF_RANGE, tokens
            assert int(found.argmax()) == peer.figures.likeliest[tokens - 1]


@pytest.mark.slow
def test_100_greedy_tokens_by_the_reference_plan(peer: Peer) -> None:
    with peer.load("reference") as model:
        assert model.generate(peer.figures.ids[:100], max_tokens=100, temperature=0) == peer.figures.ids[100:]


# What the figures would notice


def test_neither_the_order_of_tokens_nor_a_token_long_ago_is_lost_in_rounding(peer: Peer, fast: Model) -> None:
    ids = peer.figures.ids[:24]
    assert peer.figures.error(23, after(fast, [ids[1], ids[0], *ids[2:]])) > 100 * OF_RANGE


def with_config(**changes: Any) -> Callable[[Checkpoint], Checkpoint]:
    return lambda made: dataclasses.replace(made, config=dataclasses.replace(made.config, **changes))


def with_tensor(name: str, change: Callable[[Array], Array]) -> Callable[[Checkpoint], Checkpoint]:
    return lambda made: dataclasses.replace(made, tensors={**made.tensors, name: change(made.tensors[name])})


FIRST, SECOND = ("model.layers.0", "model.layers.1")
MISTAKES = {
    "another base of the angles": ("llama", with_config(rope_theta=10500.0)),
    "heads of queries in another order": (
        "llama",
        with_tensor(f"{SECOND}.self_attn.q_proj.weight", lambda x: np.roll(x, x.shape[0] // 6, axis=0)),
    ),
    "one pair of elements turns the other way": (
        "qwen2",
        with_tensor(f"{FIRST}.self_attn.k_proj.weight", lambda x: np.concatenate([-x[:1], x[1:]])),
    ),
    "positions are not scaled": ("llama3-biases-tied", with_config(rope_scaling=())),
    "no window": ("mistral", with_config(sliding_window=0)),
    "a window one token too wide": ("qwen2-windows", with_config(sliding_window=31)),
    "a window in every layer": ("qwen2-windows", with_config(max_window_layers=0)),
    "another epsilon": ("qwen3", with_config(layer_norm_eps=1e-3)),
    "another activation": ("gemma", with_config(hidden_act="silu")),
    "no bound on scores": ("gemma2", with_config(attn_logit_softcapping=0.0)),
    "no bound on logits": ("gemma2", with_config(final_logit_softcapping=0.0)),
    "windows in the other layers": ("gemma2", with_config(layer_types=("full_attention", "sliding_attention"))),
    "the factor of scores of a head": ("gemma3", with_config(attention_multiplier=20**-0.5 * 1.01)),
    "the angles of all layers alike": ("gemma3", with_config(rope_local_base_freq=0.0)),
    "scaled angles in layers with a window": ("gemma3-scaled", with_config(rope_local_base_freq=2100.0)),
    "another gain behind the attention": (
        "gemma3",
        with_tensor(f"{SECOND}.post_attention_layernorm.weight", lambda x: np.roll(x, 1)),
    ),
    "the gain of heads before that of the next element": (
        "gemma3-scaled",
        with_tensor(f"{FIRST}.self_attn.k_norm.weight", lambda x: np.roll(x, 1)),
    ),
    "angles in every layer": ("smollm3", with_config(rotary_layers=())),
    "a norm for each head": (
        "olmo2",
        with_tensor(f"{FIRST}.self_attn.q_norm.weight", lambda x: np.concatenate([x[:10], np.roll(x[10:], 1)])),
    ),
    "heads that turn as a whole": ("phi3", with_config(partial_rotary_factor=0.5, rope_scaling=())),
    "no window in the second layer": ("ministral", with_config(sliding_window=0, layer_types=())),
    "no factor of scores": ("granite", with_config(attention_multiplier=0.0)),
    "another factor of embeddings": ("granite", with_config(embedding_multiplier=12.5)),
    "another factor of branches": ("granite", with_config(residual_multiplier=0.23)),
    "another factor of logits": ("granite", with_config(logits_scaling=7.9)),
    "a convolution that sees the tokens the other way round": (
        "lfm2",
        with_tensor(f"{FIRST}.conv.conv.weight", lambda x: x[..., ::-1]),
    ),
    "a convolution of one token less": (
        "lfm2",
        with_tensor(f"{SECOND}.conv.conv.weight", lambda x: x * np.float32([0, 1, 1])),
    ),
    "no bias of a convolution": (
        "lfm2-biases",
        with_tensor(f"{SECOND}.conv.conv.bias", lambda x: 0 * x),
    ),
    "the gates behind a convolution for those before it": (
        "lfm2-biases",
        with_tensor(f"{SECOND}.conv.in_proj.weight", lambda x: np.roll(x, x.shape[0] // 3, axis=0)),
    ),
    "no sinks": ("gpt_oss-limits", with_tensor(f"{SECOND}.self_attn.sinks.weight", lambda x: x - 100)),
    "the sink of the next head": ("gpt_oss", with_tensor(f"{FIRST}.self_attn.sinks.weight", lambda x: np.roll(x, 1))),
    "no bias of the choice of experts": ("gpt_oss", with_tensor(f"{FIRST}.mlp.router.bias", lambda x: 0 * x)),
    "no bias behind an expert": ("gpt_oss", with_tensor(f"{SECOND}.mlp.experts.2.down_proj.bias", lambda x: 0 * x)),
    "a window one token narrower than 128": ("gpt_oss", with_config(sliding_window=127)),
    "gates without a bound": ("gpt_oss-limits", with_config(swiglu_limit=1e6)),
    "another slope of gates": ("gpt_oss-limits", with_config(swiglu_alpha=1.41)),
    "angles of whole pairs": (
        "gpt_oss-limits",
        lambda made: with_config(rope_scaling={**dict(made.config.rope_scaling), "truncate": True})(made),
    ),
    "states that decay faster": ("qwen3_5", with_tensor(f"{FIRST}.linear_attn.A_log", lambda x: x + np.float32(0.1))),
    "another decay of a head": (
        "qwen3_5-shared",
        with_tensor(f"{SECOND}.linear_attn.dt_bias", lambda x: np.roll(x, 1)),
    ),
    "the shares of another head": (
        "qwen3_5",
        with_tensor(f"{SECOND}.linear_attn.in_proj_b.weight", lambda x: np.roll(x, 1, axis=0)),
    ),
    "gates of attention before its queries": (
        "qwen3_5",
        with_tensor("model.layers.3.self_attn.q_proj.weight", lambda x: np.roll(x, 16, axis=0)),
    ),
    "1 added to the gains behind a delta rule": (
        "qwen3_5-shared",
        with_tensor(f"{SECOND}.linear_attn.norm.weight", lambda x: x + 1),
    ),
    "positions from 1": ("gpt2", with_tensor("transformer.wpe.weight", lambda x: np.roll(x, -1, axis=0))),
}


@tiered("mistake", MISTAKES, keep=(0, len(MISTAKES) - 1))
def test_the_figures_would_notice(tmp_path: Path, mistake: str) -> None:
    """The mistake is made in a model, and its logits are far enough from the figures to fail the tests above."""
    name, change = MISTAKES[mistake]
    figures, made = FIGURES[name], load_checkpoint(write_recorded(name, tmp_path))
    with model_of(change(made), "fast") as model:
        assert figures.error(199, after(model, figures.ids)) > 10 * OF_RANGE


# Rounded weights


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        pytest.param(name, plan, marks=() if (name, plan) in quick else pytest.mark.slow)
        for quick in [{("gemma-bfloat16", "fast"), ("gpt2-bfloat16", "fast")}]
        for name in HALVES
        for plan in PLANS
    ],
)
def test_half_precision_files_give_the_logits_of_their_rounded_weights(tmp_path: Path, name: str, plan: str) -> None:
    figures, (family, dtype) = Figures.from_json(recorded("halves")[name]), name.split("-")
    rounding = np.array(figures.rows[6]) - FIGURES[family].rows[6]
    assert np.abs(rounding).max() > OF_RANGE * figures.range, "rounding does not show"
    with glinfer.load(write_recorded(name, tmp_path), plan=plan) as model:
        if family != "gpt2":  # its files are widened to float32
            formats = {tensor.format for tensor in model.plan.of_kind("weight") if "proj" in tensor.name}
            assert {"bfloat16": "rgba32ui", "float16": "rgba16f"}[dtype] in formats
        for tokens in (1, 4, 7):
            assert figures.error(tokens - 1, model.logits(figures.ids[:tokens])) <= OF_RANGE, tokens


# transformers itself


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_logit_of_every_position_is_that_of_transformers(tmp_path: Path, name: str) -> None:
    """The figures hold a part of them."""
    pytest.importorskip("torch", reason="PyTorch is not installed (make test-all installs it)")
    pytest.importorskip("transformers", reason="transformers is not installed (make test-all installs it)")
    from goldens.record import load_peer, peer_logits

    write_recorded(name, tmp_path)
    ids = FIGURES[name].ids
    theirs = load_peer(tmp_path)
    expected = peer_logits(theirs, ids)
    with glinfer.load(tmp_path) as model, model.session() as session:
        if limit := model.plan.long_after:
            expected[:limit] = peer_logits(theirs, ids[:limit])
        for place, token in enumerate(ids):
            session.step(token)
            error = np.abs(session.logits() - expected[place]).max()
            assert error <= OF_RANGE * np.ptp(expected[place]), place
