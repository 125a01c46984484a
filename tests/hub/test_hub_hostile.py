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
from hub_server import Handler, Hub, Repo
from small_models import hugging_face_files, small_gguf

from glinfer.engine.fetching import described_model, found_model
from glinfer.errors import GlinferError, HubError
from glinfer.hub.cache import RepositoryCache
from glinfer.hub.fetch import find
from glinfer.hub.names import HubName

NAME = "org/harm"
MOST_MEMORY = 100 << 20
Prepare = Callable[[Hub, bytes], None]


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


def from_storage(hub: Hub, answer: Callable[[Handler], bool]) -> None:
    hub.faults.append(lambda handler: handler.origin == "storage" and answer(handler))


def paths_that_lead_elsewhere(hub: Hub, gguf: bytes) -> None:
    paths = (
        "../../m.gguf",
        "/tmp/m.gguf",
        "a/../../m.gguf",
        "m\0.gguf",
        "C:\\m.gguf",
        "\\\\host\\m.gguf",
        "..\\m.gguf",
    )
    listed(hub, *(entry(path, len(gguf), hashlib.sha256(gguf).hexdigest()) for path in paths))


def names_of_devices(hub: Hub, gguf: bytes) -> None:
    listed(hub, *(entry(path) for path in ("con.gguf", "NUL/m.gguf", "com1.gguf", "m.gguf.", "m.gguf ", "a:b.gguf")))


def names_that_do_not_print(hub: Hub, gguf: bytes) -> None:
    listed(
        hub,
        *(entry(path) for path in ("a\nb.gguf", "\x1b[2J.gguf", "\u202egguf.m", "m\ud800.gguf", "x" * 5000 + ".gguf")),
    )


def sizes_below_nothing(hub: Hub, gguf: bytes) -> None:
    listed(hub, *(entry(f"m{number}.gguf", size) for number, size in enumerate((-1, 1e9, "100", None, True, 1 << 63))))


def hashes_that_are_paths(hub: Hub, gguf: bytes) -> None:
    hashes = ("../../../m", "/etc/m", "B" * 64, "b" * 63, 7, None, "")
    listed(hub, *(entry(f"m{number}.gguf", 100, each) for number, each in enumerate(hashes)))


def a_commit_that_is_a_path(hub: Hub, gguf: bytes) -> None:
    listed(hub, entry("m.gguf"), sha="../../../../outside")


def a_commit_of_another_kind(hub: Hub, gguf: bytes) -> None:
    listed(hub, entry("m.gguf"), sha=["a" * 40])


def a_list_of_other_things(hub: Hub, gguf: bytes) -> None:
    listed(hub, "m.gguf", 7, None, [], {"rfilename": {}}, {"rfilename": "m.gguf", "lfs": []})


def no_list(hub: Hub, gguf: bytes) -> None:
    listed(hub, siblings={"m.gguf": 1})


def too_many_files(hub: Hub, gguf: bytes) -> None:
    listed(hub, *[None] * 70_000)


def a_list_that_nests(hub: Hub, gguf: bytes) -> None:
    hub.add(NAME, {}, answer=b"[" * 1_000_000)


def a_list_of_other_text(hub: Hub, gguf: bytes) -> None:
    hub.faults.append(lambda handler: handler.reply(200, {"Content-Type": "text/html"}, b"<html>welcome</html>"))


def a_list_without_end(hub: Hub, gguf: bytes) -> None:
    def pour(handler: Handler) -> bool:
        handler.reply(200, {"Content-Length": str(1 << 40)}, b"[")
        try:
            while True:
                handler.wfile.write(b" " * (1 << 20))
        except OSError:
            return True

    hub.faults.append(pour)


def a_list_that_unpacks_to_gigabytes(hub: Hub, gguf: bytes) -> None:
    packed = gzip.compress(bytes(1 << 24))
    hub.faults.append(lambda handler: handler.reply(200, {"Content-Encoding": "gzip"}, packed))


def redirects_without_end(hub: Hub, gguf: bytes) -> None:
    hub.faults.append(lambda handler: handler.reply(302, {"Location": f"{handler.path}x"}, b""))


def a_redirect_to_a_file(hub: Hub, gguf: bytes) -> None:
    hub.faults.append(lambda handler: handler.reply(302, {"Location": "file:///etc/passwd"}, b""))


def a_redirect_to_nowhere(hub: Hub, gguf: bytes) -> None:
    hub.faults.append(lambda handler: handler.reply(302, {"Location": "http://[::1"}, b""))


def a_file_longer_than_its_size(hub: Hub, gguf: bytes) -> None:
    claims(hub, gguf, "m.gguf", len(gguf))
    longer = gguf + bytes(1000)
    from_storage(hub, lambda handler: handler.reply(200, {}, longer))


def a_file_without_end(hub: Hub, gguf: bytes) -> None:
    claims(hub, gguf, "m.gguf", len(gguf))

    def pour(handler: Handler) -> bool:
        handler.reply(200, {"Content-Length": str(1 << 40)}, gguf)
        try:
            while True:
                handler.wfile.write(bytes(1 << 20))
        except OSError:
            return True

    from_storage(hub, pour)


def a_file_shorter_than_its_size(hub: Hub, gguf: bytes) -> None:
    claims(hub, gguf[:-100], "m.gguf", len(gguf))


def parts_of_other_places(hub: Hub, gguf: bytes) -> None:
    claims(hub, gguf, "m.gguf", len(gguf))
    told = {"Content-Range": f"bytes 7-{len(gguf) - 1}/{len(gguf)}"}
    from_storage(hub, lambda handler: handler.reply(206, told, gguf[7:]))


def weights_that_unpack_to_gigabytes(hub: Hub, gguf: bytes) -> None:
    claims(hub, gguf, "m.gguf", len(gguf))
    from_storage(hub, lambda handler: handler.reply(200, {"Content-Encoding": "gzip, gzip"}, gguf))


def a_gguf_header_of_gigabytes(hub: Hub, gguf: bytes) -> None:
    """A string of metadata that is said to be as long as the file, which is said to have 100 GB."""
    text = struct.pack("<Q", 3) + b"key" + struct.pack("<IQ", 8, 99_000_000_000)
    claims(hub, b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text + bytes(4 << 20), "m.gguf", 100_000_000_000)


def a_gguf_header_without_end(hub: Hub, gguf: bytes) -> None:
    """An array whose elements go on and on: what is read of it has a bound."""
    array = struct.pack("<Q", 3) + b"key" + struct.pack("<IIQ", 9, 0, 90_000_000)
    claims(hub, b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + array + bytes(4 << 20), "m.gguf", 1_000_000_000)


def a_gguf_file_of_other_bytes(hub: Hub, gguf: bytes) -> None:
    hub.add(NAME, {"m.gguf": b"MZ" + bytes(5000)})


def a_safetensors_header_of_gigabytes(hub: Hub, gguf: bytes) -> None:
    files = hugging_face_files()
    data = struct.pack("<Q", 5_000_000_000) + b"{" + bytes(5000)
    repo = hub.add(NAME, {**files, "model.safetensors": data})
    repo.answer = repo.listing(NAME)
    for each in repo.answer["siblings"]:
        if each["rfilename"] == "model.safetensors":
            each["lfs"]["size"] = 9_000_000_000


def a_configuration_that_nests(hub: Hub, gguf: bytes) -> None:
    hub.add(NAME, {**hugging_face_files(), "config.json": b'{"a":' * 100_000})


def a_configuration_of_absurd_numbers(hub: Hub, gguf: bytes) -> None:
    hub.add(NAME, hugging_face_files(vocab_size=1 << 60, num_hidden_layers=1 << 40))


def a_tokenizer_of_gigabytes(hub: Hub, gguf: bytes) -> None:
    repo = hub.add(NAME, hugging_face_files())
    repo.answer = repo.listing(NAME)
    for each in repo.answer["siblings"]:
        if each["rfilename"] == "tokenizer.json":
            each["size"] = each.get("lfs", each)["size"] = 9_000_000_000


def an_index_that_leads_elsewhere(hub: Hub, gguf: bytes) -> None:
    files = hugging_face_files(shards=2)
    placed = {"lm_head.weight": "../../../../m.safetensors"}
    hub.add(NAME, {**files, "model.safetensors.index.json": json.dumps({"weight_map": placed}).encode()})


def an_index_of_many_shards(hub: Hub, gguf: bytes) -> None:
    files = hugging_face_files(shards=2)
    placed = {f"t{number}": f"m{number}.safetensors" for number in range(5_000)}
    hub.add(NAME, {**files, "model.safetensors.index.json": json.dumps({"weight_map": placed}).encode()})


PASSED_OVER = r"names, sizes or hashes that no file can have were passed over"
HOSTILE: list[tuple[Prepare, str]] = [
    (paths_that_lead_elsewhere, PASSED_OVER),
    (names_of_devices, PASSED_OVER),
    (names_that_do_not_print, PASSED_OVER),
    (sizes_below_nothing, PASSED_OVER),
    (hashes_that_are_paths, PASSED_OVER),
    (a_commit_that_is_a_path, "the hub says that its commit is '../../../../outside'"),
    (a_commit_of_another_kind, "the hub says that its commit is"),
    (a_list_of_other_things, PASSED_OVER),
    (no_list, "found no list of files"),
    (too_many_files, "found 70000 files; expected a list of at most 65536"),
    (a_list_that_nests, "is no JSON|values; expected at most"),
    (a_list_of_other_text, "is no JSON; check HF_ENDPOINT and the proxy"),
    (a_list_without_end, "answered with more than 16777216 bytes"),
    (a_list_that_unpacks_to_gigabytes, "sent it packed as 'gzip', unasked"),
    (redirects_without_end, "sends from address to address without end"),
    (a_redirect_to_a_file, "no request can be made of it|broke off"),
    (a_redirect_to_nowhere, "no request can be made of it|broke off"),
    (a_file_longer_than_its_size, "sends more than the .* bytes of m.gguf; do not trust it"),
    (a_file_without_end, "sends more than the .* bytes of m.gguf; do not trust it"),
    (a_file_shorter_than_its_size, "bytes of m.gguf"),
    (parts_of_other_places, "answered with 'bytes 7-.* and was asked from byte 0"),
    (weights_that_unpack_to_gigabytes, "sent it packed as 'gzip, gzip', unasked"),
    (a_gguf_header_of_gigabytes, "has a string of 99000000000 bytes; expected at most"),
    (a_gguf_header_without_end, "expected at most|its header has more than"),
    (a_gguf_file_of_other_bytes, r"expected 47 47 55 46 \(GGUF\)"),
    (a_safetensors_header_of_gigabytes, "it begins with a promise of 5000000000 bytes of header"),
    (a_configuration_that_nests, "found no JSON|values; expected at most"),
    (a_configuration_of_absurd_numbers, "expected|absurd|at most"),
    (a_tokenizer_of_gigabytes, r"tokenizer\.json has 9000000000 bytes; expected at most"),
    (an_index_that_leads_elsewhere, r"the shard '\.\./.*' is a path; expected the plain name"),
    (an_index_of_many_shards, "names 5000 shards, of which .* lacks 5000"),
]  # fmt: skip


@pytest.mark.parametrize(("prepare", "words"), HOSTILE, ids=[prepare.__name__ for prepare, _ in HOSTILE])
def test_a_hostile_repository(
    hub: Hub,
    gguf: bytes,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Prepare,
    words: str,
) -> None:
    prepare(hub, gguf)
    monkeypatch.setattr("glinfer.hub.download.free_bytes", lambda path: 1 << 60)
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
    assert not [each for each in tmp_path.rglob("*") if each.is_file() or each.is_symlink()]
    assert not list(cache.rglob("models--*")), "nor are there empty folders"


def test_ten_thousand_files_are_a_repository_like_any_other(hub: Hub, gguf: bytes, cache: Path) -> None:
    hub.add(NAME, {**{f"folder/{number}.txt": b"" for number in range(10_000)}, "m-Q8_0.gguf": gguf})
    assert Path(found_model(NAME)).read_bytes() == gguf
    assert [each.name for each in cache.rglob("*") if each.is_symlink()] == ["m-Q8_0.gguf"]
    files = {f"m{number}-Q8_0.gguf": b"" for number in range(10_000)}
    hub.add(NAME, files)
    with pytest.raises(HubError, match=r"10000 files of Q8_0; choose one of .* and 9976 more"):
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


@pytest.mark.parametrize("text", ["../../../outside", "x" * 40, "", "\0" * 40, "A" * 40, "é" * 40])
def test_a_ref_of_the_cache_that_is_a_path_is_none(hub: Hub, cache: Path, text: str) -> None:
    folder = cache / "models--org--harm" / "refs"
    folder.mkdir(parents=True)
    (folder / "main").write_text(text, encoding="utf-8")
    assert RepositoryCache(NAME).repository(HubName(NAME)) is None


def test_holes_of_a_published_family_need_room_in_memory(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such models are read whole: weights that are holes would still take their size in memory."""
    monkeypatch.setenv("GLINFER_MEMORY", "0.1")
    shape = {"model_type": "gpt2", "n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 258, "n_positions": 96}
    files = hugging_face_files()
    files["config.json"] = json.dumps({**shape, "architectures": ["GPT2LMHeadModel"]}).encode()
    repo = hub.add(NAME, files)
    repo.answer = repo.listing(NAME)
    for each in repo.answer["siblings"]:
        if each["rfilename"] == "model.safetensors":
            each["lfs"]["size"] = each["size"] = 1 << 30
    words = r"reading this model takes .* of memory, and .* are free here"
    with pytest.raises(GlinferError, match=words), described_model(NAME):
        pass
