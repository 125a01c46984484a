"""requirements/dev.txt: every version that it names is one that pyproject.toml allows, and each file has a hash."""

from __future__ import annotations

import re
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from qa.lock import LOCK, locked
from qa.steps import PYTHONS, ROOT

try:
    import tomllib
except ImportError:
    tomllib = pytest.importorskip("tomli", reason="Python 3.10 has no tomllib, and tomli is not installed")

PINNED = LOCK.read_text("utf-8")


def wanted() -> list[Requirement]:
    """What the extra asks for, with what it takes from other extras, and the core."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras, asked = project["optional-dependencies"], [*map(Requirement, project["dependencies"])]
    left, seen = ["dev"], set[str]()
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            found = [*map(Requirement, extras[name])]
            left += [extra for each in found if each.name == "glinfer" for extra in each.extras]
            asked += [each for each in found if each.name != "glinfer"]
    return asked


@pytest.mark.parametrize("python", PYTHONS)
def test_versions_are_those_that_the_project_allows(python: str) -> None:
    versions, asked = locked(PINNED, python), wanted()
    assert len(asked) > 20
    place = {"python_version": python, "python_full_version": f"{python}.5"}
    for each in asked:
        if each.marker is None or each.marker.evaluate(place):
            found = versions.get(canonicalize_name(each.name))
            assert found is not None, f"{each.name} is not in {LOCK.name}; run 'python -m qa lock'"
            assert each.specifier.contains(found), f"{each} and {found}; run 'python -m qa lock'"
    assert "editables" in versions


def test_each_is_one_version_with_hashes() -> None:
    for entry in PINNED.replace("\\\n", " ").splitlines():
        if not entry.startswith("#"):
            assert re.fullmatch(r"[\w.-]+==\S+( *;[^#]*?)?( +--hash=sha256:[0-9a-f]{64})+", entry), entry[:80]


def test_no_place_is_named() -> None:
    assert "://" not in PINNED
    assert not re.search(r"^\s*--(?!hash=)", PINNED, re.MULTILINE)


def test_markers_choose() -> None:
    told = "a==1 ; python_full_version < '3.11' \\\n    --hash=sha256:0\na==2 ; python_full_version >= '3.11' \\\n"
    told += "    --hash=sha256:0\nb-c==3 ; sys_platform == 'win32' \\\n    --hash=sha256:0\n"
    assert locked(told + "d==4 \\\n    --hash=sha256:0\n", "3.10") == {"a": "1", "d": "4"}
    assert locked(told, "3.12", "win32") == {"a": "2", "b-c": "3"}
