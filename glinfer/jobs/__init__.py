"""Batch files: requests in one JSON-lines file, results in another, run on one device, several, or a cluster."""
