"""Clients that go away at any moment: their slots are free within one step, and nothing of them stays."""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from own_process import DEADLINE
from running_server import Running, Steps, running, sent

from glinfer.engine.scheduler import Scheduler

pytestmark = pytest.mark.gl

LONG: dict[str, Any] = {"model": "small", "prompt": "x", "max_tokens": 60, "seed": 2, "logit_bias": {"65": 100}}


def scheduler_of(server: Running) -> Scheduler:
    found = next(iter(server.server.worker.served.values())).scheduler
    assert found is not None
    return found


@pytest.fixture(scope="module")
def server(small: Path) -> Iterator[Running]:
    with running(("small", small), slots=2) as found:
        yield found


@pytest.mark.parametrize(("stream", "half"), [(True, False), (False, False), (False, True)])
def test_a_slot_is_free_within_one_step(server: Running, steps: Steps, stream: bool, half: bool) -> None:
    """The step that runs when the client goes is the last one that has it, and the next is of one who waits.

    A client that closes only its sending side looks the same to TCP, and counts as gone.
    """
    right = httpx.Client(timeout=DEADLINE, verify=False)
    steps.hold()
    steps.allow(5)
    scheduler, worker = scheduler_of(server), server.server.worker
    asked = sent(server, {**LONG, "stream": stream, "n": 2})
    if stream:
        assert b" 200 " in asked.recv(100)
    server.wait(lambda: steps.begun == 6)  # five are done, and the sixth is under way
    waiting = threading.Thread(target=right.post, args=(f"{server.url}/v1/completions",), kwargs={"json": LONG})
    waiting.start()
    server.wait(lambda: worker.live == 3)
    if half:
        asked.shutdown(socket.SHUT_WR)
    else:
        asked.close()
    server.wait(lambda: worker.live == 1)
    asked.close()
    gone = [*scheduler._taken]
    steps.allow()
    server.wait(lambda: steps.begun == 7)
    assert not {*gone} & {*scheduler._taken}
    assert [each.stats.finish_reason for each in gone] == ["cancelled"] * 2
    assert all(len(each.ids) <= 6 for each in gone)
    assert len(scheduler._taken) == 1, "who waited has the slot"
    steps.go()
    waiting.join(DEADLINE)
    right.close()
    server.wait(lambda: server.metric("glinfer_finished_total", reason="cancelled") >= 2)
    server.wait(lambda: server.metric("glinfer_running") == 0)


def left_over(server: Running) -> dict[str, Any]:
    """What a server has of its clients; all of it is nought or the same when they have gone."""
    worker, uvicorn = server.server.worker, server.server._uvicorn.server_state
    runner, scheduler = next(iter(worker.served.values())), scheduler_of(server)
    assert worker._device is not None
    return {
        "live": worker.live,
        "requests": len(runner.requests) + len(runner.works),
        "sequences": len(scheduler) + len(scheduler._taken),
        "busy slots": sum(each.running is not None for each in scheduler._slots),
        "connections": len(uvicorn.connections) + len(uvicorn.tasks),
        "objects": dict(worker._device.live_objects()),
    }


@pytest.mark.slow
def test_clients_that_go_at_any_moment_leave_nothing_behind(server: Running, capfd: pytest.CaptureFixture[str]) -> None:
    """In the header, in the body, at once, while it runs, by a reset, and while texts are scored."""
    asked, score = {**LONG, "max_tokens": 8, "logit_bias": {}}, {"model": "small", "input": ["x" * 60] * 20}
    expected = server.post("/v1/completions", asked).json()["choices"]
    server.post("/v1/score", score)
    server._http.close()
    before, draw = None, random.Random(1)
    for _ in range(3):
        for place in range(60):
            path, body = ("score", score) if place % 6 == 5 else ("completions", {**LONG, "stream": True, "n": 2})
            data = json.dumps(body).encode()
            head = f"POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode()
            whole = head + data
            end = (draw.randrange(len(head)), len(head) + draw.randrange(len(data)), *[len(whole)] * 4)[place % 6]
            made = socket.create_connection(server.server._socket.getsockname()[:2], timeout=DEADLINE)
            made.sendall(whole[:end])
            if place % 6 in (3, 4):
                made.recv(draw.randint(1, 2000))
            if place % 6 == 4:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            made.close()
        server.wait(lambda: not any(list(left_over(server).values())[:-1]))
        found = left_over(server)
        assert before in (None, found)
        before = found
    server._http = server.http()
    assert server.post("/v1/completions", asked).json()["choices"] == expected
    assert capfd.readouterr().err == "", "no tracebacks"
