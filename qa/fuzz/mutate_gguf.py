"""GGUF files taken apart, damaged and put together again."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from qa.fuzz.mutate import TEXTS, Mutator, any_bytes, number

_WIDTHS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


@dataclass
class GgufEntry:
    """One piece of metadata: its key, its type's number, and its value; of an array, the elements' type too."""

    key: bytes
    kind: int
    value: Any
    element: int = 0


@dataclass
class GgufParts:
    """A GGUF file taken apart; a tensor is its name, dimensions, type's number and offset."""

    version: int = 3
    entries: list[GgufEntry] = field(default_factory=list)
    tensors: list[tuple[bytes, list[int], int, int]] = field(default_factory=list)
    data: bytes = b""
    alignment: int = 32

    def build(self, *, tensors: int | None = None, entries: int | None = None) -> bytes:
        """The file; with other counts than there are where they are given."""
        counts = [len(self.tensors) if tensors is None else tensors, len(self.entries) if entries is None else entries]
        made = b"GGUF" + struct.pack("<I2Q", self.version % (1 << 32), *(count % (1 << 64) for count in counts))
        for entry in self.entries:
            made += _text(entry.key) + struct.pack("<I", entry.kind)
            if entry.kind == ARRAY:
                made += struct.pack("<IQ", entry.element, len(entry.value))
                made += b"".join(_gguf_value(entry.element, value) for value in entry.value)
            else:
                made += _gguf_value(entry.kind, entry.value)
        for name, dimensions, kind, offset in self.tensors:
            made += _text(name) + struct.pack("<I", len(dimensions))
            made += b"".join(struct.pack("<Q", size % (1 << 64)) for size in dimensions)
            made += struct.pack("<IQ", kind % (1 << 32), offset % (1 << 64))
        return made + bytes(-len(made) % self.alignment) + self.data


def _text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _gguf_value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _text(value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass"))
    code = _WIDTHS.get(kind, "B")
    if code in "fd":
        number = float(value) if isinstance(value, (int, float)) and abs(value) < 1e38 else 1e38
        return struct.pack("<" + code, number)
    whole = int(value) if isinstance(value, (int, float)) and value == value and abs(value) < 1e38 else 0
    width = struct.calcsize("<" + code)
    return (whole % (1 << (8 * width))).to_bytes(width, "little")


def parse_gguf(data: bytes) -> GgufParts:
    """Take a GGUF file apart.

    Raises:
        ValueError: it is none that can be taken apart.
    """
    try:
        return _parse_gguf(data)
    except struct.error:
        raise ValueError("no GGUF file") from None


def _parse_gguf(data: bytes) -> GgufParts:
    magic, version, tensors, entries = struct.unpack_from("<4sI2Q", data)
    at = 24

    def take(code: str) -> Any:
        nonlocal at
        (found,) = struct.unpack_from("<" + code, data, at)
        at += struct.calcsize("<" + code)
        return found

    def text() -> bytes:
        nonlocal at
        length = take("Q")
        found = data[at : at + length]
        at += length
        if len(found) < length:
            raise ValueError("truncated")
        return found

    def value(kind: int) -> Any:
        if kind == STRING:
            return text()
        if kind not in _WIDTHS:
            raise ValueError("no such type")
        return take(_WIDTHS[kind])

    parts = GgufParts(version)
    if magic != b"GGUF" or max(tensors, entries) > 4096:
        raise ValueError("no GGUF file")
    for _ in range(entries):
        key, kind = text(), take("I")
        if kind == ARRAY:
            element, count = take("I"), take("Q")
            if count > 65536:
                raise ValueError("too many")
            parts.entries.append(GgufEntry(key, kind, [value(element) for _ in range(count)], element))
        else:
            parts.entries.append(GgufEntry(key, kind, value(kind)))
        if key == b"general.alignment" and kind == 4 and 0 < parts.entries[-1].value <= 4096:
            parts.alignment = parts.entries[-1].value
    for _ in range(tensors):
        name, count = text(), take("I")
        if count > 8:
            raise ValueError("too many dimensions")
        parts.tensors.append((name, [take("Q") for _ in range(count)], take("I"), take("Q")))
    parts.data = data[at + -at % parts.alignment :]
    return parts


def gguf_mutator(words: Sequence[Any] = ()) -> Mutator:
    """Damages a GGUF file: its metadata and its tensors' entries, with counts and lengths that agree or do not."""

    def other(entry: GgufEntry, random: Random) -> None:
        if entry.kind == ARRAY:
            _damage_list(entry.value, random, words)
        elif entry.kind == STRING:
            entry.value = str(random.choice([*TEXTS, *words])).encode(errors="surrogatepass")
        else:
            old = int(entry.value) if abs(entry.value) < 1e18 else 0
            entry.value = random.choice((number(random, old), -1.5, 1e-30, float("inf"), float("nan")))

    def mutate(data: bytes, random: Random) -> bytes:
        try:
            parts = parse_gguf(data)
        except ValueError:
            return any_bytes(data, random)
        match random.randrange(12):
            case 0:
                return any_bytes(data, random)
            case 1:
                return parts.build(tensors=number(random, len(parts.tensors)))
            case 2:
                return parts.build(entries=number(random, len(parts.entries)))
            case 3 if parts.tensors:
                _damage_tensor(parts, random)
            case 4 if parts.tensors:
                _damage_tensor(parts, random)
            case 5 if parts.entries:
                del parts.entries[random.randrange(len(parts.entries))]
            case 6 if parts.entries:
                entry = random.choice(parts.entries)
                entry.kind, entry.value = random.choice((4, 6, 7, 8, 12, 10)), entry.value if entry.kind != ARRAY else 0
                entry.value = 1 if isinstance(entry.value, bytes) and entry.kind != STRING else entry.value
            case 7:
                key = str(random.choice([*TEXTS, *words])).encode(errors="surrogatepass")
                kind = random.choice((4, 6, 7, STRING, ARRAY))
                value = [1, 2] if kind == ARRAY else random.choice((0, 1, 2, 1.5))
                parts.entries.append(GgufEntry(key, kind, value, 4))
            case 8:
                parts.data = any_bytes(parts.data, random)
            case _ if parts.entries:
                other(random.choice(parts.entries), random)
        made = parts.build()
        return any_bytes(made[: len(made) - len(parts.data)], random) + parts.data if random.random() < 0.1 else made

    return mutate


def _damage_list(values: list[Any], random: Random, words: Sequence[Any]) -> None:
    place = random.randrange(len(values)) if values else 0
    match random.randrange(5):
        case 0:
            del values[place:]
        case 1 if values:
            values[place:place] = [values[place]] * random.choice((1, 2, 40))
        case 2 if values:
            values[place] = random.choice(values)
        case 3 if values:
            del values[place]
        case _ if values:
            old = values[place]
            if isinstance(old, bytes):
                choice = [
                    *TEXTS,
                    *words,
                    (old + random.choice([text for text in values if isinstance(text, bytes)] or [b"a"])),
                ]
                new = random.choice(choice)
                values[place] = new if isinstance(new, bytes) else str(new).encode(errors="surrogatepass")
            else:
                values[place] = number(random, int(old) if abs(old) < 1e18 else 0)


def _damage_tensor(parts: GgufParts, random: Random) -> None:
    place = random.randrange(len(parts.tensors))
    name, dimensions, kind, offset = parts.tensors[place]
    dimensions = list(dimensions)
    match random.randrange(8):
        case 0 if dimensions:
            at = random.randrange(len(dimensions))
            dimensions[at] = number(random, dimensions[at])
        case 1:
            dimensions.append(random.choice((0, 1, 2, 1 << 40)))
        case 2 if dimensions:
            dimensions.pop()
        case 3:
            kind = random.choice((*range(42), number(random, kind)))
        case 4:
            offset = number(random, offset)
        case 5:
            del parts.tensors[place]
            return
        case 6:
            parts.tensors.append((name + random.choice((b"", b"x")), dimensions, kind, offset))
            return
        case _:
            name = random.choice((any_bytes(name, random), random.choice(parts.tensors)[0], b"rope_freqs.weight"))
    parts.tensors[place] = (name, dimensions, kind, offset)
