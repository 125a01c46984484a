"""``python -m qa fuzz`` on a small scale."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="starlette is not installed (pip install 'glinfer[server]')")

from qa.fuzz import requests

pytestmark = pytest.mark.gl


def test_a_sample_of_damaged_requests() -> None:
    found = requests.run(150, 600, seed=4)
    assert found.requests >= 150
    assert found.finds == {}
    assert {200, 400, 403, 405, 413, 421} <= {status for each in found.statuses.values() for status in each}


def test_the_same_seed_draws_the_same_requests() -> None:
    one, two, other = (requests.Requests(seed) for seed in (1, 1, 2))
    assert [one.draw() for _ in range(20)] == [two.draw() for _ in range(20)] != [other.draw() for _ in range(20)]
