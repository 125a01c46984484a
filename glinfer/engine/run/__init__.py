"""Sequences that run alone: their tokens, prompts, drafts and choices."""
