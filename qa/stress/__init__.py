"""Textures, kernels and tokens repeated under load, which have to give the same bits each time."""
