"""The kernels of a device: ``device.ops``."""

from __future__ import annotations

from glinfer.tensors.activation import Activations
from glinfer.tensors.assignment import Assignment
from glinfer.tensors.attention import Attention
from glinfer.tensors.backward import Backward
from glinfer.tensors.embedding import Embeddings
from glinfer.tensors.normalization import Normalizations
from glinfer.tensors.position import Positions
from glinfer.tensors.reduction import Reductions
from glinfer.tensors.sequences import Sequences
from glinfer.tensors.sorting import Sorting


class Ops(
    Activations, Attention, Assignment, Embeddings, Normalizations, Reductions, Backward, Positions, Sequences, Sorting
):
    """The kernels of a device, listed in docs/kernels.md; :class:`Attention` includes products, sums and copies.

    Most kernels take the options of :class:`glinfer.tensors.base.Result`.

    Raises:
        InputError: shapes, types or options do not fit, a tensor was released, or it is on another device.
    """
