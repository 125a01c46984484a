"""Kernels for gradients."""

from __future__ import annotations

from glinfer.errors import InputError
from glinfer.ops.flat.scatter import METHODS, add_gradients
from glinfer.tensors.base import Group, expect_floats
from glinfer.tensors.tensor import Tensor, is_whole


class Backward(Group):
    """Kernels that compute gradients."""

    def embedding_backward(
        self, ids: Tensor, grad: Tensor, vocab: int, *, method: str | None = None
    ) -> tuple[Tensor, Tensor]:
        """The gradient of an embedding table, where rows ``table[ids]`` were taken and have gradients ``grad``.

        ``scatter`` draws a point for every four elements of grad and has blending add them; ``gather`` has every four
        elements of the table look through all ids, for devices that cannot blend into 32-bit floats.

        Args:
            ids: int32 [...]; ids that are no row of the table, such as −1 for padding, are left out.
            grad: float32 or float16 [..., D]. Elements that are NaN or infinite are left out.
            vocab: rows of the table.
            method: ``scatter`` or ``gather``; left out, the first where the device can.

        Returns:
            Both float32 [vocab, D]: the sums, and how many elements were added to each, exact to 2^24. The order of
            additions is the device's.

        Raises:
            InputError: the shapes or types do not fit, there is no such method, or the device cannot blend.
        """
        expect_floats("embedding_backward", grad=grad)
        if ids.dtype != "int32" or grad.ndim < 1 or grad.shape[:-1] != ids.shape:
            raise InputError(
                f"embedding_backward: ids is {list(ids.shape)} of {ids.dtype} and grad is {list(grad.shape)}; expected "
                "ids [...] of int32 and grad [..., D]"
            )
        if not is_whole(vocab) or vocab < 1:
            raise InputError(f"embedding_backward: vocab is {vocab!r}; expected how many rows the table has")
        blends = self._device.blends_floats
        if method is None:
            method = "scatter" if blends else "gather"
        if method not in METHODS:
            raise InputError(f"embedding_backward: there is no method {method!r}; known: {', '.join(METHODS)}")
        if method == "scatter" and not blends:
            raise InputError(
                "embedding_backward: method is 'scatter', but this device cannot blend 32-bit floats; take 'gather'"
            )
        passes = self._passes("embedding_backward")
        places, gradients = passes.read("ids", ids), passes.read("grad", grad)
        shape = (int(vocab), grad.shape[-1])
        sums, counts = passes.result("sums", shape), passes.result("counts", shape)
        passes.draw(
            add_gradients(
                "embedding_backward",
                "embedding_backward",
                places,
                gradients,
                sums,
                counts,
                method=method,
                kernels=passes.kernels,
            )
        )
        table_grad, added = passes.run()
        return table_grad, added
