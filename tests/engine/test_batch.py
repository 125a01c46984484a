"""Many sequences together: each as it would be alone, in the order in which they finish, with nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tiers import tiered
from token_streams import random_ids as ids_of

from glinfer.config import ModelConfig
from glinfer.engine.batch import MAX_SLOTS, SchedulerOptions, sequence_bytes, slots_and_capacity
from glinfer.engine.logits import MIN_LOGPROB, LogitChanges, change_logits, token_logprobs, top_bounds
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest, BatchResult
from glinfer.errors import InputError

pytestmark = pytest.mark.gl

PROMPT = [13, 132, 251, 70]
GREEDY: dict[str, Any] = {"temperature": 0}


REQUESTS = [
    BatchRequest(PROMPT, {"max_tokens": 9, **GREEDY}),
    BatchRequest("Once upon", {"max_tokens": 12, "seed": 1}),
    BatchRequest(ids_of(30, 1), {"max_tokens": 5, "seed": 2, "temperature": 0.7}),
    BatchRequest([5], {"max_tokens": 1, **GREEDY}),
    BatchRequest("a", {"max_tokens": 20, "seed": 3, "top_k": 20}),
    BatchRequest(ids_of(17, 2), {"max_tokens": 7, "seed": 4, "top_p": 0.8}),
    BatchRequest(ids_of(60, 3), {"max_tokens": 38, "seed": 5}),  # over a full context
    BatchRequest(ids_of(64, 4), {"max_tokens": 6, **GREEDY}),  # a context that is full from the beginning
    BatchRequest("b", {"max_tokens": 6, "seed": 6, "min_p": 0.1}),
    BatchRequest(ids_of(9, 5), {"max_tokens": 15, "repetition_penalty": 1.3, **GREEDY}),
    BatchRequest([0, 299], {"max_tokens": 3, "seed": 7, "temperature": 3.0}),
    BatchRequest("zz", {"max_tokens": 1, "seed": 8}),
]
REQUESTS = [replace(request, key=place) for place, request in enumerate(REQUESTS)]


def alone(model: Model, request: BatchRequest) -> dict[str, Any]:
    """What a stream gives of one request."""
    stream = model.stream(request.prompt, **request.options)  # type: ignore[call-overload]
    pieces = list(stream)
    text = "".join(pieces) if isinstance(request.prompt, str) else None
    ids = stream.ids if text is None else None
    return {"text": text, "ids": ids, **counts(stream.stats)}


def counts(stats: Any) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in ("prompt_tokens", "tokens", "finish_reason", "dropped")}


def assert_as_alone(model: Model, results: list[BatchResult]) -> None:
    for result in results:
        expected = alone(model, result.request)
        ids = expected.pop("ids")
        assert {"text": result.text, **counts(result.stats)} == expected, result.request
        assert ids is None or result.ids == ids, result.request
        if result.text is not None:
            assert len(result.ids) in (result.stats.tokens, result.stats.tokens - 1)


class TestAsAlone:
    @tiered("slots", [2, 8])
    def test_every_request(self, model: Model, slots: int) -> None:
        results = list(model.batch(REQUESTS, slots=slots))
        assert sorted(result.request.key for result in results) == list(range(len(REQUESTS)))  # type: ignore[type-var]
        assert_as_alone(model, results)
        assert {result.stats.dropped for result in results} == {0, 32, 64}


class TestOrder:
    def test_results_come_as_they_are_finished(self, model: Model) -> None:
        requests = [BatchRequest([place + 1], {"max_tokens": most}, place) for place, most in enumerate([10, 2, 3, 1])]
        for slots, order in ((1, [0, 1, 2, 3]), (2, [1, 2, 3, 0])):
            assert [result.request.key for result in model.batch(requests, slots=slots)] == order

    def test_requests_are_taken_when_there_is_a_place(self, model: Model) -> None:
        pulled = []

        def requests() -> Iterator[BatchRequest]:
            for place in range(6):
                pulled.append(place)
                yield BatchRequest([place + 1], {"max_tokens": place + 1}, place)

        results = model.batch(requests(), slots=2)
        assert pulled == []
        for number in range(6):
            assert next(results).request.key == number
            assert pulled == list(range(min(6, number + 2)))
        assert next(results, None) is None


class TestGenerate:
    def test_on_end_is_called_once(self, model: Model) -> None:
        calls = []
        model.generate([[1], [2], [3]], max_tokens=2, on_end=lambda: calls.append(1))
        assert calls == [1]


class TestMemory:
    CONFIG = ModelConfig.from_options("vocab=300,dim=32,heads=4,blocks=2,context=200")

    @pytest.mark.parametrize(("family", "heads"), [("gab", 8), ("llama", 2)])
    def test_a_cache_is_the_keys_and_values_of_each_token_and_a_line_of_queries(self, family: str, heads: int) -> None:
        """Not the queries of each token, and of grouped queries the keys and values of their groups alone."""
        config = replace(self.CONFIG, hidden_size=8 * 8, num_attention_heads=8, head_dim=8, model_type=family)
        config = replace(config, num_key_value_heads=heads)
        layers, head_floats, line = 2, 16, 64  # a head of 8 numbers takes 16; a line holds a block of each slot
        assert sequence_bytes(config, 256) == layers * 256 * (2 * heads * head_floats + line) * 4

    def test_slots(self) -> None:
        each = sequence_bytes(self.CONFIG, 256)
        assert slots_and_capacity(self.CONFIG, SchedulerOptions(), 16384) == (MAX_SLOTS, 256)
        assert slots_and_capacity(self.CONFIG, SchedulerOptions(slots=5), 16384) == (5, 256)
        assert slots_and_capacity(self.CONFIG, SchedulerOptions(memory=3 * each), 16384) == (3, 256)
        assert slots_and_capacity(self.CONFIG, SchedulerOptions(memory=4 * each - 1), 16384) == (3, 256)
        assert slots_and_capacity(self.CONFIG, SchedulerOptions(longest=64, slots=5), 16384) == (5, 64)
        assert slots_and_capacity(self.CONFIG, SchedulerOptions(longest=65, slots=5), 16384) == (5, 128)
        assert slots_and_capacity(self.CONFIG, SchedulerOptions(longest=10_000, slots=5), 16384) == (5, 256), (
            "a longer one drops its oldest half"
        )
        assert slots_and_capacity(self.CONFIG, SchedulerOptions(longest=64, memory=each), 16384) == (4, 64), (
            "shorter ones, more of them"
        )

    @pytest.mark.parametrize("edge", [4, 64])
    def test_no_room_in_textures_for_a_single_one(self, edge: int) -> None:
        with pytest.raises(InputError, match=rf"one sequence of 256 tokens takes .* MB in textures of at most {edge}"):
            slots_and_capacity(self.CONFIG, SchedulerOptions(), edge)

    def test_none_at_all_is_refused_in_one_line(self, model: Model) -> None:
        before = model.device.live_objects()
        with pytest.raises(InputError) as refusal:
            model.batch([BatchRequest(PROMPT)], memory=1000)
        line = str(refusal.value)
        assert "the cache of one sequence of 64 tokens takes" in line
        assert "found room for 0.0 MB; raise the limit (--memory), or take a shorter context (--context)" in line
        assert model.device.live_objects() == before


class TestRefusals:
    def test_before_anything_runs(self, model: Model) -> None:
        refused: list[tuple[Any, str]] = [
            (BatchRequest([1], {"max_token": 3}), "a request has no option 'max_token'; did you mean 'max_tokens'?"),
            (BatchRequest([]), "the prompt is empty"),
            ("Once", "a request is str; expected BatchRequest"),
        ]
        before, draws = model.device.live_objects(), model.device.draws_issued
        for request, words in refused:
            with pytest.raises(InputError) as refusal:
                model.batch([BatchRequest([1, 2, 3]), request])
            assert words in str(refusal.value)
        for requests in (5, None):
            with pytest.raises(InputError, match="expected a list or an iterator"):
                model.batch(requests)  # type: ignore[arg-type]
        assert (model.device.live_objects(), model.device.draws_issued) == (before, draws)

    def test_the_reference_plan(self, reference: Model) -> None:
        words = r"several prompts together need the fast plan; leave out plan='reference' \(--plan reference\)"
        before = reference.device.draws_issued
        for use in (lambda: reference.batch([BatchRequest([1, 2, 3])]), lambda: reference.generate([[1, 2], [3]])):
            with pytest.raises(InputError, match=words):
                use()
        assert reference.device.draws_issued == before

    def test_none_at_all(self, model: Model) -> None:
        assert list(model.batch([])) == list(model.batch(iter(()), slots=2)) == []


# Changes of logits, and log-probabilities


def test_changes_by_hand() -> None:
    changes = LogitChanges(presence_penalty=0.5, frequency_penalty=0.25, bias={2: 3.0, 0: -1.0})
    logits = np.zeros((3, 4), np.float32)
    change_logits(logits, {1: (changes, [1, 1, 0]), 2: (LogitChanges(1.0), [])})
    assert logits.tolist() == [[0.0] * 4, [-1.75, -1.0, 3.0, 0.0], [0.0] * 4]


def test_changes_that_cannot_be() -> None:
    refused: list[tuple[tuple[Any, Any, Any], str]] = [
        (("x", 0, None), "presence_penalty is 'x'; expected a finite number"),
        ((0, float("inf"), None), "frequency_penalty is inf; expected a finite number"),
        ((0, True, None), "frequency_penalty is True; expected a finite number"),
        ((0, 0, [1]), "logit_bias is list; expected a mapping"),
        ((0, 0, {10: 1}), "token 10 of logit_bias is outside the vocabulary; expected 0 to 9"),
        ((0, 0, {-1: 1}), "expected an integer of at least 0"),
        ((0, 0, {1: None}), "the logit_bias of token 1 is None"),
    ]
    for given, words in refused:
        with pytest.raises(InputError) as caught:
            LogitChanges.checked(*given, 10)
        assert words in str(caught.value)


def test_log_probabilities_by_hand() -> None:
    logits = np.log(np.array([[0.5, 0.125, 0.125, 0.25]] * 2, np.float32))
    found, other = token_logprobs(logits, [2, 0], [3, 1])
    assert other.top == [(0, other.logprob)]
    assert found.logprob == pytest.approx(np.log(0.125))
    assert [token for token, _ in found.top] == [0, 3, 1], "of equal ones the lowest id"
    assert [logprob for _, logprob in found.top] == pytest.approx(np.log([0.5, 0.25, 0.125]))
    assert token_logprobs(np.array([[0.0, -np.inf]], np.float32), [1], [0]) == [(1, MIN_LOGPROB, [])]


@pytest.mark.parametrize("vocab", [3, 127, 128, 200, 1001])
@pytest.mark.parametrize("kind", ["distinct", "tied", "infinite", "holed"])
def test_bounds_of_the_likeliest_against_a_sort(vocab: int, kind: str) -> None:
    """Where a bound is not exact, it leaves k parts of 64 and what is behind; NaN counts as the largest."""
    tops = np.array([0, 1, 2, 63, 64, 65, 100, vocab - 1, vocab, vocab + 1])
    tops = tops[tops <= vocab + 1]
    random, part = np.random.default_rng(vocab), vocab // 64
    scores = np.stack([random.permutation(vocab) for _ in tops]).astype(np.float64)
    if kind == "tied":
        scores //= 9
    elif kind != "distinct":
        other = np.array([np.inf, -np.inf] if kind == "infinite" else [np.nan])
        scores[:, ::7] = random.choice(other, scores[:, ::7].shape)
    for k, row, found in zip(tops.tolist(), scores, top_bounds(scores, tops), strict=True):
        if not 0 < k < vocab or (k <= 64 and vocab < 128):
            assert found == -np.inf
            continue
        least = np.sort(row)[-k]
        assert np.isnan(least) or found <= least, "a lower bound"
        if k > 64:
            assert np.array_equal(found, least, equal_nan=True)
        elif kind == "distinct":
            assert (row >= found).sum() <= k * part + vocab % 64, "a close one"
        elif kind == "holed":
            assert np.isnan(found) or found > -np.inf
        else:
            assert found in row


def one(model: Model, **options: Any) -> BatchResult:
    (result,) = model.batch([BatchRequest([1, 2, 3], {"max_tokens": 8, **options})], slots=2)
    return result


@pytest.mark.gl
def test_log_probabilities_change_no_token(model: Model) -> None:
    for options in ({"temperature": 0}, {"seed": 1}, {"seed": 1, "top_k": 5}):
        plain, printed = one(model, **options), one(model, **options, logprobs=2)
        assert printed.ids == plain.ids
        assert plain.logprobs is None
        assert printed.logprobs is not None
        for place, found in enumerate(printed.logprobs):
            logits = model.logits([1, 2, 3, *printed.ids[:place]]).astype(np.float64)
            expected = logits[printed.ids[place]] - np.log(np.exp(logits).sum())
            assert (found.token, found.logprob) == (printed.ids[place], pytest.approx(expected, abs=1e-4))
            assert found.top[0][0] == int(logits.argmax())
