"""One module per family of passes; importing this package registers every op."""

from glinfer.ops import attention, embed, linear, norm, softmax
from glinfer.ops.spec import OPS, DrawSpec, Op, TensorSpec

__all__ = ["OPS", "DrawSpec", "Op", "TensorSpec", "attention", "embed", "linear", "norm", "softmax"]
