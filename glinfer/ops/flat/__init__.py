"""Ops over tensors of any shape, four elements a texel: what ``glinfer.Device`` and the reference plans draw."""
