"""Gift of Gab's manifests as its own script packs them: every number lands where it belongs, every trap is one line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_case import each_case

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.formats import Checkpoint, random_checkpoint, weight_shapes, write_safetensors
from glinfer.formats.files import FileStamp, noted_files
from glinfer.formats.manifest.model import find_manifest, is_manifest, read_manifest

SIZES: dict[str, Any] = {"vocab_size": 7, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2}
SIZES |= {"max_position_embeddings": 16, "intermediate_size": 12, "hidden_act": "gelu", "model_type": "gift_of_gab"}
SIZES |= {"tie_word_embeddings": True, "mlp_bias": True}
CONFIG = ModelConfig(**SIZES)
ARCHITECTURE: dict[str, Any] = {**SIZES, "head_dim": 4, "rope_theta": 10000.0, "rope_style": "interleaved"}
ARCHITECTURE |= {"rms_norm_eps": 1e-5, "attention_bias": False}
MATRIX, BIAS = "model.layers.1.mlp.down_proj.weight", "model.layers.0.mlp.up_bias"
Arrays = dict[str, np.ndarray]


def stored_arrays() -> Arrays:
    """A model's arrays under the names that the files have."""
    tensors = random_checkpoint(CONFIG, seed=5).tensors
    return {name.replace("up_proj.bias", "up_bias"): np.asarray(array) for name, array in tensors.items()}


class Blob:
    """Bytes of tensors one after the other, each from a multiple of 16 on."""

    def __init__(self) -> None:
        self.data = bytearray()

    def add(self, array: np.ndarray, dtype: str) -> dict[str, Any]:
        self.data += bytes(-len(self.data) % 16)
        raw = array.tobytes()
        self.data += raw
        return {"dtype": dtype, "offset": len(self.data) - len(raw), "length": len(raw)}


def quantized(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    largest = np.abs(matrix).max(axis=1)
    scale = np.where(largest > 0, largest / 127, 1).astype("<f4")
    return np.rint(matrix / scale[:, None]).clip(-127, 127).astype(np.int8), scale


def write_manifest(
    folder: Path, arrays: Arrays | None = None, *, q8: bool = False, shard_size: int = 1 << 20, **architecture: Any
) -> Path:
    """A manifest and its files as Gab's script writes them, the float32 cut into shards wherever their size ends."""
    blob, tensors = Blob(), []
    for name, array in (stored_arrays() if arrays is None else arrays).items():
        entry: dict[str, Any] = {"name": name, "shape": list(array.shape)}
        if q8 and array.ndim == 2:
            quants, scale = quantized(array)
            entry |= {"storage": "q8_rowwise_symmetric", "q": blob.add(quants, "int8")}
            entry["scale"] = blob.add(scale, "float32")
        else:
            entry |= {"storage": "float32", "data": blob.add(array.astype("<f4"), "float32")}
        tensors.append(entry)
    raw, kind = bytes(blob.data), "q8" if q8 else "f32"
    files = []
    for number, start in enumerate(range(0, len(raw), len(raw) if q8 else shard_size)):
        part = raw if q8 else raw[start : start + shard_size]
        name = "model-q8.bin" if q8 else f"model-f32-{number:03d}.bin"
        (folder / name).write_bytes(part)
        files.append({"file": name, "length": len(part), "sha256": hashlib.sha256(part).hexdigest()})
    manifest = {
        **{"format": f"gift-of-gab-{kind}", "format_version": 2, "endianness": "little", "alignment": 16},
        "byte_length": len(raw),
        "architecture": ARCHITECTURE | architecture,
        "storage": {"scheme": "q8_rowwise_symmetric" if q8 else "float32_full_precision", "sharded": not q8},
        "files": {"weights": files[0]} if q8 else {"weights_shards": files},
        "tensors": tensors,
    }
    path = folder / f"model-{kind}.json"
    path.write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    return path


def changed(path: Path, change: Callable[[Any], object]) -> Path:
    """The same manifest with a change made to its values."""
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def entry_of(values: Any, name: str) -> Any:
    return next(entry for entry in values["tensors"] if entry["name"] == name)


def refusal(path: Path) -> str:
    with pytest.raises(FormatError) as caught:
        read_manifest(path)
    message = str(caught.value)
    assert len(message) < 600
    return message


def same_floats(found: Checkpoint, arrays: Arrays) -> None:
    expected = {name.replace("up_bias", "up_proj.bias"): array for name, array in arrays.items()}
    assert set(found.tensors) | set(found.packed) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found.floats(name), array)


@each_case("shard_size", [1 << 20, 1024, 100])
def test_float32_comes_back_whole_however_it_is_cut(tmp_path: Path, shard_size: int) -> None:
    checkpoint = read_manifest(write_manifest(tmp_path, shard_size=shard_size))
    assert checkpoint.config == CONFIG
    assert checkpoint.source == str(tmp_path / "model-f32.json")
    assert not checkpoint.packed
    assert {name: tensor.shape for name, tensor in checkpoint.tensors.items()} == weight_shapes(CONFIG)
    same_floats(checkpoint, stored_arrays())
    checkpoint.check_finite()


def test_what_lies_in_one_file_is_mapped_and_not_copied(tmp_path: Path) -> None:
    def is_mapped(tensor: object) -> bool:
        while type(tensor) is np.ndarray:
            tensor = tensor.base
        return isinstance(tensor, np.memmap)

    whole = read_manifest(write_manifest(tmp_path)).tensors
    assert all(is_mapped(tensor) and not tensor.flags.writeable for tensor in whole.values())
    cut = read_manifest(write_manifest(tmp_path, shard_size=1024)).tensors
    copied = [name for name, tensor in cut.items() if not is_mapped(tensor)]
    assert 0 < len(copied) < len(list(tmp_path.glob("*.bin")))


def test_q8_matrices_keep_their_integers_and_scales(tmp_path: Path) -> None:
    arrays = stored_arrays()
    arrays[MATRIX][3] = 0  # the script gives a row of zeros the scale 1
    checkpoint = read_manifest(write_manifest(tmp_path, arrays, q8=True))
    assert checkpoint.config == CONFIG
    assert set(checkpoint.packed) == {name for name, shape in weight_shapes(CONFIG).items() if len(shape) == 2}
    expected = dict(arrays)
    for name, packed in checkpoint.packed.items():
        quants, scale = quantized(arrays[name])
        assert packed.format == "Q8_ROW"
        np.testing.assert_array_equal(packed.blocks[:, :-4].view(np.int8), quants)
        np.testing.assert_array_equal(packed.blocks[:, -4:].copy().view("<f4")[:, 0], scale)
        expected[name] = quants.astype(np.float32) * scale[:, None]
    same_floats(checkpoint, expected)


def test_a_vector_in_q8_becomes_floats(tmp_path: Path) -> None:
    path = write_manifest(tmp_path)
    raw = (tmp_path / "model-f32-000.bin").read_bytes()
    quants, scale = np.arange(-4, 4, dtype=np.int8), np.float32(0.5)
    (tmp_path / "model-f32-000.bin").write_bytes(raw + quants.tobytes() + scale.tobytes())

    def pack(values: Any) -> None:
        del values["byte_length"], values["files"]["weights_shards"][0]["length"]
        entry = entry_of(values, "model.norm.weight")
        del entry["data"]
        entry["storage"] = "q8_rowwise_symmetric"
        entry["q"] = {"offset": len(raw), "length": 8}
        entry["scale"] = {"offset": len(raw) + 8, "length": 4}

    found = read_manifest(changed(path, pack)).tensors["model.norm.weight"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.arange(-4, 4) * 0.5)


def test_names_without_the_prefix_and_a_model_without_the_bias(tmp_path: Path) -> None:
    arrays = {name.removeprefix("model."): array for name, array in stored_arrays().items() if "bias" not in name}
    path = write_manifest(tmp_path, arrays, mlp_bias=False)
    checkpoint = read_manifest(path)
    assert not checkpoint.config.mlp_bias
    assert set(checkpoint.tensors) == set(weight_shapes(checkpoint.config))
    assert not read_manifest(changed(path, lambda values: values["architecture"].pop("mlp_bias"))).config.mlp_bias


def test_what_a_manifest_may_leave_out_or_say_otherwise(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, rope_theta=10000)

    def thin(values: Any) -> None:
        for name in ("format", "format_version", "endianness", "byte_length", "storage"):
            del values[name]
        for name in ("rope_style", "mlp_bias", "head_dim", "rms_norm_eps", "model_type"):
            del values["architecture"][name]
        values["files"] = {"weights": values["files"]["weights_shards"][0]["file"]}
        values["tensors"] = {
            entry["name"].replace("up_bias", "up_proj.bias"): {"shape": entry["shape"], **entry["data"]}
            for entry in values["tensors"]
        }

    checkpoint = read_manifest(changed(path, thin))
    assert checkpoint.config == CONFIG
    same_floats(checkpoint, stored_arrays())


def test_a_directory_means_the_manifest_in_it(tmp_path: Path) -> None:
    quantised = write_manifest(tmp_path, q8=True)
    (tmp_path / "a-tokenizer.json").write_text('{"reserved": [], "merges": []}', encoding="utf-8")
    assert find_manifest(tmp_path) == quantised
    full = write_manifest(tmp_path)
    assert find_manifest(tmp_path) == full
    assert read_manifest(tmp_path).source == str(tmp_path)
    assert not read_manifest(tmp_path).packed
    for file in tmp_path.glob("model-*.json"):
        file.rename(file.with_suffix(".old"))
    assert find_manifest(tmp_path) is None
    assert refusal(tmp_path).startswith(f"{tmp_path}: found a directory without a manifest; expected")


def test_manifests_are_told_from_other_files_by_what_they_hold(tmp_path: Path) -> None:
    path = write_manifest(tmp_path)
    assert is_manifest(path)
    assert is_manifest(path.rename(tmp_path / "config.json"))
    others = {"manifest.json": '{"name": "An app", "icons": []}', "deep.json": "[" * 100_000, "empty.json": ""}
    others |= {"model.safetensors.index.json": '{"weight_map": {}}', "settings.json": '{"model_type": "llama"}'}
    for name, text in others.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert not is_manifest(tmp_path / name), name
    write_safetensors(random_checkpoint(CONFIG), tmp_path / "m.safetensors")
    assert not is_manifest(tmp_path / "m.safetensors")
    assert not any(map(is_manifest, (tmp_path, tmp_path / "missing", "nul\0byte")))


def test_numbers_that_are_not_finite_are_found_by_the_check(tmp_path: Path) -> None:
    arrays = stored_arrays()
    arrays[BIAS][4] = np.nan
    with pytest.raises(FormatError, match=r"1 value is NaN .* 'model.layers.0.mlp.up_proj.bias', first at \[4\]"):
        read_manifest(write_manifest(tmp_path, arrays)).check_finite()
    path = write_manifest(tmp_path, q8=True)
    values = json.loads(path.read_text(encoding="utf-8"))
    with (tmp_path / "model-q8.bin").open("r+b") as file:
        file.seek(entry_of(values, MATRIX)["scale"]["offset"] + 4 * 5)
        file.write(np.float32(np.inf).tobytes())
    with pytest.raises(FormatError, match=f"'{MATRIX}', in Q8_ROW, is NaN or infinite, first at \\[5, 0\\]"):
        read_manifest(path).check_finite()


def test_all_files_that_were_read_are_noted(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, q8=True)
    with noted_files() as files:
        read_manifest(path)
    assert set(files) == {str(path), str(tmp_path / "model-q8.bin")}
    assert all(FileStamp.of(Path(name).stat()) == stamp for name, stamp in files.items())
    read_manifest(path)
    assert len(files) == 2


@each_case(
    ("text", "message"),
    [
        ("[" * 100_000, "its JSON is nested too deep, which is not supported"),
        ("{}", "found None for tensors; expected a list of them"),
        ('{"tensors": [3]}', "found 3 among tensors; expected an object with a name"),
        (" " * (4 << 20) + "{}", "found JSON of 4194306 bytes, which exceeds the limit of 4194304"),
    ],
)
def test_what_is_no_manifest(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "m.json").write_text(text, encoding="utf-8")
    assert refusal(tmp_path / "m.json").startswith(f"{tmp_path / 'm.json'}: {message}")


@each_case(
    ("change", "message"),
    [
        ({"format_version": 1}, "found format_version 1, which is not supported; expected 2; get the newest files"),
        ({"format": "gab"}, "found format 'gab', which is not supported; expected gift-of-gab-f32 or gift-of-gab-q8"),
        ({"endianness": "big"}, "endianness is 'big', which is not supported; expected little"),
        ({"architecture": 3}, "found 3 for architecture; expected an object"),
        ({"files": None}, "found None for files; expected an object with weights_shards or weights"),
        ({"files": {"weights_shards": "x"}}, "weights_shards is 'x'; expected a list of files"),
        ({"files": {"weights": {"file": "../secret.bin"}}}, "the file '../secret.bin' is a path; expected the plain"),
        ({"files": {"weights": "gone.bin"}}, "1 of the 1 files it names are missing, first 'gone.bin'; expected them"),
        ({"files": {"weights_shards": ["model-f32-000.bin"] * 2}}, "it names the file 'model-f32-000.bin' twice"),
        (
            {"files": {"weights": {"file": "a", "length": -1}}},
            "the file 'a': length is -1; expected an integer of at least 0",
        ),
        ({"byte_length": 7}, "its 1 files have 4064 bytes together, but its byte_length is 7; expected"),
    ],
)
def test_wrong_settings_of_the_manifest(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = changed(write_manifest(tmp_path), lambda values: values.update(change))
    assert refusal(path).startswith(f"{path}: {message}")


@each_case(
    ("change", "message"),
    [
        ({"rope_style": "half"}, "rope_style is 'half', which is not supported; expected interleaved"),
        ({"attention_bias": True}, "attention_bias is True, which is not supported; expected false"),
        ({"hidden_act": "silu"}, "hidden_act is 'silu', which is not supported; expected gelu"),
        ({"model_type": "llama"}, "model_type is 'llama', which is not supported; expected gift_of_gab"),
        ({"rope_theta": "10000"}, "rope_theta is '10000'; expected a number above 0"),
        ({"vocab_size": 0}, "its architecture describes no possible model: vocab_size is 0; expected an integer"),
        ({"hidden_size": None}, "its architecture has no hidden_size; expected vocab_size, hidden_size"),
        ({"head_dim": 3}, "head_dim is 3; expected an even number"),
        ({"num_hidden_layers": 1 << 24}, "found 20 tensors; expected more for the 16777216 blocks"),
        ({"mlp_bias": False}, "unknown tensor 'model.layers.0.mlp.up_proj.bias'"),
    ],
)
def test_wrong_settings_of_the_architecture(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write_manifest(tmp_path, **change)
    assert refusal(path).startswith(f"{path}: {message}")


def test_version_one_without_its_number_is_refused_too(tmp_path: Path) -> None:
    arrays = {name: array for name, array in stored_arrays().items() if "bias" not in name}
    path = changed(write_manifest(tmp_path, arrays, mlp_bias=False), lambda values: values.pop("format_version"))
    assert refusal(path).startswith(f"{path}: found no format_version and no mlp.up_bias; expected format_version 2")


@each_case(
    ("q8", "change", "message"),
    [
        (False, {"shape": [8, 12, 1]}, "has shape [8, 12, 1]; expected one or two integers from 1 to"),
        (False, {"shape": [8, 12.0]}, "has shape [8, 12.0]; expected one or two integers from 1 to"),
        (False, {"shape": [12, 8]}, "has shape [12, 8]; expected [8, 12] from the configuration"),
        (False, {"shape": [8, 11]}, "has 384 bytes of data; expected 352 for shape [8, 11] in float32"),
        (
            False,
            {"storage": "bf16"},
            "is stored as 'bf16', which is not supported; expected float32 or q8_rowwise_symmetric",
        ),
        (False, {"data": None}, "has no data but None; expected an object with offset and length"),
        (False, {"data": {"offset": -4, "length": 384}}, ": data: offset is -4; expected an integer of at least 0"),
        (False, {"data": {"offset": 1 << 80, "length": 384}}, ": data: offset is 1208925819614629174706176; exp"),
        (False, {"data": {"offset": 3681, "length": 384}}, "ends at byte 4065, but its files have 4064 together"),
        (True, {"q": {"offset": 0, "length": 95}}, "has 95 bytes of q; expected 96 for shape [8, 12] in int8"),
        (True, {"scale": {"offset": 0, "length": 28}}, "has 28 bytes of scale; expected 32 for 8 scales"),
        (True, {"scale": None}, "has no scale but None; expected an object with offset and length"),
    ],
)
def test_wrong_entries(tmp_path: Path, q8: bool, change: dict[str, Any], message: str) -> None:
    path = changed(write_manifest(tmp_path, q8=q8), lambda values: entry_of(values, MATRIX).update(change))
    found = refusal(path)
    assert found.startswith(f"{path}: tensor '{MATRIX}'")
    assert message in found


def test_missing_unknown_and_doubled_tensors(tmp_path: Path) -> None:
    path = write_manifest(tmp_path)
    renamed = changed(path, lambda values: entry_of(values, MATRIX).update(name=MATRIX.replace("down", "dwon")))
    assert f"tensor '{MATRIX}' is missing (found 'model.layers.1.mlp.dwon_proj.weight'" in refusal(renamed)
    doubled = changed(write_manifest(tmp_path), lambda values: values["tensors"].append(values["tensors"][0]))
    assert "tensor 'model.embed_tokens.weight' appears twice" in refusal(doubled)
    head = {"name": "lm_head.weight"}
    more = changed(write_manifest(tmp_path), lambda values: values["tensors"].append({**values["tensors"][0], **head}))
    assert "unknown tensor 'lm_head.weight'" in refusal(more)


def test_files_that_are_cut_short_or_padded_are_named(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, shard_size=2000)
    second = tmp_path / "model-f32-001.bin"
    data = second.read_bytes()
    for found, what in ((data[:-1], "truncated: found 1999"), (data + b"\0", "padded: found 2001")):
        second.write_bytes(found)
        assert refusal(path).startswith(f"{second}: {what}")
    second.unlink()
    assert "1 of the 3 files it names are missing, first 'model-f32-001.bin'" in refusal(path)
    second.mkdir()
    assert refusal(path).startswith(f"{second}: found a directory; expected a regular file")


def test_tensors_may_share_bytes_but_not_so_as_to_be_copied_over_and_over(tmp_path: Path) -> None:
    def share(values: Any) -> None:
        entry_of(values, MATRIX.replace("1", "0"))["data"] = entry_of(values, MATRIX)["data"]

    tensors = read_manifest(changed(write_manifest(tmp_path), share)).tensors
    assert np.array_equal(tensors[MATRIX], tensors[MATRIX.replace("1", "0")])

    def shrink(values: Any) -> None:
        for entry in values["tensors"]:
            for part in ("q", "scale", "data"):
                if part in entry:
                    entry[part]["offset"] = 0
        values["files"] = {"weights": "small.bin"}
        del values["byte_length"]

    path = changed(write_manifest(tmp_path, q8=True), shrink)
    (tmp_path / "small.bin").write_bytes(bytes(96))
    assert "its tensors take 1396 bytes out of files of 96; expected every" in refusal(path)


def test_bytes_at_odd_addresses_are_read_all_the_same(tmp_path: Path) -> None:
    path = write_manifest(tmp_path)
    file = tmp_path / "model-f32-000.bin"
    file.write_bytes(b"\0" + file.read_bytes())

    def move(values: Any) -> None:
        for entry in values["tensors"]:
            entry["data"]["offset"] += 1
        values["files"]["weights_shards"][0]["length"] += 1
        values["byte_length"] += 1

    checkpoint = read_manifest(changed(path, move))
    same_floats(checkpoint, stored_arrays())
    assert all(tensor.flags.aligned for tensor in checkpoint.tensors.values())
