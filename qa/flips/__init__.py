"""Single bits flipped in the textures of models that run, and whether the comparison of textures finds each."""
