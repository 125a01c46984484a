"""Fuzzing of every reader of files: whatever the bytes are, one clear error or a valid result, and nothing else."""
