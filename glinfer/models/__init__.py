"""Plans (what to draw), sessions (a plan bound to GL), the oracle executor, and one file per model family."""
