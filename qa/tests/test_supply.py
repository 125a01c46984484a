"""The lock, ``python -m qa audit`` and ``sbom``: which versions are pinned, and what the tools make of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from qa_commands import run

from qa import supply
from qa.steps import ROOT, StepError
from qa.supply import LOCK, PYTHONS, audit, locked

try:
    import tomllib
except ImportError:
    tomllib = pytest.importorskip("tomli", reason="Python 3.10 has no tomllib, and tomli is not installed")

PINNED = LOCK.read_text("utf-8")
WHEEL = "glinfer-0.1.0-py3-none-any.whl"


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


def test_each_is_one_version_with_hashes_and_no_place_is_named() -> None:
    for entry in PINNED.replace("\\\n", " ").splitlines():
        if not entry.startswith("#"):
            assert re.fullmatch(r"[\w.-]+==\S+( *;[^#]*?)?( +--hash=sha256:[0-9a-f]{64})+", entry), entry[:80]


def test_markers_choose() -> None:
    told = "a==1 ; python_full_version < '3.11' \\\n    --hash=sha256:0\na==2 ; python_full_version >= '3.11' \\\n"
    told += "    --hash=sha256:0\nb-c==3 ; sys_platform == 'win32' \\\n    --hash=sha256:0\n"
    assert locked(told + "d==4 \\\n    --hash=sha256:0\n", "3.10") == {"a": "1", "d": "4"}
    assert locked(told, "3.12", "win32") == {"a": "2", "b-c": "3"}


def test_answers_of_pip_audit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    numpy = {"name": "numpy", "version": "2.0", "vulns": [{"id": "PYSEC-1"}]}
    answers = {"pypi": json.dumps({"dependencies": [{"name": "numpy", "skip_reason": "unknown"}]}), "osv": "no JSON"}
    monkeypatch.setattr(supply, "uv", lambda *words, **options: answers[words[words.index("-s") + 1]])
    assert audit({"numpy": "2.0"}) == ("skipped: neither PyPI nor OSV answers pip-audit", False)
    assert run(["audit"]) == 0
    assert capsys.readouterr().out.count("skipped: ") == 2, "the oldest Python and the newest"
    answers["osv"] = json.dumps({"dependencies": [numpy]})
    assert audit({"numpy": "2.0", "click": "8"}) == ("1 of 2 looked up (osv): numpy 2.0: PYSEC-1", True)
    assert run(["audit"]) == 1
    numpy["vulns"] = []
    answers["pypi"] = json.dumps({"dependencies": [numpy]})
    assert audit({"numpy": "2.0"}) == ("1 of 1 looked up (pypi): none known", False)


def test_the_bill_of_materials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, ...]] = []

    def uv(*words: str | Path) -> str:
        asked.append(tuple(map(str, words)))
        if "-o" in words:
            about = Path(words[words.index("--pyproject") + 1]).read_text()
            assert 'version = "0.1.0"\n' in about
            assert 'dynamic = ["version"]' not in about
            Path(words[words.index("-o") + 1]).write_text(json.dumps({"components": [1, 2]}))
        return ""

    monkeypatch.setattr(supply, "uv", uv)
    (tmp_path / WHEEL).touch()
    assert run(["sbom", str(tmp_path / WHEEL)]) == 0
    assert json.loads((tmp_path / "glinfer-0.1.0.cdx.json").read_text()) == {"components": [1, 2]}
    assert capsys.readouterr().out == f"{tmp_path / 'glinfer-0.1.0.cdx.json'}: glinfer and 2 packages\n"
    assert asked[1][-2:] == (str(LOCK), str(tmp_path / WHEEL)), "the versions of the lock"


def test_a_tool_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*words: Any) -> str:
        raise StepError("no such index")

    monkeypatch.setattr(supply, "uv", fail)
    (tmp_path / WHEEL).touch()
    assert run(["sbom", str(tmp_path / WHEEL)]) == 2
    assert capsys.readouterr().err == "python -m qa: no such index\n"
    assert [each.name for each in tmp_path.iterdir()] == [WHEEL]
