"""What a user gets: the wheel, built from clean source, installed into an empty environment, used elsewhere.

The dependencies come from wherever pip is set up to look. Where it reaches nothing, they are borrowed from
the environment that runs the tests; glinfer itself comes from the wheel either way. The output says which.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.package

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("glinfer", "shaders", "web", "pyproject.toml", "README.md", "LICENSE")


def run(*command: str | Path, cwd: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a command without this process's Python paths, so that it finds only installed packages."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def succeed(done: subprocess.CompletedProcess[str]) -> str:
    """The standard output of a command that ended well; anything else fails the test and shows all of it."""
    assert done.returncode == 0, f"{done.args} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Installed:
    """An environment that holds the wheel, and an empty directory outside the repository to work in."""

    venv: Path
    work: Path

    def tool(self, name: str) -> Path:
        return self.venv / "bin" / name

    def python(self, code: str) -> str:
        return succeed(run(self.tool("python"), "-c", code, cwd=self.work))

    def glinfer(self, *arguments: str) -> str:
        return succeed(run(self.tool("glinfer"), *arguments, cwd=self.work))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy that holds the source and nothing that a work tree collects beside it."""
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    source.mkdir()
    for name in SOURCES:
        original = ROOT / name
        assert original.exists(), f"{name} is missing, the wheel cannot be built without it"
        if original.is_dir():
            shutil.copytree(
                original, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", ".*", "node_modules")
            )
        else:
            shutil.copy(original, source / name)
    succeed(run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", place / "dist", cwd=source))
    (built,) = (place / "dist").iterdir()
    assert built.suffix == ".whl"
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Installed:
    """A new environment with the wheel in it, and its dependencies: downloaded, or else borrowed."""
    place = tmp_path_factory.mktemp("installed")
    here = Installed(venv=place / "venv", work=place / "work")
    here.work.mkdir()
    succeed(run(sys.executable, "-m", "venv", here.venv, cwd=place))
    pip = (
        here.tool("python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--retries",
        "1",
        "--timeout",
        "20",
    )
    tried = run(*pip, "install", "--quiet", wheel, cwd=place)
    if tried.returncode == 0:
        announce(pytestconfig, "the wheel's dependencies were installed by pip")
    else:
        borrow_dependencies(here, pip, wheel)
        reason = (tried.stderr.strip().splitlines() or ["no message"])[-1]
        message = f"pip could not fetch the wheel's dependencies ({reason}); borrowed from {sys.prefix}"
        announce(pytestconfig, message)
        warnings.warn(message, stacklevel=1)
    return here


def borrow_dependencies(here: Installed, pip: tuple[str | Path, ...], wheel: Path) -> None:
    """Install the wheel alone and let it see this environment's packages after its own.

    pip then confirms that all the wheel asks for is there, so a dependency that does not exist still fails.
    """
    succeed(run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel, cwd=here.work))
    own = here.python("import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    paths = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
    # Lines of a .pth file come after the environment's own packages, and .pth files found there are not read:
    # a glinfer that is installed for development in the borrowed place stays unseen.
    (Path(own) / "borrowed.pth").write_text("".join(f"{path}\n" for path in paths), "utf-8")
    complaints = run(*pip, "check", cwd=here.work).stdout.splitlines()
    assert not [line for line in complaints if line.startswith("glinfer ")], complaints


def announce(config: pytest.Config, message: str) -> None:
    """Write a line into pytest's own output, past its capturing."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    capture = config.pluginmanager.getplugin("capturemanager")
    if reporter is not None and capture is not None:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(f"test_wheel: {message}")


def test_the_wheel_holds_the_package_and_every_shader(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name: archive.read(name) for name in archive.namelist()}
    shaders = [file for file in (ROOT / "shaders").rglob("*") if file.is_file() and file.name[0] != "."]
    assert any(file.suffix == ".frag" for file in shaders), "no shaders found: nothing would be compared"
    for file in shaders:
        name = f"glinfer/shaders/{file.relative_to(ROOT / 'shaders').as_posix()}"
        assert packed.get(name) == file.read_bytes(), f"{name} is missing from the wheel, or differs"
    modules = {f"glinfer/{file.relative_to(ROOT / 'glinfer').as_posix()}" for file in ROOT.glob("glinfer/**/*.py")}
    assert {"glinfer/__init__.py", *modules} <= set(packed)
    assert "glinfer/py.typed" in packed
    licences = [data for name, data in packed.items() if name.endswith(".dist-info/licenses/LICENSE")]
    assert licences == [(ROOT / "LICENSE").read_bytes()]


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {name.split("/")[0] for name in names}
    assert {part for part in top if not part.endswith(".dist-info")} == {"glinfer"}
    known = (".py", ".typed", ".frag", ".vert", ".glsl")
    inside = [name for name in names if name.startswith("glinfer/")]
    files = [name for name in inside if not name.endswith(known)]
    models = [f"glinfer/bundled/{file.name}" for file in ROOT.glob("glinfer/bundled/*")]
    assert sorted(files) == sorted([*models, *web_files()])
    assert [name for name in inside if "tests" in name.split("/") or "/test_" in name] == []


def web_files() -> list[str]:
    """What a site's page and runtime are made of, in the wheel."""
    page = [ROOT / "web" / name for name in ("index.html", "app.js", "style.css", "embedded.js")]
    runtime = list((ROOT / "web" / "glinfer").iterdir())
    return [f"glinfer/{file.relative_to(ROOT).as_posix()}" for file in (*page, *runtime)]


def test_a_site_is_exported_from_the_wheel(installed: Installed) -> None:
    installed.glinfer("export-web", "shakespeare", "site", "--weights", "q8")
    for name in web_files():
        if not name.endswith("embedded.js"):
            part = name.removeprefix("glinfer/web/")
            assert (installed.work / "site" / part).read_bytes() == (ROOT / "web" / part).read_bytes()
    installed.glinfer("export-web", "shakespeare", "site", "--weights", "q8", "--single-file")
    assert [file.name for file in (installed.work / "site").iterdir()] == ["index.html"]


def test_glinfer_comes_from_the_wheel(installed: Installed) -> None:
    file = Path(installed.python("import glinfer; print(glinfer.__file__)").strip())
    assert file.is_relative_to(installed.venv)
    assert not file.is_relative_to(ROOT)


def test_a_model_runs_from_the_wheel(installed: Installed) -> None:
    answer = installed.python(
        "import json\n"
        "import glinfer, glinfer.formats\n"
        "from glinfer.config import ModelConfig\n"
        "config = ModelConfig.from_options('vocab=300,dim=32,heads=4,blocks=2,context=64')\n"
        "glinfer.formats.save_checkpoint(glinfer.formats.random_checkpoint(config, seed=1), 'm.gab')\n"
        "model = glinfer.load('m.gab')\n"
        "tokens = model.generate([1, 2, 3], max_tokens=1, temperature=0)\n"
        "print(json.dumps([int(token) for token in tokens]))\n"
    )
    tokens = json.loads(answer)
    assert len(tokens) == 1
    assert 0 <= tokens[0] < 300
    counts = json.loads(installed.glinfer("draws", "m.gab", "--json"))
    assert counts


def test_the_bundled_model_writes_verse_at_once(installed: Installed) -> None:
    done = run(installed.tool("glinfer"), "generate", "shakespeare", "ROMEO:", "--max-tokens", "3", cwd=installed.work)
    assert succeed(done).strip()
    assert done.stderr.startswith("39 draws/token · 3 tokens")
    (model,) = json.loads(installed.glinfer("models", "--json"))
    assert Path(model["path"]).is_relative_to(installed.venv)
    assert list(installed.work.glob("*shakespeare*")) == [], "nothing is unpacked into the user's folder"


def test_the_command_knows_its_version(installed: Installed) -> None:
    version = installed.python("from importlib.metadata import version; print(version('glinfer'))").strip()
    assert version in installed.glinfer("--version").split()
