"""Images: run the squares of an image through the plan ``image``, whose rows stand for tokens of a prompt."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from glinfer.engine.embed import EncodeEngine
from glinfer.engine.engine import Engine
from glinfer.engine.textures import WeightSource
from glinfer.errors import NumbersError
from glinfer.kernels.fused.rows import BASE, LAST, POSITION, TOKEN, input_names, row_table
from glinfer.lower.fused.image import PIXELS, SEEN, tokens_of
from glinfer.lower.fused.rows import ROWS
from glinfer.lower.options import PlanOptions
from glinfer.program.session import Session

Floats = npt.NDArray[np.float32]


class ImageEngine(EncodeEngine):
    """Runs the squares of images, one at a time."""

    def __init__(self, options: PlanOptions, bound: Session, source: WeightSource) -> None:
        """Take over the bound plan."""
        Engine.__init__(self, options, bound, source)
        self.config, self._targets = options.config, options.kernels.rows_per_draw
        self._names = [f"{SEEN}.{number}" for number in range(len(input_names(self._targets)))]
        self.width = self.config.dense[0][0]

    def rows(self, patches: Floats, places: npt.NDArray[np.intp]) -> Floats:
        """The rows [tokens, width] of one square from its patches [patches, numbers], those of one token together.

        ``places`` has the place of each patch in the table of places. Raises NumbersError for NaN or an infinity.
        """
        count, targets = len(patches), self._targets
        self.bound.require_alive()
        table = row_table(self.bound.plan.table[ROWS].shape[0])
        table[:, POSITION], table[:, BASE], table[:, LAST] = np.arange(len(table)), 0, count - 1
        table[:count, TOKEN] = places
        self.bound.write(ROWS, table)
        padded = np.zeros((len(table), patches.shape[1]), np.float32)
        padded[:count] = patches
        for number in range(targets):
            self.bound.write(f"{PIXELS}.{number}", padded[number::targets])
        tokens = tokens_of(self.config)
        given = {"rows": count, "longest": count, "strip_first": 0, "texts": tokens}
        self.bound.run(given, flush_every=self.options.kernels.flush_every)
        found = self.bound.read_interleaved(self._names, tokens)[:, : self.width].astype(np.float32)
        if not np.isfinite(found).all():
            raise NumbersError(
                "an image's row has NaN or an infinity in it; expected finite numbers: its model is broken"
            )
        return found


class ImageEncoder:
    """An image encoder that is bound at the first use."""

    def __init__(self, bind: Callable[[], ImageEngine]) -> None:
        """``bind`` uploads the weights."""
        self._bind = bind
        self._engine: ImageEngine | None = None

    def rows(self, patches: Floats, places: npt.NDArray[np.intp]) -> Floats:
        """See :meth:`ImageEngine.rows`."""
        self._engine = self._bind() if self._engine is None else self._engine
        return self._engine.rows(patches, places)

    def release(self) -> None:
        """Release its GL objects."""
        if self._engine is not None:
            self._engine.bound.release()
