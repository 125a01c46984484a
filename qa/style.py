"""``python -m qa style``: find phrases that make a text hard to read, in documents and source (``make lint``)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from glinfer.errors import InputError
from qa.steps import ROOT, StepError, run

ROOMS = ("README.md", "docs", "examples", "glinfer", "qa", "scripts", "shaders", "web")
ENDINGS = {".py", ".md", ".js", ".mjs", ".html", ".frag", ".vert", ".glsl", ".sh"}
SKIPPED = {"node_modules", "libraries", "dist", "tests", "__pycache__"}
HINTS = {
    r"so many|at most so": "name the number: N tokens, at most N",
    r"(?:is|are) told(?! apart)|tells what": "is printed, is reported, is listed; describes",
    r"what is asked|that was asked for": "the request, requested",
    r"(?:\bthere )?is no (?!longer|more)|(?-i:are none)": "is not a, without; there are no",  # "there is no" is plain
    r"of those that|whose own|likewise|by nobody": "name the thing",
    r"(?:beside|with much) other work": "on a busy machine",
    r"behind (?:it|them|the)\b": "after",
    r"\blies? in\b": "is in, is stored in",
    r"goes on with": "continues with",
    r"\btakes? in\b": "processes, accepts",
    r"as it comes": "name the order or the form",
    r"\bsays? it all": "list the contents",
    r"what (?:it|they) (?:is|are|has|have|takes?|does)\b": "use a noun: its type, its shape, its arguments",
}
BETWEEN = r"[\s#*/\"'`]+"  # a phrase may go over the end of a line, of a comment or of a string
PHRASES = [(re.compile(phrase.replace(" ", BETWEEN), re.IGNORECASE), hint) for phrase, hint in HINTS.items()]
WEAK = ("Bring", "Give", "Have", "Let", "Say", "Tell")
SUBJECTS = "Add, Fix, Remove, Rename, Move, Speed up, Document or Test"


def findings(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, phrase and hint of each hard phrase of a text, except on lines with ``style: ok``."""
    lines = text.splitlines()
    for pattern, hint in PHRASES:
        for found in pattern.finditer(text):
            first, last = (text.count("\n", 0, place) for place in found.span())
            allowed = any("style: ok" in line for line in lines[first : last + 1])
            if not allowed and not found[0].lower().startswith("there"):
                yield first + 1, re.sub(BETWEEN, " ", found[0]).strip(), hint


def listed(place: Path) -> list[str]:
    """The findings of a file, or of all files with text in a folder, as ``path:line: phrase -> hint``."""
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.suffix in ENDINGS)
    return [
        f"{os.path.relpath(path)}:{line}: {phrase} -> {hint}"
        for path in files
        if path != Path(__file__) and not SKIPPED.intersection(path.relative_to(place).parts)
        for line, phrase, hint in sorted(findings(path.read_text("utf-8", "replace")))
    ]


def weak_subjects(commits: str) -> list[str]:
    """The commits of a range whose subject does not begin with a verb for what the code does."""
    try:
        lines = run("git", "log", "--format=%h %s", commits, "--").splitlines()
    except StepError:
        raise InputError(f"git has no commits {commits!r}; expected a range, such as main~5..main") from None
    return [f"{line} -> begin with {SUBJECTS}" for line in lines if line.split(" ", 2)[1] in WEAK]


@click.command("style")
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--commits", metavar="RANGE", help="Check the subjects of these commits instead, such as main~5..main.")
def style(paths: Sequence[Path], commits: str | None) -> int:
    """List the hard phrases of PATHS; or, without PATHS, of the documents and the source.

    The exit status is 1 if something is listed.

    \b
    python -m qa style docs/models.md
    """
    found = weak_subjects(commits) if commits is not None else []
    places = [path.resolve() for path in paths] or ([ROOT / room for room in ROOMS] if commits is None else [])
    found += [line for place in places for line in listed(place)]
    click.echo("".join(f"{line}\n" for line in found), nl=False)
    return int(bool(found))
