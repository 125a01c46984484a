"""The ops of Gab's published passes, one float a texel and one pass an operation."""

from glinfer.ops.published import attention, embed, layer_norm, linear, softmax

__all__ = ["attention", "embed", "layer_norm", "linear", "softmax"]
