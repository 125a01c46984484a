"""The builder of fast plans: one token or many rows over the same weights and caches."""
