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
from collections.abc import Iterable, Iterator
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
_LINK = re.compile(r'<link rel="stylesheet" href="([^"]+)">')
_SCRIPT = re.compile(r'<script type="module" src="([^"]+)"></script>')
_MODULE = '<script type="module">'
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="[^"]*">')
_FETCHED = re.compile(r'<(?!a )[^>]*\b(?:src|href)="(?!data:|#)[^"]*"')
_PIECE = 24 << 20  # bytes of a file in one element; a multiple of 3, so that base64 pieces can be joined


def single_file(site: Path, fetch: Path) -> Iterator[str]:
    """Embed a site into its page, and yield the page in pieces, after reading all files.

    ``fetch`` is the script that lets the page find its embedded files.
    """
    modules = {name: path for name, path in site_files(site) if name.endswith(".js")}
    imports = {f"{_PREFIX}{name}": _data_url(renamed(name, path)) for name, path in modules.items()}
    data = [(name, path.read_bytes()) for name, path in site_files(site) if not name.endswith((".js", ".css", ".html"))]
    scripts, styles = [json.dumps({"imports": imports})], list[str]()
    head = [f'<script type="importmap">{scripts[0]}</script>']
    head += [element for name, content in data for element in _elements(name, content)]
    head.append(f'<script src="{_data_url(fetch.read_text(encoding="utf-8"))}"></script>')

    def style(found: re.Match[str]) -> str:
        styles.append("\n" + (site / found[1]).read_text(encoding="utf-8"))
        return f"<style>{styles[-1]}</style>"

    def module(found: re.Match[str]) -> str:
        assert found[1] in modules
        scripts.append(f'import "{_PREFIX}{found[1]}";')
        return f"{_MODULE}{scripts[-1]}</script>"

    page = (site / PAGE).read_text(encoding="utf-8").replace(">", f">\n{NOTE}", 1)  # after the doctype
    page = _LINK.sub(style, page)
    page = _SCRIPT.sub(module, page)
    page, policies = _POLICY.subn(_policy(scripts, styles), page)
    if left := _FETCHED.search(page):
        raise FormatError(f"{PAGE} has {left[0]}, which cannot be embedded in a page")
    if policies != 1 or _MODULE not in page:
        raise FormatError(f"{PAGE} needs a Content-Security-Policy and <script type=module>; expected one of each")
    at = page.index(_MODULE)  # the import map precedes all modules
    return iter((page[:at], "\n".join(head), "\n", page[at:]))


def _policy(scripts: Iterable[str], styles: Iterable[str]) -> str:
    """The Content-Security-Policy that allows these inline scripts and styles, and no network access."""
    hashed = (" ".join(map(_hashed, texts)) for texts in (scripts, styles))
    content = (
        "default-src 'none'; script-src data: {}; style-src {}; img-src data:; base-uri 'none'; form-action 'none'"
    ).format(*hashed)
    return f'<meta http-equiv="Content-Security-Policy" content="{content}">'


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
