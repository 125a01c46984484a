"""Repeat textures, kernels and tokens under load, and compare bit for bit."""
