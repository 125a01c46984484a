"""POST /v1/completions, /v1/score and the routes about tokens: what harnesses need of them."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from own_process import DEADLINE
from running_server import HELLO, WORDS, Running, opening, refused, running
from tiny_embedders import TEXTS, write_bert, write_embedder

import glinfer
from glinfer.server.limits import LIMITS

pytestmark = pytest.mark.gl

PROMPT = "Once upon a time"
ASKED: dict[str, Any] = {"model": "small", "max_tokens": 10, "seed": 3, "temperature": 0.8}


def test_text_and_ids_are_the_same_prompt(client: openai.OpenAI, served: Running) -> None:
    ids = served.post("/tokenize", {"model": "small", "prompt": PROMPT}).json()["tokens"]
    one = client.completions.create(prompt=PROMPT, **ASKED)
    many = client.completions.create(prompt=[PROMPT, PROMPT[:5]], **ASKED)
    assert client.completions.create(prompt=ids, **ASKED).choices[0].text == one.choices[0].text
    assert client.completions.create(prompt=[ids, ids[:2]], **ASKED).choices[0].text == one.choices[0].text
    assert many.choices[0].text == one.choices[0].text
    assert [choice.index for choice in many.choices] == [0, 1]
    assert one.usage is not None
    assert one.usage.prompt_tokens == len(ids)
    echoed = client.completions.create(prompt=PROMPT, echo=True, **ASKED).choices[0].text
    assert echoed == PROMPT + one.choices[0].text
    plain = client.completions.create(model="speaker", prompt=PROMPT)
    assert plain.usage is not None
    assert plain.usage.completion_tokens == 16, "where no number is named"


@pytest.mark.parametrize("max_tokens", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_log_probabilities(served: Running, client: openai.OpenAI, max_tokens: int, stream: bool) -> None:
    """The request of lm-evaluation-harness: ids, echo, one logprob."""
    bodies = [{"model": "small", "prompt": text} for text in (PROMPT, "a")]
    prompts = [served.post("/tokenize", body).json()["tokens"] for body in bodies]
    totals = ("glinfer_prompt_tokens_total", "glinfer_draws_total")
    before = [served.metric(name, model="small") for name in totals]
    answer: Any = client.completions.create(
        model="small", prompt=prompts, max_tokens=max_tokens, temperature=0, logprobs=1, echo=True, stream=stream
    )
    answer = list(answer) if stream else answer
    tokens, draws = (served.metric(name, model="small") - old for name, old in zip(totals, before, strict=True))
    assert tokens == sum(map(len, prompts))
    assert draws > 0
    data = served.post("/v1/score", {"model": "small", "input": [prompts[0]]}).json()["data"][0]
    if stream:
        chunks = [chunk.choices[0] for chunk in answer if chunk.choices[0].index == 0]
        text = "".join(chunk.text for chunk in chunks)
        tops = [top for chunk in chunks if chunk.logprobs for top in chunk.logprobs.top_logprobs]
        values = [value for chunk in chunks if chunk.logprobs for value in chunk.logprobs.token_logprobs]
        offsets = [value for chunk in chunks if chunk.logprobs for value in chunk.logprobs.text_offset]
    else:
        choice = answer.choices[0]
        text, tops, values = choice.text, choice.logprobs.top_logprobs, choice.logprobs.token_logprobs
        offsets = choice.logprobs.text_offset
        assert len(answer.choices[1].logprobs.tokens) == 1 + max_tokens
    assert text.startswith(PROMPT)
    assert (len(values), len(offsets)) == (len(prompts[0]) + max_tokens,) * 2
    assert values[: len(prompts[0])] == data["token_logprobs"]
    assert tops[0] is None
    pairs = zip(values[1 : len(prompts[0])], tops[1:], data["likeliest"][1:], prompts[0][1:], strict=False)
    for value, top, likeliest, token in pairs:
        assert (value == max(top.values())) == (likeliest == token)
    assert [text[start:][:1] for start in offsets[:2]] == [text[0], text[offsets[1]]]


def test_texts_and_scores_are_those_of_python(served: Running, client: openai.OpenAI, small: Path) -> None:
    """The defaults of sampling are the model's own too."""
    texts = ["To be, or not to be", "that is the question:\n" * 5]
    answer = served.post("/v1/score", {"model": "small", "input": texts}).json()
    with glinfer.load(small) as model:
        expected, text = model.score(texts), model.generate(PROMPT, max_tokens=20, seed=4)
    assert client.completions.create(model="small", prompt=PROMPT, max_tokens=20, seed=4).choices[0].text == text
    for found, score in zip(answer["data"], expected, strict=True):
        assert found["tokens"] == score.ids
        assert found["token_logprobs"] == [None, *score.logprobs.tolist()]
        assert found["total"] == score.total
        assert found["perplexity"] == score.perplexity
        assert all(math.isfinite(each) for each in found["token_logprobs"][1:])
    assert answer["usage"]["prompt_tokens"] == sum(len(score.ids) for score in expected)


def test_tokens_there_and_back(served: Running) -> None:
    found = served.post("/tokenize", {"model": "speaker", "prompt": "héy"}).json()
    assert found == {"tokens": list("héy".encode()), "count": 4, "max_model_len": 64}
    assert served.post("/detokenize", {"model": "speaker", "tokens": found["tokens"]}).json() == {"prompt": "héy"}
    found = served.post("/apply-template", {"model": "speaker", "messages": HELLO}).json()
    assert found == {"prompt": WORDS.decode(opening("hi")), "tokens": opening("hi")}
    assert served.post("/tokenize", {"model": "speaker", "messages": HELLO}).json()["tokens"] == opening("hi")


def test_no_tokens_have_no_log_probabilities(served: Running) -> None:
    """Lists without elements, as of any other choice whose request asks for log-probabilities."""
    body = {"model": "small", "prompt": "x", "max_tokens": 0, "logprobs": 1}
    answer = served.post("/v1/completions", body).json()
    empty = {name: [] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")}
    assert answer["choices"] == [{"index": 0, "text": "", "logprobs": empty, "finish_reason": "length"}]
    assert answer["usage"]["total_tokens"] == 1


BAD: list[tuple[str, Any, str]] = [
    ("/v1/completions", {"prompt": ""}, "at least 1 character"),
    ("/v1/completions", {"prompt": []}, "at least 1 item"),
    ("/v1/completions", {"prompt": [[1], [-1]]}, "ids 0 to 299"),
    ("/v1/completions", {"prompt": [300]}, "ids 0 to 299"),
    ("/v1/completions", {"prompt": "x" * 64}, "and 1 more for the answer; the context of speaker holds 64"),
    ("/v1/completions", {"prompt": "x" * 65, "max_tokens": 0}, "65 tokens; the context of speaker holds 64"),
    ("/v1/completions", {"prompt": "x", "echo": True, "logprobs": 2}, "expected 0 or 1"),
    ("/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix is not supported"),
    ("/v1/completions", {"prompt": ["x"] * 100, "n": 3}, "300 sequences; this server takes at most"),
    ("/v1/score", {"input": ["x"]}, "at least 2"),
    ("/v1/score", {"input": ["x" * 40000, "x" * 40000]}, "80000 tokens; expected at most 65536"),
    ("/tokenize", {}, "either prompt or messages"),
    ("/tokenize", {"prompt": "x", "messages": HELLO}, "either prompt or messages"),
    ("/detokenize", {"tokens": [300]}, "ids 0 to 299"),
    ("/apply-template", {"messages": [{"role": "user", "content": ""}]}, "empty"),
]


def test_bad_requests(served: Running) -> None:
    for path, change, words in BAD:
        refused(served.post(path, {"model": "speaker", **change}), words=words)


# POST /v1/responses by OpenAI's client, without state


def test_a_response(client: openai.OpenAI) -> None:
    parts = [{"type": "input_text", "text": "hi"}]
    inputs: list[Any] = [
        "hi",
        [{"role": "user", "content": "hi"}],
        [{"type": "message", "role": "user", "content": parts}],
        [{"type": "reasoning", "id": "rs_1", "summary": []}, {"role": "user", "content": "hi"}],
    ]
    for given in inputs:
        answer = client.responses.create(model="speaker", input=given)
        assert (answer.output_text, answer.status, answer.id[:5]) == ("héy", "completed", "resp_"), given
        assert answer.usage is not None
        assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len(opening("hi")), 5)


def test_a_response_that_is_cut(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="speaker", input="hi", max_output_tokens=1)
    assert (answer.output_text, answer.status) == ("h", "incomplete")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"


def test_events(client: openai.OpenAI) -> None:
    """As a client that writes code sends it, tools and all."""
    given: dict[str, Any] = {
        "model": "speaker",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "tools": [{"type": "function", "name": "shell", "parameters": {}, "strict": False}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "x",
    }
    events = list(client.responses.create(stream=True, **given))
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events[4:7]) == "héy"
    assert events[-1].response.output_text == "héy"
    with client.responses.stream(**given) as stream:
        assert stream.get_final_response().output_text == "héy"


BAD_RESPONSES: list[tuple[dict[str, Any], str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id is not supported"),
    ({"background": True}, "background is not supported"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format needs a schema exactly if its type is json_schema"),
    ({"text": {"format": {"type": "text", "schema": {}}}}, "exactly if its type is json_schema"),
    ({"text": {"format": {"type": "sound"}}}, "found 'sound'"),
    ({"tool_choice": "required"}, "but the request has no tools; send them"),
    ({"tool_choice": "required", "tools": [{"type": "function", "name": "now"}]}, "does not support tools"),
    ({"tools": [{"type": "function", "name": "what now"}]}, "tools.0.function.name: found 'what now'"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "none are kept"),
    ({"input": [{"role": "user"}]}, "lacks role or content"),
    ({"input": [{"type": "function_call", "name": "x"}]}, "lacks call_id, name or arguments"),
    ({"input": [{"type": "function_call", "name": "x", "call_id": "a", "arguments": "["}]}, "not a JSON object"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "lacks call_id or output"),
    ({"input": [{"type": "computer_call"}]}, "computer_call"),
    ({"input": []}, "at least 1"),
    ({"instructions": "Be kind."}, "does not support a system prompt"),
]


def test_bad_requests_responses(served: Running) -> None:
    for change, words in BAD_RESPONSES:
        refused(served.post("/v1/responses", {"model": "speaker", "input": "hi", **change}), words=words)


# POST /v1/attention


TEXT = "What light through yonder window breaks? It is the east"


def test_a_reply_stands_behind_its_conversation(served: Running) -> None:
    asked = {"model": "speaker", "messages": HELLO, "reply": "<|end|>", "block": 0}
    answer = served.post("/v1/attention", asked).json()
    assert answer["tokens"][: len(opening("hi"))] == opening("hi")
    assert opening("hi")[-2] not in answer["tokens"][len(opening("hi")) :], "a reply forges no control token"
    assert np.allclose(np.array(answer["weights"]).sum(axis=1), 1, atol=1e-4)


def test_others_have_the_text_that_they_have_alone(served: Running) -> None:
    asked: dict[str, Any] = {"model": "small", "prompt": "Now is the winter", "max_tokens": 40, "seed": 3}
    look = {"model": "small", "prompt": TEXT, "block": 0}
    alone = served.post("/v1/completions", asked).json()["choices"]
    weights = served.post("/v1/attention", look).json()["weights"]
    with ThreadPoolExecutor(4) as pool:
        text = pool.submit(served.post, "/v1/completions", asked)
        looks = [pool.submit(served.post, "/v1/attention", look) for _ in range(3)]
        assert text.result(DEADLINE).json()["choices"] == alone
        assert all(each.result(DEADLINE).json()["weights"] == weights for each in looks)


def test_bad_requests_attention(served: Running) -> None:
    cases: tuple[tuple[dict[str, Any], str, str], ...] = (
        ({"block": 2}, "block", "there is no block 2; expected 0 to 1"),
        ({"block": -1}, "block", "found -1"),
        ({"prompt": "x " * 400}, "prompt", "the context of small holds 64"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": None}, "prompt", "either prompt or messages"),
        ({"messages": HELLO}, "prompt", "either prompt or messages"),
    )
    for change, param, words in cases:
        body = {"model": "small", "prompt": TEXT, "block": 0, **change}
        refused(served.post("/v1/attention", body), words=words, param=param)


def test_weights_are_those_of_python(served: Running, small: Path) -> None:
    """Which are what the scores of that block give, and come in pieces of the text."""
    answer = served.post("/v1/attention", {"model": "small", "prompt": TEXT, "block": 1}).json()
    weights = np.array(answer["weights"])
    with glinfer.load(small) as model:
        steps, pieces = model.attention_steps(1, TEXT, piece=10), list[int]()
        while True:
            try:
                pieces.append(next(steps))
            except StopIteration as end:
                found = end.value
                break
        count = len(model.require_tokenizer().encode(TEXT))
        assert pieces == [*range(10, count - 1, 10), count - 1]
        expected = model.capture("blocks.1.attn.scores", TEXT)["blocks.1.attn.scores"][:, -1]
        powers = np.exp(expected - expected.max(axis=1, keepdims=True))
        assert np.abs(found - powers / powers.sum(axis=1, keepdims=True)).max() < 1e-5
        assert weights.shape == found.shape
        assert np.abs(weights - found).max() < 1e-5
        assert answer["tokens"] == model.require_tokenizer().encode(TEXT)
        assert answer["usage"]["prompt_tokens"] == count
        with pytest.raises(glinfer.errors.InputError, match="no block 2"):
            next(model.attention_steps(2, TEXT))
        with pytest.raises(glinfer.errors.InputError, match="context holds 64"):
            next(model.attention_steps(0, [1] * 65))


# POST /v1/embeddings and /v1/rerank, by OpenAI's client and a plain one


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    write_embedder(folder / "embedder", prompts={"query": "in the rain "})
    write_bert(folder / "ranker", architectures=["BertForSequenceClassification"], id2label={"0": "x"})
    return folder


@pytest.fixture(scope="module")
def server(folder: Path, small: Path) -> Iterator[Running]:
    names = ("embedder", "ranker")
    with running(*((name, folder / name) for name in names), ("small", small), slots=2) as found:
        yield found


@pytest.fixture(scope="module")
def expected(folder: Path) -> Any:
    """What Python gets: the vectors of TEXTS, and of a cat with a prompt; and the ids of a cat, and its vector."""
    with glinfer.load(folder / "embedder") as model:
        ids = model.embedder.encoded(["cat"])[0].ids
        return model.embed(TEXTS), model.embed("cat", prompt_name="query"), ids, model.embed("cat")


@pytest.fixture(scope="module")
def vectors(expected: Any) -> Any:
    return expected[0]


def test_openais_client_gets_what_python_gets(server: Running, vectors: Any) -> None:
    with server.client() as client:
        found = client.embeddings.create(model="embedder", input=TEXTS)  # which asks for base64 by itself
        plain = client.embeddings.create(model="embedder", input=TEXTS, encoding_format="float")
        short = client.embeddings.create(model="embedder", input=TEXTS[0], dimensions=5)
    assert [each.index for each in found.data] == list(range(len(TEXTS)))
    assert np.array_equal(np.array([each.embedding for each in found.data], np.float32), vectors)
    assert np.array_equal(np.array([each.embedding for each in plain.data], np.float32), vectors)
    assert len(short.data[0].embedding) == 5
    assert np.isclose(np.linalg.norm(short.data[0].embedding), 1)
    assert found.usage.prompt_tokens == found.usage.total_tokens > len(TEXTS)
    counted = re.search(r'prompt_tokens_total{model="embedder"} (\d+)', server.get("/metrics").text)
    assert counted is not None
    assert int(counted[1]) >= found.usage.prompt_tokens + plain.usage.prompt_tokens
    body = {"model": "embedder", "input": TEXTS[0], "encoding_format": "base64"}
    data = server.post("/v1/embeddings", body).json()["data"][0]["embedding"]
    assert np.array_equal(np.frombuffer(base64.b64decode(data), "<f4"), vectors[0])


def test_prompts_and_ids(server: Running, expected: Any) -> None:
    _, wanted, ids, plain = expected
    body = {"model": "embedder", "input": ["cat"], "prompt_name": "query"}
    assert np.allclose(server.post("/v1/embeddings", body).json()["data"][0]["embedding"], wanted, atol=1e-7)
    body = {"model": "embedder", "input": [ids]}
    assert np.allclose(server.post("/v1/embeddings", body).json()["data"][0]["embedding"], plain, atol=1e-7)


def test_rerank(server: Running, folder: Path) -> None:
    texts = ["the dog", "a cat sat", "rain"]
    with glinfer.load(folder / "ranker") as model:
        wanted = model.rerank("cat?", texts)
    body = {"model": "ranker", "query": "cat?", "documents": [texts[0], {"text": texts[1]}, texts[2]]}
    found = server.post("/v1/rerank", {**body, "return_documents": True}).json()
    assert [each["index"] for each in found["results"]] == [each.index for each in wanted]
    assert np.allclose([each["relevance_score"] for each in found["results"]], [each.score for each in wanted])
    assert [each["document"]["text"] for each in found["results"]] == [texts[each.index] for each in wanted]
    assert len(server.post("/v1/rerank", {**body, "top_n": 1}).json()["results"]) == 1
    for word in ("cat", "dog", "rain", "a", "sat", "mat"):  # the vectors of some are a little longer than 1
        same = {"model": "embedder", "query": word, "documents": [f"in the rain {word}"]}
        assert 0.99999 < server.post("/v1/rerank", same).json()["results"][0]["relevance_score"] <= 1


def test_beside_a_model_that_continues(server: Running, vectors: Any) -> None:
    with server.client() as client:
        listed = {model.id: model.model_dump() for model in client.models.list()}
        assert {name: each["embeds"] for name, each in listed.items()} == {
            "embedder": True,
            "ranker": True,
            "small": False,
        }
        assert not listed["embedder"]["examples"], "they are prompts to continue"
        for _ in range(2):
            assert client.completions.create(model="small", prompt="Once", max_tokens=3).choices[0].text
            found = client.embeddings.create(model="embedder", input=TEXTS)
            assert np.array_equal(np.array([each.embedding for each in found.data], np.float32), vectors)
    assert server.metric("glinfer_draws_total", model="embedder") > 0


BAD_EMBEDDINGS: list[tuple[str, dict[str, Any], str | None, str]] = [
    ("/v1/embeddings", {"model": "small", "input": "a"}, "model", "generates text"),
    ("/v1/embeddings", {"model": "ranker", "input": "a"}, "input", "use rerank"),
    ("/v1/embeddings", {"model": "embedder", "input": "a", "dimensions": 99}, "dimensions", "dimensions is 99"),
    ("/v1/embeddings", {"model": "embedder", "input": [[99]]}, "input", "this vocabulary has ids"),
    ("/v1/embeddings", {"model": "embedder", "input": []}, "input", "input"),
    ("/v1/embeddings", {"model": "embedder", "input": "a", "prompt_name": "x"}, "prompt_name", "prompt_name is 'x'"),
    (
        "/v1/embeddings",
        {"model": "embedder", "input": "a", "encoding_format": "int8"},
        "encoding_format",
        "encoding_format",
    ),
    ("/v1/rerank", {"model": "embedder", "query": "a", "documents": []}, "documents", "documents"),
    ("/v1/rerank", {"model": "small", "query": "a", "documents": ["b"]}, "documents", "generates text"),
    ("/v1/completions", {"model": "embedder", "prompt": "a"}, "model", "this model embeds texts"),
    ("/v1/score", {"model": "embedder", "input": "a cat"}, None, "this model embeds texts"),
    ("/v1/attention", {"model": "embedder", "prompt": "a", "block": 0}, "model", "this model embeds texts"),
    ("/v1/chat/completions", {"model": "embedder", "messages": HELLO}, "model", "embeds texts"),
]


def test_what_is_refused(server: Running) -> None:
    for path, body, param, said in BAD_EMBEDDINGS:
        refused(server.post(path, body), words=said, param=param)


def test_too_much_at_once(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glinfer.server.texts.LIMITS", replace(LIMITS, embed_tokens=100))
    answer = server.post("/v1/embeddings", {"model": "embedder", "input": ["cat " * 40] * 4})
    refused(answer, words="the texts have 160 tokens; expected at most 100 at once")


def test_the_harness_asks_for_tokens(small: Path, served: Running, tmp_path: Path) -> None:
    """lm-evaluation-harness names no model there, and wants no tokens around a text."""
    with running(("small", small), slots=1) as server:
        assert server.get("/tokenizer_info").json() == {"bos_token": None, "eos_token": "<|end|>"}
        assert len(server.post("/tokenize", {"prompt": "<|end|>", "add_special_tokens": False}).json()["tokens"]) == 1
    write_embedder(tmp_path / "bert")
    with running(("bert", tmp_path / "bert")) as server, glinfer.load(tmp_path / "bert") as model:
        assert server.get("/tokenizer_info").json() == {"bos_token": "[CLS]", "eos_token": None}
        words, found = model.require_tokenizer(), list[list[int]]()
        for more in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
            found.append(server.post("/tokenize", {"prompt": "the cat", **more}).json()["tokens"])
        assert found == [words.encode("the cat")] * 2 + [words.encode("the cat")[1:-1]]
        assert server.post("/detokenize", {"tokens": found[2]}).json() == {"prompt": "the cat"}
    for answer in (served.get("/tokenizer_info"), served.post("/tokenize", {"prompt": "x"})):
        refused(answer, words="the request names no model; expected one of small, speaker")
    assert served.get("/tokenizer_info?model=speaker").status_code == 200
