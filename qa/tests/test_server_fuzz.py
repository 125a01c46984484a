"""``python -m qa fuzz`` and ``python -m qa health`` on a small scale."""

from __future__ import annotations

import json

import pytest
from qa_commands import run

pytest.importorskip("starlette", reason="starlette is not installed (pip install 'glinfer[server]')")

from qa.fuzz import requests
from qa.soak.models import CHATS, EMBEDS

pytestmark = pytest.mark.gl


def test_a_sample_of_damaged_requests() -> None:
    found = requests.run(150, 600, seed=4)
    assert found.requests >= 150
    assert (found.finds, found.failures) == ({}, 0)
    assert {200, 400, 403, 405, 413, 421} <= {status for each in found.statuses.values() for status in each}


def test_the_same_seed_draws_the_same_requests() -> None:
    one, two, other = (requests.Requests(seed) for seed in (1, 1, 2))
    assert [one.draw() for _ in range(20)] == [two.draw() for _ in range(20)] != [other.draw() for _ in range(20)]


@pytest.mark.slow
def test_bodies_are_as_large_as_may_be() -> None:
    from glinfer.server.limits import LIMITS
    from qa.health import bodies

    found = list(bodies(CHATS, EMBEDS, quick=True))
    assert {route for route, _, _ in found} == {*requests.Requests(0)._paths}
    assert max(len(body) for _, _, body in found) <= LIMITS.body_bytes
    assert all(max(len(body) for path, _, body in found if path == route) > 8_000_000 for route, _, _ in found)


@pytest.mark.slow
def test_health_of_every_route(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["health", "--quick", "--json"]) in (0, 1)
    found = json.loads(capsys.readouterr().out)
    assert {each["route"] for each in found} == {*requests.Requests(0)._paths}
    assert not [each for each in found if each["status"] >= 500]
