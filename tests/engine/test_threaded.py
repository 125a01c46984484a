"""A model on a thread of its own, called from threads and from event loops."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from own_process import DEADLINE, ROOT, eventually, heed_ctrl_c

from glinfer import ThreadedModel
from glinfer.engine.model import Model
from glinfer.engine.sampler import SamplingOptions
from glinfer.errors import ContextError, FormatError, InputError, OptionError

pytestmark = pytest.mark.gl
PROMPTS: list[Any] = ["a", "Once upon", [3, 1, 4], "the end"]
OPTIONS: dict[str, Any] = {"max_tokens": 70, "seed": 7, "temperature": 1, "top_k": 0, "top_p": 1}
ENDLESS = 10**6


@pytest.fixture(scope="module")
def shared(small: Path) -> Iterator[ThreadedModel]:
    with ThreadedModel(small, slots=3) as opened:
        yield opened


@pytest.fixture
def threaded(shared: ThreadedModel) -> Iterator[ThreadedModel]:
    yield shared
    eventually(lambda: running(shared) == 0, "slots are free")


def running(model: ThreadedModel) -> int:
    return model.call(lambda _: 0 if model._scheduler is None else len(model._scheduler))


def test_texts_of_threads_are_those_of_a_model(threaded: ThreadedModel, model: Model) -> None:
    want = [model.generate(prompt, **OPTIONS) for prompt in PROMPTS]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda prompt: threaded.generate(prompt, **OPTIONS), PROMPTS)) == want
    stream = threaded.stream("a", **OPTIONS)
    assert "".join(stream) == want[0]
    assert (stream.stats.finish_reason, stream.stats.tokens) == ("length", 70)
    assert threaded.generate("a", stop=want[0][9:11], **OPTIONS) == want[0][:9]
    assert threaded.chat("hello", **OPTIONS) == model.chat("hello", **OPTIONS)
    talk, other = threaded.chat_session(), model.chat_session()
    for _ in range(2):
        assert talk.send("hello", **OPTIONS) == other.send("hello", **OPTIONS)


def test_texts_of_tasks_are_those_of_a_model(threaded: ThreadedModel, model: Model) -> None:
    async def ask() -> None:
        found = await asyncio.gather(*(threaded.agenerate(prompt, **OPTIONS) for prompt in PROMPTS))
        assert found == [model.generate(prompt, **OPTIONS) for prompt in PROMPTS]
        assert (found[0].finish_reason, found[0].tokens) == ("length", 70)
        assert [each async for each in threaded.astream([3, 1, 4], **OPTIONS)] == found[2]
        reply = await threaded.achat("hello", **OPTIONS)
        assert reply == model.chat("hello", **OPTIONS)
        assert "".join([piece async for piece in threaded.astream_chat("hello", **OPTIONS)]) == reply

    asyncio.run(ask())


def test_what_is_not_wanted_any_more_ends(threaded: ThreadedModel) -> None:
    async def leave() -> None:
        pieces = threaded.astream([1], max_tokens=ENDLESS)
        async for _ in pieces:
            break
        await pieces.aclose()
        task = asyncio.create_task(threaded.agenerate([1], max_tokens=ENDLESS))
        while not running(threaded):
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        waiting = [asyncio.create_task(threaded.agenerate([1], max_tokens=ENDLESS)) for _ in range(5)]
        await asyncio.sleep(0)  # cancelled before they run
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(leave())
    with threaded.stream([1], max_tokens=ENDLESS) as stream:
        next(stream)
    assert stream.stats.finish_reason == "closed"
    threaded.stream([1], max_tokens=ENDLESS)  # never read, never run


def test_errors_keep_their_types(threaded: ThreadedModel) -> None:
    def fails(*_: Any) -> int:
        raise KeyError("mine")

    async def ask() -> list[Any]:
        asked = (threaded.agenerate([1], sampler=fails), threaded.agenerate([2], max_tokens=5))
        return await asyncio.gather(*asked, return_exceptions=True)

    failed, other = asyncio.run(ask())
    assert isinstance(failed, KeyError)
    assert len(other) == 5, "an error of one text is no matter of another"
    with pytest.raises(InputError, match="the prompt is empty"):
        threaded.generate([])
    with pytest.raises(OptionError, match="did you mean 'max_tokens'"):
        threaded.generate("a", max_token=3)
    with pytest.raises(OptionError, match="has no option 'contxt'"):
        ThreadedModel("shakespeare", contxt=3)
    with pytest.raises(FormatError, match=r"nowhere\.gab: cannot read it"):
        ThreadedModel("nowhere.gab")
    with pytest.raises(AttributeError, match="nothing"):
        threaded.nothing  # noqa: B018


def test_with_one_slot_texts_take_the_draws_of_a_model(small: Path, model: Model) -> None:
    def fails(*_: Any) -> int:
        raise KeyError("mine")

    with ThreadedModel(small, slots=1) as threaded, ThreadPoolExecutor(4) as pool:
        stream, own = threaded.stream("a", **OPTIONS), model.stream("a", **OPTIONS)
        assert "".join(stream) == "".join(own)
        assert stream.stats.draws_per_token == own.stats.draws_per_token == len(model.plan.draws)
        want = [model.generate(prompt, **OPTIONS) for prompt in PROMPTS]
        broken = [pool.submit(threaded.generate, [1], sampler=fails) for _ in range(2)]
        assert list(pool.map(lambda prompt: threaded.generate(prompt, **OPTIONS), PROMPTS)) == want
        assert [type(each.exception()) for each in broken] == [KeyError] * 2, "each ends alone"
        with threaded.stream([1], max_tokens=ENDLESS) as left:
            next(left)
        assert threaded.chat("hello", **OPTIONS) == model.chat("hello", **OPTIONS)
    for bad in ({"slots": 0}, {"slots": 1, "memory": 2.5}):
        with pytest.raises(InputError, match="expected an integer of at least 1"):
            ThreadedModel(small, **bad)


def test_other_methods_run_on_the_thread(threaded: ThreadedModel, model: Model) -> None:
    assert threaded.logits([1, 2]).tolist() == model.logits([1, 2]).tolist()
    assert threaded.score("hello").total == pytest.approx(model.score("hello").total)
    assert threaded.weights == model.weights
    assert threaded.call(Model.generate, [1], max_tokens=2, temperature=0) == model.generate(
        [1], max_tokens=2, temperature=0
    )
    threaded.sampling = SamplingOptions(temperature=0)
    assert threaded.generate([1], max_tokens=5) == model.generate([1], max_tokens=5, temperature=0)
    with pytest.raises(InputError, match=r"sampling is int"):
        threaded.sampling = 3
    with pytest.raises(InputError, match=r"the result of session\(\) belongs to the model's thread; use it in call"):
        threaded.session()
    for changed in (lambda: threaded.watch("*", print), lambda: threaded.patch("logits", abs)):
        with pytest.raises(InputError, match=r"the result of (watch|patch)\(\) belongs to the model's thread"):
            changed()
    with pytest.raises(InputError, match=r"has no option 'slot'; did you mean 'slots'\?"):
        ThreadedModel("small", slot=2)
    for name in ("agenerate", "astream", "achat", "astream_chat"):
        with pytest.raises(InputError, match=rf"\A{name}\(\) has no option 'max_token'; did you mean 'max_tokens'"):
            getattr(threaded, name)("x", max_token=3)
    with pytest.raises(InputError, match=r"think is 'no'; expected True or False"):
        threaded.achat("x", think="no")
    for waits in (lambda _: threaded.generate([1]), lambda _: threaded.close()):
        with pytest.raises(ContextError, match="this is the model's thread, which cannot wait for itself"):
            threaded.call(waits)


def test_any_thread_closes_it(small: Path) -> None:
    model = ThreadedModel(small, slots=2)
    errors: list[BaseException] = []

    def write() -> None:
        try:
            model.generate([1], max_tokens=ENDLESS)
        except ContextError as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for each in threads:
        each.start()
    eventually(lambda: running(model) == 2, "both texts run")
    closers = [threading.Thread(target=model.close) for _ in range(2)]
    for each in (*closers, *threads):
        each.start() if each in closers else each.join(DEADLINE)
    assert [str(error) for error in errors] == ["this model was closed; open another ThreadedModel"] * 2
    for each in closers:
        each.join(DEADLINE)
    model.close()
    with pytest.raises(ContextError, match="this model was closed"):
        model.generate([1])
    with pytest.raises(ContextError, match="this model was closed"):
        model.__enter__()


ENDLESS_TEXT = """
import sys, glinfer
with glinfer.ThreadedModel(sys.argv[1]) as model:
    for piece in model.stream([1], max_tokens=10**6):
        print(piece, flush=True)
"""


@pytest.mark.slow
def test_a_ctrl_c_ends_the_program(small: Path) -> None:
    command = [sys.executable, "-c", ENDLESS_TEXT, small]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed_ctrl_c
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE)
    assert errors.decode().splitlines()[-1] == "KeyboardInterrupt"
    assert process.returncode in (-signal.SIGINT, 1)
