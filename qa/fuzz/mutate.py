"""Damage with a knowledge of the formats: the outer frame stays valid, what lies inside it does not.

Every mutator takes a file's bytes and a source of random numbers and gives other bytes. It never fails: what it cannot
take apart it treats as plain bytes.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Mutator = Callable[[bytes, Random], bytes]

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


# JSON


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        found.append((value, key))
        _places(value[key], found)
    return found


def json_value(random: Random, old: object, words: Sequence[Any]) -> Any:
    """Another value in the place of an old one."""
    if isinstance(old, int) and not isinstance(old, bool) and random.random() < 0.6:
        return number(random, old)
    kind = random.randrange(6)
    if kind < 3 and words:
        return random.choice(words)
    if kind == 3:
        return number(random)
    if kind == 4 and isinstance(old, str) and old:
        return old * random.choice((2, 50)) if random.random() < 0.3 else old[: random.randrange(len(old))]
    return random.choice(TEXTS) if kind < 5 else json.loads(random.choice(RAW_JSON[:19]))


def _json_step(document: Any, random: Random, words: Sequence[Any]) -> Any:
    places = _places(document, [])
    if not places:
        return json_value(random, document, words)
    holder, key = random.choice(places)
    other, other_key = random.choice(places)
    match random.randrange(9):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            name = next((word for word in random.sample(words, len(words)) if isinstance(word, str)), "x")
            holder[name if random.random() < 0.7 else random.choice(TEXTS)] = holder.pop(key)
        case 2 if isinstance(holder, list):
            holder[key:key] = holder[key : key + 1] * random.choice((1, 1, 2, 30))
        case 3:  # a copy, so that the document stays a tree
            holder[key] = json.loads(json.dumps(other[other_key]))
        case 4:
            copied = json.loads(json.dumps([holder[key], other[other_key]]))
            other[other_key], holder[key] = copied
        case 5 if isinstance(holder, dict) and words:
            name = next((word for word in random.sample(words, len(words)) if isinstance(word, str)), "x")
            holder[name] = json_value(random, None, words)
        case _:
            holder[key] = json_value(random, holder[key], words)
    return document


def json_text(data: bytes, random: Random) -> bytes:
    """The letters of a document: one of its tokens replaced, left out or doubled."""
    parts = list(_JSON_PART.finditer(data))
    if not parts:
        return any_bytes(data, random)
    part = random.choice(parts)
    old = part[0]
    new = random.choice(
        (random.choice(RAW_JSON).encode(), b"", old + b"," + old, json.dumps(random.choice(TEXTS)).encode())
    )
    return data[: part.start()] + new + data[part.end() :]


def json_mutator(words: Sequence[Any] = ()) -> Mutator:
    """Damages the values of a JSON document; ``words`` are names and values that its reader knows."""

    def mutate(data: bytes, random: Random) -> bytes:
        if random.random() < 0.15:
            return json_text(data, random)
        try:
            return json.dumps(_json_step(json.loads(data), random, words)).encode()
        except (ValueError, RecursionError):
            return json_text(data, random) if random.random() < 0.5 else any_bytes(data, random)

    return mutate


def lines_mutator(words: Sequence[Any] = ()) -> Mutator:
    """Damages JSON lines, one object each."""
    one = json_mutator(words)

    def mutate(data: bytes, random: Random) -> bytes:
        lines = data.split(b"\n")
        place = random.randrange(len(lines))
        match random.randrange(8):
            case 0:
                lines[place:place] = [lines[place]]
            case 1:
                del lines[place]
            case 2:
                return any_bytes(data, random)
            case _:
                lines[place] = one(lines[place], random)
        return b"\n".join(lines)

    return mutate


# safetensors


def safetensors_mutator(words: Sequence[Any] = ()) -> Mutator:
    """Damages a safetensors file: mostly its header, whose length is then put right."""
    header_mutator = json_mutator(words)

    def mutate(data: bytes, random: Random) -> bytes:
        if len(data) < 8 or random.random() < 0.1:
            return any_bytes(data, random)
        (length,) = struct.unpack("<Q", data[:8])
        if length > len(data) - 8:
            return any_bytes(data, random)
        header, rest = data[8 : 8 + length], data[8 + length :]
        match random.randrange(8):
            case 0:
                rest = any_bytes(rest, random)
            case 1:
                return struct.pack("<Q", number(random, length) % (1 << 64)) + header + rest
            case 2:
                return struct.pack("<Q", length) + json_text(header, random) + rest
            case _:
                header = header_mutator(header, random)
                header += b" " * (-len(header) % random.choice((1, 8)))
        return struct.pack("<Q", len(header)) + header + rest

    return mutate


# GAB1 and BPE1


def gab_mutator(data: bytes, random: Random) -> bytes:
    """Damages a GAB1 file: its header's numbers, sometimes followed by the number of bytes that they promise."""
    if len(data) < 28 or random.random() < 0.2:
        return any_bytes(data, random)
    fields = list(struct.unpack("<7I", data[:28]))
    place = random.randrange(7)
    fields[place] = number(random, fields[place]) % (1 << 32)
    body = data[28:]
    if random.random() < 0.5:
        _, _, vocab, width, _, blocks, context = fields
        count = vocab * width * 2 + context * width + vocab + 2 * width
        count += blocks * (12 * width * width + 9 * width)
        if count < 1 << 14:
            body = (body * (1 + 4 * count // max(1, len(body))))[: 4 * count] if body else bytes(4 * count)
    return struct.pack("<7I", *fields) + body


def bpe_mutator(data: bytes, random: Random) -> bytes:
    """Damages a BPE1 file: its merges and its vocabulary, with counts that agree or do not."""
    try:
        magic, version, next_id, count = struct.unpack_from("<4I", data)
        merges = [list(struct.unpack_from("<3I", data, 16 + 12 * index)) for index in range(min(count, 4096))]
        at = 16 + 12 * count
        (entries,) = struct.unpack_from("<I", data, at)
        at += 4
        pieces = []
        for _ in range(min(entries, 4096)):
            token, length = struct.unpack_from("<2I", data, at)
            pieces.append((token, data[at + 8 : at + 8 + length]))
            at += 8 + length
    except struct.error:
        return any_bytes(data, random)
    counts = [magic, version, next_id, count, entries]
    match random.randrange(7):
        case 0:
            place = random.randrange(5)
            counts[place] = number(random, counts[place]) % (1 << 32)
        case 1 if merges:
            merge = random.choice(merges)
            place = random.randrange(3)
            merge[place] = number(random, merge[place]) % (1 << 32)
        case 2 if pieces:
            place = random.randrange(len(pieces))
            token, piece = pieces[place]
            pieces[place] = (
                (token, any_bytes(piece, random)) if random.random() < 0.5 else (number(random, token), piece)
            )
        case 3 if pieces:
            pieces.insert(random.randrange(len(pieces)), random.choice(pieces))
            counts[4] += random.randrange(2)
        case 4 | 5 if pieces:  # one more merge, and all that goes with it
            left, right = random.choice(pieces), random.choice(pieces)
            merges.append([left[0], right[0], counts[2]])
            pieces.append((counts[2], left[1] + right[1]))
            counts[2:] = [value + 1 for value in counts[2:]]
        case _:
            return any_bytes(data, random)
    magic, version, next_id, count, entries = counts
    made = struct.pack("<4I", magic, version, next_id % (1 << 32), count % (1 << 32))
    made += b"".join(struct.pack("<3I", *(part % (1 << 32) for part in merge)) for merge in merges)
    made += struct.pack("<I", entries % (1 << 32))
    return made + b"".join(struct.pack("<2I", token % (1 << 32), len(piece)) + piece for token, piece in pieces)


# Text


def text_mutator(words: Sequence[str]) -> Mutator:
    """Damages text out of words: templates, options."""
    encoded = [word.encode(errors="surrogatepass") for word in (*words, *TEXTS)]

    def mutate(data: bytes, random: Random) -> bytes:
        at, word = random.randrange(len(data) + 1), random.choice(encoded)
        match random.randrange(5):
            case 0:
                return any_bytes(data, random)
            case 1:
                end = at + random.randrange(12)
                return data[:at] + word + data[end:]
            case 2:
                start = random.randrange(len(data) + 1)
                return data[:at] + data[start : start + random.randrange(40)] + data[at:]
            case _:
                return data[:at] + word + data[at:]

    return mutate


def by_chance(*mutators: Mutator) -> Mutator:
    """One of several ways to damage a file, each as often."""
    return lambda data, random: random.choice(mutators)(data, random)


def strings(words: Sequence[Any]) -> list[str]:
    """The texts among some words."""
    return [word for word in words if isinstance(word, str)]


def by_byte(*mutators: Mutator) -> Mutator:
    """For targets whose first byte chooses a file, and with it how the rest is damaged."""

    def mutate(data: bytes, random: Random) -> bytes:
        if not data:
            return bytes([random.randrange(len(mutators))])
        return data[:1] + mutators[data[0] % len(mutators)](data[1:], random)

    return mutate


def behind_byte(mutator: Mutator, choices: int) -> Mutator:
    """For targets whose first byte is a choice and the rest a file."""

    def mutate(data: bytes, random: Random) -> bytes:
        if not data or random.random() < 0.1:
            return bytes([random.randrange(choices)]) + data[1:]
        return data[:1] + mutator(data[1:], random)

    return mutate
