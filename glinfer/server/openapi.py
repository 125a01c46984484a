"""The OpenAPI document, generated from the bodies in :mod:`glinfer.server.protocol`."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from glinfer import __version__
from glinfer.server.auth import OPEN_ROUTES
from glinfer.server.routes import MODEL, ROUTES

_ERRORS = {
    "400": "The request cannot be run.",
    "401": "The API key is missing or invalid.",
    "403": "Pages of this Origin may not use the server.",
    "404": "The model does not exist.",
    "413": "The body is too large.",
    "421": "The Host is not allowed.",
    "429": "Too many sequences wait.",
    "500": "The model's numbers are not finite, or the server failed.",
    "503": "A model is being loaded, the OpenGL context was lost, or the server is shutting down.",
}
_REF = "#/components/schemas/{model}"
_JSON = {"application/json": {"schema": {"type": "object"}}}
_MAYBE = {"type": ["string", "null"]}
_ERROR = {"message": {"type": "string"}, "type": {"type": "string"}, "param": _MAYBE, "code": _MAYBE}
_TEXT = {"schema": {"type": "string"}}
DOCUMENT = "/openapi.json"
"""The path of the document."""


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    bodies = [route.body for route in ROUTES if route.body is not None]
    _, found = models_json_schema([(body, "validation") for body in bodies], ref_template=_REF)
    error = {"type": "object", "required": list(_ERROR), "properties": _ERROR}
    failed = {"type": "object", "required": ["error"], "properties": {"error": error}}
    paths: dict[str, Any] = {DOCUMENT: {"get": _operation(DOCUMENT, "This document.")}}
    for route in ROUTES:
        answer = {**_JSON, "text/event-stream": _TEXT} if route.streams else _JSON
        answer = {"text/plain": _TEXT} if route.path == "/metrics" else answer
        operation = _operation(route.path, route.summary, answer)
        if route.body is not None:
            schema = {"$ref": _REF.format(model=route.body.__name__)}
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths[route.path] = {route.method.lower(): operation}
    for path, where in ((MODEL, "path"), ("/tokenizer_info", "query")):
        named = {
            "name": "model",
            "in": where,
            "required": where == "path",
            "schema": {"type": "string", "minLength": 1},
        }
        paths[path]["get"]["parameters"] = [named]
    return {
        "openapi": "3.1.0",
        "info": {"title": "glinfer", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**found["$defs"], "Error": failed},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(path: str, words: str, answer: dict[str, Any] = _JSON) -> dict[str, Any]:
    error = {"schema": {"$ref": _REF.format(model="Error")}}
    replies: dict[str, Any] = {"200": {"description": words, "content": answer}}
    for status, what in _ERRORS.items():
        replies[status] = {"description": what, "content": {"application/json": error}}
    if path == "/health":
        replies["503"] = {"description": "The server is starting or shutting down.", "content": answer}
    return {
        "summary": words,
        "operationId": path.strip("/").replace("/", "_").replace("{", "").replace("}", "").replace("-", "_"),
        "responses": replies,
        "security": [] if path in OPEN_ROUTES else [{}, {"key": []}],
    }
