"""A server of static files for an exported site, on the loopback address.

It supports ranges of bytes (RFC 9110, 14) and entity tags, by which browsers check whether a cached file is current.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from glinfer.errors import InputError
from glinfer.export.site import is_export
from glinfer.export.static import HEADERS, media_type
from glinfer.formats.files import reason, shown

HOST = "127.0.0.1"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class _Part:
    """A file object for the next ``length`` bytes of a file."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        self._file, self._left = file, length

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, none at the end."""
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def byte_range(asked: str | None, size: int) -> range | None:
    """Return the requested bytes of a file of ``size`` bytes, by its Range header.

    Returns None for the whole file: without a header, or with any other header than a single range of bytes, which a
    server may ignore. An empty range means that the request is outside the file.
    """
    found = _RANGE.fullmatch(asked.strip()) if asked is not None else None
    if found is None or found[0] == "bytes=-":
        return None
    first, last = found.groups()
    if not first:
        return range(max(0, size - int(last)), size)
    if last and int(last) < int(first):
        return None
    return range(int(first), min(size, int(last) + 1) if last else size)


class _Handler(SimpleHTTPRequestHandler):
    """Serves files of one folder with the types that browsers require; lists no folders."""

    server_version, sys_version = "glinfer", ""

    def guess_type(self, path: str | PathLike[str]) -> str:
        """Return the type of a file by its suffix."""
        return media_type(os.fspath(path))

    def end_headers(self) -> None:
        """Add the headers of every response."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def send_head(self) -> Any:
        """Send status and headers, and return a file object for the body, or None."""
        path = Path(self.translate_path(self.path))
        if path.is_dir() or self.path.split("?")[0].endswith("/"):
            return super().send_head()  # a folder's page, a redirection, or an error
        try:
            file = path.open("rb")
        except (OSError, ValueError):  # a name with a zero byte is a ValueError
            self.send_error(HTTPStatus.NOT_FOUND, "there is no such file")
            return None
        try:
            return self._head_of(file, path)
        except BaseException:
            file.close()
            raise

    def _head_of(self, file: BinaryIO, path: Path) -> Any:
        about = os.fstat(file.fileno())
        tag, size = f'"{about.st_mtime_ns:x}-{about.st_size:x}"', about.st_size
        known = [each.strip().removeprefix("W/") for each in self.headers.get("If-None-Match", "").split(",")]
        same = self.headers.get("If-Range", tag) == tag
        wanted = byte_range(self.headers.get("Range"), size) if same else None
        status = HTTPStatus.OK if wanted is None else HTTPStatus.PARTIAL_CONTENT
        if tag in known or "*" in known:
            status, length = HTTPStatus.NOT_MODIFIED, 0
        elif wanted is not None and not wanted:
            status, length = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, 0
        else:
            length = size if wanted is None else len(wanted)
        self.send_response(status)
        if status is HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            self.send_header("Content-Range", f"bytes */{size}")
        elif status is HTTPStatus.PARTIAL_CONTENT and wanted is not None:
            self.send_header("Content-Range", f"bytes {wanted.start}-{wanted.stop - 1}/{size}")
            file.seek(wanted.start)
        if status is not HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", self.guess_type(path))
            self.send_header("Content-Length", str(length))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", tag)
        self.send_header("Last-Modified", self.date_time_string(int(about.st_mtime)))
        self.end_headers()
        return _Part(file, length)

    def list_directory(self, path: str | PathLike[str]) -> BytesIO | None:
        """Refuse to list a folder."""
        self.send_error(HTTPStatus.NOT_FOUND, "there is no such file")
        return None

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    """A server that ignores disconnecting browsers."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report errors except disconnections."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def site_server(folder: str | PathLike[str], port: int = 0) -> ThreadingHTTPServer:
    """Make a server of an exported site, bound to the loopback address and not yet serving; port 0 is any free one."""
    site = Path(folder)
    if site.is_file():
        raise InputError(f"{shown(folder)}: this is a file; open it in a browser, or give the folder of a site")
    if not is_export(site):
        raise InputError(f"{shown(folder)}: this is not an exported site; make one with 'glinfer export-web MODEL OUT'")
    try:
        return _Server((HOST, port), functools.partial(_Handler, directory=str(site)))
    except (OSError, OverflowError) as error:
        said = reason(error) if isinstance(error, OSError) else "there is no such port"
        raise InputError(f"cannot serve on port {port}: {said}; name another with --port, or 0 for any") from None


def address(server: ThreadingHTTPServer) -> str:
    """Return the address for a browser."""
    return f"http://{HOST}:{server.server_address[1]}/"
