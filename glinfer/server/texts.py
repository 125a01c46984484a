"""The routes for tokens and texts; embedding models have /v1/embeddings and /v1/rerank."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from starlette.types import ASGIApp

from glinfer.engine.embed import Embedder, EmbedRequest, Ranked, Vectors
from glinfer.engine.ids import check_tokens, check_within
from glinfer.errors import InputError
from glinfer.server import protocol
from glinfer.server.errors import ApiError
from glinfer.server.generation import Usage, in_steps, new_id, now, scored
from glinfer.server.limits import LIMITS
from glinfer.server.state import Asked
from glinfer.text.images import placeholders
from glinfer.text.templates import OPEN


async def _ids(asked: Asked[Any], body: protocol.TokenizeRequest, reply: str = "") -> list[int]:
    """The token ids of a text or conversation, followed by those of a reply."""
    served, prompt, how = asked.served, body.prompt, body.rendering()
    if (prompt is None) == (body.messages is None):
        raise ApiError("expected either prompt or messages", param="prompt")
    if prompt is not None and how != OPEN:
        raise ApiError("add_generation_prompt and template options need messages; leave them out", param="prompt")
    if (size := len(((prompt or "") + reply).encode())) > LIMITS.tokenize_bytes:
        raise ApiError(f"the text has {size} bytes; expected at most {LIMITS.tokenize_bytes} at once", param="prompt")

    def work() -> list[int]:
        if prompt is not None:
            plain = body.add_special_tokens is False
            return (served.tokenizer.encode_more if plain else served.tokenizer.encode)(prompt + reply)
        # A reply's text never spells control tokens.
        return [
            *served.chat_ids(protocol.conversation(body.messages or []), None, how),
            *served.tokenizer.encode(reply, allow_special=False),
        ]

    return await asked.off_loop(
        work,
        "messages" if prompt is None else "prompt",
        size=len(prompt + reply) if prompt else math.inf,
        slow=prompt is None,
    )


async def tokenize(asked: Asked[protocol.TokenizeRequest]) -> ASGIApp:
    """The token ids of a text or conversation."""
    ids = placeholders(await _ids(asked, asked.body), asked.served.tokenizer)
    return await asked.answer(
        lambda: {"tokens": ids, "count": len(ids), "max_model_len": asked.served.context}, len(ids)
    )


async def attention(asked: Asked[protocol.AttentionRequest]) -> ASGIApp:
    """The attention weights of each head of a block for a prompt's last token."""
    served, body = asked.served, asked.body
    if asked.adapter is not None:
        raise ApiError(f"attention has no adapters; use the model {served.name}", param="model", code="no_adapter")
    ids = await _ids(asked, body, body.reply or "")
    if not ids:
        raise ApiError("the prompt is empty; expected at least one token", param="prompt")
    served.room(ids, least=0)
    count = served.loaded.config.num_hidden_layers
    if body.block >= count:
        raise ApiError(f"there is no block {body.block}; expected 0 to {count - 1}", param="block")
    weights = await in_steps(asked, lambda model: model.attention_steps(body.block, ids))
    return await asked.answer(
        lambda: {
            "object": "attention",
            "created": now(),
            "model": served.name,
            "block": body.block,
            "tokens": ids,
            "weights": [[round(float(weight), 6) for weight in head] for head in weights],
            "usage": Usage(len(ids)).body(),
        }
    )


async def detokenize(asked: Asked[protocol.DetokenizeRequest]) -> ASGIApp:
    """The text of token ids."""
    served, tokens = asked.served, asked.body.tokens
    config = served.loaded.config

    def made() -> str:
        return served.tokenizer.decode(check_tokens("the tokens", tokens, config))

    text = await asked.off_loop(made, "tokens", size=len(tokens))
    return await asked.answer(lambda: {"prompt": text}, len(text))


async def apply_template(asked: Asked[protocol.ApplyTemplateRequest]) -> ASGIApp:
    """The prompt of a conversation, as text and as token ids."""
    served = asked.served
    messages, how = protocol.conversation(asked.body.messages), asked.body.rendering()
    found = await asked.off_loop(lambda: served.chat_ids(messages, None, how), "messages", slow=True)
    ids = placeholders(found, served.tokenizer)
    return await asked.answer(lambda: {"prompt": served.tokenizer.decode(ids), "tokens": ids})


async def score(asked: Asked[protocol.ScoreRequest]) -> ASGIApp:
    """The log-likelihoods of texts."""
    served, given, most = asked.served, protocol.listed(asked.body.input), LIMITS.score_tokens

    def work() -> list[list[int]]:
        found = []
        served.refuse_long([text for text in given if isinstance(text, str)], most)
        for index, text in enumerate(given):
            ids = served.tokenizer.encode(text) if isinstance(text, str) else text
            found.append(check_tokens(f"text {index}", ids, served.loaded.config))
            if (total := sum(map(len, found))) > most:
                raise InputError(f"the texts have at least {total} tokens; expected at most {most} at once")
        for index, ids in enumerate(found):
            if len(ids) < 2:
                raise InputError(f"text {index} has {len(ids)} token; expected at least 2, one to predict from another")
        return found

    texts = await asked.off_loop(work, "input")
    scores = await scored(asked, texts)
    _count(asked, sum(map(len, texts)))

    def made() -> dict[str, Any]:
        data = [
            {
                "index": index,
                "tokens": each.ids,
                "token_logprobs": [None, *map(float, each.logprobs)],
                "likeliest": [None, *map(int, each.likeliest)],
                "total": each.total,
                "perplexity": each.perplexity,
            }
            for index, each in enumerate(scores)
        ]
        usage = Usage(sum(map(len, texts))).body()
        head = {"id": new_id("score-"), "object": "list", "created": now(), "model": asked.body.model}
        return {**head, "data": data, "usage": usage}

    return await asked.answer(made)


async def embeddings(asked: Asked[protocol.EmbeddingRequest]) -> ASGIApp:
    """The vectors of texts."""
    body = asked.body
    name, dimensions = body.prompt_name, body.dimensions

    def check(embedder: Embedder) -> EmbedRequest:
        return embedder.request(protocol.listed(body.input), prompt_name=name, dimensions=dimensions)

    embedder = await asked.off_loop(lambda: asked.served.loaded.embedder, "model", size=0)
    width = embedder.encoder.width
    await asked.off_loop(lambda: embedder.prompt(name, None), "prompt_name", size=0)
    if dimensions is not None:
        await asked.off_loop(lambda: check_within("dimensions", dimensions, width), "dimensions", size=0)
    texts = await _encoded(asked, check, "input")
    vectors: Vectors = await in_steps(asked, lambda model: model.embedder.steps(texts))
    _count(asked, texts.tokens)

    def written(vector: Vectors) -> Any:
        if body.encoding_format != "base64":
            return vector.tolist()
        return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode("ascii")

    def made() -> dict[str, Any]:
        data = [
            {"object": "embedding", "index": index, "embedding": written(each)} for index, each in enumerate(vectors)
        ]
        return {"object": "list", "data": data, "model": asked.served.name, "usage": _usage(texts)}

    return await asked.answer(made)


async def rerank(asked: Asked[protocol.RerankRequest]) -> ASGIApp:
    """Texts with their scores for a query, best first."""
    body = asked.body
    given = [each if isinstance(each, str) else each.text for each in body.documents]
    texts = await _encoded(asked, lambda embedder: embedder.rank_request(body.query, given), "documents")
    found: list[Ranked] = await in_steps(asked, lambda model: model.embedder.rank_steps(texts))
    _count(asked, texts.tokens)

    def made() -> dict[str, Any]:
        results = []
        for each in found[: body.top_n]:
            document = {"document": {"text": given[each.index]}} if body.return_documents else {}
            results.append({"index": each.index, "relevance_score": each.score, **document})
        head = {"id": new_id("rerank-"), "object": "list", "model": asked.served.name}
        return {**head, "results": results, "usage": _usage(texts)}

    return await asked.answer(made)


async def _encoded(asked: Asked[Any], work: Callable[[Embedder], EmbedRequest], param: str) -> EmbedRequest:
    """The texts of a request, checked and encoded off the event loop."""
    found = await asked.off_loop(lambda: work(asked.served.loaded.embedder), param)
    if found.tokens > LIMITS.embed_tokens:
        raise ApiError(
            f"the texts have {found.tokens} tokens; expected at most {LIMITS.embed_tokens} at once", param=param
        )
    return found


def _count(asked: Asked[Any], tokens: int) -> None:
    asked.state.worker.metrics.prompt_tokens.labels(asked.served.name).inc(tokens)


def _usage(asked: EmbedRequest) -> dict[str, int]:
    return {"prompt_tokens": asked.tokens, "total_tokens": asked.tokens}
