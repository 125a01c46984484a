"""Clients that harm a server: the attacks of ``python -m qa soak-server --attacks``, in a process of their own.

``python -m qa.soak.attackers PORT SEED`` attacks the server at that port of loopback until its standard input ends,
and then writes how often it attacked, by kind, as a line of JSON. Each kind has an address of its own (127.0.0.10 and
up), so that the server sees each as another client.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from qa.fuzz.requests import Requests
from qa.health import bodies
from qa.soak.models import CHATS, EMBEDS

_FIRST_ADDRESS = 10
_SECONDS = 5.0
"""How long an attacker waits for an answer."""
_SLOW_SECONDS = 90.0
"""How long a slow one may send: longer than the server waits."""
_FLOOD = 1500
"""Connections of one flood: more than a server takes."""
_MARKS = "".join(map(chr, itertools.chain(range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))))
_HELLO = {"model": CHATS, "messages": [{"role": "user", "content": "hi"}]}
_GARBAGE = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(40),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    b"\r\n" * 5000,
    b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000,
    b"GET /" + b"a" * 200_000,
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"SSH-2.0-x\r\n",
)


class Wire:
    """A connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take what asyncio has opened."""
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        """Send bytes, as far as the server takes them."""
        self.writer.write(data)
        await asyncio.wait_for(self.writer.drain(), _SECONDS)

    async def read(self, seconds: float = _SECONDS) -> bytes:
        """Bytes of the answer; nothing if none come in time."""
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(self.reader.read(1 << 16), seconds)
        return b""

    def reset(self) -> None:
        """End the connection by a reset."""
        own: socket.socket = self.writer.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def end(self, draw: random.Random) -> None:
        """Go away in one of the ways in which clients do."""
        if draw.random() < 0.5:
            self.reset()
        else:
            self.writer.close()


def request(path: str, body: Any, *more: bytes) -> bytes:
    """A request as it is sent; a body other than bytes is written as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1".encode(), b"Host: localhost", b"Content-Length: %d" % len(data), *more]
    return b"\r\n".join([*head, b"", data])


def streamed(draw: random.Random, tokens: int = 200) -> bytes:
    """A request whose answer is a long stream."""
    path, body = draw.choice((
        ("/v1/chat/completions", {**_HELLO, "max_tokens": tokens}),
        ("/v1/completions", {"model": CHATS, "prompt": "Once", "max_tokens": tokens, "n": 4}),
        ("/v1/responses", {"model": CHATS, "input": "x", "max_output_tokens": tokens}),
    ))  # fmt: skip
    return request(path, {**body, "stream": True, "temperature": 1.0})


def marked(draw: random.Random) -> bytes:
    """A request with every character for private use."""
    text = {"role": "user", "content": _MARKS[: draw.choice((6400, 71_934, len(_MARKS)))]}
    path = draw.choice(("/v1/chat/completions", "/apply-template", "/tokenize", "/v1/attention"))
    return request(path, {"model": CHATS, "messages": [text], **({"block": 0} if "attention" in path else {})})


def greedy(tokens: int = 200) -> bytes:
    """A request of as many sequences as one may have."""
    return request("/v1/completions", {"model": CHATS, "prompt": ["a"] * 4, "n": 32, "max_tokens": tokens})


class Attackers:
    """All attacks on one port; :meth:`run` ends with ``over``."""

    def __init__(self, port: int, seed: int) -> None:
        """Begin with these draws."""
        self.counts: Counter[str] = Counter()
        self._port, self._draw, self._requests = port, random.Random(seed), Requests(seed)
        self._bodies = self._large_bodies()

    async def run(self, over: asyncio.Event) -> None:
        """Attack in every way at once."""
        loops = {
            asyncio.ensure_future(self._repeat(kind, f"127.0.0.{_FIRST_ADDRESS + place}", pause))
            for place, (kind, (together, pause)) in enumerate(ATTACKS.items())
            for _ in range(together)
        }
        await over.wait()
        while loops:  # Python's wait_for may swallow one (before 3.12)
            for each in loops:
                each.cancel()
            _, loops = await asyncio.wait(loops, timeout=1)

    async def _repeat(self, kind: str, address: str, pause: float) -> None:
        attack: Callable[[str], Awaitable[None]] = getattr(self, kind)
        while True:
            with contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.IncompleteReadError):
                await attack(address)
            self.counts[kind] += 1
            await asyncio.sleep(self._draw.uniform(0.5, 1.5) * pause)

    @contextlib.asynccontextmanager
    async def _wire(self, address: str, **options: Any) -> AsyncIterator[Wire]:
        made = socket.socket()
        made.setblocking(False)
        for name, value in options.items():
            made.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
        made.bind((address, 0))
        try:
            await asyncio.wait_for(asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", self._port)), 30)
            wire = Wire(*await asyncio.open_connection(sock=made))
        except BaseException:
            made.close()
            raise
        try:
            yield wire
        finally:
            wire.end(self._draw)

    def _large_bodies(self) -> Iterator[bytes]:
        while True:
            for route, _, body in bodies(CHATS, EMBEDS, quick=False):
                yield request(route, body)

    async def fuzzed(self, address: str) -> None:
        """A damaged request to any route."""
        drawn = self._requests.draw()
        path = quote(drawn.path.encode("utf-8", "replace"), safe="/*%").encode()
        line = drawn.method.encode() + b" " + path + (b"?" + drawn.query if drawn.query else b"") + b" HTTP/1.1"
        head = [line, *(name + b": " + value for name, value in drawn.headers)]
        async with self._wire(address) as wire:
            await wire.send(b"\r\n".join([*head, b"", drawn.body]))
            if not drawn.leaves:
                await wire.read()

    async def slow_headers(self, address: str) -> None:
        """A header byte by byte."""
        await self._slowly(address, request("/health", b"", b"X: " + b"a" * 2000), 0)

    async def slow_bodies(self, address: str) -> None:
        """A body byte by byte."""
        data = request("/v1/completions", {"model": CHATS, "prompt": "a" * 2000})
        await self._slowly(address, data, data.index(b"\r\n\r\n") + 4)

    async def _slowly(self, address: str, data: bytes, at_once: int) -> None:
        pause, ends = self._draw.uniform(0.05, 2.0), asyncio.get_running_loop().time() + _SLOW_SECONDS
        async with self._wire(address) as wire:
            await wire.send(data[:at_once])
            for byte in data[at_once:]:
                if asyncio.get_running_loop().time() > ends or wire.reader.at_eof():
                    break
                await wire.send(bytes([byte]))
                await asyncio.sleep(pause)

    async def half_closed(self, address: str) -> None:
        """Nothing more is sent after a request, or after a part of it; the answer is read or not."""
        data = streamed(self._draw, 20)
        async with self._wire(address) as wire:
            await wire.send(data[: len(data) if self._draw.random() < 0.5 else self._draw.randrange(len(data))])
            wire.writer.write_eof()
            if self._draw.random() < 0.7:
                await wire.read()

    async def reset(self, address: str) -> None:
        """A reset within a header, a body or an answer."""
        data = streamed(self._draw)
        async with self._wire(address) as wire:
            await wire.send(data[: self._draw.choice((len(data), self._draw.randrange(len(data))))])
            await asyncio.sleep(self._draw.choice((0, 0.01, 0.3)))
            wire.reset()

    async def leaving(self, address: str) -> None:
        """A client that goes away in the middle of a stream."""
        async with self._wire(address) as wire:
            await wire.send(streamed(self._draw))
            for _ in range(self._draw.randrange(6)):
                await wire.read()

    async def unread(self, address: str) -> None:
        """A long stream of which nothing is read."""
        async with self._wire(address, SO_RCVBUF=2048) as wire:
            wire.reader._transport.pause_reading()  # type: ignore[attr-defined]
            await wire.send(streamed(self._draw, 240) * 8)
            await asyncio.sleep(self._draw.uniform(1, 20))

    async def large(self, address: str) -> None:
        """The largest bodies, which are slow to parse or to encode."""
        async with self._wire(address) as wire:
            await wire.send(next(self._bodies))
            await wire.read(self._draw.choice((0.1, 1.0, _SECONDS)))

    async def too_large(self, address: str) -> None:
        """Bodies above the limit, promised or in pieces without end."""
        async with self._wire(address) as wire:
            size = self._draw.choice((9 << 20, 17 << 20, 1 << 40))
            head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            if self._draw.random() < 0.5:
                await wire.send(head + b"Content-Length: %d\r\n\r\n" % size)
                piece = b"[" * (1 << 16)
            else:
                await wire.send(head + b"Transfer-Encoding: chunked\r\n\r\n")
                piece = b"10000\r\n" + b"[" * (1 << 16) + b"\r\n"
            for _ in range(160):
                await wire.send(piece)
            await wire.read()

    async def marks(self, address: str) -> None:
        """Every character for private use in a message."""
        async with self._wire(address) as wire:
            await wire.send(marked(self._draw))
            await wire.read(self._draw.choice((0.1, _SECONDS)))

    async def filling(self, address: str) -> None:
        """One client that fills the queue."""
        async with self._wire(address) as wire:
            await wire.send(greedy())
            await wire.read(60)

    async def garbage(self, address: str) -> None:
        """Anything but HTTP/1.1, and frames of a WebSocket."""
        async with self._wire(address) as wire:
            if self._draw.random() < 0.5:
                await wire.send(self._draw.choice(_GARBAGE))
            else:
                upgrade = (b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Version: 13",
                           b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")  # fmt: skip
                await wire.send(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n" + b"\r\n".join(upgrade) + b"\r\n\r\n")
                await wire.read(1)
                await wire.send(b"\x81\xfe\xff\xff" + os.urandom(2000))
            await wire.read(1)

    async def pipelined(self, address: str) -> None:
        """Many requests at once on one connection; the answers are read or not."""
        some = [
            streamed(self._draw, 4),
            request("/tokenize", {"model": CHATS, "prompt": "x"}),
            request("/nowhere", b""),
        ]
        async with self._wire(address) as wire:
            await wire.send(b"".join(self._draw.choices(some, k=self._draw.randint(5, 50))))
            for _ in range(self._draw.randrange(20)):
                await wire.read()

    async def flood(self, address: str) -> None:
        """More connections than the server takes, which say nothing or a part of a header."""
        async with contextlib.AsyncExitStack() as stack:
            for number in range(_FLOOD):
                wire = await stack.enter_async_context(self._wire(address))
                if number % 2:
                    await wire.send(b"POST /v1/completions HTTP/1.1\r\n")
            await asyncio.sleep(self._draw.uniform(1, 10))


ATTACKS: Mapping[str, tuple[int, float]] = {
    "fuzzed": (6, 0.02), "slow_headers": (10, 1), "slow_bodies": (10, 1), "half_closed": (3, 0.3), "reset": (3, 0.3),
    "leaving": (3, 0.5), "unread": (4, 1), "large": (1, 0.5), "too_large": (1, 2), "marks": (2, 1), "filling": (3, 1),
    "garbage": (2, 0.2), "pipelined": (2, 0.5), "flood": (1, 60),
}  # fmt: skip
"""How many of each kind attack at once, and the seconds between two attacks of one of them."""


@contextlib.asynccontextmanager
async def hung(port: int, each: int = 4) -> AsyncIterator[None]:
    """Requests of every kind that do not end by themselves, for as long as the block runs."""
    attackers, draw = Attackers(port, 0), random.Random(0)
    long_text = request("/tokenize", {"model": CHATS, "prompt": "1" * 1_000_000})
    slow = request("/v1/completions", {"model": CHATS, "prompt": "x", "guided_regex": "(a{1,900}b{1,900}){1,300}"})
    kinds = [b"", b"POST /v1/", slow[:-10], slow, long_text, marked(draw), greedy(240), streamed(draw, 240) * 20]
    async with contextlib.AsyncExitStack() as stack:
        for data in kinds * each:
            wire = await stack.enter_async_context(attackers._wire("127.0.0.1", SO_RCVBUF=2048))
            wire.reader._transport.pause_reading()  # type: ignore[attr-defined]
            await wire.send(data)
        await asyncio.sleep(0.5)
        yield


async def _main(port: int, seed: int) -> None:
    over, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=wait, daemon=True).start()
    attackers = Attackers(port, seed)
    await attackers.run(over)
    sys.stdout.write(json.dumps(attackers.counts))


if __name__ == "__main__":
    asyncio.run(_main(*map(int, sys.argv[1:3])))
