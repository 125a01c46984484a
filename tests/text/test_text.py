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
        st.sampled_from([b"a", b"b", "é".encode(), "😀".encode(), b"\xf0\x9f", b"\xe2\x82", b"\xff"]),
        max_size=16,
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


def test_only_a_possible_start_of_a_stop_string_is_held_back() -> None:
    assembler = TextAssembler(["<|end|>"])
    assert assembler.push(b"a<b<|e") == "a<b"
    assert assembler.push(b"x") == "<|ex"
    assert assembler.push(b"<|en") == ""
    assert not assembler.stopped
    assert assembler.push(b"d|>gone") == ""
    assert assembler.stopped
    assert assembler.stop_string == "<|end|>"
    assert assembler.push(b"later") == ""
    assert assembler.finish() == ""


def test_finish_shows_the_start_of_a_stop_string_that_did_not_come() -> None:
    assembler = TextAssembler(["stop"])
    assert assembler.push(b"do not sto") == "do not "
    assert assembler.finish() == "sto"
    assert not assembler.stopped
    assert assembler.stop_string is None


def test_the_earliest_start_wins_even_if_another_is_complete_first() -> None:
    assembler = TextAssembler(["abcd", "c"])
    assert assembler.push(b"abc") == ""
    assert not assembler.stopped  # "abcd" starts earlier and may still come
    assert assembler.push(b"d") == ""
    assert assembler.stop_string == "abcd"

    assembler = TextAssembler(["abcd", "c"])
    assert assembler.push(b"abc") + assembler.push(b"x") == "ab"
    assert assembler.stop_string == "c"


def test_of_stop_strings_that_start_together_the_longest_is_reported() -> None:
    for rest, found in ((b"\n", "\n\n"), (b"x", "\n")):
        assembler = TextAssembler(["\n", "\n\n"])
        assert assembler.push(b"hi\n") == "hi"
        assert assembler.push(rest) == ""
        assert assembler.stop_string == found
    assembler = TextAssembler(["\n", "\n\n"])
    assert assembler.push(b"hi\n") + assembler.finish() == "hi"
    assert assembler.stop_string == "\n"


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
    with pytest.raises(InputError, match=words) as error:
        TextAssembler(stop)
    assert "\n" not in str(error.value)
