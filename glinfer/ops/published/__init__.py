"""The ops of Gab's published passes: one float a texel, one pass an operation."""
