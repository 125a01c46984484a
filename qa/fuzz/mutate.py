"""Damage with a knowledge of the formats: the outer frame stays valid, what lies inside it does not.

A :class:`Form` takes a file apart into a document of dictionaries, lists, numbers, texts and bytes. One step of
:func:`damaged` changes that document, and the form puts it together again, with lengths and counts that agree. What
cannot be taken apart, or not be put together, is damaged as plain bytes.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

NUMBERS = (
    0, 1, 2, 3, 4, 7, 8, 16, 31, 32, 64, 127, 128, 255, 256, 1000, 4096, 65535, 65536, 1 << 20, 1 << 24, (1 << 24) + 1,
    (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip
TEXTS = (
    "", " ", "a", "\0", "\n", "é", "▁", "🚀", "\ud800", "../secret", "/etc/passwd", "..", ".", "C:\\x", "sub/x", "%s{}",
    "a" * 300, "<s>", "<0x0A>", "<0xZZ>", "true", "1", "-1", "1" * 30,
)  # fmt: skip
RAW_JSON = (
    "-0", "-1", "1.5", "-1.5", "1e400", "-1e400", "1e-400", "1e30", "0.1", "NaN", "Infinity", "true", "false", "null",
    "[]", "{}", "[[]]", "[null]", '{"":null}', "9" * 400, "9" * 5000, "[" * 2000 + "]" * 2000, '"\\ud800"', '"\\u0000"',
    "[1,2,3]", '["a","b"]', '"' + "x" * 3000 + '"',
)  # fmt: skip
_JSON_PART = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|[\[\]{}:,]')


def number(random: Random, old: int = 0) -> int:
    """A number that a reader may stumble over; often near the old one."""
    near = (old + 1, old - 1, 2 * old, old // 2, old ^ (1 << random.randrange(32)), -old)
    return random.choice(near) if random.random() < 0.5 else random.choice(NUMBERS)


def any_bytes(data: bytes, random: Random) -> bytes:
    """Plain bytes: flipped, cut, doubled, moved, or a number written over them."""
    found = bytearray(data)
    at = random.randrange(len(found) + 1)
    length = random.choice((1, 1, 2, 4, 8, 16, 64))
    match random.randrange(8):
        case 0 if at < len(found):
            found[at] ^= 1 << random.randrange(8)
        case 1 if at < len(found):
            found[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, 0x22, 0x7B, 0x5B, random.randrange(256)))
        case 2:
            del found[at : at + length]
        case 3:
            found[at:at] = found[at : at + length] * random.choice((1, 1, 3, 40))
        case 4:
            del found[at:]
        case 5:
            found += bytes(random.randrange(256) for _ in range(length))
        case 6:
            width = random.choice((1, 2, 4, 8))
            found[at : at + width] = (number(random) % (1 << (8 * width))).to_bytes(width, "little")
        case _:
            other = random.randrange(len(found) + 1)
            found[at : at + length] = found[other : other + length]
    return bytes(found)


def json_text(data: bytes, random: Random) -> bytes:
    """The letters of a document: one of its tokens replaced, left out or doubled."""
    parts = list(_JSON_PART.finditer(data))
    if not parts:
        return any_bytes(data, random)
    part = random.choice(parts)
    old = part[0]
    raw, text = random.choice(RAW_JSON).encode(), json.dumps(random.choice(TEXTS)).encode()
    return data[: part.start()] + random.choice((raw, b"", old + b"," + old, text)) + data[part.end() :]


# Documents


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    keys = document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for key in keys:
        yield document, key
        yield from _places(document[key])


def words_of(document: Any) -> Iterator[Any]:
    """The names and short values of a document, to be put where they do not belong."""
    for holder, key in _places(document):
        yield from (each for each in (key, holder[key]) if not isinstance(each, bytes) and len(str(each)) < 200)


def _copied(value: Any) -> Any:
    """A copy, so that a document stays a tree."""
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def _other_value(old: Any, random: Random, words: Sequence[Any]) -> Any:
    """Another value in the place of an old one."""
    chance = random.random()
    if isinstance(old, (str, bytes)):
        word = str(random.choice([*words, *TEXTS]))
        at = random.randrange(len(old) + 1)
        if isinstance(old, bytes):
            whole = word.encode(errors="surrogatepass")
            spliced = old[:at] + whole + old[at + random.choice((0, 0, 5)) :]
            return any_bytes(old, random) if chance < 0.4 else spliced if chance < 0.6 else whole
        if chance < 0.5:
            start = random.randrange(len(old) + 1)
            piece = random.choice((word, word, old[start : start + 40], ""))
            return old[:at] + piece + old[at + random.choice((0, 0, random.randrange(12))) :]
    elif isinstance(old, int) and not isinstance(old, bool) and chance < 0.6:
        return number(random, old)
    choices = [number(random), random.choice(TEXTS), json.loads(random.choice(RAW_JSON[:19]))]
    return _copied(random.choice([random.choice(words)] * 3 + choices if words else choices))


def damaged(document: Any, random: Random, words: Sequence[Any]) -> Any:
    """A document after one change: something left out, doubled, moved, renamed, added, or another value."""
    places = list(_places(document))
    if not places:
        return _other_value(document, random, words)
    (holder, key), (other, other_key) = random.choice(places), random.choice(places)
    names = [word for word in words if isinstance(word, str)] or ["x"]
    match random.randrange(9):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[random.choice(names if random.random() < 0.7 else TEXTS)] = holder.pop(key)
        case 2 if isinstance(holder, list):
            holder[key:key] = [_copied(holder[key]) for _ in range(random.choice((1, 1, 2, 30)))]
        case 3:
            holder[key] = _copied(other[other_key])
        case 4:
            holder[key], other[other_key] = _copied(other[other_key]), _copied(holder[key])
        case 5 if isinstance(holder, dict):
            holder[random.choice(names)] = _other_value(None, random, words)
        case _:
            holder[key] = _other_value(holder[key], random, words)
    return document


@dataclass(frozen=True)
class Form:
    """A format of files.

    Attributes:
        parse: takes a file apart; raises any error where it cannot.
        build: puts a document together; raises any error where it is too damaged for that.
        raw: damages a file without taking it apart.
        raw_odds: how often that is done, though it could be taken apart.
    """

    parse: Callable[[bytes], Any]
    build: Callable[[Any], bytes]
    raw: Callable[[bytes, Random], bytes] = any_bytes
    raw_odds: float = 0.15

    def damage(self, data: bytes, random: Random, words: Sequence[Any] = ()) -> bytes:
        """A file after one change; ``words`` are names and values that its reader knows. It never fails."""
        if random.random() >= self.raw_odds:
            try:
                return self.build(damaged(self.parse(data), random, words))
            except Exception:
                pass
        return self.raw(data, random)


def json_or_bytes(data: bytes) -> Any:
    """A document of JSON; what is none stays as it is."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data


def bytes_of(value: Any) -> bytes:
    """A document as JSON, or the bytes that it is."""
    return value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")


BYTES = Form(bytes, lambda data: data)
JSON = Form(json_or_bytes, bytes_of, json_text)
TEXT = Form(
    lambda data: [data.decode(errors="surrogateescape")],
    lambda document: "".join(map(str, document)).encode(errors="surrogatepass"),
)
LINES = Form(
    lambda data: [json_or_bytes(line) for line in data.split(b"\n")],
    lambda document: b"\n".join(map(bytes_of, document)),
)
"""JSON lines, one object each."""


def first_byte(*forms: Form) -> Form:
    """The form of cases whose first byte chooses a file, and with it the form of the rest."""

    def parse(data: bytes) -> list[Any]:
        return [data[0], forms[data[0] % len(forms)].parse(data[1:])]

    def build(document: list[Any]) -> bytes:
        place = int(document[0]) % 256
        return bytes([place]) + forms[place % len(forms)].build(document[1])

    return Form(parse, build, lambda data, random: data[:1] + forms[sum(data[:1]) % len(forms)].raw(data[1:], random))


# Formats of glinfer and of Hugging Face


def _parse_safetensors(data: bytes) -> dict[str, Any]:
    (length,) = struct.unpack_from("<Q", data)
    return {"header": json.loads(data[8 : 8 + length]), "data": data[8 + length :]}


def _build_safetensors(document: dict[str, Any]) -> bytes:
    header = bytes_of(document["header"])
    return struct.pack("<Q", len(header)) + header + bytes(document["data"])


def _build_gab(document: list[Any]) -> bytes:
    """A file whose data are as long as its header promises, unless that is far too long."""
    header, body = document[:7], bytes(document[7])
    _, _, vocab, width, _, blocks, context = header = [field % (1 << 32) for field in header]
    count = (2 * vocab + context + 2) * width + vocab + blocks * (12 * width + 9) * width
    if count < 1 << 14:
        body = (body * (1 + 4 * count // max(1, len(body))))[: 4 * count]
    return struct.pack("<7I", *header) + body


def _parse_bpe(data: bytes) -> dict[str, Any]:
    *header, count = struct.unpack_from("<4I", data)
    merges = [list(struct.unpack_from("<3I", data, 16 + 12 * index)) for index in range(min(count, 4096))]
    at = 16 + 12 * count
    (entries,) = struct.unpack_from("<I", data, at)
    at, pieces = at + 4, []
    for _ in range(min(entries, 4096)):
        token, length = struct.unpack_from("<2I", data, at)
        pieces.append([token, data[at + 8 : at + 8 + length]])
        at += 8 + length
    return {"header": header, "merges": merges, "pieces": pieces, "more": [count - len(merges), entries - len(pieces)]}


def _build_bpe(document: dict[str, Any]) -> bytes:
    header, merges, pieces, more = document.values()
    made = struct.pack("<4I", *(field % (1 << 32) for field in (*header, len(merges) + more[0])))
    made += b"".join(struct.pack("<3I", *(part % (1 << 32) for part in merge)) for merge in merges)
    made += struct.pack("<I", (len(pieces) + more[1]) % (1 << 32))
    return made + b"".join(struct.pack("<2I", token % (1 << 32), len(piece)) + piece for token, piece in pieces)


SAFETENSORS = Form(_parse_safetensors, _build_safetensors)
GAB = Form(lambda data: [*struct.unpack_from("<7I", data), data[28:]], _build_gab)
BPE = Form(_parse_bpe, _build_bpe)
