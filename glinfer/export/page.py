"""An exported site as one page, which a browser opens as a file and which cannot fetch anything.

Modules go into an import map as ``data:`` URLs. Such a module cannot import ``./other.js``, so static imports are
renamed to the keys of the map; modules are otherwise unchanged. All other files are embedded as base64, where
``embedded.js`` lets ``fetch`` find them.

The page's Content-Security-Policy allows inline elements by their hash, scripts from ``data:`` URLs, and no network
access.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import posixpath
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from glinfer.errors import FormatError

PAGE = "index.html"
NOTE = "<!-- glinfer-web 1, single file -->"
"""The comment that identifies such a page near its start."""
_PREFIX = "glinfer-site/"
# A static import, or export … from, at the start of a line, with the quoted name.
_IMPORT = re.compile(r'^((?:import|export)\b[^;"\']*?)(["\'])(\.{1,2}/[^"\']+)\2', re.MULTILINE)
# Imports that an import map cannot serve, outside of comments.
_ODD = re.compile(r"""^(?!\s*(?:\*|/[*/])).*?(\bfrom\s*["']\.|\bimport\s*\(|\bimport\.meta\.url\b)""", re.MULTILINE)
_PIECE = 24 << 20  # bytes of a file in one element; a multiple of 3, so that base64 pieces can be joined


def single_file(site: Path, fetch: Path) -> Iterator[str]:
    """Embed a site into its page, and yield the page in pieces, after reading all files.

    ``fetch`` is the script that lets the page find its embedded files.
    """
    modules = {name: path for name, path in site_files(site) if name.endswith(".js")}
    imports = {f"{_PREFIX}{name}": _data_url(renamed(name, path)) for name, path in modules.items()}
    data = [(name, path.read_bytes()) for name, path in site_files(site) if not name.endswith((".js", ".css", ".html"))]
    import_map = json.dumps({"imports": imports})
    head = [f'<script type="importmap">{import_map}</script>']
    head += [element for name, content in data for element in _elements(name, content)]
    head.append(f'<script src="{_data_url(fetch.read_text(encoding="utf-8"))}"></script>')
    page = _Page(site, "\n".join(head), import_map)
    page.feed((site / PAGE).read_text(encoding="utf-8"))
    page.close()
    if page.head:
        raise FormatError(f"{PAGE} has no <script type=module>; expected one")
    if page.policy_place is None:
        raise FormatError(f"{PAGE} has no Content-Security-Policy; expected one")
    page.parts[page.policy_place] = f'<meta http-equiv="Content-Security-Policy" content="{page.policy()}">'
    return iter(page.parts)


def site_files(site: Path) -> list[tuple[str, Path]]:
    """The files of a site, sorted: path in the site, and path."""
    return [(path.relative_to(site).as_posix(), path) for path in sorted(site.rglob("*")) if path.is_file()]


def imports_of(module: str) -> list[str]:
    """The relative names of a module's imports, from its text."""
    return [name for _, _, name in _IMPORT.findall(module)]


def renamed(name: str, path: Path) -> str:
    """Rename a module's relative imports to the keys of the import map."""
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


def _hashed(inline: str) -> str:
    """The Content-Security-Policy source that allows an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}'"


def _elements(name: str, content: bytes) -> Iterator[str]:
    """Embed a file in inert elements, one for each piece."""
    for start in range(0, max(1, len(content)), _PIECE):
        piece = base64.b64encode(content[start : start + _PIECE]).decode()
        yield f'<script type="text/plain" data-file="{html.escape(name)}">{piece}</script>'


class _Page(HTMLParser):
    """Copies a page with its style sheets and modules embedded, and inserts ``head`` before the modules."""

    def __init__(self, site: Path, head: str, import_map: str) -> None:
        super().__init__(convert_charrefs=False)
        self.site, self.head, self.parts = site, head, list[str]()
        self.scripts, self.styles = [import_map], list[str]()
        self.policy_place: int | None = None

    def policy(self) -> str:
        """The Content-Security-Policy; call it after the whole page was read."""
        scripts, styles = (" ".join(map(_hashed, texts)) for texts in (self.scripts, self.styles))
        return (
            f"default-src 'none'; script-src data: {scripts}; style-src {styles}; img-src data:; base-uri 'none'; "
            "form-action 'none'"
        )

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "meta" and values.get("http-equiv") == "Content-Security-Policy":
            self.policy_place = len(self.parts)
        source = values.get("href") if tag == "link" else values.get("src")
        local = source is not None and not re.match(r"[a-z]+:|#|//", source)
        if not local:
            self.parts.append(self.get_starttag_text() or "")
        elif not (self.site / str(source)).is_file():
            raise FormatError(f"{PAGE} names {source}, which is not in the site")
        elif tag == "link" and values.get("rel") == "stylesheet":
            self.styles.append(f"\n{(self.site / str(source)).read_text(encoding='utf-8')}")
            self.parts.append(f"<style>{self.styles[-1]}</style>")
        elif tag == "script" and values.get("type") == "module":
            name = posixpath.normpath(str(source))
            # The import map precedes all modules.
            self.scripts.append(f'import "{_PREFIX}{name}";')
            self.parts += [self.head, "\n", f'<script type="module">{self.scripts[-1]}']
            self.head = ""
        else:
            raise FormatError(f"{PAGE} names {source} in <{tag}>, which cannot be embedded in a page")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self.parts.append(f"</{tag}>")

    def handle_decl(self, decl: str) -> None:
        self.parts += [f"<!{decl}>", "\n", NOTE]

    def handle_data(self, data: str) -> None:
        self.parts.append(data)

    def handle_comment(self, data: str) -> None:
        self.parts.append(f"<!--{data}-->")

    def handle_entityref(self, name: str) -> None:
        self.parts.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.parts.append(f"&#{name};")
