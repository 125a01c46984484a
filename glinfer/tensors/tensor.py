"""A tensor: a shape, a type, and elements in a texture of a device."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn, TypeVar, Union, cast

import numpy as np
import numpy.typing as npt

from glinfer.errors import InputError, OptionError, PlanError
from glinfer.gl.layouts.flat import LANES, FlatLayout
from glinfer.kernels.spec import Array
from glinfer.quant.formats import BLOCK_FORMATS
from glinfer.quant.ggml import blocks_of
from glinfer.tensors.storage import Storage

Shape = tuple[int, ...]
TensorDevice = Any
"""A :class:`glinfer.tensors.device.Device`, which imports this module."""
Method = TypeVar("Method", bound=Callable[..., Any])
TEXTURE_FORMATS = {"float32": "rgba32f", "float16": "rgba16f", "int32": "rgba32i"}
"""Texture formats of the unpacked types; packed types use :data:`PACKED`."""
PACKED = "rgba32ui"
FLOATS = ("float32", "float16")
"""Types of computed results."""


_CALLS = set[str]()


def named(call: str) -> Callable[[Method], Method]:
    """Begin the errors of a public method, and of public methods that it calls, with ``call``."""
    _CALLS.add(call)

    def decorated(method: Method) -> Method:
        @functools.wraps(method)
        def called(*given: Any, **options: Any) -> Any:
            try:
                return method(*given, **options)
            except (InputError, PlanError) as error:
                inner, _, message = str(error).partition(": ")
                error.args = (f"{call}: {message if inner in _CALLS else error}",)
                raise

        return cast(Method, called)

    return decorated


Operand = Union["Tensor", npt.NDArray[Any], float, "np.number[Any]", Sequence[Any]]
"""The other operand of an operator with a tensor."""
Operator = Callable[["Tensor", Operand], "Tensor"]


def _on_both_sides(kernel: str) -> tuple[Operator, Operator]:
    """The operator of a kernel with the tensor first, and with it second; the result has NumPy's type.

    The other operand may be an array or a number, which is uploaded for this draw; a number gets the tensor's type, and
    an integer becomes a float.
    """

    def combined(x: Tensor, other: Operand, *, second: bool = False) -> Tensor:
        """The result for a tensor, an array or a number, with broadcasting; see the kernel for errors."""
        held: AbstractContextManager[Tensor]
        if isinstance(other, Tensor):
            held = nullcontext(other)
        elif isinstance(other, (int, float, np.number)) and not isinstance(other, bool):
            held = x.device.tensor(other, x.dtype if x.dtype == "float16" else "float32")
        elif isinstance(other, (np.ndarray, list, tuple)):
            held = x.device.tensor(other, "float32" if np.asarray(other).dtype.kind in "iu" else None)
        else:
            return NotImplemented  # type: ignore[no-any-return]  # Python's protocol for operators
        with held as y:
            dtype = "float16" if x.dtype == y.dtype == "float16" else "float32"
            found: Tensor = getattr(x.device.ops, kernel)(*((y, x) if second else (x, y)), dtype=dtype)
        return found

    return combined, lambda x, other: combined(x, other, second=True)


def as_matrix(shape: Shape) -> tuple[int, int]:
    """The shape of the stored matrix of a tensor: [all other axes, last axis]."""
    return math.prod(shape[:-1]), shape[-1] if shape else 1


class Tensor:
    """An array on a device. Made by :meth:`glinfer.Device.tensor` and by every kernel.

    Elements are uploaded at their first use. They stay until :meth:`release`, the end of a ``with`` block, or the end
    of the last reference to the tensor and its views; later uses raise an InputError.

    Attributes:
        dtype: ``float32``, ``float16``, ``int32``, or the name of a packed format such as ``Q4_K``, see
            :data:`glinfer.quant.formats.BLOCK_FORMATS`.
    """

    def __init__(self, device: TensorDevice, storage: Storage, shape: Shape, dtype: str) -> None:
        """Hold a storage as an array of this shape and type; see :meth:`glinfer.Device.tensor`."""
        self.device, self._shape, self._dtype = device, shape, dtype
        self._storage: Storage | None = storage
        storage.holders += 1

    @property
    def shape(self) -> Shape:
        """The length of each axis; :meth:`reshape` makes a tensor of another shape."""
        return self._shape

    @property
    def dtype(self) -> str:
        """The type of the elements."""
        return self._dtype

    @property
    def storage(self) -> Storage:
        """The storage of the elements."""
        if self._storage is None:
            raise InputError(f"this tensor {list(self.shape)} was released; make it again, or release it later")
        return self._storage

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def packed(self) -> bool:
        """Whether the elements are packed in blocks."""
        return self.dtype in BLOCK_FORMATS

    @property
    def layout(self) -> FlatLayout:
        """The layout of the elements in the texture; of a packed tensor, of the 32-bit words of its rows."""
        layout = self.storage.layout
        return layout if self.packed else layout.reshaped(*as_matrix(self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of texture memory once it is uploaded, padding included."""
        return self.layout.nbytes

    def __len__(self) -> int:
        """The length of the first axis."""
        if not self.shape:
            raise TypeError("a tensor without axes has no length")
        return self.shape[0]

    def __eq__(self, other: object) -> NoReturn:
        """Refuse a comparison, which Python would answer with False; it has no kernel."""
        raise OptionError("tensors are not compared; compare their elements, as in x.numpy() == y.numpy()")

    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        """Refuse to be a condition, as NumPy does for arrays of several elements."""
        raise OptionError("a tensor is neither true nor false; use its elements, as in x.numpy().any()")

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Support ``numpy.asarray(tensor)``; the result is always a copy, as from :meth:`numpy`."""
        if copy is False:
            raise ValueError("the elements of a tensor are in texture memory; numpy needs a copy (copy=None or True)")
        return np.asarray(self.numpy(), dtype=dtype)

    @named("x[index]")
    def __getitem__(self, index: Any) -> Tensor:
        """A copy of ``tensor[index]``, with NumPy's basic indexing; see :meth:`Movement.slice`."""
        part: Tensor = self.device.ops.slice(self, *(index if isinstance(index, tuple) else (index,)))
        return part

    @named("x[index] = value")
    def __setitem__(self, index: Any, value: Any) -> None:
        """Change a part in place, with NumPy's basic indexing; see :meth:`Assignment.assign`."""
        self.device.ops.assign(self, index, value)

    def __iter__(self) -> Iterator[Tensor]:
        """Iterate over copies of the parts along the first axis; without this Python would try indices for ever."""
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        """Shape, type and state."""
        gone = self._storage is None or self._storage.gone
        state = "released" if gone else "uploaded" if self.storage.uploaded else "not uploaded yet"
        return f"Tensor(shape={self.shape}, dtype={self.dtype}, {state})"

    @property
    def T(self) -> Tensor:  # noqa: N802
        """A copy with reversed axes."""
        swapped: Tensor = self.device.ops.transpose(self)
        return swapped

    def __neg__(self) -> Tensor:
        """``-x``."""
        negative: Tensor = self.device.ops.scale(self, -1.0, dtype=self.dtype)
        return negative

    __array_priority__ = 1000.0
    """Makes NumPy leave ``array + tensor`` to the tensor."""
    __add__, __radd__ = _on_both_sides("add")
    __sub__, __rsub__ = _on_both_sides("subtract")
    __mul__, __rmul__ = _on_both_sides("multiply")
    __truediv__, __rtruediv__ = _on_both_sides("divide")
    __matmul__, __rmatmul__ = _on_both_sides("matmul")

    @named("numpy")
    def numpy(self) -> Array:
        """A copy of the elements, bit for bit; for a packed tensor its blocks as bytes [..., bytes of a row]."""
        matrix = self.storage.matrix()
        if self.packed:
            return blocks_of(matrix, self.dtype, self.shape[-1]).reshape(*self.shape[:-1], -1)
        return matrix.reshape(self.shape)

    @named("reshape")
    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """The same elements in another shape, as in ``numpy.reshape``; one edge may be -1.

        The result is a view if the texels stay the same: if the last axis does, or is a multiple of four before and
        after. Otherwise it is a copy. Rows of a packed tensor stay whole.
        """
        wanted = self._resolved(shape)
        if self.packed:
            if not wanted or wanted[-1] != self.shape[-1]:
                raise InputError(
                    f"the rows of a {self.dtype} tensor {list(self.shape)} stay whole; found {list(wanted)}"
                )
            return Tensor(self.device, self.storage, wanted, self.dtype)
        cols, own_cols = as_matrix(wanted)[1], as_matrix(self.shape)[1]
        if not self.size or cols == own_cols or (cols % LANES == 0 and own_cols % LANES == 0):
            return Tensor(self.device, self.storage, wanted, self.dtype)
        copied: Tensor = self.device.ops.repack(self, wanted)
        return copied

    def _resolved(self, shape: Sequence[Any]) -> Shape:
        given: Sequence[Any] = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        try:
            edges = [operator.index(edge) for edge in given]
        except TypeError:
            raise InputError(f"found the shape {given}; expected integers, one of which may be -1") from None
        unknown = edges.count(-1)
        known = math.prod(edge for edge in edges if edge != -1)
        if unknown == 1 and known > 0 and self.size % known == 0:
            edges[edges.index(-1)] = self.size // known
        if min(edges, default=0) < 0 or math.prod(edges) != self.size:
            raise InputError(f"a tensor {list(self.shape)} of {self.size} elements cannot become {list(given)}")
        return tuple(edges)

    def release(self) -> None:
        """Release the elements; the texture is released with the last view. Harmless when repeated."""
        context = self.device.context
        if self._storage is not None and self._storage.uploaded and not context.closed:
            context.require_usable()  # before anything changes
        storage, self._storage = self._storage, None
        if storage is not None:
            storage.let_go()

    def __del__(self) -> None:
        """Queue the elements for release at the device's next call, because this may be another thread."""
        storage = getattr(self, "_storage", None)
        if storage is not None:
            self._storage = None
            self.device.forget(storage)

    def __enter__(self) -> Tensor:
        """Enter the context manager, which releases the tensor at the end of the block."""
        if self.storage.gone:
            raise InputError(f"this tensor {list(self.shape)} was released with its device; make it on an open device")
        return self

    def __exit__(self, *_: object) -> None:
        """Release."""
        self.release()


def is_integer(value: object) -> bool:
    """Whether a value is an integer of Python or NumPy, and not a boolean."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def type_name(dtype: object, known: Collection[str], also: Collection[str] = ()) -> str:
    """The name of a type from the caller, one of ``known``; an error lists the names in ``also`` too.

    Raises:
        InputError: it is another type, or none.
    """
    try:
        name = str(dtype) if dtype is None else np.dtype(dtype).name  # type: ignore[call-overload]
    except (TypeError, ValueError):
        name = repr(dtype)
    if name not in known:
        raise InputError(f"dtype is {name}; expected one of {', '.join((*known, *also))}")
    return name


def shape_from(shape: object) -> Shape:
    """A shape from the caller, where an integer is one edge; InputError for anything else."""
    edges = shape if isinstance(shape, (tuple, list)) else (shape,)
    if not all(is_integer(edge) and edge >= 0 for edge in edges):
        raise InputError(f"found the shape {shape!r}; expected integers of at least 0")
    return tuple(int(edge) for edge in edges)
