"""npm libraries of pages, of which ``web/libraries`` has copies: their files, by library."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

TOKENIZERS, JINJA, MARKDOWN = "tokenizers", "jinja", "markdown-it"
_IN_MARKDOWN = ("entities", "linkify-it", "mdurl", "punycode", "uc.micro")
LIBRARIES = {
    TOKENIZERS: ("libraries/tokenizers.js", "libraries/LICENSE"),
    JINJA: ("libraries/jinja.js", "libraries/LICENSE.jinja"),
    MARKDOWN: ("libraries/markdown-it.js", *(f"libraries/LICENSE.{name}" for name in (MARKDOWN, *_IN_MARKDOWN))),
}
"""The files of each library, in ``web`` and in sites."""


def library_files(web: Path, libraries: Iterable[str]) -> dict[str, Path]:
    """The files of libraries in the folder of the page, by their path in a site."""
    return {name: web / name for library in libraries for name in LIBRARIES[library]}
