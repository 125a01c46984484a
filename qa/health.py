"""``python -m qa health``: how long /health waits while other routes are sent the largest bodies that they take.

``glinfer serve`` runs in a process of its own, with small random models or with one that is given. Every route is sent
texts that are slow to encode and lists that are slow to parse, each up to the limit, while another client asks /health
without a pause.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import httpx

from glinfer.cli.common import json_option, print_json
from glinfer.server.limits import LIMITS
from qa.serve_load import started
from qa.soak.models import CHATS, EMBEDS, write_models

MOST_SECONDS = 0.5
"""How long /health may wait."""
_PAUSE = 0.005
_PATIENCE = 5.0
"""Seconds after which a client goes: a text that is not refused may be run for long."""
_ROOM = 2000
"""Bytes of a body beside what fills it."""
_TEXTS = {"digits": "1", "a": "a", " a": " a", "=": "=", "emoji": "🦙", "marks": "<|im_end|>", "é": "e\u0301", "<": "<"}
_LISTS = {
    "[]": "[]", "{}": "{}", "1": "1", "floats": "0.123456789012345", "texts": '"a"', "objects": '{"a":1}',
    "large numbers": "9" * 4000, "long floats": "0." + "1" * 4000, '{"role"…': '{"role":"user","content":"x"}',
}  # fmt: skip
_CHAT = '"messages":[{"role":"user","content":%s}]'
_CALL = '"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":%s}}]}]'
_TOOL = (
    '"max_tokens":1,"messages":[{"role":"user","content":"x"}],'
    '"tools":[{"type":"function","function":{"name":"f","description":%s}}]'
)
_FORM = '"input":"x","max_output_tokens":1,"text":{"format":{"type":"text","name":%s}}'
_TEXT_FIELDS: dict[str, tuple[str, ...]] = {
    "/v1/completions": ('"prompt":%s', '"prompt":[%s]', '"prompt":"x","guided_regex":%s', '"prompt":"x","stop":%s'),
    "/v1/chat/completions": (_CHAT, _CALL, _TOOL),
    "/v1/responses": ('"input":%s', '"input":"x","instructions":%s', _FORM),
    "/v1/score": ('"input":%s', '"input":[%s]'),
    "/v1/embeddings": ('"input":%s',),
    "/v1/rerank": ('"query":%s,"documents":["a"]', '"query":"a","documents":[%s]'),
    "/v1/attention": ('"block":0,"prompt":%s', f'"block":0,{_CHAT}'),
    "/tokenize": ('"prompt":%s', _CHAT),
    "/detokenize": ('"tokens":%s',),
    "/apply-template": (_CHAT,),
}
_LIST_FIELDS: dict[str, tuple[str, ...]] = {
    "/v1/completions": ("prompt", "metadata", "stop", "guided_choice"),
    "/v1/chat/completions": ("messages", "metadata", "tools"),
    "/v1/responses": ("input", "metadata", "tools"),
    "/v1/score": ("input",),
    "/v1/embeddings": ("input",),
    "/v1/rerank": ("documents",),
    "/v1/attention": ("messages",),
    "/tokenize": ("messages",),
    "/detokenize": ("tokens",),
    "/apply-template": ("messages",),
}
_LEAST: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "/v1/responses": {"input": "x", "max_output_tokens": 1},
    "/v1/rerank": {"query": "a", "documents": ["a"]},
    "/v1/attention": {"block": 0},
}


@dataclass(frozen=True)
class Waited:
    """The effect of one body on ``/health``.

    Attributes:
        route: where it was sent.
        body: a short description.
        nbytes: its size.
        status: of the answer, of several at once the last; 0 if none has come in time.
        seconds: until the answer.
        health: the longest that /health waited meanwhile, in seconds.
    """

    route: str
    body: str
    nbytes: int
    status: int
    seconds: float
    health: float


def bodies(model: str, embeds: str, *, quick: bool) -> Iterator[tuple[str, str, bytes]]:
    """A route, the name of a body, and the body."""
    some = 2 if quick else None

    def body(route: str, fields: str) -> bytes:
        name = embeds if route in ("/v1/embeddings", "/v1/rerank") else model
        return f'{{"model":{json.dumps(name)},{fields}}}'.encode()

    for route, forms in _TEXT_FIELDS.items():
        for form, (name, text) in itertools.product(forms[: 1 if quick else None], list(_TEXTS.items())[:some]):
            written = json.dumps(text, ensure_ascii=False)[1:-1]
            for most in (LIMITS.body_bytes, LIMITS.tokenize_bytes):
                data = written * ((most - _ROOM) // len(written.encode()))
                yield route, f"{form.partition('%s')[0][-24:]}{name}, {most >> 20} MB", body(route, form % f'"{data}"')
    for route, names in _LIST_FIELDS.items():
        for field in names[:some]:
            least = "".join(f"{json.dumps(k)}:{json.dumps(v)}," for k, v in _LEAST.get(route, {}).items() if k != field)
            for name, value in list(_LISTS.items())[:some]:
                each = 1 + value.count("{") + value.count("[") + value.count(",") + 4 * value.count(":")
                most = (LIMITS.body_bytes - _ROOM) // (len(value) + 1)
                for count in sorted({most, min(most, LIMITS.body_values // each - 50)}):
                    items = ",".join([value] * count)
                    yield route, f"{field}: {name} × {count}", body(route, f'{least}"{field}":[{items}]')
            nested = "[" * 100_000 + "]" * 100_000
            yield route, f"{field}: nested", body(route, f'{least}"{field}":{nested}')
        keys = ",".join(f'"{number}":1' for number in range(LIMITS.body_values // 5 - 50))
        yield route, "names", body(route, f'"user":{{{keys}}}')


@contextmanager
def watched(address: str) -> Iterator[list[float]]:
    """The seconds that each answer of /health took within the block; the last ones are there after it."""
    found, over = list[float](), threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=address, timeout=120, verify=False) as client:
            while not over.is_set():
                begun = time.perf_counter()
                client.get("/health")
                found.append(time.perf_counter() - begun)
                time.sleep(_PAUSE)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def measured(address: str, model: str, embeds: str, *, together: int, quick: bool) -> Iterator[Waited]:
    """Send every body, ``together`` times at once."""
    limits = httpx.Limits(max_connections=together)
    with (
        httpx.Client(base_url=address, timeout=_PATIENCE, verify=False, limits=limits) as client,
        ThreadPoolExecutor(together) as pool,
    ):

        def ask(route: str, body: bytes) -> int:
            try:
                return client.post(route, content=body).status_code
            except httpx.TimeoutException:
                return 0

        for route, name, body in bodies(model, embeds, quick=quick):
            begun = time.perf_counter()
            with watched(address) as health:
                answers = [pool.submit(ask, route, body) for _ in range(together)]
                status = [each.result() for each in answers][-1]
                seconds = time.perf_counter() - begun
            yield Waited(route, name, len(body), status, seconds, max(health, default=0.0))


def _row(each: Waited) -> str:
    size, health = f"{each.nbytes / 1e6:5.2f} MB", f"/health {each.health:.3f} s"
    return f"{each.route:22} {each.body:44} {size}  {each.status}  {each.seconds:6.2f} s, {health}"


@click.command("health")
@click.argument("model", required=False)
@click.option(
    "--together", type=click.IntRange(1, 64), default=1, show_default=True, help="Copies of each body at once."
)
@click.option("--quick", is_flag=True, help="Send a few bodies to each route.")
@click.option("--all", "show_all", is_flag=True, help="Show all rows, not only the slowest of each route.")
@json_option
def health_command(model: str | None, together: int, quick: bool, show_all: bool, as_json: bool) -> None:
    """Time /health while every route reads the largest bodies.

    MODEL is served together with small random models, or one of these without MODEL. The exit status is 1 if /health
    took longer than half a second, or a route failed.

    \b
    python -m qa health --quick
    python -m qa health model.gguf --together 6 --all
    """
    found = list[Waited]()
    with tempfile.TemporaryDirectory() as folder:
        chats, _, embeds = write_models(Path(folder))
        served = [f"{CHATS}={model or chats}", f"{EMBEDS}={embeds}"]
        command = [sys.executable, "-m", "glinfer", "serve", *served, "--port", "0", "--slots", "4"]
        with started(command) as (address, _):
            for each in measured(address, CHATS, EMBEDS, together=together, quick=quick):
                found.append(each)
                if show_all:
                    click.echo(_row(each))
    failed = [each for each in found if each.health > MOST_SECONDS or (each.status >= 500 and each.status != 503)]
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        slowest = {each.route: each for each in sorted(found, key=lambda each: each.health)}
        for each in () if show_all else dict.fromkeys([*slowest.values(), *failed]):
            click.echo(_row(each))
        click.echo(f"{len(found)} bodies; /health waited {max(each.health for each in found):.3f} s at most")
    if failed:
        raise click.exceptions.Exit(1)
