"""Batch files: prompts from one JSON-lines file, results into another."""
