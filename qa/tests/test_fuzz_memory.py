"""The most memory that the largest files of their kind take in a process: twice the file and 128 MB."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from own_process import ran

from qa.fuzz import seeds
from qa.fuzz.reads import put
from qa.fuzz.watch import MEMORY

pytestmark = [pytest.mark.fuzz, pytest.mark.slow]

STATUS = Path("/proc/self/status")
PROGRAM = """
import re, sys
from pathlib import Path
from glinfer.errors import GlinferError
from glinfer.formats import load_checkpoint
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.json_files import read_json
from tests.helpers.counting import Calls

def peak(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

readers = {"gguf": read_gguf_file, "json": lambda path: read_json(path, 1 << 27), "model": load_checkpoint}
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
    (said,) = ran(PROGRAM, kind, path, small)
    nbytes, calls, told = said.split(" ", 2)
    return int(nbytes), int(calls), told


def gguf(element: int, count: int, values: bytes) -> bytes:
    head = struct.pack("<I2Q", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<2IQ", 9, element, count)
    return b"GGUF" + head + values


def numbers() -> bytes:
    return gguf(11, 1 << 21, np.arange(1 << 21, dtype="<i8").tobytes())


def values() -> bytes:
    return b'{"a":[' + b"{}," * ((1 << 19) - 2) + b"0]}"


def header() -> bytes:
    entries = b",".join(b'"%x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % index for index in range(55_000))
    text = b"{" + entries + b"}"
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    ("kind", "name", "make", "small"),
    [
        ("gguf", "a.gguf", numbers, lambda: seeds.ggufs()[0]),
        ("json", "a.json", values, lambda: b"{}"),
        ("model", "a.safetensors", header, lambda: seeds.own_safetensors()[0]),
    ],
    ids=["numbers", "values", "header"],
)
def test_no_file_takes_more(
    kind: str, name: str, make: Callable[[], bytes], small: Callable[[], bytes], tmp_path: Path
) -> None:
    data = make()
    path, first = put(tmp_path, name, data), put(tmp_path, f"small-{name}", small())
    nbytes, calls, told = taken(kind, path, first)
    assert nbytes < 2 * len(data) + MEMORY, told
    assert calls < 100_000 + len(data), told
