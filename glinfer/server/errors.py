"""Errors in the form of OpenAI's API: a status, and a body of message, type, param and code."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.responses import Response

from glinfer import errors
from glinfer.server.json_text import json_answer
from glinfer.terminal import emit
from glinfer.text.own_process import NotStartedError, ProcessError

_OF_FILES = (errors.ConfigError, errors.FormatError, errors.HubError, errors.ShaderError)


class ApiError(errors.GlinferError):
    """An error for the client: its HTTP ``status``, the field (``param``) that caused it, and a word for programs."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Set the parts of the answer; ``message`` becomes one line."""
        super().__init__(" ".join(message.split()))
        self.status, self.param, self.code = status, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON body of the answer, whose type says whether the request or the server caused the error."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if self.status == 429 else kind
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """The HTTP answer."""
        return json_answer(self.body(), self.status, self.headers)


def failed() -> ApiError:
    """The error 500 for a fault whose cause is in the server's log."""
    return ApiError("the server failed; see its log", status=500, code="internal_error")


def again_soon(message: str, code: str = "not_ready") -> ApiError:
    """The error 503 for a request that the client should try again, as while a model loads or the server shuts down."""
    return ApiError(message, status=503, code=code, headers={"Retry-After": "2"})


def refused(error: errors.GlinferError, name: str, **how: Any) -> ApiError:
    """Convert an error of a request to one for the client, without any local path.

    Args:
        error: the cause; errors about the server's files go only to its log.
        name: the model's name for clients, which replaces the paths of its files.
        how: further arguments of :class:`ApiError`.
    """
    if isinstance(error, _OF_FILES):
        log(f"{name}: {error}")
        return failed()
    if isinstance(error, errors.GLError):  # mostly a lack of memory
        return again_soon(str(error), "driver_error")
    if isinstance(error, errors.NumbersError):
        how = {"status": 500, "code": "broken_numbers"}
    words = error.public if isinstance(error, errors.InputError) else str(error)
    words = words if words == str(error) else f"{name}: {words}"
    if isinstance(error.__cause__, ProcessError):  # perhaps this machine is the reason
        log(f"{name}: {error}")
    if isinstance(error.__cause__, NotStartedError):
        return again_soon(words, "no_process")
    return ApiError(words, **how)


def log(line: object) -> None:
    """Write a line to standard error, if it is still open."""
    with suppress(ValueError):
        emit(f"glinfer: {line}", err=True)
