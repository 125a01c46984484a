"""The application: access, routes, and the form of errors."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glinfer.server.auth import OPEN_ROUTES, Access, check_key, check_site
from glinfer.server.errors import ApiError, failed
from glinfer.server.json_text import json_answer
from glinfer.server.openapi import DOCUMENT, document
from glinfer.server.page import ChatPage, Folder
from glinfer.server.routes import MODEL, MODELS, ROUTES
from glinfer.server.state import ApiRoute, ServerState

_PATHS = {route.path for route in ROUTES}
_REJECTED = (401, 403, 421)
"""Statuses of requests that have no access."""


class App:
    """The ASGI application of one server."""

    def __init__(self, state: ServerState, access: Access) -> None:
        """Make the routes; FormatError if the chat page is missing."""
        self._state, self._access, self._metrics = state, access, state.worker.metrics
        self._numbers = itertools.count(secrets.randbits(63))
        described = document()

        async def openapi(state: ServerState, request: Request) -> Response:
            return json_answer(described)

        self._folder, self._open = None, OPEN_ROUTES
        routes = [*ROUTES, ApiRoute(DOCUMENT, openapi, "This document.")]
        if state.page is None:
            page = ChatPage()
            routes += [ApiRoute(path, page.answer, "A file of the page.") for path in page.paths]
            self._open |= page.paths
        else:
            self._folder = Folder(directory=state.page, html=True)
        self._routes = {each.path: each for each in routes}
        self._of_site: ASGIApp = self._answer
        if access.origins:
            self._of_site = CORSMiddleware(
                self._answer,
                allow_origins=list(access.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
                expose_headers=["X-Request-Id", "Retry-After"],
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; every answer has an id and is counted."""
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (b"x-request-id", b"req-%016x" % next(self._numbers))]
                path = scope["path"] if scope["path"] in _PATHS else "other"
                self._metrics.requests.labels(path, str(message["status"])).inc()
            await send(message)

        try:
            check_site(self._access, Headers(scope=scope))
            await self._of_site(scope, receive, sending)
        except ApiError as error:
            await self._refuse(error, scope, receive, sending)
        except Exception:
            if not started:
                await self._refuse(failed(), scope, receive, sending)
            raise  # uvicorn logs the traceback

    async def _refuse(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        if error.status in _REJECTED:
            self._metrics.rejected.labels(error.code).inc()
        await error.response()(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of an accepted site, if its key is valid."""
        try:
            check_key(self._access, self._open, scope, Headers(scope=scope))
            await self._route(scope, receive, send)
        except ApiError as error:
            await self._refuse(error, scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request by its route, or with a file of the folder at /."""
        path, method = scope["path"], scope["method"]
        if (found := self._routes.get(MODEL if path.startswith(MODELS) else path)) is not None:
            allowed = ("GET", "HEAD") if found.body is None else ("POST",)
            if method == "OPTIONS":
                headers = {"Allow": ", ".join((*allowed, method))}
                await Response(status_code=204, headers=headers)(scope, receive, send)
                return
            if method not in allowed:
                raise _not_allowed(scope, allowed)
            await found.respond(self._state, scope, receive, send)
            return
        try:
            if self._folder is None:
                raise HTTPException(404)
            await self._folder(scope, receive, send)
        except HTTPException as error:
            if error.status_code == 405:
                raise _not_allowed(scope, ("GET", "HEAD")) from None
            raise ApiError(
                f"there is no such route: {method} {path}; see /openapi.json", status=404, code="unknown_url"
            ) from None


def _not_allowed(scope: Scope, allowed: Sequence[str]) -> ApiError:
    message = f"this route does not allow the method: {scope['method']} {scope['path']}; see /openapi.json"
    return ApiError(message, status=405, code="method_not_allowed", headers={"Allow": ", ".join(allowed)})
