"""``python -m qa sbom``: what a wheel brings along, as a software bill of materials in CycloneDX's JSON.

The wheel is installed into an empty environment, with the versions of requirements/dev.txt, and cyclonedx-bom describes
that environment. The same wheel and the same lock give the same bytes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import click
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from glinfer.errors import InputError
from qa.lock import LOCK, applying, read_lock
from qa.supply import PIP, ROOT, StepError, run, tool_environment

CYCLONEDX = "cyclonedx-bom>=7,<8"
FORMAT = "CycloneDX"


def write_sbom(wheel: Path, target: Path, place: Path) -> int:
    """Describe a wheel and its core dependencies; returns how many packages are named beside it.

    Args:
        wheel: the wheel.
        target: the file to write.
        place: a folder for the environments.

    Raises:
        StepError: something cannot be installed, or the tool failed.
    """
    tool = tool_environment(place / "cyclonedx", CYCLONEDX)
    python = place / "described" / "bin" / "python"
    run(sys.executable, "-m", "venv", "--without-pip", place / "described")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    pinned = applying(read_lock(LOCK.read_text("utf-8")), version)
    limits = place / "constraints.txt"
    limits.write_text("".join(f"{name}=={found}\n" for name, found in pinned.items()), "utf-8")
    run(tool, *PIP, "--python", python, "install", "--quiet", "--only-binary=:all:", "-c", limits, wheel)
    target.parent.mkdir(parents=True, exist_ok=True)
    written, about = place / "bom.json", place / "pyproject.toml"
    about.write_text(with_version((ROOT / "pyproject.toml").read_text("utf-8"), version_of(wheel)), "utf-8")
    options = ("--mc-type", "library", "--output-reproducible", "--of", "JSON", "-o", written)
    run(tool.with_name("cyclonedx-py"), "environment", "--pyproject", about, *options, python)
    count = check_sbom(json.loads(written.read_text("utf-8")), version_of(wheel))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(written.read_bytes())
    return count


def version_of(wheel: Path) -> str:
    """The version in a wheel's name."""
    return str(parse_wheel_filename(wheel.name)[1])


def with_version(pyproject: str, version: str) -> str:
    """The text of pyproject.toml with the version that a build reads from the package, which the tool does not.

    Raises:
        StepError: the version is not told where it was.
    """
    told = pyproject.replace('dynamic = ["version"]', f'version = "{version}"')
    if told == pyproject:
        raise StepError("pyproject.toml has no line 'dynamic = [\"version\"]'")
    return told


def check_sbom(bom: Mapping[str, Any], version: str) -> int:
    """How many packages a bill of materials names beside glinfer.

    Raises:
        StepError: it is none of this version, or lacks a core dependency.
    """
    main = bom.get("metadata", {}).get("component", {})
    if (bom.get("bomFormat"), main.get("name"), main.get("version")) != (FORMAT, "glinfer", version):
        raise StepError(f"cyclonedx-bom describes {main.get('name')} {main.get('version')}, not glinfer {version}")
    named = {canonicalize_name(each["name"]) for each in bom["components"]}
    asked = {
        canonicalize_name(each.name)
        for each in map(Requirement, metadata.requires("glinfer") or ())
        if each.marker is None or each.marker.evaluate({"extra": ""})
    }
    if lacking := asked - named:
        raise StepError(f"cyclonedx-bom does not name {', '.join(sorted(lacking))}")
    return len(named - {"glinfer"})


@click.command("sbom")
@click.argument("wheel", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Output file. Default: next to the wheel.")
def sbom(wheel: Path, out: Path | None) -> None:
    """Write the software bill of materials of WHEEL as CycloneDX JSON.

    \b
    make wheel
    python -m qa sbom dist/glinfer-0.1.0-py3-none-any.whl
    """
    target = out or wheel.with_name(f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json")
    with tempfile.TemporaryDirectory(prefix="glinfer-sbom-") as folder:
        try:
            count = write_sbom(wheel.resolve(), target, Path(folder))
        except StepError as error:
            raise InputError(f"no bill of materials: {str(error).splitlines()[-1]}") from None
    click.echo(f"{target}: glinfer and {count} packages")
