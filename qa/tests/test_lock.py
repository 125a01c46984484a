"""requirements/dev.txt: every version that it names is one that pyproject.toml allows, and each file has a hash."""

from __future__ import annotations

import re
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from glinfer.errors import InputError
from qa.lock import BESIDE, EXTRA, LOCK, applying, read_lock
from qa.supply import PYTHONS, ROOT

try:
    import tomllib
except ImportError:
    tomllib = pytest.importorskip("tomli", reason="Python 3.10 has no tomllib, and tomli is not installed")

PINNED = read_lock(LOCK.read_text("utf-8"))


def wanted() -> list[Requirement]:
    """What the extra asks for, with what it takes from other extras, and the core."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras, asked = project["optional-dependencies"], [*map(Requirement, project["dependencies"])]
    left, seen = [EXTRA], set[str]()
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
    versions, asked = applying(PINNED, python), wanted()
    assert len(asked) > 20
    place = {"python_version": python, "python_full_version": f"{python}.5"}
    for each in asked:
        if each.marker is None or each.marker.evaluate(place):
            found = versions.get(canonicalize_name(each.name))
            assert found is not None, f"{each.name} is not in {LOCK.name}; run 'python -m qa lock'"
            assert each.specifier.contains(found), f"{each} and {found}; run 'python -m qa lock'"
    assert {*map(canonicalize_name, BESIDE)} <= versions.keys()


def test_each_is_one_version_with_hashes() -> None:
    for requirement, hashes in PINNED:
        assert [each.operator for each in requirement.specifier] == ["=="], str(requirement)
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes), str(requirement)


def test_no_place_is_named() -> None:
    told = LOCK.read_text("utf-8")
    assert "://" not in told
    assert not re.search(r"^\s*--(?!hash=)", told, re.MULTILINE)


def test_what_is_no_lock_is_refused() -> None:
    for line in ("numpy==2.0", "-r other.txt", "--index-url here", "numpy==2.0 # sha256:00"):
        with pytest.raises(InputError, match="expected NAME==VERSION with hashes"):
            read_lock(line)


def test_markers_choose() -> None:
    told = "a==1 ; python_full_version < '3.11' --hash=sha256:0\na==2 ; python_full_version >= '3.11' --hash=sha256:0"
    pinned = read_lock(told + "\nB.c==3 ; sys_platform == 'win32' --hash=sha256:0")
    assert applying(pinned, "3.10") == {"a": "1"}
    assert applying(pinned, "3.12", "win32") == {"a": "2", "b-c": "3"}
