"""A model as a folder of static files that a browser runs."""
