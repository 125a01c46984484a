"""A family that nobody has heard of: one record, and its files load and run by every plan, with no other edit."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import glinfer
from glinfer.config import ModelConfig
from glinfer.errors import FormatError, GlinferError, PlanError
from glinfer.families import FAMILIES
from glinfer.families.gguf import Gguf
from glinfer.families.huggingface import HuggingFace
from glinfer.families.layer import LayerConfig, NormPlaces
from glinfer.families.names import EXPERT_NAMES, GGUF_NAMES, Names
from glinfer.families.record import Family
from glinfer.formats import Checkpoint, load_checkpoint, random_checkpoint, save_checkpoint
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.lower.feed import runs
from glinfer.lower.plans import plan_for, weights_for
from glinfer.program.oracle import final_tensors, relative_error

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
NAMES = Names(
    embeddings="core.tokens",
    layer="core.stack.{}.",
    attention_norm="before_attention",
    projection="attention.{}",
    head_norm="attention.{}_gain",
    output="attention.merge",
    mlp_norm="before_mlp",
    gate="mlp.door",
    up="mlp.wide",
    down="mlp.narrow",
    final_norm="core.last",
    head="vocabulary",
)
UNHEARD = Family(
    "unheard",
    names=NAMES,
    layer=LayerConfig(head_norms="head"),
    usual={"hidden_act": "silu"},
    huggingface=HuggingFace(
        sizes=(61, 64, 96, 2, 4, 2, 16, 80),
        keys={"num_hidden_layers": ("stack",)},
        names=dataclasses.replace(NAMES, gate="mlp.both", up="mlp.both"),
        prefix="core.",
    ),
    gguf=Gguf("unheard-of", pairs_together=True, names=dataclasses.replace(GGUF_NAMES, projection="attn_qkv")),
)
SHAPE = ModelConfig(61, 64, 4, 2, 80, 96, 1e-6, "silu", "qwen3", num_key_value_heads=2, head_dim=16)
"""What the new family computes, under a name that is known: its oracle."""
IDS = [int(token) for token in np.random.default_rng(2).integers(0, 61, 24)]


@pytest.fixture(autouse=True)
def record(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is done to add it."""
    monkeypatch.setitem(FAMILIES, UNHEARD.name, UNHEARD)


@pytest.fixture(scope="module")
def known() -> Checkpoint:
    return random_checkpoint(SHAPE, seed=3, scale=0.15)


def renamed(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of a Qwen 3 as files of the new family have them, written out by hand."""
    found = {
        "core.tokens.weight": tensors["model.embed_tokens.weight"],
        "core.last.weight": tensors["model.norm.weight"],
        "vocabulary.weight": tensors["lm_head.weight"],
    }
    for layer in range(SHAPE.num_hidden_layers):
        theirs, ours = f"model.layers.{layer}.", f"core.stack.{layer}."
        for letter in "qkv":
            found[f"{ours}attention.{letter}.weight"] = tensors[f"{theirs}self_attn.{letter}_proj.weight"]
        for letter in "qk":
            found[f"{ours}attention.{letter}_gain.weight"] = tensors[f"{theirs}self_attn.{letter}_norm.weight"]
        found[f"{ours}attention.merge.weight"] = tensors[f"{theirs}self_attn.o_proj.weight"]
        found[f"{ours}before_attention.weight"] = tensors[f"{theirs}input_layernorm.weight"]
        found[f"{ours}before_mlp.weight"] = tensors[f"{theirs}post_attention_layernorm.weight"]
        gate, up = (tensors[f"{theirs}mlp.{name}_proj.weight"] for name in ("gate", "up"))
        found[f"{ours}mlp.both.weight"] = np.concatenate([gate, up])
        found[f"{ours}mlp.narrow.weight"] = tensors[f"{theirs}mlp.down_proj.weight"]
    return found


def directory(known: Checkpoint, folder: Path, dtype: str = "float32") -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": "unheard", "stack": 2}))
    save_file(
        {name: array.astype(dtype) for name, array in renamed(known.tensors).items()}, folder / "model.safetensors"
    )
    return folder


def as_written(known: Checkpoint, dtype: str, path: Path) -> Checkpoint:
    """A known model with its weights rounded as a GGUF file has them."""
    save_checkpoint(known, path, dtype=dtype)
    found = load_checkpoint(path)
    return Checkpoint(found.config, {name: found.floats(name) for name in known.tensors}, "rounded")


def logits_of(checkpoint: Checkpoint, ids: Sequence[int]) -> list[Array]:
    """The logits after each token, in float64, by the oracle of the fast plan."""
    plan, arrays = plan_for(checkpoint.config, "fast"), dict(weights_for(checkpoint, "fast"))
    caches: dict[str, Array] = {}
    return [final_tensors(plan, arrays, *given, caches)["logits"][0] for given in runs(plan, ids)]


def check_every_plan(path: Path, oracle: Checkpoint) -> None:
    """A token at a time, a prompt in chunks, scores, a batch, and the reference plan."""
    expected = logits_of(oracle, IDS)
    with glinfer.load(path, weights="file") as model:
        assert model.config.model_type == "unheard"
        with model.session() as session:
            for place, token in enumerate(IDS):
                session.step(token)
                assert relative_error(session.logits(), expected[place]) <= 2e-5, place
        with model.session() as session:
            session.prefill(IDS)
            assert relative_error(session.logits(), expected[-1]) <= 2e-5
        (score,) = model.score([IDS])
        likely = [expected[place][token] - np.log(np.exp(expected[place]).sum()) for place, token in enumerate(IDS[1:])]
        assert np.abs(score.logprobs - likely).max() <= 2e-5 * np.ptp(expected[-1])
        prompts = [IDS, IDS[:5], IDS[9:11]]
        for prompt, chosen in zip(prompts, model.generate(prompts, max_tokens=4, temperature=0), strict=True):
            after = logits_of(oracle, [*prompt, *chosen[:-1]])[-len(chosen) :]
            for token, logits in zip(chosen, after, strict=True):
                assert logits[token] >= logits.max() - 1e-4 * np.ptp(logits)
    with glinfer.load(path, plan="reference") as model:
        assert relative_error(model.logits(IDS), expected[-1]) <= 2e-5


@pytest.mark.slow
def test_a_hugging_face_directory(known: Checkpoint, tmp_path: Path) -> None:
    folder = directory(known, tmp_path)
    found = load_checkpoint(folder)
    assert found.config == dataclasses.replace(SHAPE, model_type="unheard")
    assert np.array_equal(
        found.floats("core.stack.1.mlp.wide.weight"), known.floats("model.layers.1.mlp.up_proj.weight")
    )
    check_every_plan(folder, known)


def test_half_floats_of_one_matrix_that_stands_for_two_stay_packed(known: Checkpoint, tmp_path: Path) -> None:
    found = load_checkpoint(directory(known, tmp_path, "float16"))
    assert {"core.stack.0.mlp.door.weight", "core.stack.1.mlp.wide.weight"} <= found.packed.keys()
    gate = known.floats("model.layers.0.mlp.gate_proj.weight").astype(np.float16)
    assert np.array_equal(found.packed["core.stack.0.mlp.door.weight"].floats(), gate.astype(np.float32))
    save_checkpoint(found, tmp_path / "again.safetensors", dtype="float16")
    assert load_checkpoint(tmp_path / "again.safetensors").config == found.config


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["q8_0"])
def test_a_gguf_file(known: Checkpoint, tmp_path: Path, dtype: str) -> None:
    folder = directory(known, tmp_path)
    save_checkpoint(load_checkpoint(folder), tmp_path / "model.gguf", dtype=dtype)
    file = read_gguf_file(tmp_path / "model.gguf")
    assert file.metadata["general.architecture"] == "unheard-of"
    assert file.tensors["blk.1.attn_qkv.weight"].shape == (4 * 16 + 2 * 2 * 16, 64)
    assert {"blk.0.attn_q_norm.weight", "blk.0.ffn_gate.weight", "output.weight"} <= file.tensors.keys()
    check_every_plan(tmp_path / "model.gguf", as_written(known, dtype, tmp_path / "known.gguf"))


def test_the_rows_of_heads_lie_in_pairs_in_its_gguf_file(known: Checkpoint, tmp_path: Path) -> None:
    save_checkpoint(load_checkpoint(directory(known, tmp_path)), tmp_path / "model.gguf")
    stored = read_gguf_file(tmp_path / "model.gguf").tensors["blk.0.attn_qkv.weight"]
    rows = stored.data.view("<f4").reshape(stored.shape)
    query, key, value = (known.tensors[f"model.layers.0.self_attn.{letter}_proj.weight"] for letter in "qkv")
    assert np.array_equal(rows[:4], query[[0, 8, 1, 9]])
    assert np.array_equal(rows[64:68], key[[0, 8, 1, 9]])
    assert np.array_equal(rows[96:], value)


def test_options_and_refusals_know_it(tmp_path: Path) -> None:
    assert ModelConfig.from_options("family=unheard,dim=64,heads=4").hidden_act == "silu"
    assert len(plan_for(ModelConfig.from_options("family=unheard,blocks=3"), "fast").draws) == 7 * 3 + 3
    (tmp_path / "config.json").write_text('{"model_type": "unheard2"}')
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(FormatError, match=r"known: gpt2, .*, unheard \(unheard is another family\)"):
        load_checkpoint(tmp_path)


def test_without_its_record_it_is_refused(known: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = directory(known, tmp_path)
    save_checkpoint(load_checkpoint(folder), tmp_path / "model.gguf")
    monkeypatch.delitem(FAMILIES, "unheard")
    for path, found in ((folder, "model_type 'unheard'"), (tmp_path / "model.gguf", "architecture 'unheard-of'")):
        with pytest.raises(GlinferError, match=f"found {found}, which is not supported; expected one of.*: .*qwen3"):
            glinfer.load(path)


def with_experts(
    monkeypatch: pytest.MonkeyPatch, norms: NormPlaces, names: Names = EXPERT_NAMES, *, parallel: bool = False
) -> ModelConfig:
    """The shape of another new family, with experts and these norms."""
    name = f"experts_{norms}{names.down_norm}{'_parallel' * parallel}"
    layer = LayerConfig(norms=norms, head_norms="width", rounded=bool(names.down_norm), parallel=parallel)
    monkeypatch.setitem(FAMILIES, name, dataclasses.replace(UNHEARD, name=name, names=names, layer=layer))
    return dataclasses.replace(SHAPE, model_type=name, num_experts=5, num_experts_per_tok=2)


@pytest.mark.parametrize("norms", ["before", "after", "both"])
def test_experts_between_norms(monkeypatch: pytest.MonkeyPatch, norms: NormPlaces) -> None:
    """The fast plan computes what the reference plan computes, in float64."""
    made = random_checkpoint(with_experts(monkeypatch, norms), seed=3, scale=0.15)
    plan = plan_for(made.config, "reference")
    ((inputs, values),) = runs(plan, IDS)
    expected = final_tensors(plan, weights_for(made, "reference"), inputs, values)["logits"][0]
    assert relative_error(logits_of(made, IDS)[-1], expected) <= 1e-6


@pytest.mark.parametrize(
    ("norms", "names", "unread"),
    [
        ("before", dataclasses.replace(EXPERT_NAMES, down_norm="mlp.down_norm"), "h.0.mlp.fc_in.norm"),
        ("sum", EXPERT_NAMES, "h.0.attn.norm"),
    ],
    ids=["rounded norms", "norms of the stream"],
)
def test_a_weight_that_the_fast_plan_does_not_read_is_refused(
    monkeypatch: pytest.MonkeyPatch, norms: NormPlaces, names: Names, unread: str
) -> None:
    with pytest.raises(PlanError, match=f"fast plan of experts_.* does not read {re.escape(unread)}; "):
        plan_for(with_experts(monkeypatch, norms, names), "fast")


def test_a_norm_of_the_sum_of_experts_and_another_mlp_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(with_experts(monkeypatch, "after"), shared_intermediate_size=24)
    with pytest.raises(PlanError, match=r"layer 0 has an MLP next to its experts, and a norm after their sum; "):
        plan_for(config, "fast")


def test_experts_in_parallel_with_attention_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlanError, match="layer 0 has experts in parallel with attention; "):
        plan_for(with_experts(monkeypatch, "before", parallel=True), "fast")
