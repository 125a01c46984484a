"""Every family with rotary positions against Hugging Face's transformers, or NumPy where that has no such model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glinfer
from glinfer.config import ModelConfig
from glinfer.formats import Checkpoint, random_checkpoint
from glinfer.generation.loading import Loaded, bind
from glinfer.generation.model import Model
from glinfer.gl.context import open_device

Array = np.ndarray[Any, Any]
OF_RANGE = 1e-4  # of the logits' range, as float32 allows
CONTEXT, VOCAB = 220, 311
PLANS = ("fast", "reference")
LENGTHS = (1, 7, 200)

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# Few shapes, since each has shaders of its own: an odd one, an even one, and one whose heads are wider than the stream.
ODD = {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 101}
EVEN = {"hidden_size": 64, "num_key_value_heads": 2}
WIDE = {"hidden_size": 60, "head_dim": 20, "num_key_value_heads": 4, "intermediate_size": 99}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", ODD),
    "llama3-biases-tied": (
        "Llama",
        {**EVEN, "rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "mistral": ("Mistral", {**ODD, "sliding_window": 50}),
    "qwen2": ("Qwen2", ODD),
    "qwen2-windows": (
        "Qwen2",
        {
            **EVEN,
            "use_sliding_window": True,
            "sliding_window": 30,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3": ("Qwen3", {**WIDE, "attention_bias": True, "rms_norm_eps": 1e-4}),
    "gemma": ("Gemma", {**EVEN, "head_dim": 16}),
}


def prompt(tokens: int) -> list[int]:
    ids: list[int] = np.random.default_rng(tokens).integers(0, VOCAB, tokens).tolist()
    return ids


def log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


@dataclass
class Peer:
    """A model in glinfer, and another computation of its logits.

    Attributes:
        load: opens it by a plan.
        logits: [tokens, vocab] of what follows each of some tokens.
    """

    load: Callable[..., Model]
    logits: Callable[[list[int]], Array]

    @cached_property
    def expected(self) -> dict[int, Array]:
        """The logits of the prompts of each length."""
        return {tokens: self.logits(prompt(tokens)) for tokens in LENGTHS}


def saved(kind: str, folder: Path, settings: dict[str, Any]) -> Any:
    """A random model of transformers, saved; the model itself."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    given = {
        "vocab_size": VOCAB,
        "intermediate_size": 100,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.15,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "attn_implementation": "eager",
        **settings,
    }
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**given)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # norms and biases begin as ones and zeros
                parameter += (0.3 if "norm" in name else 0.1) * torch.randn_like(parameter)
            elif kind == "Gemma" and "embed" in name:
                parameter *= 0.1  # embeddings that are scaled and tied would say the last token again
    model.save_pretrained(folder)
    return model


def peer_of(model: Any, folder: Path) -> Peer:
    import torch

    def logits(ids: list[int]) -> Array:
        with torch.no_grad():
            return np.asarray(model(torch.tensor([ids])).logits[0].double().numpy())

    return Peer(lambda **options: glinfer.load(folder, **options), logits)


GIFT = ModelConfig(
    VOCAB,
    60,
    6,
    2,
    CONTEXT,
    intermediate_size=103,
    hidden_act="gelu",
    model_type="gift_of_gab",
    tie_word_embeddings=True,
    mlp_bias=True,
)


def gift_logits(checkpoint: Checkpoint, ids: list[int]) -> Array:
    """Second-generation Gab in float64, as its description has it, one pair of elements after the other."""
    config = checkpoint.config
    weights = {name: np.asarray(tensor, np.float64) for name, tensor in checkpoint.tensors.items()}
    dim, places = config.head_dim, np.arange(len(ids))

    def norm(x: Array, name: str) -> Array:
        return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + config.layer_norm_eps) * weights[name])

    def turned(x: Array) -> Array:
        """Neighbours as complex numbers, turned by position × theta^(−2i / dim)."""
        speeds = config.rope_theta ** (-2.0 * np.arange(dim // 2) / dim)
        points = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * places[:, None] * speeds)
        return np.stack([points.real, points.imag], axis=-1).reshape(x.shape)

    x = weights["model.embed_tokens.weight"][ids]
    for index in range(config.num_hidden_layers):
        layer = f"model.layers.{index}"
        normed = norm(x, f"{layer}.input_layernorm.weight")
        q, k, v = (normed @ weights[f"{layer}.self_attn.{letter}_proj.weight"].T for letter in "qkv")
        heads = []
        for head in range(config.num_attention_heads):
            part = slice(head * dim, (head + 1) * dim)
            scores = turned(q[:, part]) @ turned(k[:, part]).T / math.sqrt(dim)
            scores[places[None, :] > places[:, None]] = -np.inf
            heads.append(np.exp(log_softmax(scores)) @ v[:, part])
        x = x + np.concatenate(heads, axis=1) @ weights[f"{layer}.self_attn.o_proj.weight"].T
        normed = norm(x, f"{layer}.post_attention_layernorm.weight")
        inner = normed @ weights[f"{layer}.mlp.up_proj.weight"].T + weights[f"{layer}.mlp.up_proj.bias"]
        inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        x = x + inner @ weights[f"{layer}.mlp.down_proj.weight"].T
    return np.asarray(norm(x, "model.norm.weight") @ weights["model.embed_tokens.weight"].T)


def gift_peer() -> Peer:
    checkpoint = random_checkpoint(GIFT, scale=0.15)

    def load(plan: str = "fast") -> Model:
        return Model(Loaded(bind(checkpoint, open_device(), plan, "file"), None, "none", (), True))

    return Peer(load, lambda ids: gift_logits(checkpoint, ids))


@pytest.fixture(scope="module", params=[*CASES, "gift_of_gab"])
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    if request.param == "gift_of_gab":
        yield gift_peer()
        return
    folder = tmp_path_factory.mktemp(request.param)
    kind, settings = CASES[request.param]
    yield peer_of(saved(kind, folder, settings), folder)


@pytest.fixture(scope="module")
def fast(peer: Peer) -> Iterator[Model]:
    with peer.load(plan="fast") as model:
        yield model


def worst(found: Array, expected: Array) -> float:
    """The largest difference, as a part of the range of what was expected."""
    return float(np.abs(found - expected).max() / np.ptp(expected))


def test_the_model_would_notice_a_wrong_position(peer: Peer) -> None:
    """So that the tests below can fail: neither the order of tokens nor a token long ago is lost in rounding."""
    ids = prompt(20)
    swapped = [ids[1], ids[0], *ids[2:]]
    assert worst(peer.logits(swapped)[-1], peer.logits(ids)[-1]) > 100 * OF_RANGE


def test_every_position_token_by_token_and_100_greedy_tokens(peer: Peer, fast: Model) -> None:
    """Over 200 tokens: a prompt, and what the model itself goes on with."""
    ids = prompt(100)
    found: list[Array] = []
    with fast.session() as session:
        for _ in range(200):
            session.step(ids[len(found)] if len(found) < len(ids) else int(found[-1].argmax()))
            found.append(session.logits())
        held = session.ids
    expected = peer.logits(held)
    errors = [worst(*pair) for pair in zip(found, expected, strict=True)]
    assert max(errors) <= OF_RANGE, int(np.argmax(errors))
    assert held[100:] == expected[99:-1].argmax(-1).tolist()
    assert len(set(held[100:])) > 1, "a model that says one thing only shows little"
    assert fast.generate(ids, max_tokens=30, temperature=0) == held[100:130]


def test_prompts_at_once(peer: Peer, fast: Model) -> None:
    """From empty caches each time, to lengths around the edges of chunks and windows."""
    for tokens in (1, 2, 3, 7, 16, 17, 51, 129, 200):
        whole = next(length for length in LENGTHS if length >= tokens)
        with fast.session() as session:
            session.prefill(prompt(whole)[:tokens])
            assert worst(session.logits(), peer.expected[whole][tokens - 1]) <= OF_RANGE, tokens


def test_the_reference_plan(peer: Peer) -> None:
    """Sequences of every length are padded to those of a plan; they begin, and end, at their edges."""
    with peer.load(plan="reference") as model:
        for tokens in (1, 2, 7, 63, 64, 65, 131, 199, 200):
            whole = next(length for length in LENGTHS if length >= tokens)
            found = model.logits(prompt(whole)[:tokens])
            assert worst(found, peer.expected[whole][tokens - 1]) <= OF_RANGE, tokens


@pytest.mark.parametrize(
    "peer",
    ["llama", "gift_of_gab", *(pytest.param(name, marks=pytest.mark.slow) for name in CASES if name != "llama")],
    indirect=True,
)
def test_100_greedy_tokens_by_the_reference_plan(peer: Peer) -> None:
    with peer.load(plan="reference") as model:
        found = model.generate(prompt(7), max_tokens=100, temperature=0)
    assert len(found) == 100
    assert peer.logits(prompt(7) + found)[6:-1].argmax(-1).tolist() == found


def test_scores_are_the_logarithms_of_probabilities(peer: Peer, fast: Model) -> None:
    texts = [prompt(tokens) for tokens in LENGTHS[1:]]
    scores = fast.score(texts)
    for ids, score in zip(texts, scores, strict=True):
        expected = peer.expected[len(ids)][:-1]
        logprobs = log_softmax(expected)[np.arange(len(ids) - 1), ids[1:]]
        assert np.abs(score.logprobs - logprobs).max() <= OF_RANGE * np.ptp(expected)
        assert np.array_equal(score.likeliest, expected.argmax(-1))


@pytest.mark.parametrize(("dtype", "texture"), [("bfloat16", "rgba32ui"), ("float16", "rgba16f")])
@pytest.mark.parametrize("case", ["gemma"])
def test_half_precision_files_give_the_logits_of_their_rounded_weights(
    tmp_path: Path, case: str, dtype: str, texture: str
) -> None:
    torch = pytest.importorskip("torch")
    kind, settings = CASES[case]
    theirs = saved(kind, tmp_path / "full", settings)
    before = peer_of(theirs, tmp_path).logits(prompt(7))
    theirs.to(getattr(torch, dtype)).save_pretrained(tmp_path / "half")
    # Read anew: what is no parameter, such as the speeds of rotary positions, would stay rounded in the model itself.
    rounded = type(theirs).from_pretrained(tmp_path / "half", dtype=torch.float32, attn_implementation="eager")
    peer = peer_of(rounded.eval(), tmp_path / "half")
    expected = peer.logits(prompt(7))
    assert worst(before[-1], expected[-1]) > OF_RANGE, "rounding does not show"
    for plan in PLANS:
        with peer.load(plan=plan) as model:
            formats = {tensor.format for tensor in model.plan.of_kind("weight") if "proj" in tensor.name}
            assert texture in formats
            for tokens in (1, 4, 7):
                assert worst(model.logits(prompt(7)[:tokens]), expected[tokens - 1]) <= OF_RANGE, (plan, tokens)
