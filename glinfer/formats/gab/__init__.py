"""Gab's files: GAB1 checkpoints and BPE1 tokenizers."""
