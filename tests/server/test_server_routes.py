"""The server as HTTP: models, health, figures, who may ask, and what is refused."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import openai
import pytest
from own_process import finished
from running_server import HELLO, Running, running

from glinfer.errors import InputError
from glinfer.server.auth import Access
from glinfer.server.limits import LIMITS, RequestLimits
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
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (status, "invalid_request_error"), path
        assert status == 404 or "Allow" in answer.headers
        assert set(error) == {"message", "type", "param", "code"}
    for path in ("/v1/chat/completions", "/health", "/v1/models/x"):
        answer = served.request("OPTIONS", path)
        assert (answer.status_code, "OPTIONS" in answer.headers["Allow"]) == (204, True), path


def test_bodies_that_are_no_object(served: Running) -> None:
    for body in (b"", b"{", b"[]", b'{"a": NaN}', b"\xff", b"[" * 100000, b'"\\ud800"'):
        answer = served.request("POST", "/v1/completions", content=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json"), body[:20]
    for body in (b'{"model": "speaker", "prompt": "\\ud800"}', b'{"model": "\\ud800", "prompt": "a"}'):
        assert served.request("POST", "/v1/completions", content=body).status_code in (400, 404), body
    answer = served.request("POST", "/v1/completions", content=b" " * (LIMITS.body_bytes + 1))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")


class TestKeys:
    def test_every_route_but_health_asks_for_one(self, locked: Running) -> None:
        assert locked.get("/health").status_code == 200
        for path in ("/", "/app.js", "/v1/models", "/metrics", "/openapi.json", "/nowhere"):
            answer = locked.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key"), path
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            assert locked.get(path, headers=bearer("three")).status_code == 401
            assert locked.get(path, headers={"Authorization": "Bearer"}).status_code == 401
            assert locked.get(path, headers=bearer("two")).status_code == (404 if path == "/nowhere" else 200)

    def test_openai_client(self, locked: Running) -> None:
        assert locked.client("one").models.list().data
        with pytest.raises(openai.AuthenticationError):
            locked.client("zero").models.list()

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
            answer = locked.get("/health", headers={"Host": host})
            assert (answer.status_code, answer.json()["error"]["code"]) == (421, "unknown_host"), host

    def test_addresses_where_others_may_ask(self) -> None:
        access = Access(host="0.0.0.0")
        assert access.knows_host("192.168.0.1:8000")
        assert not access.knows_host("evil.example")


class TestOrigins:
    def test_other_sites_may_not_ask(self, locked: Running) -> None:
        begins_alike = f"{locked.url}.evil.example"
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://localhost", begins_alike):
            answer = locked.get("/health", headers={"Origin": origin})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed"), origin
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
            with pytest.raises(InputError, match="lets other machines in; give an --api-key"):
                check_access(Access(host), no_key=False)
            check_access(Access(host), no_key=True)
            check_access(Access(host, ("key",)), no_key=False)
        for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
            check_access(Access(host), no_key=False)

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
