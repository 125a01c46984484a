"""The arithmetic of ``glinfer eval``: windows that score every token once, and the likelihood of targets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glinfer.engine.score import windows
from glinfer.inspect.evaluate import log_likelihoods


@given(count=st.integers(0, 300), context=st.integers(1, 40), data=st.data())
def test_every_token_but_the_first_is_scored_once_with_enough_before_it(
    count: int, context: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, context))
    scored_tokens = []
    for start, stop, scored in windows(count, context, stride):
        assert 0 <= start < scored <= stop < count
        assert stop - start <= context
        assert start == 0 or scored - start >= context - stride + 1
        scored_tokens += range(scored, stop + 1)
    assert scored_tokens == list(range(1, count))


def test_gabs_windows_by_hand() -> None:
    assert list(windows(11, 4, 2)) == [(0, 4, 1), (2, 6, 5), (4, 8, 7), (6, 10, 9)]
    assert list(windows(11, 4, 4)) == [(0, 4, 1), (4, 8, 5), (8, 10, 9)]
    assert list(windows(1, 4, 2)) == []


def test_likelihood_of_known_distributions() -> None:
    uniform = np.zeros((3, 8), np.float32)
    assert log_likelihoods(uniform, [0, 5, 7]) == pytest.approx([-math.log(8)] * 3)
    odds = np.log(np.array([[1.0, 3.0], [1.0, 3.0]], np.float64))
    assert log_likelihoods(odds, [1, 0]) == pytest.approx([math.log(3 / 4), math.log(1 / 4)])
    large = np.array([[1e4, 1e4 - 1.0]], np.float32)
    assert log_likelihoods(large, [0]) == pytest.approx([-math.log(1 + math.exp(-1))])
