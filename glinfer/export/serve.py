"""A server of static files for an exported site, on the loopback address."""

from __future__ import annotations

import functools
import os
import sys
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

from glinfer.errors import InputError
from glinfer.export.site import is_export
from glinfer.export.static import HEADERS, media_type
from glinfer.formats.files import reason, shown

HOST = "127.0.0.1"


class _Handler(SimpleHTTPRequestHandler):
    """Serves files of one folder with the types that browsers require; folders are not listed."""

    server_version, sys_version = "glinfer", ""

    def guess_type(self, path: str | PathLike[str]) -> str:
        """Return the type of a file by its suffix."""
        return media_type(os.fspath(path))

    def end_headers(self) -> None:
        """Add the headers of every answer."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def list_directory(self, path: str | PathLike[str]) -> BytesIO | None:
        """Refuse to list a folder."""
        self.send_error(HTTPStatus.NOT_FOUND, "there is no such file")
        return None

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    """Ignores browsers that disconnect in the middle of a file."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors but disconnections."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def site_server(folder: str | PathLike[str], port: int = 0) -> ThreadingHTTPServer:
    """Make a server of an exported site, bound to the loopback address and not yet serving.

    Args:
        folder: an output of ``glinfer export-web``.
        port: a port, or 0 for any free one.

    Raises:
        InputError: the folder is not an exported site, or the port is taken.
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
    """Return the address for a browser."""
    return f"http://{HOST}:{server.server_address[1]}/"
