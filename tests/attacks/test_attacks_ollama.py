"""Attacks on Ollama, tried here: lengths and offsets in GGUF files that lie, digests of a registry that are paths."""

from __future__ import annotations

import hashlib
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from counting import calls_of
from hub_server import Hub
from tiers import tiered

from glinfer.engine.fetching import found_model
from glinfer.errors import FormatError, HubError
from glinfer.export.convert import convert_model
from glinfer.formats import load_checkpoint
from qa.fuzz.mutate import build_gguf, parse_gguf
from qa.fuzz.seeds import ggufs

NAME = "org/model"
LENGTHS = (17, 1 << 20, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def refused(path: Path, words: str) -> None:
    """One line, by few calls and in little memory."""
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=words) as caught:
            load_checkpoint(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert str(caught.value).isprintable()

    def again() -> None:
        with pytest.raises(FormatError):
            load_checkpoint(path)

    assert calls_of(again) < 5000


@tiered("seed", range(0, len(ggufs()), 3))
def test_cve_2026_7482(tmp_path: Path, seed: int) -> None:
    """Tensors whose offset and size go beyond the file: quantizing read what lay behind it in memory, and kept it."""
    path, made = tmp_path / "m.gguf", tmp_path / "made.gguf"
    whole = parse_gguf(ggufs()[seed])
    size = len(whole["data"])
    for place in range(len(whole["tensors"])):
        for offset in (size, size & ~31, 1 << 31, 1 << 46, 1 << 62, (1 << 64) - 32):
            parts = parse_gguf(ggufs()[seed])
            parts["tensors"][place][3] = offset
            path.write_bytes(build_gguf(parts))
            with pytest.raises(FormatError) as caught:
                convert_model(path, made, dtype="q8_0", with_tokenizer=False)
            assert str(caught.value).isprintable()
            assert not list(tmp_path.glob("made*")), "nothing is written, not even a part of it"
    for cut in (size // 2, size - 1, size):
        path.write_bytes(ggufs()[seed][:-cut])
        refused(path, "bytes")


def with_length(length: int, where: str) -> bytes:
    """A GGUF file of some dozen bytes with one length in it that lies."""
    long, key = struct.pack("<Q", length), struct.pack("<Q", 1) + b"a"
    entry = {
        "key": long,
        "value": key + struct.pack("<I", 8) + long,
        "array": key + struct.pack("<2I", 9, 4) + long,
        "strings": key + struct.pack("<2IQ", 9, 8, 2) + long,
        "nested": key + struct.pack("<2IQI", 9, 9, 1, 4) + long,
        "tensor": long,
    }.get(where, b"a" * 4)
    counts = {"tensor": (1, 0), "tensors": (length, 0), "entries": (0, length)}.get(where, (0, 1))
    return b"GGUF" + struct.pack("<I2Q", 3, *counts) + entry + b"a" * 12


@pytest.mark.parametrize("where", ["key", "value", "array", "strings", "nested", "tensor", "tensors", "entries"])
def test_cve_2025_66959(tmp_path: Path, where: str) -> None:
    """A length in the file that nobody checks against the file: the decoder panicked where it made room for it."""
    path = tmp_path / "m.gguf"
    for length in LENGTHS:
        path.write_bytes(with_length(length, where))
        refused(path, r"m\.gguf: ")


def test_cve_2025_66960(tmp_path: Path) -> None:
    """The same in strings of version 1, whose length of 0 was cut to -1: that version is refused before any string."""
    path = tmp_path / "m.gguf"
    for length in (0, 1, *LENGTHS):
        path.write_bytes(b"GGUF" + struct.pack("<3I", 1, 0, 1) + struct.pack("<Q", length) + b"a" * 12)
        refused(path, "version 1")
    path.write_bytes(build_gguf({**parse_gguf(ggufs()[0]), "version": 1}))
    refused(path, "version 1")


PATHS = (
    "../../../../outside",
    "/tmp/glinfer-outside",
    "..",
    "sha256:" + "../" * 8 + "outside",
    "a/../../../outside",
    "\0",
)


def entries(hub: Hub, data: bytes, **changes: Any) -> None:
    size = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), **changes}
    repo = hub.add(NAME, {"m.gguf": data})
    repo.answer = {"sha": repo.commit, "siblings": [{"rfilename": "m.gguf", "size": len(data), "lfs": size}]}


@pytest.mark.parametrize("digest", PATHS)
def test_cve_2026_7020(hub: Hub, gguf: bytes, cache: Path, tmp_path: Path, digest: str) -> None:
    """A digest of a tensor that is a path: it became the name of the file that was read and written."""
    entries(hub, gguf, sha256=digest)
    with pytest.raises(HubError, match="with invalid names, sizes or hashes were skipped"):
        found_model(NAME)
    assert not [each for each in tmp_path.rglob("*") if each.is_file() or each.is_symlink()]
    assert not Path("/tmp/glinfer-outside").exists()


@pytest.mark.parametrize("path", PATHS)
def test_cve_2024_37032(hub: Hub, gguf: bytes, cache: Path, tmp_path: Path, path: str) -> None:
    """A registry of one's own whose manifest names files by paths: pulling wrote wherever they led, and ran code so."""
    values = {"size": len(gguf), "sha256": hashlib.sha256(gguf).hexdigest()}
    for answer in (
        {"sha": "a" * 40, "siblings": [{"rfilename": f"{path}.gguf", "size": len(gguf), "lfs": values}]},
        {"sha": path, "siblings": [{"rfilename": "m.gguf", "size": len(gguf), "lfs": values}]},
    ):
        hub.add(NAME, {"m.gguf": gguf}).answer = answer
        with pytest.raises(HubError):
            found_model(NAME)
    # An answer of the storage that calls the file by a path changes nothing of where it lies.
    entries(hub, gguf)
    hub.faults.append(
        lambda handler: (
            handler.origin == "storage"
            and handler.reply(200, {"ETag": f'"{path}"'.replace("\0", ""), "Content-Disposition": "x"}, gguf)
        )
    )
    kept = Path(found_model(NAME))
    assert kept.read_bytes() == gguf
    assert kept.resolve().is_relative_to(cache.resolve())
    assert not Path("/tmp/glinfer-outside").exists()
