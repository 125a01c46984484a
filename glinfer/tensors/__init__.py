"""The parts of ``glinfer.Device``: tensors on a GPU, and kernels that are called one at a time."""
