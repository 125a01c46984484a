"""The same source gives the same bytes: whoever builds it, where, when, and by way of the sdist or directly."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
from installs import build, copy_source

pytestmark = [pytest.mark.package, pytest.mark.slow]

pytest.importorskip("build", reason="the package build is not installed")
pytest.importorskip("hatchling", reason="hatchling is not installed")

HERE = {"TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "1"}
ELSEWHERE = {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "2"}
LONG_AGO = 1_000_000_000


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def age(folder: Path) -> None:
    """Make every file look old, and as somebody with a strict umask would have it."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
        os.utime(path, (LONG_AGO, LONG_AGO))


def test_two_builds_give_the_same_bytes(tmp_path: Path) -> None:
    source = copy_source(tmp_path / "one" / "source")
    place = Path(shutil.copytree(source, tmp_path / "and another" / "quite different" / "place"))
    one = digests(build(source, "--sdist", "--wheel", umask=0o022, **HERE))
    age(place)
    # With neither option the wheel is built from the sdist, unpacked.
    another = digests(build(place, umask=0o077, **ELSEWHERE))
    assert {name.rpartition(".")[2] for name in one} == {"whl", "gz"}
    assert another == one


def test_the_date_is_the_one_that_is_asked_for(tmp_path: Path) -> None:
    """SOURCE_DATE_EPOCH, in seconds since 1970; and other source gives other bytes, else digests would say nothing."""
    source = copy_source(tmp_path / "one" / "source")
    date = {"SOURCE_DATE_EPOCH": "1700000000"}  # 2023-11-14 22:13:20
    out = build(source, "--sdist", "--wheel", **HERE, **date)
    before = digests(out)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as packed:
        assert {entry.date_time for entry in packed.infolist()} == {(2023, 11, 14, 22, 13, 20)}
    with tarfile.open(sdist) as archive:
        assert {entry.mtime for entry in archive.getmembers()} == {1_700_000_000}
    (source / "glinfer" / "errors.py").write_text("# changed\n", "utf-8")
    assert digests(build(source, "--wheel", **HERE, **date))[wheel.name] != before[wheel.name]
