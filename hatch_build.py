"""What a build adds that is not in the repository: the libraries of pages, where npm has put them.

They tokenize texts, render chat templates and parse Markdown. A build fetches nothing. Without a library, or with
another version of it than the lock file names, the wheel is built without, and its export-web says what its pages lack.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARIES = {
    "@huggingface/tokenizers": {"dist/tokenizers.min.mjs": "tokenizers.js", "LICENSE": "LICENSE"},
    "@huggingface/jinja": {"dist/index.js": "jinja.js", "LICENSE": "LICENSE.jinja"},
    "markdown-it": {"dist/browser/markdown-it.esm.min.mjs": "markdown-it.js", "LICENSE": "LICENSE.markdown-it"},
    # Packages that are part of the file of markdown-it.
    "entities": {"LICENSE": "LICENSE.entities"},
    "linkify-it": {"LICENSE": "LICENSE.linkify-it"},
    "mdurl": {"LICENSE": "LICENSE.mdurl"},
    "punycode.js": {"LICENSE-MIT.txt": "LICENSE.punycode"},
    "uc.micro": {"LICENSE.txt": "LICENSE.uc.micro"},
}
"""Files of each package, and their names in ``glinfer/web/libraries`` of the wheel."""


class Libraries(BuildHookInterface):  # type: ignore[type-arg]
    """Takes the libraries into the wheel, and into the source archive, from which the wheel may be built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add their files; an editable installation reads them where they lie."""
        if version == "editable":
            return
        for name, files in LIBRARIES.items():
            build_data["force_include"].update(self.included(name, files))

    def included(self, name: str, files: dict[str, str]) -> dict[str, str]:
        """The files of one library, and where they go; none where it is missing."""
        web, package = Path(self.root) / "web", f"node_modules/{name}"
        locked = json.loads((web / "package-lock.json").read_text("utf-8"))["packages"][package]["version"]
        about = web / package / "package.json"
        found = json.loads(about.read_text("utf-8"))["version"] if about.is_file() else "none"
        if found != locked:
            self.app.display_warning(
                f"{name}: found {found} in web/node_modules; expected {locked}; the build goes on "
                "without it, and pages of its export-web lack what it does; run 'npm ci --prefix web' before"
            )
            return {}
        places = {f"{package}/{place}": f"glinfer/web/libraries/{as_name}" for place, as_name in files.items()}
        if self.target_name == "sdist":
            places = {place: f"web/{place}" for place in (*places, f"{package}/package.json")}
        return {str(web / place): target for place, target in places.items()}
