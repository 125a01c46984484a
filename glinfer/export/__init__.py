"""Export a model as static files for browsers."""
