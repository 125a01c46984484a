"""What a build adds that is not in the repository: the library by which pages tokenize texts, where npm has put it.

A build fetches nothing. Without the library, or with another version of it than the lock file names, the wheel is built
without, and its export-web refuses models that embed texts in one line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "node_modules/@huggingface/tokenizers"
PLACES = {"dist/tokenizers.min.mjs": "tokenizers.js", "LICENSE": "LICENSE"}
"""Files of the package, and their names in ``glinfer/web/libraries`` of the wheel."""


class Libraries(BuildHookInterface):  # type: ignore[type-arg]
    """Takes the library into the wheel, and into the source archive, from which the wheel may be built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add its files; an editable installation reads them where they lie."""
        web = Path(self.root) / "web"
        if version == "editable":
            return
        locked = json.loads((web / "package-lock.json").read_text("utf-8"))["packages"][NAME]["version"]
        about = web / NAME / "package.json"
        found = json.loads(about.read_text("utf-8"))["version"] if about.is_file() else "none"
        if found != locked:
            self.app.display_warning(
                f"@huggingface/tokenizers: found {found} in web/node_modules; expected {locked}; the build goes on "
                "without it, and its export-web refuses models that embed texts; run 'npm ci --prefix web' before"
            )
            return
        places = {f"{NAME}/{place}": f"glinfer/web/libraries/{name}" for place, name in PLACES.items()}
        if self.target_name == "sdist":
            places = {name: f"web/{name}" for name in (*places, f"{NAME}/package.json")}
        build_data["force_include"].update({str(web / name): place for name, place in places.items()})
