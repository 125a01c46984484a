"""Cases for every kernel of ``device.ops``: inputs, float64 results and a timed call. One module a family."""
