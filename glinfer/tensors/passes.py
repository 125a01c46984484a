"""The draws of one kernel call: a small plan over the tensors that it was given, built and run at once."""

from __future__ import annotations

from collections.abc import Sequence

from glinfer.errors import InputError, PlanError
from glinfer.gl.texture import Texture
from glinfer.models.plan import PlanBuilder
from glinfer.models.session import Session
from glinfer.ops.flat.draws import flat_layout
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import DrawSpec, TensorSpec
from glinfer.tensors.storage import Storage
from glinfer.tensors.tensor import TEXTURE_FORMATS, Shape, Tensor, TensorDevice, as_matrix


class Passes:
    """Collects the inputs, results and draws of one call; :meth:`run` draws them.

    A call makes one of these, asks it for the specs of its tensors, gives it the draws that the builders in
    :mod:`glinfer.ops` make, and gets the results back as tensors.
    """

    def __init__(self, device: TensorDevice, call: str) -> None:
        """Start without draws; ``call`` names the kernel in messages."""
        self.device, self.call = device, call
        self._builder = PlanBuilder(call, 1, ())
        self._lent: dict[str, Texture] = {}
        self._results: list[tuple[Tensor, bool]] = []

    @property
    def kernels(self) -> KernelOptions:
        """The kernel options of this device."""
        return self.device.kernels

    @property
    def max_texture_size(self) -> int:
        """The most texels along a side of a texture on this device."""
        return self.device.context.limits.max_texture_size

    def read(self, name: str, tensor: Tensor, shape: tuple[int, int] | None = None) -> TensorSpec:
        """Declare an input, as a matrix [all other axes, last axis], or as another matrix of the same texels.

        A packed tensor is the matrix of its words.

        Raises:
            InputError: it was released, is on another device, or is a result of this call.
        """
        if tensor.device is not self.device:
            raise InputError(f"{self.call}: {name} is a tensor of another device; make it on this one")
        layout = tensor.layout if shape is None else tensor.layout.seen_as(*shape)
        if any(result.storage is tensor.storage for result, _ in self._results):
            raise InputError(f"{self.call}: out is read by this call, as {name}; give it another tensor")
        self._lent[name] = tensor.storage.texture()
        return self._builder.laid_out(name, "input", layout)

    def scratch(self, name: str, rows: int, cols: int, format_name: str = "rgba32f") -> TensorSpec:
        """Declare a tensor that only the draws of this call use.

        Raises:
            InputError: it fits no texture.
        """
        try:
            return self._builder.flat(name, "activation", rows, cols, format_name, self.max_texture_size)
        except PlanError as error:
            raise InputError(f"{self.call}: {error}") from None

    def result(self, name: str, shape: Shape, dtype: str = "float32", out: Tensor | None = None) -> TensorSpec:
        """Declare a result: a new tensor, or ``out``.

        Raises:
            InputError: it fits no texture; or ``out`` has another shape or type, was released, is on
                another device, or shares its elements with a tensor that this call reads or writes.
        """
        spec = self.scratch(name, *as_matrix(shape), TEXTURE_FORMATS[dtype])
        given = out is not None
        if out is None:
            layout = flat_layout(name, spec)
            texture = Texture(self.device.context, layout, name)
            out = self.device.adopt(Storage(self.device.context, layout, texture=texture), shape, dtype)
        elif out.shape != shape or out.dtype != dtype:
            raise InputError(
                f"{self.call}: out is {list(out.shape)} of {out.dtype}; the result is {list(shape)} of {dtype}"
            )
        elif out.device is not self.device:
            raise InputError(f"{self.call}: out is a tensor of another device; make it on this one")
        elif out.storage.texture() in self._lent.values():
            raise InputError(f"{self.call}: out is read or written by this call already; give it another tensor")
        self._lent[name] = out.storage.texture()
        self._results.append((out, given))
        return spec

    def draw(self, *draws: DrawSpec) -> None:
        """Append draws."""
        self._builder.draw(*draws)

    def run(self) -> Sequence[Tensor]:
        """Draw, and return the results in the order of their declaration.

        Raises:
            InputError: the shapes do not fit.
            GlinferError: the device refuses; new results are released then.
        """
        try:
            plan = self._builder.build()
            session = Session(plan, {}, self.device.context, lent=self._lent, programs=self.device.programs)
            try:
                session.run({})
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
