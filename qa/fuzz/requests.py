"""``python -m qa fuzz``: damaged requests to every route of the server, of which none may be answered with 500.

The application runs in this process, over small random models that chat and that embed, without a network. Requests
are drawn by a seed: the method and the path, every header that is looked at, and the body. A 503 is by design, and is
counted apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import click

from glinfer.cli.common import print_json
from glinfer.cli.options import json_option
from glinfer.jobs.local import LocalServer, LocalSetup
from glinfer.server.app import App
from glinfer.server.auth import Access
from glinfer.server.routes import ROUTES
from glinfer.server.state import ServerState
from glinfer.structured import compiler
from glinfer.text import templates
from qa.fuzz import asked
from qa.fuzz.mutate import JSON, any_bytes, words_of
from qa.fuzz.words import BODY
from qa.soak.models import CHATS, EMBEDS, write_models
from tests.helpers.worker_here import answered_here

TOGETHER = 16
"""Requests at once."""
MAX_SECONDS = 120.0
"""By the clock, for one request; one that takes longer hangs."""
_METHODS = ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "get", "X" * 300, "")
_PATHS = (
    *("/", "/openapi.json", "/index.html", "/nowhere", "//evil.example/", "/v1/models/chats", "/v1/models/", "/\0"),
    *("/v1/models/\ud800", "/v1/models/" + "a/" * 300, "/../etc/passwd", "/v1//completions", "/a" * 2000, "/é", "*"),
    *("/link", "/index.html\0", "/" + "x" * 5000, "/..", "/.", ""),
)
_TEXTS = (
    *("", " ", "\0", "\t", "é", "\xff", "a" * 5000, "9" * 5000, "-1", "x", "0x10", "1_0", "\xb2", "+5", "5, 6", "1e3"),
    *("http://[", "http://]", "http://a]b", "http://[zz]", "http://[::1", "http://a:b", "http://a:99999", "null", "*"),
    *("https://friend.example", "http://localhost", "http://\xe4", "//", "http://", "http:///", "a" * 300 + "://b"),
    *("localhost", "[::1]", "[", "]", "localhost:", "localhost:99999", "localhost:-1", "a@b", "127.0.0.1:x", "[::1]]"),
    *("Bearer one", "Bearer", "bearer \xff", "Basic", "Basic !!!", "Basic b25lOm9uZQ==", "Basic \xe9", "Basic ===="),
    *("bytes=0-1", "bytes=-", "bytes=9-1", "bytes=a-b", "bytes=0-1,5-9", "Thu, 01 Jan 1970 00:00:00 GMT", 'W/"x"'),
    *("Thu, 99 Jan 99999 99:99:99 GMT", "application/json; charset=\xff", "gzip", "100-continue", "chunked", "close"),
)
_HEADERS = (
    *("host", "origin", "authorization", "content-length", "content-type", "expect", "range", "if-range", "cookie"),
    *("if-none-match", "if-modified-since", "access-control-request-method", "access-control-request-headers"),
    *("accept", "accept-encoding", "connection", "transfer-encoding", "x-forwarded-for", "forwarded", "upgrade"),
    "access-control-request-private-network",
)
_HELLO = {"messages": [{"role": "user", "content": "hi"}]}
_PLAIN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", {**_HELLO, "max_tokens": 2, "n": 2, "logprobs": True, "top_logprobs": 2, "seed": 1}),
    ("/v1/chat/completions", {**_HELLO, "max_tokens": 2, "stream": True, "stop": ["a"], "logit_bias": {"1": 5}}),
    ("/v1/responses", {"input": "x", "max_output_tokens": 2, "tools": [{"type": "web_search"}], "instructions": "i"}),
    ("/v1/responses", {"input": [{"role": "user", "content": "x"}], "max_output_tokens": 2, "stream": True}),
    ("/v1/completions", {"prompt": [[1, 2], [3]], "max_tokens": 2, "echo": True, "logprobs": 1, "stream": True}),
    ("/v1/score", {"input": ["ab", "cd"]}),
    ("/apply-template", {**_HELLO, "chat_template_kwargs": {"enable_thinking": False, "x": [1]}}),
    ("/tokenize", {**_HELLO, "add_generation_prompt": False}),
    ("/v1/chat/completions", {"messages": [*_HELLO["messages"], {"role": "assistant", "content": "a"}], "max_tokens": 2,
                              "continue_final_message": True, "add_generation_prompt": False}),
)  # fmt: skip
_QUERIES = (b"", b"a=b", b"%", b"%ff=%ff", b"&&==", b"a" * 9000)
_CLIENTS: tuple[tuple[str, int] | None, ...] = (("127.0.0.1", 5), ("::1", 5), ("", 0), None)


Request = tuple[int, dict[str, Any], bytes, bool]
"""Which application it goes to, its ASGI scope, its body, and whether the client leaves."""


@dataclass
class FuzzReport:
    """What came of it.

    Attributes:
        requests: how many were answered.
        seconds: by the clock.
        statuses: answers by route and status; 0 for a client that has gone.
        finds: answers of 5xx but 503, and what was raised, by its kind and place, with one request that does it.
    """

    requests: int = 0
    seconds: float = 0.0
    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    finds: dict[str, str] = field(default_factory=dict)


class Requests:
    """Draws requests by a seed."""

    def __init__(self, seed: int) -> None:
        """Begin with these seeds of bodies."""
        self._random = random.Random(seed)
        given = [(path, body) for path, bodies in asked.bodies().items() for body in bodies]
        self._bodies: dict[str, list[bytes]] = {path: [] for path in asked.BODIES}
        for path, body in (*given, *_PLAIN):
            name = EMBEDS if path in ("/v1/embeddings", "/v1/rerank") else CHATS
            self._bodies[path].append(json.dumps({**body, "model": name}).encode())
        self._words = [*BODY, *(word for _, body in (*given, *_PLAIN) for word in words_of(body))]

    def draw(self) -> Request:
        """The next request."""
        draw = self._random
        if draw.random() < 0.85:
            method, path = "POST", draw.choice(list(self._bodies))
        else:
            method = draw.choice(("GET", "GET", *_METHODS))
            path = draw.choice((*(each.path for each in ROUTES), *_PATHS))
        body = self._body(path) if method == "POST" or draw.random() < 0.1 else b""
        headers = [(b"host", b"localhost"), (b"content-length", str(len(body)).encode())]
        if (app := draw.randrange(3)) == 1:
            headers.append((b"authorization", b"Bearer one"))
        for _ in range(draw.choice((0, 0, 0, 1, 1, 2, 4))):
            name, data = draw.choice(_HEADERS).encode(), draw.choice(_TEXTS).encode("latin-1")
            data = any_bytes(data, draw) if draw.random() < 0.3 else data
            if draw.random() < 0.7:
                headers = [each for each in headers if each[0] != name]
            headers.append((name, data))
        query, leaves = draw.choice(_QUERIES) if draw.random() < 0.1 else b"", draw.random() < 0.02
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode("utf-8", "replace"), "query_string": query, "root_path": "",
            "headers": headers, "client": draw.choice(_CLIENTS), "server": ("localhost", 80),
        }  # fmt: skip
        return app, scope, body, leaves

    def _body(self, path: str) -> bytes:
        draw = self._random
        seeds = self._bodies.get(path) or next(iter(self._bodies.values()))
        data = draw.choice(seeds if draw.random() < 0.95 else draw.choice([*self._bodies.values()]))
        for _ in range(draw.choice((0, 1, 1, 1, 2, 3))):
            data = JSON.damage(data, draw, self._words)
        return data


class Applications:
    """The application three times over the same models: open, with keys and a friendly site, and with a folder."""

    def __init__(self, folder: Path) -> None:
        """Write the models into ``folder``; call this on the event loop."""
        chats, adapter, embeds = write_models(folder)
        page = folder / "page"
        page.mkdir()
        (page / "index.html").write_text("<!doctype html>")
        self.local = LocalServer(
            LocalSetup([(CHATS, str(chats), {"lora": {"own": str(adapter)}}), (EMBEDS, str(embeds), {})], {"slots": 4})
        )
        self._states = [ServerState(self.local.worker, each) for each in (None, None, page)]
        access = Access(), Access(keys=("one", "two"), origins=("https://friend.example",)), Access()
        self.apps = [App(*each) for each in zip(self._states, access, strict=True)]

    async def ask(self, request: Request, finds: dict[str, str]) -> int:
        """The status of the answer; what is raised is added to ``finds``."""
        app, scope, body, leaves = request
        waiting = [{"type": "http.request", "body": body, "more_body": False}]
        status = 0

        async def receive() -> Any:
            if waiting:
                return waiting.pop()
            if not leaves:
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            if status >= 500 and status != 503 and "body" in message:
                said = message["body"].decode(errors="replace")
                finds.setdefault(f"answer {status}: {said[:200]}", repr(request)[:2000])

        try:
            await asyncio.wait_for(self.apps[app](scope, receive, send), MAX_SECONDS)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            cause = error.__cause__ or error
            place = traceback.extract_tb(cause.__traceback__)[-1:]
            where = f"{place[0].filename.rpartition('/')[2]}:{place[0].lineno}" if place else "?"
            finds.setdefault(f"{type(cause).__name__} at {where}: {str(cause)[:80]!r}", repr(request)[:2000])
            return status if status >= 500 else 599
        return status

    async def close(self) -> None:
        """Close the models."""
        for state in self._states:
            state.close()
        await self.local.stop()


async def _sent(count: int, seconds: float, seed: int, folder: Path) -> FuzzReport:
    report, drawn = FuzzReport(), Requests(seed)
    apps = Applications(folder)
    await apps.local.start()
    known = {route.path for route in ROUTES}
    begun = time.monotonic()

    async def ask_on() -> None:
        while report.requests < count and time.monotonic() - begun < seconds:
            report.requests += 1
            request = drawn.draw()
            status = await apps.ask(request, report.finds)
            path = request[1]["path"]
            report.statuses.setdefault(path if path in known else "other", Counter())[status] += 1

    try:
        await asyncio.gather(*(ask_on() for _ in range(TOGETHER)))
    finally:
        report.seconds = time.monotonic() - begun
        await apps.close()
    return report


def run(count: int, seconds: float, seed: int) -> FuzzReport:
    """Send ``count`` requests, or as many as ``seconds`` allow."""
    with contextlib.ExitStack() as stack:
        for module in (templates, compiler):  # a process for each takes most of the time
            stack.enter_context(mock.patch.object(module, "answer_of", answered_here))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        return asyncio.run(_sent(count, seconds, seed, Path(folder)))


@click.command("fuzz")
@click.option("--requests", type=click.IntRange(1), default=20_000, show_default=True, help="Requests to send.")
@click.option("--seconds", type=click.FloatRange(0), default=3600.0, show_default=True, help="Time limit.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the requests.")
@json_option
def fuzz_command(requests: int, seconds: float, seed: int, as_json: bool) -> None:
    """Send malformed requests to every route of the server.

    The exit status is 1 if a request hangs or gets status 500.

    \b
    python -m qa fuzz --requests 200000
    """
    report = run(requests, seconds, seed)
    if as_json:
        print_json(asdict(report))
    else:
        for route, found in sorted(report.statuses.items()):
            click.echo(f"{route:24} " + "  ".join(f"{status}: {count}" for status, count in sorted(found.items())))
        for what, request in report.finds.items():
            click.echo(f"{what}\n    {request}")
        click.echo(f"{report.requests} requests in {report.seconds:.0f} s; {len(report.finds)} finds")
    if report.finds:
        raise click.exceptions.Exit(1)
