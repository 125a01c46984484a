"""Llama, Mistral, Qwen2, Qwen3 and Gemma as transformers saves them, and every trap in one clear line."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_case import each_case
from goldens import check_digest, recorded
from goldens.given import ACTIVATIONS, FAMILIES, ROPES, SAVES, SETTINGS, SHARDED, SIZES
from goldens.models import STORED, random_tensors, save_tensors, stored, write_with_head
from refusals import refusal_by
from safetensors.numpy import load_file, save_file
from settings_files import config_with

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.families import FAMILIES as EVERY
from glinfer.formats import Checkpoint, load_checkpoint, read_huggingface, weight_shapes
from glinfer.formats.huggingface import model as reader
from glinfer.formats.huggingface.config import read_config
from glinfer.formats.huggingface.files import find_tensors
from glinfer.formats.safetensors_file import load_tensor, map_bytes
from glinfer.kernels.published.linear import ACTIVATIONS as KINDS
from glinfer.kernels.published.linear import activate
from glinfer.kernels.rotary import rope_frequencies

Q, EMBEDDING, HEAD = "model.layers.1.self_attn.q_proj.weight", "model.embed_tokens.weight", "lm_head.weight"


def resave(name: str, folder: Path) -> dict[str, Any]:
    """Write the files that transformers saved, each with its digest; gives the tensors as float32 by their names."""
    figures = recorded("saves")[name]
    (folder / "config.json").write_text(json.dumps(figures["config"]))
    base = name.endswith("base")
    shapes = weight_shapes(read_config(folder / "config.json"))
    shapes = {each.removeprefix("model.") if base else each: shape for each, shape in shapes.items()}
    tensors, dtype = random_tensors(dict(sorted(shapes.items())), 0), figures["config"]["dtype"]
    placed: dict[str, str] = {}
    for file, found in figures["files"].items():
        names = found["tensors"] if "index" in figures else [*tensors]
        placed |= dict.fromkeys(names, file)
        save_tensors({each: tensors[each] for each in names}, folder / file, dtype)
        check_digest(folder / file, {found["sha256"]})
    if "index" in figures:
        index = {"metadata": figures["index"], "weight_map": dict(sorted(placed.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    kept = {each: stored(tensor, dtype) for each, tensor in tensors.items()}
    if dtype == "bfloat16":
        kept = {each: (tensor.astype(np.uint32) << 16).view(np.float32) for each, tensor in kept.items()}
    return {"model." * base + each: tensor.astype(np.float32) for each, tensor in kept.items()}


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
    message = refusal_by(read_huggingface, folder)
    assert len(message) < 150 + 10 * len(EVERY)  # some list every family
    return message


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


def check_saved(folder: Path, arrays: dict[str, Any], family: str, dtype: str) -> None:
    checkpoint = load_checkpoint(folder)
    assert_holds(checkpoint, arrays)
    assert checkpoint.config.model_type == family
    for name, form in checkpoint.formats().items():
        matrix = len(weight_shapes(checkpoint.config)[name]) == 2
        assert form == (STORED[dtype] if matrix else "F32")
        kept = checkpoint.packed[name].blocks if form != "F32" else checkpoint.tensors[name]
        if matrix:
            assert is_mapped(kept), "matrices are neither copied nor widened"
            assert not kept.flags.writeable


@each_case("name", [name for name in SAVES if not name.endswith("base")])
def test_what_transformers_saves_is_read(tmp_path: Path, name: str) -> None:
    check_saved(tmp_path, resave(name, tmp_path), SAVES[name]["model_type"], SAVES[name]["dtype"])


@each_case("name", SHARDED)
def test_shards_and_other_shapes(tmp_path: Path, name: str) -> None:
    arrays, family = resave(name, tmp_path), SHARDED[name]["model_type"]
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    checkpoint = read_huggingface(tmp_path)
    assert checkpoint.config.tie_word_embeddings is SHARDED[name]["tie_word_embeddings"]
    assert checkpoint.config.attention_bias == (family != "mistral")
    assert checkpoint.config.mlp_bias == (family == "llama")
    assert_holds(checkpoint, arrays)


def ours(config: ModelConfig) -> dict[str, Any]:
    apart = ("windows", "thetas", "turned", "score_scale")
    names = [name for name in recorded("settings")[0] if name not in apart]
    layers = [config.layer(layer) for layer in range(config.num_hidden_layers)]
    return {name: getattr(config, name) for name in names} | {
        "windows": [layer.window for layer in layers],
        "thetas": [layer.rope.theta if layer.rope else config.rope_theta for layer in layers],
        "turned": [layer.rope.dim if layer.rope else 0 for layer in layers],
        "score_scale": pytest.approx(layers[0].score_scale),
    }


@each_case("number", range(len(SETTINGS)))
def test_settings_mean_what_transformers_takes_them_for(tmp_path: Path, number: int) -> None:
    assert ours(config_with(tmp_path, SETTINGS[number][0], **SETTINGS[number][1])) == recorded("settings")[number]


@each_case("number", range(len(ROPES)))
def test_angles_are_those_of_transformers(tmp_path: Path, number: int) -> None:
    config, theirs = config_with(tmp_path, "llama", **ROPES[number]), recorded("ropes")[number]
    kept = dict(config.rope_scaling)
    if not theirs["scaled"]:
        assert kept == {}
    # transformers starts with the factors for short texts and takes the others as soon as a text is long.
    original = kept.get("original_max_position_embeddings", 0)
    length = original if kept.get("rope_type") == "longrope" else config.max_position_embeddings
    angles, factor = rope_frequencies(length, config.head_dim, config.rope_theta, kept)
    np.testing.assert_allclose(angles, theirs["angles"], rtol=2e-6)
    assert factor == pytest.approx(theirs["factor"])


@each_case("number", range(len(ACTIVATIONS)))
def test_activations(tmp_path: Path, number: int) -> None:
    family, values, form = ACTIVATIONS[number]
    assert config_with(tmp_path, family, **values).hidden_act == form
    theirs = np.array(recorded("activations")[number])
    x = np.linspace(-4, 4, len(theirs))
    np.testing.assert_allclose(activate(x, KINDS[form]), theirs, atol=1e-8, rtol=0)
    others = [np.abs(activate(x, KINDS[other]) - theirs).max() for other in ("silu", "gelu", "gelu_new")]
    assert sorted(others)[1] > 1e-4, "another one would be noticed"


# Heads and embeddings


@each_case("family", FAMILIES)
def test_a_head_that_differs_is_not_tied_as_in_transformers(tmp_path: Path, family: str) -> None:
    for difference in (0, 1):
        embedding, head = write_with_head(family, tmp_path, difference)
        checkpoint = read_huggingface(tmp_path)
        assert checkpoint.config.tie_word_embeddings is (difference == 0)
        taken = {"embedding": embedding, "head": head}[recorded("heads")[family][difference]]
        np.testing.assert_array_equal(checkpoint.floats(HEAD if difference else EMBEDDING), taken)
        assert np.array_equal(embedding, head) is (difference == 0)


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
    assert "tensor 'lm_head.weight' is I8, which is not supported; expected one of F32, F16, BF16" in refusal(tmp_path)


def test_a_tied_embedding_may_have_the_name_of_the_head(tmp_path: Path) -> None:
    arrays = written(tmp_path, tied=True)
    renamed = {HEAD if name == EMBEDDING else name: array for name, array in arrays.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    assert_holds(read_huggingface(tmp_path), arrays)
    change(tmp_path, tie_word_embeddings=False)
    assert "tensor 'model.embed_tokens.weight' is missing" in refusal(tmp_path)


def test_a_base_model_needs_a_tied_head(tmp_path: Path) -> None:
    arrays = resave("llama-base", tmp_path)
    assert "embed_tokens.weight" in load_file(tmp_path / "model.safetensors")
    assert_holds(read_huggingface(tmp_path), arrays)
    change(tmp_path, tie_word_embeddings=False)
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
    last = max(found.values(), key=lambda tensor: tensor.start)
    file.write_bytes(file.read_bytes()[:-1])
    for read in (lambda: map_bytes(found), lambda: load_tensor(last)):
        with pytest.raises(FormatError, match=r"model\.safetensors: found \d+ bytes, fewer than when its header was"):
            read()
