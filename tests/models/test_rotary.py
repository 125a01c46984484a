"""Options, renderers and textures of models with rotary positions; what they compute is in test_families.py."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_models import IDS, OF_RANGE, VOCAB, Array, fresh, opened, worst
from tiers import tiered

import glinfer
from glinfer.config import ModelConfig
from glinfer.engine.random_model import demo_tokenizer
from glinfer.errors import ContextError, GlinferError, InputError
from glinfer.formats import Checkpoint, random_checkpoint, save_checkpoint, write_bpe
from glinfer.gl.context import Limits, open_device
from glinfer.models.choice import PLANS

pytestmark = pytest.mark.gl

CONTEXT = 40
LLAMA = ModelConfig(
    VOCAB, 36, 4, 2, CONTEXT, 50, hidden_act="silu", model_type="llama", num_key_value_heads=2, head_dim=10
)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return random_checkpoint(LLAMA, scale=0.2)


@pytest.fixture(scope="module")
def path(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rotary") / "m.safetensors"
    save_checkpoint(checkpoint, file)
    return file


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_draws_of_tokens_and_of_prompts(checkpoint: Checkpoint, family: str) -> None:
    """Heads that are normalised take a pass more in each layer."""
    config = dataclasses.replace(LLAMA, model_type=family)
    made = checkpoint if family == "llama" else random_checkpoint(config, scale=0.2)
    layer = 6 if family == "llama" else 7
    with opened(made) as model, model.session() as session:
        assert len(model.plan.draws) == 2 * layer + 3
        for token in IDS[:5]:
            session.step(token)
        session.logits()
        assert session.draws_issued == 4 * (2 * layer + 1) + 2 * layer + 2, "inner tokens have no head, none is chosen"
        issued = session.draws_issued
        session.hold(IDS[9:33])
        chunk = session.draws_issued - issued
        assert chunk == 2 * (layer + 3) - 4, "norms and stores, but no attention and no MLP in the last layer"
        session.generate_ids(1)
        assert session.draws_issued - issued - chunk == layer + 2, "what a chunk leaves of its last token"
        session.generate_ids(4)
        assert session.draws_issued - issued - chunk == layer + 2 + 4 * len(model.plan.draws)


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


@pytest.mark.parametrize("context", [0, -1, CONTEXT + 1, 1 << 40, 2.5, "8"])
def test_a_context_that_the_model_has_not_is_one_line(path: Path, context: Any) -> None:
    with pytest.raises(
        GlinferError,
        match=rf"\Aa context of '?{context}'? was asked for; this model has 1 to {CONTEXT} positions\Z",
    ):
        glinfer.load(path, context=context)


@pytest.mark.slow
def test_a_long_model_gets_the_usual_context(tmp_path: Path) -> None:
    file = tmp_path / "long.safetensors"
    save_checkpoint(random_checkpoint(dataclasses.replace(LLAMA, max_position_embeddings=131072)), file)
    with glinfer.load(file) as model:
        assert model.config.max_position_embeddings == 4096
    with glinfer.load(file, context=5000) as model:
        assert model.config.max_position_embeddings == 5000


@pytest.mark.slow
def test_weights_in_fewer_bits_stay_close_and_take_less(path: Path) -> None:
    found: dict[str, tuple[int, Array]] = {}
    for weights in ("file", "f32", "f16", "q16", "q8l", "q8"):
        with glinfer.load(path, weights=weights) as model:
            assert model.weights == ("f32" if weights == "file" else weights)
            edge = model.device.limits.max_texture_size
            matrices = [each for each in model.plan.of_kind("weight") if each.name.endswith((".weight", "wte"))]
            nbytes = sum(each.layout_within(edge).nbytes for each in matrices)
            found[weights] = nbytes, model.logits(IDS[:3])
    assert np.array_equal(found["file"][1], found["f32"][1])
    for weights, tolerance in (("f16", 2e-3), ("q16", 5e-4), ("q8l", 0.05), ("q8", 0.05)):
        assert 0 < worst(found[weights][1], found["f32"][1]) <= tolerance, weights
    sizes = {weights: nbytes for weights, (nbytes, _) in found.items()}
    assert sizes["file"] == sizes["f32"]
    assert sizes["f16"] == 0.5 * sizes["f32"]
    assert sizes["q8"] < sizes["q8l"] < sizes["q16"] <= 0.55 * sizes["f32"]


def test_what_a_plan_cannot_be_told_is_one_line(path: Path) -> None:
    for weights in ("q8", "auto"):
        with pytest.raises(
            GlinferError, match=rf"\Athe reference plan keeps its weights in f32, found {weights};[^\n]*\Z"
        ):
            glinfer.load(path, weights=weights, plan="reference")
    with glinfer.load(path, plan="reference") as model:
        with pytest.raises(InputError, match=r"\Ascore needs the fast plan;[^\n]*\Z"):
            model.score([IDS[:5]])
        with pytest.raises(InputError, match=r"\Aseveral prompts together need the fast plan;[^\n]*\Z"):
            model.generate([IDS[:5]])
        assert model.forward(IDS[:5]) == len(model.plan.draws)
    with glinfer.load(path) as model, pytest.raises(InputError, match=r"\Aplan fast runs token by token;[^\n]*\Z"):
        model.forward(IDS[:5])
    with pytest.raises(ContextError):
        model.logits(IDS[:5])


# Renderers


@pytest.mark.slow
def test_two_models_on_one_device(checkpoint: Checkpoint) -> None:
    gemma = ModelConfig(
        VOCAB, 30, 3, 1, 20, 44, hidden_act="gelu_new", model_type="gemma", num_key_value_heads=1, head_dim=12
    )
    other = random_checkpoint(dataclasses.replace(gemma, tie_word_embeddings=True), scale=0.2)
    with opened(checkpoint) as model:
        alone = fresh(model, IDS[:12])
    with opened(other) as model:
        other_alone = fresh(model, IDS[:12])
    with open_device() as device:
        with opened(checkpoint, device=device) as one, opened(other, device=device) as two:
            with one.session() as first, two.session() as second:
                for token in IDS[:12]:
                    first.step(token)
                    second.step(token)
                assert np.array_equal(first.logits(), alone)
                assert np.array_equal(second.logits(), other_alone)
            one.close()
            assert np.array_equal(fresh(two, IDS[:12]), other_alone)
        assert not device.live_objects()


@pytest.mark.slow
@tiered("plan", PLANS)
@tiered(
    "options",
    [
        {"limits": Limits.webgl2_minimum()},
        {"limits": dataclasses.replace(Limits.webgl2_minimum(), max_texture_size=256)},
        pytest.param({"api": "desktop"}, marks=pytest.mark.desktop),
    ],
    keep=(1, 2),
    ids=["webgl2", "tiny textures", "desktop"],
)
def test_other_renderers_give_the_same(path: Path, plan: str, options: dict[str, Any]) -> None:
    with glinfer.load(path, plan=plan) as model:
        expected = [model.logits(IDS[:count]) for count in (1, 2, 30)]
    with glinfer.load(path, plan=plan, **options) as model:
        for count, logits in zip((1, 2, 30), expected, strict=True):
            assert worst(model.logits(IDS[:count]), logits) <= OF_RANGE, count
        if plan == "fast":
            (scored,) = model.score([IDS[:50]])
            assert np.isfinite(scored.logprobs).all()
            prompts = [IDS[:3], IDS[5:20]]
            alone = [model.generate(prompt, max_tokens=5, seed=1) for prompt in prompts]
            assert model.generate(prompts, max_tokens=5, seed=1) == alone


# Text, and what is left behind


@pytest.mark.slow
def test_text_streams_until_a_stop_token(path: Path, tmp_path: Path) -> None:
    words = tmp_path / "words.bpe"
    write_bpe(demo_tokenizer(VOCAB), words)
    with glinfer.load(path, tokenizer=words) as model:
        assert model.tokenizer is not None
        text = "Once upon a time"
        ids = model.generate(model.tokenizer.encode(text), max_tokens=20, temperature=0)
        whole = model.generate(text, max_tokens=20, temperature=0, stop_ids=[])
        assert "".join(model.stream(text, max_tokens=20, temperature=0, stop_ids=[])) == whole
        at = next(place for place in range(3, 20) if ids[place] not in ids[:place])
        stopped = model.stream(text, max_tokens=20, temperature=0, stop_ids=[ids[at]])
        pieces = "".join(stopped)
        assert whole.startswith(pieces)
        assert len(pieces) < len(whole)
        tokens = model.stream(model.tokenizer.encode(text), max_tokens=20, temperature=0, stop_ids=[ids[at]])
        assert list(tokens) == ids[:at]


def test_the_reference_plan_makes_no_object_for_a_token(checkpoint: Checkpoint) -> None:
    """Of the fast plan see test_decode.py."""
    with opened(checkpoint, "reference") as model:
        for count in (10, CONTEXT):  # plans of each size are made at first use
            model.logits(IDS[:count])
        before = model.device.live_objects()
        assert sum(before.values()) > 20
        for token in model.stream(IDS[20:37], max_tokens=40, temperature=0):
            assert 0 <= token < VOCAB
            assert model.device.live_objects() == before
        model.logits(IDS[:5])
        assert model.device.live_objects() == before


@pytest.mark.slow
def test_sessions_scores_and_batches_give_back_what_they_took(checkpoint: Checkpoint) -> None:
    with open_device() as device:
        with opened(checkpoint, device=device) as model:
            model.logits(IDS[:10])
            before = device.live_objects()
            for _ in range(3):
                with model.session() as session:
                    session.prefill(IDS[:30])
                    session.logits()
                    with session.fork() as fork:
                        fork.prefill(IDS[30:38])
                        fork.logits()
                    assert device.live_objects() != before
                assert device.live_objects() == before
            model.score([IDS[:30]])
            model.generate([IDS[:30], IDS[:2]], max_tokens=3)
            used = device.live_objects()
            model.score([IDS[:60], IDS[:2]])
            model.generate([IDS[:3], IDS[:20], IDS[:7]], max_tokens=3)
            assert device.live_objects()["texture"] == used["texture"]
            left_open = model.session()
            left_open.prefill(IDS[:20])
        assert not device.live_objects()
        left_open.close()
        assert not device.live_objects()
