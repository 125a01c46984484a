"""Connections that are held open: slow headers and bodies, answers that nobody reads, thousands of idle ones."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from own_process import DEADLINE
from running_server import Running, running

from glinfer.engine.batch import Batch
from glinfer.errors import InputError
from glinfer.server.connections import BoundedConnection, _Open
from glinfer.server.limits import ConnectionLimits, max_open_files

HEAD = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
SHORT = 0.4
"""Seconds of little patience; a test that needs the server to wait for it has none of it meanwhile."""


@pytest.fixture(scope="module")
def server(small: Path) -> Iterator[Running]:
    """A server of 8 connections, which waits for headers until a test says otherwise, and not long for the rest."""
    limits = ConnectionLimits(connections=8, header_seconds=600, body_seconds=SHORT, unread_seconds=SHORT)
    with running(("small", small), slots=2, connections=limits) as found:
        found._http.close()  # which has asked whether the server is ready
        found._http = found.http()
        yield found


@pytest.fixture
def hasten(server: Running, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on no header is waited for long; those that are waited for already have their time."""
    kind = cast("type[BoundedConnection]", server.server._uvicorn.config.http)
    return lambda: monkeypatch.setattr(kind, "limits", replace(kind.limits, header_seconds=SHORT))


def connected(server: Running) -> socket.socket:
    return socket.create_connection(server.server._socket.getsockname()[:2], timeout=DEADLINE)


def rest(made: socket.socket) -> bytes:
    """What comes up to where the server closes."""
    return b"".join(iter(lambda: made.recv(4096), b""))


def taken_in(server: Running) -> socket.socket:
    """A connection that the server waits for."""
    before = held(server)
    made = connected(server)
    server.wait(lambda: held(server) > before)
    return made


def drip(made: socket.socket, data: bytes) -> None:
    """Send a byte every now and then, until the server has closed."""
    end = time.monotonic() + DEADLINE
    made.setblocking(False)
    for byte in itertools.cycle(data):
        assert time.monotonic() < end, "the server has waited for ever"
        try:
            made.send(bytes([byte]))
            if made.recv(4096) == b"":
                break
        except BlockingIOError:
            time.sleep(0.05)
        except OSError:
            break


@pytest.mark.gl
class TestSlowClients:
    @pytest.fixture(autouse=True)
    @staticmethod
    def alone(server: Running) -> None:
        server.wait(lambda: not held(server))

    def test_a_header_without_end_and_silence(self, server: Running, hasten: Callable[[], None]) -> None:
        hasten()
        with connected(server) as made:
            drip(made, b"X-More: more\r\n")
        with connected(server) as made:
            assert made.recv(10) == b""

    def test_silence_after_an_answer(self, server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        """The header's time counts, which is long here; uvicorn's own limit is shorter."""
        monkeypatch.setattr(server.server._uvicorn.config, "timeout_keep_alive", SHORT / 4)
        made = http.client.HTTPConnection(*server.server._socket.getsockname()[:2], timeout=DEADLINE)
        with contextlib.closing(made):
            made.connect()
            made.auto_open = 0  # a closed connection is not replaced
            for _ in range(2):
                made.request("GET", "/v1/models")
                assert made.getresponse().read().startswith(b'{"object"')
                time.sleep(SHORT)

    @pytest.mark.parametrize(
        ("head", "more"),
        [(GET, b"X-More: more\r\n"), (GET.replace(b"\r\n\r\n", b"\r\nContent-Length: 100000\r\n\r\n"), b"x")],
        ids=["a second header", "a body that nobody asked for"],
    )
    def test_what_goes_on_behind_an_answer(
        self, server: Running, hasten: Callable[[], None], head: bytes, more: bytes
    ) -> None:
        with taken_in(server) as made:
            hasten()
            made.sendall(head)
            assert b"200 OK" in made.recv(4096)
            drip(made, more)

    def test_a_body_without_end(self, server: Running, capfd: pytest.CaptureFixture[str]) -> None:
        with connected(server) as made:
            made.sendall((HEAD + "Content-Length: 1000\r\n\r\n{").encode())
            answer = rest(made)
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"body_too_slow" in answer
        with connected(server) as made:  # which goes away before
            made.sendall((HEAD + "Content-Length: 1000\r\n\r\n{").encode())
        server.wait(lambda: not held(server))
        assert capfd.readouterr().err == "", "no traceback"

    def test_a_running_request_has_time(
        self, server: Running, hasten: Callable[[], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The limits are those of a client that is waited for, not of an answer that takes long."""
        run, steps = Batch.run, [0]

        def slowly(self: Batch, *given: object) -> object:
            steps[0] += 1
            time.sleep(0.1)
            return run(self, *given)  # type: ignore[arg-type]

        monkeypatch.setattr(Batch, "run", slowly)
        body = json.dumps({"model": "small", "prompt": "x", "max_tokens": 12, "seed": 2})
        head = f"{HEAD}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        with taken_in(server) as made:
            hasten()
            made.sendall(GET + (head + body).encode())  # so that its header is there when the time for it begins
            assert rest(made).count(b"HTTP/1.1 200 OK") == 2
        assert steps[0] * 0.1 > 2 * SHORT

    def test_an_answer_that_nobody_reads(self, server: Running) -> None:
        """Many answers on one connection, until the buffers are full."""
        with contextlib.closing(socket.socket()) as made:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            made.settimeout(120)
            made.connect(server.server._socket.getsockname()[:2])
            asked = GET.replace(b"/v1/models", b"/openapi.json")
            with contextlib.suppress(ConnectionError):
                for _ in range(100_000):
                    made.sendall(asked * 100)
                pytest.fail("the server takes requests whose answers nobody reads")
        server.wait(lambda: not held(server))


def held(server: Running) -> int:
    return len(server.server._uvicorn.server_state.connections)


@pytest.mark.gl
def test_small_writes_are_sent_at_once(server: Running) -> None:
    """Nagle's algorithm would hold a body or a token until the client acknowledges the write before it (40 ms)."""
    assert server.get("/health").status_code == 200
    for connection in server.server._uvicorn.server_state.connections:
        made = cast("BoundedConnection", connection).transport.get_extra_info("socket")
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.gl
class TestManyConnections:
    def test_idle_ones_make_room(self, server: Running) -> None:
        """The one that was idle for longest goes; one with a request stays."""
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(connected(server)) for _ in range(40)]
            assert [each.recv(1) for each in idle[:32]] == [b""] * 32  # waits until the server has accepted all
            server.wait(lambda: held(server) == 8)
            assert server.get("/health").status_code == 200
            assert server.metric("glinfer_rejected_total", reason="connections") >= 32
            idle[-1].sendall(GET)
            assert idle[-1].recv(4096).startswith(b"HTTP/1.1 200 ")

    @pytest.mark.skipif(sys.platform != "linux", reason="other systems have one loopback address")
    def test_an_address_that_has_all_makes_room_for_another(self, server: Running) -> None:
        """The newest of its requests ends, and not the one that has just come."""
        server._http.close()
        server.wait(lambda: not held(server))
        begun = (HEAD + "Content-Length: 9\r\n\r\n{").encode()
        kind = cast("type[BoundedConnection]", server.server._uvicorn.config.http)
        with contextlib.ExitStack() as stack:
            busy = list[socket.socket]()
            for count in range(8):
                busy.append(stack.enter_context(connected(server)))
                busy[-1].sendall(begun)
                server.wait(lambda count=count: held(server) == count + 1 and not kind.idle)  # type: ignore[misc]
            place = server.server._socket.getsockname()[:2]
            made = stack.enter_context(socket.create_connection(place, 120, source_address=("127.0.0.2", 0)))
            made.sendall(GET)
            assert made.recv(20).startswith(b"HTTP/1.1 200 ")
            assert busy[-1].recv(10) == b""
            assert {len(each) for each in kind.addresses.values()} == {7, 1}
        server.wait(lambda: not kind.addresses)
        server._http = server.http()

    def test_what_is_written_behind_the_end_is_dropped(self, caplog: pytest.LogCaptureFixture) -> None:
        """asyncio would say each time that it has raised an exception."""

        async def wrote() -> None:
            ours, theirs = socket.socketpair()
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(asyncio.Protocol, ours)
            opened = _Open(transport)
            theirs.close()
            for _ in range(20):
                opened.write(b"x" * 100)
            assert opened.is_closing()

        asyncio.run(wrote())
        assert caplog.text == ""

    @pytest.mark.slow
    def test_busy_ones_stay(self, small: Path) -> None:
        limits = ConnectionLimits(connections=4)
        body = json.dumps({"model": "small", "prompt": "x"})
        begun = (HEAD + f"Content-Length: {len(body)}\r\n\r\n{body[:5]}").encode()
        with running(("small", small), slots=2, connections=limits) as server, contextlib.ExitStack() as stack:
            server.wait(lambda: not held(server))
            busy = [stack.enter_context(connected(server)) for _ in range(4)]
            for each in busy:
                each.sendall(begun)
            connections = server.server._uvicorn.server_state.connections
            server.wait(lambda: sum(each.cycle is not None for each in connections) == 4)
            with connected(server) as made:
                answer = rest(made)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"too_many_connections" in answer
            for each in busy:
                each.sendall(body[5:].encode())
                assert each.recv(4096).startswith(b"HTTP/1.1 200 ")

    def test_the_bound_leaves_files_for_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert ConnectionLimits().fitted().connections == min(1024, max_open_files() // 2)
        monkeypatch.setattr("glinfer.server.limits.max_open_files", lambda: 24)
        with pytest.raises(InputError, match="may open 24 files; expected at least 64"):
            ConnectionLimits().fitted()
