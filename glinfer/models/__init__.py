"""Plans and their builders, sessions that bind a plan to GL, and the oracle executor."""
