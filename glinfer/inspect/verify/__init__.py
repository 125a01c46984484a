"""Checks of a renderer: textures keep their bits, and draws agree with float64."""
