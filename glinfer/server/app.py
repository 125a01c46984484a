"""The application: its routes and middleware."""

from __future__ import annotations

import secrets
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glinfer.server.auth import OPEN_ROUTES, Access, Guard, check_key, check_site
from glinfer.server.errors import ApiError, api_error, http_error, unexpected_error
from glinfer.server.json_text import json_answer
from glinfer.server.metrics import Metrics
from glinfer.server.openapi import DOCUMENT, document
from glinfer.server.page import ChatPage, Folder
from glinfer.server.routes import ROUTES
from glinfer.server.state import Endpoint, ServerState

_PATHS = {route.path for route in ROUTES}


class OneRoute(Route):
    """A route that answers OPTIONS with its methods."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["method"] == "OPTIONS":
            allowed = ", ".join(sorted({*(self.methods or ()), "OPTIONS"}))
            await Response(status_code=204, headers={"Allow": allowed})(scope, receive, send)
            return
        await super().handle(scope, receive, send)


class Answers:
    """Middleware that gives every answer an id and counts it."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """Count the answers of ``app``."""
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", f"req-{secrets.token_hex(8)}".encode())]
                path = scope["path"] if scope["path"] in _PATHS else "other"
                self.metrics.requests.labels(path, str(message["status"])).inc()
            await send(message)

        await self.app(scope, receive, sending)


def make_app(state: ServerState, access: Access) -> Starlette:
    """The application of a server."""
    described = document()

    async def openapi(request: Request) -> Response:
        return json_answer(described)

    routes: list[BaseRoute] = [OneRoute(DOCUMENT, openapi, methods=["GET"])]
    for each in ROUTES:
        endpoint = each.endpoint if each.body is None else Endpoint(each.body, each.endpoint)
        routes.append(OneRoute(each.path, endpoint, methods=[each.method]))
    open_paths = OPEN_ROUTES
    if state.page is None:
        page = ChatPage()
        routes += [OneRoute(path, page.answer, methods=["GET"]) for path in sorted(page.paths)]
        open_paths |= page.paths
    else:
        routes.append(Mount("/", Folder(directory=state.page, html=True)))
    metrics = state.worker.metrics
    sites = Middleware(Guard, check=partial(check_site, access), metrics=metrics)
    middleware = [Middleware(Answers, metrics=metrics), sites]
    if access.origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(access.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
        middleware.append(cors)
    middleware.append(Middleware(Guard, check=partial(check_key, access, open_paths), metrics=metrics))
    handlers: dict[Any, Any] = {ApiError: api_error, HTTPException: http_error, Exception: unexpected_error}
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)
    app.state.glinfer = state
    return app
