"""The benchmark of products: its shapes, its maps, and 'python -m qa products'."""

from __future__ import annotations

import pytest
from qa_commands import run

from glinfer.kernels.flat.matmul_choice import LETTERS, MANY_ROWS, ONE_ROW
from glinfer.kernels.flat.product import STRATEGIES, Product
from qa.products import (
    ShapeTimes,
    share_near,
)

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]


def times(m: int, n: int, k: int, **seconds: float) -> ShapeTimes:
    return ShapeTimes(Product(m, n, k), seconds, chosen="small")


def test_a_choice_is_good_within_a_tenth() -> None:
    found = [
        times(4, 4, 4, small=1.0, reduce=2.0),
        times(4, 4, 4, small=1.09, reduce=1.0),
        times(4, 4, 4, small=1.11, reduce=1.0),
        times(4, 4, 4, small=3.0, reduce=1.0),
    ]
    assert [each.best for each in found] == ["small", "reduce", "reduce", "reduce"]
    assert share_near(found) == 0.5


def test_the_maps_that_choose_are_rectangles_of_known_letters() -> None:
    for maps in (ONE_ROW, MANY_ROWS):
        assert set(maps) == {"gpu", "llvmpipe"}
        for lines in maps.values():
            assert len({len(line) for line in lines}) == 1
            assert set("".join(lines)) <= set(LETTERS)
    assert set(LETTERS.values()) == set(STRATEGIES)


@pytest.mark.slow
def test_the_command_prints_a_table_the_maps_and_the_share(capsys: Capture) -> None:
    assert run(["products", "--no-usual", "--random", "3", "--seed", "5", "--samples", "1", "--map"]) == 0
    out = capsys.readouterr().out
    assert "times the fastest" in out
    assert "map of " in out
    assert "of 3 shapes" in out
    assert "llvmpipe" in out or "OpenGL" in out


def test_bad_options_are_one_line(capsys: Capture) -> None:
    none = "found no shapes to time; leave --no-usual out, or give --random a number"
    for arguments, message in (
        (["--no-usual", "--random", "0"], none),
        (["--random", "-1"], "Invalid value for '--random'"),
        (["--samples", "0"], "Invalid value for '--samples'"),
        (["--device", "99"], "there is no EGL device 99"),
    ):
        assert run(["products", *arguments]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.startswith(f"python -m qa: {message}")
        assert told.err.count("\n") == 1
