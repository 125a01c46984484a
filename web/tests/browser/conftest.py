"""Sites exported for the tests, a server for them, and one browser; without it or Node.js these tests skip."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from browsed import EXPECTED, WEB, Browsed, Browser
from sites import ChatSite

from glinfer.export.site import ExportedSite, export_web
from qa.renderers.browsers import serving

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ADVICE = "; 'make test-web' installs it where it may"

Drive = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser; $GLINFER_CHROMIUM names another."""
    found = next(filter(None, map(shutil.which, [os.environ.get("GLINFER_CHROMIUM", ""), *BROWSERS])), None)
    if found is None:
        pytest.skip(f"there is no Chromium here{ADVICE}")
    return found


@pytest.fixture(scope="session")
def node() -> str:
    """Node.js, with what drives the browser."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("there is no Node.js here; install 20.19 or newer")
    if not (WEB / "node_modules" / "playwright-core").is_dir():
        pytest.skip(f"playwright-core is not in {WEB}{ADVICE}")
    return found


@pytest.fixture(scope="session")
def browser(chromium: str, node: str) -> Iterator[Browser]:
    """One Chromium for all tests."""
    found = Browser(node, chromium)
    yield found
    found.close()


@pytest.fixture
def browse(browser: Browser) -> Iterator[Callable[..., Browsed]]:
    """Open a page with nothing kept, with options of Playwright's contexts."""

    def made(**options: Any) -> Browsed:
        return Browsed(browser, **options)

    yield made
    browser.do("context", None)


@pytest.fixture
def browsed(browse: Callable[..., Browsed]) -> Browsed:
    """A page with nothing kept."""
    return browse()


@pytest.fixture(scope="session")
def open_page(browser: Browser) -> Drive:
    """Open an address, run jobs there, see drive.mjs; what came out, once nothing has complained."""

    def driven(url: str, jobs: Sequence[dict[str, Any]] = (), **options: Any) -> dict[str, Any]:
        found: dict[str, Any] = browser.do("drive", {"url": url, "jobs": list(jobs), **options})["value"]
        assert [line for line in found["console"] if EXPECTED not in line] == []
        assert found["errors"] == []
        assert found.get("pageErrors", []) == []
        assert found["lost"] == 0
        assert found.get("glErrors", []) == []
        return found

    return driven


@pytest.fixture(scope="session")
def run_site(open_page: Drive) -> Drive:
    """The same for a folder, which is served meanwhile; ``query`` is put behind the page's address.

    Jobs look into the model and its context, so that a page with jobs has both, and no worker. Nothing is kept.
    """

    def driven(site: Path, jobs: Sequence[dict[str, Any]] = (), *, query: str = "", **options: Any) -> dict[str, Any]:
        asked = [query.removeprefix("?"), "worker=0" if jobs else "", "offline=0", "cache=0"]
        with serving(site) as url:
            return open_page(f"{url}?{'&'.join(filter(None, asked))}", jobs, **options)

    return driven


@pytest.fixture(scope="session")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ExportedSite]:
    """The bundled model's site, with weights as ``f32`` or ``q8``, exported when first asked for."""

    @cache
    def exported(weights: str) -> ExportedSite:
        return export_web("shakespeare", tmp_path_factory.mktemp("bundled") / "site", weights=weights)

    return exported


@pytest.fixture(scope="session")
def chat_site(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], ChatSite]:
    """A chat's site of the model of a seed; tests that change it copy it."""
    return cache(lambda seed: ChatSite(tmp_path_factory.mktemp("chat"), seed))
