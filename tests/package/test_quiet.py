"""What glinfer reaches for while it runs: no network at all, and no file outside the package but its own cache.

A guard in the installed environment records it in every process, also in that of a chat template. And what lies in the
user's directories afterwards is looked at, which shows what libraries do behind Python's back.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from installs import Installed, build, copy_source, run, succeed
from small_models import hugging_face_files

pytestmark = [pytest.mark.package, pytest.mark.slow]

GUARD = Path(__file__).with_name("guard.py")
# OpenGL drivers keep compiled shaders there, whatever program draws.
OF_DRIVERS = ("mesa_shader_cache", "mesa_shader_cache_db", "nvidia")

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("info",),
    ("models",),
    ("demo", "--max-tokens", "2"),
    ("generate", "shakespeare", "ROMEO:", "--max-tokens", "2"),
    ("tune", "shakespeare", "--seconds", "2"),
    ("chat", "chatty", "--max-tokens", "2"),
    ("eval", "shakespeare", "--text", "text.txt"),
)


@dataclass(frozen=True)
class Ran:
    """What was recorded while COMMANDS ran, and the user's directories afterwards."""

    events: list[list[str]]
    home: Path
    temporary: Path
    changed: set[str]

    @property
    def cache(self) -> Path:
        return self.home / ".cache" / "glinfer"

    def of(self, *prefixes: str) -> list[list[str]]:
        return [event for event in self.events if event[0].startswith(prefixes)]


def recorded(path: Path) -> list[list[str]]:
    """The events of a record; none where nothing happened."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def listing(folder: Path) -> dict[str, int]:
    """Every file under ``folder``, and when it was changed; compiled modules are Python's own affair."""
    files = (file for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc")
    return {file.relative_to(folder).as_posix(): file.stat().st_mtime_ns for file in files}


def surroundings(place: Path) -> dict[str, str]:
    """A user who begins with nothing, as variables: HOME and TMPDIR are new and empty."""
    for name in ("home", "temporary"):
        (place / name).mkdir(parents=True)
    unset = dict.fromkeys((name for name in os.environ if name.startswith(("XDG_", "GLINFER_"))), "")
    # Set and empty, GLINFER_CACHE would mean: remember nothing.
    own = {"GLINFER_CACHE": str(place / "home" / ".cache" / "glinfer"), "GLINFER_GUARD": str(place / "record")}
    # Mesa alone finds what other tests have compiled: nothing of glinfer looks there.
    shaders = {"MESA_SHADER_CACHE_DIR": os.environ.get("MESA_SHADER_CACHE_DIR", str(Path.home() / ".cache"))}
    return {**unset, **shaders, "HOME": str(place / "home"), "TMPDIR": str(place / "temporary"), **own}


@pytest.fixture(scope="module")
def ran(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Run COMMANDS one after the other, each of which has to end well."""
    place = tmp_path_factory.mktemp("quiet")
    (work := place / "work").mkdir()
    (work / "chatty").mkdir()
    for name, data in hugging_face_files().items():
        (work / "chatty" / name).write_bytes(data)
    (work / "text.txt").write_text("Before we proceed any further, hear me speak.")
    variables = surroundings(place)
    before = {folder: listing(folder) for folder in (work, installed.venv)}
    for command in COMMANDS:
        typed = "hello\n/quit\n" if command[0] == "chat" else None
        succeed(run(installed.tool("glinfer"), *command, cwd=work, typed=typed, variables=variables))
    changed = {name for folder, was in before.items() for name, _ in was.items() ^ listing(folder).items()}
    return Ran(recorded(place / "record"), place / "home", place / "temporary", changed)


def test_no_socket_is_opened(ran: Ran) -> None:
    assert ran.of("socket.", "urllib.", "http.", "ftplib.", "smtplib.", "webbrowser.") == []


def test_no_process_is_started_but_that_of_the_template(ran: Ran) -> None:
    started = ran.of("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "pty.")
    assert started, "the chat should have rendered a template"
    assert [event for event in started if "template_worker.py" not in event[2]] == []


def test_nothing_is_unpickled(ran: Ran) -> None:
    assert ran.of("pickle.") == []


def test_only_the_cache_is_written_to(ran: Ran) -> None:
    paths = [Path(path) for event, path, *_ in ran.of("open", "os.mkdir", "os.rename", "os.link", "os.symlink")]
    allowed = (ran.cache, *ran.cache.parents)
    assert ran.cache in {parent for path in paths for parent in path.parents}, "the kernels chosen should be kept"
    assert [path for path in paths if ran.cache not in path.parents and path not in (*allowed, Path(os.devnull))] == []


def test_nothing_is_left_anywhere_else(ran: Ran) -> None:
    assert ran.changed == set(), "files of the environment, or of the folder that the commands ran in"
    assert list(ran.temporary.rglob("*")) == []
    left = [file.relative_to(ran.home).parts for file in ran.home.rglob("*") if file.is_file()]
    assert {parts[:2] for parts in left if parts[1] not in OF_DRIVERS} == {(".cache", "glinfer")}


def test_the_guard_sees(installed: Installed, tmp_path: Path) -> None:
    variables = {"GLINFER_GUARD": str(tmp_path / "record")}
    code = (
        "import os, pickle, socket, subprocess, sys; socket.socket(); open('here', 'w').close(); os.mkdir('there'); "
        "pickle.loads(pickle.dumps(print)); subprocess.run([sys.executable, '-I', '-c', "
        "'import socket; socket.getaddrinfo(\"127.0.0.1\", 80)'], check=True)"
    )
    succeed(run(installed.tool("python"), "-c", code, cwd=tmp_path, variables=variables))
    seen = {name for name, *_ in recorded(tmp_path / "record")}
    assert seen >= {"socket.__new__", "socket.getaddrinfo", "open", "os.mkdir", "subprocess.Popen", "pickle.find_class"}


def without_network() -> tuple[str, ...]:
    """What starts a command in a network of its own that leads nowhere; skips where that may not be done."""
    command = ("unshare", "--map-root-user", "--net")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no network can be taken away here: unshare --map-root-user --net does not work")
    return command


def test_it_runs_where_there_is_no_network(installed: Installed) -> None:
    succeed(run(*without_network(), installed.tool("glinfer"), "demo", "--max-tokens", "2", cwd=installed.work))


def test_the_build_opens_no_socket(tmp_path: Path) -> None:
    """With its tools installed, that is; build isolation is what fetches them from the package index."""
    pytest.importorskip("build", reason="the package build is not installed")
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    (tmp_path / "guard").mkdir()
    shutil.copy(GUARD, tmp_path / "guard" / "sitecustomize.py")
    record = tmp_path / "record"
    variables = {"PYTHONPATH": str(tmp_path / "guard"), "GLINFER_GUARD": str(record)}
    assert list(build(copy_source(tmp_path / "clean" / "source"), "--wheel", **variables).glob("*.whl"))
    events = recorded(record)
    assert [event for event in events if event[0] == "open" and event[1].endswith(".whl")], "the guard was asleep"
    assert [event for event in events if event[0].startswith(("socket.", "urllib.", "http."))] == []
