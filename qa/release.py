"""``python -m qa release``: the checklist of a release; each line passed, failed, or was skipped with its reason."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

import glinfer
from glinfer.errors import GlinferError, InputError
from qa.supply import ROOT, StepError, build_twice, run

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
DIST = ROOT / "dist"
_HEADING = re.compile(r"^## (\S+) \((\d{4}-\d\d-\d\d|unreleased)\)$", re.MULTILINE)
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Line:
    """A line of the checklist: whether it passed, and what it found or why it was skipped."""

    status: str
    said: str


@dataclass(frozen=True)
class Options:
    """Options of the checklist: the file of OSV's advisories, if there is one."""

    advisories: Path | None = None


def tag_of(version: str) -> str:
    """The tag of a version.

    Raises:
        InputError: the version is not three numbers, or three with ``rc`` and a fourth.
    """
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}(rc[1-9]\d*)?", version):
        raise InputError(f"the version is {version}; expected one like 0.1.0 or 0.1.0rc1")
    return f"v{version}"


def check_changelog(text: str, version: str) -> Line:
    """Whether the newest section is that of the version, with its date."""
    found = _HEADING.search(text)
    if found is None or found[1] != version:
        newest = "none" if found is None else found[1]
        return Line(FAILED, f"the newest section of CHANGELOG.md is {newest}; expected {version}")
    if found[2] == "unreleased":
        return Line(FAILED, f"CHANGELOG.md has {version} as unreleased; put the date in its place")
    return Line(PASSED, f"{version} of {found[2]}")


def _version(options: Options) -> Line:
    tag_of(glinfer.__version__)
    return check_changelog((ROOT / "CHANGELOG.md").read_text("utf-8"), glinfer.__version__)


def _tag(options: Options) -> Line:
    tag = tag_of(glinfer.__version__)
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return Line(SKIPPED, f"this is not a checkout of git; the tag is {tag}")
    if changed := run("git", "status", "--porcelain").splitlines():
        return Line(FAILED, f"{len(changed)} files are not committed: {changed[0][3:]}")
    tagged = run("git", "tag", "--list", tag).strip()
    here = run("git", "tag", "--points-at", "HEAD").split()
    if tagged and tag not in here:
        return Line(FAILED, f"{tag} is another commit already; raise __version__")
    return Line(PASSED, f"{tag} is this commit" if tagged else f"everything is committed; the tag will be {tag}")


def _lint(options: Options) -> Line:
    for command in (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",)):
        run(sys.executable, "-m", *command)
    return Line(PASSED, "ruff and mypy have no complaint")


def _tests(*selected: str) -> Callable[[Options], Line]:
    """A line that runs these tests."""

    def tested(options: Options) -> Line:
        told = run(*_PYTEST, *selected, lines=6)
        return Line(PASSED, re.sub(r" in [\d.:() ]+s?.*", "", told.strip().splitlines()[-1]).strip("= "))

    return tested


def _api(options: Options) -> Line:
    return Line(PASSED, run(sys.executable, "-m", "qa", "api").strip().splitlines()[-1])


def _wheel(options: Options) -> Line:
    """Build twice, and leave wheel and sdist in dist/."""
    with tempfile.TemporaryDirectory(prefix="glinfer-release-") as folder:
        wheel, _ = build_twice(Path(folder))
        DIST.mkdir(exist_ok=True)
        names = [Path(shutil.copy(each, DIST)).name for each in sorted(wheel.parent.iterdir())]
    return Line(PASSED, f"the same bytes twice: {', '.join(f'dist/{name}' for name in names)}")


def _sbom(options: Options) -> Line:
    wheel = DIST / f"glinfer-{glinfer.__version__}-py3-none-any.whl"
    if not wheel.exists():
        return Line(FAILED, f"{wheel.relative_to(ROOT)} is not there; run the line wheel first")
    return Line(PASSED, run(sys.executable, "-m", "qa", "sbom", wheel).strip().replace(f"{ROOT}/", ""))


def _audit(options: Options) -> Line:
    more = () if options.advisories is None else ("--advisories", options.advisories.resolve())
    told = run(sys.executable, "-m", "qa", "audit", *more).strip().splitlines()
    skipped = [line for line in told if ": skipped: " in line]
    return Line(SKIPPED, skipped[0].partition(": skipped: ")[2]) if skipped else Line(PASSED, "; ".join(told))


def _supply(options: Options) -> Line:
    more = () if options.advisories is None else ("--advisories", options.advisories.resolve())
    told = run(sys.executable, "-m", "qa", "supply", *more, lines=30)
    ran = [line.split()[0] for line in told.splitlines() if re.match(r"3\.\d+ +(lowest|newest) ", line)]
    away = [line.split()[0] for line in told.splitlines() if "not run: this Python is not here" in line]
    here = ", ".join(dict.fromkeys(each for each in ran if each not in away)) or "none"
    return Line(
        PASSED, f"both ends on Python {here}" + (f"; wheels alone on {', '.join(dict.fromkeys(away))}" if away else "")
    )


CHECKS: Mapping[str, tuple[str, Callable[[Options], Line]]] = {
    "version": ("version and changelog agree", _version),
    "tag": ("everything is committed, and the tag is free", _tag),
    "lint": ("style and types", _lint),
    "api": ("public names are those of qa/api.json", _api),
    "lock": ("requirements/dev.txt is within pyproject.toml", _tests("qa/tests/test_lock.py")),
    "upgrade": ("files of the version before", _tests("-m", "slow or not slow", "tests/upgrade")),
    "wheel": ("wheel and sdist, built twice", _wheel),
    "sbom": ("bill of materials", _sbom),
    "audit": ("known vulnerabilities of the lock", _audit),
    "docs": (
        "docs run as printed, with their numbers",
        _tests("-m", "slow or not slow", "tests/package/test_snippets.py"),
    ),
    "tests": ("every feature once", _tests("-n", "auto", "--maxprocesses", "4")),
    "slow": ("all other tests", _tests("-m", "slow", "-n", "auto", "--maxprocesses", "4")),
    "supply": ("both ends of all dependencies, on every Python here", _supply),
}
"""The lines in order, the quick ones first: what each is, and what does it."""

_NAMES = click.Choice(list(CHECKS))


def check(name: str, options: Options) -> Line:
    """One line; whatever goes wrong in it makes it fail."""
    try:
        return CHECKS[name][1](options)
    except (StepError, GlinferError, OSError) as error:
        return Line(FAILED, str(error))


@click.command("release")
@click.option("--only", multiple=True, type=_NAMES, metavar="NAME", help="Run only this check. Repeatable.")
@click.option("--skip", multiple=True, type=_NAMES, metavar="NAME", help="Skip this check. Repeatable.")
@click.option("--advisories", type=click.Path(exists=True, path_type=Path), help="As in 'python -m qa audit'.")
def release(only: tuple[str, ...], skip: tuple[str, ...], advisories: Path | None) -> None:
    """Run the release checklist, and print a line for each check with its name.

    Writes the wheel, sdist and bill of materials to dist/ and changes nothing else. The exit status is 1 if a check
    failed.

    \b
    python -m qa release
    python -m qa release --only version --only wheel --only sbom
    """
    options, counts = Options(advisories), dict.fromkeys((PASSED, FAILED, SKIPPED), 0)
    for name, (what, _) in CHECKS.items():
        began = time.monotonic()
        left_out = name in skip or (only and name not in only)
        line = Line(SKIPPED, "left out") if left_out else check(name, options)
        counts[line.status] += 1
        first, *more = line.said.splitlines() or [""]
        took = "" if left_out else f" ({time.monotonic() - began:.0f} s)"
        click.echo(f"{line.status:8} {name:8} {what}: {first}{took}")
        for each in more:
            click.echo(f"{'':18}{each}")
    click.echo(", ".join(f"{count} {status}" for status, count in counts.items()))
    if counts[FAILED]:
        raise click.exceptions.Exit(1)
