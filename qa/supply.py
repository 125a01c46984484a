"""``python -m qa supply``: build, install and test the package at both ends of all dependencies.

The wheel is built twice and has to come out the same, then is installed into fresh environments, one with the lowest
version of every dependency and one with the newest, for each Python found here. pip fetches into a folder first, and
installs from that folder alone. In each environment the commands run with the core dependencies only (tests/package),
then the tests that need no graphics with the extras. Printed are a table of all that, what is known to be
vulnerable, and the licences. A Python that is not here is that of another system, whose packages are unpacked into a
folder (:mod:`qa.renderers.environments`); where that cannot be, the wheels of all dependencies have to exist.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.parser import Parser
from pathlib import Path

import click
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from glinfer.errors import InputError
from qa.renderers.environments import RESOLUTE, MissingError, interpreter

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
SYSTEMS = {"3.14": RESOLUTE}
"""Which system has a Python that may not be here."""
ENDS = ("lowest", "newest")
EXTRAS = ("gguf", "plots", "server")
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "jsonschema", "httpx", "openai")
SUITES = {
    "others": ("-m", "not gl and not slow and not web and not package", "--ignore=tests/package", "tests"),
    "gl": ("tests/gl", "tests/ops", "tests/tensors"),
}
"""What is run with the extras: the tests that need no graphics, and those of single shaders."""
QUIET = ("-q", "-rfE", "--tb=short", "--disable-warnings", "-p", "no:cacheprovider")
PIP = ("-m", "pip", "--disable-pip-version-check")
LICENCES = """
import importlib.metadata as metadata, json, re
found = {}
for one in metadata.distributions():
    told = one.metadata
    named = [line.rpartition(" :: ")[2] for line in told.get_all("Classifier", []) if line.startswith("License :: OSI")]
    named = [name for name in named if name != "OSI Approved"]
    words = told.get("License-Expression") or ", ".join(named) or (told.get("License") or "not told").splitlines()[0]
    found[re.sub("[-_.]+", "-", told["Name"]).lower()] = [one.version, words]
print(json.dumps(found))
"""


class StepError(Exception):
    """A step failed; the message names its command and has the end of its output."""


def say(text: str) -> None:
    """Print a line of progress on standard error."""
    print(f"supply: {text}", file=sys.stderr, flush=True)


def run(
    *command: str | Path, cwd: Path = ROOT, variables: Mapping[str, str] | None = None, umask: int = -1, lines: int = 12
) -> str:
    """Run a command and return its standard output.

    Raises:
        StepError: it ended with another status than 0.
    """
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**environment, **(variables or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        umask=umask,
        check=False,
    )
    if done.returncode:
        told = f"{done.stdout}\n{done.stderr}".strip().splitlines()
        last = "\n".join([line for line in told if not re.fullmatch(r"[.\w]* *\[ *\d+%\]", line)][-lines:])
        raise StepError(f"{' '.join(str(part) for part in command[:6])} … ended with status {done.returncode}:\n{last}")
    return done.stdout


def tool_environment(place: Path, *packages: str) -> Path:
    """The interpreter of an environment of its own, made in ``place`` with these tools in it.

    Raises:
        StepError: a tool cannot be installed.
    """
    python = place / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", place)
        run(python, *PIP, "install", "--quiet", *packages)
    return python


def find_pythons() -> dict[str, Path]:
    """Find the interpreters that can make environments, by version: in PATH, pyenv's, and this one."""
    found: dict[str, Path] = {}
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    kept = sorted(pyenv.glob("3.*/bin/python"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.parts[-3])])
    for version in PYTHONS:
        named = shutil.which(f"python{version}")
        several = [path for path in reversed(kept) if path.parts[-3].startswith(f"{version}.")]
        for path in (*several, *([Path(named)] if named else ()), Path(sys.executable)):
            code = "import ctypes, ensurepip, ssl, sys, venv; print('%d.%d' % sys.version_info[:2])"
            done = subprocess.run([path, "-I", "-c", code], capture_output=True, text=True, check=False)
            if done.stdout.strip() == version:
                found[version] = path
                break
    return found


def python_for(row: Environment, here: Mapping[str, Path]) -> Path | None:
    """The interpreter of a row: one that is here, or that of a system; None where neither is to be had."""
    system = SYSTEMS.get(row.python)
    if row.python in here or system is None:
        return here.get(row.python)
    try:
        found = interpreter(system, row.python)
    except MissingError as error:
        say(f"Python {row.python} of {system.title}: {error}")
        return None
    row.results.append(f"of {system.title}")
    return found


# The wheel


def build_twice(place: Path) -> tuple[Path, Path]:
    """Build from the work tree, and from the unpacked sdist with other settings; returns the wheel and the sdist's
    folder.

    Raises:
        StepError: a build failed, or the second gave other bytes than the first.
    """
    command = (sys.executable, "-m", "build", "--no-isolation", "--sdist", "--wheel", "--outdir")
    run(*command, place / "one", variables={"TZ": "UTC", "LC_ALL": "C.UTF-8"}, umask=0o022)
    (sdist,) = (place / "one").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(place / "unpacked", filter="data")
    (source,) = (place / "unpacked").iterdir()
    run(*command, place / "two", cwd=source, variables={"TZ": "Asia/Tokyo", "LC_ALL": "C"}, umask=0o077)
    digests = [digests_of(place / name) for name in ("one", "two")]
    if digests[0] != digests[1]:
        raise StepError(f"two builds of the same source differ: {digests[0]} and {digests[1]}")
    for name, digest in digests[0].items():
        say(f"built twice, the same bytes: {name} sha256 {digest}")
    (wheel,) = (place / "one").glob("*.whl")
    if (shared := ROOT.parent / "shared").is_dir():  # reference files that some tests compare with
        (source.parent / "shared").symlink_to(shared)
    return wheel, source


def build_with_oldest_tool(place: Path, source: Path, wheel: Path) -> None:
    """Build once more with the lowest hatchling that pyproject.toml allows, in an environment that pip makes for it.

    Raises:
        StepError: that failed, or gave other files.
    """
    (version,) = set(re.findall(r'"hatchling>=([\d.]+)', (source / "pyproject.toml").read_text("utf-8")))
    limits = place / "build-constraints.txt"
    limits.write_text(f"hatchling=={version}\n", "utf-8")
    command = (sys.executable, "-m", "build", "--wheel", "--outdir", place / "three")
    run(*command, cwd=source, variables={"PIP_CONSTRAINT": str(limits)})
    (other,) = (place / "three").iterdir()
    names = [sorted(zipfile.ZipFile(path).namelist()) for path in (wheel, other)]
    if names[0] != names[1]:
        raise StepError(f"hatchling {version} packs other files: {sorted(set(names[0]) ^ set(names[1]))}")
    say(f"hatchling {version} packs the same files")


def digests_of(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file in a folder."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def requirements(wheel: Path, version: str) -> list[Requirement]:
    """The requirements of the wheel and its EXTRAS on this Python, without markers."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        asked = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])
    found = []
    for requirement in map(Requirement, asked):
        environments = [
            {"python_version": version, "python_full_version": f"{version}.0", "extra": extra}
            for extra in ("", *EXTRAS)
        ]
        if requirement.marker is None or any(requirement.marker.evaluate(one) for one in environments):
            requirement.marker = None
            found.append(requirement)
    return found


def floors(wheel: Path, version: str) -> list[str]:
    """``name==version`` with the lowest version that each dependency may have on this Python."""
    lowest: dict[str, Version] = {}
    for requirement in requirements(wheel, version):
        for one in requirement.specifier:
            if one.operator in (">=", "=="):
                lowest[requirement.name] = max(lowest.get(requirement.name, Version("0")), Version(one.version))
    return [f"{name}=={found}" for name, found in sorted(lowest.items())]


# One environment


@dataclass
class Environment:
    """Versions, results and licences of one environment."""

    python: str
    end: str
    versions: str = ""
    results: list[str] = field(default_factory=list)
    failed: bool = False
    seconds: float = 0.0
    packages: dict[str, list[str]] = field(default_factory=dict)


def check(row: Environment, interpreter: Path, wheel: Path, source: Path, place: Path, *suites: str) -> None:
    """Fill in ``row``: make its environment, install from a folder of wheels, run the tests."""
    python, wheels = place / "venv" / "bin" / "python", place / "wheels"
    place.mkdir()
    limits = place / "constraints.txt"
    limits.write_text("\n".join(floors(wheel, row.python) if row.end == "lowest" else []) + "\n", "utf-8")
    run(interpreter, "-m", "venv", place / "venv")
    # That of Python 3.10 looks for half an hour for versions that go together, where newer ones take seconds.
    run(python, *PIP, "install", "--quiet", "--upgrade", "pip")
    with_extras = f"glinfer[{','.join(EXTRAS)}]"
    fetched = (f"{with_extras} @ {wheel.as_uri()}", *TOOLS)
    run(python, *PIP, "download", "--quiet", "--only-binary=:all:", "--dest", wheels, "-c", limits, *fetched)
    install = (python, *PIP, "install", "--quiet", "--no-index", "--find-links", wheels, "-c", limits)
    run(*install, "glinfer")
    run(python, *PIP, "check")
    variables = {"GLINFER_TEST_WHEEL": str(wheel), "GLINFER_TEST_VENV": str(place / "venv")}
    test(row, "package", Path(sys.executable), source, variables, "tests/package")
    run(*install, with_extras)
    row.packages = json.loads(run(python, "-c", LICENCES))
    names = sorted({canonicalize_name(requirement.name) for requirement in requirements(wheel, row.python)})
    row.versions = " ".join(f"{name} {row.packages[name][0]}" for name in names)
    run(*install, *TOOLS)
    for suite in suites:
        test(row, suite, python, source, {}, "-n", "2", *SUITES[suite])


def test(row: Environment, suite: str, python: Path, source: Path, variables: Mapping[str, str], *options: str) -> None:
    """Run some tests and note how many passed; a failure does not stop the others."""
    command: tuple[str | Path, ...] = (python, "-m", "pytest", *QUIET, *options)
    try:
        told = run(*command, cwd=source, variables=variables, lines=40)
    except StepError as error:
        told = str(error)
        row.failed = True
        say(told)
    row.results.append(f"{suite} {summary(told)}")


def summary(told: str) -> str:
    """``3205 passed, 3 skipped`` from the last line of pytest."""
    return re.sub(r" in [\d.]+s.*| \(.*", "", told.strip().splitlines()[-1]).strip("= ")


def wheels_exist(wheel: Path, row: Environment) -> None:
    """Fill in ``row`` for a Python that is not here: check that pip finds wheels of all dependencies."""
    asked = [str(requirement) for requirement in requirements(wheel, row.python)]
    wanted = floors(wheel, row.python) if row.end == "lowest" else asked
    with tempfile.TemporaryDirectory() as folder:
        target = ("--python-version", row.python, "--only-binary=:all:", "--dest", folder)
        run(sys.executable, *PIP, "download", "--quiet", *target, *wanted)
        found = dict(parse_wheel_filename(file.name)[:2] for file in Path(folder).iterdir())
    names = {canonicalize_name(requirement.name) for requirement in requirements(wheel, row.python)}
    row.versions = " ".join(f"{name} {found[name]}" for name in sorted(names))
    row.results.append("wheels exist, not run: this Python is not here")


# Licences


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with a header, columns as wide as their cells."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = (head, ["-" * width for width in widths], *rows)
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def report(rows: Sequence[Environment]) -> Iterator[str]:
    """The table of environments, and the licences of the last one that was made."""
    cells = [(row.python, row.end, "; ".join(row.results), f"{row.seconds:.0f} s", row.versions) for row in rows]
    yield table(("Python", "versions", "result", "took", "of which"), cells)
    made = [row for row in rows if row.packages]
    if made:
        known = ((name, *told) for name, told in sorted(made[-1].packages.items()) if name not in ("glinfer", "pip"))
        licences = [(name, version, words[:60]) for name, version, words in known if name != "setuptools"]
        yield table(("dependency", "version", "licence, as its metadata tells"), licences)


@click.command("supply")
@click.option("--python", "pythons", multiple=True, metavar="3.12", help="Test only this Python. Repeatable.")
@click.option("--end", "ends", multiple=True, type=click.Choice(ENDS), help="Test only these versions. Repeatable.")
@click.option("--gl", "with_gl", is_flag=True, help="Also run the shader tests, a minute more each.")
@click.option(
    "--advisories",
    type=click.Path(path_type=Path),
    help="OSV records, for use without a network; see 'python -m qa audit --help'.",
)
def supply(pythons: tuple[str, ...], ends: tuple[str, ...], with_gl: bool, advisories: Path | None) -> None:
    """Build, install and test with the lowest and newest dependencies, on every Python here and on Ubuntu's 3.14.

    The wheel is built twice and must come out identical. It is installed into fresh environments, with the lowest and
    with the newest version of every dependency, and tested there. A table shows the results, known vulnerabilities and
    licences.

    \b
    python -m qa supply
    python -m qa supply --python 3.12 --end lowest

    \b
    Exit status:
      0  all tests passed, and no dependency is known to be vulnerable
      1  something failed, or a dependency is known to be vulnerable
      2  bad input
    """
    from qa.advisories import audit  # which reads the lock, and that is written by what is here

    here = find_pythons()
    if unknown := set(pythons) - set(PYTHONS):
        raise InputError(f"found --python {', '.join(sorted(unknown))}; expected some of {', '.join(PYTHONS)}")
    suites = tuple(SUITES) if with_gl else ("others",)
    rows = [Environment(python, end) for python in pythons or PYTHONS for end in ends or ENDS]
    with tempfile.TemporaryDirectory(prefix="glinfer-supply-") as folder:
        place = Path(folder)
        try:
            wheel, source = build_twice(place)
            build_with_oldest_tool(place, source, wheel)
        except StepError as error:
            say(str(error))
            raise click.exceptions.Exit(1) from None
        for row in rows:
            say(f"Python {row.python}, {row.end} versions")
            began = time.monotonic()
            try:
                if python := python_for(row, here):
                    check(row, python, wheel, source, place / f"{row.python}-{row.end}", *suites)
                else:
                    wheels_exist(wheel, row)
            except StepError as error:
                row.failed = True
                row.results.append("FAILED, see above")
                say(str(error))
            row.seconds = time.monotonic() - began
        vulnerable = False
        click.echo("\n\n".join(report(rows)))
        made = [row for row in rows if row.packages]
        for row in made[:1] + made[1:][-1:]:
            known = {name: version for name, (version, *_) in row.packages.items() if name not in ("glinfer", "pip")}
            words, bad = audit(known, place, advisories)
            vulnerable |= bool(bad)
            click.echo(f"\npip-audit, Python {row.python} with {row.end} versions: {words}")
    if vulnerable or any(row.failed for row in rows):
        raise click.exceptions.Exit(1)
