"""Textures that hold no numbers: what a run may find in everything that it has not written itself."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from glinfer.models.session import Session

POISONS = (np.nan, np.inf, -np.inf, 1e38)
ALL_KINDS = ("input", "activation", "cache")


def poison(session: Session, value: float = np.nan, kinds: Iterable[str] = ALL_KINDS) -> int:
    """Fill every tensor of these kinds of a plan, of its owner, and of all sharers and companions.

    Whole numbers, such as ids of tokens, become a small number that is no padding. Weights stay.

    Returns:
        The number of textures that were filled.
    """
    owner = session._owner or session
    wanted, filled = frozenset(kinds), set()
    weights = {id(owner.texture(tensor.name)) for tensor in owner.plan.of_kind("weight")}
    for each in (owner, *owner._sharers):
        for tensor in each.plan.tensors:
            texture = each.texture(tensor.name)
            gone = texture.gl is None  # the caches of a closed session, whose scratch others still share
            if gone or tensor.kind not in wanted or id(texture) in weights | filled:
                continue
            layout = texture.layout
            if layout.format.is_integer:
                texture.upload(np.full((layout.rows, layout.cols), 3, dtype=layout.format.dtype))
            else:
                texture.fill(value)
            filled.add(id(texture))
    return len(filled)
