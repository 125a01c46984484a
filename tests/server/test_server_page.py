"""The chat page at /: its files, which need no key, and what their headers allow."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from running_server import Running, running

from glinfer.export.site import web_root
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
    assert {"/server/app.js", "/server/client.js", "/page/page.js", "/glinfer/pictures.js"} <= paths
    assert not paths & {"/app.js", "/page/local.js", "/glinfer/model.js"}
    for path in paths - {"/", "/index.html"}:
        answer = locked.get(path)
        assert answer.content == (web_root() / path[1:]).read_bytes()
        kind = "text/css" if path.endswith(".css") else "text/javascript"
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"


def test_no_script_but_its_own_may_run(locked: Running) -> None:
    page = locked.get("/")
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == ("'none'", "'self'", "'self'")
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
    assert shakespeare["sampling"] == {
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    assert shakespeare["examples"] != speaker["examples"]
    assert "What can you help me with?" in speaker["examples"]
