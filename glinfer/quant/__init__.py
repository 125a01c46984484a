"""Weight formats: the registry of all formats, GGML's blocks, their groups for products, and packed words."""
