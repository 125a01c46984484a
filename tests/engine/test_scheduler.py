"""Sequences that come and go while others run: each is as it is alone, prompts stall nobody, prefixes are kept."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import agree
from made_models import of_family, opened
from tiers import tiered
from token_streams import finished
from token_streams import random_ids as ids_of

import glinfer
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest, Running
from glinfer.engine.scheduler import MIN_REUSED, Scheduler
from glinfer.errors import ContextError, InputError, NumbersError
from glinfer.gl.readback import Readback
from glinfer.program.session import Session
from glinfer.text.reply import ChatPart

pytestmark = pytest.mark.gl

GREEDY: dict[str, Any] = {"temperature": 0}
SYSTEM = ids_of(25, 3)


def alone(model: Model, request: BatchRequest) -> list[int]:
    """The ids of one request by itself, in a sequence that nobody has used."""
    with model.session() as session:
        kept, model._own = model._own, session
        try:
            return list(model.stream(request.prompt, **request.options))  # type: ignore[arg-type]
        finally:
            model._own = kept


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Every run of a plan with its rows, and every look at choices with the number of runs of the batch before it."""
    found: list[tuple[str, int]] = []
    run, read = Session.run, Readback.read

    def running(self: Session, values: Any, **named: Any) -> int:
        if "rows" in values:  # of the batch's own plans
            found.append((self.plan.name, int(values["rows"])))
        return run(self, values, **named)

    def reading(self: Readback) -> Any:
        found.append(("read", sum(name == "batch" for name, _ in found)))
        return read(self)

    monkeypatch.setattr(Session, "run", running)
    monkeypatch.setattr(Readback, "read", reading)
    return found


class Schedule:
    """Requests that come at random times, some of them cancelled, on one scheduler."""

    def __init__(self, model: Model, seed: int, vocab: int, context: int) -> None:
        self.model, self.vocab, self.context = model, vocab, context
        self.random = np.random.default_rng(seed)
        self.prompts: list[list[int]] = [[]]
        self.pieces: dict[int, list[int]] = {}
        self.ended: list[Running] = []

    def request(self) -> BatchRequest:
        """Sometimes the beginning of what was asked before, sometimes all of it and more."""
        random, prompt = self.random, list(self.prompts[self.random.integers(len(self.prompts))])
        prompt = prompt[: random.integers(len(prompt) + 1)] if random.random() < 0.5 else prompt
        prompt += random.integers(0, self.vocab, random.integers(1, 40)).tolist()
        del prompt[self.context :]
        self.prompts.append(prompt)
        options: dict[str, Any] = {"max_tokens": int(random.integers(1, 30)), "seed": int(random.integers(100))}
        options |= [GREEDY, {}, {"temperature": 0.7}, {"top_k": 5}][random.choice(4, p=[0.5, 0.2, 0.2, 0.1])]
        if random.random() < 0.5:
            options["stop_ids"] = random.integers(0, self.vocab, self.vocab // 10).tolist()
        return BatchRequest(prompt, options)

    def run(self, scheduler: Scheduler, requests: int) -> None:
        live: list[Running] = []
        while requests or live:
            for _ in range(min(requests, self.random.integers(3))):
                requests -= 1
                live.append(scheduler.insert(self.request()))
                self.pieces[id(live[-1])] = []
            assert len(scheduler) == len(live)
            for event in scheduler.next():
                assert event.sequence in live
                self.pieces[id(event.sequence)] += event.ids
                if event.result is not None:
                    live.remove(event.sequence)
                    self.ended.append(event.sequence)
            if live and self.random.random() < 0.08:
                cancelled = live.pop(self.random.integers(len(live)))
                scheduler.cancel(cancelled)
                self.ended.append(cancelled)
            if self.random.random() < 0.1:  # others use the model meanwhile
                self.model.logits([int(self.random.integers(self.vocab))])

    def check(self) -> None:
        for each in self.ended:
            expected = alone(self.model, each.request)
            assert self.pieces[id(each)] == each.ids, "event by event"
            if each.stats.finish_reason == "cancelled":
                assert each.ids == expected[: len(each.ids)]
            else:
                assert each.ids == expected


class TestAsAlone:
    @tiered(("seed", "slots", "piece", "requests"), [(1, 2, 8, 25), (3, 5, None, 60), (8, 1, 3, 40)])
    def test_gab_whatever_comes_and_goes(
        self, model: Model, seed: int, slots: int, piece: int | None, requests: int
    ) -> None:
        schedule = Schedule(model, seed, 300, 64)
        with model.scheduler(slots=slots, piece=piece) as scheduler:
            schedule.run(scheduler, requests)
        reasons = {each.stats.finish_reason for each in schedule.ended}
        assert {"length", "stop"} <= reasons <= {"length", "stop", "cancelled"}
        assert any(each.stats.reused_tokens for each in schedule.ended)
        assert any(each.stats.surplus for each in schedule.ended), (
            "a stop id that came while the next step was under way"
        )
        assert any(each.stats.dropped for each in schedule.ended)
        schedule.check()

    @pytest.mark.slow
    @pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
    def test_other_families(self, family: str) -> None:
        with opened(of_family(family, sliding_window=5 if family == "mistral" else 0)) as model:
            schedule = Schedule(model, 1, 301, 48)
            with model.scheduler(slots=2, piece=16) as scheduler:
                schedule.run(scheduler, 15)
            assert any(each.stats.reused_tokens for each in schedule.ended)
            schedule.check()

    @pytest.mark.parametrize("busy", [False, True], ids=["where it ended", "where it runs"])
    def test_logits_behind_a_prefix_that_was_reused(self, model: Model, busy: bool) -> None:
        """To the last bit, with rows that stay, and with rows copied from a sequence that runs."""
        with model.scheduler(slots=3) as scheduler:
            scheduler.insert(
                BatchRequest([9], {"max_tokens": 40})
            )  # whose steps the slot of the first takes no part in
            first = scheduler.insert(BatchRequest(SYSTEM, {"max_tokens": 20 if busy else 3, **GREEDY}))
            while not first.ended and first.stats.tokens < 5:
                scheduler.next()
            prompt = [*SYSTEM, *first.ids[:2], 5, 6, 7]
            second = scheduler.insert(BatchRequest(prompt, {"max_tokens": 9, **GREEDY}))
            while not second.ids:
                scheduler.next()
            chosen = 2 if scheduler.batch.same_sums else -1
            assert second.stats.reused_tokens == len(SYSTEM) + chosen, "what was chosen too, or only the prompt"
            slot = next(each.number for each in scheduler._slots if each.running is second)
            assert busy == (not first.ended)
            logits = scheduler.batch._logits([slot])[0]  # of the step that is under way
            with model.session() as session:
                session.prefill(second.held)
                assert agree(session.logits(), logits)

    def test_events_wait_until_they_are_due(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        """The next event then has everything since the last; the end never waits, nor does a piece of a call."""
        request = BatchRequest("Once upon", {"max_tokens": 12, "seed": 1, "stop": "§"})
        with model.scheduler(slots=2) as scheduler:
            pieces = [scheduler.insert(request), scheduler.insert(request)]
            events = [event for event in scheduler.next() if event.sequence is pieces[0]]
            pieces[0].due = math.inf
            while len(pieces[0].ids) < 5:
                events += [event for event in scheduler.next() if event.sequence is pieces[0]]
            assert len(events) == 1
            reply = pieces[0].reply
            assert reply is not None
            push = reply.push
            with monkeypatch.context() as patch:
                patch.setattr(reply, "push", lambda *tokens: [*push(*tokens), ChatPart("call", "")])
                events += [event for event in scheduler.next() if event.sequence is pieces[0]]
            assert [len(event.ids) for event in events] == [1, 5]
            events += [event for event in finished(scheduler) if event.sequence is pieces[0]]
        assert [len(event.ids) for event in events] == [1, 5, 6]
        assert [token for event in events for token in event.ids] == pieces[1].ids
        assert "".join(event.text for event in events) == pieces[1].result.text


class TestPieces:
    def test_a_long_prompt_stalls_nobody_for_more_than_a_piece(self, model: Model, log: list[tuple[str, int]]) -> None:
        with model.scheduler(slots=3, piece=8) as scheduler:
            running = scheduler.insert(BatchRequest([1], {"max_tokens": 40, **GREEDY}))
            scheduler.next()
            long = [scheduler.insert(BatchRequest(ids_of(60, seed), {"max_tokens": 2})) for seed in (1, 2)]
            log.clear()
            while not running.ended:
                before = len(running.ids)
                scheduler.next()
                assert len(running.ids) == before + 1
            assert all(each.ended for each in long)
        rows: list[int] = []
        for name, count in log:
            if name == "read":
                rows.append(0)
            elif name == "chunk":
                rows[-1:] = [*rows[-1:-1], (rows[-1] if rows else 0) + count] if rows else [count]
        assert max(rows) <= 8
        assert sum(rows) == 2 * 59, "each token of the prompts but the last, once"

    def test_short_prompts_share_a_piece(self, model: Model, log: list[tuple[str, int]]) -> None:
        with model.scheduler(slots=3, piece=16) as scheduler:
            for seed in range(3):
                scheduler.insert(BatchRequest(ids_of(7, seed), {"max_tokens": 1, **GREEDY}))
            scheduler.next()
            assert [entry for entry in log if entry[0] == "chunk"] == [("chunk", 6)] * 2, "eight rows are run together"
            finished(scheduler)
        assert [entry for entry in log if entry[0] == "chunk"] == [("chunk", 6)] * 3

    def test_a_short_prompt_waits_for_one_piece_of_long_ones(self, model: Model) -> None:
        with model.scheduler(slots=3, piece=8) as scheduler:
            long = [scheduler.insert(BatchRequest(ids_of(60, seed), {"max_tokens": 1, **GREEDY})) for seed in range(2)]
            scheduler.next()
            short = scheduler.insert(BatchRequest(ids_of(8, 9), {"max_tokens": 1, **GREEDY}))
            scheduler.next()
            assert short.ended, "its prompt in one piece, and a step"
            assert [each.cached for each in long] == [8, 0]
            finished(scheduler)
        assert all(each.ids == alone(model, each.request) for each in (*long, short))

    def test_clients_take_turns(self, model: Model) -> None:
        """A client that asks once waits for one prompt of a client that asks ten times, not for ten."""
        with model.scheduler(slots=2, piece=8) as scheduler:
            for seed in range(10):
                scheduler.insert(BatchRequest(ids_of(9, seed), {"max_tokens": 2}, client="greedy"))
            once = scheduler.insert(BatchRequest(ids_of(9, 99), {"max_tokens": 2}, client="modest"))
            order = [event.sequence for event in finished(scheduler) if event.result is not None]
        assert order.index(once) <= 2

    def test_a_long_prompt_is_not_starved_by_short_ones(self, model: Model) -> None:
        with model.scheduler(slots=3, piece=8) as scheduler:
            long = scheduler.insert(BatchRequest(ids_of(60, 1), {"max_tokens": 1, **GREEDY}))
            for seed in range(400):
                scheduler.insert(BatchRequest(ids_of(9, seed), {"max_tokens": 1, **GREEDY}))
                scheduler.next()
                if long.ended:
                    break
        assert long.ended
        assert long.ids == alone(model, long.request)


class TestPrefixes:
    def rows(self, log: list[tuple[str, int]]) -> int:
        return sum(count for name, count in log if name == "chunk")

    def test_a_system_prompt_is_run_once(self, model: Model, log: list[tuple[str, int]]) -> None:
        """In slots that are free again, and by copies from those that run."""
        requests = [BatchRequest([*SYSTEM, *ids_of(6, seed)], {"max_tokens": 4, "seed": seed}) for seed in range(4)]
        expected = [alone(model, request) for request in requests]
        for slots in (3, 2, 1):
            log.clear()
            with model.scheduler(slots=slots) as scheduler:
                each = [scheduler.insert(request) for request in requests]
                finished(scheduler)
            assert [one.stats.reused_tokens for one in each] == [0, 25, 25, 25], slots
            assert self.rows(log) == 25 + 4 * 5
            assert [one.ids for one in each] == expected
            assert {one.stats.prompt_tokens for one in each} == {31}

    def test_a_conversation_goes_on_in_its_place(self, model: Model, log: list[tuple[str, int]]) -> None:
        """What was chosen is in the cache as if it had been a prompt's, where no sums are shared out."""
        with model.scheduler(slots=2) as scheduler:
            if not scheduler.batch.same_sums:
                pytest.skip("this renderer's kernels share sums out")
            first = scheduler.insert(BatchRequest(SYSTEM, {"max_tokens": 9, **GREEDY}))
            finished(scheduler)
            log.clear()
            again = scheduler.insert(BatchRequest([*SYSTEM, *first.ids, 4, 5], {"max_tokens": 3, **GREEDY}))
            finished(scheduler)
        assert again.stats.reused_tokens == 25 + 8, "the last one chosen was never run"
        assert self.rows(log) == 2

    @pytest.mark.slow
    def test_only_what_prompts_left_where_sums_are_shared_out(self, small: Path) -> None:
        with glinfer.load(small) as model:
            kernels = replace(model.kernels, part_steps=1, split_values=True)
        with glinfer.load(small, kernels=kernels) as model:
            with model.scheduler(slots=2) as scheduler:
                first = scheduler.insert(BatchRequest(SYSTEM, {"max_tokens": 9, **GREEDY}))
                finished(scheduler)
                again = scheduler.insert(BatchRequest([*SYSTEM, *first.ids, 4, 5], {"max_tokens": 3, **GREEDY}))
                finished(scheduler)
            assert again.stats.reused_tokens == 24

    def test_the_place_unused_for_longest_is_given_away(self, model: Model) -> None:
        prompts = [ids_of(20, seed) for seed in range(3)]
        with model.scheduler(slots=2) as scheduler:

            def reused(prompt: list[int], client: str = "one", adapter: int = 0) -> int:
                each = scheduler.insert(BatchRequest(prompt, {"max_tokens": 1}, client=client))
                each.adapter = adapter  # as of a model that has some
                finished(scheduler)
                return each.stats.reused_tokens

            assert [reused(prompts[place]) for place in (0, 1)] == [0, 0]
            assert reused(prompts[0]) == 19, "of the same prompt all but its last token"
            assert reused(prompts[2]) == 0
            assert reused(prompts[0]) == 19, "it was the other one's slot"
            assert reused(prompts[1]) == 0
            few = MIN_REUSED
            assert reused([*prompts[1][: few - 1], 1, 2, 3]) == 0
            assert reused([*prompts[1][:few], 1, 2, 3]) == few
            assert (reused(prompts[0]), reused(prompts[0]), reused(prompts[0], "another")) == (0, 19, 0)
            assert (reused(prompts[0]), reused(prompts[0], adapter=1)) == (19, 0)


class TestAhead:
    def test_the_next_step_is_issued_before_the_choices_are_looked_at(
        self, model: Model, log: list[tuple[str, int]]
    ) -> None:
        requests = [BatchRequest([token], {"max_tokens": 6, "seed": token}) for token in (1, 2)]
        requests[0].options.update(GREEDY)  # type: ignore[attr-defined]
        results = list(model.batch(requests))
        assert [entry for entry in log if entry[0] == "read"] == [("read", n) for n in (2, 3, 4, 5, 6, 6)]
        assert sum(name == "batch" for name, _ in log) == 6, "none too many: how long they are is known before"
        assert [result.stats.surplus for result in results] == [0, 0]
        assert sorted(result.ids for result in results) == sorted(alone(model, request) for request in requests)

    def test_one_step_is_wasted_on_an_end_that_nobody_could_know(
        self, model: Model, log: list[tuple[str, int]]
    ) -> None:
        ids = alone(model, BatchRequest([1], {"max_tokens": 9, **GREEDY}))
        stop = next(token for token in ids if token != ids[0])
        log.clear()
        (result,) = model.batch([BatchRequest([1], {"max_tokens": 9, "stop_ids": [stop], **GREEDY})], slots=2)
        place = ids.index(stop)
        assert (result.ids, result.stats.tokens, result.stats.surplus) == (ids[:place], place + 1, 1)
        assert sum(name == "batch" for name, _ in log) == place + 2
        assert result.stats.draws == (place + 2) * 17

    def test_where_one_is_chosen_by_the_sampler_each_step_is_looked_at_first(
        self, model: Model, log: list[tuple[str, int]]
    ) -> None:
        with model.scheduler(slots=2) as scheduler:
            plain = scheduler.insert(BatchRequest([1], {"max_tokens": 9, **GREEDY}))
            scheduler.next()
            filtered = scheduler.insert(BatchRequest([2], {"max_tokens": 3, "seed": 1, "top_k": 5}))
            finished(scheduler)
        runs = [number for name, number in log if name == "read"]
        assert runs[0] == 2
        at_once = sum(before == number + 1 for number, before in enumerate(runs))
        assert at_once == 3 + 1, "as many as the other one has tokens, and the last of all"
        assert plain.ids == alone(model, plain.request)
        assert filtered.ids == alone(model, filtered.request)

    def test_nothing_is_made_for_a_token(self, model: Model) -> None:
        with model.scheduler(slots=2) as scheduler:
            scheduler.insert(BatchRequest([1], {"max_tokens": 30}))
            scheduler.next()
            before = model.device.live_objects()
            assert before["buffer"] == 2
            for _ in range(20):
                scheduler.next()
            assert model.device.live_objects() == before


class TestQueue:
    @pytest.mark.slow
    def test_what_never_fits_is_refused(self) -> None:
        with (
            opened(of_family("llama", max_position_embeddings=200)) as longer,
            longer.scheduler(longest=60) as scheduler,
        ):
            scheduler.insert(BatchRequest([1] * 60, {"max_tokens": 5}))
            with pytest.raises(
                InputError, match=r"a prompt of 60 tokens and 6 more need room for 65; a slot holds 64; a"
            ):
                scheduler.insert(BatchRequest([1] * 60, {"max_tokens": 6}))
            assert len(finished(scheduler)) == 5

    def test_cancelling(self, model: Model) -> None:
        requests = [BatchRequest(ids_of(30, 1), {"max_tokens": most, **GREEDY}) for most in (12, 4)]
        expected = [alone(model, request) for request in requests]
        for when, steps in (("waiting", 0), ("in line", 2), ("half taken in", 2), ("running", 6)):
            with model.scheduler(slots=1 if when == "in line" else 2, piece=8) as scheduler:
                other = scheduler.insert(BatchRequest([5], {"max_tokens": 12, **GREEDY}))
                scheduler.next()
                each = scheduler.insert(requests[0])
                for _ in range(steps):
                    scheduler.next()
                assert (len(each.ids) > 0) == (when == "running")
                scheduler.cancel(each)
                assert len(scheduler) == 1
                scheduler.cancel(each)  # harmless
                assert each.stats.finish_reason == "cancelled"
                assert each.result.ids == each.ids == expected[0][: len(each.ids)]
                third = scheduler.insert(requests[1])
                events = finished(scheduler)
                assert each not in [event.sequence for event in events]
                if when in ("half taken in", "running"):
                    assert third.stats.reused_tokens >= 8, "the tokens of it that were run"
                scheduler.cancel(third)  # has ended
                assert third.stats.finish_reason == "length"
            assert third.ids == expected[1], when
            assert other.ids == alone(model, other.request), when

    def test_cancelling_what_is_none_of_its_own(self, model: Model) -> None:
        with model.scheduler(slots=1) as one, model.scheduler(slots=1) as other:
            each = one.insert(BatchRequest([1], {"max_tokens": 3}))
            for unknown in (each, "a", {}):
                with pytest.raises(InputError, match="found no sequence of this scheduler"):
                    other.cancel(unknown)  # type: ignore[arg-type]
            assert not each.ended

    def test_bounds(self, model: Model) -> None:
        for name, value in itertools.product(("piece", "slots", "memory", "longest"), (0, 1.5, True)):
            for use in (model.scheduler, *(() if name == "piece" else (partial(model.batch, [BatchRequest([1])]),))):
                with pytest.raises(InputError, match=f"{name} is {value}; expected an integer of at least 1"):
                    use(**{name: value})


class TestEnds:
    def test_closing_leaves_nothing(self, model: Model) -> None:
        with model.scheduler(slots=2) as scheduler:
            list(model.batch([BatchRequest(SYSTEM, {"max_tokens": 2})]))  # programs are made
        before = model.device.live_objects()
        with model.scheduler(slots=2) as scheduler:
            each = [
                scheduler.insert(BatchRequest([*SYSTEM, token], {"max_tokens": 20, **GREEDY})) for token in range(3)
            ]
            for _ in range(3):
                scheduler.next()
            assert each[1].stats.reused_tokens, "a texture for copies was made"
        assert model.device.live_objects() == before
        assert [one.stats.finish_reason for one in each] == ["closed"] * 3
        for use in (scheduler.next, lambda: scheduler.insert(BatchRequest([1]))):
            with pytest.raises(ContextError, match=r"this scheduler was closed; make another one with model\.sched"):
                use()
        scheduler.close()

    def test_output_that_is_no_number(self, model: Model) -> None:
        texture = model.bound.texture("lm_head.consts")
        kept = texture.read()
        for options in (GREEDY, {"seed": 1}, {"seed": 1, "top_k": 5}):
            with model.scheduler(slots=2) as scheduler:
                scheduler.insert(BatchRequest([1, 2], {"max_tokens": 30, **options}))
                scheduler.next()
                texture.upload(np.full_like(kept, np.nan))
                try:
                    (*_, last) = finished(scheduler)
                    assert last.result is not None
                    assert last.result.stats.finish_reason == "error"
                    assert re.search("the model's output is broken: .*; NaN began in pass", str(last.result.error))
                    with pytest.raises(NumbersError, match="the model's output is broken"):
                        list(model.batch([last.result.request]))
                finally:
                    texture.upload(kept)
                again = scheduler.insert(BatchRequest([1, 2, 3], {"max_tokens": 5, **options}))
                finished(scheduler)
                assert again.ids == alone(model, again.request)

    def test_one_whose_numbers_break_ends_alone(self, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of three that run together, by way of what is read back for one of them."""
        requests = [BatchRequest(ids_of(20, seed), {"max_tokens": 9, "seed": seed}) for seed in range(3)]
        read, reads = Readback.read, [0]

        def reading(self: Readback) -> Any:
            found = np.array(read(self))
            reads[0] += 1
            if reads[0] == 4:
                found[1] = np.nan
            return found

        with model.scheduler(slots=3) as scheduler:
            each = [scheduler.insert(request) for request in requests]
            monkeypatch.setattr(Readback, "read", reading)
            finished(scheduler)
            monkeypatch.undo()
            assert [one.stats.finish_reason for one in each] == ["length", "error", "length"]
            assert [one.error is None for one in each] == [True, False, True]
            again = scheduler.insert(requests[1])
            finished(scheduler)
        expected = [alone(model, request) for request in requests]
        assert [each[0].ids, again.ids, each[2].ids] == expected
        assert each[1].ids == expected[1][: len(each[1].ids)]
        assert again.stats.reused_tokens == 0, "what a broken sequence left is not used"
