"""Kernels for gradients."""

from __future__ import annotations

from glinfer.errors import InputError
from glinfer.ops.flat.movement import strided_copy
from glinfer.ops.flat.scatter import METHODS, add_gradients
from glinfer.ops.flat.strided import Axis
from glinfer.tensors.base import Group, expect_floats
from glinfer.tensors.tensor import Tensor, is_whole


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

        Raises:
            InputError: the shapes or types do not fit, there is no such method, or the device cannot blend.
        """
        expect_floats("embedding_backward", grad=grad)
        if ids.dtype != "int32" or grad.ndim < 1 or grad.shape[:-1] != ids.shape:
            raise InputError(
                f"embedding_backward: ids is {list(ids.shape)} of {ids.dtype} and grad is {list(grad.shape)}; expected "
                "ids [...] of int32 and grad [..., D]"
            )
        if into is not None and vocab is None and into.ndim == 2:
            vocab = into.shape[0]
        if not is_whole(vocab) or vocab is None or vocab < 1:
            raise InputError(f"embedding_backward: vocab is {vocab!r}; expected the number of rows of the table")
        shape = (int(vocab), grad.shape[-1])
        if into is not None and (into.shape != shape or into.dtype != "float32"):
            raise InputError(
                f"embedding_backward: into is {list(into.shape)} of {into.dtype}; expected {list(shape)} of float32"
            )
        blends = self._device.blends_floats
        if method is None:
            method = "scatter" if blends else "gather"
        if method not in METHODS:
            raise InputError(f"embedding_backward: there is no method {method!r}; known: {', '.join(METHODS)}")
        if method == "scatter" and not blends:
            raise InputError(
                "embedding_backward: method is 'scatter', but this device cannot blend 32-bit floats; use 'gather'"
            )
        call = "embedding_backward"
        passes = self._passes(call)
        if 0 in shape or not grad.size:
            if into is None:
                into = passes.zeros(shape, "float32", ids=ids, grad=grad)
            passes.expect_here("into", into)
            return into, self._passes(call).zeros(shape, "float32")
        places, gradients, before = passes.read("ids", ids), passes.read("grad", grad), None
        found: list[Tensor] = []
        if into is None:
            sums, counts = passes.result("sums", shape), passes.result("counts", shape)
        else:
            found.append(into)
            sums = passes.changed("into", into)
            if method == "scatter":
                found.append(self._passes(call).zeros(shape, "float32"))
                counts = passes.changed("counts", found[1])
            else:  # a draw must not read its own target
                counts, before = passes.result("counts", shape), passes.scratch("before", *shape)
                axes = [Axis(shape[0], 1, 0), Axis(shape[1], 0, 1)]
                passes.draw(strided_copy("before", call, sums, before, axes, kernels=passes.kernels))
        passes.draw(
            add_gradients(
                call,
                call,
                places,
                gradients,
                sums,
                counts,
                method=method,
                accumulates=into is not None,
                before=before,
                kernels=passes.kernels,
            )
        )
        found += passes.run()
        return found[0], found[1]
