"""The life of a server: clients that go away, too many of them, broken numbers, lost contexts, and its end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from broken_driver import GUILTY, BrokenDriver
from own_process import DEADLINE, ROOT, eventually, ran
from running_server import Running, Steps, refused, running
from tiny_embedders import write_embedder

from glinfer.engine.batch import Batch, SchedulerOptions
from glinfer.engine.score import TextScorer
from glinfer.errors import FormatError, InputError, NumbersError
from glinfer.gl.context import Device
from glinfer.program.session import Session
from glinfer.server import worker
from glinfer.server.off_loop import thread_pool
from glinfer.server.run import HttpServer, ServerOptions
from glinfer.server.served import ModelSource

pytestmark = pytest.mark.gl

LONG: dict[str, Any] = {"model": "small", "prompt": "x", "max_tokens": 60, "seed": 2}


_BLOCKS = """
import ctypes
from glinfer.gl.malloc import return_large_blocks
library, names = ctypes.CDLL(None), ("arena", "free", "fast", "mapped", *"abcdef")
class Blocks(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in names]
library.mallinfo2.restype, library.malloc.restype = Blocks, ctypes.c_void_p
library.free.argtypes, library.malloc.argtypes = [ctypes.c_void_p], [ctypes.c_size_t]
return_large_blocks()
library.free(library.malloc(24 << 20))
before = library.mallinfo2().mapped
library.malloc(4 << 20)
print(library.mallinfo2().mapped - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library is not glibc 2.33 or later")
def test_large_blocks_are_returned_to_the_system() -> None:
    """A block of some megabytes is the system's own, although a larger one was freed before."""
    assert ran(_BLOCKS) == ["1"]


def names() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("glinfer-test")]


def test_a_pool_has_all_of_its_threads_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no more can be started one line says so, and those that were started end."""
    pool = thread_pool("glinfer-test", 3)
    assert len(names()) == 3
    assert {*pool.map(lambda _: threading.current_thread().name, range(30))} <= {*names()}
    pool.shutdown()
    assert names() == []
    start, left = threading.Thread.start, [2]

    def few(thread: threading.Thread) -> None:
        if thread.name.startswith("glinfer-test"):
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", few)
    with pytest.raises(
        InputError, match=r"^can't start new thread: the server needs 3 threads for glinfer-test; raise"
    ):
        thread_pool("glinfer-test", 3)
    assert names() == []


class Streaming:
    """A stream that is being read."""

    def __init__(self, server: Running, **change: Any) -> None:
        self.http = server.http()
        self.context = self.http.stream("POST", "/v1/completions", json={**LONG, "stream": True, **change})
        self.answer = self.context.__enter__()
        self.lines = self.answer.iter_lines()

    def read(self, count: int) -> list[str]:
        return [next(self.lines) for _ in range(count)]

    def rest(self) -> list[str]:
        lines = [line for line in self.lines if line]
        self.leave()
        return lines

    def leave(self) -> None:
        self.context.__exit__(None, None, None)
        self.http.close()


def live(server: Running) -> int:
    return server.server.worker.live


@pytest.fixture(scope="module")
def server(small: Path) -> Iterator[Running]:
    with running(("small", small), slots=2) as found:
        yield found


class TestFailures:
    def test_numbers_that_break_end_one_request(self, server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        choices, broken = Batch.choices, [False]

        def choosing(self: Batch, step: Any) -> Any:
            found = choices(self, step)
            for place, each in step.active.items():
                if place in found.chosen and each.prompt[0] == ord("!") and len(each.ids) == 3:
                    broken[0] = True
                    del found.chosen[place]
                    found.broken[place] = NumbersError("the model's output is broken: no number")
            return found

        expected = server.post("/v1/completions", LONG).json()["choices"]
        monkeypatch.setattr(Batch, "choices", choosing)
        with ThreadPoolExecutor(2) as pool:
            one = pool.submit(server.post, "/v1/completions", LONG)
            other = pool.submit(server.post, "/v1/completions", {**LONG, "prompt": "!"})
            assert one.result(DEADLINE).json()["choices"] == expected
            answer = other.result(DEADLINE)
        assert broken[0]
        refused(answer, 500, code="broken_numbers")
        asked = Streaming(server, prompt="!")
        lines = asked.rest()
        assert "broken_numbers" in lines[-1]
        assert "[DONE]" not in lines
        assert server.post("/v1/completions", LONG).json()["choices"] == expected

    def test_a_score_whose_numbers_break(self, server: Running) -> None:
        def scoring(*_: Any) -> Any:
            raise NumbersError("a likelihood is not a finite number")

        body = {"model": "small", "input": "abc"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TextScorer, "_run", scoring)
            answer = server.post("/v1/score", body)
        refused(answer, 500, code="broken_numbers")
        assert server.post("/v1/score", body).status_code == 200
        assert not live(server)

    def test_a_context_that_is_lost(self, small: Path, monkeypatch: pytest.MonkeyPatch, steps: Steps) -> None:
        driver, close = BrokenDriver(monkeypatch), Device.close

        def mending(self: Device) -> None:
            driver.mend()
            close(self)

        with running(("small", small), slots=2) as server:
            expected = server.post("/v1/completions", LONG).json()["choices"]
            steps.hold()
            steps.allow(5)
            asked = Streaming(server)
            asked.read(3)
            monkeypatch.setattr(Device, "close", mending)
            driver.lose(GUILTY)
            steps.go()
            assert "context_lost" in asked.rest()[-1]
            server.ready()
            assert server.post("/v1/completions", LONG).json()["choices"] == expected
            assert server.metric("glinfer_context_losses_total") == 1

    def test_a_model_that_cannot_be_loaded(self, tmp_path: Path) -> None:
        (tmp_path / "bad.gab").write_bytes(b"nothing")
        server = HttpServer([ModelSource("bad", str(tmp_path / "bad.gab"))], ServerOptions(port=0))
        with pytest.raises(FormatError):
            server.run()

    def test_while_it_loads(self, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        load, go = worker.load_model, threading.Event()

        def loading(*given: Any, **named: Any) -> Any:
            go.wait(DEADLINE)
            return load(*given, **named)

        monkeypatch.setattr(worker, "load_model", loading)
        source = ModelSource("small", str(small), {}, SchedulerOptions(slots=2))
        made = Running(HttpServer([source], ServerOptions(port=0)))
        made.wait(lambda: made.get("/health").status_code == 503)
        assert made.get("/health").json() == {"status": "loading"}
        answer = made.post("/v1/completions", LONG)
        refused(answer, 503, code="not_ready")
        assert "Retry-After" in answer.headers
        assert made.get("/v1/models").json()["data"][0]["ready"] is False
        go.set()
        made.ready()
        made.server.end()
        made.thread.join(DEADLINE)
        assert made.failure is None

    def test_plans_of_the_first_answers_have_run_before(
        self, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A driver compiles a shader at its first draw, which takes seconds."""
        ran, run = set[Session](), Session.run

        def noted(self: Session, *given: Any, **named: Any) -> Any:
            ran.add(self)
            return run(self, *given, **named)

        monkeypatch.setattr(Session, "run", noted)
        write_embedder(tmp_path / "bert")
        with running(("small", small), ("bert", tmp_path / "bert"), slots=2) as server:
            before = ran.copy()
            assert "choices" in server.post("/v1/completions", {**LONG, "prompt": "Once upon a time"}).json()
            assert "data" in server.post("/v1/embeddings", {"model": "bert", "input": "the cat"}).json()
        assert ran == before

    def test_the_end_comes_while_weights_are_uploaded(self, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        begun, never = threading.Event(), threading.Event()

        def loading(*given: Any, on_upload: Any, **named: Any) -> None:
            while not never.wait(0.01):  # as if there were no end of weights
                on_upload(1, 2)
                begun.set()

        monkeypatch.setattr(worker, "load_model", loading)
        made = Running(HttpServer([ModelSource("small", str(small))], ServerOptions(port=0)))
        assert begun.wait(DEADLINE)
        made.server.end()
        made.thread.join(DEADLINE)
        ended = not made.thread.is_alive()
        never.set()
        assert ended
        assert made.failure is None


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health", timeout=DEADLINE).status_code == 200
    except httpx.ConnectError:
        return False


class TestEnd:
    @pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
    def test_a_signal_lets_running_requests_finish(self, small: Path, number: int) -> None:
        """Those that wait for a slot too: 12 answers in two slots, by a separate process."""
        # Tests that run under nohup ignore SIGHUP, and so would the server.
        command = ["env", "--default-signal", sys.executable, "-m", "glinfer", "serve", small, "--port", "0"]
        command += ["--slots", "2", "--grace", "600"]
        env, pipe = {**os.environ, "PYTHONPATH": str(ROOT)}, subprocess.PIPE
        body = {**LONG, "n": 4, "stream": True}
        with (
            subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True) as process,
            contextlib.ExitStack() as stack,
            ThreadPoolExecutor(3) as pool,
        ):
            stack.callback(process.kill)
            assert process.stdout is not None
            address = process.stdout.readline().split(" at ")[1].split("/v1")[0]
            eventually(lambda: is_ready(address), "the server is ready")
            asked = [
                stack.enter_context(httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=DEADLINE))
                for _ in range(3)
            ]
            assert [each.status_code for each in asked] == [200] * 3
            waiting = re.search(r"glinfer_waiting\{.*\} (\d+)", httpx.get(f"{address}/metrics", timeout=DEADLINE).text)
            os.kill(process.pid, number)
            assert waiting is not None
            assert int(waiting[1]) > 0
            for text in pool.map(lambda each: each.read().decode(), asked):
                assert len(re.findall(r'"finish_reason":\s?"(?:length|stop)"', text)) == 4
                assert text.endswith("data: [DONE]\n\n")
            assert process.wait(DEADLINE) == 0
            assert process.stderr is not None
            assert process.stderr.read() == ""

    @pytest.mark.slow
    def test_a_burst_of_connections_leaves_the_log_empty(self, small: Path, tmp_path: Path) -> None:
        """More than the process may open files; asyncio logs each one that it cannot accept."""
        command = ["sh", "-c", f"ulimit -n 64; exec '{sys.executable}' -m glinfer serve '{small}' --port 0"]
        env, log = {**os.environ, "PYTHONPATH": str(ROOT)}, tmp_path / "log"
        with (
            log.open("w") as errors,
            subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
            contextlib.ExitStack() as stack,
        ):
            stack.callback(process.kill)
            assert process.stdout is not None
            address = process.stdout.readline().split(" at ")[1].split("/v1")[0]
            eventually(lambda: is_ready(address), "the server is ready")
            place = httpx.URL(address)
            for _ in range(300):
                made = stack.enter_context(socket.socket())
                made.setblocking(False)
                made.connect_ex((place.host, place.port))
            eventually(lambda: is_ready(address), "the server answers")
            process.terminate()
            assert process.wait(DEADLINE) == 0
        assert log.read_text() == ""

    @pytest.mark.parametrize("twice", [False, True])
    def test_requests_that_hang_end_without_a_word(
        self, small: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], twice: bool
    ) -> None:
        """Half a header, half a body, and an answer that nobody reads; at a second signal at once."""
        monkeypatch.setattr("glinfer.server.run._LAST_SECONDS", 900 if twice else 0)
        monkeypatch.setattr("glinfer.server.run._OFF_LOOP_SECONDS", 900 if twice else 0)
        with (
            running(("small", small), slots=2, grace=900.0 if twice else 0.0) as server,
            contextlib.ExitStack() as stack,
        ):
            place = httpx.URL(server.url)
            for data in (
                b"POST /v1/",
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
            ):
                made = stack.enter_context(socket.create_connection((place.host, place.port or 80)))
                made.sendall(data)
            streaming = Streaming(server)
            streaming.read(1)
            server.wait(lambda: len(server.server._uvicorn.server_state.connections) >= 3)
            server.server.end()
            if twice:
                server.wait(lambda: server.server.state.ending)
                server.server.end()
            server.thread.join(DEADLINE)
            assert not server.thread.is_alive()
        assert capfd.readouterr().err == ""

    def test_an_end_before_the_beginning(self, small: Path) -> None:
        server = HttpServer([ModelSource("small", str(small))], ServerOptions(port=0))
        server.end()
        made = Running(server)
        made.thread.join(DEADLINE)
        ended = not made.thread.is_alive()
        server.end()
        assert ended
        assert made.failure is None

    def test_no_new_requests_while_others_finish(self, small: Path, steps: Steps) -> None:
        with running(("small", small), slots=2, grace=600) as server:
            steps.hold()
            steps.allow(5)
            asked = Streaming(server)
            asked.read(2)
            server.server.end()
            server.wait(lambda: server.get("/health").json() == {"status": "ending"})
            refused(server.post("/v1/completions", LONG), 503, code="not_ready")
            steps.go()
            assert asked.rest()[-1] == "data: [DONE]"

    def test_an_error_after_the_grace(self, small: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
        """It waits for the step that is under way, in which nothing can be told."""
        monkeypatch.setattr("glinfer.server.run._CLOSING_SECONDS", 600)
        with running(("small", small), slots=2, grace=0.0) as server:
            steps.hold()
            steps.allow(5)
            asked = Streaming(server)
            asked.read(2)
            server.wait(lambda: steps.begun == 6)  # five are done, and the sixth is under way
            server.server.end()
            server.wait(lambda: not server.server.worker._commands.empty())
            assert live(server)
            steps.go()
            assert "exceeded the grace period" in asked.rest()[-1]
            server.thread.join(DEADLINE)
            server.server.end()  # harmless
