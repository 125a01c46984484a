"""Kernels for rotary positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glinfer.errors import InputError, PlanError
from glinfer.kernels.flat.rotate import rotate
from glinfer.kernels.rotary import Scaling, cosines_and_sines, rope_frequencies
from glinfer.kernels.spec import Array
from glinfer.tensors.base import Group, Result, expect_floats, expect_integers
from glinfer.tensors.tensor import Tensor, TensorDevice, is_integer

if TYPE_CHECKING:
    from typing_extensions import Unpack

_MAX_TABLES = 8  # most recent settings whose angles are kept
_MIN_ANGLES = 1 << 15  # minimum for a new table
_Angles = tuple[int, bytes, float]


class Positions(Group):
    """Kernels that encode the positions of rows."""

    def __init__(self, device: TensorDevice) -> None:
        """Start without tables of angles."""
        super().__init__(device)
        self._tables: dict[_Angles, Tensor] = {}  # least recently used first

    def rope(
        self,
        x: Tensor,
        *,
        theta: float = 10000.0,
        offset: int = 0,
        positions: Tensor | None = None,
        heads: int = 1,
        interleaved: bool = False,
        rotary_dim: int | None = None,
        scaling: Scaling | None = None,
        length: int | None = None,
        **result: Unpack[Result],
    ) -> Tensor:
        """Rotary position embeddings (Su et al. 2021); x [..., S, heads × D].

        Pair i of a head is rotated by the row's position × theta^(−2i / rotary_dim). The cosines and sines are computed
        in float64 and kept on the device as float32 [positions, rotary_dim], for the 8 most recent settings; they count
        in :meth:`glinfer.Device.memory`.

        Args:
            x: float32 or float16; the axis before the last is the sequence, as in [S, D], [heads, S, D] or, with
                ``heads``, [batch, S, heads × D].
            theta: the base of the angles.
            offset: position of the first row; row s is at offset + s.
            positions: int32 [S] instead, from 0 on.
            heads: number of heads side by side in a row.
            interleaved: rotate elements (2i, 2i + 1), like GPT-J and Llama's original code; otherwise (i, i +
                rotary_dim / 2), like GPT-NeoX and Llama in the Hugging Face library.
            rotary_dim: number of elements of each head to rotate, the first ones; all by default.
            scaling: for long contexts, like ``rope_scaling`` in the Hugging Face library: a dict of ``rope_type``
                (``default``, ``linear``, ``dynamic``, ``llama3``, ``yarn`` or ``longrope``) and its numbers.
            length: number of positions of the context, for ``dynamic`` and ``longrope`` and for the size of the table;
                by default up to the last position of x. With ``length`` given, ``positions`` are not read back, and not
                checked to be below it.
        """
        expect_floats(x=x)
        expect_integers(0, offset=offset)
        expect_integers(1, heads=heads, length=1 if length is None else length)
        if x.ndim < 2 or x.shape[-1] % heads:
            raise InputError(f"x is {list(x.shape)}; expected [..., sequence, {heads} heads × their elements]")
        dim, sequence = x.shape[-1] // heads, x.shape[-2]
        rotary = dim if rotary_dim is None else rotary_dim
        if not is_integer(rotary) or not 2 <= rotary <= dim or rotary % 2:
            raise InputError(
                f"{rotary!r} elements of each head of x {list(x.shape)} cannot form pairs; expected an even "
                f"rotary_dim from 2 to {dim}"
            )
        table = None
        if x.size:
            table = self._table(self._needed(sequence, int(offset), positions, length), int(rotary), theta, scaling)
        reads = {"x": x, "table": table, "positions": positions}
        options: dict[str, Any] = {"heads": int(heads), "interleaved": bool(interleaved), "position": int(offset)}
        return self._draw(rotate, reads, x.shape, **result, sequence=sequence, **options)

    def _needed(self, sequence: int, offset: int, positions: Tensor | None, length: int | None) -> int:
        """The number of positions that the table needs, up to the last one of x."""
        last, first = offset + sequence - 1, offset
        if positions is not None:
            if positions.dtype != "int32" or positions.shape != (sequence,) or offset:
                raise InputError(
                    f"positions is {list(positions.shape)} of {positions.dtype}, with offset {offset}; expected "
                    f"[{sequence}] of int32, one position a row, and no offset"
                )
            if length is not None:
                return int(length)
            numbers = positions.numpy()
            first, last = int(numbers.min()), int(numbers.max())
        if first < 0 or (length is not None and last >= length):
            limit = "on" if length is None else f"to {length - 1}, below length"
            raise InputError(f"x has positions {first} to {last}; expected them from 0 {limit}")
        return last + 1 if length is None else int(length)

    def _table(self, length: int, rotary: int, theta: float, scaling: Scaling | None) -> Tensor:
        """The cosines and sines of at least ``length`` positions."""
        frequencies, factor = rope_frequencies(length, rotary, theta, scaling)
        angles = (rotary, frequencies.tobytes(), factor)
        table = self._tables.pop(angles, None)
        if table is None or len(table) < length:
            if table is not None:
                table.release()
            table = self._made(length, frequencies, factor)
        self._tables[angles] = table
        while len(self._tables) > _MAX_TABLES:
            self._tables.pop(next(iter(self._tables))).release()
        return table

    def _made(self, length: int, frequencies: Array, factor: float) -> Tensor:
        """Make a table with room for more positions if it fits, because the next call may need them."""
        larger = max(1 << (length - 1).bit_length(), _MIN_ANGLES // (2 * len(frequencies)))
        for rows in (larger, length):
            try:
                self._device.layout((rows, 2 * len(frequencies)), "float32")
            except PlanError as error:
                problem = error
                continue
            table: Tensor = self._device.tensor(cosines_and_sines(rows, frequencies, factor))
            return table
        raise InputError(f"the angles of {length} positions do not fit: {problem}") from None
