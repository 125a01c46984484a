"""Many sequences together: each as it would be alone, in the order in which they finish, with nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import agree
from made_models import IDS, mixed, of_family, opened, packed
from scripted_models import random_file
from tiers import tiered

import glinfer
from glinfer.config import ModelConfig
from glinfer.engine.batch import MAX_SLOTS, Batch, SchedulerOptions, places_for, sequence_bytes
from glinfer.engine.model import Model
from glinfer.engine.requests import DEFAULTS, BatchRequest, BatchResult
from glinfer.engine.sampler import NEUTRAL, SamplingOptions
from glinfer.errors import ContextError, GlinferError, InputError, PlanError
from glinfer.gl.context import Limits, open_device
from glinfer.models.session import Session

pytestmark = pytest.mark.gl

PROMPT = [13, 132, 251, 70]
GREEDY: dict[str, Any] = {"temperature": 0}


@pytest.fixture
def model(small: Path) -> Iterator[Model]:
    """2 blocks, 4 heads, 300 tokens, a context of 64; draws as it predicts where a test says nothing else."""
    with glinfer.load(small) as opened:
        opened.sampling = NEUTRAL
        yield opened


def ids_of(count: int, seed: int, vocab: int = 300) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, vocab, count).tolist()
    return found


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
    @tiered("slots", [1, 2, 3, 8, None], keep=(2,))
    def test_every_request(self, model: Model, slots: int | None) -> None:
        results = list(model.batch(REQUESTS, slots=slots))
        assert sorted(result.request.key for result in results) == list(range(len(REQUESTS)))  # type: ignore[type-var]
        assert_as_alone(model, results)
        assert {result.stats.dropped for result in results} == {0, 32, 64}

    @tiered("slots", [2, 8], keep=(0,))
    def test_what_stops_them(self, model: Model, slots: int) -> None:
        """Strings and ids that come, in the middle and at once, taken from what the model gives without them."""
        text = alone(model, BatchRequest("Once", {"max_tokens": 20, "seed": 1}))["text"]
        ids = alone(model, BatchRequest(PROMPT, {"max_tokens": 20, "seed": 1}))["ids"]
        stops = [
            BatchRequest("Once", {"max_tokens": 20, "seed": 1, "stop": [text[5:7]]}),
            BatchRequest("Once", {"max_tokens": 20, "seed": 1, "stop": [text[0]]}),
            BatchRequest("Once", {"max_tokens": 20, "seed": 1, "stop": [text[-2:], "never"]}),
            BatchRequest("Once", {"max_tokens": 20, "seed": 1, "stop": ["this never comes"]}),
            BatchRequest(PROMPT, {"max_tokens": 20, "seed": 1, "stop_ids": [ids[7]]}),
            BatchRequest(PROMPT, {"max_tokens": 20, "seed": 1, "stop_ids": [ids[0]]}),
            BatchRequest(PROMPT, {"max_tokens": 20, "seed": 1, "stop_ids": []}),
            BatchRequest("Once", {"max_tokens": 20, "seed": 1, "stop_ids": ids}),
        ]
        results = list(model.batch(stops, slots=slots))
        assert_as_alone(model, results)
        reasons = [result.stats.finish_reason for result in results]
        assert reasons.count("stop") >= 5
        assert reasons.count("length") >= 2
        assert any(result.ids == [] and result.text is None for result in results)

    @pytest.mark.slow
    def test_within_the_limits_of_webgl2(self, small: Path) -> None:
        with glinfer.load(small, limits=Limits.webgl2_minimum()) as model:
            assert_as_alone(model, list(model.batch(REQUESTS, slots=5)))

    @pytest.mark.slow
    @tiered("weights", ["f16", "q8", "q8l"], keep=(1,))
    def test_in_other_weight_formats(self, small: Path, weights: str) -> None:
        with glinfer.load(small, weights=weights) as model:
            assert_as_alone(model, list(model.batch(REQUESTS[:6], slots=4)))

    @pytest.mark.slow
    @tiered(
        "kernels",
        [
            {"rows_per_draw": 4, "blends": False, "largest_cell": 1},
            {"rows_per_draw": 1, "chunk": 5},
            {"rows_per_draw": 8, "blends": True, "quad": False},
            {"rows_per_draw": 2, "blends": True, "cover": "quads", "tiles": 3, "largest_cell": 3},
        ],
        ids=str,
    )
    def test_with_other_kernels(self, small: Path, kernels: dict[str, Any]) -> None:
        with glinfer.load(small) as model:
            shaped = replace(model.kernels, **kernels)
        with glinfer.load(small, kernels=shaped) as model:
            assert_as_alone(model, list(model.batch(REQUESTS[:6], slots=5)))

    @pytest.mark.slow
    def test_an_odd_model_over_many_full_contexts(self, tmp_path: Path) -> None:
        path = random_file(tmp_path / "odd.gab", "vocab=53,dim=30,heads=3,blocks=2,context=11", seed=4)
        requests = [
            BatchRequest(ids_of(count, count, 53), {"max_tokens": 30 - count, "seed": count})
            for count in (1, 3, 4, 7, 10, 11)
        ]
        with glinfer.load(path) as model:
            results = list(model.batch(requests, slots=4))
            assert_as_alone(model, results)
            assert all(result.stats.dropped > 0 for result in results)

    @pytest.mark.slow
    def test_the_bundled_model(self) -> None:
        requests = [
            BatchRequest("ROMEO:\n", {"max_tokens": 25, "seed": 1}),
            BatchRequest("JULIET:\nO ", {"max_tokens": 18, **GREEDY}),
            BatchRequest("KING", {"max_tokens": 12, "seed": 3, "top_k": 40}),
        ]
        with glinfer.load("shakespeare") as model:
            assert_as_alone(model, list(model.batch(requests)))


def rows_of_a_step(model: Model, prompts: list[list[int]]) -> list[np.ndarray[Any, Any]]:
    """The logits of each sequence after a batch took in its prompt, and the token after that."""
    with model.scheduler(slots=len(prompts) + 1, longest=64) as scheduler:
        running = [scheduler.insert(BatchRequest(ids, {"max_tokens": 9, **GREEDY})) for ids in prompts]
        scheduler.next()  # one step, and the next one is issued
        logits = scheduler.batch._logits(range(len(prompts)))
        assert [each.held[:-1] for each in running] == prompts
    return list(logits)


class TestEveryFamily:
    PROMPTS = (IDS[:1], IDS[3:40], IDS[30:36])

    def check(self, model: Model) -> None:
        """Logits to the last bit, ids with and without noise, by the GPU's choice and the sampler's."""
        prompts = [list(ids) for ids in self.PROMPTS]
        for ids, logits in zip(prompts, rows_of_a_step(model, prompts), strict=True):
            with model.session() as session:
                session.prefill(ids)
                session.generate_ids(1)
                assert agree(session.logits(), logits)
        options: list[dict[str, Any]] = [GREEDY, {"seed": 4}, {"seed": 5, "top_k": 20, "temperature": 0.8}]
        requests = [
            BatchRequest(ids, {"max_tokens": 14, **each}, (place, number))
            for place, ids in enumerate(prompts)
            for number, each in enumerate(options)
        ]
        results = list(model.batch(requests, slots=4))
        assert {result.request.key for result in results} == {request.key for request in requests}
        assert_as_alone(model, results)
        layers = model.config.num_hidden_layers
        for result in results:
            listed = "top_k" in result.request.options
            assert result.stats.draws == 14 * (len(model.plan.draws) + layers + listed)
            assert result.stats.seconds > 0
            assert (result.stats.dropped > 0) == (len(result.request.prompt) + 14 > 49)

    @tiered("family", ["mistral", "qwen3", "gemma", "gift_of_gab", "llama", "qwen2", "gpt2"], keep=(4,))
    def test_each_row_is_what_it_is_alone(self, family: str) -> None:
        with opened(of_family(family, sliding_window=5 if family == "mistral" else 0)) as model:
            self.check(model)

    @tiered("family", ["llama", "gpt2"], keep=0)
    def test_blocks_of_files(self, family: str) -> None:
        """Matrices in several formats, as GGUF files have them."""
        with opened(mixed(family)) as model:
            self.check(model)

    @tiered(
        "form",
        [
            "Q4_K",
            "Q8_0",
            "Q4_0",
            "Q4_1",
            "Q5_0",
            "Q5_1",
            "Q6_K",
            "Q2_K",
            "Q3_K",
            "Q5_K",
            "F16",
            "BF16",
            "IQ4_XS",
            "MXFP4",
        ],
        keep=0,
    )
    def test_every_format(self, form: str) -> None:
        with opened(packed(of_family("llama", 256), lambda name: form)) as model:
            self.check(model)


class TestOrder:
    def test_results_come_as_they_are_finished(self, model: Model) -> None:
        requests = [BatchRequest([place + 1], {"max_tokens": most}, place) for place, most in enumerate([10, 2, 3, 1])]
        for slots, order in ((1, [0, 1, 2, 3]), (2, [1, 2, 3, 0]), (4, [3, 1, 2, 0])):
            assert [result.request.key for result in model.batch(requests, slots=slots)] == order

    def test_those_that_finish_together_come_by_place(self, model: Model) -> None:
        requests = [BatchRequest([place + 1], {"max_tokens": 2}, place) for place in range(7)]
        assert [result.request.key for result in model.batch(requests, slots=3)] == list(range(7))

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

    def test_a_run_serves_all_of_them(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        runs: list[str] = []
        run = Session.run
        monkeypatch.setattr(Session, "run", lambda self, *a, **k: runs.append(self.plan.name) or run(self, *a, **k))  # type: ignore[func-returns-value]
        requests = [BatchRequest(ids_of(6, place), {"max_tokens": 5}) for place in range(4)]
        before = model.device.draws_issued
        results = list(model.batch(requests, slots=4))
        assert (runs.count("chunk"), runs.count("batch"), len(runs)) == (4, 5, 9)
        for result in results:
            assert result.stats.draws == 5 * (7 * 2 + 3)
            assert result.stats.seconds > 0
            assert result.stats.prompt_seconds > 0
        assert model.device.draws_issued - before == 5 * 17 + sum(result.stats.prompt_draws for result in results)


class TestGenerate:
    def test_lists_of_texts_and_of_ids(self, model: Model) -> None:
        texts = ["Once", "upon a", "time"]
        options: dict[str, Any] = {"max_tokens": 8, "seed": 3}
        assert model.generate(texts, **options) == [model.generate(text, **options) for text in texts]
        prompts = [[1], [2, 3, 4, 5, 6], PROMPT]
        found = model.generate(prompts, **options)
        assert found == [model.generate(ids, **options) for ids in prompts]
        assert all(type(token) is int for ids in found for token in ids)
        assert model.generate([[1]], max_tokens=1, **GREEDY) == [model.generate([1], max_tokens=1, **GREEDY)]

    def test_in_the_order_of_the_prompts_and_not_of_the_ends(self, model: Model) -> None:
        ids = model.generate(PROMPT, max_tokens=20, seed=1)
        stop = ids[3]
        prompts = [[9, 8, 7], PROMPT, [5]]
        expected = [model.generate(prompt, max_tokens=20, seed=1, stop_ids=[stop]) for prompt in prompts]
        assert expected[1] == ids[: ids.index(stop)]
        assert model.generate(prompts, max_tokens=20, seed=1, stop_ids=[stop]) == expected

    @pytest.mark.slow
    def test_more_than_there_are_places(self, model: Model) -> None:
        prompts = [[place % 300] for place in range(MAX_SLOTS + 3)]
        expected = [model.generate(prompt, max_tokens=2, **GREEDY) for prompt in prompts]
        assert model.generate(prompts, max_tokens=2, **GREEDY) == expected

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

    def test_places(self) -> None:
        each = sequence_bytes(self.CONFIG, 256)
        assert places_for(self.CONFIG, SchedulerOptions(), 16384) == (MAX_SLOTS, 256)
        assert places_for(self.CONFIG, SchedulerOptions(slots=5), 16384) == (5, 256)
        assert places_for(self.CONFIG, SchedulerOptions(memory=3 * each), 16384) == (3, 256)
        assert places_for(self.CONFIG, SchedulerOptions(memory=4 * each - 1), 16384) == (3, 256)
        assert places_for(self.CONFIG, SchedulerOptions(longest=64, slots=5), 16384) == (5, 64)
        assert places_for(self.CONFIG, SchedulerOptions(longest=65, slots=5), 16384) == (5, 128)
        assert places_for(self.CONFIG, SchedulerOptions(longest=10_000, slots=5), 16384) == (5, 256), (
            "a longer one drops its oldest half"
        )
        assert places_for(self.CONFIG, SchedulerOptions(longest=64, memory=each), 16384) == (4, 64), (
            "shorter ones, more of them"
        )

    def test_textures_bound_them_too(self) -> None:
        found = [places_for(self.CONFIG, SchedulerOptions(slots=32), edge)[0] for edge in (256, 512, 1024, 16384)]
        assert found == sorted(found)
        assert 1 <= found[0] < 32
        assert found[-1] == 32

    @pytest.mark.parametrize("edge", [4, 64])
    def test_no_room_in_textures_for_a_single_one(self, edge: int) -> None:
        with pytest.raises(InputError, match=rf"one sequence of 256 tokens takes .* MB in textures of at most {edge}"):
            places_for(self.CONFIG, SchedulerOptions(), edge)

    def test_a_bound_on_memory_makes_fewer_places(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[tuple[int, int]] = []
        init = Batch.__init__

        def spy(self: Batch, *given: Any, slots: int, capacity: int) -> None:
            made.append((slots, capacity))
            init(self, *given, slots=slots, capacity=capacity)

        monkeypatch.setattr(Batch, "__init__", spy)
        requests = [BatchRequest([place], {"max_tokens": 3, "seed": place}) for place in range(5)]
        each = sequence_bytes(model.config, 64)
        for memory, slots in ((None, 5), (each, 1), (3 * each + 5, 3), (100 * each, 5)):
            results = list(model.batch(requests, memory=memory))
            assert made.pop() == (slots, 64)
            assert_as_alone(model, results)
        list(model.batch(iter(requests), slots=2))
        assert made.pop() == (2, 64)

    def test_the_caches_are_as_large_as_was_said(self, model: Model) -> None:
        with model.scheduler(slots=3) as scheduler:
            caches = scheduler.batch.session.plan.of_kind("cache")
            edge = model.device.limits.max_texture_size
            size = sum(tensor.layout_within(edge).nbytes for tensor in caches)
            assert size == pytest.approx(3 * sequence_bytes(model.config, 64), rel=0.05)

    def test_none_at_all_is_refused_in_one_line(self, model: Model) -> None:
        before = model.device.live_objects()
        with pytest.raises(InputError) as refusal:
            model.batch([BatchRequest(PROMPT)], memory=1000)
        line = str(refusal.value)
        assert "\n" not in line
        assert "the cache of one sequence of 64 tokens takes" in line
        assert "found room for 0.0 MB; allow more, or ask for less" in line
        assert model.device.live_objects() == before


class TestRefusals:
    @tiered(
        ("request_", "words"),
        [
            (BatchRequest([1], {"max_token": 3}), "there is no option 'max_token' for a batch; expected some of max_t"),
            (BatchRequest([1], {"on_end": print}), "there is no option 'on_end' for a batch"),
            (BatchRequest([]), "the prompt is empty"),
            (BatchRequest(""), "the prompt is empty"),
            (BatchRequest([300]), "token 0 of the prompt is 300; this vocabulary has ids 0 to 299"),
            (BatchRequest([1] * 65), "the prompt has 65 tokens; this model's context holds 64"),
            (BatchRequest([1], {"max_tokens": 0}), "max_tokens is 0; expected a whole number of at least 1"),
            (BatchRequest([1], {"max_tokens": 2.0}), "max_tokens is 2.0; expected a whole number"),
            (BatchRequest([1], {"temperature": -1}), "temperature"),
            (BatchRequest([1], {"seed": "x"}), "seed"),
            (BatchRequest([1], {"stop": ["x"]}), "stop strings need a text prompt"),
            (BatchRequest("x", {"stop": [""]}), "stop"),
            (BatchRequest("x", {"stop": 5}), "stop"),
            (BatchRequest([1], {"stop_ids": [300]}), "stop id 300 can never come"),
            (BatchRequest(b"ab"), "the prompt is bytes"),  # type: ignore[arg-type]
            (BatchRequest(5), "the prompt is no sequence of whole numbers"),  # type: ignore[arg-type]
            ("Once", "a request is str; expected BatchRequest"),
        ],
        ids=str,
        keep=range(0, 17, 4),
    )
    def test_before_anything_runs(self, model: Model, request_: Any, words: str) -> None:
        before, draws = model.device.live_objects(), model.device.draws_issued
        with pytest.raises(InputError) as refusal:
            model.batch([BatchRequest([1, 2, 3]), request_])
        assert words in str(refusal.value)
        assert "\n" not in str(refusal.value)
        assert (model.device.live_objects(), model.device.draws_issued) == (before, draws)

    def test_the_reference_plan(self, small: Path) -> None:
        words = "several prompts together need the fast plan; load the model without plan='reference'"
        with glinfer.load(small, plan="reference") as model:
            before = model.device.draws_issued
            for use in (lambda: model.batch([BatchRequest([1, 2, 3])]), lambda: model.generate([[1, 2], [3]])):
                with pytest.raises(InputError, match=words):
                    use()
            assert model.device.draws_issued == before

    def test_one_of_an_iterator_comes_to_light_when_it_is_taken(self, model: Model) -> None:
        model.batch([BatchRequest([1], {"max_tokens": 1})]).__next__()
        list(model.batch([BatchRequest(ids_of(8, 1), {"max_tokens": 1})]))  # all programs are made
        before = model.device.live_objects()
        results = model.batch(iter([BatchRequest([1], {"max_tokens": 1}, "good"), BatchRequest([])]), slots=1)
        assert next(results).request.key == "good"
        with pytest.raises(InputError, match="the prompt is empty"):
            next(results)
        assert model.device.live_objects() == before
        assert next(results, None) is None

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"slots": 0}, "slots is 0; expected at least 1"),
            ({"memory": 0}, "memory is 0; expected at least 1"),
            ({"slots": -1}, "the number for slots is -1"),
            ({"slots": 1.5}, "the number for slots is 1.5"),
            ({"memory": True}, "the number for memory is True"),
        ],
    )
    def test_how_many_at_once(self, model: Model, options: dict[str, Any], words: str) -> None:
        with pytest.raises(InputError, match=words):
            model.batch([BatchRequest([1])], **options)

    @pytest.mark.parametrize("requests", [5, None])
    def test_what_is_no_list(self, model: Model, requests: Any) -> None:
        with pytest.raises(InputError, match="expected a list or an iterator"):
            model.batch(requests)

    def test_texts_need_a_tokenizer(self, bare: Path) -> None:
        with glinfer.load(bare) as model:
            with pytest.raises(InputError, match="no tokenizer"):
                model.batch([BatchRequest("Once")])
            assert len(model.generate([[1], [2]], max_tokens=2)) == 2

    def test_every_option_of_sampling_is_one_of_a_request(self) -> None:
        assert set(SamplingOptions.__dataclass_fields__) < set(DEFAULTS)

    def test_none_at_all(self, model: Model) -> None:
        assert list(model.batch([])) == []
        assert list(model.batch(iter(()))) == []


class TestEnds:
    def used(self, model: Model) -> Any:
        """What is alive once everything that is made once was made."""
        list(model.batch([BatchRequest(ids_of(8, 1), {"max_tokens": 2})] * 3, slots=2))
        return model.device.live_objects()

    def test_everything_is_released(self, model: Model) -> None:
        before, sharers = self.used(model), len(model.bound._sharers)
        for slots in (2, 3, 1):
            list(model.batch(REQUESTS[:4], slots=slots))
            assert model.device.live_objects()["texture"] == before["texture"]
            assert len(model.bound._sharers) == sharers

    @pytest.mark.parametrize("taken", [0, 1, 2])
    def test_closing_the_iterator(self, model: Model, taken: int) -> None:
        before = self.used(model)
        results = model.batch(REQUESTS[:6], slots=2)
        for _ in range(taken):
            next(results)
        results.close()  # type: ignore[attr-defined]
        assert model.device.live_objects()["texture"] == before["texture"]
        assert model.device.live_objects()["framebuffer"] == before["framebuffer"]

    def test_an_interrupt(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        before = self.used(model)
        run, left = Session.run, [4]

        def interrupted(self: Session, *given: Any, **named: Any) -> int:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return run(self, *given, **named)

        monkeypatch.setattr(Session, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(model.batch(REQUESTS[:6], slots=2))
        monkeypatch.undo()
        assert model.device.live_objects()["texture"] == before["texture"]
        assert_as_alone(model, list(model.batch(REQUESTS[:3], slots=2)))

    @pytest.mark.parametrize("taken", [0, 1])
    @pytest.mark.parametrize("shared", [False, True], ids=["own device", "shared device"])
    def test_a_model_that_is_closed_meanwhile(self, small: Path, taken: int, shared: bool) -> None:
        with open_device() as device:
            model = glinfer.load(small, device=device if shared else None)
            results = model.batch(REQUESTS[:4], slots=2)
            for _ in range(taken):
                next(results)
            model.close()
            with pytest.raises(GlinferError) as refusal:
                next(results)
            assert isinstance(refusal.value, (PlanError, ContextError))
            assert "\n" not in str(refusal.value)
            assert "released" in str(refusal.value) or "closed" in str(refusal.value)
            assert next(results, None) is None
            with pytest.raises(ContextError, match="this model was closed; load it again"):
                model.batch(REQUESTS[:4])
            assert sum(device.live_objects().values()) == 0

    def test_others_may_use_the_model_meanwhile(self, model: Model) -> None:
        expected = model.logits(ids_of(20, 9))
        model.logits([1])
        found = []
        for result in model.batch(REQUESTS[:6], slots=2):
            found.append(result)
            assert np.array_equal(model.logits(ids_of(20, 9)), expected)
            model.logits([1])
        assert_as_alone(model, found)

    @pytest.mark.parametrize("options", [GREEDY, {"seed": 1}, {"seed": 1, "top_k": 5}], ids=str)
    def test_output_that_is_no_number(self, model: Model, options: dict[str, Any]) -> None:
        before = self.used(model)
        texture = model.bound.texture("lm_head.consts")
        kept = texture.read()
        texture.upload(np.full_like(kept, np.nan))
        with pytest.raises(InputError, match="the model's output is broken") as refusal:
            list(model.batch([BatchRequest(PROMPT, {"max_tokens": 3, **options})] * 2))
        assert "\n" not in str(refusal.value)
        assert model.device.live_objects()["texture"] == before["texture"]
        texture.upload(kept)
        assert len(list(model.batch(REQUESTS[:2]))) == 2
