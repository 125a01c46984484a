"""What is pinned, and what is in a wheel: ``python -m qa lock``, ``audit`` and ``sbom``."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from packaging.markers import Marker
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from glinfer.errors import InputError
from qa.steps import PYTHONS, ROOT, StepError, resolve, run, uv

LOCK = ROOT / "requirements" / "dev.txt"
HEADER = """\
# What the tests are installed with, each file by its hash, on every Python and system that glinfer is for.
# `LOCKED=1 make test` installs these and nothing else; `python -m qa lock` writes them anew from pyproject.toml.
"""
PIP_AUDIT = ("tool", "run", "--from", "pip-audit>=2.7,<3", "pip-audit", "--no-deps", "--disable-pip", "-f", "json")
CYCLONEDX = ("tool", "run", "--from", "cyclonedx-bom>=7,<8", "cyclonedx-py", "environment", "--output-reproducible")


def locked(text: str, python: str, system: str = "linux") -> dict[str, str]:
    """The version of each package that a lock names for a Python, such as ``3.12``, and a system."""
    place = {"python_version": python, "python_full_version": f"{python}.5", "sys_platform": system}
    place |= {"platform_system": system.title(), "platform_python_implementation": "CPython"}
    lines = re.findall(r"(?m)^([\w.-]+)==([^\s;]+)(?: *; *([^\\\n]*[^\\\s]))?", text)
    return {name: version for name, version, marker in lines if not marker or Marker(marker).evaluate({**place})}


@click.command()
def lock() -> None:
    """Rewrite requirements/dev.txt with the newest versions that pyproject.toml allows, and the hash of each file.

    \b
    python -m qa lock
    """
    with tempfile.TemporaryDirectory(prefix="glinfer-lock-") as folder:
        written, build = Path(folder, "locked.txt"), Path(folder, "build.in")
        build.write_text("editables\n", "utf-8")  # hatchling needs it to install a checkout in editable mode
        options = ("--universal", "--generate-hashes", "--no-annotate", "--extra", "dev", build)
        count = len(resolve(written, PYTHONS[0], *options))
        LOCK.write_text(HEADER + written.read_text("utf-8"), "utf-8")
    click.echo(f"{LOCK.relative_to(ROOT)}: {count} packages for Python {PYTHONS[0]} to {PYTHONS[-1]}")


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
        told = (ROOT / "pyproject.toml").read_text("utf-8")
        about.write_text(told.replace('dynamic = ["version"]', f'version = "{version}"'), "utf-8")
        run(sys.executable, "-m", "venv", "--without-pip", python.parents[1])
        limits = ("--only-binary", ":all:", "--no-verify-hashes", "-c", LOCK)
        uv("pip", "install", "--quiet", "--python", python, *limits, wheel.resolve())
        uv(*CYCLONEDX, "--mc-type", "library", "--of", "JSON", "--pyproject", about, "-o", written, python)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(written.read_bytes())
    click.echo(f"{target}: glinfer and {len(json.loads(target.read_bytes())['components'])} packages")


@click.command("audit")
@click.option("--advisories", type=click.Path(path_type=Path), help="File, folder or zip file of OSV records.")
def audit_command(advisories: Path | None) -> None:
    """Check every version in requirements/dev.txt for known vulnerabilities.

    pip-audit asks PyPI, then OSV. If neither answers, the records of --advisories are searched; without them one line
    reports that nothing was checked. The exit status is 1 if a version is vulnerable.

    \b
    python -m qa audit --advisories all.zip
    """
    found = {python: audit(locked(LOCK.read_text("utf-8"), python), advisories) for python in (PYTHONS[0], PYTHONS[-1])}
    for python, (told, _) in found.items():
        click.echo(f"Python {python}: {told}")
    raise click.exceptions.Exit(int(any(bad for _, bad in found.values())))


def audit(pinned: Mapping[str, str], advisories: Path | None = None) -> tuple[str, bool]:
    """Look for known vulnerabilities; returns a line about them, and whether there are any."""
    service, known = looked_up(pinned)
    if known:
        told = f"{len(known)} of {len(pinned)} looked up ({service})"
        bad = [f"{one['name']} {one['version']}: {bug['id']}" for one in known for bug in one["vulns"]]
    elif advisories is not None:
        records = list(read_advisories(advisories))
        told, bad = f"{len(pinned)} looked up in {len(records)} advisories", vulnerable(pinned, records)
    else:
        return "skipped: neither PyPI nor OSV answers pip-audit; give advisories in a file: --advisories FILE", False
    return f"{told}: {', '.join(bad) or 'none known'}", bool(bad)


def looked_up(pinned: Mapping[str, str]) -> tuple[str, list[dict[str, Any]]]:
    """The service that answered pip-audit, and the packages it knows; none if none answered."""
    with tempfile.TemporaryDirectory(prefix="glinfer-audit-") as folder:
        listed = Path(folder, "pinned.txt")
        listed.write_text("".join(f"{name}=={version}\n" for name, version in pinned.items()), "utf-8")
        for service in ("pypi", "osv"):
            with suppress(StepError, ValueError):
                answer = json.loads(uv(*PIP_AUDIT, "--progress-spinner=off", "-s", service, "-r", listed, passing=1))
                if known := [one for one in answer["dependencies"] if "vulns" in one]:
                    return service, known
    return "", []


def read_advisories(path: Path) -> Iterator[Mapping[str, Any]]:
    """The OSV records of a JSON file, of all JSON files of a folder, or of a zip file.

    Raises:
        InputError: they cannot be read, or are not OSV records.
    """
    try:
        if path.is_file() and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                files = [(f"{path}/{name}", archive.read(name)) for name in archive.namelist()]
        else:
            files = [(str(each), each.read_bytes()) for each in sorted(path.rglob("*.json")) or [path]]
    except OSError as error:
        raise InputError(f"{path}: cannot read it: {error.strerror}; expected advisories of OSV as JSON") from None
    for label, data in files:
        found = None
        with suppress(ValueError):
            found = json.loads(data)
        for each in found if isinstance(found, list) else [found]:
            if not isinstance(each, dict) or "id" not in each or not isinstance(each.get("affected", []), list):
                raise InputError(f"{label}: found no advisory of OSV; expected JSON with an id and a list 'affected'")
            yield each


def vulnerable(pinned: Mapping[str, str], records: Sequence[Mapping[str, Any]]) -> list[str]:
    """``name version: id`` of each package and each record, not withdrawn, that affects its version."""
    versions, found = {canonicalize_name(name): version for name, version in pinned.items()}, set()
    for record in records:
        for affected in [] if record.get("withdrawn") else record.get("affected", []):
            package = affected.get("package", {})
            name = canonicalize_name(str(package.get("name", "")))
            if package.get("ecosystem") == "PyPI" and name in versions and _affects(affected, Version(versions[name])):
                found.add(f"{name} {versions[name]}: {record['id']}")
    return sorted(found)


def _affects(affected: Mapping[str, Any], version: Version) -> bool:
    """Whether a version is listed or within a range, as the OSV schema evaluates them."""
    listed = [("", text) for text in affected.get("versions", [])]
    for span in (each for each in affected.get("ranges", []) if each.get("type") != "GIT"):
        events = _versions([each for event in span.get("events", []) for each in event.items()])
        passed = [kind for at, kind in events if (at < version if kind == "last_affected" else at <= version)]
        if passed and passed[-1] == "introduced":
            return True
    return any(each == version for each, _ in _versions(listed))


def _versions(events: Sequence[tuple[str, str]]) -> list[tuple[Version, str]]:
    """Events in the order of their versions, without texts that are no version."""
    found = []
    for kind, text in events:
        with suppress(InvalidVersion):
            found.append((Version(text), kind))
    return sorted(found)
