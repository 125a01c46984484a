"""The table of routes, from which the application and its OpenAPI document are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from glinfer.server import embeddings, system, texts
from glinfer.server.chat_completions import chat_completions
from glinfer.server.completions import completions
from glinfer.server.protocol import (
    ApplyTemplateRequest,
    AttentionRequest,
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    RequestBody,
    RerankRequest,
    ResponseRequest,
    ScoreRequest,
    TokenizeRequest,
)
from glinfer.server.responses import responses


@dataclass(frozen=True)
class ApiRoute:
    """A route.

    Attributes:
        path: as Starlette has it.
        endpoint: answers a request; of a route with a body, an :class:`glinfer.server.state.Asked`.
        summary: what it does, for the document.
        body: the model of its body; None for a route that takes none.
        streams: whether it can answer with server-sent events.
    """

    path: str
    endpoint: Callable[[Any], Awaitable[ASGIApp]]
    summary: str
    body: type[RequestBody] | None = None
    streams: bool = False

    @property
    def method(self) -> str:
        """The method that it takes."""
        return "GET" if self.body is None else "POST"

    @property
    def documented(self) -> str:
        """The path as OpenAPI has it."""
        return self.path.replace(":path", "")


ROUTES = (
    ApiRoute("/v1/chat/completions", chat_completions, "Reply to a conversation.", ChatCompletionRequest, streams=True),
    ApiRoute("/v1/completions", completions, "Continue prompts.", CompletionRequest, streams=True),
    ApiRoute("/v1/responses", responses, "Respond to an input, without state.", ResponseRequest, streams=True),
    ApiRoute("/v1/score", texts.score, "Score texts.", ScoreRequest),
    ApiRoute("/v1/embeddings", embeddings.embeddings, "Vectors of texts.", EmbeddingRequest),
    ApiRoute("/v1/rerank", embeddings.rerank, "Texts by how well they fit a query.", RerankRequest),
    ApiRoute("/v1/attention", texts.attention, "What the last token of a prompt looks at.", AttentionRequest),
    ApiRoute("/tokenize", texts.tokenize, "Token ids of a text or a conversation.", TokenizeRequest),
    ApiRoute("/detokenize", texts.detokenize, "Text of token ids.", DetokenizeRequest),
    ApiRoute("/apply-template", texts.apply_template, "The prompt of a conversation.", ApplyTemplateRequest),
    ApiRoute("/v1/models", system.models, "The models."),
    ApiRoute("/v1/models/{model:path}", system.model, "One model."),
    ApiRoute("/health", system.health, "Whether the server can be asked."),
    ApiRoute("/metrics", system.metrics, "Figures for Prometheus."),
)
"""All routes but the document's own, and the page's."""
