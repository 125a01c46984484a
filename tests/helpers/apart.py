"""Families whose plans differ in kind, for tests of what goes on around plans; tests of plans take every family."""

from __future__ import annotations

from glinfer.families import DECODERS

APART = ("gab", "gpt2", "mistral", "gemma3_text", "olmo2")
"""Gab's own, learned positions and biases, windows, norms on both sides, and norms behind branches alone."""

assert set(APART) <= set(DECODERS)
