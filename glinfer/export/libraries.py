"""npm libraries for pages: where an export finds them, and their names in a site."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from glinfer.errors import FormatError

TOKENIZERS, JINJA, MARKDOWN = "tokenizers", "jinja", "markdown-it"
_SCOPE = "node_modules/@huggingface"
LIBRARIES = {
    TOKENIZERS: {
        "libraries/tokenizers.js": f"{_SCOPE}/tokenizers/dist/tokenizers.min.mjs",
        "libraries/LICENSE": f"{_SCOPE}/tokenizers/LICENSE",
    },
    JINJA: {
        "libraries/jinja.js": f"{_SCOPE}/jinja/dist/index.js",
        "libraries/LICENSE.jinja": f"{_SCOPE}/jinja/LICENSE",
    },
    MARKDOWN: {
        "libraries/markdown-it.js": "node_modules/markdown-it/dist/browser/markdown-it.esm.min.mjs",
        "libraries/LICENSE.markdown-it": "node_modules/markdown-it/LICENSE",
        # Packages bundled in that file.
        "libraries/LICENSE.entities": "node_modules/entities/LICENSE",
        "libraries/LICENSE.linkify-it": "node_modules/linkify-it/LICENSE",
        "libraries/LICENSE.mdurl": "node_modules/mdurl/LICENSE",
        "libraries/LICENSE.punycode": "node_modules/punycode.js/LICENSE-MIT.txt",
        "libraries/LICENSE.uc.micro": "node_modules/uc.micro/LICENSE.txt",
    },
}
"""The files of each library in the installed package and in sites, mapped to npm's files in a source checkout."""


def library_files(web: Path, names: Iterable[str] = (TOKENIZERS,)) -> dict[str, Path]:
    """Find the page's libraries in the installed package, or in npm's folder.

    Args:
        web: the folder of the page and its runtime.
        names: keys of :data:`LIBRARIES`.

    Raises:
        FormatError: a library is in neither place.
    """
    found: dict[str, Path] = {}
    for files in map(LIBRARIES.__getitem__, names):
        for places in ({name: web / name for name in files}, {name: web / at for name, at in files.items()}):
            if all(file.is_file() for file in places.values()):
                found.update(places)
                break
        else:
            raise FormatError(
                f"a library of the page is missing: found no {next(iter(files))} in {web}; run 'npm ci --prefix web' "
                "in a source checkout, or use a wheel that was built after that"
            )
    return found
