"""LoRA adapters as arrays: a low-rank update for each adapted matrix (Hu et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.families.names import Names
from glinfer.families.settings import quoted
from glinfer.formats.tensors import StoredTensor, stored_tensors
from glinfer.graph.nodes import ModelTensor
from glinfer.limits import MAX_ADAPTER_RANK

FloatArray = npt.NDArray[np.float32]
Rows = npt.NDArray[np.intp]
_OF_EXPERTS = ("router", "shared_router", "shared_gate", "shared_up", "shared_down")
_ROLES = ("projection", "output", "delta_in", "delta_out", "gate", "up", "down", *_OF_EXPERTS, "head")
"""The roles of matrices that an adapter may change; see :class:`glinfer.families.names.Names`."""


@dataclass(frozen=True, eq=False)
class LowRank:
    """The update of one matrix W [out, in]: ``scale · up @ down``.

    Attributes:
        down: A [rank, in], float32.
        up: B [out, rank], float32.
        scale: alpha / rank, or with rank-stabilised scaling alpha / √rank (Kalajdzievski 2023).
    """

    down: FloatArray
    up: FloatArray
    scale: float

    @property
    def rank(self) -> int:
        """The rank."""
        return int(self.down.shape[0])


@dataclass(frozen=True, eq=False)
class Adapter:
    """One adapter of a model.

    Attributes:
        matrices: the update of each matrix, by tensor name in the checkpoint; in the order of the file.
        source: where the adapter came from, for messages.
        files: the files it was read from.
    """

    matrices: Mapping[str, LowRank]
    source: str
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Pair:
    """A and B of one tensor as a file stores them, before they are checked.

    For a tensor that holds several experts they are [experts, rank, in] and [experts, out, rank].
    """

    down: FloatArray | None = None
    up: FloatArray | None = None

    @property
    def rank(self) -> int:
        """The rank, at least 1."""
        return 1 if self.down is None or self.down.ndim < 2 else max(1, self.down.shape[-2])


def adaptable(config: ModelConfig, names: Names) -> dict[str, StoredTensor]:
    """The matrices that an adapter may change, by their names in the file without ``.weight``."""
    found = (each for each in stored_tensors(config, names) if len(each.shape) == 2)
    return {each.name.removesuffix(".weight"): each for each in found if each.tensors[0].role in _ROLES}


def low_ranks(
    stored: StoredTensor, pair: Pair, scale: float, names: Names, where: str, order: Rows | None = None
) -> Iterator[tuple[str, ModelTensor, LowRank]]:
    """Split the update of a stored tensor: the name, tensor and update of each matrix of the model in it.

    Args:
        stored: the tensor of the file.
        pair: A and B.
        scale: the factor of their product.
        names: the names of tensors in the checkpoint.
        where: the prefix of messages, which names the tensor.
        order: row indices that put the file's rows in the model's order; None if they are in it.

    Raises:
        FormatError: A or B is missing, has the wrong shape or rank, or has numbers that are not finite.
    """
    *several, rows, columns = stored.stacked_shape
    for letter, found in (("A", pair.down), ("B", pair.up)):
        if found is None:
            raise FormatError(f"{where}: lora_{letter} is missing; expected both matrices; get the adapter again")
    down, up = pair.down, pair.up
    assert down is not None
    assert up is not None
    dims = 2 + len(several)
    fits = down.ndim == up.ndim == dims and (*down.shape[:-2], down.shape[-1]) == (*several, columns)
    if not fits or up.shape[:-1] != (*several, rows):
        of = "".join(f"{count}, " for count in several)
        raise FormatError(
            f"{where}: lora_A and lora_B are {list(down.shape)} and {list(up.shape)}; expected [{of}rank, {columns}] "
            f"and [{of}{rows}, rank] for this model; the adapter belongs to another one"
        )
    if down.shape[-2] != up.shape[-1] or not 1 <= down.shape[-2] <= MAX_ADAPTER_RANK:
        raise FormatError(
            f"{where}: lora_A and lora_B have ranks {down.shape[-2]} and {up.shape[-1]}; expected one rank from 1 to "
            f"{MAX_ADAPTER_RANK}"
        )
    for letter, found in (("A", down), ("B", up)):
        if not np.isfinite(found).all():
            raise FormatError(
                f"{where}: lora_{letter} has NaN or infinite values; the adapter is damaged, get it again"
            )
    by_row = up.reshape(-1, up.shape[-1])
    for tensor, part in stored.split(by_row if order is None else by_row[order]):
        own = down[int(tensor.letter)] if several else down
        yield tensor.name(names), tensor, LowRank(own, np.ascontiguousarray(part), scale)


def refused_name(name: str, config: ModelConfig, names: Names) -> str:
    """The reason an adapter cannot change the matrix of this name, for the end of a message."""
    stem = name.removesuffix(".weight")
    embeddings = names.embeddings.rpartition(".")[2]
    if stem.rpartition(".")[2] == embeddings:
        return f"{quoted(name)} are the embeddings, which glinfer does not adapt; expected projections, MLP or head"
    if stem.rpartition(".")[2] == names.head.rpartition(".")[2] and config.tie_word_embeddings:
        return f"{quoted(name)} is tied to the embeddings, which glinfer does not adapt; expected projections or MLP"
    return f"{quoted(name)} is not a matrix of this model that can be adapted; the adapter belongs to another one"
