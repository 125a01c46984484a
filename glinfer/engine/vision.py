"""Images: run the squares of an image through the plan ``image``, whose rows stand for tokens of a prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from glinfer.engine.embed import EncodeEngine
from glinfer.engine.engine import Engine
from glinfer.engine.textures import WeightSource
from glinfer.errors import NumbersError, PlanError
from glinfer.formats.vision import Vision
from glinfer.gl.context import Device
from glinfer.kernels.fused.rows import row_table
from glinfer.lower.feed import chunk_feed
from glinfer.lower.fused.image import DEEP, PIXELS, PLACES, SEEN, image_plan
from glinfer.lower.fused.rows import ROW_ANGLES, ROWS
from glinfer.lower.options import PlanOptions
from glinfer.lower.ropes import grid_angles
from glinfer.lower.weights.recipe import head_floats
from glinfer.program.bands import Bands
from glinfer.program.session import Session
from glinfer.program.tuning import kernels_for
from glinfer.text.images import Steps

Floats = npt.NDArray[np.float32]
_FEWEST = 64
"""Patches below which no smaller plan is tried."""


class ImageEngine(EncodeEngine):
    """Runs images, or squares of them, one at a time."""

    def __init__(self, options: PlanOptions, bound: Session, source: WeightSource) -> None:
        """Take over the bound plan."""
        Engine.__init__(self, options, bound, source)
        self.config, self._targets, self._session = options.config, options.kernels.rows_per_draw, bound
        self._bands = Bands()

    def _session_for(self, patches: int) -> Session:
        """A session whose plan has room; that of the last larger image is kept."""
        size = self._session.plan.max_rows
        if patches > size:
            if self._session is not self.bound:
                self._session.release()
            while size < patches:
                size *= 2
            self._session = self.bound
            plan = image_plan(self.options, min(size, self.config.max_position_embeddings))
            self._session = self.bound.companion(plan, ("weight",))
        return self._session

    def image_steps(
        self, patches: Floats, positions: npt.NDArray[np.intp], by_patch: Mapping[str, Floats] = MappingProxyType({})
    ) -> Steps:
        """Run one image in pieces of about 50 ms; returns its rows [tokens, width].

        Further vectors of a token come after its first. Between two pieces other plans may run.

        Args:
            patches: [patches, numbers of a patch], those of one token together.
            positions: of each patch in the table of positions.
            by_patch: further inputs of the plan, with a row for each patch.

        Raises NumbersError for NaN or an infinity, PlanError if the plan for this many patches does not fit.
        """
        count, targets = len(patches), self._targets
        self.bound.require_alive()
        session = self._session_for(count)
        table = row_table(session.plan.table[ROWS].shape[0])
        tokens = count // self.config.patches_per_token
        given = {**chunk_feed(table, positions.tolist(), 0, targets), "longest": count, "texts": tokens}
        session.write(ROWS, table)
        for name, matrix in {PIXELS: patches, **by_patch}.items():
            if name in session.plan.table:
                session.write(name, matrix)
                continue
            padded = np.zeros((len(table), matrix.shape[1]), np.float32)
            padded[:count] = matrix
            for number in range(targets):
                session.write(f"{name}.{number}", padded[number::targets])
        yield from session.steps(given, self._bands)
        levels = [SEEN, *(DEEP.format(number + 1) for number in range(len(self.config.deepstack_layers)))]
        names = [[f"{each}.{number}" for number in range(targets)] for each in levels]
        width = self.config.dense[-1][0]
        found = np.concatenate([session.read_interleaved(each, tokens)[:, :width] for each in names], axis=1)
        found = found.astype(np.float32)
        if not np.isfinite(found).all():
            raise NumbersError("an image's row contains NaN or infinity; expected finite numbers: its model is broken")
        return found


class ImageEncoder:
    """An image encoder that is bound at the first use."""

    def __init__(self, bind: Callable[[], ImageEngine], vision: Vision) -> None:
        """``bind`` uploads the weights of ``vision``."""
        self._bind, self._vision = bind, vision
        self._engine: ImageEngine | None = None

    def steps(self, patches: Floats, order: npt.NDArray[np.intp], grid: tuple[int, int]) -> Steps:
        """See :meth:`ImageEngine.image_steps`; patch i is number ``order[i]`` of a grid of rows and columns."""
        self._engine = self._bind() if self._engine is None else self._engine
        config, (rows, cols) = self._engine.config, grid
        if not config.family.by_grid:
            return self._engine.image_steps(patches, order)
        row, col = np.divmod(order, cols)
        positions = interpolated(self._vision.table, row, rows, col, cols)
        angles = grid_angles(config, row, col, head_floats(config.head_dim))
        return self._engine.image_steps(patches, np.zeros_like(order), {PLACES: positions, ROW_ANGLES: angles})

    def release(self) -> None:
        """Release its GL objects."""
        if self._engine is not None:
            self._engine.bound.release()


def fitted(vision: Vision, device: Device) -> Vision:
    """An encoder for images of any shape, with as many patches as fit the textures of a device; others as they are."""
    config, form = vision.checkpoint.config, vision.form
    if not config.family.by_grid:
        return vision
    patches, edge = config.max_position_embeddings, device.limits.max_texture_size
    layer = replace(config, num_hidden_layers=1, deepstack_layers=(), dense=config.dense[:2])
    options = PlanOptions(layer, "f32", kernels_for(device, config, "f32"), edge)
    while patches > _FEWEST:
        try:
            image_plan(options, patches)
            break
        except PlanError:
            patches //= 2
    most = patches * config.patch_size**2
    form = replace(form, longest=most, pixels=(min(form.pixels[0], most), min(form.pixels[1], most)))
    config = replace(config, max_position_embeddings=patches)
    return replace(vision, checkpoint=replace(vision.checkpoint, config=config), form=form)


def interpolated(table: Floats, row: npt.NDArray[np.intp], rows: int, col: npt.NDArray[np.intp], cols: int) -> Floats:
    """The vectors [patches, width] at rows and columns of a grid, between those of a square table [side², width]."""
    side = math.isqrt(len(table))

    def taps(at: npt.NDArray[np.intp], count: int) -> tuple[npt.NDArray[np.intp], Floats]:
        """The two nearest positions on an axis [patches, 2], and their weights."""
        position = at.astype(np.float32) * np.float32(side - 1) / np.float32(max(count - 1, 1))
        first = np.floor(position)
        weights = np.stack([1 - (position - first), position - first], axis=1)
        return np.minimum(first.astype(np.intp)[:, None] + [0, 1], side - 1), weights

    (high, by_row), (wide, by_col) = taps(row, rows), taps(col, cols)
    found = np.zeros((len(row), table.shape[1]), np.float32)
    for m in range(2):
        for n in range(2):
            found += (by_row[:, m] * by_col[:, n])[:, None] * table[high[:, m] * side + wide[:, n]]
    return found
