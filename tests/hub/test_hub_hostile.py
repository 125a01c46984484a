"""Repositories that mean harm: each is refused in one line, leaves no file behind, and takes no large memory."""

from __future__ import annotations

import gzip
import hashlib
import json
import struct
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from each_case import each_case
from hub_server import Handler, Hub, Repo
from small_models import hugging_face_files, small_gguf

from glinfer.engine.fetching import described_model, found_model
from glinfer.errors import GlinferError, HubError
from glinfer.hub.cache import RepositoryCache
from glinfer.hub.fetch import find
from glinfer.hub.names import HubName

NAME = "org/harm"
MOST_MEMORY = 100 << 20
constants = pytest.importorskip("huggingface_hub.constants", reason="huggingface_hub is not installed")
Prepare = Callable[[Hub, bytes], Any]


def listed(hub: Hub, *entries: Any, **changes: Any) -> None:
    """A repository whose list is this one."""
    hub.add(NAME, {}, answer={"sha": "a" * 40, "siblings": list(entries), **changes})


def entry(path: Any, size: Any = 100, sha256: Any = "b" * 64) -> dict[str, Any]:
    return {"rfilename": path, "size": size, "lfs": {"size": size, "sha256": sha256}}


def claims(hub: Hub, data: bytes, path: str, size: int, sha256: str = "") -> Repo:
    """A file that the list says has another size than it has."""
    repo = hub.add(NAME, {path: data})
    repo.answer = {"sha": repo.commit, "siblings": [entry(path, size, sha256 or hashlib.sha256(data).hexdigest())]}
    return repo


def promise(hub: Hub, files: dict[str, bytes], name: str, size: int) -> None:
    """A repository with ``files``, whose list gives one of them another size."""
    repo = hub.add(NAME, files)
    repo.answer = repo.listing(NAME)
    for each in repo.answer["siblings"]:
        if each["rfilename"] == name:
            each["size"] = each.get("lfs", each)["size"] = size


def around(handler: Handler) -> bool:
    return handler.reply(302, {"Location": f"{handler.path}x"}, b"")


def later(data: bytes) -> dict[str, str]:
    return {"Content-Range": f"bytes 7-{len(data) - 1}/{len(data)}"}


def pours(start: bytes) -> Callable[[Handler], bool]:
    """An answer that begins with ``start`` and does not end."""

    def pour(handler: Handler) -> bool:
        handler.reply(200, {"Content-Length": str(1 << 40)}, start)
        try:
            while True:
                handler.wfile.write(b" " * (1 << 20))
        except OSError:
            return True

    return pour


def a_gguf_header_of_gigabytes(hub: Hub, gguf: bytes) -> None:
    """A string of metadata that is said to be as long as the file, which is said to have 100 GB."""
    text = struct.pack("<Q", 3) + b"key" + struct.pack("<IQ", 8, 99_000_000_000)
    claims(hub, b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text + bytes(4 << 20), "m.gguf", 100_000_000_000)


def a_gguf_header_without_end(hub: Hub, gguf: bytes) -> None:
    """An array whose elements go on and on: what is read of it has a bound."""
    array = struct.pack("<Q", 3) + b"key" + struct.pack("<IIQ", 9, 0, 90_000_000)
    claims(hub, b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + array + bytes(4 << 20), "m.gguf", 1_000_000_000)


def files(**changed: bytes) -> dict[str, bytes]:
    """A model's directory with other files in it; a name has _ for a point."""
    return {**hugging_face_files(), **{name.replace("_", "."): data for name, data in changed.items()}}


def index(placed: dict[str, str]) -> dict[str, bytes]:
    made = hugging_face_files(shards=2)
    return {**made, "model.safetensors.index.json": json.dumps({"weight_map": placed}).encode()}


def answers(status: int, headers: dict[str, str], data: bytes = b"") -> Prepare:
    return lambda hub, _: hub.faults.append(lambda handler: handler.reply(status, headers, data))


def stored(answer: Callable[[bytes], Callable[[Handler], bool]]) -> Prepare:
    """A GGUF file for which the storage answers otherwise."""

    def prepare(hub: Hub, gguf: bytes) -> None:
        claims(hub, gguf, "m.gguf", len(gguf))
        hub.faults.append(lambda handler: handler.origin == "storage" and answer(gguf)(handler))

    return prepare


PATHS = ["../../m.gguf", "C:\\m.gguf", "\x1b[2J.gguf", "m\ud800.gguf", "x" * 5000 + ".gguf"]  # more: test_hub_choice.py
SIZES: list[Any] = [-1, 1e9, "100", None, True, 1 << 63]
HASHES: list[Any] = ["../../../m", "/etc/m", "B" * 64, "b" * 63, 7, None, ""]
THINGS: list[Any] = ["m.gguf", 7, None, [], {"rfilename": {}}, {"rfilename": "m.gguf", "lfs": []}]
HEADER = struct.pack("<Q", 5_000_000_000) + b"{" + bytes(5000)
ZEROS = gzip.compress(bytes(1 << 24))
PASSED_OVER = r"with invalid names, sizes or hashes were skipped"
HOSTILE: list[tuple[Prepare, str]] = [
    (lambda hub, _: listed(hub, *map(entry, PATHS)), PASSED_OVER),
    (lambda hub, _: listed(hub, *(entry("m.gguf", size) for size in SIZES)), PASSED_OVER),
    (lambda hub, _: listed(hub, *(entry("m.gguf", 100, each) for each in HASHES)), PASSED_OVER),
    (lambda hub, _: listed(hub, *THINGS), PASSED_OVER),
    (lambda hub, _: listed(hub, entry("m.gguf"), sha="../../outside"), "answered with commit '../../outside'"),
    (lambda hub, _: listed(hub, siblings={"m.gguf": 1}), "answer has no list of files"),
    (lambda hub, _: hub.add(NAME, {}, answer=b"[" * 1_000_000), "is not a JSON object"),
    (answers(200, {}, b"<html>welcome</html>"), "is not a JSON object; check HF_ENDPOINT and the proxy"),
    (answers(200, {"Content-Encoding": "gzip"}, ZEROS), "is not a JSON object"),
    (answers(302, {"Location": "file:///etc/passwd"}), "the request is invalid|broke off"),
    (lambda hub, _: hub.faults.append(around), "the request is invalid: Exceeded maximum allowed redirects"),
    (lambda hub, _: hub.faults.append(pours(b"[")), "has more than 16777216 bytes; check HF_ENDPOINT"),
    (stored(lambda gguf: lambda each: each.reply(200, {}, gguf + bytes(1000))), "sends more than the .* bytes of m.gg"),
    (stored(pours), "sends more than the .* bytes of m.gguf; do not trust it"),
    (
        stored(lambda gguf: lambda each: each.reply(206, later(gguf), gguf[7:])),
        "sent .* of .* bytes of m.gguf; try again",
    ),
    (lambda hub, gguf: claims(hub, gguf[:-100], "m.gguf", len(gguf)), "bytes of m.gguf"),
    (a_gguf_header_of_gigabytes, "its header has 99000000047 bytes or more, which exceeds the limit of"),
    (a_gguf_header_without_end, "its header has .* bytes or more, which exceeds the limit of"),
    (lambda hub, _: hub.add(NAME, {"m.gguf": b"MZ" + bytes(5000)}), r"expected 47 47 55 46 \(GGUF\)"),
    (
        lambda hub, _: promise(hub, files(model_safetensors=HEADER), "model.safetensors", 9_000_000_000),
        "its header has 5000000000 bytes by its first 8",
    ),
    (
        lambda hub, _: hub.add(NAME, files(config_json=b'{"a":' * 100_000)),
        "nested too deep|values, which exceeds the limit of",
    ),
    (lambda hub, _: promise(hub, files(), "tokenizer.json", 9_000_000_000), r"tokenizer\.json has 9000000000 bytes"),
    (lambda hub, _: hub.add(NAME, index({"a": "../../m.safetensors"})), r"the shard '\.\./.*' is a path; expected the"),
    (
        lambda hub, _: hub.add(NAME, index({f"t{n}": f"m{n}.safetensors" for n in range(5_000)})),
        "names 5000 shards, and lacks 5000",
    ),
]


@each_case("prepare, words", HOSTILE)
def test_a_hostile_repository(
    hub: Hub, gguf: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Prepare, words: str
) -> None:
    hub.clear()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    prepare(hub, gguf)
    monkeypatch.setattr("glinfer.hub.fetch.free_bytes", lambda path: 1 << 60)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    tracemalloc.start()
    try:
        with pytest.raises(GlinferError, match=words) as caught:
            found_model(NAME)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    line = str(caught.value)
    assert line.startswith(NAME), line
    assert line.isprintable()
    assert len(line) < 1000
    assert str(tmp_path) not in line, "a user knows the name, and not where its copy lay"
    assert most < MOST_MEMORY
    assert {each.name for each in tmp_path.iterdir()} <= {"home", "temporary"}
    assert not list((tmp_path / "temporary").iterdir())
    left = [each for each in tmp_path.rglob("*") if each.is_symlink() or (each.is_file() and each.stat().st_size)]
    assert not left, "but empty locks"


def test_thousands_of_files_are_a_repository_like_any_other(hub: Hub, gguf: bytes, cache: Path) -> None:
    hub.add(NAME, {**{f"folder/{number}.txt": b"" for number in range(2_000)}, "m-Q8_0.gguf": gguf})
    assert Path(found_model(NAME)).read_bytes() == gguf
    assert [each.name for each in cache.rglob("*") if each.is_symlink()] == ["m-Q8_0.gguf"]
    files = {f"m{number}-Q8_0.gguf": b"" for number in range(2_000)}
    hub.add(NAME, files)
    with pytest.raises(HubError, match=r"2000 files of Q8_0; choose one of .* and 1976 more"):
        find(HubName(NAME))


def test_a_repository_cannot_write_through_a_link_in_the_cache(hub: Hub, cache: Path, tmp_path: Path) -> None:
    """What was a file at a commit cannot become a folder of it, nor a blob another one."""
    data = small_gguf("q4_0")
    repo = hub.add(NAME, {"a.gguf": data, "a.gguf/b-Q8_0.gguf": data})
    hub.repos[NAME].refs["other"] = repo.commit
    found_model(f"hf://{NAME}/a.gguf")
    with pytest.raises(HubError, match="cannot write into"):
        found_model(f"hf://{NAME}/a.gguf/b-Q8_0.gguf")
    assert (cache / "models--org--harm" / "snapshots" / repo.commit / "a.gguf").read_bytes() == data


@each_case("text", ["../../../outside", "x" * 40, "", "\0" * 40, "A" * 40, "é" * 40])
def test_a_ref_of_the_cache_that_is_a_path_is_none(hub: Hub, cache: Path, text: str) -> None:
    folder = cache / "models--org--harm" / "refs"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "main").write_text(text, encoding="utf-8")
    assert RepositoryCache(NAME).repository(HubName(NAME)) is None


def test_holes_of_a_published_family_need_room_in_memory(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such models are read whole: weights that are holes would still take their size in memory."""
    monkeypatch.setenv("GLINFER_MEMORY", "0.1")
    shape = {"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 258, "n_positions": 96}
    files = hugging_face_files()
    files["config.json"] = json.dumps({**shape, "architectures": ["GPT2LMHeadModel"]}).encode()
    promise(hub, files, "model.safetensors", 1 << 30)
    words = r"reading this model takes .* of memory, and .* are free here"
    with pytest.raises(GlinferError, match=words), described_model(NAME):
        pass
