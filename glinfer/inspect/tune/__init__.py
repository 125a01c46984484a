"""A measured search for the kernels that are fastest on a renderer."""
