"""The base class of the groups of kernels, and the checks of their arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy.typing as npt

from glinfer.errors import InputError
from glinfer.ops.spec import DrawSpec, TensorSpec
from glinfer.tensors.passes import Passes, float_type
from glinfer.tensors.tensor import Shape, Tensor, TensorDevice, named

_DECLARED = ("Tensor", "Tensor | None", "Sequence[Tensor]")


class Group:
    """Kernels of one family, over the tensors of one device.

    Every public method of a subclass is a kernel; its arguments declared as Tensor are checked before it runs.
    """

    def __init_subclass__(cls) -> None:
        """Wrap every kernel in this check."""
        super().__init_subclass__()
        for name, method in list(vars(cls).items()):
            if not name.startswith("_") and inspect.isfunction(method):
                setattr(cls, name, _checked(method))

    def __init__(self, device: TensorDevice) -> None:
        """Run kernels on this device."""
        self._device = device

    def _passes(self, call: str) -> Passes:
        """Start a call to the kernel of this name."""
        self._device.collect()
        return Passes(self._device, call)

    def _draw(
        self,
        call: str,
        draw: Callable[..., DrawSpec],
        reads: Mapping[str, Tensor],
        shape: Shape,
        dtype: str = "float32",
        out: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Run a kernel of one draw and one result: ``draw(call, call, *reads, result, kernels=…, **options)``."""
        return self._one_draw(call, draw, reads, shape, dtype, out, Passes.result, options)

    def _compute(
        self,
        call: str,
        draw: Callable[..., DrawSpec],
        reads: Mapping[str, Tensor],
        shape: Shape,
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Run such a kernel in float32, and round the result to float16 if ``dtype`` is float16."""
        wanted = float_type(call, dtype)
        return self._one_draw(call, draw, reads, shape, wanted, out, Passes.computed, options)

    def _one_draw(
        self,
        call: str,
        draw: Callable[..., DrawSpec],
        reads: Mapping[str, Tensor],
        shape: Shape,
        dtype: str,
        out: Tensor | None,
        declare: Callable[..., TensorSpec],
        options: Mapping[str, Any],
    ) -> Tensor:
        passes = self._passes(call)
        if 0 in shape:
            return passes.empty(shape, dtype, out, **reads)
        sources = [passes.read(name, tensor) for name, tensor in reads.items()]
        target = declare(passes, "result", shape, dtype, out)
        passes.draw(draw(call, call, *sources, target, kernels=passes.kernels, **options))
        (result,) = passes.run()
        return result


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method to refuse other arguments than tensors, such as NumPy arrays, and begin errors with its name."""
    parameters = list(enumerate(inspect.signature(method).parameters.values()))
    declared = [(place, each) for place, each in parameters if each.annotation in _DECLARED]

    @named(method.__name__)
    @functools.wraps(method)
    def checked(*given: Any, **options: Any) -> Any:
        for place, parameter in declared:
            name = parameter.name
            if parameter.kind is not parameter.KEYWORD_ONLY and place < len(given):
                value = given[place]
            elif name in options:
                value = options[name]
            else:
                continue  # missing: Python itself refuses that if it is required
            many = parameter.annotation == "Sequence[Tensor]" and isinstance(value, (list, tuple))
            for each in value if many else [value]:
                if each is not None or parameter.annotation != "Tensor | None":
                    expect_tensor(method.__name__, name, each)
        return method(*given, **options)

    return checked


def expect_tensor(call: str, name: str, value: object) -> Tensor:
    """Accept a tensor.

    Raises:
        InputError: it is something else, such as a NumPy array; the message names the call and the argument.
    """
    if isinstance(value, Tensor):
        return value
    raise InputError(f"{call}: {name} is {type(value).__name__}; make a tensor of it with device.tensor({name})")


def expect_floats(call: str, **tensors: Tensor | None) -> None:
    """Accept tensors of floats that are not packed.

    Raises:
        InputError: a tensor has another type; the message names the call and the tensor.
    """
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in ("float32", "float16"):
            hint = "; dequantize it first" if tensor.packed else ""
            raise InputError(
                f"{call}: {name} is {list(tensor.shape)} of {tensor.dtype}; expected float32 or float16{hint}"
            )


def expect_same_shape(call: str, **tensors: Tensor | None) -> None:
    """Accept tensors of one shape.

    Raises:
        InputError: the shapes differ; the message names the call and both shapes.
    """
    given = {name: tensor.shape for name, tensor in tensors.items() if tensor is not None}
    (first, shape), *others = given.items()
    for name, other in others:
        if other != shape:
            raise InputError(f"{call}: {first} is {list(shape)} and {name} is {list(other)}; expected one shape")
