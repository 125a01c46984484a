"""How matrices, vectors, caches and packed weights lie in textures: pure NumPy, no GL."""
