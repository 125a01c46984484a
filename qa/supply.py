"""``python -m qa supply``: build, install and test the package at both ends of all dependencies."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from glinfer.errors import InputError
from qa.lock import audit
from qa.renderers.environments import RESOLUTE, MissingError, interpreter
from qa.steps import PYTHONS, ROOT, StepError, resolve, run, uv

ENDS = {"lowest": "lowest-direct", "newest": "highest"}
EXTRAS = ("gguf", "plots", "server")
LICENCES = ("--from", "pip-licenses>=5,<6", "pip-licenses")
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "jsonschema", "httpx", "openai")
OTHERS = ("-n", "2", "-m", "not gl and not slow and not web and not package", "--ignore=tests/package", "tests")
SHADERS = ("-n", "2", "tests/gl", "tests/ops", "tests/tensors")


def run_tests(python: str | Path, *options: str, cwd: Path = ROOT, **variables: str) -> str:
    """Run tests; returns how many passed, such as ``3205 passed, 3 skipped``."""
    command = (python, "-m", "pytest", "-q", "-rfE", "--tb=short", "--disable-warnings", "-p", "no:cacheprovider")
    told = run(*command, *options, cwd=cwd, lines=40, variables=variables)
    return re.sub(r" in [\d.]+s.*| \(.*", "", told.strip().splitlines()[-1]).strip("= ")


def find_python(version: str) -> Path | None:
    """The interpreter of a version: of pyenv or PATH; for 3.14 also that of Ubuntu 26.04, in a folder of its own."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    folders = (*map(str, pyenv.glob(f"{version}.*/bin")), os.environ.get("PATH", ""))
    if found := shutil.which(f"python{version}", path=os.pathsep.join(folders)):
        return Path(found)
    try:
        return interpreter(RESOLUTE, version) if version == PYTHONS[-1] else None
    except MissingError as error:
        click.echo(f"Python {version} of {RESOLUTE.title}: {error}", err=True)
        return None


def suite(name: str, python: str | Path, *options: str, cwd: Path, **variables: str) -> str:
    """Run tests; a failure is returned too, and does not stop the other suites."""
    try:
        return f"{name}: {run_tests(python, *options, cwd=cwd, **variables)}"
    except StepError as error:
        return f"FAILED: {name}: {error}"


def check(python: Path, end: str, place: Path, source: Path, limits: Path, with_gl: bool) -> Iterator[str]:
    """Install the wheel into a new environment and test it there, first without extras; yields results."""
    oldest = re.findall(r'"hatchling>=([\d.]+)', (source / "pyproject.toml").read_text("utf-8"))[0]
    (place / "build.txt").write_text(f"hatchling=={oldest}\n" if end == "lowest" else "", "utf-8")
    uv("build", "--quiet", "--wheel", "-b", place / "build.txt", "--out-dir", place / "dist", source)
    (wheel,) = (place / "dist").glob("*.whl")
    inside = place / "venv" / "bin" / "python"
    run(python, "-m", "venv", "--without-pip", place / "venv")
    install = ("pip", "install", "--quiet", "--python", inside, "--only-binary", ":all:", "-c", limits)
    uv(*install, wheel)
    uv("pip", "check", "--python", inside)
    variables = {"GLINFER_TEST_WHEEL": str(wheel), "GLINFER_TEST_VENV": str(place / "venv")}
    yield suite("package", sys.executable, "tests/package", cwd=source, **variables)
    uv(*install, f"glinfer[{','.join(EXTRAS)}] @ {wheel.as_uri()}")
    if end == "newest":
        click.echo(uv("tool", "run", *LICENCES, "--python", inside, "--ignore-packages", "glinfer"))
    uv(*install, *TOOLS)
    yield suite("others", inside, *OTHERS, cwd=source)
    if with_gl:
        yield suite("gl", inside, *SHADERS, cwd=source)


@click.command()
@click.option("--python", "pythons", multiple=True, metavar="3.12", help="Test only this Python. Repeatable.")
@click.option("--end", "ends", multiple=True, type=click.Choice([*ENDS]), help="Test only these versions. Repeatable.")
@click.option("--gl", "with_gl", is_flag=True, help="Also run the shader tests, a minute more each.")
@click.option("--advisories", type=click.Path(path_type=Path), help="As in 'python -m qa audit'.")
def supply(pythons: tuple[str, ...], ends: tuple[str, ...], with_gl: bool, advisories: Path | None) -> None:
    """Build, install and test with the lowest and newest dependencies, on every Python here and on Ubuntu's 3.14.

    Two builds must be identical. Each environment prints its results, versions and known vulnerabilities, and with
    the newest versions the licences. For a Python that is not here, only wheels must exist.

    \b
    python -m qa supply --python 3.12 --end lowest

    \b
    Exit status:
      0  all tests passed, and no dependency is known to be vulnerable
      1  something failed, or a dependency is known to be vulnerable
      2  bad input
    """
    if unknown := set(pythons) - set(PYTHONS):
        raise InputError(f"found --python {', '.join(sorted(unknown))}; expected some of {', '.join(PYTHONS)}")
    failed: list[str] = []
    absent: list[str] = []
    with tempfile.TemporaryDirectory(prefix="glinfer-supply-") as folder:
        try:
            click.echo(f"two builds: {run_tests(sys.executable, '-m', 'slow', 'tests/package/test_reproducible.py')}")
            run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", folder)
        except StepError as error:
            click.echo(error)
            raise click.exceptions.Exit(1) from None
        shutil.unpack_archive(next(Path(folder).glob("*.tar.gz")), folder)
        (source,) = Path(folder).glob("glinfer-*/")
        for python, end in [(python, end) for python in pythons or PYTHONS for end in ends or ENDS]:
            label = f"Python {python} {end}"
            place = Path(folder, f"{python}-{end}")
            place.mkdir()
            try:
                options = (f"--resolution={ENDS[end]}", "--only-binary=:all:", *(f"--extra={each}" for each in EXTRAS))
                pinned = resolve(place / "limits.txt", python, *options)
                click.echo(f"{label}: {' '.join(f'{name} {version}' for name, version in pinned.items())}")
                told, bad = audit(pinned, advisories)
                click.echo(f"{label}: vulnerabilities: {told}")
                failed += [label] * bad
                if here := find_python(python):
                    for result in check(here, end, place, source, place / "limits.txt", with_gl):
                        click.echo(f"{label}: {result}")
                        failed += [label] * result.startswith("FAILED")
                else:
                    absent.append(python)
                    click.echo(f"{label}: wheels exist, not run: this Python is not here")
            except StepError as error:
                failed.append(label)
                click.echo(f"{label}: FAILED: {error}")
    failed, absent = list(dict.fromkeys(failed)), list(dict.fromkeys(absent))
    click.echo(f"failed: {', '.join(failed) or 'none'}; wheels only: {', '.join(absent) or 'none'}")
    raise click.exceptions.Exit(int(bool(failed)))
