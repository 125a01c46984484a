"""Tensors on a GPU and the kernels over them, one call at a time: the parts of ``glinfer.Device``."""
