"""Weight formats: GGML blocks, and how shaders read them."""
