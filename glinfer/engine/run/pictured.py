"""Run a token of an image alone: the plan ``fast`` has no input for its row, so an observer writes it between draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from glinfer.kernels import DrawSpec
from glinfer.lower.options import PlanOptions
from glinfer.lower.ropes import ROPE, image_angles
from glinfer.program.capture import Textures, span_of
from glinfer.program.session import Observer, Session
from glinfer.text.images import ImageToken, rotary_positions


class _Row(Observer):
    """Replaces the embedding of a token by vector 0 of an image's row, and adds vector n + 1 after layer n."""

    def __init__(self, vectors: Sequence[np.ndarray]) -> None:
        self._changes = {"embed": (0.0, vectors[0])}
        self._changes |= {f"blocks.{n}.resid_post": (1.0, each) for n, each in enumerate(vectors[1:])}

    def drawn(self, session: Session, spec: DrawSpec, values: Mapping[str, int | float]) -> None:
        """See :class:`glinfer.program.session.Observer`."""
        textures, span = Textures(session), span_of(session.plan, values)
        for point, site in session.plan.sites.get(spec.name, ()):
            if point.name in self._changes:
                kept, vector = self._changes[point.name]
                found = kept * point.read(textures, site, span) + vector
                point.write(textures, site, span, found.astype(np.float32))


@contextmanager
def running_image(session: Session, options: PlanOptions, held: Sequence[int], back: int) -> Iterator[None]:
    """Within the block, a run of ``session`` over the last of the tokens ``held`` computes it as a part of an image.

    ``back`` is the run's input of that name. The angles of the token replace those of a position, until the block ends.
    """
    token, position = held[-1], len(held) - 1
    assert isinstance(token, ImageToken)
    row = _Row(np.split(token.row, 1 + options.deep))
    session.observers.insert(0, row)  # others see its changes
    angles = session.read(ROPE) if options.sections else None
    try:
        if angles is not None:
            changed = angles.copy()
            changed[position - back] = image_angles(
                options.config, options.sections, rotary_positions(held)[0][-1:], angles.shape[1]
            )
            session.write(ROPE, changed)
        yield
    finally:
        session.observers.remove(row)
        if angles is not None:
            session.write(ROPE, angles)
