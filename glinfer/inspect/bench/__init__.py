"""Benchmarks: engines timed in turns, medians after a warm-up."""
