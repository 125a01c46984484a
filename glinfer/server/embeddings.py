"""POST /v1/embeddings and /v1/rerank, of models that embed texts."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
from starlette.types import ASGIApp

from glinfer.engine.embed import Embedder, EmbedRequest, Ranked, Vectors
from glinfer.server.errors import ApiError
from glinfer.server.generation import in_steps, new_id
from glinfer.server.limits import LIMITS
from glinfer.server.protocol import EmbeddingRequest, RerankRequest
from glinfer.server.state import Asked


async def embeddings(asked: Asked[EmbeddingRequest]) -> ASGIApp:
    """The vectors of texts."""
    body = asked.body

    def check(embedder: Embedder) -> EmbedRequest:
        return embedder.request(body.texts(), prompt_name=body.prompt_name, dimensions=body.dimensions)

    texts = await _encoded(asked, check, "input")
    vectors: Vectors = await in_steps(asked, lambda model: model.embedder.steps(texts))
    packed = body.encoding_format == "base64"

    def made() -> dict[str, Any]:
        data = [
            {"object": "embedding", "index": index, "embedding": _packed(vector) if packed else vector.tolist()}
            for index, vector in enumerate(vectors)
        ]
        return {"object": "list", "data": data, "model": asked.served.name, "usage": _usage(texts)}

    return await asked.answer(made)


async def rerank(asked: Asked[RerankRequest]) -> ASGIApp:
    """Texts with their scores for a query, best first."""
    body, given = asked.body, asked.body.texts()
    texts = await _encoded(asked, lambda embedder: embedder.rank_request(body.query, given), "documents")
    found: list[Ranked] = await in_steps(asked, lambda model: model.embedder.rank_steps(texts))

    def made() -> dict[str, Any]:
        results = []
        for each in found[: body.top_n]:
            document = {"document": {"text": given[each.index]}} if body.return_documents else {}
            results.append({"index": each.index, "relevance_score": each.score, **document})
        head = {"id": new_id("rerank-"), "object": "list", "model": asked.served.name}
        return {**head, "results": results, "usage": _usage(texts)}

    return await asked.answer(made)


async def _encoded(asked: Asked[Any], work: Callable[[Embedder], EmbedRequest], param: str) -> EmbedRequest:
    """The texts of a request, checked and encoded off the event loop.

    Raises:
        ApiError: the model embeds no texts, or they cannot be run.
    """
    found = await asked.off_loop(lambda: work(asked.served.loaded.embedder), param)
    if found.tokens > LIMITS.embed_tokens:
        raise ApiError(
            f"the texts have {found.tokens} tokens; expected at most {LIMITS.embed_tokens} at once", param=param
        )
    return found


def _packed(vector: Vectors) -> str:
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode("ascii")


def _usage(asked: EmbedRequest) -> dict[str, int]:
    return {"prompt_tokens": asked.tokens, "total_tokens": asked.tokens}
