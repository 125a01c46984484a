"""Llama, Mistral, Qwen2, Qwen3 and Gemma as transformers saves them, and every trap in one clear line."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.formats import Checkpoint, load_checkpoint, read_huggingface, weight_shapes
from glinfer.formats import huggingface as reader
from glinfer.formats.huggingface_config import read_config
from glinfer.formats.huggingface_files import find_tensors, map_bytes
from glinfer.ops.rotary import rope_frequencies

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma")
SIZES: dict[str, Any] = {
    "vocab_size": 11,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 64,
}
PACKED = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
Q, EMBEDDING, HEAD = "model.layers.1.self_attn.q_proj.weight", "model.embed_tokens.weight", "lm_head.weight"


def saved(folder: Path, family: str, *, dtype: str = "float32", shards: str = "1GB", **changes: Any) -> dict[str, Any]:
    """Save a model of random numbers with ``save_pretrained``; gives its tensors as float32 by their names."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **(SIZES | changes))
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model = model.to(getattr(torch, dtype))
    model.save_pretrained(folder, max_shard_size=shards)
    return {name: value.float().numpy() for name, value in model.state_dict().items()}


def written(folder: Path, family: str = "llama", *, tied: bool = False, **changes: Any) -> dict[str, np.ndarray]:
    """Write a small model without transformers, float16; gives its arrays."""
    values = SIZES | {"model_type": family, "tie_word_embeddings": tied, "attention_bias": False} | changes
    (folder / "config.json").write_text(json.dumps(values))
    generator = np.random.default_rng(0)
    shapes = weight_shapes(read_config(folder / "config.json"))
    arrays = {name: generator.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    save_file(arrays, folder / "model.safetensors")
    return arrays


def change(folder: Path, **changes: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | changes))


def refusal(folder: Path) -> str:
    """The one line that refuses the model in ``folder``, without the folder."""
    with pytest.raises(FormatError) as caught:
        read_huggingface(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(folder))
    assert len(message) < len(str(folder)) + 500
    return message.removeprefix(str(folder)).lstrip("/")


def assert_holds(checkpoint: Checkpoint, arrays: dict[str, Any]) -> None:
    """Every tensor of a checkpoint is the one of that name, and there are those that its configuration asks for."""
    shapes = weight_shapes(checkpoint.config)
    assert {*checkpoint.tensors} | {*checkpoint.packed} == {*shapes}
    assert not {*checkpoint.tensors} & {*checkpoint.packed}
    for name, shape in shapes.items():
        floats = checkpoint.floats(name)
        assert (floats.shape, floats.dtype) == (shape, np.float32)
        np.testing.assert_array_equal(floats, np.asarray(arrays[name], np.float32), err_msg=name)


def is_mapped(array: np.ndarray) -> bool:
    while array is not None and not isinstance(array, np.memmap):
        array = array.base  # type: ignore[assignment]
    return array is not None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", PACKED)
def test_what_transformers_saves_is_read(tmp_path: Path, family: str, dtype: str) -> None:
    arrays = saved(tmp_path, family, dtype=dtype)
    checkpoint = load_checkpoint(tmp_path)
    assert_holds(checkpoint, arrays)
    assert checkpoint.config.model_type == family
    assert checkpoint.config.tie_word_embeddings == (family == "gemma")
    for name, form in checkpoint.formats().items():
        matrix = len(weight_shapes(checkpoint.config)[name]) == 2
        assert form == (PACKED[dtype] if matrix else "F32")
        stored = checkpoint.packed[name].blocks if form != "F32" else checkpoint.tensors[name]
        if matrix:
            assert is_mapped(stored), "matrices are neither copied nor widened"
            assert not stored.flags.writeable


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_shards_and_other_shapes(tmp_path: Path, family: str, tied: bool) -> None:
    biases = {"attention_bias": True} if family in ("llama", "qwen3", "gemma") else {}
    biases |= {"mlp_bias": True} if family == "llama" else {}
    arrays = saved(tmp_path, family, dtype="bfloat16", shards="1KB", tie_word_embeddings=tied, head_dim=10, **biases)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    checkpoint = read_huggingface(tmp_path)
    assert checkpoint.config.tie_word_embeddings is tied
    assert checkpoint.config.attention_bias == (family != "mistral")
    assert checkpoint.config.mlp_bias == (family == "llama")
    assert_holds(checkpoint, arrays)


def resolved(config: Any) -> dict[str, Any]:
    """A configuration of transformers in our names, as its modelling code takes it."""
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        slides = config.model_type == "mistral" and config.sliding_window is not None
        kinds = ["sliding_attention" if slides else "full_attention"] * config.num_hidden_layers
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": getattr(config, "head_dim", config.hidden_size // config.num_attention_heads),
        "max_position_embeddings": config.max_position_embeddings,
        "layer_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "rope_theta": config.rope_parameters["rope_theta"],
        "windows": [config.sliding_window if kind == "sliding_attention" else 0 for kind in kinds],
    }


def ours(config: ModelConfig) -> dict[str, Any]:
    values = {name: getattr(config, name) for name in resolved(transformers.MistralConfig()) if name != "windows"}
    return values | {"windows": [config.window_of(layer) for layer in range(config.num_hidden_layers)]}


def both(folder: Path, family: str, values: dict[str, Any]) -> tuple[ModelConfig, Any]:
    """A config.json as it is read here and by transformers."""
    (folder / "config.json").write_text(json.dumps({"model_type": family} | values))
    return read_config(folder / "config.json"), transformers.AutoConfig.from_pretrained(folder)


NULLS = {"num_key_value_heads": None, "head_dim": None}
WINDOWS = [
    ("mistral", {"sliding_window": None}),
    ("mistral", {"sliding_window": 7}),
    ("qwen2", {"sliding_window": 7}),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 3, "num_hidden_layers": 5}),
    ("qwen3", {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 5}),
    ("qwen3", {"use_sliding_window": True, "max_window_layers": 40}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 1}),
    ("qwen2", {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3, "max_window_layers": 1}),
    (
        "qwen2",
        {
            "num_hidden_layers": 3,
            "layer_types": ["attention", "sliding_attention", "sliding_attention"],
            "use_sliding_window": True,
            "sliding_window": 9,
        },
    ),
]


@pytest.mark.parametrize(
    ("family", "values"),
    [
        *((family, {}) for family in FAMILIES),
        *((family, SIZES) for family in FAMILIES),
        ("llama", NULLS),
        ("mistral", {"head_dim": None}),
        ("qwen2", {"num_key_value_heads": None}),
        ("llama", {"rms_norm_eps": 1e-3, "rope_theta": 500000, "tie_word_embeddings": True, "pretraining_tp": 4}),
        ("qwen2", {"rope_theta": 1000000.0, "rope_scaling": None}),
        ("gemma", {"tie_word_embeddings": False, "rope_parameters": {"rope_theta": 7.5, "rope_type": "default"}}),
        ("llama", {"rope_theta": 3.0, "rope_parameters": {"rope_theta": 7.5}}),
        ("llama", {"rope_theta": 3.0, "rope_parameters": {"rope_type": "default"}}),
        ("llama", {"rope_parameters": {"rope_theta": 7.5}, "rope_scaling": {"type": "linear", "factor": 2.0}}),
        *WINDOWS,
    ],
)
def test_settings_mean_what_transformers_takes_them_for(tmp_path: Path, family: str, values: dict[str, Any]) -> None:
    config, theirs = both(tmp_path, family, values)
    assert ours(config) == resolved(theirs)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"short_factor": [1.0, 1.5, 2], "long_factor": [2.0, 3.5, 4]}
ROPES: list[dict[str, Any]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4},
    {"type": "linear", "factor": 4.0},
    {"rope_type": "default", "type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 16},
    {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 16},
    {"rope_type": "llama3", **LLAMA3},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4, "beta_slow": 0, "truncate": False, "attention_factor": 1.5},
    {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.4, "beta_fast": None},
    {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0},
    {"rope_type": "longrope", **LONG, "original_max_position_embeddings": 16, "factor": 4.0},
    {"rope_type": "longrope", **LONG, "original_max_position_embeddings": 16},
    {"rope_type": "longrope", **LONG, "attention_factor": 1.25},
]


@pytest.mark.parametrize("scaling", ROPES)
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("beside", [{}, {"original_max_position_embeddings": 24}])
def test_angles_are_those_of_transformers(tmp_path: Path, scaling: Any, name: str, beside: Any) -> None:
    theta = {"rope_theta": 5000.0} if name == "rope_scaling" else {}
    scaling = scaling if theta else scaling | {"rope_theta": 5000.0}
    config, theirs = both(tmp_path, "llama", SIZES | theta | beside | {name: scaling})
    module = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(theirs)
    kept = dict(config.rope_scaling)
    if theirs.rope_parameters["rope_type"] == "default":
        assert kept == {}
    # transformers starts with the factors for short texts and takes the others as soon as a text is long.
    original = kept.get("original_max_position_embeddings", 0)
    length = original if kept.get("rope_type") == "longrope" else config.max_position_embeddings
    angles, factor = rope_frequencies(length, config.head_dim, config.rope_theta, kept)
    np.testing.assert_allclose(angles, module.inv_freq.numpy(), rtol=2e-6)
    assert factor == pytest.approx(module.attention_scaling)


@pytest.mark.parametrize(
    ("family", "values", "form"),
    [
        ("llama", {}, "silu"),
        ("qwen3", {"hidden_act": "gelu"}, "gelu"),
        ("mistral", {"hidden_act": "gelu_pytorch_tanh"}, "gelu_new"),
        ("qwen2", {"hidden_act": "swish"}, "silu"),
        ("gemma", {}, "gelu_new"),
        ("gemma", {"hidden_act": "gelu"}, "gelu_new"),
        ("gemma", {"hidden_act": "gelu", "hidden_activation": None}, "gelu_new"),
        ("gemma", {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}, "gelu_new"),
        ("gemma", {"hidden_act": "silu"}, "silu"),
    ],
)
def test_activations(tmp_path: Path, family: str, values: dict[str, Any], form: str) -> None:
    config, theirs = both(tmp_path, family, values)
    assert config.hidden_act == form
    x = torch.linspace(-4, 4, 99)
    mine = transformers.activations.ACT2FN[form](x)
    torch.testing.assert_close(mine, transformers.activations.ACT2FN[theirs.hidden_act](x), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("gemma2", {}, "found model_type 'gemma2'; expected one of the families known: 'gpt2', 'llama', 'mistral', "),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, which is not supported; expected 1"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters: partial_rotary_factor is 0.5"),
        ("llama", {"quantization_config": {}}, "quantization_config is set; expected a model that is not quantised"),
        ("llama", {"num_local_experts": 8}, "num_local_experts is 8: a mixture of experts, which is not supported"),
        ("qwen2", {"num_experts": 60}, "num_experts is 60: a mixture of experts"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True, which is not supported"),
        ("llama", {"is_causal": False}, "is_causal is False, which is not supported; expected true, or none"),
        ("llama", {"per_layer_config": [{}]}, "per_layer_config is [{}], which is not supported; expected none"),
        ("llama", {"hidden_act": "relu"}, "hidden_act is 'relu', which is not supported; expected one of silu, swish"),
        ("gemma", {"hidden_activation": "gelu"}, "hidden_activation is 'gelu' and hidden_act 'gelu_pytorch_tanh'"),
        ("llama", {"head_dim": 5}, "head_dim is 5; expected an even number"),
        ("llama", {"hidden_size": 6, "num_attention_heads": 2}, "hidden_size / num_attention_heads is 3; expected an"),
        ("llama", {"hidden_size": 6, "num_attention_heads": 4}, "it describes no possible model: hidden_size 6 is not"),
        ("llama", {"num_key_value_heads": 3}, "it describes no possible model: num_attention_heads 32 is not a mult"),
        ("llama", {"num_key_value_heads": 0}, "num_key_value_heads is 0; expected a whole number of at least 1"),
        ("qwen3", {"head_dim": None}, "head_dim is None; expected a whole number of at least 1"),
        ("gemma", {"num_key_value_heads": None}, "num_key_value_heads is None; expected a whole number of at least 1"),
        ("llama", {"rms_norm_eps": 0}, "rms_norm_eps is 0; expected a number above 0"),
        ("llama", {"attention_bias": 1}, "attention_bias is 1; expected true or false"),
        ("llama", {"tie_word_embeddings": None}, "tie_word_embeddings is None; expected true or false"),
        ("llama", {"rope_theta": None}, "rope_theta is None; expected a number above 0"),
        ("llama", {"rope_theta": 10**400}, "rope_theta is 1000"),
        ("llama", {"rope_scaling": [2]}, "rope_scaling is [2]; expected settings such as"),
        ("llama", {"rope_scaling": {"type": "su"}}, "rope_scaling: rope_type is 'su', which is not supported; expect"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "rope_scaling: found no factor; expected a number above 0"),
        ("llama", {"rope_scaling": {"type": "yarn"}}, "rope_scaling: found no factor; expected a number above 0"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": "2"}}, "rope_scaling: factor is '2'; expected a numb"),
        ("llama", {"rope_scaling": {"type": "yarn", "factor": 2, "attention_factor": 0}}, "rope_scaling: attention_f"),
        ("llama", {"rope_scaling": {"type": "longrope"}}, "rope_scaling: short_factor is None; expected 64 numbers"),
        (
            "llama",
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 3}},
            "rope_scaling: short_factor is a list of 3; expected 64 numbers above 0, one a pair",
        ),
        (
            "llama",
            {"head_dim": 2, "rope_scaling": {"type": "longrope", "short_factor": [-1.0]}},
            "rope_scaling: short_factor[0] is -1.0; expected a number above 0",
        ),
        (
            "qwen3",
            {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
            "rope_parameters: found settings of its own for 'full_attention'; expected the same settings for every",
        ),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0; expected a whole number of at least 1"),
        ("llama", {"sliding_window": 7}, "sliding_window is 7; expected none in a model of family llama"),
        ("mistral", {"layer_types": ["full_attention"] * 32}, "layer_types is ['full_attention', 'full_attention', "),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types is ['full_attention']; expected a list of 32 na"),
        ("qwen2", {"num_hidden_layers": 1, "layer_types": ["linear_attention"]}, "layer_types has 'linear_attention'"),
        ("qwen2", {"num_hidden_layers": 1, "layer_types": [["x"]]}, "layer_types has ['x'], which is not supported"),
        (
            "qwen2",
            {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]},
            "layer_types has sliding_attention, but there is no window",
        ),
        (
            "qwen3",
            {
                "num_hidden_layers": 2,
                "layer_types": ["sliding_attention", "full_attention"],
                "use_sliding_window": True,
            },
            "layer_types is ['sliding_attention', 'full_attention']; expected all of full_attention before all of",
        ),
    ],
)
def test_settings_that_cannot_be_run_are_named(
    tmp_path: Path, family: str, values: dict[str, Any], message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family} | values))
    save_file({}, tmp_path / "model.safetensors")
    assert refusal(tmp_path).startswith(f"config.json: {message}")


def test_a_family_that_only_begins_like_a_known_one_is_another(tmp_path: Path) -> None:
    for name, near in (("gemma2", "gemma"), ("gemma3_text", "gemma"), ("qwen3_moe", "qwen3"), ("mixtral", None)):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
        save_file({}, tmp_path / "model.safetensors")
        assert (f"({near} is another family)" in refusal(tmp_path)) == (near is not None)


# Heads and embeddings


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_that_differs_is_not_tied_as_in_transformers(tmp_path: Path, family: str) -> None:
    arrays = saved(tmp_path, family, dtype="float16", tie_word_embeddings=True)
    stored = load_file(tmp_path / "model.safetensors")
    for difference in (0, 1):
        stored[HEAD] = stored[EMBEDDING].copy()
        stored[HEAD][-1, -1] += np.float16(difference)
        save_file(stored, tmp_path / "model.safetensors", {"format": "pt"})
        checkpoint = read_huggingface(tmp_path)
        assert checkpoint.config.tie_word_embeddings is (difference == 0)
        assert_holds(checkpoint, arrays | {HEAD: stored[HEAD]})
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
        head = checkpoint.floats(HEAD if difference else EMBEDDING)
        np.testing.assert_array_equal(theirs.lm_head.weight.detach().float().numpy(), head)


def test_a_tied_head_of_another_type_is_a_head_of_its_own(tmp_path: Path) -> None:
    arrays = written(tmp_path, tied=True)
    arrays[HEAD] = arrays[EMBEDDING].astype(np.float32)
    save_file(arrays, tmp_path / "model.safetensors")
    checkpoint = read_huggingface(tmp_path)
    assert checkpoint.config.tie_word_embeddings is False
    assert_holds(checkpoint, arrays)


def test_a_tied_head_has_to_have_the_right_shape_and_type(tmp_path: Path) -> None:
    arrays = written(tmp_path, tied=True)
    save_file(arrays | {HEAD: np.zeros((12, 8), np.float16)}, tmp_path / "model.safetensors")
    assert "tensor 'lm_head.weight' has shape [12, 8]; expected [11, 8] from config.json" in refusal(tmp_path)
    save_file(arrays | {HEAD: np.zeros((11, 8), np.int8)}, tmp_path / "model.safetensors")
    assert "tensor 'lm_head.weight' is I8; expected one of F32, F16, BF16" in refusal(tmp_path)


def test_a_tied_embedding_may_have_the_name_of_the_head(tmp_path: Path) -> None:
    arrays = written(tmp_path, tied=True)
    renamed = {HEAD if name == EMBEDDING else name: array for name, array in arrays.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    assert_holds(read_huggingface(tmp_path), arrays)
    change(tmp_path, tie_word_embeddings=False)
    assert "tensor 'model.embed_tokens.weight' is missing" in refusal(tmp_path)


@pytest.mark.parametrize("tied", [True, False])
def test_a_base_model_needs_a_tied_head(tmp_path: Path, tied: bool) -> None:
    config = transformers.LlamaConfig(**SIZES, tie_word_embeddings=tied)
    model = transformers.LlamaModel(config)
    model.save_pretrained(tmp_path)
    assert "embed_tokens.weight" in load_file(tmp_path / "model.safetensors")
    if tied:
        assert_holds(read_huggingface(tmp_path), {f"model.{name}": p.numpy() for name, p in model.state_dict().items()})
        return
    assert refusal(tmp_path).startswith(
        "model.safetensors: tensor 'lm_head.weight' is missing, and config.json says that it is not tied to the "
        "embeddings (tie_word_embeddings); found 20 tensors, expected 21 for 2 layers (num_hidden_layers); save the"
    )


# Tensors


def test_angles_that_old_files_store_are_passed_over(tmp_path: Path) -> None:
    arrays = written(tmp_path)
    old = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": np.ones(3, np.float32) for layer in range(2)}
    save_file(arrays | old, tmp_path / "model.safetensors")
    assert_holds(read_huggingface(tmp_path), arrays)


def test_data_at_an_odd_address_is_read(tmp_path: Path) -> None:
    arrays = {name: array.astype(np.float32) for name, array in written(tmp_path).items()}
    header: dict[str, Any] = {}
    data = b""
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header)
    text += " " * ((1 - len(text)) % 8)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text.encode() + data)
    assert all(tensor.start % 4 == 1 for tensor in find_tensors(tmp_path / "model.safetensors").values())
    checkpoint = read_huggingface(tmp_path)
    assert_holds(checkpoint, arrays)
    assert all(tensor.flags.aligned for tensor in checkpoint.tensors.values())


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            Q,
            (8, 24),
            f"tensor '{Q}' has shape [8, 24]; expected [24, 8] from config.json; it is stored transposed, but",
        ),
        (EMBEDDING, (12, 8), f"tensor '{EMBEDDING}' has shape [12, 8]; expected [11, 8] from config.json"),
        ("model.norm.weight", (8, 1), "tensor 'model.norm.weight' has shape [8, 1]; expected [8] from config.json"),
        ("model.norm.weight", (), "tensor 'model.norm.weight' has shape []; expected [8] from config.json"),
    ],
)
def test_wrong_shapes(tmp_path: Path, name: str, shape: tuple[int, ...], message: str) -> None:
    arrays = written(tmp_path) | {name: np.zeros(shape, np.float16)}
    save_file(arrays, tmp_path / "model.safetensors")
    assert refusal(tmp_path).startswith(f"model.safetensors: {message}")


def test_fused_matrices_are_named(tmp_path: Path) -> None:
    arrays = written(tmp_path)
    parts = [arrays.pop(f"model.layers.0.self_attn.{letter}_proj.weight") for letter in "qkv"]
    arrays["model.layers.0.self_attn.qkv_proj.weight"] = np.concatenate(parts)
    save_file(arrays, tmp_path / "model.safetensors")
    found = refusal(tmp_path)
    assert "'model.layers.0.self_attn.q_proj.weight' is missing (found 'model.layers.0.self_attn.qkv_proj" in found
    assert found.endswith("found 19 tensors, expected 21 for 2 layers (num_hidden_layers)")


@pytest.mark.parametrize(
    ("family", "extra", "expected"),
    [
        ("llama", "model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.q_proj.weight"),
        ("mistral", "model.layers.0.mlp.up_proj.bias", "model.layers.0.mlp.up_proj.weight"),
        ("llama", "model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.q_proj.weight"),
        ("llama", "model.layers.2.input_layernorm.weight", "model.layers.1.input_layernorm.weight"),
        ("gemma", "model.layers.0.pre_feedforward_layernorm.weight", "model.layers.0.input_layernorm.weight"),
    ],
)
def test_tensors_that_the_configuration_does_not_know(tmp_path: Path, family: str, extra: str, expected: str) -> None:
    arrays = written(tmp_path, family)
    save_file(arrays | {extra: np.zeros(8, np.float16)}, tmp_path / "model.safetensors")
    assert f"unknown tensor '{extra}' (expected '" in refusal(tmp_path)
    assert expected in arrays


@pytest.mark.parametrize("family", FAMILIES)
def test_missing_tensors(tmp_path: Path, family: str) -> None:
    arrays = written(tmp_path, family)
    for name in (Q, "model.norm.weight", EMBEDDING):
        save_file({key: array for key, array in arrays.items() if key != name}, tmp_path / "model.safetensors")
        assert refusal(tmp_path).startswith(f"model.safetensors: tensor '{name}' is missing")


def test_biases_and_head_norms_have_to_be_there(tmp_path: Path) -> None:
    written(tmp_path)
    change(tmp_path, attention_bias=True)
    assert "tensor 'model.layers.0.self_attn.q_proj.bias' is missing" in refusal(tmp_path)
    change(tmp_path, attention_bias=False, model_type="qwen2")
    assert "tensor 'model.layers.0.self_attn.q_proj.bias' is missing" in refusal(tmp_path)
    change(tmp_path, model_type="qwen3")
    assert "tensor 'model.layers.0.self_attn.q_norm.weight' is missing" in refusal(tmp_path)
    change(tmp_path, model_type="llama", num_hidden_layers=16_000_000)
    assert "found 21 tensors; expected more for the 16000000 layers (num_hidden_layers) of" in refusal(tmp_path)


@pytest.mark.parametrize(("dtype", "shown"), [(np.int8, "I8"), (np.float64, "F64")])
def test_types_that_are_not_read(tmp_path: Path, dtype: type, shown: str) -> None:
    arrays = written(tmp_path)
    save_file(arrays | {Q: arrays[Q].astype(dtype)}, tmp_path / "model.safetensors")
    assert f"tensor '{Q}' is {shown}; expected one of F32, F16, BF16; convert it first" in refusal(tmp_path)


def test_all_is_checked_before_a_file_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = written(tmp_path) | {HEAD: np.zeros((3, 8), np.float16)}
    save_file(arrays, tmp_path / "model.safetensors")

    def touched(*_: Any) -> None:
        raise AssertionError("numbers were read before everything was checked")

    for name in ("map_bytes", "load_tensor", "same_bytes"):
        monkeypatch.setattr(reader, name, touched)
    assert "has shape [3, 8]; expected [11, 8]" in refusal(tmp_path)


def test_a_file_that_became_shorter_after_its_header_was_read(tmp_path: Path) -> None:
    written(tmp_path)
    file = tmp_path / "model.safetensors"
    found = find_tensors(file)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"model\.safetensors: found \d+ bytes, fewer than when its header was read"):
        map_bytes(found)
