"""Textures that hold no numbers, or absurd ones: what a run may find in everything that it has not written itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from glinfer.config import ModelConfig
from glinfer.gl.layouts.blocks import BlockLayout
from glinfer.gl.texture import Texture
from glinfer.kernels import TensorSpec
from glinfer.lower.weights.recipe import Recipes
from glinfer.program.session import Session
from glinfer.quant.formats import FROM_FILE

POISONS = (np.nan, np.inf, -np.inf, 1e38)
SCRATCH = ("input", "activation")
ALL_KINDS = (*SCRATCH, "cache")


def poison(
    session: Session, value: float = np.nan, kinds: Collection[str] = ALL_KINDS, *, keep: Collection[str] = ()
) -> None:
    """Fill every tensor of these kinds of a plan, of its owner, and of all sharers and companions.

    Inputs of integers, such as ids and the table of rows, become threes. Weights stay, and so do tensors whose
    names begin as one of ``keep``.
    """
    for tensor, texture in _textures(session, kinds):
        layout = texture.layout
        if tensor.name.startswith(tuple(keep)):
            continue
        if isinstance(layout, BlockLayout) and layout.scale_blocks:
            texture.upload(np.full((layout.rows, layout.cols), value, dtype=np.float32))
        elif layout.format.is_integer:
            texture.upload(np.full((layout.rows, layout.cols), 3, dtype=layout.format.dtype))
        else:
            texture.fill(value)


def poison_values(session: Session, config: ModelConfig, value: float = np.nan) -> None:
    """Fill the values in every cache, whose keys stay: a row that sees such a token gives it weight.

    What convolutions see is filled whole.
    """
    heads = Recipes(config, FROM_FILE).heads(0)
    for tensor, texture in _textures(session, ("cache",)):
        if tensor.name.endswith("attn.cache"):
            slots = texture.read()
            with np.errstate(over="ignore"):  # half floats end at 65504
                slots[:, heads.kv_floats : 2 * heads.kv_floats] = value
            texture.upload(slots)
        elif tensor.name.endswith("conv.inputs"):
            texture.fill(value)


def _textures(session: Session, kinds: Collection[str]) -> Iterator[tuple[TensorSpec, Texture]]:
    """Each texture once, with a tensor of one of these kinds that is in it."""
    owner = session._owner or session
    found = {id(owner.texture(tensor.name)) for tensor in owner.plan.of_kind("weight")}
    for each in (owner, *owner._sharers):
        for tensor in each.plan.tensors:
            texture = each.texture(tensor.name)
            gone = texture.gl is None  # caches of a closed session, whose scratch textures others still share
            if tensor.kind in kinds and not gone and id(texture) not in found:
                found.add(id(texture))
                yield tensor, texture
