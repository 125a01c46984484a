"""A disk and a network that break at each call of a download in turn: one line at most, and the next one works."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broken_files import BrokenFiles
from hub_server import Hub
from tiers import tiered

from glinfer.cli.app import run

pytestmark = pytest.mark.gl

NAME = "org/small"
Capture = pytest.CaptureFixture[str]


def names_of(cache: Path) -> dict[str, bytes]:
    """What is found by name, at any commit."""
    found = [path for path in cache.glob("models--*/snapshots/*/**/*") if path.is_file()]
    return {path.name: path.read_bytes() for path in found}


def pulled(capsys: Capture, name: str) -> int:
    status = run(["pull", name])
    err = capsys.readouterr().err
    assert status in (0, 2), err
    errors = [line for line in err.splitlines() if line.startswith("glinfer: ")]
    assert len(errors) == (status == 2), err
    return status


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


@pytest.fixture
def wanted(request: pytest.FixtureRequest, hub: Hub) -> tuple[str, dict[str, bytes]]:
    """The name of a repository of one file or of several, and what is fetched of it."""
    if request.param == "file":
        files = {"small-Q8_0.gguf": request.getfixturevalue("gguf")}
    else:
        files = request.getfixturevalue("folder_files")
    hub.add(NAME, files)
    return NAME, files


def check(capsys: Capture, cache: Path, name: str, files: dict[str, bytes], failed: str) -> None:
    """After a fault: what has a name is whole, nothing else is left, and the same command goes on."""
    found = names_of(cache)
    assert all(files[each] == data for each, data in found.items()), failed
    assert pulled(capsys, name) == 0, failed
    assert names_of(cache) == files, failed
    assert not [path for path in cache.rglob("*") if path.name.endswith((".tmp", ".incomplete"))], failed
    left = list(Path(tempfile.gettempdir()).iterdir())
    assert "rmdir" in failed or not left, failed  # one that cannot be removed stays
    for path in left:
        shutil.rmtree(path)


@tiered("wanted", ["file", "folder"], indirect=True)
def test_a_disk_that_breaks_at_any_call(
    wanted: tuple[str, dict[str, bytes]], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    name, files = wanted
    disk, refused = BrokenFiles(monkeypatch, tmp_path), 0
    for at in itertools.count(1, 5):
        shutil.rmtree(cache, ignore_errors=True)
        disk.fail_at(at)
        refused += pulled(capsys, name) == 2
        failed = disk.failed
        disk.fail_at(0)
        check(capsys, cache, name, files, failed)
        if not failed:
            break
    assert refused >= 5


@tiered(("wanted", "call"), [("file", "recv"), ("folder", "connect"), ("file", "send")], keep=1, indirect=["wanted"])
def test_a_network_that_breaks_at_any_call(
    wanted: tuple[str, dict[str, bytes]], cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, call: str
) -> None:
    name, files = wanted
    thread, calls, at, number = threading.get_ident(), [0], [0], [0]
    real: Callable[..., Any] = getattr(socket.socket, call)

    def breaking(self: socket.socket, *given: Any) -> Any:
        if threading.get_ident() == thread:  # the hub's own threads go on
            calls[0] += 1
            if calls[0] == at[0]:
                if number[0] == errno.ETIMEDOUT:
                    raise TimeoutError("timed out")
                raise OSError(number[0], os.strerror(number[0]))
        return real(self, *given)

    monkeypatch.setattr(socket.socket, call, breaking)
    numbers, failures = (errno.ECONNRESET, errno.ETIMEDOUT, errno.EMFILE if call == "connect" else errno.EPIPE), 0
    for place in itertools.count(1, 5 if call == "send" else 2):
        shutil.rmtree(cache, ignore_errors=True)
        calls[0], at[0], number[0] = 0, place, numbers[place % 3]
        pulled(capsys, name)
        failed, at[0] = calls[0] >= place, 0
        failures += failed
        check(capsys, cache, name, files, f"{call} {place}")
        if not failed:
            break
    assert failures >= 1
