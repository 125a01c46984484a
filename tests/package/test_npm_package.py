"""The npm package beside the Python package: one version, and what its README says of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import glinfer

WEB = Path(__file__).resolve().parents[2] / "web"


def test_both_packages_have_one_version() -> None:
    about = json.loads((WEB / "package" / "package.json").read_text())
    assert (about["name"], about["version"]) == ("glinfer", glinfer.__version__)


def test_the_readme_names_every_method() -> None:
    readme = (WEB / "package" / "README.md").read_text()
    remote = (WEB / "glinfer" / "host.js").read_text().partition("export class RemoteModel")[2].partition("\n}\n")[0]
    methods = set(re.findall(r"^  (?:async )?(\w+)\(.*\) \{$", remote, re.MULTILINE)) - {"constructor", "figures"}
    assert len(methods) > 10
    missing = [name for name in sorted(methods) if f"`{name}`" not in readme]
    assert missing == []


def test_what_npm_installs_is_named_by_no_registry() -> None:
    lock = json.loads((WEB / "package-lock.json").read_text())
    assert lock["packages"]["node_modules/typescript"]["integrity"]
    assert not [name for name, entry in lock["packages"].items() if "resolved" in entry]
