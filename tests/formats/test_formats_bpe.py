"""BPE1: round trips, and every contradiction in a file is refused in one line."""

from __future__ import annotations

import re
import struct
import tracemalloc
from pathlib import Path

import pytest
from each_case import each_case
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refusal_by

from glinfer.errors import FormatError
from glinfer.formats import BpeModel, read_bpe, write_bpe

MAGIC = 0x42504531
BYTES = tuple(bytes([i]) for i in range(256))
MERGES = ((104, 105, 256), (256, 33, 257))  # "hi", "hi!"
PIECES = (*BYTES, b"hi", b"hi!")


def _file(
    *,
    magic: int = MAGIC,
    version: int = 1,
    next_id: int = 258,
    merge_count: int | None = None,
    merges: tuple[tuple[int, int, int], ...] = MERGES,
    entry_count: int | None = None,
    entries: tuple[tuple[int, bytes], ...] = tuple(enumerate(PIECES)),
    tail: bytes = b"",
) -> bytes:
    """A BPE1 file, correct but for what is said otherwise."""
    parts = [struct.pack("<4I", magic, version, next_id, len(merges) if merge_count is None else merge_count)]
    parts += [struct.pack("<3I", *merge) for merge in merges]
    parts += [struct.pack("<I", len(entries) if entry_count is None else entry_count)]
    parts += [struct.pack("<2I", token, len(piece)) + piece for token, piece in entries]
    return b"".join(parts) + tail


def _pieces(*pieces: bytes) -> bytes:
    return _file(entries=tuple(enumerate(pieces)))


def _last(token: int, piece: bytes) -> bytes:
    return _file(entries=(*enumerate(PIECES[:257]), (token, piece)))


SIZE = len(_file())


def _refusal(tmp_path: Path, data: bytes) -> str:
    return refusal_by(read_bpe, tmp_path / "bad.bpe", data)


def test_reading_gives_what_the_file_says_and_writing_gives_it_back(tmp_path: Path) -> None:
    (tmp_path / "in.bpe").write_bytes(_file())
    model = read_bpe(tmp_path / "in.bpe")
    assert model == BpeModel(MERGES, PIECES)
    write_bpe(model, tmp_path / "out.bpe")
    assert (tmp_path / "out.bpe").read_bytes() == _file()
    (tmp_path / "in.bpe").write_bytes(_file(entries=tuple(enumerate(PIECES))[::-1]))
    assert read_bpe(tmp_path / "in.bpe") == model, "the vocabulary may come in any order"


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 2**31)), max_size=12))
def test_any_model_round_trips(tmp_path_factory: pytest.TempPathFactory, draws: list[tuple[int, int]]) -> None:
    merges: list[tuple[int, int, int]] = []
    pieces = list(BYTES)
    for a, b in draws:
        left, right = a % len(pieces), b % len(pieces)
        if pieces[left] + pieces[right] not in pieces:
            merges.append((left, right, len(pieces)))
            pieces.append(pieces[left] + pieces[right])
    model = BpeModel(tuple(merges), tuple(pieces))
    path = tmp_path_factory.mktemp("bpe") / "m.bpe"
    write_bpe(model, path)
    assert read_bpe(path) == model


def test_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    for length in (*range(0, 60), *range(60, SIZE - 40, 37), *range(SIZE - 40, SIZE)):
        assert re.search(r"found \d+ bytes; expected|only \d+ are left", _refusal(tmp_path, _file()[:length]))


@each_case(
    ("data", "message"),
    [
        (_file(magic=0x31455042), "magic is 0x31455042; expected 0x42504531"),
        (_file(magic=0x47414231), "this is a GAB1 checkpoint (magic 0x47414231); expected a BPE1 tokenizer"),
        (_file(version=2), "BPE version is 2, which is not supported; expected 1"),
        (_file(next_id=257), "the next id is 257; expected 258: 256 bytes and 2 merges"),
        (_file(merge_count=1), "the next id is 258; expected 257"),
        (_file(merge_count=3, next_id=259), "the vocabulary has "),
        (_file(entry_count=257), "the vocabulary has 257 entries; expected 258, the next id"),
        (_file(entry_count=0xFFFFFFFF), "the vocabulary has 4294967295 entries; expected 258"),
        (_file(tail=b"\n"), f"padded: found {SIZE + 1} bytes; expected {SIZE}: 1 bytes follow"),
        (_last(258, b"hi!"), "vocabulary entry 257 has id 258; expected 0 to 257"),
        (_last(7, b"hi!"), "vocabulary entry 257 has id 7 again; expected every id once"),
        (_pieces(*PIECES[:65], b"B", b"A", *PIECES[67:]), "id 65 is b'B'; expected the single byte b'A'"),
        (_pieces(b"", *PIECES[1:]), "id 0 is b''; expected the single byte b'\\x00'"),
        (_pieces(*BYTES, b"ho", b"hi!"), "id 256 is b'ho'; expected b'hi', which merge 0 makes of ids 104 and 105"),
        (_file(merges=((104, 105, 257), (257, 33, 256))), "merge 0 makes id 257; expected the next id, 256"),
        (_file(merges=((104, 105, 256), (256, 33, 256))), "merge 1 makes id 256; expected the next id, 257"),
        (_file(merges=((104, 256, 256), (256, 33, 257))), "merge 0 uses id 256; expected one made before it, 0 to 255"),
        (
            _file(merges=((104, 105, 256), (104, 105, 257)), entries=tuple(enumerate((*BYTES, b"hi", b"hi")))),
            "ids 256 and 257 are both b'hi'; expected every piece once",
        ),
    ],
)
def test_what_contradicts_itself(tmp_path: Path, data: bytes, message: str) -> None:
    assert _refusal(tmp_path, data).startswith(message)


@each_case(
    "data",
    [
        struct.pack("<4I", MAGIC, 1, 0xFFFFFFFF, 0xFFFFFFFF - 256),  # 51 GB of merges
        struct.pack("<4I", MAGIC, 1, 256, 0) + struct.pack("<3I", 256, 0, 0xFFFFFFFF) + bytes(4000),
    ],
)
def test_huge_counts_and_lengths_allocate_nothing(tmp_path: Path, data: bytes) -> None:
    tracemalloc.start()
    try:
        message = _refusal(tmp_path, data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert message.startswith("truncated: ")


def test_a_model_made_by_hand_is_checked_too() -> None:
    with pytest.raises(FormatError, match="the vocabulary has 256 entries; expected 258"):
        BpeModel(MERGES, BYTES)
    with pytest.raises(FormatError, match="merge 1 uses id -2; expected one made before it, 0 to 256"):
        BpeModel(((104, 105, 256), (-2, 33, 257)), PIECES)
