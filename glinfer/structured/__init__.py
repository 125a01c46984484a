"""Texts that are valid by construction: which tokens a JSON schema, an expression or a grammar allows next."""
