"""Models in the wrong thread, in a forked process, after they were closed, at the end of Python, and after a Ctrl-C."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_process import ran
from scripted_models import SMALL, random_file
from tiers import tiered

import glinfer
from glinfer.engine.model import Model
from glinfer.engine.random_model import demo_tokenizer
from glinfer.engine.requests import BatchRequest
from glinfer.errors import GlinferError
from glinfer.formats import write_bpe
from glinfer.gl.context import Device, open_device

pytestmark = pytest.mark.gl

SHAPE = SMALL.replace("blocks=2", "blocks=1")
PROMPT = [13, 132, 251, 70, 9]
OTHER_THREAD = (
    "an OpenGL context belongs to the thread that opened it; load the model in the thread that uses it, "
    "or use glinfer.ThreadedModel"
)

Uses = dict[str, Callable[[], object]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one block with its tokenizer."""
    path = random_file(tmp_path_factory.mktemp("misuse") / "tiny.gab", SHAPE)
    write_bpe(demo_tokenizer(300), path.with_suffix(".bpe"))
    return path


@pytest.fixture(params=["fast", pytest.param("reference", marks=pytest.mark.slow)])
def model(tiny: Path, request: pytest.FixtureRequest) -> Iterator[Model]:
    """By each plan, for tests that end it."""
    with glinfer.load(tiny, plan=request.param) as made:
        yield made


class Started:
    """A model with a session, streams and a batch of which something was taken."""

    def __init__(self, model: Model) -> None:
        self.model, self.fast = model, model.plan.name == "fast"
        self.session = model.session()
        self.session.prefill(PROMPT)
        self.session.logits()
        self.tokens = model.stream(PROMPT, max_tokens=6, seed=1)
        self.text = model.stream("Once", max_tokens=6, seed=1, stop_ids=[])
        next(self.tokens)
        next(self.text)
        self.results, self.unread = iter(()), iter(())
        if self.fast:
            self.results = model.batch([BatchRequest(PROMPT, {"max_tokens": count}) for count in (2, 6)], slots=2)
            next(self.results)
            self.unread = model.batch([BatchRequest(PROMPT, {"max_tokens": 2})])
            self.scheduler = model.scheduler(slots=2)
            self.scheduler.insert(BatchRequest(PROMPT, {"max_tokens": 6}))
            self.scheduler.next()

    def uses(self) -> Uses:
        """Everything that runs the model, by what it is called."""
        model, session, name = self.model, self.session, self.model.names()[0]
        found: Uses = {
            "logits": lambda: model.logits(PROMPT),
            "probs": lambda: model.probs(PROMPT),
            "generate": lambda: model.generate(PROMPT, max_tokens=2),
            "generate text": lambda: model.generate("Once", max_tokens=2),
            "a new stream": lambda: next(model.stream(PROMPT)),
            "a new stream of text": lambda: next(model.stream("Once")),
            "capture": lambda: model.capture(name, PROMPT),
            "watch": lambda: model.watch(name, print).__enter__(),
            "patch": lambda: model.patch(name, lambda seen: seen.array).__enter__(),
            "session": model.session,
            "session.prefill": lambda: session.prefill([1]),
            "session.hold": lambda: session.hold([1, 2]),
            "session.step": lambda: session.step(1),
            "session.fork": session.fork,
            "stream": lambda: model.stream(PROMPT),
            "the stream": lambda: next(self.tokens),
            "the stream of text": lambda: next(self.text),
            "session.generate_ids": lambda: session.generate_ids(2),
            "bound.read": lambda: model.bound.read(model.plan.tensors[0].name),
            "bound.sharer": model.bound.sharer,
        }
        if self.fast:
            found |= {
                "generate many": lambda: model.generate([PROMPT, PROMPT], max_tokens=2),
                "a new batch": lambda: next(model.batch([BatchRequest(PROMPT, {"max_tokens": 2})])),
                "the batch": lambda: next(self.results),
                "the unread batch": lambda: next(self.unread),
                "a new scheduler": model.scheduler,
                "scheduler.insert": lambda: self.scheduler.insert(BatchRequest(PROMPT)),
                "scheduler.next": lambda: self.scheduler.next(),
                "score": lambda: model.score([PROMPT]),
            }
        else:
            found["forward"] = lambda: model.forward(PROMPT)
        return found


def said_by(uses: Uses) -> dict[str, str]:
    """What each use says, and nothing but a line."""
    found: dict[str, str] = {}
    for name, use in uses.items():
        try:
            use()
        except GlinferError as error:
            found[name] = str(error)
        except StopIteration:
            found[name] = "the end"
        else:
            found[name] = "no error"
    return found


def in_another_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


class TestThreads:
    def test_everything_is_refused_in_another_thread_and_goes_on_in_its_own(self, model: Model) -> None:
        expected, started = model.logits(PROMPT), Started(model)
        uses, held = started.uses(), started.session.ids
        closing: Uses = {"bound.release": model.bound.release, "device": model.device.close, "model": model.close}
        if started.fast:
            closing["session"] = started.session.close
        assert in_another_thread(lambda: said_by(uses)) == dict.fromkeys(uses, OTHER_THREAD)
        assert in_another_thread(lambda: said_by(closing)) == dict.fromkeys(closing, OTHER_THREAD)
        assert started.session.ids == held, "refused before anything changed"
        assert np.array_equal(model.logits(PROMPT), expected)
        assert len(model.generate(PROMPT, max_tokens=3, seed=1)) == 3
        with model.session() as session:
            session.prefill(PROMPT)
            assert np.array_equal(session.logits(), expected)

    def test_two_models_in_two_threads_at_once(self, tiny: Path) -> None:
        with glinfer.load(tiny) as model:
            expected = model.generate(PROMPT, max_tokens=20, seed=3)
        both = threading.Barrier(2, timeout=300)
        found: list[list[int]] = []

        def work() -> None:
            with glinfer.load(tiny) as mine:
                both.wait()
                stream = mine.stream(PROMPT, max_tokens=20, seed=3)
                ids = []
                for token in stream:
                    ids.append(token)
                    if len(ids) < 20:
                        both.wait()  # token by token in turns
                found.append(ids)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [expected] * 2


class TestClosed:
    """A line for each object that was closed, or whose model or device was."""

    def test_everything_of_a_closed_model(self, model: Model) -> None:
        started = Started(model)
        uses = started.uses()
        model.close()
        lines = {"this model was closed; load it again", "this device was closed; open or load again"}
        said = said_by(uses)
        assert {name: line for name, line in said.items() if line not in lines} == {}
        assert started.session.ids[: len(PROMPT)] == PROMPT, "tokens can still be read"
        closing = started.tokens, started.text, started.session, model
        for each in closing:
            each.close()
        model.bound.release()

    def test_everything_of_a_closed_device(self, model: Model) -> None:
        started = Started(model)
        uses = started.uses()
        model.device.close()
        assert said_by(uses) == dict.fromkeys(uses, "this device was closed; open or load again")
        started.session.close()
        model.close()

    def test_single_objects_that_were_closed(self, model: Model) -> None:
        started = Started(model)
        expected = model.logits(PROMPT)
        session = started.session
        batches = (started.results, started.unread) if started.fast else ()
        for closing in (started.session, started.tokens, started.text, *batches):
            closing.close()  # type: ignore[attr-defined]
        uses: Uses = {
            "prefill": lambda: session.prefill([1]),
            "step": lambda: session.step(1),
            "hold": lambda: session.hold([1]),
            "rewind": lambda: session.rewind(1),
            "logits": session.logits,
            "probs": session.probs,
            "generate_ids": lambda: session.generate_ids(1),
            "fork": session.fork,
        }
        line = "this session was closed; make another one with model.session()"
        assert said_by(uses) == dict.fromkeys(uses, line)
        ended: Uses = {
            "stream": lambda: next(started.tokens),
            "text": lambda: next(started.text),
            "batch": lambda: next(started.results),
            "unread": lambda: next(started.unread),
        }
        assert said_by(ended) == dict.fromkeys(ended, "the end")
        assert np.array_equal(model.logits(PROMPT), expected)


# Processes of their own

HEAD = """
import os, sys
import glinfer
from glinfer.errors import ContextError
model = glinfer.load(sys.argv[1])
session = model.session()
session.prefill([1, 2, 3, 4, 5])
stream = model.stream([1, 2, 3], max_tokens=8, seed=1)
first = [next(stream), next(stream)]
"""
FORKED = """
expected = session.logits()
child = os.fork()
if child == 0:
    uses = [lambda: model.generate([1], max_tokens=1), session.fork, lambda: session.generate_ids(1), model.session,
            lambda: next(stream), lambda: model.score([[1, 2]]), lambda: glinfer.load(sys.argv[1])]
    for use in uses:
        try:
            print("used", use())
        except ContextError as error:
            print(error)
    assert session.ids == [1, 2, 3, 4, 5]
    session.close()
    stream.close()
    model.close()
    del session, stream, model
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
assert (session.logits() == expected).all()
session.step(6)
print(first + list(stream) == model.generate([1, 2, 3], max_tokens=8, seed=1))
model.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
class TestForks:
    def test_a_child_is_told_and_the_parent_goes_on(self, tiny: Path) -> None:
        *said, last = ran(HEAD + FORKED, tiny)
        assert last == "True"
        assert len(said) == 7
        assert {line.split(" process ")[0] for line in said[:6]} == {"this device was opened in"}
        assert said[6].startswith("this process was forked from process ")
        assert all("multiprocessing's 'spawn'" in line for line in said)


@tiered("end", ["", "import gc; del model, session, stream; gc.collect()"], ids=["all open", "everything forgotten"])
def test_leaving_python_with_models_open_is_silent(tiny: Path, end: str) -> None:
    assert ran(f"{HEAD}\nresults = model.batch([])\nprint(len(first))\n{end}\n", tiny) == ["2"]


# Ctrl-C


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have a Ctrl-C come when the driver is looked at for the n-th time from now on, 0 for never."""
    left, check = [0], Device.check

    def checking(device: Device, *given: Any, **named: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        check(device, *given, **named)

    monkeypatch.setattr(Device, "check", checking)

    def arm(place: int) -> None:
        left[0] = place

    return arm


def each_interrupted(
    ctrl_c: Callable[[int], None], stride: int, act: Callable[[], Any], after: Callable[[int], None]
) -> tuple[Any, int]:
    """What ``act`` gives without a Ctrl-C, and how many places it passes; ``after`` follows each one tried."""
    place = 0
    while True:
        place += stride
        ctrl_c(place)
        try:
            found = act()
        except KeyboardInterrupt:
            after(place)
        else:
            ctrl_c(0)
            return found, place


@tiered("plan", ["fast", "reference"])
def test_ctrl_c_anywhere_while_loading_leaves_nothing(tiny: Path, ctrl_c: Callable[[int], None], plan: str) -> None:
    with open_device() as device:
        with glinfer.load(tiny, device=device, plan=plan) as model:
            expected = model.logits(PROMPT[:3])

        def after(place: int) -> None:
            assert not device.live_objects(), f"at {place}"

        model, place = each_interrupted(ctrl_c, 4, lambda: glinfer.load(tiny, device=device, plan=plan), after)
        assert place > 40
        assert np.array_equal(model.logits(PROMPT[:3]), expected)
        model.close()


def sampled(model: Model) -> Any:
    return model.generate(PROMPT, max_tokens=5, seed=4, top_k=5)


def a_batch(model: Model) -> Any:
    requests = [BatchRequest(PROMPT, {"max_tokens": 3, "seed": seed}, seed) for seed in range(3)]
    return sorted((str(result.request.key), result.ids) for result in model.batch(requests, slots=2))


def scores(model: Model) -> Any:
    return model.score([PROMPT])[0].total


@pytest.mark.usefixtures("chunk_at_once")  # as many textures from the first attempt on
@tiered(("act", "stride"), [(a_batch, 9), (sampled, 1), (scores, 2)], ids=lambda each: getattr(each, "__name__", each))
def test_ctrl_c_anywhere_in_a_run_leaves_what_is_true(
    tiny: Path, ctrl_c: Callable[[int], None], act: Callable[[Model], Any], stride: int
) -> None:
    with glinfer.load(tiny) as model:
        expected = act(model)
        kept, textures = model.logits(PROMPT[:3]), model.device.live_objects()["texture"]
    with glinfer.load(tiny) as model:

        def after(_: int) -> None:
            assert model.device.live_objects()["texture"] <= textures

        found, place = each_interrupted(ctrl_c, stride, lambda: act(model), after)
        assert place > 3 * stride
        assert found == expected, "as if nothing had happened"
        assert np.array_equal(model.logits(PROMPT[:3]), kept)
        assert model.device.live_objects()["texture"] == textures


def test_ctrl_c_while_closing_still_closes_the_device(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = glinfer.load(tiny)
    release = model.bound.release

    def interrupted() -> None:
        monkeypatch.setattr(model.bound, "release", release)
        raise KeyboardInterrupt

    monkeypatch.setattr(model.bound, "release", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.close()
    assert model.device.closed
    model.close()
