"""How fast models run: engines timed in turns, medians after a warm-up."""
