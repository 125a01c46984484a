"""The OpenAPI document, and requests made from it at random by schemathesis."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from running_server import Running

from glinfer.server.routes import ROUTES, ApiRoute

pytestmark = pytest.mark.gl


def test_the_document_names_every_route(served: Running) -> None:
    document = served.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    assert {route.documented for route in ROUTES} | {"/openapi.json"} == set(document["paths"])
    for path, operations in document["paths"].items():
        for method in operations:
            asked = httpx.request(method, served.url + path.replace("{model}", "speaker"), content=b"{}", timeout=240)
            assert asked.status_code == (200 if method == "get" else 400), path
        if "post" in operations:
            assert {"400", "401", "413", "429", "503"} <= set(operations["post"]["responses"]), path
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    schema = document["components"]["schemas"]["Error"]
    for path, body in (("/nowhere", {}), ("/v1/completions", {}), ("/v1/completions", {"model": "x", "prompt": "y"})):
        Draft202012Validator(schema).validate(served.post(path, body).json())


@pytest.mark.slow
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.documented)
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
    operation = schema[route.documented][route.method]
    seen = []

    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        if isinstance(case.body, dict) and seen and len(seen) % 2:
            case.body["model"] = "small"
        seen.append(1)
        case.call_and_validate(
            timeout=60,
            checks=(
                not_a_server_error,
                content_type_conformance,
                response_schema_conformance,
                status_code_conformance,
            ),
        )

    ask()
    assert len(seen) > 1 or route.body is None
