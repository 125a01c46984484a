"""OpenAI's form of a batch: each line is a request to a route of the server, and each result is its response.

Source: OpenAI's guide to its Batch API. docs/formats.md describes the files.
"""

from __future__ import annotations

from typing import Any

from glinfer.errors import InputError
from glinfer.formats.jsonl import short
from glinfer.jobs.lines import Key, LineForm, LineResult, RequestLine, check_keys, seed_of, text_of
from glinfer.server.errors import ApiError
from glinfer.server.routes import ROUTES

_KEYS = ("custom_id", "method", "url", "body")
URLS = {route.path: route.body for route in ROUTES if route.body is not None and route.path.startswith("/v1/")}
"""The routes that a batch may use, with the models of their bodies."""


def sent_body(line: RequestLine) -> dict[str, Any]:
    """The body to send, with a seed from the line's id if the route accepts a seed and the body has none."""
    if line.body.get("stream") is True:
        raise ApiError("a batch has no streams; leave stream out", param="stream", code="unsupported_parameter")
    if line.body.get("seed") is None and "seed" in URLS[line.url].model_fields:
        return {**line.body, "seed": seed_of(line.key)}
    return line.body


class RequestForm(LineForm):
    """Lines with ``custom_id``, ``method``, ``url`` and ``body``."""

    noun = "request"
    example = '{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"model": "mine", "prompt": "O"}}'
    result_start = b'{"id": "batch_req_'

    def parse(self, number: int, found: dict[str, Any]) -> RequestLine:
        """Check a line except its body, which the route checks."""
        check_keys(found, _KEYS, "prompt", "'glinfer generate --batch'")
        if missing := [key for key in _KEYS if key not in found]:
            raise InputError(f"{missing[0]} is missing; expected {', '.join(_KEYS)}")
        key = text_of("custom_id", found["custom_id"])
        if not key:
            raise InputError("custom_id is empty; expected text that no other line has")
        if found["method"] != "POST":
            raise InputError(f'method is {short(found["method"])}; expected "POST"')
        if not isinstance(found["url"], str) or found["url"] not in URLS:
            raise InputError(f"url is {short(found['url'])}; expected one of {', '.join(URLS)}")
        if not isinstance(found["body"], dict):
            raise InputError(f"body is {short(found['body'])}; expected a JSON object")
        return RequestLine(number, key, found["url"], found["body"])

    def finished(self, found: dict[str, Any]) -> tuple[Key, str] | None:
        """``custom_id`` and ``id`` of a result."""
        key, digest = found.get("custom_id"), found.get("id")
        return (key, digest) if isinstance(key, str) and isinstance(digest, str) else None


def answered(line: RequestLine, status: int, request_id: str, body: Any) -> LineResult:
    """The result of a request with a response."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    usage = (body.get("usage") if isinstance(body, dict) else None) or {}
    prompt = usage.get("prompt_tokens", usage.get("input_tokens", 0))
    tokens = usage.get("completion_tokens", usage.get("output_tokens", 0))
    return LineResult(line, _result(line, response, None), status != 200, prompt, tokens)


def unanswered(line: RequestLine, message: str) -> LineResult:
    """The result of a request without a response, as its processes died."""
    return LineResult(line, _result(line, None, {"code": "process_died", "message": message}), failed=True)


def _result(line: RequestLine, response: dict[str, Any] | None, error: dict[str, Any] | None) -> dict[str, Any]:
    return {"id": line.digest, "custom_id": line.key, "response": response, "error": error}
