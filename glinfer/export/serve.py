"""A server for an exported site on this machine alone: static files, and nothing else."""

from __future__ import annotations

import functools
import sys
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

from glinfer.errors import InputError
from glinfer.export.site import is_export
from glinfer.formats.files import reason, shown

HOST = "127.0.0.1"
_TYPES = {
    # The system's own table is not asked: on some systems it calls JavaScript plain text, which no browser runs.
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".frag": "text/plain; charset=utf-8",
    ".vert": "text/plain; charset=utf-8",
    ".glsl": "text/plain; charset=utf-8",
}
_HEADERS = {
    "Cache-Control": "no-cache",  # a new export is at the same address
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Alone in its process, a page may measure times more finely.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class _Handler(SimpleHTTPRequestHandler):
    """Files of one folder, with types that browsers insist on; folders are not listed."""

    server_version, sys_version = "glinfer", ""

    def guess_type(self, path: str | PathLike[str]) -> str:
        """The type of a file by its ending, from this table alone."""
        return _TYPES.get(Path(path).suffix.lower(), "application/octet-stream")

    def end_headers(self) -> None:
        """Add what every answer has."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def list_directory(self, path: str | PathLike[str]) -> BytesIO | None:
        """Nobody needs a list."""
        self.send_error(HTTPStatus.NOT_FOUND, "there is no such file")
        return None

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    """Says nothing of browsers that go away in the middle of a file."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Complain of everything else."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def site_server(folder: str | PathLike[str], port: int = 0) -> ThreadingHTTPServer:
    """A server of an exported site, bound to the loopback address and not yet serving.

    Args:
        folder: what ``glinfer export-web`` has written.
        port: 0 for any that is free.

    Raises:
        InputError: the folder is no exported site, or the port cannot be had.
    """
    site = Path(folder)
    if not is_export(site):
        raise InputError(f"{shown(folder)}: this is no exported site; write one with 'glinfer export-web MODEL OUT/'")
    try:
        return _Server((HOST, port), functools.partial(_Handler, directory=str(site)))
    except (OSError, OverflowError) as error:
        said = reason(error) if isinstance(error, OSError) else "there is no such port"
        raise InputError(f"cannot serve on port {port}: {said}; name another with --port, or 0 for any") from None


def address(server: ThreadingHTTPServer) -> str:
    """Where a browser finds it."""
    return f"http://{HOST}:{server.server_address[1]}/"
