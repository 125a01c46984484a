"""The draws of one kernel call: a small plan over its tensors, built and run at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from glinfer.errors import InputError, PlanError
from glinfer.gl.layouts.flat import FlatLayout
from glinfer.gl.texture import Texture
from glinfer.models.plan import PlanBuilder
from glinfer.models.session import Session
from glinfer.ops.flat.draws import flat_layout
from glinfer.ops.flat.movement import strided_copy
from glinfer.ops.flat.strided import Axis
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import DrawSpec, TensorSpec
from glinfer.tensors.storage import Storage
from glinfer.tensors.tensor import TEXTURE_FORMATS, Shape, Tensor, TensorDevice, as_matrix


class Passes:
    """Collects the inputs, results and draws of one call; :meth:`run` draws them.

    A call makes one of these, declares its tensors, appends the draws from the builders in :mod:`glinfer.ops`, and gets
    the results as tensors.
    """

    def __init__(self, device: TensorDevice, call: str) -> None:
        """Start without draws; ``call`` names the kernel in messages."""
        self.device, self.call = device, call
        self._builder = PlanBuilder(call, 1, ())
        self._lent: dict[str, Texture] = {}
        self._written: list[str] = []
        self._results: list[tuple[Tensor, bool]] = []
        self._rounded: list[tuple[TensorSpec, TensorSpec]] = []

    @property
    def kernels(self) -> KernelOptions:
        """The kernel options of this device."""
        return self.device.kernels

    @property
    def max_texture_size(self) -> int:
        """Limit for the texels along a side of a texture on this device."""
        return self.device.context.limits.max_texture_size

    def read(self, name: str, tensor: Tensor, shape: tuple[int, int] | None = None) -> TensorSpec:
        """Declare an input, as a matrix [all other axes, last axis], or as another matrix of the same texels.

        A packed tensor is the matrix of its words.

        Raises:
            InputError: it was released, is on another device, is a result of this call, or has no elements.
        """
        self.expect_here(name, tensor)
        layout = tensor.layout if shape is None else tensor.layout.seen_as(*shape)
        if any(result.storage is tensor.storage for result, _ in self._results):
            raise InputError(f"{self.call}: out is read by this call, as {name}; give it another tensor")
        self._lend(name, tensor)
        return self._builder.laid_out(name, "input", layout)

    def changed(self, name: str, tensor: Tensor) -> TensorSpec:
        """Declare a tensor that the draws change in part, or add to.

        Raises:
            InputError: it was released, is on another device, is read or written by this call, or has no elements.
        """
        self.expect_here(name, tensor)
        if tensor.storage.uploaded and tensor.storage.texture() in self._lent.values():
            raise InputError(f"{self.call}: {name} is read or written by this call already; give it another tensor")
        self._lend(name, tensor)
        self._written.append(name)
        return self._builder.laid_out(name, "cache", tensor.layout)

    def expect_here(self, name: str, tensor: Tensor) -> None:
        """Refuse a released tensor, or one of another device.

        Raises:
            InputError: it was released, or is on another device.
        """
        if tensor.device is not self.device:
            raise InputError(f"{self.call}: {name} is a tensor of another device; make it on this one")
        _ = tensor.storage

    def _lend(self, name: str, tensor: Tensor) -> None:
        if tensor.size == 0:
            raise InputError(f"{self.call}: {name} is {list(tensor.shape)}, which has no elements")
        self._lent[name] = tensor.storage.texture()

    def scratch(self, name: str, rows: int, cols: int, format_name: str = "rgba32f") -> TensorSpec:
        """Declare a tensor that only the draws of this call use.

        Raises:
            InputError: it does not fit a texture.
        """
        try:
            return self._builder.flat(name, "activation", rows, cols, format_name, self.max_texture_size)
        except PlanError as error:
            raise InputError(f"{self.call}: {error}") from None

    def result(self, name: str, shape: Shape, dtype: str = "float32", out: Tensor | None = None) -> TensorSpec:
        """Declare a result: a new tensor, or ``out``.

        Raises:
            InputError: it does not fit a texture; or ``out`` has another shape or type, was released, is on
                another device, or shares its elements with a tensor that this call reads or writes.
        """
        spec = self.scratch(name, *as_matrix(shape), TEXTURE_FORMATS[dtype])
        given = out is not None
        if out is None:
            layout = flat_layout(name, spec)
            texture = Texture(self.device.context, layout, name)
            out = self.device.adopt(Storage(self.device.context, layout, texture=texture), shape, dtype)
        else:
            self._expect_out(out, shape, dtype)
            if out.storage.texture() in self._lent.values():
                raise InputError(f"{self.call}: out is read or written by this call already; give it another tensor")
        self._lent[name] = out.storage.texture()
        self._written.append(name)
        self._results.append((out, given))
        return spec

    def computed(
        self, name: str, shape: Shape, dtype: npt.DTypeLike = "float32", out: Tensor | None = None
    ) -> TensorSpec:
        """Declare a result that is computed in float32; in float16 a last draw rounds it, ties to even.

        OpenGL does not define the rounding for half-float targets, so draws do not rely on it.

        Raises:
            InputError: as in :meth:`result`; or the type is not of floats.
        """
        wanted = float_type(self.call, dtype)
        if wanted == "float32":
            return self.result(name, shape, wanted, out)
        exact = self.scratch(f"{name} in float32", *as_matrix(shape))
        self._rounded.append((exact, self.result(name, shape, wanted, out)))
        return exact

    def empty(self, shape: Shape, dtype: str, out: Tensor | None = None, **inputs: Tensor | None) -> Tensor:
        """Check the inputs, and make a result without elements, which needs no draw.

        Raises:
            InputError: ``out`` has another shape or type; or a tensor was released, or is on another device.
        """
        for name, tensor in inputs.items():
            if tensor is not None:
                self.expect_here(name, tensor)
        if out is not None:
            self._expect_out(out, shape, dtype)
            return out
        layout = FlatLayout.without_elements(as_matrix(shape), TEXTURE_FORMATS[dtype])
        nothing = np.zeros(as_matrix(shape), layout.format.dtype)
        return self.device.adopt(Storage(self.device.context, layout, matrix=nothing), shape, dtype)

    def computed_zeros(
        self, shape: Shape, dtype: npt.DTypeLike = "float32", out: Tensor | None = None, **inputs: Tensor | None
    ) -> Tensor:
        """Make :meth:`zeros` of a type of floats.

        Raises:
            InputError: as in :meth:`computed`; or an input was released, or is on another device.
        """
        return self.zeros(shape, float_type(self.call, dtype), out, **inputs)

    def zeros(self, shape: Shape, dtype: str, out: Tensor | None = None, **inputs: Tensor | None) -> Tensor:
        """Make the result of a computation over no elements: zeros, or an empty tensor.

        Raises:
            InputError: as in :meth:`result`; or an input was released, or is on another device.
        """
        if 0 in shape:
            return self.empty(shape, dtype, out, **inputs)
        for name, tensor in inputs.items():
            if tensor is not None:
                self.expect_here(name, tensor)
        self.result("y", shape, dtype, out)
        ((y, _),) = self._results
        y.storage.texture().fill(0.0)
        return y

    def _expect_out(self, out: Tensor, shape: Shape, dtype: str) -> None:
        if out.shape != shape or out.dtype != dtype:
            raise InputError(
                f"{self.call}: out is {list(out.shape)} of {out.dtype}; the result is {list(shape)} of {dtype}"
            )
        self.expect_here("out", out)

    def draw(self, *draws: DrawSpec) -> None:
        """Append draws."""
        self._builder.draw(*draws)

    def run(self) -> Sequence[Tensor]:
        """Draw, and return the results in the order of their declaration.

        Raises:
            InputError: the shapes do not fit.
            GlinferError: the device failed; new results are released then.
        """
        try:
            for exact, target in self._rounded:
                axes = [Axis(exact.shape[0], 1, 0), Axis(exact.shape[1], 0, 1)]
                self.draw(
                    strided_copy(f"{target.name} in float16", self.call, exact, target, axes, kernels=self.kernels)
                )
            plan = self._builder.build(*self._written)
            session = Session(plan, {}, self.device.context, lent=self._lent, programs=self.device.programs)
            try:
                self.device.issue(session)
            finally:
                session.release()
        except BaseException as error:
            self.abandon()
            if isinstance(error, PlanError):
                raise InputError(f"{self.call}: {error}") from None
            raise
        return [tensor for tensor, _ in self._results]

    def abandon(self) -> None:
        """Release the new results of a call that failed."""
        for tensor, given in self._results:
            if not given:
                tensor.release()


def float_type(call: str, dtype: npt.DTypeLike) -> str:
    """The name of a type for computed results.

    Raises:
        InputError: it is not float32 or float16; the message names the call.
    """
    try:
        wanted = np.dtype(dtype).name if dtype is not None else "None"
    except TypeError:
        wanted = repr(dtype)
    if wanted not in ("float32", "float16"):
        raise InputError(f"{call}: dtype is {wanted}; expected float32 or float16")
    return wanted
