"""Streamed text against the one-shot decoding of all bytes."""

from __future__ import annotations

import codecs
import itertools
from typing import Any

import pytest
from each_case import each_case
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glinfer.errors import InputError
from glinfer.text.assembler import TextAssembler


def expected(data: bytes, stop: list[str]) -> tuple[str, str | None]:
    """The definition: decode everything, look at every place in turn, longest stop string first."""
    text = data.decode("utf-8", errors="replace")
    for at in range(len(text)):
        for candidate in sorted(stop, key=len, reverse=True):
            if text.startswith(candidate, at):
                return text[:at], candidate
    return text, None


def run(pieces: list[bytes], stop: list[str]) -> tuple[str, str | None]:
    assembler = TextAssembler(stop)
    shown = "".join(assembler.push(piece) for piece in pieces) + assembler.finish()
    assert assembler.stopped == (assembler.stop_string is not None)
    return shown, assembler.stop_string


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(places)]


# Letters few enough to overlap, characters of two to four bytes, and halves of characters.
stream = st.one_of(
    st.binary(max_size=24),
    st.lists(
        st.sampled_from([b"a", b"b", "é".encode(), "😀".encode(), b"\xf0\x9f", b"\xe2\x82", b"\xff"]), max_size=16
    ).map(b"".join),
)
stops = st.lists(st.text(alphabet="abé😀\ufffd", min_size=1, max_size=5), max_size=4)


@settings(max_examples=25)
@given(stream, st.lists(st.integers(0, 100), max_size=10), stops)
@example(b"aab", [1, 2], ["aab", "ab", "b"])
@example(b"abab", [3], ["ababc", "ba"])
@example(b"\xf0\x9f\x98\xff", [1, 2, 3], ["\ufffd\ufffd"])
@example(b"\xed\xa0\x80a", [1, 2], [])
def test_joined_pieces_are_the_cut_text_however_the_bytes_were_split(
    data: bytes, cuts: list[int], stop: list[str]
) -> None:
    assert run(split(data, cuts), stop) == expected(data, stop)


@settings(max_examples=25)
@given(stream, stops)
def test_nothing_is_held_back_without_a_reason(data: bytes, stop: list[str]) -> None:
    """Of the whole characters so far, what is not shown is itself the beginning of a stop string."""
    assembler = TextAssembler(stop)
    shown = ""
    for end in range(1, len(data) + 1):
        shown += assembler.push(data[end - 1 : end])
        whole_characters = codecs.getincrementaldecoder("utf-8")("replace").decode(data[:end])
        if assembler.stopped:
            assert shown == expected(data[:end], stop)[0]
            break
        assert whole_characters.startswith(shown)
        held = whole_characters[len(shown) :]
        assert not held or any(s.startswith(held) and s != held for s in stop)


def test_split_characters_come_whole_and_bad_bytes_become_replacement_characters() -> None:
    assembler = TextAssembler()
    assert [assembler.push(bytes([b])) for b in "é😀!".encode()] == ["", "é", "", "", "", "😀", "!"]
    assert assembler.push(b"a\xff") == "a\ufffd"
    assert assembler.push(b"\xe2\x82") == ""
    assert assembler.push(b"b") == "\ufffdb"
    assert assembler.push(b"\xf0\x9f") == ""
    assert assembler.finish() == "\ufffd"
    assert assembler.finish() == ""
    with pytest.raises(InputError, match="finished"):
        assembler.push(b"a")


@each_case(
    ("stop", "words"),
    [
        (5, "stop is int"),
        (b"end", "stop is bytes"),
        (["ok", ""], "stop string 1 is empty"),
        (["ok", None], "stop string 1 is NoneType"),
    ],
)
def test_bad_stop_strings(stop: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        TextAssembler(stop)
