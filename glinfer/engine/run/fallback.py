"""Build plans again from the safest kernels, with a warning, when a driver rejects a shader.

Kernels change speed and at most the last digits. A driver may have a compiler bug, or too few registers.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import TypeVar

from glinfer.errors import GlinferWarning, ShaderError
from glinfer.kernels.options import KernelOptions

T = TypeVar("T")
_KEPT = ("tiles", "pitch", "row_tiles", "chunk", "flush_every", "product_table")  # no compiler fails by these


def plainest(kernels: KernelOptions, *, same_layouts: bool = False) -> KernelOptions:
    """The kernels that demand least of a compiler, for the same kind of renderer.

    ``same_layouts`` keeps the options that decide the texture layout of weights, so that plans can share them.
    """
    kept = {name: getattr(kernels, name) for name in _KEPT}
    rows = min(kernels.rows_per_draw, KernelOptions.rows_per_draw)
    return KernelOptions(**kept, rows_per_draw=rows, quad=kernels.quad and same_layouts)


class KernelChoice:
    """The kernels in use: the given ones, or unless they are ``fixed`` the plainest after a driver rejects a shader."""

    def __init__(self, kernels: KernelOptions, *, fixed: bool = False, same_layouts: bool = False) -> None:
        """Start with these kernels; ``same_layouts`` as in :func:`plainest`."""
        self.kernels, self.fixed, self._same_layouts = kernels, fixed, same_layouts

    def make(self, build: Callable[[KernelOptions], T]) -> T:
        """Build from the kernels in use, or from the plainest if the driver rejects a shader; else a ShaderError."""
        try:
            return build(self.kernels)
        except ShaderError as error:
            plain = plainest(self.kernels, same_layouts=self._same_layouts)
            if self.fixed or plain == self.kernels:
                raise
            made = build(plain)
            before, after = dataclasses.asdict(self.kernels), dataclasses.asdict(plain)
            changed = ", ".join(f"{name}={after[name]!r}" for name in after if after[name] != before[name])
            warning = f"this driver rejects a shader ({error}); using safer kernels, which are slower: {changed}"
            warnings.warn(warning, GlinferWarning, stacklevel=2)
            self.kernels = plain
            return made
