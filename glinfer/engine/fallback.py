"""Retry with the safest kernel options when a driver rejects a shader.

The options that differ between renderers (:class:`glinfer.ops.kernels.KernelOptions`) change speed, and last digits at
most. So a program that a driver rejects, for a fault of its compiler or for want of registers, is no reason to give
up: the plan is built once more from the safest options, with a warning. Options that the caller has asked for are never
replaced.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import TypeVar

from glinfer.config import ModelConfig
from glinfer.engine.prefill import Chunks, Prefill
from glinfer.engine.shortlist import Shortlists
from glinfer.errors import GlinferWarning, ShaderError
from glinfer.models.session import Session
from glinfer.models.transforms.recipe import Formats
from glinfer.ops.kernels import KernelOptions

T = TypeVar("T")


def plainest(kernels: KernelOptions, *, same_layouts: bool = False) -> KernelOptions:
    """What asks least of a compiler, on the same kind of renderer.

    With ``same_layouts`` only what other plans over the same textures may choose for themselves is changed: whether
    quads share their inputs decides how weights lie.
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
    """How passes are shaped, and plainer from the moment on when the driver refuses one of their shaders.

    Attributes:
        kernels: the choice so far.
        fixed: whether somebody has asked for exactly these.
    """

    def __init__(self, kernels: KernelOptions, *, fixed: bool = False, same_layouts: bool = False) -> None:
        """Begin with these; ``same_layouts`` as in :func:`plainest`."""
        self.kernels, self.fixed, self._same_layouts = kernels, fixed, same_layouts

    def make(self, build: Callable[[KernelOptions], T]) -> T:
        """What ``build`` makes of the kernels, or of the plainest where the driver refuses a shader.

        Raises:
            ShaderError: it refuses one of the plainest too, or the kernels are fixed.
        """
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
    """Tell in one line which shader was refused, and what is used instead."""
    before, after = dataclasses.asdict(kernels), dataclasses.asdict(plain)
    changed = ", ".join(f"{name}={after[name]!r}" for name in after if after[name] != before[name])
    warnings.warn(
        f"this driver refuses a shader ({error}); going on with plainer kernels, which are slower: {changed}",
        GlinferWarning,
        stacklevel=3,
    )


class PlainerPrefill(Prefill):
    """Plans that are built from plainer kernels where the driver refuses a shader of the chosen ones."""

    def __init__(
        self, config: ModelConfig, weights: str, choice: KernelChoice, formats: Formats | None, cache: str
    ) -> None:
        """See :class:`Prefill`."""
        super().__init__(config, weights, choice.kernels, formats, cache)
        self._choice = choice

    def into(self, bound: Session) -> Chunks:
        """See :class:`Prefill`."""
        if self._first is not None:  # its scratch textures are shared, and so are its kernels
            return super().into(bound)
        return self._choice.make(lambda kernels: self._made_of(kernels, bound))

    def shortlists(self, bound: Session) -> Shortlists:
        """See :class:`Prefill`."""
        return self._choice.make(lambda kernels: Shortlists(bound, kernels))

    def _made_of(self, kernels: KernelOptions, bound: Session) -> Chunks:
        if kernels != self.kernels:
            self.kernels, self._plan = kernels, None
        return super().into(bound)
