"""GPT-2 directories as transformers saves them: every number lands where it belongs, every trap is one clear line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_case import each_case
from goldens.models import gpt2_shapes, save_tensors
from safetensors.numpy import save_file

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.formats import (
    Checkpoint,
    load_checkpoint,
    random_checkpoint,
    read_huggingface,
    weight_shapes,
    write_safetensors,
)

VOCAB, WIDTH, HEADS, BLOCKS, CONTEXT, INNER = 7, 4, 2, 2, 5, 6
SETTINGS: dict[str, Any] = {"model_type": "gpt2", "vocab_size": VOCAB, "n_embd": WIDTH, "n_head": HEADS}
SETTINGS |= {"n_layer": BLOCKS, "n_positions": CONTEXT, "n_inner": INNER}
Arrays = dict[str, np.ndarray]


def stored_arrays(prefix: str = "transformer.", *, tied: bool = True) -> Arrays:
    """A model under the names and in the shapes that transformers stores, every number another one."""
    generator, shapes = np.random.default_rng(0), gpt2_shapes({**SETTINGS, "tie_word_embeddings": tied})
    return {
        name.replace("transformer.", prefix): generator.standard_normal(shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_config(folder: Path, without: str = "", **changes: Any) -> Path:
    values = {name: value for name, value in (SETTINGS | changes).items() if name != without}
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


def write_model(folder: Path, arrays: Arrays | None = None, **changes: Any) -> Path:
    save_file(stored_arrays() if arrays is None else arrays, folder / "model.safetensors", {"format": "pt"})
    return write_config(folder, **changes)


def write_shards(folder: Path, arrays: Arrays, count: int = 3) -> dict[str, str]:
    """The tensors dealt out over shards, an index next to them; gives the index's weight_map."""
    names = [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    placed = {name: names[i % count] for i, name in enumerate(arrays)}
    for shard in names:
        save_file({name: arrays[name] for name in arrays if placed[name] == shard}, folder / shard, {"format": "pt"})
    write_index(folder, placed)
    return placed


def write_index(folder: Path, placed: Any) -> None:
    text = json.dumps({"metadata": {"total_size": 1}, "weight_map": placed})
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def refusal(path: Path, read: Callable[[Path], Checkpoint] = read_huggingface) -> str:
    """The one line that refuses ``path``, without the path of the file it speaks of, which it begins with."""
    with pytest.raises(FormatError) as caught:
        read(path)
    message = str(caught.value)
    folder = path if path.is_dir() else path.parent
    assert message.startswith(str(folder))
    return message.removeprefix(str(folder)).lstrip("/")


def assert_holds(checkpoint: Checkpoint, arrays: Arrays, prefix: str = "transformer.") -> None:
    """Every tensor of the checkpoint against what was stored, by GPT-2's own formulas for its layers."""
    config, got = checkpoint.config, checkpoint.tensors
    assert {name: tensor.shape for name, tensor in got.items()} == weight_shapes(config)
    assert {tensor.dtype for tensor in got.values()} == {np.dtype(np.float32)}
    for name in ("wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"):
        np.testing.assert_array_equal(got[f"transformer.{name}"], arrays[prefix + name])
    for block in (f"h.{i}" for i in range(config.num_hidden_layers)):
        for name in ("ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"):
            np.testing.assert_array_equal(got[f"transformer.{block}.{name}"], arrays[f"{prefix}{block}.{name}"])
        for theirs, ours in (
            ("attn.c_attn", ("attn.q_proj", "attn.k_proj", "attn.v_proj")),
            ("attn.c_proj", ("attn.out_proj",)),
            ("mlp.c_fc", ("mlp.fc_in",)),
            ("mlp.c_proj", ("mlp.fc_out",)),
        ):
            weight = np.concatenate([got[f"transformer.{block}.{name}.weight"] for name in ours])
            bias = np.concatenate([got[f"transformer.{block}.{name}.bias"] for name in ours])
            # Conv1D multiplies from the left, x @ W, a linear layer by the transpose.
            np.testing.assert_array_equal(weight.T, arrays[f"{prefix}{block}.{theirs}.weight"])
            np.testing.assert_array_equal(bias, arrays[f"{prefix}{block}.{theirs}.bias"])
    if not config.tie_word_embeddings:
        np.testing.assert_array_equal(got["lm_head.weight"], arrays["lm_head.weight"])


@each_case("prefix", ["transformer.", ""])
@each_case("tied", [True, False])
def test_every_number_lands_where_it_belongs(tmp_path: Path, prefix: str, tied: bool) -> None:
    arrays = stored_arrays(prefix, tied=tied)
    checkpoint = read_huggingface(write_model(tmp_path, arrays, tie_word_embeddings=tied))
    assert checkpoint.config == ModelConfig(
        VOCAB, WIDTH, HEADS, BLOCKS, CONTEXT, INNER, model_type="gpt2", tie_word_embeddings=tied
    )
    assert_holds(checkpoint, arrays, prefix)
    assert checkpoint.source == str(tmp_path)


@each_case("prefix", ["transformer.", ""])
def test_masks_and_a_tied_head_are_passed_over(tmp_path: Path, prefix: str) -> None:
    arrays = stored_arrays(prefix)
    extra: Arrays = {"lm_head.weight": arrays[f"{prefix}wte.weight"].copy()}
    for block in range(BLOCKS):
        extra[f"{prefix}h.{block}.attn.bias"] = np.ones((1, 1, CONTEXT, CONTEXT), bool)
        extra[f"{prefix}h.{block}.attn.masked_bias"] = np.array(-1e4, np.float32)
    assert_holds(read_huggingface(write_model(tmp_path, arrays | extra)), arrays, prefix)


def test_bfloat16_is_the_upper_half_of_a_float32(tmp_path: Path) -> None:
    arrays = stored_arrays()
    odd = np.array([0, 0x80000000, 0x00010000, 0x7F7F0000, 0x7F800000, 0xFF800000, 0x3F800000], np.uint32)
    arrays["transformer.wte.weight"][:, 0] = odd.view(np.float32)
    kept = {name: (array.view(np.uint32) >> 16 << 16).view(np.float32) for name, array in arrays.items()}
    np.testing.assert_array_equal(kept["transformer.wte.weight"][:, 0].view(np.uint32), odd)
    save_tensors(kept, write_config(tmp_path) / "model.safetensors", "bfloat16")
    assert_holds(read_huggingface(tmp_path), kept)


def test_shards_are_put_together(tmp_path: Path) -> None:
    arrays = stored_arrays(tied=False)
    write_shards(write_config(tmp_path, tie_word_embeddings=False), arrays)
    assert_holds(read_huggingface(tmp_path), arrays)
    for name in ("model.safetensors.index.json", "model-00002-of-00003.safetensors", "config.json"):
        assert_holds(load_checkpoint(tmp_path / name), arrays)


def test_one_whole_file_goes_before_an_index(tmp_path: Path) -> None:
    arrays = stored_arrays()
    write_shards(write_model(tmp_path, arrays), {name: 2 * array for name, array in arrays.items()})
    assert_holds(read_huggingface(tmp_path), arrays)
    index = tmp_path / "model.safetensors.index.json"
    assert_holds(read_huggingface(index), {name: 2 * array for name, array in arrays.items()})


def test_any_file_of_the_model_means_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = stored_arrays()
    write_model(tmp_path, arrays)
    for path in (tmp_path, tmp_path / "config.json", tmp_path / "model.safetensors"):
        for read in (read_huggingface, load_checkpoint):
            assert_holds(read(path), arrays)
            assert_holds(read(str(path)), arrays)
    monkeypatch.chdir(tmp_path)
    assert_holds(load_checkpoint("config.json"), arrays)
    assert_holds(load_checkpoint("."), arrays)


def test_a_safetensors_file_of_any_name_is_the_one_that_is_read(tmp_path: Path) -> None:
    write_model(tmp_path)
    doubled = {name: 2 * array for name, array in stored_arrays().items()}
    save_file(doubled, tmp_path / "model.fp32.safetensors")
    assert_holds(load_checkpoint(tmp_path / "model.fp32.safetensors"), doubled)
    saved = random_checkpoint(ModelConfig.from_options("vocab=3,dim=2,heads=1,blocks=1,context=2"))
    write_safetensors(saved, tmp_path / "model.safetensors")
    assert load_checkpoint(tmp_path / "model.safetensors").config.model_type == "gab", "its own, even beside a config"


# config.json


def test_what_the_config_leaves_out_is_as_in_gpt2_small(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    save_file({}, tmp_path / "model.safetensors")
    # Only the shapes tell: 12 blocks, and with one tensor too few for them the line says so.
    assert "found 0 tensors; expected more for the 12 layers (n_layer)" in refusal(tmp_path)
    arrays = stored_arrays() | {f"x{i}": np.zeros(1, np.float32) for i in range(12)}
    save_file(arrays, tmp_path / "model.safetensors")
    assert "tensor 'transformer.h.2.ln_1.weight' is missing" in refusal(tmp_path)
    for name, default in (("vocab_size", 50257), ("n_positions", 1024)):
        write_model(tmp_path, without=name)
        assert f"expected [{default}, {WIDTH}] from config.json" in refusal(tmp_path)
    write_model(tmp_path, without="n_embd")
    assert f"expected [{VOCAB}, 768]" in refusal(tmp_path)
    for inner in ({"without": "n_inner"}, {"n_inner": None}):
        write_model(tmp_path, **inner)
        assert f"expected [{WIDTH}, {4 * WIDTH}] from config.json" in refusal(tmp_path)
    write_model(tmp_path, without="n_head")
    assert "hidden_size 4 is not a multiple of num_attention_heads 12" in refusal(tmp_path)
    config = read_huggingface(write_model(tmp_path)).config
    assert (config.layer_norm_eps, config.hidden_act, config.tie_word_embeddings) == (1e-5, "gelu_new", True)


def test_optional_settings_are_taken_over(tmp_path: Path) -> None:
    write_model(tmp_path, layer_norm_epsilon=0.001, activation_function="gelu", reorder_and_upcast_attn=True)
    config = read_huggingface(tmp_path).config
    assert (config.layer_norm_eps, config.hidden_act) == (0.001, "gelu")
    for name, form in (("gelu_new", "gelu_new"), ("gelu_pytorch_tanh", "gelu_new")):
        assert read_huggingface(write_config(tmp_path, activation_function=name)).config.hidden_act == form


def test_names_of_other_families_and_older_files_are_understood(tmp_path: Path) -> None:
    write_model(tmp_path)
    others = {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}
    for usual, other in (*others.items(), ("n_positions", "max_position_embeddings"), ("n_positions", "n_ctx")):
        expected = read_huggingface(write_config(tmp_path)).config
        assert read_huggingface(write_config(tmp_path, without=usual, **{other: SETTINGS[usual]})).config == expected
    assert read_huggingface(write_config(tmp_path, n_ctx=CONTEXT + 1)).config.max_position_embeddings == CONTEXT
    write_config(tmp_path, num_attention_heads=1)
    assert refusal(tmp_path).startswith("config.json: n_head is 2 but num_attention_heads is 1; expected them to agree")


@each_case(
    ("content", "message"),
    [
        (b"", "found no JSON in its 0 bytes"),
        (b"\xff\xfe\xff{", "found no JSON in its 4 bytes"),
        (b"[" * 100_000, "its JSON is nested too deep, which is not supported"),
        (b'{"n_embd": ' + b"9" * 5000 + b"}", "found no JSON in its 5012 bytes"),
        (b"null", "found a JSON NoneType; expected an object"),
        (b" " * (1 << 20) + b"{}", "found JSON of 1048578 bytes, which exceeds the limit of 1048576"),
    ],
)
def test_a_config_that_is_none(tmp_path: Path, content: bytes, message: str) -> None:
    write_model(tmp_path)
    (tmp_path / "config.json").write_bytes(content)
    for path in (tmp_path, tmp_path / "config.json"):
        assert refusal(path, load_checkpoint).startswith(f"config.json: {message}")


# Files that are not there, or not what they should be


def test_a_directory_that_is_no_model(tmp_path: Path) -> None:
    assert refusal(tmp_path, load_checkpoint).startswith(": found a directory without config.json; expected a Hugging")
    write_config(tmp_path)
    assert "found config.json but no weights next to it; expected model.safetensors or model" in refusal(tmp_path)
    (tmp_path / "config.json").unlink()
    save_file(stored_arrays(), tmp_path / "model.safetensors", {"format": "pt"})
    found = refusal(tmp_path / "model.safetensors", load_checkpoint)
    assert found.startswith("model.safetensors: found no config.json next to it; expected a Hugging Face model")


@each_case("name", ["pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5"])
def test_weights_in_other_formats_are_to_be_saved_as_safetensors(tmp_path: Path, name: str) -> None:
    (write_config(tmp_path) / name).write_bytes(b"PK\x03\x04 and so on")
    for path in (tmp_path, tmp_path / name):
        found = refusal(path, load_checkpoint)
        assert f"found {name} only; expected model.safetensors; save the model as safetensors: " in found
    write_model(tmp_path)
    assert_holds(load_checkpoint(tmp_path), stored_arrays())


# Tensors that do not go with the configuration


@each_case("prefix", ["transformer.", ""])
def test_missing_and_misnamed_tensors_are_told_in_the_files_names(tmp_path: Path, prefix: str) -> None:
    arrays = stored_arrays(prefix)
    name = f"{prefix}h.1.attn.c_attn.bias"
    moved = dict(arrays)
    moved[f"{prefix}h.1.attn.c_atn.bias"] = moved.pop(name)
    found = refusal(write_model(tmp_path, moved))
    assert f"tensor '{name}' is missing (found '{prefix}h.1.attn.c_atn.bias', the nearest name); found 28" in found
    del moved[f"{prefix}h.1.attn.c_atn.bias"]
    found = refusal(write_model(tmp_path, moved))
    assert f"tensor '{name}' is missing; found 27 tensors, expected 28 for 2 layers (n_layer)" in found


def test_unknown_tensors_are_told_with_the_nearest_name(tmp_path: Path) -> None:
    arrays = stored_arrays()
    arrays["transformer.ln_ff.bias"] = arrays["transformer.ln_f.bias"]
    found = refusal(write_model(tmp_path, arrays))
    assert "unknown tensor 'transformer.ln_ff.bias' (expected 'transformer.ln_f.bias', the nearest name)" in found
    # Bare names do not pass where the others have the prefix.
    arrays = stored_arrays() | {"wte.weight": np.zeros((VOCAB, WIDTH), np.float32)}
    assert "unknown tensor 'wte.weight'" in refusal(write_model(tmp_path, arrays))
    arrays = stored_arrays() | {"a\nb" + "c" * 5000: np.zeros(1, np.float32)}
    found = refusal(write_model(tmp_path, arrays))
    assert "unknown tensor 'a\\nbccc" in found
    assert len(found) < 400


def test_blocks_that_are_not_in_the_file(tmp_path: Path) -> None:
    assert "unknown tensor 'transformer.h.1.attn.c_attn.bias'" in refusal(write_model(tmp_path, n_layer=1))
    assert "tensor 'transformer.h.2.ln_1.weight' is missing" in refusal(write_model(tmp_path, n_layer=3))
    found = refusal(write_model(tmp_path, n_layer=16_000_000))
    assert "found 28 tensors; expected more for the 16000000 layers (n_layer) of" in found


@each_case(
    ("name", "shape", "message"),
    [
        ("h.0.attn.c_attn.weight", (12, 4), "[12, 4]; expected [4, 12] from config.json; it is stored transposed"),
        ("wpe.weight", (6, 4), "[6, 4]; expected [5, 4] from config.json"),
        ("h.1.ln_1.bias", (4, 1), "[4, 1]; expected [4] from config.json"),
        ("ln_f.weight", (), "[]; expected [4] from config.json"),
    ],
)
def test_wrong_shapes(tmp_path: Path, name: str, shape: tuple[int, ...], message: str) -> None:
    arrays = stored_arrays("")
    arrays[name] = np.zeros(shape, np.float32)
    found = refusal(write_model(tmp_path, arrays))
    assert found.startswith(f"model.safetensors: tensor '{name}' has shape {message}")
    assert ("transposed" in found) == ("transposed" in message)


# The index of shards


def test_shards_that_are_missing_or_damaged(tmp_path: Path) -> None:
    write_shards(write_config(tmp_path), stored_arrays())
    last = tmp_path / "model-00003-of-00003.safetensors"
    data = last.read_bytes()
    last.write_bytes(data[:-1])
    assert refusal(tmp_path).startswith(f"{last.name}: truncated: found {len(data) - 1} bytes")
    last.unlink()
    found = refusal(tmp_path)
    assert f"index.json: 1 of the 3 shards it names are missing, first '{last.name}'" in found


@each_case("shard", ["../up.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", "", "..\\up", "C:\\up", "./a"])
def test_an_index_may_not_lead_out_of_its_directory(tmp_path: Path, shard: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(stored_arrays(), tmp_path / "up.safetensors")
    write_index(write_config(folder), dict.fromkeys(stored_arrays(), shard))
    found = refusal(folder)
    assert found.startswith(f"model.safetensors.index.json: the shard {shard!r} is a path; expected the plain name")


@each_case(
    ("weight_map", "message"),
    [
        (None, "found no weight_map; expected an object"),
        ({}, "found no weight_map; expected an object"),
        ({"wte.weight": 3}, "the file of tensor 'wte.weight' is 3; expected a file's name"),
        ({"wte.weight": "a\0b"}, "1 of the 1 shards it names are missing, first 'a\\x00b'"),
    ],
)
def test_an_index_that_is_none(tmp_path: Path, weight_map: Any, message: str) -> None:
    write_index(write_config(tmp_path), weight_map)
    assert refusal(tmp_path).startswith(f"model.safetensors.index.json: {message}")


def test_an_index_that_does_not_go_with_its_shards(tmp_path: Path) -> None:
    arrays = stored_arrays()
    placed = write_shards(write_config(tmp_path), arrays)
    first, second, _ = sorted(set(placed.values()))
    name = next(name for name, shard in placed.items() if shard == first)
    write_index(tmp_path, placed | {name: second})
    assert f"'{first}' has tensor '{name}', which the index does not place there" in refusal(tmp_path)
    write_index(tmp_path, placed | {"transformer.more": second})
    assert f"it places tensor 'transformer.more' in '{second}', which does not have it" in refusal(tmp_path)
    write_index(tmp_path, {key: shard for key, shard in placed.items() if key != name})
    assert f"'{first}' has tensor '{name}', which the index does not place there" in refusal(tmp_path)
