"""Sites exported for the tests, a server for them, and browsers; without one or Node.js these tests skip."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from browsed import EXPECTED, WEB

from qa.renderers.browsers import serving

HERE = Path(__file__).resolve().parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FIREFOX = ("firefox-esr", "firefox")
WEBKIT = "WebKitWebDriver"
SECONDS = 300
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


def driver(node: str, program: str, **always: Any) -> Drive:
    """Open an address, run jobs there, see drive.mjs; what it printed, once nothing has complained."""

    def driven(url: str, jobs: Sequence[dict[str, Any]] = (), **options: Any) -> dict[str, Any]:
        ran = subprocess.run(
            [node, "--experimental-websocket", str(HERE / "drive.mjs"), program],
            input=json.dumps({"url": url, "jobs": list(jobs), **always, **options}),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-4000:]
        found: dict[str, Any] = json.loads(ran.stdout)
        assert [line for line in found["console"] if EXPECTED not in line] == []
        assert found["errors"] == []
        assert found.get("pageErrors", []) == []
        assert found["lost"] == 0
        assert found.get("glErrors", []) == []
        return found

    return driven


@pytest.fixture(scope="session")
def open_page(chromium: str, node: str) -> Drive:
    """:func:`driver` of Chromium."""
    return driver(node, chromium)


@pytest.fixture(scope="session")
def open_in_firefox(node: str) -> Drive:
    """:func:`driver` of Firefox, on a display of Xvfb, without which it has no WebGL."""
    found = next(filter(None, map(shutil.which, FIREFOX)), None)
    if found is None or shutil.which("Xvfb") is None:
        pytest.skip("there is no Firefox with Xvfb here; sudo apt-get install firefox-esr xvfb")
    return driver(node, found, browser="firefox")


@pytest.fixture(scope="session")
def open_in_webkit(node: str) -> Drive:
    """:func:`driver` of WebKitGTK's browser, on a display of Xvfb; ``make test-web`` does not install it."""
    found = shutil.which(WEBKIT)
    if found is None or shutil.which("Xvfb") is None:
        pytest.skip("there is no WebKitGTK with Xvfb here; sudo apt-get install webkit2gtk-driver xvfb")
    return driver(node, found, browser="webkit")


@pytest.fixture(scope="session")
def run_site(open_page: Drive) -> Drive:
    """The same for a folder, which is served meanwhile; ``query`` is put behind the page's address.

    Jobs look into the model and its context, so that a page with jobs has both, and no worker.
    """

    def driven(site: Path, jobs: Sequence[dict[str, Any]] = (), *, query: str = "", **options: Any) -> dict[str, Any]:
        if jobs:
            query = f"{query}&worker=0" if query else "?worker=0"
        with serving(site) as url:
            return open_page(url + query, jobs, **options)

    return driven
