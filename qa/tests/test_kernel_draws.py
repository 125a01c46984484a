"""Each draw of every kernel against the float64 oracle of its op: the first wrong draw is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from glinfer.gl.layouts.matrix import FORMATS
from glinfer.models.oracle import relative_error, run_draw
from glinfer.models.session import Session
from glinfer.ops.spec import DrawSpec
from glinfer.tensors import passes
from glinfer.tensors.device import Device
from qa.kernels.cases.case import KernelCase
from qa.kernels.measure import all_cases

pytestmark = pytest.mark.gl

TOLERANCE = 2e-5
SHAPE, LONG = (5, 33), (140, 9)


class Checked(Session):
    """A session that compares what each draw writes with what its oracle makes of what the draw reads."""

    seen: list[str] = []  # noqa: RUF012  (the test empties it)

    def run(self, values: Any, **options: Any) -> int:
        held: dict[str, np.ndarray[Any, Any]] = {}

        def note(spec: DrawSpec) -> None:
            held.clear()
            # A view of a texture is read as the draw sees it: by the plan's layout.
            for name in {*spec.reads, *(spec.outputs if spec.needs_output else ())}:
                held[name] = self.as_planned(name)

        def compare(spec: DrawSpec) -> None:
            expected = run_draw(spec, held, values)
            several = expected if len(spec.outputs) > 1 else [expected]
            rows, cols = spec.extent(values)
            for name, wanted in zip(spec.outputs, several, strict=True):
                found = self.as_planned(name)[:rows, :cols]
                assert found.shape == np.shape(wanted), (
                    f"{spec.name}, op {spec.op}: the oracle gives {np.shape(wanted)}"
                )
                if FORMATS[self.plan.table[name].format].is_integer:
                    assert np.array_equal(found, wanted), f"{spec.name}, op {spec.op}: {name}"
                else:
                    error = relative_error(found, wanted)
                    assert error <= TOLERANCE, f"{spec.name}, op {spec.op}: {name} is off by {error:.2g}"
                Checked.seen.append(spec.op)

        return super().run(values, before=note, after=compare, **options)

    def as_planned(self, name: str) -> np.ndarray[Any, Any]:
        layout = self.plan.table[name].layout
        assert layout is not None
        texels = self.texture(name).framebuffer.read(0, layout.width, layout.height)
        return layout.unpack(texels, layout.rows, layout.cols).copy()


@pytest.fixture
def dev(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    monkeypatch.setattr(passes, "Session", Checked)
    Checked.seen = []
    with Device() as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.kernel)
def test_every_draw_agrees_with_its_oracle(dev: Device, case: KernelCase) -> None:
    for form in case.forms:
        case.check(dev, np.random.default_rng(3), *SHAPE, form)
        if case.family == "attention":  # whose keys are split into parts when they are many
            case.check(dev, np.random.default_rng(3), *LONG, form)
    assert Checked.seen, "no draw was looked at"
