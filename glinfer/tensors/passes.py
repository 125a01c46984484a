"""The draws of one kernel call: a small plan over its tensors, built and run at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glinfer.errors import InputError, PlanError
from glinfer.gl.texture import Texture
from glinfer.kernels.flat.draws import flat_draw, flat_layout
from glinfer.kernels.flat.movement import strided_copy
from glinfer.kernels.flat.strided import Axis
from glinfer.kernels.spec import DrawSpec, Pass, TensorSpec
from glinfer.program.plan import PlanBuilder
from glinfer.program.session import Session
from glinfer.tensors.storage import Storage
from glinfer.tensors.tensor import TEXTURE_FORMATS, Shape, Tensor, TensorDevice, as_matrix


class Passes:
    """Collects the inputs, results and draws of one call; :meth:`run` draws them.

    Its errors lack the kernel's name, which :func:`glinfer.tensors.tensor.named` adds: InputError for a tensor that was
    released, is on another device, or is both written and used otherwise; PlanError for one that no texture holds.
    """

    def __init__(self, device: TensorDevice, call: str) -> None:
        """Start without draws; ``call`` names the kernel in tables of draws."""
        self.device, self.call, self.kernels = device, call, device.kernels
        self._builder = PlanBuilder(call, 1, ())
        self._lent: dict[str, Texture] = {}
        self._written: list[str] = []
        self._results: list[tuple[Tensor, bool]] = []
        self._rounded: list[tuple[TensorSpec, TensorSpec]] = []

    def read(self, name: str, tensor: Tensor) -> TensorSpec:
        """Declare an input, as a matrix [all other axes, last axis]; a packed tensor is the matrix of its words."""
        return self._declare(name, "input", tensor)

    def changed(self, name: str, tensor: Tensor) -> TensorSpec:
        """Declare a tensor that the draws change in part, or add to."""
        self.expect_here(name, tensor)
        if tensor.storage.uploaded:
            self._expect_unused(name, tensor)
        self._written.append(name)
        return self._declare(name, "cache", tensor)

    def expect_here(self, name: str, tensor: Tensor | None) -> None:
        """Raise an InputError for a released tensor, or one of another device."""
        if tensor is not None:
            if tensor.device is not self.device:
                raise InputError(f"{name} is a tensor of another device; make it on this one")
            _ = tensor.storage

    def _expect_unused(self, name: str, tensor: Tensor) -> None:
        if tensor.storage.texture() in self._lent.values():
            raise InputError(f"{name} is read or written by this call already; give it another tensor")

    def _declare(self, name: str, kind: str, tensor: Tensor) -> TensorSpec:
        self.expect_here(name, tensor)
        if tensor.size == 0:
            raise InputError(f"{name} is {list(tensor.shape)}, which has no elements")
        self._lent[name] = tensor.storage.texture()
        return self._builder.laid_out(name, kind, tensor.layout)

    def scratch(self, name: str, rows: int, cols: int, format_name: str = "rgba32f") -> TensorSpec:
        """Declare a tensor that only the draws of this call use."""
        edge = self.device.context.limits.max_texture_size
        return self._builder.flat(name, "activation", rows, cols, format_name, edge)

    def result(self, name: str, shape: Shape, dtype: str = "float32", out: Tensor | None = None) -> TensorSpec:
        """Declare a result: a new tensor, or ``out``, which must have this shape and type."""
        spec = self.scratch(name, *as_matrix(shape), TEXTURE_FORMATS[dtype])
        given = out is not None
        if out is None:
            layout = flat_layout(name, spec)
            texture = Texture(self.device.context, layout, name)
            out = self.device.adopt(Storage(self.device.context, layout, texture=texture), shape, dtype)
        else:
            self._expect_out(out, shape, dtype)
            self._expect_unused("out", out)
        self._lent[name] = out.storage.texture()
        self._written.append(name)
        self._results.append((out, given))
        return spec

    def computed(self, name: str, shape: Shape, dtype: str = "float32", out: Tensor | None = None) -> TensorSpec:
        """Declare a result that is computed in float32; in float16 a last draw rounds it, ties to even.

        OpenGL does not define the rounding for half-float targets, so draws do not rely on it.
        """
        target = self.result(name, shape, dtype, out)
        if dtype == "float32":
            return target
        exact = self.scratch(f"{name} in float32", *as_matrix(shape))
        self._rounded.append((exact, target))
        return exact

    def zeros(self, shape: Shape, dtype: str, out: Tensor | None = None, **inputs: Tensor | None) -> Tensor:
        """Check the inputs, and make a result over no elements, which needs no draw: zeros, or an empty tensor."""
        for name, tensor in inputs.items():
            self.expect_here(name, tensor)
        if out is not None:
            self._expect_out(out, shape, dtype)
            if out.size:
                out.storage.texture().fill(0.0)
        result: Tensor = self.device.zeros(shape, dtype) if out is None else out
        return result

    def _expect_out(self, out: Tensor, shape: Shape, dtype: str) -> None:
        if out.shape != shape or out.dtype != dtype:
            raise InputError(f"out is {list(out.shape)} of {out.dtype}; the result is {list(shape)} of {dtype}")
        self.expect_here("out", out)

    def named(self, name: str = "") -> Pass:
        """A draw of this name, by default the call's, for the builders of kernels."""
        return Pass(name or self.call, self.kernels, self.call)

    def step(
        self,
        op: str,
        inputs: Mapping[str, TensorSpec | None],
        outputs: Sequence[TensorSpec],
        name: str = "",
        **settings: Any,
    ) -> None:
        """Append a draw of an op that no plan of a model has; see :func:`glinfer.kernels.flat.draws.flat_draw`."""
        self.draw(flat_draw(self.named(name), op, inputs, outputs, **settings))

    def copy(self, name: str, x: TensorSpec, out: TensorSpec, **offsets: int) -> None:
        """Append a draw that copies x, or rows of it, to ``out``, rounding float32 to float16."""
        axes = [Axis(out.shape[0], 1, 0), Axis(out.shape[1], 0, 1)]
        self.draw(strided_copy(self.named(name), x, out, axes, **offsets))

    def draw(self, *draws: DrawSpec) -> None:
        """Append draws."""
        self._builder.draw(*draws)

    def run(self) -> Sequence[Tensor]:
        """Draw, and return the results in the order of their declaration."""
        for exact, target in self._rounded:
            self.copy(f"{target.name} in float16", exact, target)
        plan = self._builder.build(*self._written)
        session = Session(plan, {}, self.device.context, lent=self._lent, programs=self.device.programs)
        try:
            self.device.issue(session)
        finally:
            session.release()
        return [tensor for tensor, _ in self._results]

    def __enter__(self) -> Passes:
        """Begin the call."""
        self.device.collect()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Release the new results of a call that failed, and raise an InputError in place of a PlanError."""
        if error is None:
            return
        for tensor, given in self._results:
            if not given:
                tensor.release()
        if isinstance(error, PlanError):
            raise InputError(str(error)) from None
