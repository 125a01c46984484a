"""Tensors on a GPU and the kernels over them, one call at a time: what ``glinfer.Device`` is made of."""
