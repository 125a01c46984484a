"""The wheel, and an environment that holds it, for all tests of this directory.

The dependencies come from wherever pip is set up to look: first into a folder, from which alone they are then
installed. Where pip reaches nothing, they are borrowed from the environment that runs the tests; glinfer itself comes
from the wheel either way. The output says which. ``make supply`` brings its own wheel and environments, and names them
in GLINFER_TEST_WHEEL and GLINFER_TEST_VENV.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from installs import Installed, build, copy_source, run, succeed

GUARD = Path(__file__).with_name("guard.py")
HOOK = "import os; exec('import glinfer_guard' if os.environ.get('GLINFER_GUARD') else '')\n"


@contextmanager
def made_once(factory: pytest.TempPathFactory, name: str) -> Iterator[tuple[Path, bool]]:
    """A folder that all workers of pytest-xdist share, and whether this one is to fill it while the others wait."""
    base = factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    place.mkdir(exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fill = not (place / "complete").exists()
        yield place, fill
        (place / "complete").touch()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy that holds the source and nothing that a work tree collects beside it."""
    if given := os.environ.get("GLINFER_TEST_WHEEL"):
        return Path(given)
    with made_once(tmp_path_factory, "wheel") as (place, fill):
        if fill:
            build(copy_source(place / "source"), "--wheel")
        (built,) = (place / "dist").iterdir()
    assert built.suffix == ".whl"
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Installed:
    """A new environment with the wheel in it, its dependencies, and the guard, which sleeps unless it is asked for."""
    work = tmp_path_factory.mktemp("work")
    with made_once(tmp_path_factory, "installed") as (place, fill):
        given = os.environ.get("GLINFER_TEST_VENV")
        here = Installed(venv=Path(given) if given else place / "venv", work=work)
        if fill and not given:
            install(here, place, wheel, pytestconfig)
        if fill:
            packages = here.packages()
            shutil.copy(GUARD, packages / "glinfer_guard.py")
            (packages / "glinfer_guard.pth").write_text(HOOK, "utf-8")
    return here


def install(here: Installed, place: Path, wheel: Path, config: pytest.Config) -> None:
    """Make the environment; the dependencies are downloaded, or else borrowed."""
    succeed(run(sys.executable, "-m", "venv", here.venv, cwd=place))
    pip = (here.tool("python"), "-m", "pip", "--disable-pip-version-check", "--retries", "1", "--timeout", "20")
    tried = run(*pip, "download", "--quiet", "--dest", place / "wheels", wheel, cwd=place)
    if tried.returncode == 0:
        # From here on nothing may be fetched any more: an installation that needs the network fails.
        succeed(run(*pip, "install", "--quiet", "--no-index", "--find-links", place / "wheels", "glinfer", cwd=place))
        announce(config, "the wheel's dependencies were downloaded, then installed without an index")
        return
    borrow_dependencies(here, pip, wheel)
    reason = (tried.stderr.strip().splitlines() or ["no message"])[-1]
    message = f"pip could not fetch the wheel's dependencies ({reason}); borrowed from {sys.prefix}"
    announce(config, message)
    warnings.warn(message, stacklevel=1)


def borrow_dependencies(here: Installed, pip: tuple[str | Path, ...], wheel: Path) -> None:
    """Install the wheel alone and let it see this environment's packages after its own.

    pip then confirms that all the wheel asks for is there, so a dependency that does not exist still fails.
    """
    succeed(run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel, cwd=here.work))
    paths = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    # Lines of a .pth file come after the environment's own packages, and .pth files found there are not read:
    # a glinfer that is installed for development in the borrowed place stays unseen.
    (here.packages() / "borrowed.pth").write_text("".join(f"{path}\n" for path in paths), "utf-8")
    complaints = run(*pip, "check", cwd=here.work).stdout.splitlines()
    assert not [line for line in complaints if line.startswith("glinfer ")], complaints


def announce(config: pytest.Config, message: str) -> None:
    """Write a line into pytest's own output, past its capturing."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    capture = config.pluginmanager.getplugin("capturemanager")
    if reporter is not None and capture is not None:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(f"tests/package: {message}")
