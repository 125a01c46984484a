"""Every kernel of ``device.ops`` against float64 NumPy, at odd sizes."""

from __future__ import annotations

import numpy as np
import pytest

from glinfer.program.oracle import relative_error
from glinfer.quant.formats import BLOCK_FORMATS
from glinfer.tensors.device import Device
from qa.kernels.cases.case import KernelCase
from qa.kernels.measure import all_cases

pytestmark = pytest.mark.gl

CASES = all_cases()
LATER = {"float16", "int32", *BLOCK_FORMATS}
"""Forms that only change the type of the elements: python -m qa kernels and its tests check these."""
LONG = [case for case in CASES if case.family in ("normalization", "reduction", "sorting")]


def check(dev: Device, case: KernelCase, rows: int, cols: int, form: str) -> None:
    for found, expected in case.check(dev, np.random.default_rng(rows * cols), rows, cols, form):
        assert found.shape == expected.shape, (form, rows, cols)
        assert relative_error(found, expected) <= case.tolerance, (form, rows, cols)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kernel)
def test_a_kernel_agrees_with_float64(dev: Device, case: KernelCase) -> None:
    """In each form that takes another path, at a size that is no multiple of 4."""
    for form in [case.forms[0], *(form for form in case.forms[1:] if form not in LATER)]:
        check(dev, case, 5, 7, form)
    assert case.kernel == "rope" or dev.memory().tensors == 0, "rope keeps its tables of angles"


@pytest.mark.slow
@pytest.mark.parametrize("case", LONG, ids=lambda case: case.kernel)
def test_long_rows_are_merged_from_parts(dev: Device, small: Device, case: KernelCase) -> None:
    """Rows of several parts, once with a draw of its own that merges them, and in textures of 64 texels."""
    for rows, cols in ((40, 1539), (1, 70001)):
        check(dev, case, rows, cols, "float32")
    check(small, case, 7, 1030, "float32")
