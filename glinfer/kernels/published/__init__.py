"""The ops of Gab's published passes, one float a texel and one pass an operation."""
# ruff: noqa: F401 (an import registers the ops of its module)

from glinfer.kernels.published import attention, linear, rows
