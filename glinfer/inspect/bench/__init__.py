"""Benchmarks: interleaved timing of engines, medians after a warm-up."""
