"""Batch files: requests from one JSON-lines file, results into another, by one device, several, or a cluster."""
