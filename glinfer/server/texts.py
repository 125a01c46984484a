"""The routes about tokens and texts: /tokenize, /detokenize, /apply-template, /v1/score and /v1/attention."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from glinfer.engine.ids import check_tokens
from glinfer.errors import InputError
from glinfer.server.errors import ApiError
from glinfer.server.generation import Usage, in_steps, new_id, now, off_loop, scored
from glinfer.server.limits import LIMITS
from glinfer.server.protocol import (
    ApplyTemplateRequest,
    AttentionRequest,
    ChatMessage,
    DetokenizeRequest,
    ScoreRequest,
    TokenizeRequest,
    conversation,
)
from glinfer.server.served import Served
from glinfer.server.state import read_request, turn_of
from glinfer.server.streaming import WholeAnswer


def _chat_ids(served: Served, messages: list[ChatMessage]) -> list[int]:
    return served.chat_ids(conversation(messages))


async def _ids(request: Request, served: Served, body: TokenizeRequest, reply: str = "") -> list[int]:
    """The ids of a text or of a conversation, and of a reply behind it."""
    if (body.prompt is None) == (body.messages is None):
        raise ApiError("expected either prompt or messages", param="prompt")

    def work() -> list[int]:
        if body.prompt is not None:
            return served.tokenizer.encode(body.prompt + reply)
        # What the model has said spells no control token.
        return _chat_ids(served, body.messages or []) + served.tokenizer.encode(reply, allow_special=False)

    if body.prompt is None:
        return await off_loop(work, "messages", turn_of(request))
    return await off_loop(work, "prompt")


async def tokenize(request: Request) -> ASGIApp:
    """The token ids of a text or of a conversation."""
    _, served, body = await read_request(request, TokenizeRequest)
    ids = await _ids(request, served, body)
    return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": served.context})


async def attention(request: Request) -> ASGIApp:
    """What each head of a block looks at from the last token of a prompt."""
    state, served, body = await read_request(request, AttentionRequest)
    if body.adapter is not None:
        raise ApiError(f"attention is told of {served.name} itself; name the model", param="model", code="no_adapter")
    ids = await _ids(request, served, body, body.reply or "")
    if not ids:
        raise ApiError("the prompt is empty; expected at least one token", param="prompt")
    served.room(ids, least=0)
    count = served.loaded.config.num_hidden_layers
    if body.block >= count:
        raise ApiError(f"there is no block {body.block}; expected 0 to {count - 1}", param="block")

    async def whole() -> dict[str, Any]:
        weights = await in_steps(state.worker, served, lambda model: model.attention_steps(body.block, ids))
        return {
            "object": "attention",
            "created": now(),
            "model": served.name,
            "block": body.block,
            "tokens": ids,
            "weights": [[round(float(weight), 6) for weight in head] for head in weights],
            "usage": Usage(len(ids)).body(),
        }

    return WholeAnswer(whole)


async def detokenize(request: Request) -> ASGIApp:
    """The text of token ids."""
    _, served, body = await read_request(request, DetokenizeRequest)
    config = served.loaded.config
    text = await off_loop(lambda: served.tokenizer.decode(check_tokens("the tokens", body.tokens, config)), "tokens")
    return JSONResponse({"prompt": text})


async def apply_template(request: Request) -> ASGIApp:
    """The prompt that a conversation becomes, as text and as token ids."""
    _, served, body = await read_request(request, ApplyTemplateRequest)
    ids = await off_loop(lambda: _chat_ids(served, body.messages), "messages", turn_of(request))
    return JSONResponse({"prompt": served.tokenizer.decode(ids), "tokens": ids})


async def score(request: Request) -> ASGIApp:
    """The log-likelihoods of texts."""
    state, served, body = await read_request(request, ScoreRequest)

    def work() -> list[list[int]]:
        found, most = [], LIMITS.score_tokens
        served.refuse_long((text for text in body.texts() if isinstance(text, str)), most)
        for place, text in enumerate(body.texts()):
            ids = served.tokenizer.encode(text) if isinstance(text, str) else text
            found.append(check_tokens(f"text {place}", ids, served.loaded.config))
        if (total := sum(map(len, found))) > most:
            raise InputError(f"the texts have {total} tokens; expected at most {most} at once")
        for place, ids in enumerate(found):
            if len(ids) < 2:
                raise InputError(f"text {place} has {len(ids)} token; expected at least 2, one to predict from another")
        return found

    texts = await off_loop(work, "input")

    async def whole() -> dict[str, Any]:
        data = [
            {
                "index": index,
                "tokens": each.ids,
                "token_logprobs": [None, *map(float, each.logprobs)],
                "likeliest": [None, *map(int, each.likeliest)],
                "total": each.total,
                "perplexity": each.perplexity,
            }
            for index, each in enumerate(await scored(state.worker, served, texts, body.adapter))
        ]
        usage = Usage(sum(map(len, texts))).body()
        return {
            "id": new_id("score-"),
            "object": "list",
            "created": now(),
            "model": body.model,
            "data": data,
            "usage": usage,
        }

    return WholeAnswer(whole)
