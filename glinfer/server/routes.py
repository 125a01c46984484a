"""The routes about the server itself, and the table of all routes for the application and its OpenAPI document."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from glinfer.server import protocol, texts
from glinfer.server.chat_completions import chat_completions
from glinfer.server.completions import completions
from glinfer.server.json_text import json_answer
from glinfer.server.responses import responses
from glinfer.server.served import Served
from glinfer.server.state import ApiRoute, ServerState

MODELS = "/v1/models/"
MODEL = f"{MODELS}{{model}}"


async def models(state: ServerState, request: Request) -> Response:
    """List the models."""
    listed = [(each, own) for each in state.worker.served.values() for own in (None, *each.source.adapters)]
    return json_answer({"object": "list", "data": [_model(*each) for each in listed]})


async def model(state: ServerState, request: Request) -> Response:
    """Describe one model."""
    return json_answer(_model(*state.model(request.scope["path"].removeprefix(MODELS))))


def _model(served: Served, adapter: str | None) -> dict[str, Any]:
    ready, name = served.model is not None, served.name if adapter is None else adapter
    head = {"id": name, "object": "model", "created": served.created, "owned_by": "glinfer", "ready": ready}
    head |= {} if adapter is None else {"parent": served.name}
    return {**head, **served.facts} if ready else head


async def tokenizer_info(state: ServerState, request: Request) -> Response:
    """The tokens that begin and end a model's texts, for clients that tokenize here, such as lm-evaluation-harness."""
    served, _ = state.model(request.query_params.get("model"))
    tokenizer, ends = served.tokenizer, served.loaded.stop_ids
    named = {"bos_token": tokenizer.around[0][:1], "eos_token": ends[:1]}
    return json_answer({name: tokenizer.decode(ids) if ids else None for name, ids in named.items()})


async def health(state: ServerState, request: Request) -> Response:
    """Whether the server is ready: 200 when its models are loaded, 503 before that and during shutdown."""
    status = "ending" if state.ending else "ready" if state.worker.ready else "loading"
    return json_answer({"status": status}, 200 if status == "ready" else 503)


async def metrics(state: ServerState, request: Request) -> Response:
    """The metrics for Prometheus."""
    return Response(state.worker.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


ROUTES = (
    ApiRoute("/v1/chat/completions", chat_completions, "Reply to a conversation.", protocol.ChatCompletionRequest),
    ApiRoute("/v1/completions", completions, "Continue prompts.", protocol.CompletionRequest),
    ApiRoute("/v1/responses", responses, "Respond to an input, without state.", protocol.ResponseRequest),
    ApiRoute("/v1/score", texts.score, "Score texts.", protocol.ScoreRequest),
    ApiRoute("/v1/embeddings", texts.embeddings, "Vectors of texts.", protocol.EmbeddingRequest),
    ApiRoute("/v1/rerank", texts.rerank, "Rank texts by relevance to a query.", protocol.RerankRequest),
    ApiRoute("/v1/attention", texts.attention, "Attention of a prompt's last token.", protocol.AttentionRequest),
    ApiRoute("/tokenize", texts.tokenize, "Token ids of a text or a conversation.", protocol.TokenizeRequest),
    ApiRoute("/detokenize", texts.detokenize, "Text of token ids.", protocol.DetokenizeRequest),
    ApiRoute("/tokenizer_info", tokenizer_info, "The tokens that begin and end texts of ?model=NAME."),
    ApiRoute("/apply-template", texts.apply_template, "The prompt of a conversation.", protocol.ApplyTemplateRequest),
    ApiRoute("/v1/models", models, "The models."),
    ApiRoute(MODEL, model, "One model."),
    ApiRoute("/health", health, "Whether the server is ready."),
    ApiRoute("/metrics", metrics, "Metrics for Prometheus."),
)
"""All routes except those of the OpenAPI document and the page."""
