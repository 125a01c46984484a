"""What the documents point at is there: files and headings of links, and files named in backticks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
from own_process import ROOT

import glinfer
from glinfer.cli.app import cli
from glinfer.config import ModelConfig
from glinfer.families import DECODERS
from glinfer.lower.plans import plan_for
from glinfer.program.plan import draw_table
from qa.pictures.draws import figure

DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CHANGELOG.md", "tests/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
]
LINK = re.compile(r'\]\(([^)\s]+)\)|<img src="([^"]+)"')
NAMED = re.compile(r"(?<![\w./])[\w*-][\w.*-]*/[\w./*-]*\.(?:py|frag|vert|glsl|md|sh|svg|png|m?js)\b")
FOLDERS = ("", "glinfer", "docs", "shaders", "tests", "web", "web/src")
"""Where a document may begin a path."""


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def headings(path: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a document."""
    titles = re.findall(r"^#+ (.+)$", without_code(path.read_text("utf-8")), re.MULTILINE)
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken_links(path: Path, text: str) -> Iterator[str]:
    for found in LINK.finditer(without_code(text)):
        target = found[1] or found[2]
        name, _, anchor = target.partition("#")
        if re.match(r"\w+:", name):
            continue
        place = (path.parent / name).resolve() if name else path
        if not place.exists() or (anchor and anchor not in headings(place)):
            yield target


def missing_files(text: str, folders: tuple[str, ...] = FOLDERS) -> Iterator[str]:
    for code in re.findall(r"`([^`\n]+)`", without_code(text)):
        for name in NAMED.findall(code):
            if not any(list(ROOT.glob(f"{folder}/{name}".strip("/"))) for folder in folders):
                yield name


def test_links_and_named_files_are_there() -> None:
    for path in DOCUMENTS:
        text = path.read_text("utf-8")
        name = path.relative_to(ROOT)
        assert list(broken_links(path, text)) == [], name
        assert name.name == "CHANGELOG.md" or list(missing_files(text)) == [], name


def test_what_is_not_there_is_seen() -> None:
    text = (
        '[a](nothing.md) [b](#no-such) [c](docs/gab.md#the-guide-and-glinfer) [d](docs/gab.md#no) <img src="x.svg"> '
        "`x` `glinfer/no.py` `glinfer/cli/draws.py` `cli/d*.py` `python scripts/no.sh`"
    )
    assert list(broken_links(ROOT / "README.md", text)) == ["nothing.md", "#no-such", "docs/gab.md#no", "x.svg"]
    assert list(missing_files(text)) == ["glinfer/no.py", "scripts/no.sh"]


def test_the_page_of_commands_has_each() -> None:
    text = (ROOT / "docs" / "commands.md").read_text("utf-8")
    names = cli.list_commands(click.Context(cli))
    assert len(names) > 20
    assert [name for name in names if f"`glinfer {name}" not in text] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def test_the_page_of_gab_names_the_passes_of_the_plan() -> None:
    """Draws, shaders and files of docs/gab.md, which begin at the root of the repository."""
    text = (ROOT / "docs" / "gab.md").read_text("utf-8")
    assert list(missing_files(text, ("",))) == []
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| ")
    ]
    draws: dict[str, int] = {}
    for row in rows:
        if shader := re.match(r"\[`shaders/(\w+)\.frag`\]", row[2]):
            count = sum(int(a) * int(b or 1) for a, b in re.findall(r"(\d+)(?: × (\d+))?", row[1]))
            draws[shader[1]] = draws.get(shader[1], 0) + count
    table = draw_table(plan_for(ModelConfig.from_options("gab"), "reference"), tokens=1)
    planned: dict[str, int] = {}
    for each in table.rows:
        planned[each.shader] = planned.get(each.shader, 0) + each.count
    assert draws == planned
    assert sum(draws.values()) == 244


def test_the_page_of_models_has_a_row_for_every_family() -> None:
    page = (ROOT / "docs" / "models.md").read_text("utf-8")
    cells = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    listed = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert sorted(DECODERS.keys() - listed) == []
    assert f"runs {len(DECODERS)} families of language models" in page


def test_the_figure_shows_the_draws_of_both_plans() -> None:
    drawn = figure()
    assert drawn == (ROOT / "docs" / "images" / "draws.svg").read_text("utf-8"), "python -m qa pictures --only draws"
    assert drawn.count("<title>") == 244 + 39


# The npm package beside the Python package


WEB = Path(__file__).resolve().parents[2] / "web"


def test_both_packages_have_one_version() -> None:
    about = json.loads((WEB / "package" / "package.json").read_text())
    assert (about["name"], about["version"]) == ("glinfer", glinfer.__version__)


def test_the_readme_names_every_method() -> None:
    readme = (WEB / "package" / "README.md").read_text()
    remote = (WEB / "glinfer" / "host.js").read_text().partition("export class RemoteModel")[2].partition("\n}\n")[0]
    methods = set(re.findall(r"^  (?:async )?(\w+)\(.*\) \{$", remote, re.MULTILINE)) - {"constructor", "figures"}
    assert len(methods) > 10
    missing = [name for name in sorted(methods) if f"`{name}`" not in readme]
    assert missing == []


def test_what_npm_installs_is_named_by_no_registry() -> None:
    lock = json.loads((WEB / "package-lock.json").read_text())
    assert lock["packages"]["node_modules/typescript"]["integrity"]
    assert not [name for name, entry in lock["packages"].items() if "resolved" in entry]
