"""An exported site as one page, for a browser that opens it from a file and may then fetch nothing.

Modules go into an import map as ``data:`` URLs. A module in such a URL cannot say ``./other.js``, which would be
relative to nothing, so static imports are renamed to what the map calls the file; that is the one thing that changes in
them. All other files are embedded as base64, and ``embedded.js`` makes ``fetch`` find them there.
"""

from __future__ import annotations

import base64
import html
import json
import posixpath
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from glinfer.errors import FormatError

PAGE = "index.html"
_PREFIX = "glinfer-site/"
# A whole static import or export … from at the beginning of a line, up to the quotes of what it names.
_IMPORT = re.compile(r'^((?:import|export)\b[^;"\']*?)(["\'])(\.{1,2}/[^"\']+)\2', re.MULTILINE)
# What an import map cannot serve, outside of comments.
_ODD = re.compile(r"""^(?!\s*(?:\*|/[*/])).*?(\bfrom\s*["']\.|\bimport\s*\(|\bimport\.meta\.url\b)""", re.MULTILINE)
_PIECE = 24 << 20  # bytes of a file in one element; a multiple of 3, so that pieces of base64 can be joined


def single_file_note() -> str:
    """What tells such a page from others, near its beginning."""
    return "<!-- glinfer-web 1, single file -->"


def single_file(site: Path, fetch: Path) -> Iterator[str]:
    """The page of an exported site with everything in it, piece by piece; the files are read before the first one.

    ``fetch`` is the script that lets the page find its files.

    Raises:
        FormatError: the page names a file that is not in the site, or a module cannot be embedded.
    """
    modules = {name: path for name, path in _files(site) if name.endswith(".js")}
    imports = {f"{_PREFIX}{name}": _data_url(renamed(name, path)) for name, path in modules.items()}
    data = [(name, path.read_bytes()) for name, path in _files(site) if not name.endswith((".js", ".css", ".html"))]
    head = [f'<script type="importmap">{json.dumps({"imports": imports})}</script>']
    head += [element for name, content in data for element in _elements(name, content)]
    head.append(f'<script src="{_data_url(fetch.read_text(encoding="utf-8"))}"></script>')
    page = _Page(site, "\n".join(head))
    page.feed((site / PAGE).read_text(encoding="utf-8"))
    page.close()
    if page.head:
        raise FormatError(f"{PAGE} has no <script type=module>, before which everything would be embedded")
    return iter(page.parts)


def _files(site: Path) -> list[tuple[str, Path]]:
    return [(path.relative_to(site).as_posix(), path) for path in sorted(site.rglob("*")) if path.is_file()]


def renamed(name: str, path: Path) -> str:
    """A module with its relative imports named as the import map does.

    Raises:
        FormatError: it imports in a way that no import map can serve.
    """
    folder = posixpath.dirname(name)

    def whole(match: re.Match[str]) -> str:
        return f'{match[1]}"{_PREFIX}{posixpath.normpath(posixpath.join(folder, match[3]))}"'

    text = _IMPORT.sub(whole, path.read_text(encoding="utf-8"))
    if odd := _ODD.search(text):
        line = text.count("\n", 0, odd.start(1)) + 1
        raise FormatError(f"{name}:{line}: {odd[1]!r} cannot be embedded; import statically, at a line's start")
    return text


def _data_url(module: str) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(module.encode()).decode()}"


def _elements(name: str, content: bytes) -> Iterator[str]:
    """A file as elements that no browser runs, one for each piece."""
    for start in range(0, max(1, len(content)), _PIECE):
        piece = base64.b64encode(content[start : start + _PIECE]).decode()
        yield f'<script type="text/plain" data-file="{html.escape(name)}">{piece}</script>'


class _Page(HTMLParser):
    """Writes a page as it is, but for its style and its modules, before which it puts ``head``."""

    def __init__(self, site: Path, head: str) -> None:
        super().__init__(convert_charrefs=False)
        self.site, self.head, self.parts = site, head, list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        source = values.get("href") if tag == "link" else values.get("src")
        local = source is not None and not re.match(r"[a-z]+:|#|//", source)
        if not local:
            self.parts.append(self.get_starttag_text() or "")
        elif not (self.site / str(source)).is_file():
            raise FormatError(f"{PAGE} names {source}, which is not in the site")
        elif tag == "link" and values.get("rel") == "stylesheet":
            self.parts.append(f"<style>\n{(self.site / str(source)).read_text(encoding='utf-8')}</style>")
        elif tag == "script" and values.get("type") == "module":
            name = posixpath.normpath(str(source))
            # No module may come before the map.
            self.parts += [self.head, "\n", f'<script type="module">import "{_PREFIX}{name}";']
            self.head = ""
        else:
            raise FormatError(f"{PAGE} names {source} in <{tag}>, which cannot be embedded in a page")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self.parts.append(f"</{tag}>")

    def handle_decl(self, decl: str) -> None:
        self.parts += [f"<!{decl}>", "\n", single_file_note()]

    def handle_data(self, data: str) -> None:
        self.parts.append(data)

    def handle_comment(self, data: str) -> None:
        self.parts.append(f"<!--{data}-->")

    def handle_entityref(self, name: str) -> None:
        self.parts.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.parts.append(f"&#{name};")
