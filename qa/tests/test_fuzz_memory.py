"""The most memory that the largest files of their kind take, measured in processes of their own.

Models: twice the file and 128 MB. Vocabularies, of which the library makes tables: twice the file and 1 GB.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiers import tiered

from qa.fuzz import seeds
from qa.fuzz.reads import put
from qa.fuzz.watch import MEMORY

pytestmark = pytest.mark.fuzz

MODEL, VOCABULARY = MEMORY, 1 << 30
STATUS = Path("/proc/self/status")
PROGRAM = """
import re, sys
from pathlib import Path
from glinfer.errors import GlinferError
from glinfer.formats import load_checkpoint
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.json_files import read_json
from glinfer.text.tokenizer import Tokenizer
from tests.helpers.counting import Calls

def peak(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

def tokenizer(path):
    found = Tokenizer.from_file(path)
    found.encode("hello"), found.encode("hello", allow_special=False)

readers = {"gguf": read_gguf_file, "json": lambda path: read_json(path, 1 << 27), "model": load_checkpoint,
           "tokenizer": tokenizer}
read, path, small = readers[sys.argv[1]], Path(sys.argv[2]), Path(sys.argv[3])
try:
    read(small)
except GlinferError:
    pass
Path("/proc/self/clear_refs").write_text("5")
before = peak("VmHWM")
try:
    with Calls() as calls:
        read(path)
    told = "accepted"
except GlinferError as error:
    told = str(error)
print(peak("VmHWM") - before, calls.count, told)
"""


def taken(kind: str, path: Path, small: Path) -> tuple[int, int, str]:
    """Bytes and calls of functions that reading a file took, after a small one was read, and what came of it."""
    if not STATUS.exists():
        pytest.skip("the most memory of a process is only told by Linux")
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-c", PROGRAM, kind, str(path), str(small)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    nbytes, calls, told = done.stdout.strip().split(" ", 2)
    return int(nbytes), int(calls), told


def gguf(element: int, count: int, values: bytes) -> bytes:
    head = struct.pack("<I2Q", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<2IQ", 9, element, count)
    return b"GGUF" + head + values


def numbers() -> bytes:
    return gguf(11, 1 << 21, np.arange(1 << 21, dtype="<i8").tobytes())


def strings() -> bytes:
    return gguf(8, 1 << 19, b"".join(struct.pack("<Q", 4) + b"%04x" % (index & 0xFFFF) for index in range(1 << 19)))


def values() -> bytes:
    return b'{"a":[' + b"{}," * ((1 << 19) - 2) + b"0]}"


def header() -> bytes:
    entries = b",".join(b'"%x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % index for index in range(55_000))
    text = b"{" + entries + b"}"
    return struct.pack("<Q", len(text)) + text


def merges() -> bytes:
    """Two bytes each, then three: as many as a BPE1 file may have."""
    pairs = [(left, right) for left in range(256) for right in range(256)]
    pieces = [bytes(pair) for pair in pairs]
    for index in range(3):
        pairs += [(256 + place, index) for place in range(65536)]
        pieces += [piece + bytes([index]) for piece in pieces[:65536]]
    pieces = [bytes([value]) for value in range(256)] + pieces
    made = struct.pack("<4I", 0x42504531, 1, len(pieces), len(pairs))
    made += b"".join(struct.pack("<3I", *pair, 256 + index) for index, pair in enumerate(pairs))
    made += struct.pack("<I", len(pieces))
    return made + b"".join(struct.pack("<2I", token, len(piece)) + piece for token, piece in enumerate(pieces))


def doubling() -> bytes:
    pairs = [[97, 97], *([256 + index, 256 + index] for index in range(19))]
    return json.dumps({"merges": pairs}).encode()


@tiered(
    ("kind", "name", "make", "small", "most"),
    [
        ("gguf", "a.gguf", numbers, lambda: seeds.ggufs()[0], MODEL),
        ("gguf", "a.gguf", strings, lambda: seeds.ggufs()[0], MODEL),
        ("json", "a.json", values, lambda: b"{}", MODEL),
        ("model", "a.safetensors", header, lambda: seeds.own_safetensors()[0], MODEL),
        ("tokenizer", "a.bpe", merges, seeds.bpe, VOCABULARY),
        ("tokenizer", "a.json", doubling, lambda: seeds.merges_json()[0], VOCABULARY),
    ],
    keep=(0, 2),
    ids=["numbers", "strings", "values", "header", "merges", "doubling"],
)
def test_no_file_takes_more(
    kind: str, name: str, make: Callable[[], bytes], small: Callable[[], bytes], most: int, tmp_path: Path
) -> None:
    data = make()
    path, first = put(tmp_path, name, data), put(tmp_path, f"small-{name}", small())
    nbytes, calls, told = taken(kind, path, first)
    print(f"{len(data) / 2**20:.1f} MiB: {nbytes / 2**20:.1f} MiB, {calls} calls, {told[:100]}")
    assert nbytes < 2 * len(data) + most, told
    assert calls < 100_000 + len(data), told
