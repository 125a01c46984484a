"""LoRA adapters as arrays: a low-rank update for each adapted matrix (Hu et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.families.layer import DeltaRule
from glinfer.families.names import Names
from glinfer.families.settings import quoted
from glinfer.formats.tensors import EXPERT_ROLES, StoredTensor, stored_tensors
from glinfer.graph.nodes import ModelTensor
from glinfer.limits import MAX_ADAPTER_RANK

FloatArray = npt.NDArray[np.float32]
Rows = npt.NDArray[np.intp]
_OF_EXPERTS = (
    "router",
    "shared_router",
    *(f"{kind}_{role}" for kind in ("dense", "shared") for role in EXPERT_ROLES),
)
_ROLES = ("projection", "output", "delta_in", "delta_out", *EXPERT_ROLES, *_OF_EXPERTS, "head")
"""The roles of matrices that an adapter may change; see :class:`glinfer.families.names.Names`."""
_ABSORBED = ("projection", "output")  # of these with a latent


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
    roles = (*_ROLES, "embeddings", "token_types") if config.embeds else _ROLES
    roles = tuple(role for role in roles if not config.kv_lora_rank or role not in _ABSORBED)
    return {each.name.removesuffix(".weight"): each for each in found if each.tensors[0].role in roles}


def low_ranks(
    config: ModelConfig,
    stored: StoredTensor,
    pair: Pair,
    scale: float,
    where: str,
    *,
    order: Rows | None = None,
    in_turn: bool = False,
    converted: Callable[[ModelTensor, FloatArray], FloatArray] = lambda _, rows: rows,
) -> Iterator[tuple[str, LowRank]]:
    """Split the update of a stored tensor: the name and the update of each matrix of the model in it.

    ``order`` has row indices that put the file's rows in the model's order, and ``converted`` converts the rows of B of
    a matrix. ``in_turn`` is whether the file interleaves the value heads of a delta rule that share a key head.
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
        change = LowRank(own, converted(tensor, np.ascontiguousarray(part)), scale)
        yield tensor.name(config.family.names), _in_order_of(config, tensor, change, in_turn=in_turn)


def _in_order_of(config: ModelConfig, tensor: ModelTensor, change: LowRank, *, in_turn: bool) -> LowRank:
    """Reorder the update of a tensor, so that a delta rule's value heads are in the model's order.

    Where value heads share a key head, Hugging Face files store those heads next to each other, and GGUF files may
    interleave them (``in_turn``). A model keeps the order of its own file.
    """
    rule = None if tensor.layer is None else config.layer(tensor.layer).delta
    if rule is None or rule.in_turn == in_turn or tensor.role not in ("delta_in", "delta_out"):
        return change
    order = _order(rule)
    elements = (order[:, None] * rule.value + np.arange(rule.value)).reshape(-1)
    if tensor.role == "delta_out":
        return replace(change, down=np.ascontiguousarray(change.down[:, elements]))
    keys = np.arange(2 * rule.keys)
    rows = {"qkv": np.concatenate([keys, len(keys) + elements]), "z": elements, "a": order, "b": order}
    return replace(change, up=np.ascontiguousarray(change.up[rows[tensor.letter]]))


def _order(rule: DeltaRule) -> npt.NDArray[np.intp]:
    """For each value head of the model, its index in the file, which has the other order."""
    shared = rule.heads // rule.key_heads
    shape = (rule.key_heads, shared) if rule.in_turn else (shared, rule.key_heads)
    return np.arange(rule.heads).reshape(shape).T.reshape(-1)


def refused_name(name: str, config: ModelConfig, names: Names) -> str:
    """The reason an adapter cannot change the matrix of this name, for the end of a message."""
    stem = name.removesuffix(".weight")
    embeddings = names.embeddings.rpartition(".")[2]
    if stem.rpartition(".")[2] == embeddings:
        return f"{quoted(name)} are the embeddings, which glinfer does not adapt; expected projections, MLP or head"
    if stem.rpartition(".")[2] == names.head.rpartition(".")[2] and config.tie_word_embeddings:
        return f"{quoted(name)} is tied to the embeddings, which glinfer does not adapt; expected projections or MLP"
    if config.kv_lora_rank and "attn" in stem:
        return f"{quoted(name)} belongs to attention over a latent, which glinfer does not adapt; expected MLP or head"
    return f"{quoted(name)} is not a matrix of this model that can be adapted; the adapter belongs to another one"
