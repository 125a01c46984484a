"""Damage with a knowledge of the formats: the outer frame stays valid, what lies inside it does not.

A :class:`Form` takes a file apart into a document of dictionaries, lists, numbers, texts and bytes. One step of
:func:`damaged` changes that document, and the form puts it together again, with lengths and counts that agree. What
cannot be taken apart, or not be put together, is damaged as plain bytes.
"""

from __future__ import annotations

import io
import json
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import PurePath
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


def _other_value(old: Any, random: Random, words: Sequence[Any]) -> Any:
    """Another value in the place of an old one."""
    chance = random.random()
    if isinstance(old, (str, bytes)):
        word = str(random.choice([*words, *TEXTS]))
        at = random.randrange(len(old) + 1)
        if isinstance(old, bytes):
            whole = word.encode(errors="surrogatepass")
            spliced = old[:at] + whole + old[at + random.choice((0, 0, 5)) :]
            return any_bytes(old, random) if chance < 0.4 else spliced if chance < 0.8 else whole
        if chance < 0.5:
            start = random.randrange(len(old) + 1)
            piece = random.choice((word, word, old[start : start + 40], ""))
            return old[:at] + piece + old[at + random.choice((0, 0, random.randrange(12))) :]
    elif isinstance(old, int) and not isinstance(old, bool) and chance < 0.6:
        return number(random, old)
    choices = [number(random), random.choice(TEXTS), json.loads(random.choice(RAW_JSON[:19]))]
    return deepcopy(random.choice([random.choice(words)] * 3 + choices if words else choices))


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
            holder[key:key] = [deepcopy(holder[key]) for _ in range(random.choice((1, 1, 2, 30)))]
        case 3:
            holder[key] = deepcopy(other[other_key])
        case 4:
            holder[key], other[other_key] = deepcopy(other[other_key]), deepcopy(holder[key])
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


BYTES = Form(bytes, bytes_of)
JSON = Form(json_or_bytes, bytes_of, json_text)
LINES = Form(
    lambda data: [json_or_bytes(line) for line in data.split(b"\n")],
    lambda document: b"\n".join(map(bytes_of, document)),
)


# Formats of numbers and of texts after their lengths


class _Reader:
    """Takes numbers and texts off the front of a file."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self, code: str) -> Any:
        (found,) = struct.unpack_from(f"<{code}", self.data, self.at)
        self.at += struct.calcsize(f"<{code}")
        return found

    def piece(self, code: str) -> bytes:
        length = self.number(code)
        found = self.data[self.at : self.at + length]
        self.at += length
        if len(found) < length:
            raise ValueError("truncated")
        return found

    def several(self, count: int, read: Callable[[], Any]) -> list[Any]:
        if count > 1 << 16:
            raise ValueError("too many")
        return [read() for _ in range(count)]


def _number(code: str, value: Any) -> bytes:
    """A number, cut to its width."""
    width = struct.calcsize(f"<{code}")
    return struct.pack(f"<{code}", value) if code in "fd" else (int(value) % (1 << 8 * width)).to_bytes(width, "little")


def _numbers(code: str, values: Sequence[Any]) -> bytes:
    return b"".join(_number(code, value) for value in values)


def _parse_safetensors(data: bytes) -> dict[str, Any]:
    (length,) = struct.unpack_from("<Q", data)
    return {"header": json.loads(data[8 : 8 + length]), "data": data[8 + length :]}


def build_safetensors(document: dict[str, Any]) -> bytes:
    """The file of a ``header`` and its ``data``."""
    header = bytes_of(document["header"])
    return _number("Q", len(header)) + header + bytes_of(document["data"])


def _build_gab(document: list[Any]) -> bytes:
    """A file whose data are as long as its header promises, unless that is far too long."""
    *header, body = *(field % (1 << 32) for field in document[:7]), bytes_of(document[7])
    _, _, vocab, width, _, blocks, context = header
    count = (2 * vocab + context + 2) * width + vocab + blocks * (12 * width + 9) * width
    if count < 1 << 14:
        body = (body * (1 + 4 * count // max(1, len(body))))[: 4 * count]
    return _numbers("I", header) + body


def _parse_bpe(data: bytes) -> dict[str, Any]:
    """``more`` is by how much the counts are off."""
    reader = _Reader(data)
    *header, count = (reader.number("I") for _ in range(4))
    merges = reader.several(count, lambda: [reader.number("I") for _ in range(3)])
    pieces = reader.several(reader.number("I"), lambda: [reader.number("I"), reader.piece("I")])
    return {"header": header, "merges": merges, "pieces": pieces, "more": [0, 0]}


def _build_bpe(document: dict[str, Any]) -> bytes:
    header, merges, pieces, more = document.values()
    made = _numbers("I", [*header, len(merges) + more[0]]) + b"".join(_numbers("I", merge) for merge in merges)
    made += _number("I", len(pieces) + more[1])
    return made + b"".join(_numbers("I", (token, len(piece))) + piece for token, piece in pieces)


# GGUF

_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


def parse_gguf(data: bytes) -> dict[str, Any]:
    """Entries ``[key, type, value]`` and tensors ``[name, dimensions, type, offset]``.

    The value of an array is its elements' type and their list; ``more`` is by how much the counts are off.

    Raises:
        ValueError, struct.error, KeyError: the file cannot be taken apart.
    """
    reader = _Reader(data)
    if reader.number("4s") != b"GGUF":
        raise ValueError("no GGUF file")

    def text() -> str:
        return reader.piece("Q").decode(errors="replace")

    def value(kind: int) -> Any:
        if kind == ARRAY:
            element = reader.number("I")
            return [element, reader.several(reader.number("Q"), lambda: value(element))]
        return text() if kind == STRING else reader.number(_CODES[kind])

    def entry() -> list[Any]:
        key, kind = text(), reader.number("I")
        return [key, kind, value(kind)]

    def tensor() -> list[Any]:
        return [text(), reader.several(reader.number("I"), lambda: reader.number("Q")), *map(reader.number, "IQ")]

    version, count, of_entries = map(reader.number, "IQQ")
    entries, tensors = reader.several(of_entries, entry), reader.several(count, tensor)
    whole = data[reader.at + -reader.at % _alignment(entries) :]
    return {"version": version, "entries": entries, "tensors": tensors, "more": [0, 0], "data": whole}


def build_gguf(document: dict[str, Any]) -> bytes:
    """The file of what :func:`parse_gguf` returns; raises any error where it is too damaged for that."""
    version, entries, tensors, more, data = document.values()

    def text(value: Any) -> bytes:
        encoded = str(value).encode(errors="surrogatepass")
        return _number("Q", len(encoded)) + encoded

    def value(kind: int, given: Any) -> bytes:
        if kind == ARRAY:
            element, values = given
            return _number("I", element) + _number("Q", len(values)) + b"".join(value(element, each) for each in values)
        return text(given) if kind == STRING else _number(_CODES.get(kind, "B"), given)

    made = b"GGUF" + _number("I", version) + _numbers("Q", (len(tensors) + more[0], len(entries) + more[1]))
    made += b"".join(text(key) + _number("I", kind) + value(kind, given) for key, kind, given in entries)
    for name, dimensions, kind, offset in tensors:
        made += text(name) + _number("I", len(dimensions)) + _numbers("Q", dimensions)
        made += _number("I", kind) + _number("Q", offset)
    return made + bytes(-len(made) % _alignment(entries)) + bytes_of(data)


def _alignment(entries: list[Any]) -> int:
    wanted = next((value for key, kind, value in entries if (key, kind) == ("general.alignment", 4)), 32)
    return wanted if 0 < wanted <= 4096 else 32


# Zip files

_SIGNATURES = {b"PK\x03\x04": 30, b"PK\x01\x02": 46, b"PK\x05\x06": 22}
"""The length of a local header, of an entry in the list, and of the list's end."""


def _parse_zip(data: bytes) -> list[Any]:
    """Each entry: its name, its method, its kind of file, and what it holds."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return [[each.filename, each.compress_type, each.external_attr, json_or_bytes(file.read(each))]
                for each in file.infolist()]  # fmt: skip


def build_zip(document: Sequence[Sequence[Any]]) -> bytes:
    """The file of such entries, whatever their names are."""
    made = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(made, "w") as file:
        warnings.simplefilter("ignore")  # names that are there already
        for name, method, kind, held in document:
            entry = zipfile.ZipInfo(name)
            entry.compress_type, entry.external_attr = method, kind % (1 << 32)
            file.writestr(entry, bytes_of(held))
    return made.getvalue()


def _other_fields(data: bytes, random: Random) -> bytes:
    """Numbers written over those of the zip format, or any bytes."""
    if random.random() < 0.3:
        return any_bytes(data, random)
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 3))):
        signature, length = random.choice(list(_SIGNATURES.items()))
        places = [match.start() for match in re.finditer(re.escape(signature), found)]
        if places:
            at, width = random.choice(places) + random.randrange(4, length, 2), random.choice((2, 4))
            old = int.from_bytes(found[at : at + width], "little")
            found[at : at + width] = _number("H" if width == 2 else "I", number(random, old))
    return bytes(found)


_FORMS = {
    ".json": JSON,
    ".jsonl": LINES,
    ".safetensors": Form(_parse_safetensors, build_safetensors),
    ".gab": Form(lambda data: [*struct.unpack_from("<7I", data), data[28:]], _build_gab),
    ".bpe": Form(_parse_bpe, _build_bpe),
    ".gguf": Form(parse_gguf, build_gguf),
    ".zip": Form(_parse_zip, build_zip, _other_fields, 0.6),
}


def form_of(name: str) -> Form:
    """The form of a file, by the ending of its name."""
    return _FORMS.get(PurePath(name).suffix, BYTES)
