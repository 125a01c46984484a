"""Instruments over plans, sessions and models: draw counts, texture checks, renderer reports, the demo."""
