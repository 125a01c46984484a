"""The benchmark of products: its shapes, its maps, and 'python -m qa products'."""

from __future__ import annotations

import json

import pytest
from qa_commands import run

from glinfer.ops.flat.matmul_choice import LETTERS, MANY_ROWS, ONE_ROW, candidates, exact_place
from glinfer.ops.flat.product import STRATEGIES, Product
from glinfer.tensors.device import Device
from qa.products import (
    ShapeTimes,
    batched,
    measured_map,
    random_products,
    share_near,
    sweep,
    usual_products,
)

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]


def times(m: int, n: int, k: int, **seconds: float) -> ShapeTimes:
    return ShapeTimes(Product(m, n, k), seconds, chosen="small")


def test_random_shapes_are_the_same_for_a_seed_and_of_all_kinds() -> None:
    shapes = random_products(200, seed=3)
    assert shapes == random_products(200, seed=3)
    assert shapes != random_products(200, seed=4)
    assert {shape.transposed for shape in shapes} == {False, True}
    assert {shape.count for shape in shapes} == {1, 8}
    assert 40 <= sum(shape.m == 1 for shape in shapes) <= 120
    places = [exact_place(shape) for shape in shapes]
    assert max(line for line, _ in places) > 12
    assert max(column for _, column in places) > 12


def test_a_choice_is_good_within_a_tenth() -> None:
    found = [
        times(4, 4, 4, small=1.0, reduce=2.0),
        times(4, 4, 4, small=1.09, reduce=1.0),
        times(4, 4, 4, small=1.11, reduce=1.0),
        times(4, 4, 4, small=3.0, reduce=1.0),
    ]
    assert [each.best for each in found] == ["small", "reduce", "reduce", "reduce"]
    assert share_near(found) == 0.5


def test_a_map_takes_what_is_best_nearby() -> None:
    lines = measured_map(
        [
            times(1, 4, 4, small=1.0, packed=9.0),  # place (0, 0)
            times(64, 64, 4, small=9.0, packed=1.0),  # place (10, 0)
            times(1, 4, 4096, small=9.0, reduce=1.0),  # place (0, 10)
        ]
    )
    assert (len(lines), {len(line) for line in lines}) == (11, {11})
    assert (lines[0][0], lines[10][0], lines[0][10]) == ("s", "p", "r")
    assert (lines[2][1], lines[8][1], lines[1][8]) == ("s", "p", "r")


@pytest.mark.parametrize("maps", [ONE_ROW, MANY_ROWS])
def test_the_maps_that_choose_are_rectangles_of_known_letters(maps: dict[str, tuple[str, ...]]) -> None:
    assert set(maps) == {"gpu", "llvmpipe"}
    for lines in maps.values():
        assert len({len(line) for line in lines}) == 1
        assert set("".join(lines)) <= set(LETTERS)
    assert set(LETTERS.values()) == set(STRATEGIES)


@pytest.mark.slow
def test_every_strategy_of_a_shape_is_timed() -> None:
    shapes = [Product(1, 8, 700), batched(2, 5, 6, 700), Product(9, 8, 3, transposed=True)]
    steps: list[tuple[int, int]] = []
    with Device() as device:
        found = sweep(device, shapes, samples=1, on_progress=lambda done, total: steps.append((done, total)))
        for shape, each in zip(shapes, found, strict=True):
            possible = {strategy.name for strategy in candidates(shape, device.kernels, blends=device.blends_floats)}
            # Three inputs are one part, however they are split.
            assert set(each.seconds) == possible - ({"split_k", "reduce"} if shape.k == 3 else set())
            assert min(each.seconds.values()) > 0
            assert each.chosen in each.seconds
            assert each.ratio >= 1
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_the_shapes_of_models_have_one_row_and_many_both_ways_around() -> None:
    shapes = usual_products()
    assert len(set(shapes)) == len(shapes)
    assert {(shape.m == 1, shape.transposed) for shape in shapes} == {
        (a, b) for a in (True, False) for b in (True, False)
    }


def test_the_command_prints_a_table_the_maps_and_the_share(capsys: Capture) -> None:
    assert run(["products", "--no-usual", "--random", "3", "--seed", "5", "--samples", "1", "--map"]) == 0
    out = capsys.readouterr().out
    assert "times the fastest" in out
    assert "map of " in out
    assert "of 3 shapes" in out
    assert "llvmpipe" in out or "OpenGL" in out


@pytest.mark.slow
def test_the_command_as_json(capsys: Capture) -> None:
    assert run(["products", "--no-usual", "--random", "2", "--samples", "1", "--limits", "webgl2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert 0 <= told["near"] <= 1
    assert len(told["products"]) == 2
    for each in told["products"]:
        assert each["chosen"] in each["seconds"]
        assert each["seconds"][each["fastest"]] == min(each["seconds"].values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--no-usual", "--random", "0"], "found no shapes to time; leave --no-usual out, or give --random a number"),
        (["--random", "-1"], "Invalid value for '--random'"),
        (["--samples", "0"], "Invalid value for '--samples'"),
        (["--device", "99"], "there is no EGL device 99"),
    ],
)
def test_bad_options_are_one_line(capsys: Capture, arguments: list[str], message: str) -> None:
    assert run(["products", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"python -m qa: {message}")
    assert told.err.count("\n") == 1
