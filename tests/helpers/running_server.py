"""A server in this process, on a loopback port, with OpenAI's own client and a plain one."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from own_process import DEADLINE, eventually
from scripted_models import scripted

from glinfer.engine.batch import Batch, SchedulerOptions
from glinfer.engine.random_model import demo_tokenizer
from glinfer.formats import save_checkpoint, write_bpe
from glinfer.server.auth import Access
from glinfer.server.run import HttpServer, ServerOptions
from glinfer.server.served import ModelSource
from glinfer.text.tokenizer import Tokenizer

WORDS = Tokenizer(demo_tokenizer(300))
USER, END, ASSISTANT, THINK = (WORDS.control_tokens[f"<|{name}|>"] for name in ("user", "end", "assistant", "think"))
HELLO = [{"role": "user", "content": "hi"}]


def opening(message: str) -> list[int]:
    """The ids of a message in Gab's form, up to where the model writes."""
    return [USER, *WORDS.encode(message, allow_special=False), END, ASSISTANT]


def speaker(path: Path, reply: Sequence[int], *, after: int) -> Path:
    """A model of ``small``'s shape that gives ``reply`` after so many tokens, and full stops everywhere else."""
    save_checkpoint(scripted([ord(".")] * (after - 1) + list(reply), vocab=300, dim=32, blocks=2), path)
    write_bpe(demo_tokenizer(300), path.with_suffix(".bpe"))
    return path


class Steps:
    """Steps of the model: all go on by themselves, or while they are held only those that were allowed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self._allowed, self._held, self._changed = 0, 0, False, threading.Condition()
        run = Batch.run

        def stepping(batch: Batch, *given: Any) -> Any:
            with self._changed:
                self.begun += 1
                assert self._changed.wait_for(lambda: self._allowed or not self._held, DEADLINE), "no step was allowed"
                self._allowed -= self._held
            return run(batch, *given)

        monkeypatch.setattr(Batch, "run", stepping)

    def hold(self) -> None:
        with self._changed:
            self._held, self._allowed, self.begun = True, 0, 0

    def allow(self, count: int = 1) -> None:
        with self._changed:
            self._allowed += count
            self._changed.notify_all()

    def go(self) -> None:
        with self._changed:
            self._held = False
            self._changed.notify_all()


class Running:
    """A server that runs, and clients of it."""

    def __init__(self, server: HttpServer) -> None:
        self.server, self.url = server, server.address
        self.failure: BaseException | None = None
        self._http = self.http()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.server.run()
        except BaseException as error:
            self.failure = error

    def client(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=DEADLINE)

    def http(self, **options: Any) -> httpx.Client:
        # No TLS here: reading its certificates takes longer than most requests.
        return httpx.Client(base_url=self.url, timeout=DEADLINE, verify=False, **options)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._http.request(method, path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self._http.get(path, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self._http.post(path, json=body, **options)

    def metric(self, name: str, **labels: str) -> float:
        """A figure of /metrics; 0 where there is none yet."""
        for line in self.get("/metrics").text.splitlines():
            head, _, value = line.rpartition(" ")
            if head.partition("{")[0] == name and all(f'{key}="{each}"' in head for key, each in labels.items()):
                return float(value)
        return 0.0

    def wait(self, until: Callable[[], object]) -> None:
        eventually(until, "the server")

    def ready(self) -> Running:
        self.wait(lambda: self.failure is not None or self.server.worker.ready)
        assert self.failure is None, self.failure
        return self


def refused(answer: httpx.Response, status: int = 400, words: str = "", **fields: Any) -> dict[str, Any]:
    """The error of an answer with this status: one line that has these words, and these further fields."""
    assert answer.status_code == status, answer.text[:300]
    error: dict[str, Any] = answer.json()["error"]
    assert {name: error[name] for name in fields} == fields, error
    assert words in error["message"], error
    assert "\n" not in error["message"]
    assert len(error["message"]) < 1000
    kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    assert error["type"] == kind
    return error


def sent(server: Running, body: Any) -> socket.socket:
    """A connection on which a completion was asked for; whoever closes it goes away."""
    data = json.dumps(body).encode()
    made = socket.create_connection(server.server._socket.getsockname()[:2], timeout=DEADLINE)
    made.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)
    )
    return made


@contextmanager
def running(
    *sources: ModelSource | tuple[str, str | Path], access: Access | None = None, slots: int = 4, **options: Any
) -> Iterator[Running]:
    """Serve models by name and path within the block."""
    found = [
        each if isinstance(each, ModelSource) else ModelSource(each[0], str(each[1]), {}, SchedulerOptions(slots=slots))
        for each in sources
    ]
    made = Running(HttpServer(found, ServerOptions(access or Access(), port=0, **options)))
    try:
        yield made.ready()
    finally:
        made.server.end()
        made.thread.join(DEADLINE)
        made._http.close()
        assert not made.thread.is_alive(), "the server has not ended"
