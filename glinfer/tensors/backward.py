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
        """The gradient of an embedding table, where rows ``table[ids]`` were taken and have gradients ``grad``.

        ``scatter`` draws a point for every four elements of grad and has blending add them; ``gather`` has every four
        elements of the table look through all ids, for devices that cannot blend into 32-bit floats.

        Args:
            ids: int32 [...]; ids that are no row of the table, such as −1 for padding, are left out.
            grad: float32 or float16 [..., D]. Elements that are NaN or infinite are left out.
            vocab: rows of the table; with ``into`` it may be left out.
            method: ``scatter`` or ``gather``; left out, the first where the device can.
            into: float32 [vocab, D] to which the gradients are added in place, such as the sums of earlier calls; a new
                table of zeros where it is left out. It shares no elements with ids and grad.

        Returns:
            Both float32 [vocab, D]: the sums, which are ``into`` where it is given, and how many elements this call
            added to each, exact to 2^24. The order of additions is the device's.

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
            raise InputError(f"embedding_backward: vocab is {vocab!r}; expected how many rows the table has")
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
                "embedding_backward: method is 'scatter', but this device cannot blend 32-bit floats; take 'gather'"
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
            else:  # no draw may read what it writes
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
