"""Types and headers of static files, for all servers of glinfer."""

from __future__ import annotations

from pathlib import PurePath

_TYPES = {
    # Some systems' tables declare JavaScript as plain text, which browsers do not run.
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".frag": "text/plain; charset=utf-8",
    ".vert": "text/plain; charset=utf-8",
    ".glsl": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
HEADERS = {
    "Cache-Control": "no-cache",  # a new export has the same address
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Isolated pages get finer timers.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""The headers of every response."""


def media_type(path: str | PurePath) -> str:
    """The type of a file by its suffix."""
    return _TYPES.get(PurePath(path).suffix.lower(), "application/octet-stream")
