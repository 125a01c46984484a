"""The tables of GGML's formats whose blocks hold codes of four bits in place of whole numbers.

A table is a list of sixteen numbers, and shaders/common/codes.glsl computes it: a polynomial in ``code - centre``,
rounded to the next whole number. That costs a few multiply-adds; a list would be read from memory for each weight.
:attr:`CodeTable.margin` says how far the polynomial stays from the next number's half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class CodeTable:
    """Whole numbers for codes of four bits.

    Attributes:
        values: the number of each code; None for codes that no block has.
        polynomial: coefficients of the powers of ``code - centre``, the lowest first, whose value rounds to the number.
            The first is a whole number, which does not change how the others are rounded.
        centre: the code at which the polynomial has its origin.
        unit: power of two that a number times the factor of its scale is multiplied by.
    """

    values: tuple[int | None, ...]
    polynomial: tuple[float, ...]
    centre: int = 8
    unit: float = 1.0

    @property
    def numbers(self) -> npt.NDArray[np.int8]:
        """The number of each code, int8 [16]; 0 where there is none."""
        return np.array([value or 0 for value in self.values], dtype=np.int8)

    @property
    def margin(self) -> float:
        """By how much less than a half the polynomial is off, at the code where it is off most."""
        codes = np.array([code for code, value in enumerate(self.values) if value is not None])
        off = np.polynomial.polynomial.polyval(codes - float(self.centre), self.polynomial) - self.numbers[codes]
        return float(0.5 - np.abs(off).max())

    def defines(self) -> list[tuple[str, int | float]]:
        """The defines of shaders/common/codes.glsl."""
        found: list[tuple[str, int | float]] = [(f"TABLE_C{power}", c) for power, c in enumerate(self.polynomial)]
        found += [("TABLE_DEGREE", len(self.polynomial) - 1), ("TABLE_CENTRE", self.centre), ("TABLE_UNIT", self.unit)]
        return found


def _symmetric(magnitudes: Sequence[int]) -> tuple[int | None, ...]:
    """The table of signs and magnitudes: code 8 + m is magnitude number m, code 7 - m the same below zero."""
    found: list[int | None] = [None] * 16
    for number, magnitude in enumerate(magnitudes):
        found[8 + number], found[7 - number] = magnitude, -magnitude
    return tuple(found)


IQ4_TABLE = CodeTable(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
    (-22.0, 12.36079, -0.4677693, 0.07142082, 0.001391902),
    centre=6,
)
"""Of IQ4_NL and IQ4_XS (``kvalues_iq4nl``)."""
FP4_TABLE = CodeTable(_symmetric((0, 1, 2, 3, 4, 6, 8, 12)), (1.0, 0.6634921, 0.07669706, 0.01766295), centre=9)
"""Of MXFP4: floats of one bit of mantissa, doubled. The two zeros have a code each."""
IQ2_TABLE = CodeTable(_symmetric((8, 25, 43)), (8.0, 16.33333, 0.3, 0.1666667), unit=0.125)
"""Of IQ2_XXS, IQ2_XS and IQ2_S."""
IQ3_XXS_TABLE = CodeTable(
    _symmetric((2, 6, 10, 14, 18, 22, 26, 31)), (2.0, 3.884504, 0.004340963, 0.003814786), unit=0.5
)
"""Of IQ3_XXS, halved."""
IQ3_S_TABLE = CodeTable(_symmetric(range(1, 16, 2)), (1.0, 2.0))
"""Of IQ3_S."""
IQ1_TABLE = CodeTable((-9, -7, None, None, -1, 1, None, None, 7, 9, *[None] * 6), (7.0, 2.0), unit=0.125)
"""Of IQ1_S and IQ1_M: -1, 0 or 1, with an eighth more or less, in eighths."""
TERNARY_TABLE = CodeTable((-1, 0, 1, 2, *[None] * 12), (7.0, 1.0))
"""Of TQ1_0 and TQ2_0; a 2 is in no file that is made of weights."""
