"""The documentation as a site: every page of its menu, every link, every public name, and nothing from elsewhere."""

from __future__ import annotations

import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from own_process import ROOT, finished

import glinfer

LOADING = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src")}
ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):(?=[`<])")


class Page(HTMLParser):
    """The anchors of a page, and what it links to and loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self.anchors, self.links, self.loads = path, {""}, list[str](), list[str]()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.anchors.add(value or "")
            elif (tag, name) in LOADING:
                self.loads.append(value or "")
            elif (tag, name) == ("a", "href"):
                self.links.append(value or "")


def broken(pages: dict[Path, Page]) -> list[tuple[str, str]]:
    """Page and target of each link without a file or an anchor, and of each load from another server."""
    found = []
    for page in pages.values():
        for target in page.links + page.loads:
            name, _, anchor = target.partition("#")
            place = (page.path.parent / name.partition("?")[0]).resolve() if name else page.path
            if re.match(r"(\w+:)?//|mailto:", name):
                wrong = target in page.loads
            else:
                wrong = not place.is_file() or (place in pages and anchor not in pages[place].anchors)
            found += [(str(page.path), target)] * wrong
    return found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    """The built pages by their files."""
    for name in ("material", "mkdocstrings_handlers.python"):
        pytest.importorskip(name, reason="the extra docs is not installed; pip install -e '.[docs]'")
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", site]
    done = finished(command, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}  # its links begin with /


@pytest.mark.slow
def test_the_menu_has_its_pages_and_every_link_leads_somewhere(pages: dict[Path, Page]) -> None:
    site = next(path.parent for path in pages if path.parent.name.startswith("site"))
    menu = re.findall(r"^ +- .*: ([\w/-]+)\.md$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    assert len(menu) > 25
    built = {path.relative_to(site).with_suffix("").as_posix() for path in pages}
    assert {re.sub(r"\bREADME$", "index", name) for name in menu} <= built
    assert {f"docs/{path.stem}" for path in (ROOT / "docs").glob("*.md")} <= built
    assert broken(pages) == []


@pytest.mark.slow
def test_the_reference_has_the_public_names_and_no_raw_role(pages: dict[Path, Page]) -> None:
    reference = [page for path, page in pages.items() if path.parent.name == "api"]
    anchors = set().union(*(page.anchors for page in reference))
    assert {f"glinfer.{name}" for name in glinfer.__all__} - anchors == {"glinfer.__version__", "glinfer.GlinferError"}
    assert {"glinfer.Model.generate", "glinfer.tensors.ops.Ops.matmul", "glinfer.errors.GlinferError"} <= anchors
    for page in reference:
        assert ROLE.findall(page.path.read_text("utf-8")) == [], page.path


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    text = '<p id="a"></p><a href="#a"></a><a href="#b"></a><a href="no.html"></a><a href="https://x.org/"></a>'
    (tmp_path / "one.html").write_text(text + '<script src="https://x.org/x.js"></script>')
    page = Page(tmp_path / "one.html")
    assert [target for _, target in broken({page.path: page})] == ["#b", "no.html", "https://x.org/x.js"]
