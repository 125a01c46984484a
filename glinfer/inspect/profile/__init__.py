"""Profiles of a token or prompt, draw by draw."""
