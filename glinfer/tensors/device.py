"""The Device of the public API: an OpenGL context without a window, its tensors, and the kernels over them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.closing import Closing
from glinfer.errors import InputError, PlanError
from glinfer.gl.context import Limits, open_device
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.program import ProgramCache
from glinfer.gl.timers import timer_for
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Array
from glinfer.program.plan import DrawRow, DrawTable
from glinfer.program.session import Session
from glinfer.program.tuning import default_for
from glinfer.quant.formats import BLOCK_FORMATS
from glinfer.quant.ggml import inputs_of, words_of
from glinfer.tensors.ops import Ops
from glinfer.tensors.own import own_pass
from glinfer.tensors.storage import Storage
from glinfer.tensors.tensor import PACKED, TEXTURE_FORMATS, Shape, Tensor, as_matrix, named, shape_from, type_name


@dataclass(frozen=True)
class Memory:
    """Memory use of a device: the number of tensors, the number with textures, and the bytes of the textures."""

    tensors: int
    textures: int
    bytes: int


class Device(Closing):
    """Tensors and kernels on one OpenGL ES 3.0 context.

        with glinfer.Device() as dev:
            a = dev.tensor(array)
            c = dev.ops.matmul(a, b)
            c.numpy()

    A device belongs to the thread that opened it. Methods raise PlanError for more elements than one texture holds,
    and ContextError in another thread or after :meth:`close`.

    Attributes:
        ops: every kernel, see :class:`glinfer.tensors.ops.Ops` and docs/kernels.md.
        context: the OpenGL context, see :class:`glinfer.gl.context.Device`.
        kernels: the kernel options of this device.
        programs: the compiled programs.
        blends_floats: whether passes may add to 32-bit float textures by blending.
        timed: set it to time each draw in :attr:`draws`, which waits for the draws of each call.
    """

    def __init__(
        self, device: str | int | None = None, *, api: str | None = None, limits: Limits | None = None
    ) -> None:
        """Open a context; the arguments are those of :func:`glinfer.gl.context.open_device`.

        Raises:
            ContextError: nothing usable opened.
        """
        self.context = open_device(device, api=api, limits=limits)
        self._storages: set[Storage] = set()
        self._forgotten: list[Storage] = []
        self.timed = False
        self._counts: dict[str, DrawRow] = {}
        self._times: dict[str, float] = {}
        try:
            self.programs = ProgramCache(self.context)
            self.kernels: KernelOptions = default_for(self.context)
            self.blends_floats = self.context.blends_floats
            self.ops = Ops(self)
        except BaseException:
            self.context.close()
            raise

    @named("tensor")
    def tensor(self, values: npt.ArrayLike, dtype: npt.DTypeLike | str | None = None) -> Tensor:
        """Make a tensor from an array. The values are copied now and uploaded at their first use.

        Args:
            values: an array of float32, float16 or int32; lists of numbers; integers that fit 32 bits. For a packed
                ``dtype``, rows of blocks as bytes [..., bytes of a row] as in a GGUF file, or floats to pack,
                [..., rows, inputs].
            dtype: ``float32``, ``float16`` or ``int32`` to convert to it, or a packed format such as ``Q4_K``.

        Raises:
            InputError: the values are of another type, are not a rectangle, or are empty and packed.
        """
        self.context.activate()
        self.collect()
        if isinstance(dtype, str) and dtype.upper() in BLOCK_FORMATS:
            return self._packed(numbers(values), dtype.upper())
        return self._plain(plain_array(values, dtype, BLOCK_FORMATS))

    @named("zeros")
    def zeros(self, shape: int | Sequence[int], dtype: npt.DTypeLike = "float32") -> Tensor:
        """Make a tensor of zeros of float32, float16 or int32; each edge is at least 0."""
        return self.full(shape, 0, dtype)

    @named("full")
    def full(
        self, shape: int | Sequence[int], value: float | np.number[Any], dtype: npt.DTypeLike | None = None
    ) -> Tensor:
        """Make a tensor with every element equal to ``value``.

        Args:
            shape: the edges, each at least 0.
            value: a number.
            dtype: ``float32``, ``float16`` or ``int32``; by default int32 for an integer, else float32.

        Raises:
            InputError: the type cannot hold the value.
        """
        self.context.activate()
        self.collect()
        edges = shape_from(shape)
        element = plain_array(value, dtype)
        if element.ndim:
            raise InputError(f"found the value {list(element.shape)}; expected one number")
        self.layout(edges, element.dtype.name)  # before memory is allocated
        return self._plain(np.full(edges, element))

    def _plain(self, array: Array) -> Tensor:
        """Make a tensor from a private array that a texture can hold unchanged."""
        name = array.dtype.name
        layout = self.layout(array.shape, name)
        storage = Storage(self.context, layout, matrix=array.reshape(as_matrix(array.shape)))
        return self.adopt(storage, array.shape, name)

    def _packed(self, values: Array, dtype: str) -> Tensor:
        if values.size == 0:
            raise InputError(f"found an array {list(values.shape)} without elements; {dtype} needs at least one block")
        words = words_of(values, dtype)
        inputs = inputs_of(values, dtype)
        layout = FlatLayout.of(words.shape, PACKED, self.context.limits.max_texture_size)
        storage = Storage(self.context, layout, matrix=words)
        return self.adopt(storage, (*values.shape[:-1], inputs), dtype)

    @named("draw")
    def draw(
        self,
        shader: str | os.PathLike[str],
        inputs: Mapping[str, Tensor],
        shape: int | Sequence[int],
        uniforms: Mapping[str, int | float] | None = None,
        *,
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
        name: str | None = None,
    ) -> Tensor:
        """Draw one pass with your own fragment shader, and return its output; docs/kernels.md shows an example.

        Each fragment writes four elements of a row of the result, viewed as a matrix [all other axes, last axis]:
        ``output_place()`` gives the row, and the number of the texel in it. shaders/common/flat.glsl is included;
        the shader may include other files of that folder. An input x is a sampler x (int32: ``isampler2D``, packed:
        ``usampler2D``) with the constants X_ROWS, X_COLS, X_TEXELS, X_WIDTH and X_HEIGHT; the result has OUT_….

        Args:
            shader: GLSL ES 3.00 of several lines, or the path of a file, with or without its version line; it has one
                output, ``out vec4``, or ``out ivec4`` for int32.
            inputs: tensors by the names of their samplers.
            shape: the result's shape.
            uniforms: numbers by the names of the uniforms; the shader must use each of them.
            dtype: the result's type, float32, float16 or int32.
            out: the tensor to write to; a new one by default.
            name: the pass's name in :attr:`draws` and errors; the file's name by default.

        Raises:
            InputError: the shader, an input or a uniform does not fit, or the result exceeds a texture.
            ShaderError: it does not compile; the message has its line and the driver's error.
        """
        self.context.activate()
        self.collect()
        return own_pass(self, shader, inputs, shape_from(shape), {} if uniforms is None else uniforms, dtype, out, name)

    def issue(self, session: Session) -> None:
        """Run the draws of a call and count them."""
        spent: Sequence[float] = ()
        if self.timed:
            with timer_for(self.context, session.draws) as timer:
                timeline = timer.run({})
            spent = () if timeline is None else [each / 1e6 for each in timeline.draws_ns]
        else:
            session.run({})
        for index, spec in enumerate(session.plan.draws):
            row = self._counts.get(spec.kind, DrawRow(spec.kind, spec.op, 0, 0, 0, 0.0))
            shaders = dict.fromkeys((*row.shader.split(", "), spec.op))
            rows, cols = spec.extent({})
            self._counts[spec.kind] = DrawRow(spec.kind, ", ".join(shaders), row.count + 1, rows, cols, 0.0)
            if spent:
                self._times[spec.kind] = self._times.get(spec.kind, 0.0) + spent[index]

    @property
    def draws(self) -> DrawTable:
        """The draws of kernels and own passes so far, by kernel; with their times if ``timed`` was set."""
        total = sum(row.count for row in self._counts.values())
        rows = tuple(replace(row, share=row.count / total) for row in self._counts.values())
        return DrawTable("device", 0, rows, total, dict(self._times))

    def layout(self, shape: Shape, dtype: str) -> FlatLayout:
        """The layout of a tensor of this shape and type in a texture.

        Raises:
            PlanError: it does not fit one texture.
        """
        if 0 in shape:
            return FlatLayout.without_elements(as_matrix(shape), TEXTURE_FORMATS[dtype])
        try:
            return FlatLayout.of(as_matrix(shape), TEXTURE_FORMATS[dtype], self.context.limits.max_texture_size)
        except PlanError as error:
            raise PlanError(f"a tensor {list(shape)}: {error}") from None

    def adopt(self, storage: Storage, shape: Shape, dtype: str) -> Tensor:
        """Make a tensor from a new storage, which :meth:`memory` counts until it is released."""
        self._storages.add(storage)
        storage.on_release = self._storages.discard
        return Tensor(self, storage, shape, dtype)

    def forget(self, storage: Storage) -> None:
        """Queue a storage that a tensor no longer holds, to be released at the next call on this device."""
        self._forgotten.append(storage)

    def collect(self) -> None:
        """Release the storages of tensors that no longer exist."""
        while self._forgotten:
            self._forgotten.pop().let_go()

    def memory(self) -> Memory:
        """The memory that all tensors use now; views count once."""
        self.collect()
        textures = [storage for storage in self._storages if storage.uploaded]
        return Memory(len(self._storages), len(textures), sum(storage.nbytes for storage in textures))

    @property
    def draws_issued(self) -> int:
        """Draw calls issued since the device was opened."""
        return self.context.draws_issued

    @property
    def description(self) -> str:
        """OpenGL version and renderer in one line."""
        return self.context.description

    def close(self) -> None:
        """Release every tensor and program, then the context; harmless when repeated."""
        if not self.context.closed:
            self.context.activate()  # fails in another thread, before anything changes
            self._forgotten.clear()
            for storage in list(self._storages):
                storage.release()
            self.programs.release()
        self.context.close()

    def __repr__(self) -> str:
        """The number of tensors, and the renderer."""
        state = "closed" if self.context.closed else f"{len(self._storages)} tensors"
        return f"<Device: {state}; {self.description}>"

    def _require_open(self) -> None:
        self.context.require_usable()


def numbers(values: Any) -> Array:
    """Convert array-like values to an array of integers or floats; InputError for anything else."""
    if isinstance(values, Tensor):
        raise InputError("found a tensor; use it directly, or on another device its copy: tensor.numpy()")
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise InputError(f"found no rectangle of numbers ({said}); expected an array, or lists of one length") from None
    if array.dtype.kind not in "iuf":
        raise InputError(f"found an array of {array.dtype}; expected numbers: {', '.join(TEXTURE_FORMATS)}")
    return array


def plain_array(values: Any, dtype: Any = None, packed: Collection[str] = ()) -> Array:
    """Copy array-like values to a type that textures can hold unpacked; the caller also takes the types ``packed``."""
    wanted: np.dtype[Any] | None = None if dtype is None else np.dtype(type_name(dtype, TEXTURE_FORMATS, packed))
    array = numbers(values)
    if wanted is None and array.dtype.kind in "iu":
        wanted = np.dtype(np.int32)
    if wanted is None and array.dtype.itemsize > 4:
        if isinstance(values, np.ndarray | np.generic):
            raise InputError(
                f"found an array of {array.dtype.name}, which textures cannot hold; pass dtype='float32' to round it"
            )
        wanted = np.dtype(np.float32)
    wanted = array.dtype.newbyteorder("=") if wanted is None else wanted
    if wanted == np.int32 and array.size:
        limits = np.iinfo(np.int32)
        if array.dtype.kind == "f" or array.min() < limits.min or array.max() > limits.max:
            raise InputError(f"found {array.dtype} from {array.min()} to {array.max()}; int32 cannot hold that exactly")
    with np.errstate(over="ignore"):
        return np.array(array, dtype=wanted, order="C")
