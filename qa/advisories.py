"""Known vulnerabilities of pinned packages: from a service by pip-audit, or from advisories in files.

The files are records in the OSV schema of the Open Source Security Foundation: a JSON file with one record or a list of
them, a folder of such files, or a zip file of them, as OSV offers all records of an ecosystem.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from glinfer.errors import InputError
from qa.lock import LOCK, applying, read_lock
from qa.supply import PYTHONS, StepError, tool_environment

PIP_AUDIT = "pip-audit>=2.7,<3"
_ECOSYSTEM = "PyPI"
Record = Mapping[str, Any]


def audit(pinned: Mapping[str, str], place: Path, advisories: Path | None = None) -> tuple[str, bool | None]:
    """Look for known vulnerabilities: by pip-audit at PyPI's service, then at OSV's, then in local advisories.

    Args:
        pinned: the version of each package.
        place: a folder for pip-audit's environment.
        advisories: a file or a folder of OSV's records, used where no service answers.

    Returns:
        a line that says what was found and by what, and whether there is any; None where nobody could be asked.

    Raises:
        InputError: the advisories cannot be read.
    """
    told, bad = _by_service(pinned, place)
    if bad is not None or advisories is None:
        return told if bad is not None else f"skipped: {told}; give advisories in a file: --advisories FILE", bad
    records = list(read_advisories(advisories))
    found = vulnerable(pinned, records)
    return f"{len(pinned)} looked up in {len(records)} advisories of {advisories}: {_said(found)}", bool(found)


def _said(found: list[str]) -> str:
    return ", ".join(found) or "none known"


def _by_service(pinned: Mapping[str, str], place: Path) -> tuple[str, bool | None]:
    """What a service knows, or why nobody was asked and None."""
    listed = place / "resolved.txt"
    listed.write_text("".join(f"{name}=={version}\n" for name, version in sorted(pinned.items())), "utf-8")
    try:
        tool = tool_environment(place / "audit", PIP_AUDIT)
    except StepError as error:
        return f"pip-audit cannot be installed ({str(error).splitlines()[-1]})", None
    for service in ("pypi", "osv"):
        options = ("--requirement", listed, "--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json")
        done = subprocess.run(
            [tool, "-m", "pip_audit", "-s", service, *options], capture_output=True, text=True, check=False
        )
        try:
            looked_up = [one for one in json.loads(done.stdout)["dependencies"] if "vulns" in one]
        except (ValueError, KeyError):
            continue
        if not looked_up:  # what a service does not answer for is left out, and no reason to fail
            continue
        bad = [f"{one['name']} {one['version']}: {bug['id']}" for one in looked_up for bug in one["vulns"]]
        return f"{len(looked_up)} of {len(pinned)} looked up ({service}): {_said(bad)}", bool(bad)
    return "no vulnerability service (PyPI, OSV) answers", None


def read_advisories(path: Path) -> Iterator[Record]:
    """The records of a file, of all files of a folder, or of a zip file.

    Raises:
        InputError: they cannot be read, or are no records of OSV.
    """
    try:
        if path.is_dir():
            for each in sorted(path.rglob("*.json")):
                yield from _records(each.read_bytes(), str(each))
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for name in sorted(archive.namelist()):
                    yield from _records(archive.read(name), f"{path}/{name}")
        else:
            yield from _records(path.read_bytes(), str(path))
    except OSError as error:
        raise InputError(f"{path}: cannot read it: {error.strerror}; expected advisories of OSV as JSON") from None


def _records(data: bytes, label: str) -> Iterator[Record]:
    try:
        found = json.loads(data)
    except ValueError:
        raise InputError(f"{label}: is not JSON; expected an advisory of OSV or a list of them") from None
    for each in found if isinstance(found, list) else [found]:
        if not isinstance(each, dict) or "id" not in each or not isinstance(each.get("affected", []), list):
            raise InputError(f"{label}: is not an advisory of OSV, which has an id and a list 'affected'")
        yield each


def vulnerable(pinned: Mapping[str, str], records: list[Record]) -> list[str]:
    """``name version: id`` of each package and each record, not withdrawn, that affects its version."""
    versions = {canonicalize_name(name): version for name, version in pinned.items()}
    found = []
    for record in records:
        if record.get("withdrawn"):
            continue
        for affected in record.get("affected", []):
            package = affected.get("package", {})
            name = canonicalize_name(str(package.get("name", "")))
            if package.get("ecosystem") == _ECOSYSTEM and name in versions and _affects(affected, versions[name]):
                found.append(f"{name} {versions[name]}: {record['id']}")
    return sorted(set(found))


def _affects(affected: Mapping[str, Any], version: str) -> bool:
    """Whether a version is among the listed ones or within a range, as the schema of OSV evaluates them."""
    wanted = Version(version)
    if any(_version(each) == wanted for each in affected.get("versions", [])):
        return True
    for each in affected.get("ranges", []):
        if each.get("type") not in ("ECOSYSTEM", "SEMVER"):
            continue  # commits say nothing of versions
        inside = False
        for kind, bound in sorted(_events(each), key=lambda event: (event[1], event[0] == "last_affected")):
            if kind == "introduced" and wanted >= bound:
                inside = True
            elif (kind == "fixed" and wanted >= bound) or (kind == "last_affected" and wanted > bound):
                inside = False
        if inside:
            return True
    return False


def _events(span: Mapping[str, Any]) -> Iterator[tuple[str, Version]]:
    for event in span.get("events", []):
        for kind, text in event.items():
            bound = _version(text)
            if kind in ("introduced", "fixed", "last_affected") and bound is not None:
                yield kind, bound


def _version(text: Any) -> Version | None:
    """A version; None where it is none."""
    try:
        return Version(str(text))
    except InvalidVersion:
        return None


@click.command("audit")
@click.option(
    "--advisories",
    type=click.Path(path_type=Path),
    help="File, folder or zip file of OSV records, for use without a network.",
)
def audit_command(advisories: Path | None) -> None:
    """Check every version in requirements/dev.txt for known vulnerabilities.

    pip-audit asks PyPI, then OSV. If neither answers, the records of --advisories are searched; without them one line
    reports that nothing was checked. The exit status is 1 if a version is vulnerable.

    \b
    python -m qa audit
    python -m qa audit --advisories all.zip
    """
    bad = False
    for label, pinned in locked_sets().items():
        with tempfile.TemporaryDirectory(prefix="glinfer-audit-") as folder:
            told, found = audit(pinned, Path(folder), advisories)
        bad |= bool(found)
        click.echo(f"{label}: {told}")
    if bad:
        raise click.exceptions.Exit(1)


def locked_sets() -> dict[str, dict[str, str]]:
    """The versions that the lock names, for the oldest Python and for the newest."""
    pinned = read_lock(LOCK.read_text("utf-8"))
    return {f"Python {python}": applying(pinned, python) for python in (PYTHONS[0], PYTHONS[-1])}
