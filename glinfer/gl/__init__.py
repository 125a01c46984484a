"""Everything that touches OpenGL: context, textures, programs and the replay loop. Knows no transformer."""
