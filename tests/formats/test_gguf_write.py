"""GGUF files written here: what is read back is what was written, and llama.cpp computes the same logits with it."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import json
import logging
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from goldens import recorded
from goldens.gguf_models import COMPARED, CONFIGS, GAB, IDS, LLAMA3, config, llama_logits
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from glinfer.config import ModelConfig
from glinfer.errors import FormatError, InputError
from glinfer.families.layer import Experts, LayerConfig, Rope
from glinfer.formats import Checkpoint, load_checkpoint, random_checkpoint, weight_shapes
from glinfer.formats.gab.bpe import BpeModel
from glinfer.formats.gguf.model import read_gguf
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.gguf.words import EXPRESSIONS
from glinfer.formats.gguf.write import DTYPES, INSTEAD, as_relative, write_gguf
from glinfer.formats.packed import PackedTensor
from glinfer.ops.rotary import rope_table
from glinfer.quant.packing import PACKED_HERE
from glinfer.text.tokenizer import Tokenizer, learn_bpe

gguf = pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")

Array = Any  # of NumPy, float64
SEARCHED = [name for name, (kind, _) in DTYPES.items() if kind in PACKED_HERE]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def written(path: Path, checkpoint: Checkpoint, **options: Any) -> Checkpoint:
    write_gguf(checkpoint, path, **options)
    return read_gguf(path)


# What is read back


@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_read_back_is_what_was_written(path: Path, name: str) -> None:
    made = random_checkpoint(CONFIGS[name], seed=5)
    found = written(path, made)
    expected = dict(found.config.rope_scaling), found.config
    assert dict(made.config.rope_scaling) == {key: pytest.approx(value) for key, value in expected[0].items()}
    assert dataclasses.replace(expected[1], rope_scaling=made.config.rope_scaling) == made.config
    assert sorted(found.tensors) == sorted(weight_shapes(made.config))
    assert not found.packed
    for tensor, values in made.tensors.items():
        # The norms of some are stored with 1 added, and the exponents of decays as what they give, which rounds.
        rounds = made.config.family.norm_offset and tensor.endswith("norm.weight")
        rounding = 1e-6 if tensor.endswith(".A_log") else 1e-7 if rounds else 0
        assert np.abs(found.tensors[tensor] - values).max() <= rounding, tensor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
def test_dtypes(path: Path, name: str, dtype: str) -> None:
    made = random_checkpoint(dataclasses.replace(CONFIGS[name], intermediate_size=72), seed=5)
    found = written(path, made, dtype=dtype)
    assert read_gguf_file(path).metadata["general.file_type"] == {
        "float32": 0, "float16": 1, "bfloat16": 32, "q4_0": 2, "q4_1": 3, "q5_0": 8, "q5_1": 9, "q8_0": 7,
        "q2_k": 10, "q3_k": 11, "q4_k": 14, "q5_k": 16, "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30,
    }[dtype]  # fmt: skip
    for tensor, values in made.tensors.items():
        expected = DTYPES[dtype][0] if values.ndim == 2 else "F32"
        expected = INSTEAD.get(expected, expected)  # rows of 64 are no blocks of 256
        if values.shape[-1] == 72 and "float" not in dtype:
            expected = "F32"
        if tensor == "transformer.wpe.weight" and dtype != "float16":
            expected = "F32"
        assert found.formats()[tensor] == expected, tensor
        step = {"F32": 0, "F16": 2**-11, "BF16": 2**-8, "Q8_0": 2**-7, "Q5_0": 2**-4, "Q5_1": 2**-4}.get(
            expected, 2**-3
        )
        assert np.abs(found.floats(tensor) - values).max() <= step * np.abs(values).max(), tensor


@pytest.mark.parametrize("dtype", SEARCHED)
def test_blocks_of_256_are_searched_for_the_smallest_error(path: Path, dtype: str) -> None:
    """Of two layers one has importance, and its errors are smaller where that is large."""
    wide = config("llama", hidden_size=256, intermediate_size=512, num_hidden_layers=1, tie_word_embeddings=True)
    made = random_checkpoint(wide, seed=5)
    name = "model.layers.0.mlp.down_proj.weight"
    importance = np.where(np.arange(512) < 32, 100.0, 1.0).astype(np.float32)
    plain, found = written(path, made, dtype=dtype), written(path, made, dtype=dtype, importance={name: importance})
    assert set(found.formats().values()) == {"F32", DTYPES[dtype][0]}
    off, plain_off = (((each.floats(name) - made.tensors[name]) ** 2).mean(axis=0) for each in (found, plain))
    assert off[:32].sum() < 0.999 * plain_off[:32].sum()
    for other in made.tensors:
        assert np.array_equal(found.floats(other), plain.floats(other)) is (other != name), other


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "q4_1", "q8_0"])
def test_tensors_as_they_are(path: Path, tmp_path: Path, dtype: str) -> None:
    first = written(path, random_checkpoint(CONFIGS["llama"], seed=5), dtype=dtype)
    second = written(tmp_path / "again.gguf", first, dtype=None)
    assert second.config == first.config
    assert second.formats() == first.formats()
    assert len(first.packed) == 16
    for name, tensor in first.packed.items():
        assert np.array_equal(second.packed[name].blocks, tensor.blocks), name
    for name, values in first.tensors.items():
        assert np.array_equal(second.tensors[name], values), name
    assert (
        gguf.GGUFReader(path).tensors[0].data.tobytes()
        == gguf.GGUFReader(tmp_path / "again.gguf").tensors[0].data.tobytes()
    )


def test_packed_tensors_in_another_dtype(path: Path, tmp_path: Path) -> None:
    first = written(path, random_checkpoint(CONFIGS["gpt2"], seed=5), dtype="q8_0")
    second = written(tmp_path / "again.gguf", first, dtype="float32")
    for name in first.packed:
        assert np.array_equal(second.tensors[name], first.floats(name)), name


def test_rows_with_scales_of_their_own_need_a_dtype(path: Path) -> None:
    made = random_checkpoint(CONFIGS["llama"], seed=5)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors = dict(made.tensors)
    rows = np.concatenate([np.full((96, 64), 3, np.uint8), np.full((96, 1), 0.5, "<f4").view(np.uint8)], axis=1)
    del tensors[name]
    packed = dataclasses.replace(made, tensors=tensors, packed={name: PackedTensor("Q8_ROW", rows)})
    with pytest.raises(InputError, match=f"tensor '{name}' is Q8_ROW, which GGUF does not have; choose a dtype"):
        write_gguf(packed, path, dtype=None)
    assert (written(path, packed).tensors[name] == 1.5).all()


def test_queries_of_another_type_than_keys(path: Path) -> None:
    made = random_checkpoint(CONFIGS["gpt2"], seed=5)
    name = "transformer.h.0.attn.q_proj.weight"
    tensors = dict(made.tensors)
    halves = tensors.pop(name).astype("<f2")
    mixed = dataclasses.replace(made, tensors=tensors, packed={name: PackedTensor("F16", halves.view(np.uint8))})
    found = written(path, mixed, dtype=None)
    assert np.array_equal(found.tensors[name], halves.astype(np.float32))
    assert np.array_equal(found.tensors[name.replace("q_", "k_")], made.tensors[name.replace("q_", "k_")])


def test_gab_becomes_gpt2(path: Path) -> None:
    made = random_checkpoint(GAB, seed=5)
    found, expected = written(path, made), as_relative(made)
    assert found.config == expected.config == dataclasses.replace(GAB, model_type="gpt2")
    assert set(found.tensors) == set(expected.tensors) == set(weight_shapes(expected.config))
    for name, values in expected.tensors.items():
        assert np.array_equal(found.tensors[name], values), name
    assert not found.tensors["transformer.h.1.attn.k_proj.bias"].any()


def test_mistral_is_llama(path: Path) -> None:
    made = random_checkpoint(config("mistral", sliding_window=9), seed=5)
    found = written(path, made)
    assert found.config == dataclasses.replace(made.config, model_type="llama")
    assert all(np.array_equal(found.tensors[name], values) for name, values in made.tensors.items())


def test_llama3_s_scaling_becomes_factors(path: Path) -> None:
    made = random_checkpoint(config("llama", rope_scaling=LLAMA3, max_position_embeddings=128), seed=5)
    found = written(path, made)
    tables = [rope_table(128, 16, 10000.0, dict(each.config.rope_scaling))[0] for each in (made, found)]
    assert np.abs(tables[0] - rope_table(128, 16)[0]).max() > 0.1
    assert np.abs(tables[0] - tables[1]).max() < 2e-5
    assert written(path, found).config == found.config


# What is refused


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (config("gift_of_gab", hidden_act="gelu"), "its family is 'gift_of_gab'; expected one of gpt2, llama"),
        (
            dataclasses.replace(GAB, hidden_act="gelu"),
            "hidden_act is 'gelu', and the architecture gpt2 computes 'gelu_new'",
        ),
        (config("llama", hidden_act="gelu"), "hidden_act is 'gelu', and the architecture llama computes 'silu'"),
        (config("qwen3", attention_bias=True), "the architecture qwen3 has no biases in its attention"),
        (config("qwen2", sliding_window=4, max_window_layers=1), "only some of its layers have a sliding window"),
        (config("qwen2", rope_scaling=LLAMA3), "qwen2 has no such rope scaling of type 'llama3'"),
        (
            config("llama", rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
            "no such rope scaling of type 'dynamic'",
        ),
        (
            config("lfm2", layer_types=("conv", "full_attention"), conv_L_cache=3, conv_bias=True),
            "the architecture lfm2 has no biases in its convolutions",
        ),
    ],
)
def test_what_gguf_cannot_hold_is_refused(path: Path, made: ModelConfig, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_gguf(random_checkpoint(made), path)
    assert not list(path.parent.iterdir())


def test_a_failure_leaves_the_old_file(path: Path) -> None:
    path.write_bytes(b"old")
    path.chmod(0o640)
    made = random_checkpoint(CONFIGS["llama"], seed=5)
    with pytest.raises(InputError, match=r"dtype is 'q3'; expected one of float32, float16"):
        write_gguf(made, path, dtype="q3")
    huge = {**made.tensors, "lm_head.weight": np.full((96, 64), 1e6, np.float32)}
    with pytest.raises(InputError, match=r"tensor 'lm_head.weight': a weight is not finite, or too large for float16"):
        write_gguf(dataclasses.replace(made, tensors=huge), path, dtype="float16")
    with pytest.raises(InputError, match=r"tensor 'lm_head.weight': a weight of 1e\+06 is too large for Q4_1"):
        write_gguf(dataclasses.replace(made, tensors=huge), path, dtype="q4_1")
    with pytest.raises(FormatError, match=r"tensor 'lm_head.weight' is missing"):
        write_gguf(dataclasses.replace(made, tensors=dict(list(made.tensors.items())[:-1])), path)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in path.parent.iterdir()] == ["model.gguf"]
    write_gguf(made, path)
    assert read_gguf(path).config == made.config
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    with pytest.raises(FormatError, match="cannot write it: No such file or directory"):
        write_gguf(made, path.parent / "missing" / "model.gguf")


# llama.cpp


@pytest.fixture(scope="module")
def llama() -> Any:
    library = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (make test-all)")
    logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL)  # the library's own
    library.llama_backend_init()
    return library


def attention(
    queries: Array, keys: Array, values: Array, window: int = 0, cap: float = 0.0, sinks: Array | None = None
) -> Array:
    """Of [T, heads, d]; several heads of queries share each of keys. Queries see a window, and scores are bounded.

    Sinks [heads] take a part of the weights.
    """
    share = queries.shape[1] // keys.shape[1]
    scores = np.einsum("thd,shd->hts", queries, keys.repeat(share, axis=1)) / np.sqrt(queries.shape[-1])
    scores = cap * np.tanh(scores / cap) if cap else scores
    seen = np.tri(len(queries), dtype=bool) & ~np.tri(len(queries), k=-window if window else -len(queries), dtype=bool)
    scores = np.where(seen, scores, -np.inf)
    largest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - largest)
    beside = 0.0 if sinks is None else np.exp(sinks[:, None, None] - largest)
    weights /= weights.sum(axis=-1, keepdims=True) + beside
    return np.einsum("hts,shd->thd", weights, values.repeat(share, axis=1)).reshape(len(queries), -1)


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


class Model:
    """The maths of both kinds of models in float64, written down once more."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.config = checkpoint.config
        names = [*checkpoint.tensors, *checkpoint.packed]
        self.weights = {name: checkpoint.floats(name).astype(np.float64) for name in names}

    def linear(self, name: str, x: Array) -> Array:
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def heads(self, x: Array) -> Array:
        return x.reshape(len(x), -1, self.config.head_dim)

    def rms(self, name: str, x: Array, offset: float | None = None) -> Array:
        gain = self.weights[f"{name}.weight"] + (self.config.family.norm_offset if offset is None else offset)
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + self.config.layer_norm_eps) * gain

    def layer_norm(self, name: str, x: Array) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.config.layer_norm_eps)
        return centred / scale * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def turned(self, x: Array, rope: Rope | None) -> Array:
        if rope is None:
            return x
        scaling = {key: list(value) if isinstance(value, tuple) else value for key, value in rope.scaling}
        table = rope_table(self.config.max_position_embeddings, rope.dim, rope.theta, scaling)[0][: len(x)]
        cosines, sines = np.moveaxis(table.reshape(len(x), 1, -1, 2), -1, 0)
        one, two, rest = np.split(x, [rope.dim // 2, rope.dim], axis=-1)
        return np.concatenate([one * cosines - two * sines, two * cosines + one * sines, rest], axis=-1)

    def logits(self, ids: list[int]) -> Array:
        """Of what follows the last token."""
        config = self.config
        x = self.like_gpt2(ids) if config.model_type in ("gab", "gpt2") else self.like_llama(ids)
        shared = "transformer.wte" if config.model_type == "gpt2" else "model.embed_tokens"
        found = self.linear(shared if config.tie_word_embeddings else "lm_head", x)[-1] / config.logits_scaling
        cap = config.final_logit_softcapping
        return cap * np.tanh(found / cap) if cap else found

    def like_gpt2(self, ids: list[int]) -> Array:
        x = self.weights["transformer.wte.weight"][ids] + self.weights["transformer.wpe.weight"][: len(ids)]
        for index in range(self.config.num_hidden_layers):
            block = f"transformer.h.{index}"
            normed = self.layer_norm(f"{block}.ln_1", x)
            parts = [self.heads(self.linear(f"{block}.attn.{letter}_proj", normed)) for letter in "qkv"]
            x = x + self.linear(f"{block}.attn.out_proj", attention(*parts))
            inner = gelu(self.linear(f"{block}.mlp.fc_in", self.layer_norm(f"{block}.ln_2", x)))
            x = x + self.linear(f"{block}.mlp.fc_out", inner)
        return self.layer_norm("transformer.ln_f", x)

    def like_llama(self, ids: list[int]) -> Array:
        config, names, gelu_gate = self.config, self.config.family.names, self.config.hidden_act == "gelu_new"
        x = self.weights["model.embed_tokens.weight"][ids] * config.embedding_scale
        for index in range(config.num_hidden_layers):
            of = config.layer(index)

            def ended(role: str, y: Array, of: LayerConfig = of, index: int = index) -> Array:
                return (self.rms(names.of(role, index), y) if of.norm_after else y) * of.branch_scale

            normed = self.rms(names.of("attention_norm", index), x) if of.norm_before else x
            mix = self.convolved if of.convolves else self.attended if of.attends else self.by_delta_rule
            mixed = mix(index, normed)
            x = x + ended("attention_post_norm", mixed)
            normed = self.rms(names.of("mlp_norm", index), x) if of.norm_before else x
            x = x + ended("mlp_post_norm", self.mixed_mlp(index, normed, gelu_gate))
        return self.rms(names.final_norm, x)

    def mixed_mlp(self, index: int, normed: Array, gelu_gate: bool) -> Array:
        """What the MLP of a layer adds, or those of a token's experts, by their weights."""
        names, experts = self.config.family.names, self.config.layer(index).experts
        if experts is None:
            return self.mlp([names.of(each, index) for each in ("gate", "up", "down")], normed, gelu_gate)
        at = f"model.layers.{index}.mlp"
        mixed, logits = np.zeros_like(normed), self.linear(names.of("router", index), normed)
        for row, each in enumerate(logits):
            weights = np.exp(each - each.max())
            chosen = np.argsort(-each)[: experts.used]
            weights /= (weights[chosen] if experts.normed else weights).sum()
            for expert in chosen:
                parts = [f"{at}.experts.{expert}.{part}_proj" for part in ("gate", "up", "down")]
                mixed[row] += weights[expert] * self.mlp(parts, normed[row : row + 1], gelu_gate, experts)[0]
        if experts.shared:
            share = 1 / (1 + np.exp(-self.linear(names.of("shared_router", index), normed)))
            parts = [names.of(f"shared_{part}", index) for part in ("gate", "up", "down")]
            mixed += share * self.mlp(parts, normed, gelu_gate)
        return mixed

    def attended(self, index: int, x: Array) -> Array:
        """What the attention of a layer adds."""
        config, names, of = self.config, self.config.family.names, self.config.layer(index)
        q, k, v = (self.linear(names.of("projection", index, letter), x) for letter in "qkv")
        norms = [names.of("head_norm", index, letter) for letter in "qk"]
        if of.head_norms == "width":
            q, k = self.rms(norms[0], q), self.rms(norms[1], k)
        gates = 1.0
        if of.gated:
            q, gates = np.split(q.reshape(len(x), config.num_attention_heads, -1), 2, axis=-1)
            q, gates = q.reshape(len(x), -1), 1 / (1 + np.exp(-gates.reshape(len(x), -1)))
        q, k, v = map(self.heads, (q, k, v))
        if of.head_norms == "head":
            q, k = self.rms(norms[0], q), self.rms(norms[1], k)
        q, k = self.turned(q, of.rope), self.turned(k, of.rope)
        sinks = self.weights[f"{names.of('sinks', index)}.weight"] if of.sinks else None
        scaled = q * of.score_scale * config.head_dim**0.5
        mixed = attention(scaled, k, v, window=of.window, cap=of.score_cap, sinks=sinks)
        return self.linear(names.of("output", index), mixed * gates)

    def by_delta_rule(self, index: int, x: Array) -> Array:
        """What the delta rule of a layer adds, by its states."""
        names, rule = self.config.family.names, self.config.layer(index).delta
        assert rule is not None
        qkv, z, a, b = (self.linear(names.of("delta_in", index, part), x) for part in ("qkv", "z", "a", "b"))
        taps = self.weights[f"{names.of('delta_conv', index)}.weight"][:, 0]
        padded = np.concatenate([np.zeros((taps.shape[1] - 1, qkv.shape[1])), qkv])
        mixed = sum(padded[k : k + len(qkv)] * taps[:, k] for k in range(taps.shape[1]))
        mixed = mixed / (1 + np.exp(-mixed))
        parts = zip(np.split(mixed, [rule.keys, 2 * rule.keys], axis=1), (rule.key, rule.key, rule.value), strict=True)
        q, k, v = (part.reshape(len(x), -1, each) for part, each in parts)
        heads = np.arange(rule.heads)
        own = heads % rule.key_heads if rule.in_turn else heads // (rule.heads // rule.key_heads)
        q, k = q[:, own], k[:, own]
        q, k = (part / np.sqrt((part**2).sum(axis=-1, keepdims=True) + 1e-6) for part in (q, k))
        rate, shift = (self.weights[names.of(role, index)] for role in ("decay_rate", "decay_shift"))
        decay, share = np.exp(-np.exp(rate) * np.logaddexp(0, a + shift)), 1 / (1 + np.exp(-b))
        state, found = np.zeros((rule.heads, rule.key, rule.value)), np.zeros(v.shape)
        for token in range(len(x)):
            state = state * decay[token][:, None, None]
            change = share[token][:, None] * (v[token] - np.einsum("hkv,hk->hv", state, k[token]))
            state = state + k[token][:, :, None] * change[:, None]
            found[token] = np.einsum("hkv,hk->hv", state, q[token]) / np.sqrt(rule.key)
        normed = self.rms(names.of("delta_norm", index), found, offset=0.0).reshape(len(x), -1)
        return self.linear(names.of("delta_out", index), normed * z / (1 + np.exp(-z)))

    def convolved(self, index: int, x: Array) -> Array:
        """What the convolution of a layer adds."""
        names, taps = self.config.family.names, self.weights[f"{self.config.family.names.of('conv', index)}.weight"]
        b, c, x = np.split(self.linear(names.of("conv_in", index), x), 3, axis=1)
        gated = b * x
        padded = np.concatenate([np.zeros((taps.shape[2] - 1, gated.shape[1])), gated])
        summed = sum(padded[k : k + len(gated)] * taps[:, 0, k] for k in range(taps.shape[2]))
        return self.linear(names.of("conv_out", index), c * summed)

    def mlp(self, names: list[str], x: Array, gelu_gate: bool, experts: Experts | None = None) -> Array:
        """A gated MLP of the three matrices of these names."""
        first, up, down = names
        gate = self.linear(first, x)
        if experts is not None and experts.limit:
            gate, other = np.minimum(gate, experts.limit), np.clip(self.linear(up, x), -experts.limit, experts.limit)
            return self.linear(down, (other + 1) * gate / (1 + np.exp(-experts.slope * gate)))
        gate = gelu(gate) if gelu_gate else gate / (1 + np.exp(-gate))
        return self.linear(down, gate * self.linear(up, x))


@pytest.mark.parametrize("name", COMPARED)
def test_the_logits_are_those_of_llama_cpp(path: Path, name: str) -> None:
    """Of the model as it was made and as it is read back, against what llama.cpp computed with the file."""
    made = random_checkpoint(COMPARED[name], seed=5, scale=0.1)
    expected, theirs = Model(made).logits(IDS), np.array(recorded("llama_logits")[name])
    assert np.abs(theirs).max() > 1
    # Its GELU is looked up in a table of half floats.
    tolerance = 1e-3 * np.abs(expected).max() if made.config.hidden_act == "gelu_new" else 2e-5
    assert np.abs(theirs - expected[::4]).max() < tolerance
    assert np.abs(Model(written(path, made)).logits(IDS) - expected).max() < 2e-5
    assert np.abs(theirs - Model(made).logits([*IDS[1:], IDS[0]])[::4]).max() > 10 * tolerance


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARED)
def test_llama_cpp_computes_the_same(llama: Any, path: Path, name: str) -> None:
    made = random_checkpoint(COMPARED[name], seed=5, scale=0.1)
    found = written(path, made)
    expected = Model(made).logits(IDS)
    assert np.abs(expected).max() > 1
    tolerance = 1e-3 * np.abs(expected).max() if made.config.hidden_act == "gelu_new" else 2e-5
    assert np.abs(llama_logits(llama, path, IDS) - expected).max() < tolerance
    assert np.abs(Model(found).logits(IDS) - expected).max() < 2e-5


def rewritten(source: Path, target: Path, keys: dict[str, int], tensors: dict[str, Any]) -> None:
    """Write a file again with these keys, and these tensors in place of others or added; None leaves one out."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture" and name not in keys:
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if field.types[1:] else None)
    for name, value in keys.items():
        writer.add_uint32(name, value)
    found = {each.name: np.array(each.data) for each in reader.tensors} | tensors
    for name, values in found.items():
        if values is not None:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def other_form(source: Path, target: Path, form: str) -> None:
    """The same model as other files have it: experts' gates joined with up, a delta rule's, or a block that guesses."""
    tensors = {each.name: np.array(each.data) for each in gguf.GGUFReader(source).tensors}
    if form == "gates joined":
        gates = [name for name in tensors if "ffn_gate_exps" in name]
        parts = {name: [tensors[name], tensors[name.replace("gate", "up")]] for name in gates}
        joined = {name.replace("gate", "gate_up"): np.concatenate(pair, axis=1) for name, pair in parts.items()}
        rewritten(
            source, target, {}, {**{f: None for name in gates for f in (name, name.replace("gate", "up"))}, **joined}
        )
    elif form == "delta joined":
        changed: dict[str, Any] = {}
        for name in [name for name in tensors if name.endswith("ssm_ba.weight")]:
            layer = name.removesuffix("ssm_ba.weight")
            (qkv, z), keys = (tensors[f"{layer}{end}.weight"] for end in ("attn_qkv", "attn_gate")), 2 * 16
            parts = [part.reshape(2, -1, 64) for part in (qkv[:keys], qkv[keys : 2 * keys], qkv[2 * keys :], z)]
            changed |= {f"{layer}attn_qkv.weight": None, f"{layer}attn_gate.weight": None}
            changed[f"{layer}ssm_in.weight"] = np.concatenate(parts, axis=1).reshape(-1, 64)
        rewritten(source, target, {}, changed)
    else:
        name = "qwen35moe" if "blk.0.ssm_alpha.weight" in tensors else "qwen35"
        more = {key.replace("blk.1.", "blk.5."): values for key, values in tensors.items() if key.startswith("blk.1.")}
        width = tensors["blk.0.attn_norm.weight"].shape[0]
        more["blk.5.nextn.eh_proj.weight"] = np.ones((width, 2 * width), np.float32)
        more |= {
            f"blk.5.nextn.{end}.weight": np.ones(width, np.float32) for end in ("enorm", "hnorm", "shared_head_norm")
        }
        rewritten(source, target, {f"{name}.block_count": 6, f"{name}.nextn_predict_layers": 1}, more)


OTHER_FORMS = [
    ("qwen35moe", "gates joined"),
    ("qwen3next", "delta joined"),
    ("qwen35moe", "guessing"),
]


@pytest.mark.parametrize(("name", "form"), OTHER_FORMS)
def test_other_forms_of_files_hold_the_same_model(path: Path, tmp_path: Path, name: str, form: str) -> None:
    made = written(path, random_checkpoint(CONFIGS[name], seed=5))
    other_form(path, tmp_path / "other.gguf", form)
    found = read_gguf(tmp_path / "other.gguf")
    assert found.config == made.config
    for tensor in weight_shapes(made.config):
        assert np.array_equal(found.floats(tensor), made.floats(tensor)), tensor


def test_rows_by_heads_of_keys_stay_in_their_blocks(path: Path, tmp_path: Path) -> None:
    made = random_checkpoint(CONFIGS["qwen3next"], seed=5)
    first = written(path, made, dtype="q8_0")
    second = written(tmp_path / "again.gguf", first, dtype=None)
    at = "model.layers.0"
    for name in (f"{at}.linear_attn.in_proj_a.weight", f"{at}.linear_attn.in_proj_b.weight"):
        assert np.abs(first.floats(name) - made.tensors[name]).max() <= 2**-7 * np.abs(made.tensors[name]).max()
        assert np.array_equal(second.packed[name].blocks, first.packed[name].blocks)
    shared = f"{at}.mlp.shared_expert_gate.weight"
    assert first.formats()[shared] == "F32"
    assert read_gguf_file(path).tensors["blk.0.ffn_gate_inp_shexp.weight"].shape == (64,)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "form"), OTHER_FORMS)
def test_llama_cpp_reads_other_forms_alike(llama: Any, path: Path, tmp_path: Path, name: str, form: str) -> None:
    made = written(path, random_checkpoint(COMPARED[name], seed=5, scale=0.1))
    other_form(path, tmp_path / "other.gguf", form)
    assert np.abs(llama_logits(llama, tmp_path / "other.gguf", IDS) - Model(made).logits(IDS)).max() < 2e-5


@pytest.mark.slow
def test_llama_cpp_bounds_gates_alike(llama: Any, path: Path) -> None:
    """Gates and what they multiply are so large here that bounds show, and sinks take most of a softmax."""
    made = random_checkpoint(COMPARED["gpt-oss"], seed=5, scale=0.1)
    larger = {"gate_proj.weight": 60, "up_proj.weight": 60, "sinks.weight": 30}
    tensors = {
        key: values * np.float32(next((by for end, by in larger.items() if key.endswith(end)), 1))
        for key, values in made.tensors.items()
    }
    made = dataclasses.replace(made, tensors=tensors)
    found = written(path, made)
    expected = Model(made).logits(IDS)
    free = dataclasses.replace(made, config=dataclasses.replace(made.config, swiglu_limit=1e6))
    assert np.abs(Model(free).logits(IDS) - expected).max() > 0.1
    tolerance = 1e-5 * np.ptp(expected)
    assert np.abs(llama_logits(llama, path, IDS) - expected).max() < tolerance
    assert np.abs(Model(found).logits(IDS) - expected).max() < tolerance


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "gab", "gemma"])
def test_llama_cpp_is_exact_but_for_its_gelu(llama: Any, path: Path, name: str) -> None:
    made = random_checkpoint({"gab": GAB, **CONFIGS}[name], seed=6, scale=0.1)
    last = ("fc_out.weight", "down_proj.weight")
    tensors = {key: values * np.float32(not key.endswith(last)) for key, values in made.tensors.items()}
    without_mlp = dataclasses.replace(made, tensors=tensors)
    write_gguf(without_mlp, path)
    expected = Model(without_mlp).logits(IDS)
    assert np.abs(llama_logits(llama, path, IDS) - expected).max() < 2e-5


@pytest.mark.slow
def test_llama_cpp_runs_the_bundled_model(llama: Any, path: Path) -> None:
    bundled = load_checkpoint("shakespeare")
    write_gguf(bundled, path)
    expected = Model(bundled).logits(IDS)
    found = llama_logits(llama, path, IDS)
    assert np.abs(found - expected).max() < 4e-3
    assert found.argmax() == expected.argmax()


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name not in ("float32", *SEARCHED)])
@pytest.mark.parametrize("name", ["gab", "llama"])
def test_the_logits_of_every_dtype_are_those_of_llama_cpp(path: Path, name: str, dtype: str) -> None:
    made = random_checkpoint(COMPARED[name], seed=5, scale=0.1)
    expected = Model(written(path, made, dtype=dtype)).logits(IDS)[::4]
    theirs = np.array(recorded("llama_logits")[f"{name}, {dtype}"])
    # llama.cpp rounds activations too, to the 16 or 8 bits of the weights.
    assert np.abs(theirs - expected).max() < (0.03 if "float" in dtype else 0.12)
    assert np.abs(theirs - Model(made).logits(IDS)[::4]).max() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "float32"])
@pytest.mark.parametrize("name", ["gab", "llama"])
def test_llama_cpp_reads_every_dtype(llama: Any, path: Path, name: str, dtype: str) -> None:
    made = random_checkpoint({"gab": GAB, **CONFIGS}[name], seed=5, scale=0.1)
    if dtype in SEARCHED and name == "llama":
        wide = config("llama", hidden_size=256, intermediate_size=256, num_hidden_layers=1)
        made = random_checkpoint(wide, seed=5, scale=0.03)
    found = written(path, made, dtype=dtype)
    expected, theirs = Model(found).logits(IDS), llama_logits(llama, path, IDS)
    # llama.cpp rounds activations too, to the 16 or 8 bits of the weights.
    assert np.abs(theirs - expected).max() < (0.03 if "float" in dtype else 0.12)
    assert np.abs(theirs - Model(made).logits(IDS)).max() > 1e-4


# Vocabularies


TEXTS = [
    "First Citizen: what, ho!\n\nSpeak  now.  Thou",
    "It's the king's   own.\n\n\nKING I'LL go \t\r\n",
    "é → 中文 <|user|>hi<|end|><|assistant|>",
]


def vocabulary_of(llama: Any, path: Path) -> tuple[Any, Any]:
    options = llama.llama_model_default_params()
    options.vocab_only = True
    model = llama.llama_model_load_from_file(str(path).encode(), options)
    assert model, "llama.cpp refused the file"
    return model, llama.llama_model_get_vocab(model)


def ids_of(llama: Any, vocabulary: Any, text: str, *, special: bool) -> list[int]:
    data, room = text.encode(), (llama.llama_token * 1000)()
    count = llama.llama_tokenize(vocabulary, data, len(data), room, len(room), True, special)
    return list(room[:count])


def written_bpe1(path: Path) -> BpeModel:
    control = ["<|user|>", "<|end|>", "<|assistant|>"]
    merges = learn_bpe(TEXTS[:2] * 3, 330, control)
    made = random_checkpoint(dataclasses.replace(GAB, vocab_size=len(merges.vocabulary)))
    write_gguf(made, path, tokenizer=merges)
    assert read_gguf(path).config.vocab_size == len(merges.vocabulary)
    assert set(control) == set(Tokenizer(merges).control_tokens)
    return merges


def test_a_bpe1_vocabulary(path: Path) -> None:
    """Read as llama.cpp reads it, which test_gguf_tokenizer.py compares with recorded ids."""
    merges = written_bpe1(path)
    ours, theirs = Tokenizer(merges), Tokenizer.from_file(path)
    for text, special in itertools.product(TEXTS, (True, False)):
        assert theirs.encode(text, allow_special=special) == ours.encode(text, allow_special=special)
    assert [theirs.token_bytes(token) for token in range(len(merges.vocabulary))] == list(merges.vocabulary)


@pytest.mark.slow
def test_llama_cpp_reads_a_bpe1_vocabulary(llama: Any, path: Path) -> None:
    merges = written_bpe1(path)
    ours = Tokenizer(merges)
    model, vocabulary = vocabulary_of(llama, path)
    assert llama.llama_vocab_eos(vocabulary) == ours.special_id("<|end|>")
    for text in TEXTS:
        for special in (True, False):
            assert ids_of(llama, vocabulary, text, special=special) == ours.encode(text, allow_special=special)
    room = ctypes.create_string_buffer(64)
    for token in range(len(merges.vocabulary)):
        count = llama.llama_token_to_piece(vocabulary, token, room, len(room), 0, True)
        assert room.raw[:count] == merges.vocabulary[token]
    llama.llama_model_free(model)


def json_tokenizer(cut: str) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(ignore_merges=cut == "llama-bpe"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut == "gpt-2")
    if cut == "gpt-2":
        made.pre_tokenizer = byte_level
    else:
        split = pre_tokenizers.Split(tokenizers.Regex(EXPRESSIONS[cut][0]), "isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    if cut == "qwen2":
        made.normalizer = normalizers.NFC()
    special = ["<|endoftext|>", "<|user|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TEXTS * 3, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, special_tokens=special)
    )
    if cut == "llama-bpe":
        made.post_processor = processors.TemplateProcessing(single="<|user|> $A", special_tokens=[("<|user|>", 1)])
    return made


@pytest.mark.parametrize("cut", ["gpt-2", "llama-bpe", "qwen2"])
def test_a_tokenizer_json(path: Path, cut: str) -> None:
    theirs = written_json(path, cut)
    found = Tokenizer.from_file(path)
    for text in [*TEXTS, "in 2024-12-25 x1y22z333"]:
        assert found.encode(text) == theirs.encode(text).ids


def written_json(path: Path, cut: str) -> tokenizers.Tokenizer:
    theirs = json_tokenizer(cut)
    rows = theirs.get_vocab_size() + 3
    made = random_checkpoint(dataclasses.replace(CONFIGS["gpt2"], vocab_size=rows))
    write_gguf(made, path, tokenizer=json.loads(theirs.to_str()))
    metadata = read_gguf_file(path).metadata
    assert metadata["tokenizer.ggml.pre"] == cut
    assert metadata["tokenizer.ggml.tokens"][-1] == f"[PAD{rows - 1}]"
    assert metadata["tokenizer.ggml.token_type"] == [3, 3, *[1] * (rows - 5), *[5] * 3]
    return theirs


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["gpt-2", "llama-bpe", "qwen2"])
def test_llama_cpp_reads_a_tokenizer_json(llama: Any, path: Path, cut: str) -> None:
    theirs = written_json(path, cut)
    model, vocabulary = vocabulary_of(llama, path)
    assert llama.llama_vocab_eos(vocabulary) == 0
    for text in [*TEXTS, "in 2024-12-25 x1y22z333"]:
        assert ids_of(llama, vocabulary, text, special=True) == theirs.encode(text).ids
    llama.llama_model_free(model)


def test_vocabularies_that_do_not_fit(path: Path) -> None:
    made = random_checkpoint(GAB)
    few = BpeModel(((65, 66, 256),), (*(bytes([value]) for value in range(256)), b"AB"))
    with pytest.raises(InputError, match="the tokenizer has 257 tokens, the model 96"):
        write_gguf(made, path, tokenizer=few)
    wide = random_checkpoint(dataclasses.replace(GAB, vocab_size=400))
    values = json.loads(json_tokenizer("gpt-2").to_str())
    for damage in (
        {"pre_tokenizer": None},
        {"normalizer": {"type": "NFKC"}},
        {"model": {**values["model"], "type": "X"}},
    ):
        with pytest.raises(InputError, match=r"llama.cpp has no such tokenizer; expected a byte-level BPE"):
            write_gguf(wide, path, tokenizer={**values, **damage})
    with pytest.raises(InputError, match=r"the tokenizer is not what a tokenizer.json holds"):
        write_gguf(wide, path, tokenizer={"version": "1.0"})
    assert not path.exists()


# Files that llama.cpp made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "formats"),
    [
        ("Q2_K", {"F32", "Q2_K", "Q3_K", "Q6_K"}),
        ("Q3_K_M", {"F32", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}),
        ("Q4_0", {"F32", "Q4_0", "Q6_K"}),
    ],
)
def test_a_file_that_llama_cpp_quantised(llama: Any, path: Path, tmp_path: Path, kind: str, formats: set[str]) -> None:
    wide = config("llama", hidden_size=256, intermediate_size=512, vocab_size=64, num_hidden_layers=4)
    made = random_checkpoint(wide, seed=7, scale=0.05)
    write_gguf(made, path)
    theirs = tmp_path / "theirs.gguf"
    options = llama.llama_model_quantize_default_params()
    options.ftype, options.nthread = getattr(llama, f"LLAMA_FTYPE_MOSTLY_{kind}"), 1
    assert llama.llama_model_quantize(str(path).encode(), str(theirs).encode(), options) == 0
    found = read_gguf(theirs)
    assert found.config == made.config
    assert set(found.formats().values()) == formats
    for name, values in made.tensors.items():
        assert np.abs(found.floats(name) - values).mean() <= 0.35 * np.abs(values).mean(), name
    ids = [token % 64 for token in IDS]
    expected = Model(found).logits(ids)
    # llama.cpp rounds activations to 8 bits beside such weights.
    assert np.abs(llama_logits(llama, theirs, ids) - expected).max() < 0.04 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("family", "normed", "always"), [("qwen3_moe", False, "add up to 1"), ("olmoe", True, "are those of a softmax")]
)
def test_weights_of_experts_that_an_architecture_does_not_compute_are_refused(
    path: Path, family: str, normed: bool, always: str
) -> None:
    made = random_checkpoint(config(family, num_experts=3, norm_topk_prob=normed), seed=5)
    with pytest.raises(InputError, match=f"the weights of the experts .* always {always}"):
        write_gguf(made, path)
