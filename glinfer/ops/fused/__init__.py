"""The fused ops of the fast plans: packed weights, caches, many rows in a pass."""
