"""Texture layouts of matrices, vectors, caches and packed weights: pure NumPy, no GL."""
