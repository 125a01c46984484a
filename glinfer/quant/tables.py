"""The tables of GGML's formats whose blocks hold four-bit codes instead of integers.

A table has sixteen numbers. shaders/common/codes.glsl computes them as a polynomial in ``code - centre``, rounded to
the nearest integer. This costs a few multiply-adds, where a list would cost a memory access for each weight.
:attr:`CodeTable.margin` is the distance of the polynomial from rounding to another number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class CodeTable:
    """Integers for four-bit codes.

    Attributes:
        values: the number of each code; None for codes that do not occur.
        polynomial: coefficients of the powers of ``code - centre``, lowest first; its value rounds to the number. The
            first is an integer, which does not affect the rounding of the others.
        centre: the code at the polynomial's origin.
        unit: power of two by which number · factor is multiplied.
    """

    values: tuple[int | None, ...]
    polynomial: tuple[float, ...]
    centre: int = 8
    unit: float = 1.0

    @property
    def numbers(self) -> npt.NDArray[np.int8]:
        """The number of each code, int8 [16]; 0 for codes without one."""
        return np.array([value or 0 for value in self.values], dtype=np.int8)

    @property
    def margin(self) -> float:
        """A half minus the polynomial's largest error."""
        codes = np.array([code for code, value in enumerate(self.values) if value is not None])
        off = np.polynomial.polynomial.polyval(codes - float(self.centre), self.polynomial) - self.numbers[codes]
        return float(0.5 - np.abs(off).max())

    def defines(self) -> list[tuple[str, int | float]]:
        """The defines of shaders/common/codes.glsl."""
        found: list[tuple[str, int | float]] = [(f"TABLE_C{power}", c) for power, c in enumerate(self.polynomial)]
        found += [("TABLE_DEGREE", len(self.polynomial) - 1), ("TABLE_CENTRE", self.centre), ("TABLE_UNIT", self.unit)]
        return found


def _symmetric(magnitudes: Sequence[int]) -> tuple[int | None, ...]:
    """The table for magnitudes with a sign: code 8 + m is magnitude m, code 7 - m its negative."""
    found: list[int | None] = [None] * 16
    for number, magnitude in enumerate(magnitudes):
        found[8 + number], found[7 - number] = magnitude, -magnitude
    return tuple(found)


IQ4_TABLE = CodeTable(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
    (-22.0, 12.36079, -0.4677693, 0.07142082, 0.001391902),
    centre=6,
)
"""The table of IQ4_NL and IQ4_XS (``kvalues_iq4nl``)."""
FP4_TABLE = CodeTable(_symmetric((0, 1, 2, 3, 4, 6, 8, 12)), (1.0, 0.6634921, 0.07669706, 0.01766295), centre=9)
"""The table of MXFP4: floats with one bit of mantissa, doubled; both zeros have a code."""
IQ2_TABLE = CodeTable(_symmetric((8, 25, 43)), (8.0, 16.33333, 0.3, 0.1666667), unit=0.125)
"""The table of IQ2_XXS, IQ2_XS and IQ2_S."""
IQ3_XXS_TABLE = CodeTable(
    _symmetric((2, 6, 10, 14, 18, 22, 26, 31)), (2.0, 3.884504, 0.004340963, 0.003814786), unit=0.5
)
"""The table of IQ3_XXS, halved."""
IQ3_S_TABLE = CodeTable(_symmetric(range(1, 16, 2)), (1.0, 2.0))
"""The table of IQ3_S."""
IQ1_TABLE = CodeTable((-9, -7, None, None, -1, 1, None, None, 7, 9, *[None] * 6), (7.0, 2.0), unit=0.125)
"""The table of IQ1_S and IQ1_M: -1, 0 or 1, plus or minus an eighth, in eighths."""
TERNARY_TABLE = CodeTable((-1, 0, 1, 2, *[None] * 12), (7.0, 1.0))
"""The table of TQ1_0 and TQ2_0; packed weights never contain a 2."""
