"""POST /v1/embeddings and /v1/rerank, of models that embed texts."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.types import ASGIApp

from glinfer.engine.embed import Embedder, EmbedRequest, Ranked, Vectors
from glinfer.server.errors import ApiError
from glinfer.server.generation import in_steps, new_id, off_loop
from glinfer.server.limits import LIMITS
from glinfer.server.protocol import EmbeddingRequest, RerankRequest
from glinfer.server.served import Served
from glinfer.server.state import read_request
from glinfer.server.streaming import WholeAnswer


async def embeddings(request: Request) -> ASGIApp:
    """The vectors of texts."""
    state, served, body = await read_request(request, EmbeddingRequest)

    def check(embedder: Embedder) -> EmbedRequest:
        return embedder.request(body.texts(), prompt_name=body.prompt_name, dimensions=body.dimensions)

    asked = await _asked(served, check, "input")

    async def whole() -> dict[str, Any]:
        vectors: Vectors = await in_steps(state.worker, served, lambda model: model.embedder.steps(asked))
        packed = body.encoding_format == "base64"
        data = [
            {"object": "embedding", "index": index, "embedding": _packed(vector) if packed else vector.tolist()}
            for index, vector in enumerate(vectors)
        ]
        return {"object": "list", "data": data, "model": served.name, "usage": _usage(asked)}

    return WholeAnswer(whole)


async def rerank(request: Request) -> ASGIApp:
    """Texts with their scores for a query, best first."""
    state, served, body = await read_request(request, RerankRequest)
    texts = body.texts()
    asked = await _asked(served, lambda embedder: embedder.rank_request(body.query, texts), "documents")

    async def whole() -> dict[str, Any]:
        found: list[Ranked] = await in_steps(state.worker, served, lambda model: model.embedder.rank_steps(asked))
        results = []
        for each in found[: body.top_n]:
            document = {"document": {"text": texts[each.index]}} if body.return_documents else {}
            results.append({"index": each.index, "relevance_score": each.score, **document})
        return {
            "id": new_id("rerank-"),
            "object": "list",
            "model": served.name,
            "results": results,
            "usage": _usage(asked),
        }

    return WholeAnswer(whole)


async def _asked(served: Served, work: Callable[[Embedder], EmbedRequest], param: str) -> EmbedRequest:
    """What a request asks for, checked and encoded off the event loop.

    Raises:
        ApiError: the model embeds no texts, or they cannot be run.
    """
    asked = await off_loop(lambda: work(served.loaded.embedder), param)
    if asked.tokens > LIMITS.embed_tokens:
        raise ApiError(
            f"the texts have {asked.tokens} tokens; expected at most {LIMITS.embed_tokens} at once", param=param
        )
    return asked


def _packed(vector: Vectors) -> str:
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode("ascii")


def _usage(asked: EmbedRequest) -> dict[str, int]:
    return {"prompt_tokens": asked.tokens, "total_tokens": asked.tokens}
