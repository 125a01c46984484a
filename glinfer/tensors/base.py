"""The base class of the groups of kernels, and the checks of their arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import numpy.typing as npt

from glinfer.errors import InputError, check_flag
from glinfer.kernels.published.linear import ACTIVATIONS
from glinfer.kernels.spec import DrawSpec, TensorSpec
from glinfer.tensors.passes import Passes
from glinfer.tensors.tensor import FLOATS, Shape, Tensor, TensorDevice, is_integer, named, type_name

_DECLARED = ("Tensor", "Tensor | None", "Sequence[Tensor]")


class Result(TypedDict, total=False):
    """Options of most kernels: the result's type, and the tensor to write to.

    Attributes:
        dtype: ``float32``, which is the default, or ``float16``, to which a last draw rounds.
        out: a tensor of the result's shape and type that the call does not read; a new one by default.
    """

    dtype: npt.DTypeLike
    out: Tensor | None


_RESULT = [
    inspect.Parameter("dtype", inspect.Parameter.KEYWORD_ONLY, default="float32", annotation="npt.DTypeLike"),
    inspect.Parameter("out", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="Tensor | None"),
]
Build = Callable[..., None]
"""Appends the draws of a call: (passes, the inputs and results as specs by name); absent inputs are left out."""


class Group:
    """Kernels of one family, over the tensors of one device.

    Every public method of a subclass is a kernel. Before it runs, arguments declared as Tensor or bool are checked and
    ``_passes`` starts its draws. Its errors become InputError and begin with its name, so checks leave the name out.
    """

    def __init_subclass__(cls) -> None:
        """Wrap every kernel."""
        super().__init_subclass__()
        for name, method in list(vars(cls).items()):
            if not name.startswith("_") and inspect.isfunction(method):
                setattr(cls, name, _kernel(method))

    def __init__(self, device: TensorDevice) -> None:
        """Run kernels on this device."""
        self._device = device
        self._passes = Passes(device, "")

    def _draw(
        self,
        draw: Callable[..., DrawSpec],
        reads: Mapping[str, Tensor | None],
        shape: Shape,
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
        *,
        exact: bool = False,
        **options: Any,
    ) -> Tensor:
        """Run a kernel of one draw: ``draw(passes.named(), **reads, out=…, **options)``."""

        def build(passes: Passes, **specs: TensorSpec) -> None:
            passes.draw(draw(passes.named(), **specs, **options))

        return self._run(build, reads, shape, dtype, out, exact=exact)

    def _run(
        self,
        build: Build,
        reads: Mapping[str, Tensor | None],
        shape: Shape,
        dtype: npt.DTypeLike = "float32",
        out: Tensor | None = None,
        *,
        exact: bool = False,
    ) -> Tensor:
        """Run a kernel with one result, called ``out``; an ``exact`` kernel writes ``dtype`` itself."""
        types = {"out": str(dtype)} if exact else {}
        (result,) = self._results(build, reads, {"out": shape}, dtype, types, out)
        return result

    def _results(
        self,
        build: Build,
        reads: Mapping[str, Tensor | None],
        shapes: Mapping[str, Shape],
        dtype: npt.DTypeLike = "float32",
        types: Mapping[str, str] | None = None,
        out: Tensor | None = None,
    ) -> Sequence[Tensor]:
        """Run a kernel: zeros if an input or a result has no elements, as they are sums of nothing.

        Results in ``types`` are written in that type. All others are computed in float32 and rounded to ``dtype``.
        """
        passes, types, targets = self._passes, types or {}, dict[str, TensorSpec]()
        wanted = {name: types[name] if name in types else type_name(dtype, FLOATS) for name in shapes}
        empty = any(tensor is not None and tensor.size == 0 for tensor in reads.values())
        if empty or any(0 in shape for shape in shapes.values()):
            return [passes.zeros(shape, wanted[name], out, **reads) for name, shape in shapes.items()]
        specs = {name: passes.read(name, tensor) for name, tensor in reads.items() if tensor is not None}
        for name, shape in shapes.items():
            targets[name] = (passes.result if name in types else passes.computed)(name, shape, wanted[name], out)
        build(passes, **specs, **targets)
        return passes.run()


def _kernel(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method: check for tensors and flags, start its draws, and if it fails release its results and name it."""
    signature = inspect.signature(method)
    parameters = list(signature.parameters.values())
    if parameters[-1].kind is inspect.Parameter.VAR_KEYWORD:
        signature = signature.replace(parameters=[*parameters[:-1], *_RESULT])
    declared = {each.name: each.annotation for each in signature.parameters.values() if each.annotation in _DECLARED}
    flags = [each.name for each in signature.parameters.values() if each.annotation == "bool"]

    @named(method.__name__)
    @functools.wraps(method)
    def kernel(group: Group, *given: Any, **options: Any) -> Any:
        try:
            arguments = signature.bind_partial(group, *given, **options).arguments
        except TypeError as error:
            raise TypeError(f"{method.__name__}() {error}") from None
        for name, kind in declared.items():
            if name not in arguments:
                continue  # Python itself refuses that if it is required
            value = arguments[name]
            many = kind == "Sequence[Tensor]" and isinstance(value, (list, tuple))
            for each in value if many else [value]:
                if each is not None or kind != "Tensor | None":
                    expect_tensor(name, each)
        for name in flags:
            if name in arguments:
                check_flag(name, arguments[name])
        outer = group._passes
        try:
            with Passes(group._device, method.__name__) as group._passes:
                return method(group, *given, **options)
        finally:
            group._passes = outer

    kernel.__signature__ = signature  # type: ignore[attr-defined]
    return kernel


def expect_tensor(name: str, value: object) -> None:
    """Raise an InputError for anything but a tensor, such as a NumPy array."""
    if not isinstance(value, Tensor):
        raise InputError(f"{name} is {type(value).__name__}; make a tensor of it with device.tensor({name})")


def expect_floats(**tensors: Tensor | None) -> None:
    """Raise an InputError for tensors of other types than float32 and float16."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in FLOATS:
            hint = "; dequantize it first" if tensor.packed else ""
            raise InputError(f"{name} is {list(tensor.shape)} of {tensor.dtype}; expected float32 or float16{hint}")


def expect_rows(**tensors: Tensor) -> None:
    """Raise an InputError for tensors of other types than floats, or without axes."""
    expect_floats(**tensors)
    for name, tensor in tensors.items():
        if not tensor.shape:
            raise InputError(f"{name} is a single number, without axes; expected at least one axis")


def expect_integers(least: int, **numbers: int) -> None:
    """Raise an InputError for anything but integers from ``least`` on."""
    for name, number in numbers.items():
        if not is_integer(number) or number < least:
            raise InputError(f"{name} is {number!r}; expected an integer of at least {least}")


def expect_same_shape(**tensors: Tensor | None) -> None:
    """Raise an InputError for tensors of different shapes."""
    (first, one), *others = ((name, tensor) for name, tensor in tensors.items() if tensor is not None)
    for name, tensor in others:
        if tensor.shape != one.shape:
            raise InputError(f"{first} is {list(one.shape)} and {name} is {list(tensor.shape)}; expected one shape")


def expect_activation(activation: str) -> None:
    """Raise an InputError for a name without an activation."""
    if activation not in ACTIVATIONS:
        raise InputError(f"there is no activation {activation!r}; known: {', '.join(ACTIVATIONS)}")
