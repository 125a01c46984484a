"""GGUF files taken apart, and put together again."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from qa.fuzz.mutate import Form

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
            made += _gguf_value(STRING, entry.key) + struct.pack("<I", entry.kind % (1 << 32))
            if entry.kind == ARRAY:
                made += struct.pack("<IQ", entry.element % (1 << 32), len(entry.value))
                made += b"".join(_gguf_value(entry.element, value) for value in entry.value)
            else:
                made += _gguf_value(entry.kind, entry.value)
        for name, dimensions, kind, offset in self.tensors:
            made += _gguf_value(STRING, name) + struct.pack("<I", len(dimensions))
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


def _parse(data: bytes) -> dict[str, Any]:
    """Entries and tensors as lists; ``more`` is by how much their counts are off."""
    parts = parse_gguf(data)
    entries = [[entry.key, entry.kind, entry.value, entry.element] for entry in parts.entries]
    return {"entries": entries, "tensors": [[*tensor] for tensor in parts.tensors], "more": [0, 0], "data": parts.data}


def _build(document: dict[str, Any]) -> bytes:
    entries, tensors, more, data = document.values()
    parts = GgufParts(entries=[GgufEntry(*entry) for entry in entries], tensors=[tuple(each) for each in tensors])
    made = parts.build(tensors=len(tensors) + more[0], entries=len(entries) + more[1])
    return made + bytes(data)


GGUF = Form(_parse, _build)
