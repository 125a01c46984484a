"""Draws as values: one module per family of passes, each with its DrawSpec builder, shape check and float64 oracle.

``published`` has the passes of Gab's reference plan, one float a texel; ``flat`` works on tensors of any shape, four
elements a texel; ``fused`` has the passes of the fast plans, over packed weights and caches. The other modules are
shared: the record of an op, the options of kernels, noise and rotary angles. Importing this package registers every
op.
"""

from glinfer.kernels import flat, fused, published
from glinfer.kernels.spec import OPS, DrawSpec, Op, TensorSpec

__all__ = ["OPS", "DrawSpec", "Op", "TensorSpec", "flat", "fused", "published"]
