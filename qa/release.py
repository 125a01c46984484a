"""``python -m qa release``: the checklist of a release; each line passed, failed, or was skipped with its reason."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping

import click

import glinfer
from glinfer.errors import GlinferError
from qa.api import Snapshot
from qa.steps import ROOT, StepError, run
from qa.supply import run_tests

DIST = ROOT / "dist"
FOUR = ("-n", "auto", "--maxprocesses", "4")
Check = Callable[[], str]


class SkippedError(Exception):
    """A check cannot be made here; the message says why."""


def changelog(text: str, version: str) -> str:
    """Check that the newest section is that of the version, with its date."""
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}(rc[1-9]\d*)?", version):
        raise StepError(f"the version is {version}; expected one like 0.1.0 or 0.1.0rc1")
    found = re.search(r"(?m)^## (\S+) \((\d{4}-\d\d-\d\d|unreleased)\)$", text)
    if found is None or found[1] != version:
        newest = "none" if found is None else found[1]
        raise StepError(f"the newest section of CHANGELOG.md is {newest}; expected {version}")
    if found[2] == "unreleased":
        raise StepError(f"CHANGELOG.md has {version} as unreleased; put the date in its place")
    return f"{version} of {found[2]}"


def tag() -> str:
    """Check that everything is committed, and that the tag is free or names this commit."""
    name = f"v{glinfer.__version__}"
    if not (ROOT / ".git").exists():
        raise SkippedError(f"this is not a checkout of git; the tag is {name}")
    if changed := run("git", "status", "--porcelain", cwd=ROOT).splitlines():
        raise StepError(f"{len(changed)} files are not committed: {changed[0][3:]}")
    if name in run("git", "tag", "--points-at", "HEAD", cwd=ROOT).split():
        return f"{name} is this commit"
    if run("git", "tag", "--list", name, cwd=ROOT):
        raise StepError(f"{name} is another commit already; raise __version__")
    return f"everything is committed; the tag will be {name}"


def wheel() -> str:
    """Build twice, and leave wheel and sdist in dist/."""
    output = run_tests(sys.executable, "-m", "slow or not slow", "tests/package/test_reproducible.py")
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--wheel", "--outdir", DIST, lines=40)
    names = sorted(each.name for each in DIST.glob(f"glinfer-{glinfer.__version__}[-.]*") if each.suffix != ".json")
    return f"the same bytes twice ({output}): {', '.join(f'dist/{name}' for name in names)}"


def recorded(version: str) -> str:
    """Check that names and files are recorded as those of the version, for later versions to keep and to read."""
    if (marked := Snapshot.read().released) != version:
        raise StepError(f"qa/api.json is of {marked or 'no release'}; run 'python -m qa api --released'")
    folder = f"tests/upgrade/recorded/{version}"
    if not (ROOT / folder).is_dir():
        raise StepError(f"{folder} is missing; run 'python -I tests/upgrade/record.py {folder}'")
    return f"qa/api.json and {folder}"


def qa(*words: str) -> str:
    """Run a command of 'python -m qa'; returns the last line of its output."""
    output = run(sys.executable, "-m", "qa", *words, lines=40).strip()
    if skipped := re.search(r": skipped: (.*)", output):
        raise SkippedError(skipped[1])
    return output.splitlines()[-1]


CHECKS: Mapping[str, tuple[str, Check]] = {
    "version": (
        "version and changelog agree",
        lambda: changelog((ROOT / "CHANGELOG.md").read_text("utf-8"), glinfer.__version__),
    ),
    "tag": ("everything is committed, and the tag is free", tag),
    "lint": ("style and types", lambda: run("make", "--silent", "lint", lines=40).splitlines()[-1]),
    "api": ("public names are those of qa/api.json", lambda: qa("api")),
    "records": ("names and files of this version are recorded", lambda: recorded(glinfer.__version__)),
    "wheel": ("wheel and sdist, built twice", wheel),
    "sbom": ("bill of materials", lambda: qa("sbom", f"dist/glinfer-{glinfer.__version__}-py3-none-any.whl")),
    "audit": ("known vulnerabilities of the lock", lambda: qa("audit")),
    "tests": ("every feature once, files of earlier versions, and the lock", lambda: run_tests(sys.executable, *FOUR)),
    "slow": ("all other tests, and docs that run as printed", lambda: run_tests(sys.executable, "-m", "slow", *FOUR)),
    "supply": ("both ends of all dependencies, on every Python here", lambda: qa("supply")),
}
NAMES = click.Choice([*CHECKS])


def check(name: str) -> tuple[str, str]:
    """The status of a check and its message; an error makes it fail."""
    try:
        return "passed", CHECKS[name][1]()
    except SkippedError as reason:
        return "skipped", str(reason)
    except (GlinferError, OSError) as error:
        return "failed", str(error)


@click.command()
@click.option("--only", multiple=True, type=NAMES, metavar="NAME", help="Run only this check. Repeatable.")
@click.option("--skip", multiple=True, type=NAMES, metavar="NAME", help="Skip this check. Repeatable.")
def release(only: tuple[str, ...], skip: tuple[str, ...]) -> None:
    """Run the release checklist, and print a line for each check with its name.

    Writes the wheel, sdist and bill of materials to dist/ and changes nothing else. The exit status is 1 if a check
    failed.

    \b
    python -m qa release --only version --only wheel --only sbom
    """
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for name, (what, _) in CHECKS.items():
        began = time.monotonic()
        left_out = name in skip or (only and name not in only)
        status, said = ("skipped", "left out") if left_out else check(name)
        counts[status] += 1
        click.echo(f"{status:8} {name:8} {what}: {said}{'' if left_out else f' ({time.monotonic() - began:.0f} s)'}")
    click.echo(", ".join(f"{count} {status}" for status, count in counts.items()))
    raise click.exceptions.Exit(int(counts["failed"] > 0))
