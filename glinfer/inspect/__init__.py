"""Tools to inspect models and renderers: draw counts, profiles, pictures, comparisons, checks, benchmarks."""
