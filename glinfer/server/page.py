"""The page at /: the chat page of exported sites with this server's models, or the user's own folder."""

from __future__ import annotations

import posixpath
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from glinfer.export.page import PAGE, imports_of
from glinfer.export.site import ANSWERS, MARKDOWN_ANSWERS, web_root
from glinfer.export.static import HEADERS, media_type

_ENTRY, _OWN_ENTRY = 'src="app.js"', 'src="server/app.js"'
_THREAD = '<script type="module" src="page/thread.js"></script>\n'  # an exported site computes in it
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


class ChatPage:
    """The files of the chat page: the page, its style, and the modules that its script imports.

    Their ``paths`` are the same on every server, and need no key.
    """

    def __init__(self) -> None:
        """Read the files; FormatError if the web page is missing."""
        root = web_root()
        text = (root / PAGE).read_text(encoding="utf-8")
        assert _ENTRY in text
        assert _THREAD in text
        page = text.replace(_THREAD, "").replace(_ENTRY, _OWN_ENTRY).encode()
        self._files = {f"/{PAGE}": page, "/": page, "/style.css": (root / "style.css").read_bytes()}
        for name, file in _modules(root, "server/app.js").items():
            self._files[f"/{name}"] = file.read_bytes()
        self.paths = frozenset(self._files)

    async def answer(self, state: object, request: Request) -> Response:
        """Answer with the file at a path of ``paths``."""
        path = request.scope["path"]
        headers = {**HEADERS, "Content-Security-Policy": _POLICY}
        return Response(self._files[path], headers=headers, media_type=media_type(PAGE if path == "/" else path))


def _modules(root: Path, entry: str) -> dict[str, Path]:
    """A module of the page and its imports, by their paths in the page."""
    files = {ANSWERS: root / MARKDOWN_ANSWERS}
    found, waiting = dict[str, Path](), [entry]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = file = files.get(name, root / name)
            imported = imports_of(file.read_text(encoding="utf-8"))
            waiting += [posixpath.normpath(posixpath.join(posixpath.dirname(name), each)) for each in imported]
    return found


class Folder(StaticFiles):
    """The files of a folder, with the media types that browsers require."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """The answer with a file."""
        answer = await super().get_response(path, scope)
        name = PAGE if scope["path"].endswith("/") else scope["path"]
        answer.headers.update({**HEADERS, "Content-Type": media_type(name)})
        return answer
