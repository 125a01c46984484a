"""Checks of a renderer: textures keep their bits, and draws compute what float64 does."""
