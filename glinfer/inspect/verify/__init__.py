"""Checks that textures hold what was uploaded and that draws compute what they should."""
