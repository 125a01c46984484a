"""``python -m qa kernels``: the table on a terminal, in a file and as JSON, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from qa_commands import run
from tiers import tiered

from glinfer.errors import InputError
from glinfer.tensors.device import Device
from qa.kernels.cases.activation import CASES
from qa.kernels.cases.case import KernelCase
from qa.kernels.measure import SHAPES, SMALL_SHAPES, TABLE_BEGIN, TABLE_END, shapes_for

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
BEFORE, BEHIND = "# Kernels · ü\r\n\r\nText | with | bars\n", "\n\nThe end, no newline"
PAGE = f"{BEFORE}{TABLE_BEGIN}\nold\n{TABLE_END}{BEHIND}"
SILU = next(case for case in CASES if case.kernel == "silu")


def adding(wrong: float) -> KernelCase:
    """A kernel that is right but for ``wrong``."""

    def check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Any:
        x = rng.standard_normal((rows, cols)).astype(np.float32) + np.float32(9)
        x[0, 0] = 1000
        with device.tensor(x) as tensor, device.ops.activate(tensor, "none") as y:
            return [(y.numpy() + (wrong * 1000 if form == "second" else 0), x)]

    return KernelCase("odd", "strange", ("activation", "copy"), ("first", "second"), check, SILU.timed, "1×1", 0.01)


def refusing() -> KernelCase:
    def check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Any:
        if cols == 33:
            raise InputError("odd: x is [5, 33]; expected something even")
        return []

    return dataclasses.replace(adding(0), check=check)


def misshapen() -> KernelCase:
    def check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Any:
        return [(np.ones((rows, cols, 1)), np.ones((rows, cols)))]

    return dataclasses.replace(adding(0), check=check)


@pytest.fixture
def cases(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that puts a few cases in the place of all."""

    def put(*given: KernelCase) -> None:
        monkeypatch.setattr("qa.kernels.measure.FAMILIES", (SimpleNamespace(CASES=list(given)),))

    return put


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_kernel_that_is_none(capsys: Capture, cases: Callable[..., None]) -> None:
    cases(*CASES)
    for pattern in ("", "sulu", "SILU", "gelu?*x", "*z*"):
        assert run(["kernels", "--kernel", "silu", "--kernel", pattern]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(f"python -m qa: there is no kernel {pattern!r}; known: silu, gelu")
        assert said.err.count("\n") == 1


def test_every_form_is_run_at_its_shapes_on_every_device(cases: Callable[..., None]) -> None:
    seen: dict[int, list[tuple[str, tuple[int, int]]]] = {}

    def check(device: Device, rng: np.random.Generator, rows: int, cols: int, form: str) -> Any:
        seen.setdefault(device.context.limits.max_texture_size, []).append((form, (rows, cols)))
        return []

    cases(dataclasses.replace(adding(0), check=check))
    assert run(["kernels", "--no-times", "--limits", "webgl2"]) == 0
    wanted = {2048: SHAPES, **SMALL_SHAPES}
    forms = list(enumerate(("first", "second")))
    assert seen == {
        edge: [(form, at) for place, form in forms for at in shapes_for(place, shapes)]
        for edge, shapes in wanted.items()
    }


# The table of a page


@pytest.mark.slow
def test_only_the_table_of_a_page_is_written(cases: Callable[..., None], tmp_path: Path) -> None:
    cases(SILU, adding(0.0005))
    page = tmp_path / "page.md"
    page.write_bytes(PAGE.encode())
    page.chmod(0o640)
    assert run(["kernels", "--write", str(page)]) == 0
    text = page.read_bytes().decode()
    assert text.startswith(f"{BEFORE}{TABLE_BEGIN}\n")
    assert text.endswith(f"\n{TABLE_END}{BEHIND}")
    assert page.stat().st_mode & 0o777 == 0o640
    head, rule, silu, odd, blank, last = text[len(BEFORE + TABLE_BEGIN) + 1 : -len(TABLE_END + BEHIND) - 1].split("\n")
    assert cells(head) == ["kernel", "family", "shaders", "formats", "largest error", "time", "at"]
    assert rule.count("|") == head.count("|")
    assert cells(silu)[:4] == ["`silu`", "activation", "`activation`", "float32, float16"]
    assert 0 < float(cells(silu)[4]) < 1e-5
    assert re.fullmatch(r"\d+\.\d\d ms", cells(silu)[5])
    assert cells(odd)[2:5] == ["`activation`, `copy`", "first, second", "5.0e-04"]
    assert (blank, last.startswith("Measured on OpenGL ES 3")) == ("", True)
    assert list(tmp_path.iterdir()) == [page]

    cases(SILU)
    assert run(["kernels", "--write", str(page), "--no-times"]) == 0
    again = page.read_bytes().decode()
    assert "odd" not in again
    assert "| – |" in again
    assert again.startswith(BEFORE)
    assert again.endswith(BEHIND)


def test_a_page_without_a_place_is_left_alone(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("measured before the page was looked at")

    monkeypatch.setattr("qa.kernels.command.measure_kernels", never)
    page = tmp_path / "page.md"
    for content, count in (
        (b"# Kernels\n", 0),
        (TABLE_BEGIN.encode(), 0),
        (f"{TABLE_END}\n{TABLE_BEGIN}\n".encode(), 0),
        (f"{PAGE}{PAGE}".encode(), 2),
    ):
        page.write_bytes(content)
        assert run(["kernels", "--write", str(page)]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith(f"python -m qa: {page}")
        assert said.err.count("\n") == 1
        assert f"has {count} places for the table; expected one, a line <!-- table: begin -->" in said.err
        assert content == page.read_bytes()
    for arguments, words in (
        ([str(page), "--kernel", "silu"], "--write writes the table of all kernels; leave --kernel out\n"),
        ([str(tmp_path)], "found a directory"),
        ([str(tmp_path / "none.md")], "cannot read it: No such file or directory"),
    ):
        assert run(["kernels", "--write", *arguments]) == 2
        assert words in capsys.readouterr().err


# What is wrong


@tiered(
    ("case", "line"),
    [
        (misshapen(), r"odd: an error of inf, first at 1×1; at most 1\.0e-02 is right"),
        (adding(0.02), r"odd: an error of 2\.0e-02, second at \d+×\d+[\w ,]*; at most 1\.0e-02 is right"),
        (refusing(), r"odd: first at 5×33: odd: x is \[5, 33\]; expected something even"),
    ],
)
def test_a_wrong_kernel_is_told_and_writes_no_page(
    capsys: Capture, cases: Callable[..., None], tmp_path: Path, case: KernelCase, line: str
) -> None:
    cases(case)
    page = tmp_path / "page.md"
    page.write_bytes(PAGE.encode())
    assert run(["kernels", "--no-times", "--write", str(page)]) == 1
    said = capsys.readouterr()
    assert re.search(rf"^{line}$", said.out, re.MULTILINE), said.out
    assert "1 kernel, 1 WRONG" in said.out
    assert said.err == f"{page} is left as it was, because a kernel is wrong\n"
    assert page.read_bytes() == PAGE.encode()
    assert run(["kernels", "--no-times", "--json"]) == 1
    assert [row["passed"] for row in json.loads(capsys.readouterr().out)["rows"]] == [False]
    assert list(tmp_path.iterdir()) == [page]
