"""Every kernel of ``device.ops``: it has a case, the case is right at a few shapes, and the page says what is so.

``python -m qa kernels`` runs the same cases at many more shapes.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flat_ops import flat_ops
from own_process import ROOT
from reference_compiler import check_with_reference_compiler, sources_of
from shader_variants import variants
from tiers import tiered

from glinfer.errors import PlanError
from glinfer.gl.context import Limits
from glinfer.gl.program import shader_root
from glinfer.kernels import OPS, DrawSpec
from glinfer.program.session import Session
from glinfer.tensors.device import Device, Memory
from glinfer.tensors.ops import Ops
from glinfer.tensors.tensor import Tensor
from qa.kernels.cases.case import result
from qa.kernels.measure import (
    TABLE_BEGIN,
    TABLE_END,
    all_cases,
    case_error,
    error_text,
)

pytestmark = pytest.mark.gl

CASES = all_cases()
NAMES = [f"{place}-{case.kernel}" for place, case in enumerate(CASES)]

SMALL_EDGE = 64
SELECTED = (33, 255)  # on large textures
WRAPPED = (5, 33)  # on small ones
LEAST = (7, 13)  # within WebGL2's least limits
EXTREMES = [(1, 20011), (1, 1)]  # for the passes that the other shapes need not

ALIASES = {
    "activate": "silu, gelu and gelu_new are this with a name",
    "gate": "silu_gate, gelu_gate and gelu_new_gate are this with a name",
}
"""Methods of device.ops without a case of their own, and why."""

KEPT = {"rope": 8}
"""How many tensors a kernel may keep for its next call: rope keeps the angles of the 8 latest settings."""


@dataclasses.dataclass
class Result:
    """What the selected shapes of one case gave: errors by form, draws in order, and what was left on the device."""

    errors: dict[str, float]
    draws: list[DrawSpec]
    left: list[Memory]
    renderer: str = ""

    @property
    def shaders(self) -> set[str]:
        return {draw.shader for draw in self.draws}


RESULTS: dict[int, Result] = {}


def some_of(forms: tuple[str, ...]) -> tuple[str, ...]:
    """All six at most, else three: those are formats of weights, each of which has tests of its own."""
    return forms if len(forms) <= 6 else forms[:: -(-len(forms) // 3)]


def result_of(place: int) -> Result:
    """Run one case in some forms on large textures and in one on small ones, once however often it is asked for."""
    if place not in RESULTS:
        case, found = CASES[place], Result({}, [], [])
        bind = Session.__init__

        def note(session: Session, plan: Any, *args: Any, **options: Any) -> None:
            found.draws.extend(plan.draws)
            bind(session, plan, *args, **options)

        small = dataclasses.replace(Limits.webgl2_minimum(), max_texture_size=SMALL_EDGE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Session, "__init__", note)
            for limits, shape, forms in ((None, SELECTED, some_of(case.forms)), (small, WRAPPED, case.forms[:1])):
                with Device(limits=limits) as device:
                    found.renderer = device.description
                    for form in forms:
                        error = case_error(case, device, form, shape)
                        found.errors[form] = max(found.errors.get(form, 0.0), error)
                        found.left.append(device.memory())
                    for extreme in EXTREMES if limits is None else ():
                        if not set(case.shaders) <= found.shaders:
                            form = case.forms[0]
                            found.errors[form] = max(found.errors[form], case_error(case, device, form, extreme))
        RESULTS[place] = found
    return RESULTS[place]


# Every kernel has a case


def methods() -> set[str]:
    names = {name for name in dir(Ops) if not name.startswith("_") and callable(getattr(Ops, name))}
    return names - {"explain"}  # which draws nothing


def test_every_kernel_has_a_case() -> None:
    cases = {case.kernel for case in CASES}
    assert cases <= methods(), "a case of no kernel"
    assert cases.isdisjoint(ALIASES), "an alias that has a case needs no excuse"
    assert cases | set(ALIASES) == methods()
    assert all(getattr(Ops, name).__doc__ for name in methods())


def test_no_two_cases_are_the_same_line_of_the_table() -> None:
    lines = [(case.kernel, case.forms) for case in CASES]
    assert len(set(lines)) == len(lines)
    for case in CASES:
        assert len(set(case.forms)) == len(case.forms) > 0
        assert len(set(case.shaders)) == len(case.shaders) > 0
        assert 0 <= case.tolerance <= 1e-4


def test_numbers_after_the_columns_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with Device() as device:
        eight = device.tensor(np.ones((2, 8), np.float32))
        monkeypatch.setattr(Ops, "scale", lambda ops, x, factor: Tensor(device, eight.storage, (2, 7), "float32"))
        with pytest.raises(PlanError, match="found numbers after the last column"):
            result(device, "scale", np.ones((2, 7), np.float32), 1.0)


# Every kernel is right


@pytest.mark.slow
@pytest.mark.parametrize("place", range(len(CASES)), ids=NAMES)
def test_a_kernel_is_right(place: int) -> None:
    """Within what is allowed, and what the page says of it; nothing is left, and its shaders are those it names."""
    case, found = CASES[place], result_of(place)
    assert set(found.errors) == set(some_of(case.forms))
    assert max(found.errors.values()) <= case.tolerance, found.errors
    assert max(left.tensors for left in found.left) <= KEPT.get(case.kernel, 0), "tensors that were not released"
    assert found.shaders <= set(case.shaders)
    if "llvmpipe" in found.renderer:  # on which the page was measured
        largest, stated = max(found.errors.values()), float(page_rows()[place][4])
        assert largest <= max(1.5 * stated, 1e-12), f"{error_text(largest)}, {error_text(stated)} on the page"


@tiered("place", range(0, len(CASES), 5), ids=NAMES[::5])
def test_a_kernel_is_right_within_the_least_limits(place: int) -> None:
    case = CASES[place]
    with Device(limits=Limits.webgl2_minimum()) as device:
        assert device.kernels.rows_per_draw == 4
        assert case_error(case, device, case.forms[0], LEAST) <= case.tolerance


@pytest.mark.slow
@pytest.mark.parametrize("place", range(0, len(CASES), 6), ids=NAMES[::6])
def test_what_is_timed_runs_and_leaves_nothing(place: int) -> None:
    with Device() as device:
        run = CASES[place].timed(device, np.random.default_rng(0))
        run()
        memory, drawn = device.memory(), device.draws_issued
        run()
        assert device.memory() == memory
        assert device.draws_issued > drawn
        del run
        assert device.memory().tensors <= KEPT.get(CASES[place].kernel, 0), "inputs outlive what runs on them"


# What the cases draw


@pytest.mark.slow
def test_what_all_cases_draw(tmp_path: Path) -> None:
    """Every flat op, every shader that a case names, and each #if both ways; all of it right by another compiler."""
    draws = [draw for place in range(len(CASES)) for draw in result_of(place).draws]
    assert {draw.op for draw in draws} == flat_ops() <= set(OPS)
    assert {draw.shader for draw in draws} == {shader for case in CASES for shader in case.shaders}
    for shader in {draw.shader for draw in draws}:
        seen = [dict(draw.defines) for draw in draws if draw.shader == shader]
        text = (shader_root() / f"{shader}.frag").read_text("utf-8")
        for name in sorted(set(re.findall(r"^\s*#if(?:n?def)? !?(\w+)\s*$", text, re.MULTILINE)) & set().union(*seen)):
            assert len({defines.get(name) for defines in seen}) > 1, f"{shader}: {name} is always {seen[0].get(name)}"
    check_with_reference_compiler(tmp_path, sources_of(draw for _, _, draw in variants(draws)))


# The page


def page_rows() -> list[list[str]]:
    """The cells of every line of the table in docs/kernels.md."""
    text = (ROOT / "docs" / "kernels.md").read_text("utf-8")
    region = text[text.index(TABLE_BEGIN) : text.index(TABLE_END)]
    lines = [line for line in region.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_page_lists_every_case() -> None:
    def code(names: tuple[str, ...]) -> str:
        return ", ".join(f"`{name}`" for name in names)

    expected = [
        [f"`{case.kernel}`", case.family, code(case.shaders), ", ".join(case.forms), case.timed_at] for case in CASES
    ]
    assert [[*row[:4], row[6]] for row in page_rows()] == expected, "run: python -m qa kernels --write docs/kernels.md"


def test_the_page_states_errors_that_are_right() -> None:
    tolerances = {f"`{case.kernel}`": case.tolerance for case in CASES}
    for kernel, *_, error, time, _ in page_rows():
        assert 0 <= float(error) <= tolerances[kernel], kernel
        assert re.fullmatch(r"[\d,]+\.\d\d ms", time), kernel
