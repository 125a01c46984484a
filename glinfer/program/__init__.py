"""Plans as data: checked, compiled, bound to GL by sessions, or run by the float64 oracle."""
