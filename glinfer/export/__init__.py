"""Export of a model as static files that a browser runs."""
