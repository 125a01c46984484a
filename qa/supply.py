"""Dependencies, by uv and the tools that it runs: ``python -m qa lock``, ``audit``, ``sbom`` and ``supply``."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import click
from packaging.markers import Marker
from packaging.utils import parse_wheel_filename

from qa.steps import ROOT, StepError, run

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
LOCK = ROOT / "requirements" / "dev.txt"
HEADER = """\
# What the tests are installed with, each file by its hash, on every Python and system that glinfer is for.
# `LOCKED=1 make test` installs these and nothing else; `python -m qa lock` writes them anew from pyproject.toml.
"""
ENDS = {"lowest": "lowest-direct", "newest": "highest"}
EXTRAS = ("gguf", "plots", "server")
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "jsonschema", "httpx", "openai")
OTHERS = ("-n", "2", "-m", "not gl and not slow and not web and not package", "--ignore=tests/package", "tests")
SHADERS = ("-n", "2", "tests/gl", "tests/kernels", "tests/tensors")
PIP_AUDIT = ("pip-audit>=2.7,<3", "pip-audit", "--no-deps", "--disable-pip", "--progress-spinner=off", "-f", "json")
CYCLONEDX = ("cyclonedx-bom>=7,<8", "cyclonedx-py", "environment", "--output-reproducible", "--of", "JSON")


def uv(*words: str | Path, passing: int = 0) -> str:
    """Run uv, which is installed into .cache/uv first and also finds pyenv's Pythons; errors as of :func:`run`."""
    program = ROOT / ".cache" / "uv" / "bin" / "uv"
    if not program.exists():
        run(sys.executable, "-m", "pip", "install", "--quiet", "--target", program.parents[1], "uv>=0.9,<1")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    path = os.pathsep.join([*map(str, pyenv.glob("versions/*/bin")), os.environ.get("PATH", "")])
    return run(program, *words, passing=passing, variables={"PATH": path})


def resolve(target: Path, python: str, *options: str | Path) -> dict[str, str]:
    """Write the versions that uv resolves for pyproject.toml into ``target``; returns them by package."""
    quiet = ("--quiet", "--no-header", "--no-emit-index-url", "--output-file", target)
    uv("pip", "compile", *quiet, "--python-version", python, *options, ROOT / "pyproject.toml")
    return locked(target.read_text("utf-8"), python)


def locked(text: str, python: str, system: str = "linux") -> dict[str, str]:
    """The version of each package that a lock names for a Python, such as ``3.12``, and a system."""
    place = {"python_version": python, "python_full_version": f"{python}.5", "sys_platform": system}
    place |= {"platform_system": system.title(), "platform_python_implementation": "CPython"}
    lines = re.findall(r"(?m)^([\w.-]+)==([^\s;]+)(?: *; *([^\\\n]*[^\\\s]))?", text)
    return {name: version for name, version, marker in lines if not marker or Marker(marker).evaluate({**place})}


def audit(pinned: Mapping[str, str]) -> tuple[str, bool]:
    """Look for known vulnerabilities with pip-audit; returns a line about them, and whether there are any."""
    with tempfile.TemporaryDirectory(prefix="glinfer-audit-") as folder:
        listed = Path(folder, "pinned.txt")
        listed.write_text("".join(f"{name}=={version}\n" for name, version in pinned.items()), "utf-8")
        for service in ("pypi", "osv"):
            with suppress(StepError, ValueError):
                answer = uv("tool", "run", "--from", *PIP_AUDIT, "-s", service, "-r", listed, passing=1)
                if known := [one for one in json.loads(answer)["dependencies"] if "vulns" in one]:
                    bad = [f"{one['name']} {one['version']}: {bug['id']}" for one in known for bug in one["vulns"]]
                    output = f"{len(known)} of {len(pinned)} looked up ({service})"
                    return f"{output}: {', '.join(bad) or 'none known'}", bool(bad)
    return "skipped: neither PyPI nor OSV answers pip-audit", False


@click.command()
def lock() -> None:
    """Rewrite requirements/dev.txt with the newest versions that pyproject.toml allows, and the hash of each file.

    \b
    python -m qa lock
    """
    with tempfile.TemporaryDirectory(prefix="glinfer-lock-") as folder:
        written, build = Path(folder, "locked.txt"), Path(folder, "build.in")
        build.write_text("editables\n", "utf-8")  # hatchling needs it to install a checkout in editable mode
        resolve(written, PYTHONS[0], "--universal", "--generate-hashes", "--no-annotate", "--extra", "dev", build)
        LOCK.write_text(HEADER + written.read_text("utf-8"), "utf-8")
    click.echo(f"{LOCK.relative_to(ROOT)} is written for Python {PYTHONS[0]} to {PYTHONS[-1]}")


@click.command("audit")
def audit_command() -> None:
    """Check every version in requirements/dev.txt for known vulnerabilities.

    pip-audit asks PyPI, then OSV. If neither answers, one line reports that nothing was checked. The exit status is 1
    if a version is vulnerable.

    \b
    python -m qa audit
    """
    found = {python: audit(locked(LOCK.read_text("utf-8"), python)) for python in (PYTHONS[0], PYTHONS[-1])}
    for python, (output, _) in found.items():
        click.echo(f"Python {python}: {output}")
    raise click.exceptions.Exit(int(any(bad for _, bad in found.values())))


@click.command()
@click.argument("wheel", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Output file. Default: next to the wheel.")
def sbom(wheel: Path, out: Path | None) -> None:
    """Write the bill of materials of WHEEL, with the versions of requirements/dev.txt, as CycloneDX JSON.

    \b
    python -m qa sbom dist/glinfer-0.1.0-py3-none-any.whl
    """
    name, version = parse_wheel_filename(wheel.name)[:2]
    target = out or wheel.with_name(f"{name}-{version}.cdx.json")
    with tempfile.TemporaryDirectory(prefix="glinfer-sbom-") as folder:
        python, about, written = (Path(folder, each) for each in ("venv/bin/python", "pyproject.toml", "bom.json"))
        project = (ROOT / "pyproject.toml").read_text("utf-8")
        about.write_text(project.replace('dynamic = ["version"]', f'version = "{version}"'), "utf-8")
        uv("venv", "--quiet", "--python", sys.executable, python.parents[1])
        limits = ("--only-binary", ":all:", "--no-verify-hashes", "-c", LOCK)
        uv("pip", "install", "--quiet", "--python", python, *limits, wheel.resolve())
        uv("tool", "run", "--from", *CYCLONEDX, "--mc-type", "library", "--pyproject", about, "-o", written, python)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(written, target)
    click.echo(f"{target}: glinfer and {len(json.loads(target.read_bytes())['components'])} packages")


def run_tests(python: str | Path, *options: str, cwd: Path = ROOT, **variables: str) -> str:
    """Run tests; returns how many passed, such as ``3205 passed, 3 skipped``."""
    command = (python, "-m", "pytest", "-q", "-rfE", "--tb=short", "--disable-warnings", "-p", "no:cacheprovider")
    output = run(*command, *options, cwd=cwd, lines=40, variables=variables)
    return re.sub(r" in [\d.]+s.*| \(.*", "", output.strip().splitlines()[-1]).strip("= ")


def check(python: str, end: str, place: Path, source: Path, with_gl: bool) -> Iterator[str]:
    """Install a wheel with the lowest or newest dependencies into a new environment, and test it; yields results."""
    limits, build, inside = place / "limits.txt", place / "build.txt", place / "venv" / "bin" / "python"
    extras = (f"--extra={each}" for each in EXTRAS)
    pinned = resolve(limits, python, f"--resolution={ENDS[end]}", "--only-binary=:all:", *extras)
    yield " ".join(f"{name} {version}" for name, version in pinned.items())
    output, bad = audit(pinned)
    yield f"{'FAILED: ' * bad}vulnerabilities: {output}"
    try:
        uv("venv", "--quiet", "--python", python, place / "venv")
    except StepError as error:
        yield f"wheels exist, not run: {error}"
        return
    oldest = re.findall(r'"hatchling>=([\d.]+)', (source / "pyproject.toml").read_text("utf-8"))[0]
    build.write_text(f"hatchling=={oldest}\n" if end == "lowest" else "", "utf-8")
    uv("build", "--quiet", "--wheel", "-b", build, "--out-dir", place / "dist", source)
    (wheel,) = (place / "dist").glob("*.whl")
    install = ("pip", "install", "--quiet", "--python", inside, "--only-binary", ":all:", "-c", limits)
    uv(*install, wheel)
    uv("pip", "check", "--python", inside)
    variables = {"GLINFER_TEST_WHEEL": str(wheel), "GLINFER_TEST_VENV": str(place / "venv")}
    yield f"package: {run_tests(sys.executable, 'tests/package', cwd=source, **variables)}"
    uv(*install, f"glinfer[{','.join(EXTRAS)}] @ {wheel.as_uri()}")
    uv(*install, *TOOLS)
    yield f"others: {run_tests(inside, *OTHERS, cwd=source)}"
    if with_gl:
        yield f"gl: {run_tests(inside, *SHADERS, cwd=source)}"


@click.command()
@click.option("--python", "pythons", multiple=True, type=click.Choice(PYTHONS), help="Test only this one. Repeatable.")
@click.option("--end", "ends", multiple=True, type=click.Choice([*ENDS]), help="Test only these versions. Repeatable.")
@click.option("--gl", "with_gl", is_flag=True, help="Also run the shader tests, a minute more each.")
def supply(pythons: tuple[str, ...], ends: tuple[str, ...], with_gl: bool) -> None:
    """Build, install and test with the lowest and newest dependencies, on every Python that uv finds or downloads.

    Each environment prints its versions, known vulnerabilities and results. For a Python that cannot be had, only
    wheels must exist.

    \b
    python -m qa supply --python 3.12 --end lowest

    \b
    Exit status:
      0  all tests passed, and no dependency is known to be vulnerable
      1  something failed, or a dependency is known to be vulnerable
      2  bad input
    """
    failed: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="glinfer-supply-") as folder:
        run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", folder)
        shutil.unpack_archive(next(Path(folder).glob("*.tar.gz")), folder)
        (source,) = Path(folder).glob("glinfer-*/")
        for python, end in [(python, end) for python in pythons or PYTHONS for end in ends or ENDS]:
            label, place = f"Python {python} {end}", Path(folder, f"{python}-{end}")
            place.mkdir()
            try:
                for result in check(python, end, place, source, with_gl):
                    click.echo(f"{label}: {result}")
                    failed |= {label} if result.startswith("FAILED") else set()
            except StepError as error:
                failed.add(label)
                click.echo(f"{label}: FAILED: {error}")
    click.echo(f"failed: {', '.join(sorted(failed)) or 'none'}")
    raise click.exceptions.Exit(int(bool(failed)))
