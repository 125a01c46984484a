"""The chat page at /: its files, which need no key, and what their headers allow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from running_server import Running, running

from glinfer.errors import FormatError
from glinfer.export.libraries import LIBRARIES, MARKDOWN, library_files
from glinfer.export.site import web_root
from glinfer.formats import load_checkpoint
from glinfer.server import page as page_module
from glinfer.server.auth import Access
from glinfer.server.page import ChatPage

pytestmark = pytest.mark.gl


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    with running(("shakespeare", "shakespeare"), access=Access(keys=("one",))) as found:
        yield found


def test_it_needs_no_key_and_its_requests_do(locked: Running) -> None:
    page = locked.get("/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert locked.get("/v1/models").status_code == 401
    for name in re.findall(r'(?:src|href)="([^":]+)"', page.text):
        assert locked.get(f"/{name}").status_code == 200, name


def test_its_modules_are_all_that_they_import(locked: Running) -> None:
    """And nothing of the runtime for WebGL2, which stays with exported sites."""
    paths = ChatPage().paths
    assert {"/server/app.js", "/server/client.js", "/page/page.js", "/glinfer/pictures.js", "/answers.js"} <= paths
    assert not paths & {"/app.js", "/page/local.js", "/glinfer/model.js"}
    places = markdown_files()
    for path in paths - {"/", "/index.html"}:
        answer = locked.get(path)
        assert answer.content == places.get(path[1:], web_root() / path[1:]).read_bytes()
        kind = "text/css" if path.endswith(".css") else "text/javascript"
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"


def markdown_files() -> dict[str, Path]:
    """What takes other places in the page than in the checkout, where npm has brought the library for Markdown."""
    try:
        return {"answers.js": web_root() / "markdown_answers.js", **library_files(web_root(), [MARKDOWN])}
    except FormatError:
        return {}


@pytest.mark.parametrize("has", [True, False], ids=["with the library", "without"])
def test_answers_are_formatted_where_the_library_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has: bool) -> None:
    for entry in web_root().iterdir():
        if entry.name != "node_modules":
            (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "libraries").mkdir()
    for name in LIBRARIES[MARKDOWN] if has else ():
        (tmp_path / name).write_text("export default class {}\n")
    monkeypatch.setattr(page_module, "web_root", lambda: tmp_path)
    page = ChatPage()
    assert ("/libraries/markdown-it.js" in page.paths) == has
    assert not any("LICENSE" in path for path in page.paths)
    kept = "markdown_answers.js" if has else "answers.js"
    assert page.file("/answers.js") == (tmp_path / kept).read_bytes()


def test_no_script_but_its_own_may_run(locked: Running) -> None:
    page = locked.get("/")
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == ("'none'", "'self'", "'self'")
    (in_page,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page.text)
    for part in in_page.split("; "):
        name, value = part.split(" ", 1)
        assert value == policy.get(name, policy["default-src"] if name != "worker-src" else "'self'"), name
    assert not re.search(r"<script(?![^>]*\bsrc=)|\bon[a-z]+=|style=", page.text), "inline, which would not run"
    for path in ChatPage().paths:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", locked.get(path).text), path


def test_other_methods(locked: Running) -> None:
    for path, headers in (("/", {}), ("/page/page.js", {"Authorization": "Bearer one"})):
        assert httpx.post(f"{locked.url}{path}", headers=headers, timeout=240).status_code == 405
    assert httpx.head(f"{locked.url}/", timeout=240).status_code == 200


def test_what_a_page_is_told_of_a_model(served: Running) -> None:
    models = {model["id"]: model for model in served.get("/v1/models").json()["data"]}
    shakespeare, speaker = models["shakespeare"], models["speaker"]
    assert (shakespeare["chat"], speaker["chat"]) == (False, True)
    assert (shakespeare["blocks"], shakespeare["weights"], shakespeare["max_model_len"]) == (6, "f32", 256)
    assert shakespeare["parameters"] == load_checkpoint("shakespeare").parameter_count
    assert (shakespeare["licence"][:11], speaker["licence"]) == ("weights MIT", "")
    assert (shakespeare["system"], speaker["system"]) == (False, False)
    assert shakespeare["sampling"] == {
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    assert shakespeare["examples"] != speaker["examples"]
    assert "What can you help me with?" in speaker["examples"]
