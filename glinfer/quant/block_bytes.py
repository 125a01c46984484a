"""Views of bytes in every block of an array."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Parts = npt.NDArray[np.void]


def parts_of(array: Bytes, start: int, nbytes: int, stride: int) -> Parts:
    """A view of bytes [start, start + nbytes) of every ``stride`` bytes along the last axis, as one element each.

    NumPy copies such elements five times as fast as the same bytes along a separate axis.
    """
    element = np.dtype({"names": ["part"], "formats": [f"V{nbytes}"], "offsets": [start], "itemsize": stride})
    return array.view(element)["part"]
