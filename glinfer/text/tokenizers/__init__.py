"""The tokenizers of GGUF files and of Hugging Face models."""
