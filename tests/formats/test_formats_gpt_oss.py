"""gpt-oss: joined matrices of experts in floats and in MXFP4, settings that its files leave out, and GGUF files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_case import each_case
from gguf import GGUFReader
from gguf_forms import logits_of, rewritten
from goldens.gguf_models import CONFIGS, IDS
from goldens.llama import llama_logits
from goldens.models import MODELS, model_tensors, save_tensors, write_model
from safetensors.numpy import save_file
from settings_files import config_with

import glinfer
from glinfer.errors import FormatError, InputError
from glinfer.formats import Checkpoint, load_checkpoint, random_checkpoint, write_gguf
from glinfer.formats.packed import GatheredTensor, PackedTensor
from glinfer.quant.ggml import pack

Array = np.ndarray[Any, Any]
EXPERTS, WIDTH, INNER = 4, 64, 96
SETTINGS: dict[str, Any] = json.loads("""{
    "model_type": "gpt_oss", "attention_bias": true, "experts_per_token": 2, "head_dim": 16, "hidden_act": "silu",
    "hidden_size": 64, "initial_context_length": 4096, "intermediate_size": 96,
    "layer_types": ["sliding_attention", "full_attention"], "max_position_embeddings": 128,
    "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_key_value_heads": 2,
    "num_local_experts": 4,
    "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
    "rope_scaling":
    {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_type": "yarn", "truncate": false,
    "original_max_position_embeddings": 4096},
    "rope_theta": 150000, "sliding_window": 20, "swiglu_limit": 7.0, "vocab_size": 61
}""")
"""As the published files have them, but for the sizes."""
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
MATRICES = {"gate_up_proj": (2 * INNER, WIDTH), "down_proj": (WIDTH, INNER)}
FIRST = "model.layers.0.mlp.experts."
IN_FLOATS = {**SETTINGS, "quantization_config": None}
FEWER = {"down_proj_blocks": np.zeros((3, 64, 3, 16), np.uint8), "down_proj_scales": np.zeros((3, 64, 3), np.uint8)}


def write(folder: Path, settings: dict[str, Any], tensors: dict[str, Array]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def floats(folder: Path) -> dict[str, Array]:
    """The tensors of a model of these sizes in float32."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(IN_FLOATS))
    made = dataclasses.replace(MODELS["gpt_oss"], settings=IN_FLOATS)
    return model_tensors(made, folder / "config.json")


def blocks(seed: int = 0) -> dict[str, Array]:
    """Blocks and scales of all matrices of experts; weights of about one."""
    random, found = np.random.default_rng(seed), {}
    for layer in range(2):
        for name, (rows, inputs) in MATRICES.items():
            at = f"model.layers.{layer}.mlp.experts.{name}"
            found[f"{at}_blocks"] = random.integers(0, 256, (EXPERTS, rows, inputs // 32, 16), dtype=np.uint8)
            found[f"{at}_scales"] = random.integers(121, 126, (EXPERTS, rows, inputs // 32), dtype=np.uint8)
    return found


def unpacked(tensors: dict[str, Array], name: str) -> Array:
    """[experts, out, in]: two weights a byte, the first in its low half, times powers of two."""
    codes, scales = tensors[f"{name}_blocks"], tensors[f"{name}_scales"]
    weights = FP4[np.stack([codes & 15, codes >> 4], axis=-1)].reshape(*scales.shape, 32)
    return (weights * 2.0 ** (scales.astype(int) - 127)[..., None]).reshape(*scales.shape[:2], -1).astype(np.float32)


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Array]:
    """The tensors of a model as it is published."""
    matrices = tuple(f"experts.{name}" for name in MATRICES)
    rest = floats(tmp_path_factory.mktemp("floats"))
    return {**{name: array for name, array in rest.items() if not name.endswith(matrices)}, **blocks()}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, Array]) -> Path:
    return write(tmp_path_factory.mktemp("published"), SETTINGS, tensors)


def in_floats(folder: Path, tensors: dict[str, Array], dtype: str = "float32") -> Path:
    """The same model with its blocks unpacked, [experts, in, out]."""
    made = {name: array for name, array in tensors.items() if not name.endswith(("_blocks", "_scales"))}
    for name in tensors:
        if name.endswith("_blocks"):
            stem = name.removesuffix("_blocks")
            made[stem] = np.ascontiguousarray(unpacked(tensors, stem).transpose(0, 2, 1))
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(IN_FLOATS))
    save_tensors(made, folder / "model.safetensors", dtype)
    return folder


class TestExperts:
    def test_blocks_stay_blocks_and_have_the_weights_of_the_file(
        self, published: Path, tensors: dict[str, Array]
    ) -> None:
        made, both = load_checkpoint(published), unpacked(tensors, f"{FIRST}gate_up_proj")
        down, biases = unpacked(tensors, f"{FIRST}down_proj"), tensors[f"{FIRST}gate_up_proj_bias"]
        for expert in range(EXPERTS):
            at = f"{FIRST}{expert}"
            assert {made.packed[f"{at}.{part}_proj.weight"].format for part in ("gate", "up", "down")} == {"MXFP4"}
            assert np.array_equal(made.floats(f"{at}.gate_proj.weight"), both[expert, ::2])
            assert np.array_equal(made.floats(f"{at}.up_proj.weight"), both[expert, 1::2])
            assert np.array_equal(made.floats(f"{at}.down_proj.weight"), down[expert])
            assert np.array_equal(made.floats(f"{at}.gate_proj.bias"), biases[expert, ::2])
            assert np.array_equal(made.floats(f"{at}.up_proj.bias"), biases[expert, 1::2])
        made.check_finite()

    @each_case("dtype", ["float32", "bfloat16"])
    def test_floats_are_the_same_the_other_way_round(
        self, tmp_path: Path, published: Path, tensors: dict[str, Array], dtype: str
    ) -> None:
        """All these weights are exact in half floats."""
        made, expected = load_checkpoint(in_floats(tmp_path, tensors, dtype)), load_checkpoint(published)
        for name, tensor in expected.packed.items():
            assert np.array_equal(made.floats(name), tensor.floats()), name
            form = {"float32": "F32", "bfloat16": "BF16"}[dtype]
            assert made.formats()[name] == form

    def test_bytes_are_put_in_order_when_they_are_asked_for(self) -> None:
        calls: list[int] = []

        def gather(rows: slice) -> Array:
            calls.append(1)
            return np.array([[1, 2, 3, 4]], np.uint8)[rows]

        tensor = GatheredTensor("F16", (1, 2), gather)
        assert (tensor.shape, tensor.size, tensor.format, len(calls)) == ((1, 2), 2, "F16", 0)
        assert tensor.piece(0, 1).tolist() == [[1, 2, 3, 4]]
        assert tensor.piece(1, 2).shape == (0, 4)
        assert np.array_equal(tensor.floats(), np.array([[1, 2, 3, 4]], np.uint8).view("<f2").astype(np.float32))
        assert tensor.first_not_finite() is None
        with pytest.raises(InputError, match="there is no packed format 'X'"):
            GatheredTensor("X", (1, 2), gather)

    def test_a_scale_that_is_no_number_is_found(self, tmp_path: Path, tensors: dict[str, Array]) -> None:
        scales = tensors[f"{FIRST}down_proj_scales"].copy()
        scales[2, 5, 1] = 255
        made = load_checkpoint(write(tmp_path, SETTINGS, {**tensors, f"{FIRST}down_proj_scales": scales}))
        with pytest.raises(FormatError, match=r"experts\.2\.down_proj\.weight', in MXFP4, is NaN.*first at \[5, 32\]"):
            made.check_finite()

    @each_case(
        ("changes", "words"),
        [
            ({"down_proj_scales": np.zeros((4, 64, 4), np.uint8)}, r"its scales are U8 \[4, 64, 4\]; expected U8"),
            ({"down_proj_scales": np.zeros((4, 64, 3), np.float32)}, r"its scales are F32 \[4, 64, 3\]; expected U8"),
            ({"down_proj_blocks": np.zeros((4, 64, 3, 17), np.uint8)}, r"is U8 \[4, 64, 3, 17\] and its scales"),
            ({"down_proj_scales": None}, "tensor 'model.layers.0.mlp.experts.down_proj' is missing"),
            (FEWER, r"'model.layers.0.mlp.experts.down_proj' has shape \[3, 64, 96\]; expected \[4, 64, 96\]"),
            ({"down_proj_bias": np.zeros((4, 65), np.float32)}, r"has shape \[4, 65\]; expected \[4, 64\]"),
        ],
    )
    def test_blocks_that_do_not_fit(
        self, tmp_path: Path, tensors: dict[str, Array], changes: dict[str, Array | None], words: str
    ) -> None:
        given = {**tensors, **{FIRST + name: array for name, array in changes.items()}}
        folder = write(tmp_path, SETTINGS, {name: array for name, array in given.items() if array is not None})
        with pytest.raises(FormatError, match=words):
            load_checkpoint(folder)

    @pytest.mark.gl
    @pytest.mark.slow
    def test_transformers_unpacks_the_same(self, published: Path, tensors: dict[str, Array]) -> None:
        pytest.importorskip("torch", reason="PyTorch is not installed (make test-all installs it)")
        pytest.importorskip("transformers", reason="transformers is not installed (make test-all installs it)")
        from goldens.record import load_peer, peer_logits

        ids = [int(token) for token in np.random.default_rng(1).integers(0, 61, 30)]
        expected = peer_logits(load_peer(published), ids)
        with glinfer.load(published, weights="file") as model:
            assert np.abs(model.logits(ids) - expected[-1]).max() <= 1e-5 * np.ptp(expected[-1])


class TestSettings:
    def test_what_a_file_leaves_out_is_as_in_transformers(self, tmp_path: Path) -> None:
        found = config_with(tmp_path, "gpt_oss")
        assert (found.num_hidden_layers, found.num_experts, found.num_experts_per_tok) == (36, 128, 4)
        assert (found.hidden_size, found.intermediate_size, found.head_dim) == (2880, 2880, 64)
        assert (found.sliding_window, found.layer_types) == (128, ("sliding_attention", "full_attention"))
        assert (found.swiglu_limit, found.swiglu_alpha, found.norm_topk_prob) == (7.0, 1.702, True)
        scaling = dict(found.rope_scaling)
        assert (found.rope_theta, scaling["rope_type"], scaling["factor"]) == (150000.0, "yarn", 32.0)
        assert scaling["truncate"] is False
        assert found.layer(0).sinks
        assert dict(config_with(tmp_path, SETTINGS, rope_scaling=None).rope_scaling)["factor"] == 32.0
        assert (
            config_with(tmp_path, SETTINGS, rope_scaling=None, rope_parameters={"rope_type": "default"}).rope_scaling
            == ()
        )


class TestGguf:
    def test_blocks_go_into_a_file_and_come_back(self, tmp_path: Path, published: Path) -> None:
        made, path = load_checkpoint(published), tmp_path / "m.gguf"
        write_gguf(made, path, dtype=None)
        found = load_checkpoint(path)
        assert found.formats() == made.formats()
        for name, tensor in made.packed.items():
            assert np.array_equal(found.packed[name].blocks, tensor.blocks), name
        for name, array in made.tensors.items():
            assert np.array_equal(found.tensors[name], array), name
        scaling = {name: value for name, value in made.config.rope_scaling if name != "max_position_embeddings"}
        assert found.config == dataclasses.replace(made.config, rope_scaling=scaling)

    def test_names_and_shapes_are_those_of_llama_cpp(self, tmp_path: Path) -> None:
        path = tmp_path / "m.gguf"
        write_gguf(random_checkpoint(CONFIGS["gpt-oss"], seed=1), path)
        shapes = {tensor.name: tensor.shape.tolist()[::-1] for tensor in GGUFReader(path).tensors}
        first = {name.removeprefix("blk.0."): shape for name, shape in shapes.items() if name.startswith("blk.0.")}
        expected = {"attn_sinks.weight": [4], "ffn_gate_inp.weight": [6, 64], "ffn_gate_inp.bias": [6]}
        expected |= {"ffn_up_exps.weight": [6, 96, 64], "ffn_down_exps.weight": [6, 64, 96]}
        expected |= {"ffn_gate_exps.bias": [6, 96], "ffn_down_exps.bias": [6, 64]}
        assert expected.items() <= first.items()
        assert "post_attention_norm.weight" in first
        assert "ffn_norm.weight" not in first

    def test_biases_of_experts_may_be_in_another_type(self, tmp_path: Path) -> None:
        path, other = tmp_path / "m.gguf", tmp_path / "other.gguf"
        write_gguf(random_checkpoint(CONFIGS["gpt-oss"], seed=1), path)
        biases = {
            each.name: np.array(each.data) for each in GGUFReader(path).tensors if each.name.endswith("exps.bias")
        }
        rewritten(path, other, {}, {name: array.astype("<f2") for name, array in biases.items()})
        made, found = load_checkpoint(path), load_checkpoint(other)
        assert found.config == made.config
        for name, array in made.tensors.items():
            biased = ".experts." in name and name.endswith(".bias")
            assert np.array_equal(found.tensors[name], array.astype(np.float16) if biased else array), name

    @pytest.mark.slow
    def test_llama_cpp_computes_the_same_with_blocks(self, tmp_path: Path) -> None:
        """It rounds the inputs of such matrices to 8 bits; a model of other weights is much further away."""
        made = random_checkpoint(CONFIGS["gpt-oss"], seed=5, scale=0.1)
        experts = {name: array for name, array in made.tensors.items() if "experts" in name and array.ndim == 2}
        packed = {name: PackedTensor("MXFP4", pack(array, "MXFP4")) for name, array in experts.items()}
        rest = {name: array for name, array in made.tensors.items() if name not in packed}
        blocks = Checkpoint(made.config, rest, "made", packed)
        write_gguf(blocks, tmp_path / "m.gguf", dtype=None)
        theirs, ours = llama_logits(tmp_path / "m.gguf", IDS)[-1], logits_of(blocks, IDS)
        assert np.abs(ours - theirs).max() < 0.02 * np.ptp(theirs)
        assert np.abs(logits_of(made, IDS) - theirs).max() > np.abs(ours - theirs).max()


def test_experts_may_lie_in_shards(tmp_path: Path) -> None:
    made = dataclasses.replace(MODELS["gpt_oss"], dtype="bfloat16")
    one, several = write_model(made, tmp_path / "one"), write_model(made, tmp_path / "several", shards=3)
    first, second = load_checkpoint(one), load_checkpoint(several)
    assert all(np.array_equal(first.floats(name), second.floats(name)) for name in first.formats())
