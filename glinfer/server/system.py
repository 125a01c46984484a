"""The routes about the server itself: its models, health and figures."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from glinfer.server.json_text import json_answer
from glinfer.server.served import Served
from glinfer.server.state import ServerState


async def models(request: Request) -> Response:
    """The models."""
    state = ServerState.of(request)
    listed = [(each, own) for each in state.worker.served.values() for own in (None, *each.adapters)]
    return json_answer({"object": "list", "data": [_model(*each) for each in listed]})


async def model(request: Request) -> Response:
    """One model."""
    return json_answer(_model(*ServerState.of(request).model(request.path_params["model"])))


def _model(served: Served, adapter: str | None) -> dict[str, Any]:
    ready, name = served.model is not None, served.name if adapter is None else adapter
    head = {"id": name, "object": "model", "created": served.created, "owned_by": "glinfer", "ready": ready}
    head |= {} if adapter is None else {"parent": served.name}
    return {**head, **served.facts} if ready else head


async def health(request: Request) -> Response:
    """Whether the server can be asked: 200 when its models are loaded, 503 before that and while it ends."""
    state = ServerState.of(request)
    status = "ending" if state.ending else "ready" if state.worker.ready else "loading"
    return json_answer({"status": status}, 200 if status == "ready" else 503)


async def metrics(request: Request) -> Response:
    """The figures, for Prometheus."""
    text = ServerState.of(request).worker.metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
