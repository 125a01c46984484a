"""What ``glinfer diff`` says of tensors, arrays and logits, without running a model; and its picture."""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glinfer.cli.diff import check_picture, side_of, verdict
from glinfer.config import ModelConfig
from glinfer.errors import GlinferError, InputError
from glinfer.formats import Checkpoint, random_checkpoint
from glinfer.formats.packed import PackedTensor
from glinfer.gl.context import Limits
from glinfer.inspect import pieces
from glinfer.inspect.diff.compare import (
    CapturedRun,
    DiffReport,
    ElementPosition,
    RunConfig,
    RunFacts,
    compare_along,
    compare_passes,
    farthest,
    spread,
)
from glinfer.inspect.diff.pictures import save_picture
from glinfer.inspect.diff.weights import compared, diff_weights
from glinfer.program.oracle import relative_error
from glinfer.program.points import CapturePoint, View
from glinfer.quant.ggml import pack

Array = np.ndarray[Any, Any]
GENERATOR = np.random.default_rng(11)
MATRIX = GENERATOR.standard_normal((24, 24)).astype(np.float32)
WIDE = GENERATOR.standard_normal((12, 64)).astype(np.float32)
VECTOR = GENERATOR.standard_normal(40).astype(np.float32)
LLAMA = ModelConfig.from_options("family=llama,blocks=1,heads=2,kv_heads=1,dim=32,inner=64,vocab=40,context=16")


def bf16(array: Array) -> Array:
    """The nearest numbers with 8 bits, found by trying both neighbours."""
    below = (array.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    above = ((array.view(np.uint32) & np.uint32(0xFFFF0000)) + np.uint32(0x10000)).view(np.float32)
    return np.where(np.abs(array - below) <= np.abs(above - array), below, above)


def changed(array: Array, rows: list[int]) -> Array:
    made = array.copy()
    made[rows] += 1
    return made


class TestTensors:
    @pytest.mark.parametrize("elements", [1, 100, 1 << 22])
    def test_what_happened_is_named(self, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pieces, "PIECE_ELEMENTS", elements)
        near = MATRIX + 0.05 * GENERATOR.standard_normal((24, 24), dtype=np.float32)
        other = GENERATOR.standard_normal((24, 24), dtype=np.float32)
        for a, b, kind, what in (
            (MATRIX, MATRIX.copy(), "identical", "identical"),
            (MATRIX, MATRIX.T.copy(), "transposed", "B is A transposed"),
            (WIDE, WIDE.T.copy(), "transposed", "B is A transposed"),
            (WIDE, WIDE[:5], "shape", "A is [12, 64], B is [5, 64]"),
            (MATRIX, MATRIX * np.float32(1.7), "scaled", "B is A × 1.7"),
            (MATRIX, -MATRIX, "scaled", "B is A × -1"),
            (VECTOR, VECTOR + np.float32(1), "shifted", "B is A + 1"),
            (VECTOR, VECTOR - np.float32(0.5), "shifted", "B is A − 0.5"),
            (MATRIX, MATRIX.astype(np.float16).astype(np.float32), "rounded", "B is A rounded to f16"),
            (MATRIX.astype(np.float16).astype(np.float32), MATRIX, "rounded", "A is B rounded to f16"),
            (MATRIX, bf16(MATRIX), "rounded", "B is A rounded to bf16"),
            (MATRIX, MATRIX[::-1].copy(), "permuted", "rows permuted"),
            (WIDE, np.roll(WIDE, 3, axis=1), "permuted", "columns permuted"),
            (VECTOR, VECTOR[::-1].copy(), "permuted", "elements permuted"),
            (MATRIX, changed(MATRIX, [7, 9]), "rows", "2 of 24 rows differ, the first is 7"),
            (VECTOR, changed(VECTOR, [3]), "rows", "1 of 40 elements differ, the first is 3"),
            (MATRIX, np.zeros_like(MATRIX), "zero", "B is zero"),
            (np.zeros_like(VECTOR), VECTOR, "zero", "A is zero"),
            (MATRIX, MATRIX * np.float32(1 + 3e-7), "digits", "only the last digits differ"),
            (MATRIX, near, "changed", "B is close to A"),
            (MATRIX, other, "unrelated", "B is unrelated to A"),
        ):
            found = compared("name", a, b)
            assert (found.kind, found.what) == (kind, what)
            if a.shape == b.shape:
                assert found.largest == pytest.approx(float(np.abs(b.astype(np.float64) - a).max())), what

    def test_a_single_other_element(self) -> None:
        late = MATRIX.T.copy()
        late[-1, -1] += 5
        assert compared("name", MATRIX, late).kind != "transposed"
        late = MATRIX * np.float32(3)
        late[-1, -1] += 1
        assert compared("name", MATRIX, late).kind != "scaled"

    def test_two_checkpoints(self) -> None:
        pytest.importorskip("gguf")
        a = random_checkpoint(LLAMA)
        down, norm = "model.layers.0.mlp.down_proj.weight", "model.norm.weight"
        tensors = {name: array for name, array in a.tensors.items() if name not in (down, norm)}
        tensors["extra"] = VECTOR
        b = Checkpoint(LLAMA, tensors, "b", {down: PackedTensor("Q8_0", pack(a.tensors[down], "Q8_0"))})
        seen: list[tuple[int, int]] = []
        found = diff_weights(a, b, lambda done, total: seen.append((done, total)))
        assert not found.identical
        assert {what: [each.name for each in group] for what, group in found.groups.items()} == {
            "B is A in Q8_0": [down],
            "missing in B": [norm],
            "missing in A": ["extra"],
        }
        count = len(a.tensors) + 1
        assert seen == [(done, count) for done in range(1, count + 1)]
        assert found.to_json()["identical"] == count - 3
        assert diff_weights(a, a).identical


class TestNumbers:
    def test_the_error_is_the_oracles_and_its_place_is_told(self) -> None:
        generator = np.random.default_rng(0)
        expected = generator.standard_normal((3, 4, 5))
        expected[0, 0, 3:] = -1e30
        found = expected + generator.standard_normal(expected.shape) * 1e-3
        found[0, 0, 3:] = -1e30
        found[2, 1, 4] += 7
        assert farthest(found, expected) == (relative_error(found, expected), (2, 1, 4))
        found[1, 2, 3] = np.nan
        assert farthest(found, expected) == (math.inf, (1, 2, 3))
        expected[1, 2, 3] = np.nan
        assert farthest(found, expected)[1] == (2, 1, 4)
        assert farthest(expected, expected) == (0.0, None)

    def test_divergence_by_hand(self) -> None:
        a, b = np.log([[0.5, 0.25, 0.25]] * 3), np.log([[0.25, 0.25, 0.5]] * 3)
        b[1] = a[1]
        along = compare_along([2, 0, 1], [0, 1, 2], a.astype(np.float32), b.astype(np.float32))
        by_hand = 0.5 * math.log(2) - 0.25 * math.log(2)
        assert [at.kl for at in along.positions] == pytest.approx([by_hand, 0, by_hand], rel=1e-6)
        assert along.kl == pytest.approx((by_hand * 2 / 3, by_hand, by_hand), rel=1e-6)
        assert [(at.position, at.token, at.following) for at in along.positions] == [(0, 2, 0), (1, 0, 1), (2, 1, None)]
        assert along.agreement == pytest.approx(1 / 3)
        assert along.perplexities() == pytest.approx((math.sqrt(2 * 4), math.sqrt(4 * 4)), rel=1e-6)
        assert [at.position for at in along.worst_first] == [0, 2, 1]
        assert not along.identical

    def test_a_token_of_no_probability_and_no_number(self) -> None:
        a = np.array([[0, -np.inf], [0, 1], [0, 1]], np.float32)
        b = np.array([[0, 0], [0, -np.inf], [np.nan, 1]], np.float32)
        along = compare_along([0, 0, 0], [0, 1, 2], a, b)
        first, second, third = (at.kl for at in along.positions)
        assert (first, second) == (pytest.approx(math.log(2)), math.inf)
        assert math.isnan(third)
        assert along.worst_first[0].position == 2
        assert along.error == math.inf

    def test_a_single_token_has_nothing_to_be_surprised_of(self) -> None:
        along = compare_along([1], [0], np.zeros((1, 3), np.float32), np.zeros((1, 3), np.float32))
        assert along.perplexities() is None
        assert along.identical
        assert along.to_json()["perplexity"] == {"a": None, "b": None}

    def test_positions(self) -> None:
        for count, positions, whole, vocab, expected in (
            (5, None, False, 10, [0, 1, 2, 3, 4]),
            (5, 3, False, 10, [0, 2, 4]),
            (5, 9, False, 10, [0, 1, 2, 3, 4]),
            (5, 1, True, 10, [4]),
            (5, None, True, 10, [0, 1, 2, 3, 4]),
            (9, None, False, 1 << 27, [0, 8]),
        ):
            assert spread(count, positions, whole=whole, vocab=vocab) == expected

    def test_a_whole_sequence_each_time_gives_32_positions(self) -> None:
        found = spread(1000, None, whole=True, vocab=10)
        assert len(found) == 32
        assert (found[0], found[-1]) == (0, 999)
        assert np.ptp(np.diff(found)) <= 1


def trace(arrays: dict[str, Array], draws: tuple[str, ...] = ("d",), sites: tuple[str, ...] = ("d",)) -> CapturedRun:
    where = tuple((site, "x") for site in sites)
    points = {name: CapturePoint(name, where, View(1, array.ndim - 2)) for name, array in arrays.items()}
    return CapturedRun(arrays, points, draws, 6)


class TestPasses:
    def test_a_centred_stream_is_compared_with_a_plain_one(self) -> None:
        plain = GENERATOR.standard_normal((6, 8)).astype(np.float32) + 3
        centred = (plain.astype(np.float64) - plain.mean(axis=1, keepdims=True)).astype(np.float32)
        for a, b in (({"embed": plain}, {"embed.centred": centred}), ({"embed.centred": centred}, {"embed": plain})):
            (found,) = compare_passes(trace(a), trace(b))
            assert found.name == "embed.centred"
            assert found.error is not None
            assert 0 < found.error < 1e-6
            assert not found.identical

    def test_the_last_rows_are_compared(self) -> None:
        whole = GENERATOR.standard_normal((6, 8)).astype(np.float32)
        last = whole[-1:].copy()
        (same,) = compare_passes(trace({"logits": whole}), trace({"logits": last}))
        assert same.identical
        last[0, 5] += 1
        (found,) = compare_passes(trace({"logits": whole}), trace({"logits": last}))
        assert found.place == ElementPosition(5, None, 5)
        assert found.error == pytest.approx(1 / np.abs(whole[-1]).max())

    def test_of_draws_for_single_heads_the_one_is_named(self) -> None:
        a = GENERATOR.standard_normal((3, 6, 4)).astype(np.float32)
        b = a.copy()
        b[1, 2, 3] += 1
        sides = [trace({"blocks.0.attn.mixed": each}, sites=("head.0", "head.1", "head.2")) for each in (a, b)]
        (found,) = compare_passes(*sides)
        assert (found.place, found.draw) == (ElementPosition(2, 1, 3), "head.1")
        other = trace({"blocks.0.attn.mixed": b}, draws=("another",))
        assert [each.draw for each in compare_passes(sides[0], other)] == [None]

    def test_other_shapes_are_no_match(self) -> None:
        a, b = np.zeros((6, 8), np.float32), np.zeros((6, 9), np.float32)
        found = list(compare_passes(trace({"embed": a, "only": a}), trace({"embed": b})))
        assert [(each.name, each.error, each.place, each.shapes) for each in found] == [
            ("embed", None, None, ((6, 8), (6, 9)))
        ]
        assert found[0].beyond(1e9)


@pytest.fixture
def report() -> DiffReport:
    """Two sides whose passes are further and further apart, of a made-up model."""
    names = ["embed", *(f"blocks.{block}.{part}" for block in (0, 1) for part in ("attn.q", "mlp.out", "resid_post"))]
    a = {name: GENERATOR.standard_normal((6, 8)).astype(np.float32) for name in names}
    b = {name: array * np.float32(1 + 1e-3 * place) for place, (name, array) in enumerate(a.items())}
    b["blocks.1.mlp.out"] = np.zeros((6, 9), np.float32)
    logits = GENERATOR.standard_normal((6, 30)).astype(np.float32)
    side = RunFacts("m", "fast", "f32", ("F32",), "a renderer", 2048, 1, LLAMA)
    along = compare_along([1, 2, 3, 1, 2, 3], list(range(6)), logits, logits + np.float32(0.01) * logits[::-1])
    words = {1: " $a_1$", 2: "\n", 3: "漢字 and a long word"}
    passes = tuple(compare_passes(trace(a), trace(b)))
    ids = (1, 2, 3, 1, 2, 3)
    return DiffReport(side, side, ids, words, 2.5e-3, {}, None, passes, 6, (), (), along)


class TestReport:
    def test_what_is_first(self, report: DiffReport) -> None:
        assert report.first_different is not None
        assert report.first_beyond is not None
        assert (report.first_different.name, report.first_beyond.name) == ("blocks.0.attn.q", "blocks.0.resid_post")
        assert not report.passed
        assert "blocks.0.resid_post (3.00e-03), completed by draw d" in verdict(report)

    def test_logits_beyond_the_tolerance_fail_by_themselves(self, report: DiffReport) -> None:
        only = dataclasses.replace(report, passes=report.passes[:2])
        assert only.first_beyond is None
        assert not only.passed
        assert verdict(only).startswith("DIFFERS: tensors are within 0.0025, but logits along the text are not")
        assert dataclasses.replace(only, tolerance=0.5).passed

    @pytest.mark.slow
    def test_the_picture_is_a_png_and_the_same_each_time(self, report: DiffReport, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        once, again, other = (tmp_path / f"{name}.png" for name in ("once", "again", "other"))
        save_picture(report, once)
        save_picture(report, again)
        save_picture(dataclasses.replace(report, tolerance=0.5), other)
        assert once.read_bytes().startswith(b"\x89PNG\r\n")
        assert once.read_bytes() == again.read_bytes() != other.read_bytes()
        assert len(list(tmp_path.iterdir())) == 3

    def test_a_picture_that_cannot_be_is_refused(self, tmp_path: Path) -> None:
        for name, expected in (
            ("out.jpg", "ending in .png"),
            ("out", "ending in .png"),
            ("no/out.png", "cannot write it: No such file or directory"),
        ):
            with pytest.raises(GlinferError, match=expected):
                check_picture(tmp_path / name)

    def test_without_matplotlib_the_extra_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(InputError, match=r"pip install .*\[plots\]'"):
            check_picture(tmp_path / "out.png")


class TestSettings:
    def test_settings_of_a_side(self) -> None:
        assert side_of(
            "--a", "m", ["plan=reference, gelu=erf", "context=12,device=1", "api=es,limits=webgl2"]
        ) == RunConfig(
            "m", plan="reference", gelu="erf", context=12, device="1", api="es", limits=Limits.webgl2_minimum()
        )
        assert side_of("--b", "m", []) == RunConfig("m")

    def test_bad_settings_are_told(self) -> None:
        for text, expected in (
            ("wieghts=q8", "unknown setting 'wieghts' in --b; expected KEY=VALUE with a key of plan, weights"),
            ("q8", "unknown setting 'q8'"),
            ("weights", "'weights' in --b has no value"),
            ("weights=", "'weights=' in --b has no value"),
            ("weights=q7", "expected weights to be one of f32, f16"),
            ("plan=slow", "expected plan to be one of fast, reference"),
            ("limits=none", "expected limits to be one of driver, webgl2"),
            ("context=ten", "expected an integer number of tokens"),
            ("context=-3", "expected an integer number of tokens"),
            ("plan=fast,plan=reference", "plan is given twice in --b"),
        ):
            with pytest.raises(InputError) as refused:
                side_of("--b", "m", [text])
            assert expected in str(refused.value)
