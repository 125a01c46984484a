"""Retry with the safest kernels when a driver rejects a shader.

The options that differ between renderers (:class:`glinfer.kernels.options.KernelOptions`) change speed and at most the
last digits. A driver may reject a shader because of a compiler bug or too few registers. The plan is then built again
from the plainest kernels, with a warning. Kernels that the caller has chosen are never replaced.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import TypeVar

from glinfer.errors import GlinferWarning, ShaderError
from glinfer.kernels.options import KernelOptions

T = TypeVar("T")


def plainest(kernels: KernelOptions, *, same_layouts: bool = False) -> KernelOptions:
    """The kernels that demand least of a compiler, for the same kind of renderer.

    ``same_layouts`` keeps the options that decide the texture layout of weights, so that plans can share them.
    """
    plain = KernelOptions()
    return dataclasses.replace(
        plain,
        tiles=kernels.tiles,
        pitch=kernels.pitch,
        row_tiles=kernels.row_tiles,
        chunk=kernels.chunk,
        flush_every=kernels.flush_every,
        product_table=kernels.product_table,
        rows_per_draw=min(kernels.rows_per_draw, plain.rows_per_draw),
        quad=kernels.quad and same_layouts,
    )


class KernelChoice:
    """The kernels in use: the chosen ones until a driver rejects a shader, the plainest from then on.

    Those that the caller has chosen are ``fixed``.
    """

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
            _warn(error, self.kernels, plain)
            self.kernels = plain
            return made


def _warn(error: ShaderError, kernels: KernelOptions, plain: KernelOptions) -> None:
    """Warn in one line of the rejected shader and the replaced options."""
    before, after = dataclasses.asdict(kernels), dataclasses.asdict(plain)
    changed = ", ".join(f"{name}={after[name]!r}" for name in after if after[name] != before[name])
    warnings.warn(
        f"this driver rejects a shader ({error}); using safer kernels, which are slower: {changed}",
        GlinferWarning,
        stacklevel=3,
    )
