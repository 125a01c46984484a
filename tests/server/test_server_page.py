"""The chat page at /: its files, which need no key, and what their headers allow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from running_server import Running

from glinfer.export.site import web_root
from glinfer.formats import load_checkpoint
from glinfer.server.page import ChatPage

pytestmark = pytest.mark.gl


def test_it_needs_no_key_and_its_requests_do(keyed: Running) -> None:
    page = keyed.get("/")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert keyed.get("/v1/models").status_code == 401
    for name in re.findall(r'(?:src|href)="([^":]+)"', page.text):
        assert keyed.get(f"/{name}").status_code == 200, name
    for path, headers in (("/", {}), ("/page/page.js", {"Authorization": "Bearer two"})):
        assert keyed.request("POST", path, headers=headers).status_code == 405
    assert keyed.request("HEAD", "/").status_code == 200


def test_its_modules_are_all_that_they_import(keyed: Running) -> None:
    """And nothing of the runtime for WebGL2, which stays with exported sites."""
    paths = ChatPage().paths
    assert {"/server/app.js", "/server/client.js", "/page/page.js", "/glinfer/pictures.js", "/answers.js"} <= paths
    assert not paths & {"/app.js", "/page/local.js", "/glinfer/model.js"}
    places = {"answers.js": web_root() / "markdown_answers.js"}
    for path in paths - {"/", "/index.html"}:
        answer = keyed.get(path)
        assert answer.content == places.get(path[1:], web_root() / path[1:]).read_bytes()
        kind = "text/css" if path.endswith(".css") else "text/javascript"
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"


def test_answers_are_formatted_by_the_library() -> None:
    page = ChatPage()
    assert "/libraries/markdown-it.js" in page.paths
    assert not any("LICENSE" in path for path in page.paths)


def test_no_script_but_its_own_may_run(keyed: Running) -> None:
    page = keyed.get("/")
    policy = dict(part.strip().split(" ", 1) for part in page.headers["content-security-policy"].split(";"))
    assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == ("'none'", "'self'", "'self'")
    (in_page,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page.text)
    for part in in_page.split("; "):
        name, value = part.split(" ", 1)
        assert value == policy.get(name, policy["default-src"] if name != "worker-src" else "'self'"), name
    assert not re.search(r"<script(?![^>]*\bsrc=)|\bon[a-z]+=|style=", page.text), "inline, which would not run"
    for path in ChatPage().paths:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", keyed.get(path).text), path


def test_what_a_page_is_told_of_a_model(served: Running, small: Path) -> None:
    models = {model["id"]: model for model in served.get("/v1/models").json()["data"]}
    found, speaker = models["small"], models["speaker"]
    assert (found["chat"], speaker["chat"], speaker["system"]) == (True, True, False)
    assert (found["blocks"], found["weights"], found["max_model_len"]) == (2, "f32", 64)
    assert found["parameters"] == load_checkpoint(small).parameter_count
    assert found["licence"] == ""
    assert found["sampling"] == {
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    assert "What can you help me with?" in speaker["examples"]
