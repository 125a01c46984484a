"""No file leads a reader out of its folder: not by a path, not by a link, and nothing it holds is run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glinfer.errors import FormatError
from glinfer.formats import load_checkpoint
from glinfer.formats.files import inside
from glinfer.jobs.manifest import file_digest
from glinfer.text.templates import find_template
from glinfer.text.tokenizer import Tokenizer
from qa.fuzz import seeds
from qa.fuzz import watch as watched
from qa.fuzz.reads import INDEX, SHARDS, put
from qa.fuzz.targets import TARGETS
from qa.fuzz.watch import watch

pytestmark = pytest.mark.fuzz

OUTSIDE = "out of its folder"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A whole model with its tokenizer, in a folder with something beside it that nobody may read."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name, data in seeds.huggingface().items():
        put(folder, name, data)
    put(folder, "tokenizer.json", seeds.tokenizer_jsons()[0])
    put(folder, "tokenizer_config.json", seeds.tokenizer_configs()[0])
    put(folder, "chat_template.jinja", seeds.TEMPLATE.encode())
    return folder


def sharded(folder: Path) -> Path:
    """The same model in two shards."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    return TARGETS["hf_index"].write(folder, TARGETS["hf_index"].seeds()[0])


def move_out(path: Path) -> None:
    """Put a file into the folder above, and a link to it in its place."""
    target = path.parent.parent / f"secret-{path.name}"
    path.rename(target)
    path.symlink_to(target)


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "weights": ("model.safetensors", load_checkpoint),
    "configuration": ("config.json", load_checkpoint),
    "tokenizer": ("tokenizer.json", Tokenizer.from_file),
    "tokenizer configuration": ("tokenizer_config.json", Tokenizer.from_file),
    "template": ("chat_template.jinja", find_template),
    "template's configuration": ("tokenizer_config.json", find_template),
    "digest": ("model.safetensors", file_digest),
}


@pytest.mark.parametrize("name", READERS)
def test_a_link_out_of_the_folder_is_refused(name: str, model: Path) -> None:
    file, read = READERS[name]
    before = read(model)
    assert before is not None
    move_out(model / file)
    if file == "tokenizer.json" and read == Tokenizer.from_file:
        (model / "tokenizer_config.json").unlink()
    with pytest.raises(FormatError, match=f"{file}: found a link that leads {OUTSIDE}, to .*secret-{file}"):
        read(model)


@pytest.mark.parametrize("file", [SHARDS[-1], INDEX])
def test_a_shard_that_is_a_link_out_of_the_folder_is_refused(file: str, model: Path) -> None:
    sharded(model)
    assert load_checkpoint(model).parameter_count
    move_out(model / file)
    with pytest.raises(FormatError, match=f"{file}: found a link that leads {OUTSIDE}"):
        load_checkpoint(model)


def test_a_part_of_a_manifest_that_is_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    text, files = seeds.manifests()[0]
    manifest = put(folder, "m.json", text)
    for name, data in files.items():
        put(folder, name, data)
    assert load_checkpoint(folder).parameter_count
    move_out(folder / "m-1.bin")
    with pytest.raises(FormatError, match=f"m-1.bin: found a link that leads {OUTSIDE}"):
        load_checkpoint(folder)
    move_out(manifest)  # which is then not found in the directory
    with pytest.raises(FormatError, match=r"found a directory without config\.json"):
        load_checkpoint(folder)


def test_links_within_the_folder_and_those_that_a_user_names_are_followed(model: Path, tmp_path: Path) -> None:
    (model / "parts").mkdir()
    (model / "model.safetensors").rename(model / "parts" / "w")
    (model / "model.safetensors").symlink_to(Path("parts") / "w")
    assert load_checkpoint(model).parameter_count
    named = tmp_path / "named"
    named.symlink_to(model, target_is_directory=True)
    assert load_checkpoint(named).parameter_count
    gab = put(tmp_path, "there.gab", seeds.gab())
    (tmp_path / "here.gab").symlink_to(gab)
    assert load_checkpoint(tmp_path / "here.gab").parameter_count


def test_the_cache_of_the_hub_is_links(model: Path, tmp_path: Path) -> None:
    """models--a--b/snapshots/<revision>/config.json -> ../../blobs/<hash>."""
    repository = tmp_path / "models--a--b"
    (repository / "blobs").mkdir(parents=True)
    snapshot = repository / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    for index, file in enumerate(sorted(model.iterdir())):
        file.rename(repository / "blobs" / f"{index:x}")
        (snapshot / file.name).symlink_to(Path("../../blobs") / f"{index:x}")
    assert load_checkpoint(snapshot).parameter_count
    assert Tokenizer.from_file(snapshot).vocab_size == 12
    assert find_template(snapshot) is not None
    elsewhere = tmp_path / "models--c--d" / "blobs"
    elsewhere.mkdir(parents=True)
    put(elsewhere, "0", b"{}")
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(elsewhere / "0")
    with pytest.raises(FormatError, match=OUTSIDE):
        load_checkpoint(snapshot)


def test_a_link_that_leads_nowhere_or_round_is_one_line(model: Path) -> None:
    (model / "config.json").unlink()
    (model / "config.json").symlink_to("config.json")
    with pytest.raises(FormatError, match=r"config\.json: cannot read it: "):
        load_checkpoint(model)
    assert inside(model / "nothing") == model / "nothing"


def test_paths_in_an_index_or_a_manifest_are_refused(model: Path) -> None:
    index = sharded(model)
    values, manifest = json.loads(index.read_text()), json.loads(seeds.manifests()[0][0])
    put(model, "m-0.bin", seeds.manifests()[0][1]["m-0.bin"])
    for name in ("../secret", "/etc/passwd", "..", "sub/x", "..\\secret", "C:secret", "a/../../secret"):
        values["weight_map"]["model.norm.weight"] = name
        put(model, INDEX, seeds.compact(values))
        manifest["files"]["weights_shards"][1]["file"] = name
        for path in (index, put(model, "m.json", seeds.compact(manifest))):
            with pytest.raises(FormatError, match="is a path; expected the plain name of a file"):
                load_checkpoint(path)


class TestTheWatch:
    """What the other tests rely on: that the watch sees what a reader must not do."""

    def test_it_sees(self, tmp_path: Path) -> None:
        folder = tmp_path / "own"
        folder.mkdir()
        acts: dict[str, Callable[[bytes, Path], object]] = {
            "write": lambda data, folder: (folder.parent / "x").open("wb"),
            "list": lambda data, folder: list(Path("/").iterdir()),
            "open": lambda data, folder: os.open("/etc/hostname", os.O_RDONLY),
            "above": lambda data, folder: (folder / ".." / "y").read_bytes(),
            "eval": lambda data, folder: eval("1 + 1"),
            "exec": lambda data, folder: exec(compile("x = 1", str(folder / "m.py"), "exec")),
            "system": lambda data, folder: os.system("true"),
            "process": lambda data, folder: __import__("subprocess").run(["true"], check=False),
            "pickle": lambda data, folder: __import__("pickle").loads(b"cos\nsystem\n."),
            "network": lambda data, folder: __import__("socket").socket(),
        }
        for name, act in acts.items():
            assert watch(act, b"", folder).kind == "forbidden", name

    def test_it_sees_errors_messages_time_and_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def slow(data: bytes, folder: Path) -> None:
            sum(range(1_000_000))

        def busy(data: bytes, folder: Path) -> None:
            for number in range(1000):
                abs(number)

        def several(data: bytes, folder: Path) -> None:
            error = FormatError()
            error.args = ("one\ntwo",)  # past the check of conftest.py
            raise error

        def shaped(data: bytes, folder: Path) -> None:
            raise FormatError("a\x1b[31m")

        kinds = {
            watch(act, b"", tmp_path, memory=True, counted=True).kind
            for act in (lambda data, folder: {}["x"], lambda data, folder: bytearray(200 << 20), several, shaped)
        }
        assert kinds == {"error", "memory", "message"}
        with monkeypatch.context() as patch:
            patch.setattr(watched, "SECONDS", 0.0)
            assert watch(slow, b"", tmp_path).kind == "slow"
        with monkeypatch.context() as patch:
            patch.setattr(watched, "CALLS", 1000)
            assert watch(busy, b"", tmp_path, counted=True).kind == "calls"
            assert watch(slow, b"", tmp_path, counted=True).kind == "accepted"
        assert watch(lambda data, folder: put(folder, "x", data), b"1", tmp_path, counted=True).kind == "accepted"
