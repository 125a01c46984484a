"""One set of checks on many renderers, each in an environment made for it."""
