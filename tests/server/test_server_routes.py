"""The server as HTTP: models, health, figures, who may ask, and what is refused."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from jsonschema import Draft202012Validator
from own_process import DEADLINE, finished
from running_server import HELLO, Running, refused, running

from glinfer.errors import InputError
from glinfer.export.site import web_root
from glinfer.formats import load_checkpoint
from glinfer.server.auth import Access
from glinfer.server.limits import LIMITS, RequestLimits
from glinfer.server.page import ChatPage
from glinfer.server.routes import ROUTES, ApiRoute
from glinfer.server.run import HttpServer, ServerOptions, check_access
from glinfer.server.served import ModelSource

pytestmark = pytest.mark.gl

DOCS = Path(__file__).resolve().parents[2] / "docs" / "server.md"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_models(client: openai.OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == ["small", "speaker"]
    assert client.models.retrieve("speaker").id == "speaker"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nobody")
    assert caught.value.code == "model_not_found"


def test_health_and_figures(served: Running, client: openai.OpenAI) -> None:
    assert served.get("/health").json() == {"status": "ready"}
    assert len({served.get(path).headers["x-request-id"] for path in ("/health", "/nowhere", "/v1/models")}) == 3
    labels = {"model": "speaker"}
    before = [served.metric(f"glinfer_{name}_total", **labels) for name in ("tokens", "prompt_tokens", "draws")]
    seen = served.metric("glinfer_first_token_seconds_count", **labels)
    client.chat.completions.create(model="speaker", messages=HELLO)
    after = [served.metric(f"glinfer_{name}_total", **labels) for name in ("tokens", "prompt_tokens", "draws")]
    assert [one - other for one, other in zip(after[:2], before[:2], strict=True)] == [5, 5]
    assert after[2] > before[2]
    assert served.metric("glinfer_first_token_seconds_count", **labels) == seen + 1
    assert served.metric("glinfer_finished_total", reason="stop", **labels) >= 1
    assert served.metric("glinfer_running", **labels) == 0
    assert served.metric("glinfer_texture_bytes") > 1e5
    assert served.metric("glinfer_requests_total", route="/v1/chat/completions", status="200") >= 1
    assert served.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")


def test_unknown_routes_and_methods(served: Running) -> None:
    for method, path, status in (
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
        ("GET", "/nowhere", 404),
        ("POST", "/v1/audio/speech", 404),
        ("POST", "/", 405),
        ("GET", "/tests/python.js", 404),
    ):
        answer = served.request(method, path)
        assert set(refused(answer, status)) == {"message", "type", "param", "code"}
        assert status == 404 or "Allow" in answer.headers
    for path in ("/v1/chat/completions", "/health", "/v1/models/x"):
        answer = served.request("OPTIONS", path)
        assert (answer.status_code, "OPTIONS" in answer.headers["Allow"]) == (204, True), path


def test_bodies_that_are_no_object(served: Running) -> None:
    for body in (b"", b"{", b"[]", b'{"a": NaN}', b"\xff", b"[" * 100000, b'"\\ud800"'):
        refused(served.request("POST", "/v1/completions", content=body), code="invalid_json")
    for body in (b'{"model": "speaker", "prompt": "\\ud800"}', b'{"model": "\\ud800", "prompt": "a"}'):
        assert served.request("POST", "/v1/completions", content=body).status_code in (400, 404), body
    answer = served.request("POST", "/v1/completions", content=b" " * (LIMITS.body_bytes + 1))
    refused(answer, 413, code="body_too_large")


class TestKeys:
    def test_every_route_but_health_asks_for_one(self, locked: Running) -> None:
        assert locked.get("/health").status_code == 200
        for path in ("/", "/app.js", "/v1/models", "/metrics", "/openapi.json", "/nowhere"):
            answer = locked.get(path)
            refused(answer, 401, code="invalid_api_key")
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            assert locked.get(path, headers=bearer("three")).status_code == 401
            assert locked.get(path, headers=bearer("two")).status_code == (404 if path == "/nowhere" else 200)

    def test_a_browser_asks_for_a_password(self, locked: Running) -> None:
        assert locked.get("/", auth=("anybody", "one")).status_code == 200
        assert locked.get("/", auth=("one", "")).status_code == 401
        assert locked.get("/", headers={"Authorization": "Basic %%%"}).status_code == 401

    def test_prefixes_are_reused_by_one_key_alone(self, locked: Running) -> None:
        asked: dict[str, Any] = {"model": "small", "prompt": "Now is the winter of our discontent", "seed": 1}

        def cached(key: str) -> int:
            usage = locked.client(key).completions.create(**asked, max_tokens=2).usage
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            return usage.prompt_tokens_details.cached_tokens or 0

        assert cached("one") == 0
        assert cached("one") > 8
        assert cached("two") == 0
        assert cached("two") > 8


class TestHosts:
    def test_known_and_unknown(self, locked: Running) -> None:
        for host in ("localhost", "127.0.0.1:99", "[::1]:8000", "MY.example", "my.example:1"):
            assert locked.get("/health", headers={"Host": host}).status_code == 200, host
        for host in ("evil.example", "192.168.0.1", "", "my.example.", "[x"):
            refused(locked.get("/health", headers={"Host": host}), 421, code="unknown_host")

    def test_addresses_where_others_may_ask(self) -> None:
        access = Access(host="0.0.0.0")
        assert access.knows_host("192.168.0.1:8000")
        assert not access.knows_host("evil.example")


class TestOrigins:
    def test_other_sites_may_not_ask(self, locked: Running) -> None:
        begins_alike = f"{locked.url}.evil.example"
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://localhost", begins_alike):
            answer = locked.get("/health", headers={"Origin": origin})
            refused(answer, 403, code="origin_not_allowed")
            assert "access-control-allow-origin" not in answer.headers

    def test_the_own_page_may(self, locked: Running) -> None:
        assert locked.get("/health", headers={"Origin": locked.url}).status_code == 200

    def test_a_friendly_site_may(self, locked: Running) -> None:
        origin = {"Origin": "https://friend.example"}
        refused = locked.get("/v1/models", headers=origin)
        assert (refused.status_code, refused.headers.get("access-control-allow-origin")) == (401, origin["Origin"])
        answer = locked.get("/v1/models", headers={**origin, **bearer("one")})
        assert answer.headers["access-control-allow-origin"] == "https://friend.example"
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        answer = locked.request("OPTIONS", "/v1/completions", headers={**origin, **asked})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://friend.example")
        answer = locked.request("OPTIONS", "/v1/completions", headers={"Origin": "https://evil.example", **asked})
        assert (answer.status_code, "access-control-allow-origin" in answer.headers) == (403, False)


class TestPage:
    def test_files_with_their_types(self, locked: Running) -> None:
        answer = locked.get("/", headers=bearer("one"))
        assert (answer.text[:9], answer.headers["content-type"]) == ("<!doctype", "text/html; charset=utf-8")
        answer = locked.get("/app.js", headers=bearer("one"))
        assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"


class TestAccess:
    def test_others_are_let_in_on_purpose_only(self) -> None:
        for host in ("0.0.0.0", "192.168.1.1", "::", "example.org"):
            with pytest.raises(InputError, match="is reachable from other machines; give an --api-key"):
                check_access(Access(host), no_key=False)
            check_access(Access(host), no_key=True)
            check_access(Access(host, ("key",)), no_key=False)
        for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
            check_access(Access(host), no_key=False)

    def test_names_that_no_request_has(self) -> None:
        for origin in ("localhost:8200", "http://localhost:8200/", "http://Example.org", "http://", ""):
            with pytest.raises(InputError, match=f"--cors-origin is {origin!r}; expected scheme and host"):
                check_access(Access(origins=[origin]), no_key=False)
        for host in ("127.0.0.1:8000", "http://127.0.0.1", "[::1]", ""):
            with pytest.raises(InputError, match=f"--host is {re.escape(repr(host))}; expected an address or a name"):
                check_access(Access(host, ("key",)), no_key=False)
        for name in ("http://my.example", "my.example:8000", "my example", ""):
            with pytest.raises(InputError, match=f"--allowed-host is {name!r}; expected a name without scheme"):
                check_access(Access(hosts=[name]), no_key=False)
        origins = ("*", "null", "http://localhost:8200", "https://[::1]:1", "chrome-extension://abc")
        check_access(Access(hosts=["My.Example"], origins=origins), no_key=False)

    def test_a_port_that_is_taken(self, served: Running) -> None:
        port = int(served.url.rpartition(":")[2])
        with pytest.raises(InputError, match=f"cannot serve on 127.0.0.1, port {port}: .*in use"):
            HttpServer([ModelSource("a", "shakespeare")], ServerOptions(port=port))


def test_the_table_of_limits_in_the_docs() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", DOCS.read_text("utf-8"), re.MULTILINE))
    assert {name: int(value.replace(",", "")) for name, value in rows.items()} == dataclasses.asdict(RequestLimits())


@pytest.mark.slow
def test_the_examples_of_the_docs() -> None:
    """Those in Python, in JavaScript and by curl, against a server of the model that they name."""
    with running(("shakespeare", "shakespeare")) as server:
        assert server.get("/v1/models").json()["data"][0]["licence"].startswith("weights MIT")
        text = DOCS.read_text("utf-8").replace("http://localhost:8000", server.url)
        blocks = re.findall(r"^```(python|js|sh)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        runners = {
            "python": [sys.executable, "-c"],
            "js": ["node", "--input-type=module", "-e"],
            "sh": ["bash", "-euc"],
        }
        asked = [(language, code) for language, code in blocks if server.url in code]
        assert {language for language, _ in asked} == set(runners)
        for language, code in asked:
            if shutil.which(runners[language][0]) is None:
                continue
            done = finished([*runners[language], code])
            assert (done.returncode, done.stderr) == (0, ""), code
            assert "Alas, alas!" in done.stdout, done.stdout


# The chat page at /


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


# The OpenAPI document, and requests made from it at random by schemathesis


def test_the_document_names_every_route(served: Running) -> None:
    document = served.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    assert {route.path for route in ROUTES} | {"/openapi.json"} == set(document["paths"])
    for path, operations in document["paths"].items():
        for method in operations:
            named = path.replace("{model}", "speaker").replace("_info", "_info?model=speaker")
            asked = httpx.request(method, served.url + named, content=b"{}", timeout=DEADLINE)
            assert asked.status_code == (200 if method == "get" else 400), path
        if "post" in operations:
            assert {"400", "401", "413", "429", "503"} <= set(operations["post"]["responses"]), path
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    schema = document["components"]["schemas"]["Error"]
    for path, body in (("/nowhere", {}), ("/v1/completions", {}), ("/v1/completions", {"model": "x", "prompt": "y"})):
        Draft202012Validator(schema).validate(served.post(path, body).json())


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_requests_at_random(served: Running, route: ApiRoute) -> None:
    """No answer is a failure of the server, and each has a status, a type and a form that the document names."""
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    operation = schema[route.path][route.method]
    seen = []

    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        if isinstance(case.body, dict) and seen and len(seen) % 2:
            case.body["model"] = "small"
        seen.append(1)
        case.call_and_validate(
            timeout=DEADLINE,
            checks=(not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance),
        )

    ask()
    assert len(seen) > 1 or route.body is None
