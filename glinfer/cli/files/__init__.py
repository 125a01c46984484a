"""Commands that list, download, convert and export models."""
