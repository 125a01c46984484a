"""Turns the graph of a model into plans: plain for the reference, fused for the fast plans."""
