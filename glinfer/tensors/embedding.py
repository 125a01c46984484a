"""Kernels for embeddings: rows of tables by id, learned positions, and unpacking."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from glinfer.errors import InputError
from glinfer.kernels.flat.lookup import lookup as lookup_draw
from glinfer.kernels.flat.lookup import position_add as position_draw
from glinfer.kernels.flat.lookup import table_defines
from glinfer.kernels.spec import Op, TensorSpec, register
from glinfer.tensors.base import Group, Result, expect_floats
from glinfer.tensors.passes import Passes
from glinfer.tensors.tensor import FLOATS, TEXTURE_FORMATS, Tensor, is_integer

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Embeddings(Group):
    """Lookups, positions and unpacking. Copied values keep their bits; unpacked or added ones are float32."""

    def lookup(self, ids: Tensor, table: Tensor, *, check_ids: bool = False, **result: Unpack[Result]) -> Tensor:
        """The rows of a table by their ids; ids [...] of int32, table [V, D] → [..., D].

        Args:
            ids: any shape. An id below 0, or of V or more, gives a row of zeros.
            table: float32, float16 or packed, such as token embeddings from a GGUF file.
            check_ids: read the ids back first, which waits for them, and refuse ids outside the table.
        """
        if table.ndim != 2 or (not table.packed and table.dtype not in FLOATS):
            raise InputError(
                f"table is {list(table.shape)} of {table.dtype}; expected [V, D] of float32, float16 or packed"
            )
        if check_ids:
            _expect_rows(ids, table.shape[0])
        return self._rows(ids, "table", table, **result)

    def gather_rows(self, x: Tensor, ids: Tensor, *, out: Tensor | None = None) -> Tensor:
        """``x[ids]`` as in NumPy; x [R, D] of float32, float16 or int32, ids [...] of int32 → [..., D] of x's type.

        Unlike in NumPy, a negative id does not count from the end: an id below 0, or of R or more, gives a row of
        zeros.
        """
        if x.ndim != 2 or x.packed:
            hint = "look its rows up instead" if x.packed else "reshape it first"
            known = ", ".join(TEXTURE_FORMATS)
            raise InputError(f"x is {list(x.shape)} of {x.dtype}; expected [R, D] of {known}; {hint}")
        return self._rows(ids, "x", x, dtype=x.dtype, out=out, exact=True)

    def _rows(self, ids: Tensor, name: str, table: Tensor, *, exact: bool = False, **result: Unpack[Result]) -> Tensor:
        _expect_ids(ids)
        inputs, form = table.shape[1], table.dtype if table.packed else None

        def build(passes: Passes, ids: TensorSpec, out: TensorSpec, **tables: TensorSpec) -> None:
            passes.draw(lookup_draw(passes.named(), ids, tables[name], out, table_format=form, inputs=inputs))

        return self._run(build, {"ids": ids, name: table}, (*ids.shape, inputs), **result, exact=exact)

    def dequantize(self, table: Tensor, **result: Unpack[Result]) -> Tensor:
        """The weights of a packed tensor [..., inputs], in that shape; in float32 bit for bit as GGML unpacks them.

        ``Q8_ROW`` and ``Q16_ROW`` give each integer times the row's scale, rounded once. OpenGL may treat subnormal
        floats, such as a scale below 1.2e-38, as zero.
        """
        if not table.packed:
            raise InputError(f"table is {list(table.shape)} of {table.dtype}; expected a packed tensor")
        form, inputs = table.dtype, table.shape[-1]

        def build(passes: Passes, table: TensorSpec, out: TensorSpec) -> None:
            defines = table_defines(passes.named(), form, inputs)
            passes.step("dequantize", {"weight": table}, [out], defines=defines)

        return self._run(build, {"table": table}, table.shape, **result)

    def add_positions(self, x: Tensor, table: Tensor, *, offset: int = 0, **result: Unpack[Result]) -> Tensor:
        """``x[..., s, :] + table[offset + s]``: learned positions (Vaswani et al. 2017); x [..., S, D], table [P, D].

        Args:
            x: float32 or float16; the result has its shape. A vector [D] is one row.
            table: float32 or float16.
            offset: the position of row 0.
        """
        expect_floats(x=x, table=table)
        if x.ndim < 1 or table.ndim != 2 or x.shape[-1] != table.shape[1]:
            raise InputError(f"x is {list(x.shape)} and table is {list(table.shape)}; expected [..., S, D] and [P, D]")
        length = x.shape[-2] if x.ndim > 1 else 1
        room = table.shape[0] - length
        if room < 0:
            raise InputError(f"x has {length} rows; table has only {table.shape[0]} positions")
        if not is_integer(offset) or not 0 <= offset <= room:
            raise InputError(
                f"offset is {offset!r} for {length} rows; table has {table.shape[0]} positions, so "
                f"expected an integer from 0 to {room}"
            )
        reads = {"x": x, "table": table}
        return self._draw(position_draw, reads, x.shape, **result, length=length, offset=int(offset))


def _expect_ids(ids: Tensor) -> None:
    if ids.dtype != "int32":
        raise InputError(f"ids is {list(ids.shape)} of {ids.dtype}; expected int32")


def _expect_rows(ids: Tensor, rows: int) -> None:
    """Refuse ids outside the table."""
    _expect_ids(ids)
    numbers = ids.numpy()
    wrong = np.argwhere((numbers < 0) | (numbers >= rows))
    if len(wrong):
        index = tuple(wrong[0].tolist())
        at = f"at {list(index)} " if index else ""
        raise InputError(f"id {numbers[index]} {at}has no row; the vocabulary is {rows} rows, 0 to {rows - 1}")


register(Op("dequantize", ("weight",), integers=("weight",)))
