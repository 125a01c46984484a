"""What users look at: draw counts, profiles, pictures, comparisons, checks and benchmarks."""
