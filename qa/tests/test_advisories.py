"""``python -m qa audit``: local advisories say which versions are vulnerable, where no service does."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from qa_commands import run

from glinfer.errors import InputError
from qa import lock
from qa.lock import audit, read_advisories, vulnerable


def record(identity: str = "PYSEC-1", name: str = "numpy", **changes: Any) -> dict[str, Any]:
    affected = {"package": {"ecosystem": "PyPI", "name": name}, **changes}
    return {"id": identity, "affected": [affected]}


def events(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"ranges": [{"type": "ECOSYSTEM", "events": [{kind: version} for kind, version in pairs]}]}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "looked_up", lambda pinned: ("", []))


def test_versions_within_the_ranges() -> None:
    asked = ["1.9", "1.9.9rc1", "1.10", "2.0", "2.1"]
    for affected, bad in (
        (events(("introduced", "0"), ("fixed", "2.0")), asked[:3]),
        (events(("introduced", "1.9"), ("last_affected", "1.10")), asked[:3]),
        (events(("introduced", "0"), ("fixed", "1.0"), ("introduced", "2.0"), ("fixed", "2.1")), ["2.0"]),
        (events(("fixed", "2.1"), ("introduced", "2.0")), ["2.0"]),
        (events(("introduced", "1.11")), ["2.0", "2.1"]),
        ({"versions": ["2.1", "1.9.0", "no version"]}, ["1.9", "2.1"]),
        ({"ranges": [{"type": "GIT", "events": [{"introduced": "0"}]}]}, []),
        ({}, []),
    ):
        assert [each for each in asked if vulnerable({"NumPy": each}, [record(**affected)])] == bad, affected


def test_other_packages_and_withdrawn_records() -> None:
    all_versions = events(("introduced", "0"))
    assert vulnerable({"numpy": "2.0"}, [record(name="numpy-quaternion", **all_versions)]) == []
    assert vulnerable({"numpy": "2.0"}, [{**record(**all_versions), "withdrawn": "2026-01-01T00:00:00Z"}]) == []
    elsewhere = record(**all_versions)
    elsewhere["affected"][0]["package"]["ecosystem"] = "npm"
    assert vulnerable({"numpy": "2.0"}, [elsewhere]) == []
    assert vulnerable({"a.B_c": "1"}, [record(name="A-b.C", **all_versions)]) == ["a-b-c 1: PYSEC-1"]


def test_a_file_a_list_a_folder_and_a_zip(tmp_path: Path) -> None:
    one, two = record("A"), record("B")
    (tmp_path / "one.json").write_text(json.dumps(one))
    (tmp_path / "both.json").write_text(json.dumps([one, two]))
    (tmp_path / "folder").mkdir()
    for name, each in (("1", one), ("2", two)):
        (tmp_path / "folder" / f"{name}.json").write_text(json.dumps(each))
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("1.json", json.dumps(one))
        archive.writestr("2.json", json.dumps(two))
    assert list(read_advisories(tmp_path / "one.json")) == [one]
    for name in ("both.json", "folder", "all.zip"):
        assert list(read_advisories(tmp_path / name)) == [one, two]


def test_what_is_no_advisory(tmp_path: Path) -> None:
    for told in ("no", "[1]", "{}", json.dumps({"id": "A", "affected": 1})):
        (tmp_path / "a.json").write_text(told)
        with pytest.raises(InputError, match="advisory of OSV"):
            list(read_advisories(tmp_path / "a.json"))
    with pytest.raises(InputError, match="cannot read it: No such file or directory"):
        list(read_advisories(tmp_path / "nowhere"))


def test_where_nobody_answers_one_line_says_so(tmp_path: Path, offline: None) -> None:
    told, bad = audit({"numpy": "2.0"})
    assert not bad
    assert told == "skipped: neither PyPI nor OSV answers pip-audit; give advisories in a file: --advisories FILE"
    (tmp_path / "known.json").write_text(json.dumps(record(**events(("introduced", "0"), ("fixed", "2.1")))))
    told, bad = audit({"numpy": "2.0", "click": "8.1"}, tmp_path / "known.json")
    assert (told.rpartition(": ")[0].startswith("2 looked up in 1 advisories"), bad) == (True, True)
    assert told.endswith("numpy 2.0: PYSEC-1")
    assert audit({"numpy": "2.1"}, tmp_path / "known.json")[1] is False


def test_the_command(tmp_path: Path, offline: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit"]) == 0
    assert capsys.readouterr().out.count("skipped: ") == 2, "the oldest Python and the newest"
    path = tmp_path / "known.json"
    path.write_text(json.dumps(record(name="starlette", **events(("introduced", "0")))))
    assert run(["audit", "--advisories", str(path)]) == 1
    assert "PYSEC-1" in capsys.readouterr().out


def test_answers_of_pip_audit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    numpy = {"name": "numpy", "version": "2.0", "vulns": [{"id": "PYSEC-1"}]}
    answers = {"pypi": json.dumps({"dependencies": [{"name": "numpy", "skip_reason": "unknown"}]}), "osv": "no JSON"}
    monkeypatch.setattr(lock, "uv", lambda *words, **options: answers[words[words.index("-s") + 1]])
    assert audit({"numpy": "2.0"})[0].startswith("skipped: ")
    answers["osv"] = json.dumps({"dependencies": [numpy]})
    assert audit({"numpy": "2.0", "click": "8"}) == ("1 of 2 looked up (osv): numpy 2.0: PYSEC-1", True)
    numpy["vulns"] = []
    answers["pypi"] = json.dumps({"dependencies": [numpy]})
    assert audit({"numpy": "2.0"}) == ("1 of 1 looked up (pypi): none known", False)
