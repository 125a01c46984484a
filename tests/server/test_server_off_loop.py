"""Work off the event loop: what it may raise, clients that go while it is done, turns, and the end of the server."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from each_case import each_case
from own_process import DEADLINE, eventually
from running_server import Running, Steps, refused, running
from small_models import letters

from glinfer.engine.model import Model
from glinfer.engine.random_model import demo_tokenizer
from glinfer.errors import InputError
from glinfer.server import off_loop
from glinfer.server.auth import Access
from glinfer.server.limits import LIMITS, share
from glinfer.server.off_loop import Threads
from glinfer.server.protocol import RequestBody
from glinfer.server.state import ServerState
from glinfer.server.worker import Channel
from glinfer.text.own_process import ProcessError, answer_of
from glinfer.text.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "hello"}]
TEXT = {"model": "small", "prompt": "x", "max_tokens": 1}
BODIES: dict[str, dict[str, Any]] = {
    "/tokenize": {"model": "small", "prompt": "hello"},
    "/v1/completions": {"model": "small", "prompt": "hello"},
    "/v1/score": {"model": "small", "input": "hello"},
    "/v1/attention": {"model": "small", "prompt": "hello", "block": 0},
    "/apply-template": {"model": "small", "messages": HELLO},
    "/v1/chat/completions": {"model": "small", "messages": HELLO},
    "/v1/responses": {"model": "small", "input": "hello", "stream": True},
}
"""Of each route that encodes a text."""


class Held:
    """Encoding waits, from now on, until a test lets it go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self._free = 0, threading.Event()
        encode = Tokenizer.encode

        def waiting(tokenizer: Tokenizer, text: str, **options: Any) -> list[int]:
            if text.startswith("hello"):
                self.begun += 1
                assert self._free.wait(DEADLINE)
            return encode(tokenizer, text, **options)

        monkeypatch.setattr(Tokenizer, "encode", waiting)
        monkeypatch.setattr(off_loop, "SMALL", -1)  # otherwise short texts are encoded on the event loop

    def go(self) -> None:
        self._free.set()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held(monkeypatch)
    yield made
    made.go()


def asked(server: Running, path: str, body: Any, *, key: str = "two") -> socket.socket:
    """A connection on which something was asked for."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
    made = socket.create_connection(server.server._socket.getsockname()[:2], timeout=DEADLINE)
    made.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data)
    return made


def state_of(server: Running) -> ServerState:
    return server.server.state


class PanicException(BaseException):
    """As libraries in Rust raise it."""


class TestWhatIsRaised:
    RAISED = (
        *(StopIteration, StopAsyncIteration, GeneratorExit, SystemExit, KeyboardInterrupt, PanicException),
        *(asyncio.CancelledError, concurrent.futures.CancelledError, asyncio.TimeoutError, MemoryError, RecursionError),
    )

    @each_case("kind", RAISED)
    def test_everything_comes_to_who_waits(self, kind: type[BaseException]) -> None:
        def work() -> None:
            raise kind

        async def ask() -> None:
            threads = Threads("glinfer-test", 2)
            with pytest.raises(RuntimeError, match=kind.__name__) as caught:
                await asyncio.wait_for(threads.run(work, 1), DEADLINE)
            assert isinstance(caught.value.__cause__, kind)
            assert await threads.run(lambda: 5, 1) == 5, "the thread goes on"
            threads.close()

        asyncio.run(ask())

    @pytest.mark.gl
    @each_case("kind", (StopIteration, ValueError, StopAsyncIteration))
    def test_work_of_the_thread_of_opengl_ends_alone(
        self, keyed: Running, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def at_once(*_: Any) -> None:
            raise kind

        def later(*_: Any) -> Iterator[None]:
            yield
            raise kind

        key = {"Authorization": "Bearer two"}
        for steps in (at_once, later):
            with monkeypatch.context() as patch:
                patch.setattr(Model, "attention_steps", steps)
                answer = keyed.post("/v1/attention", BODIES["/v1/attention"], headers=key)
                refused(answer, 500)
        assert keyed.post("/v1/attention", BODIES["/v1/attention"], headers=key).status_code == 200

    @pytest.mark.gl
    @each_case("kind", (StopIteration, SystemExit, PanicException))
    def test_the_server_answers(
        self, keyed: Running, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def encode(*_: Any, **__: Any) -> None:
            raise kind

        key = {"Authorization": "Bearer two"}
        with monkeypatch.context() as patch:
            patch.setattr(Tokenizer, "encode", encode)
            for path, body in BODIES.items():
                with keyed.http(headers=key) as http:  # uvicorn closes a connection after such an answer
                    answer = http.post(path, json=body)
                refused(answer, 500, code="internal_error")
        with keyed.http(headers=key) as http:
            assert http.post("/v1/completions", json=TEXT).status_code == 200


@pytest.mark.gl
class TestClients:
    @each_case(("path", "body"), BODIES.items())
    def test_one_that_goes_is_noticed(
        self, keyed: Running, path: str, body: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While its work is under way, and while it waits for its turn."""
        held, state = Held(monkeypatch), state_of(keyed)
        connections = keyed.server._uvicorn.server_state
        keyed._http.close()
        keyed.wait(lambda: not connections.connections)
        made = [asked(keyed, path, body) for _ in range(6)]
        keyed.wait(lambda: held.begun == 3)
        keyed.wait(lambda: len({*state.quick._asked, *state.slow._asked}) == 6)
        for each in made:
            each.close()
        keyed.wait(lambda: not connections.connections and not connections.tasks and not state.busy)
        assert not any(each._waiting for each in (state.quick, state.slow)) or held.begun == 3
        held.go()
        keyed.wait(lambda: not state.quick._running and not state.slow._running)
        assert held.begun == 3, "who has gone has no turn"
        keyed._http = keyed.http()

    def test_texts_of_one_leave_threads_to_others(self, keyed: Running, held: Held) -> None:
        body = BODIES["/tokenize"]
        made = [asked(keyed, "/tokenize", body) for _ in range(8)]
        keyed.wait(lambda: held.begun == 3)
        other = {"Authorization": "Bearer sésame".encode()}
        answer = keyed.request("POST", "/tokenize", json={**body, "prompt": "x"}, headers=other)
        assert answer.status_code == 200
        assert held.begun == 3
        held.go()
        for each in made:
            assert each.recv(100).startswith(b"HTTP/1.1 200 ")
            each.close()

    def test_a_large_body_is_parsed_off_the_loop(self, keyed: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        read, where = RequestBody.read.__func__, list[str]()  # type: ignore[attr-defined]

        def reading(kind: type[RequestBody], data: bytes) -> RequestBody:
            where.append(threading.current_thread().name)
            found: RequestBody = read(kind, data)
            return found

        monkeypatch.setattr(RequestBody, "read", classmethod(reading))
        for size in (10, 70_000):
            body = {**TEXT, "user": "x" * size}
            assert keyed.post("/v1/completions", body, headers={"Authorization": "Bearer two"}).status_code == 200
        assert [name.startswith("glinfer-work") for name in where] == [False, True]

    def test_a_server_ends_without_them(self, small: Path, held: Held) -> None:
        """What does not end by itself is left, and who waits for it is told."""
        with running(("small", small), slots=2, grace=0.0) as server:
            waiting = [asked(server, path, body) for path, body in BODIES.items()]
            server.wait(lambda: len({*state_of(server).quick._asked, *state_of(server).slow._asked}) == len(waiting))
            server.server.end()
            server.thread.join(DEADLINE)
            assert not server.thread.is_alive()
            for each in waiting:
                assert b" 503 " in each.recv(100)
                each.close()


class TestTurns:
    def test_each_client_has_half_of_what_is_left(self) -> None:
        held, begun = threading.Event(), list[str]()

        async def ask() -> None:
            threads = Threads("glinfer-test", 6)

            def work(client: str) -> None:
                begun.append(client)
                held.wait(DEADLINE)

            names = "aaaaaaaaabbbbbbbccccdd"
            tasks = [asyncio.ensure_future(threads.run(lambda each=each: work(each), each)) for each in names]
            while len(begun) < 6:
                await asyncio.sleep(0.001)
            assert sorted(begun) == [*"aaabbc"]
            held.set()
            await asyncio.gather(*tasks)
            assert begun[6] in "cd", "who has least comes first"
            threads.close()

        asyncio.run(asyncio.wait_for(ask(), DEADLINE))

    @each_case(
        ("free", "shared", "found"), [(260, 256, 132), (128, 256, 64), (3, 1, 3), (1, 256, 1), (0, 9, 0), (2, 0, 2)]
    )
    def test_a_share(self, free: int, shared: int, found: int) -> None:
        assert share(free, shared) == found

    def test_what_is_abandoned_ends_its_process(self, tmp_path: Path) -> None:
        (tmp_path / "sleeps.py").write_text("import time\ntime.sleep(600)\n")

        async def ask() -> None:
            threads, raised = Threads("glinfer-test", 2), list[ProcessError]()

            def work() -> None:
                with pytest.raises(ProcessError) as caught:
                    answer_of(str(tmp_path / "sleeps.py"), {}, seconds=300, memory=1 << 30)
                raised.append(caught.value)

            task = asyncio.ensure_future(threads.run(work, 1))
            while not raised:
                threads.abandon(InputError("no more"))
                await asyncio.sleep(0.01)
            with pytest.raises(InputError, match="no more"):
                await task
            assert "was stopped" in str(raised[0])
            threads.close()

        asyncio.run(asyncio.wait_for(ask(), DEADLINE))


def test_other_threads_run_while_a_long_text_is_encoded(tmp_path: Path) -> None:
    """The library's ``encode`` would let none."""
    (tmp_path / "tokenizer.json").write_text(letters())
    for words in (Tokenizer.from_file(tmp_path), Tokenizer(demo_tokenizer(300))):
        ticks, over = list[int](), threading.Event()

        def tick(ticks: list[int] = ticks, over: threading.Event = over) -> None:
            while not over.wait(0.001):
                ticks.append(1)

        thread = threading.Thread(target=tick)
        thread.start()
        eventually(lambda ticks=ticks: ticks, "the thread")  # type: ignore[misc]
        before = len(ticks)
        words.encode("1" * 200_000)
        found = len(ticks) - before
        over.set()
        thread.join()
        assert found > 3


@pytest.mark.gl
def test_texts_are_bounded(served: Running) -> None:
    """By their bytes where any length is fine, and by their first tokens where it is not."""
    text = "é" * (LIMITS.tokenize_bytes // 2 + 1)
    for path, more in (("/tokenize", {}), ("/v1/attention", {"block": 0})):
        answer = served.post(path, {"model": "small", "prompt": text, **more})
        refused(answer, words=f"expected at most {LIMITS.tokenize_bytes}", param="prompt")
    answer = served.post("/detokenize", {"model": "small", "tokens": [1] * (LIMITS.detokenize_tokens + 1)})
    assert answer.status_code == 400


@pytest.mark.gl
class TestQueues:
    def test_one_key_leaves_places_to_others(self, small: Path, steps: Steps) -> None:
        """Of 8 that wait, one client has 4, the next 2, and so on; those of the model are for whoever comes."""
        access = Access(keys=("one", "two", "three"))
        with running(("small", small), access=access, slots=2, max_waiting=8) as server, server.http() as http:
            steps.hold()

            def ask(key: str, n: int) -> socket.socket:
                return asked(server, "/v1/completions", {**TEXT, "max_tokens": 9, "n": n, "stream": True}, key=key)

            too_many = http.post("/v1/completions", json={**TEXT, "n": 7}, headers={"Authorization": "Bearer one"})
            refused(too_many, param="n")
            waiting, held = list[socket.socket](), 0
            for key, most in (("one", 6), ("two", 2), ("three", 1)):
                waiting += [ask(key, 1) for _ in range(most)]
                held += most
                server.wait(lambda held=held: server.server.worker.live == held)  # type: ignore[misc]
                answer = http.post("/v1/completions", json=TEXT, headers={"Authorization": f"Bearer {key}"})
                refused(answer, 429, code="queue_full")
                assert int(answer.headers["Retry-After"]) >= 1
            figures = http.get("/metrics", headers={"Authorization": "Bearer one"}).text
            assert 'glinfer_rejected_total{reason="queue_full"} 3.0' in figures
            steps.go()
            for each in waiting:
                assert each.recv(20).startswith(b"HTTP/1.1 200 ")
                each.close()

    def test_scores_of_clients_take_turns(self, keyed: Running) -> None:
        worker, served = keyed.server.worker, keyed.server.worker.served["small"]
        order = list[str]()

        def start(client: str) -> Callable[[Any], Any]:
            def steps() -> Iterator[None]:
                order.append(client)
                yield

            return lambda model: steps()

        async def ask() -> None:
            channels = [Channel(served, 1, client) for client in "aaabbc"]
            worker._command(lambda: [worker._insert_work(each, start(str(each.client))) for each in channels][:0])
            for each in channels:
                await each.get()

        loop = keyed.server._loop
        assert loop is not None
        asyncio.run_coroutine_threadsafe(ask(), loop).result(DEADLINE)
        assert "".join(order) == "abcaba"
