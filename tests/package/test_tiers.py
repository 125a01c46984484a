"""What `make test-all` takes of tests with many cases."""

from __future__ import annotations

import pytest
from tiers import MANY, parse_share, shared_out


@pytest.mark.parametrize("count", [1, MANY, MANY + 1, 40])
def test_the_shares_together_run_every_case(count: int) -> None:
    cases = [f"test[{number}]" for number in range(count)]
    shares = [shared_out(cases, (which, 4)) for which in range(1, 5)]
    assert set().union(*shares) == set(cases)
    if count > MANY:
        assert sum(map(len, shares)) == count, "no case is run twice"
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    else:
        assert all(share == set(cases) for share in shares)
    assert shared_out(cases, (1, 1)) == set(cases)


def test_a_share_is_the_same_in_any_order() -> None:
    cases = [f"test[{number}]" for number in range(20)]
    assert shared_out(cases, (2, 3)) == shared_out(cases[::-1], (2, 3))


@pytest.mark.parametrize("text", ["", "0/4", "5/4", "1", "1/0", "-1/4", "a/b", "1/4/2", "1/99999"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="expected i/n with i from 1 to n, such as 1/4"):
        parse_share(text)
