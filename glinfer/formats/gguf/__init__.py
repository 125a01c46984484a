"""GGUF files: metadata, tensors, vocabularies, and writing them."""
