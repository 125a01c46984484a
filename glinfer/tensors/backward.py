"""Kernels for gradients."""

from __future__ import annotations

from typing import Any

from glinfer.errors import InputError
from glinfer.gl.layouts.flat import texels_for
from glinfer.kernels.spec import Op, register
from glinfer.tensors.base import Group, expect_floats
from glinfer.tensors.tensor import Tensor, is_integer

METHODS = ("scatter", "gather")


class Backward(Group):
    """Kernels that compute gradients."""

    def embedding_backward(
        self,
        ids: Tensor,
        grad: Tensor,
        vocab: int | None = None,
        *,
        method: str | None = None,
        into: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The gradient of an embedding table, from the gradients ``grad`` of the rows ``table[ids]``.

        ``scatter`` draws a point for every four elements of grad, and blending adds them. In ``gather`` every four
        elements of the table search all ids, for devices that cannot blend into 32-bit floats.

        Args:
            ids: int32 [...]; ids outside the table, such as −1 for padding, are skipped.
            grad: float32 or float16 [..., D]; NaN and infinite elements are skipped.
            vocab: rows of the table; optional with ``into``.
            method: ``scatter`` or ``gather``; by default ``scatter`` if the device can blend.
            into: float32 [vocab, D] to which the gradients are added in place, such as the sums of earlier calls; a new
                table of zeros by default. It must not share elements with ids and grad.

        Returns:
            Two float32 [vocab, D]: the sums (``into`` if given), and the number of elements that this call added to
            each, exact to 2^24. The device chooses the order of additions.
        """
        expect_floats(grad=grad)
        if ids.dtype != "int32" or grad.ndim < 1 or grad.shape[:-1] != ids.shape:
            raise InputError(
                f"ids is {list(ids.shape)} of {ids.dtype} and grad is {list(grad.shape)}; expected ids [...] of int32 "
                "and grad [..., D]"
            )
        if into is not None and vocab is None and into.ndim == 2:
            vocab = into.shape[0]
        if not is_integer(vocab) or vocab is None or vocab < 1:
            raise InputError(f"vocab is {vocab!r}; expected the number of rows of the table")
        shape = (int(vocab), grad.shape[-1])
        if into is not None and (into.shape != shape or into.dtype != "float32"):
            raise InputError(f"into is {list(into.shape)} of {into.dtype}; expected {list(shape)} of float32")
        blends = self._device.blends_floats
        method = ("scatter" if blends else "gather") if method is None else method
        if method not in METHODS:
            raise InputError(f"there is no method {method!r}; known: {', '.join(METHODS)}")
        if method == "scatter" and not blends:
            raise InputError("method is 'scatter', but this device cannot blend 32-bit floats; use 'gather'")
        passes = self._passes
        if 0 in shape or not grad.size:
            nothing = passes.zeros(shape, "float32", ids=ids, grad=grad, into=into)
            return passes.zeros(shape, "float32") if into is None else into, nothing
        inputs, found = {"ids": passes.read("ids", ids), "grad": passes.read("grad", grad)}, list[Tensor]()
        if into is None:
            sums, counts = passes.result("sums", shape), passes.result("counts", shape)
        else:
            found.append(into)
            sums = passes.changed("into", into)
            if method == "scatter":
                found.append(passes.zeros(shape, "float32"))
                counts = passes.changed("counts", found[1])
            else:  # a draw must not read its own target
                counts, inputs["before"] = passes.result("counts", shape), passes.scratch("before", *shape)
                passes.copy("before", sums, inputs["before"])
        rows, cols = inputs["ids"].shape
        defines = [("IDS_ROWS", rows), ("IDS_COLS", cols), ("OUT_ROWS", shape[0])]
        options: dict[str, Any] = {}
        if method == "scatter":
            points = rows * cols * texels_for(shape[1])
            options = {"cover": "scatter", "vertex": "common/scatter_add.vert", "points": points, "adds": True}
            options["clears"] = "all" if into is None else ""
        else:
            defines.append(("BEFORE", len(inputs) - 2))
        passes.step(f"{method}_add", inputs, [sums, counts], defines=defines, **options)
        found += passes.run()
        return found[0], found[1]


for _method in METHODS:
    register(Op(f"{_method}_add", ("ids", "grad"), ("before",), integers=("ids",)))
