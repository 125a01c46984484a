"""Comparison of two models, plans, weight formats or renderers."""
