"""What a run leaves in textures never reaches a later one: NaN, infinities, patched numbers, halves of broken runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from agreement import agree
from made_models import IDS as MANY_IDS
from made_models import fresh, mixed, of_family, opened
from poison import POISONS, SCRATCH, poison, poison_values
from token_streams import finished

from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest
from glinfer.engine.run.decode import DecodeSession
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.errors import GLError, InputError, NumbersError
from glinfer.kernels import DrawSpec
from glinfer.program.session import Session

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
IDS = [token % 300 for token in MANY_IDS[:47]]
LENGTHS = 1, 4, 20
"""Prompts through single tokens and chunks, with and without rows of padding."""
REQUESTS = [
    BatchRequest(IDS[:20], {"max_tokens": 6, "temperature": 0}),
    BatchRequest(IDS[5:7], {"max_tokens": 4, "seed": 1}),
    BatchRequest(IDS[:19], {"max_tokens": 5, "top_k": 3, "seed": 2}),
    BatchRequest(IDS[9:14], {"max_tokens": 9, "seed": 4}),
]
Before = Callable[..., None]


def sequences(model: Model, before: Before) -> Iterator[Array]:
    """The logits and tokens of sequences that grow, are cut back and are forked; ``before`` is called between runs."""
    for length in LENGTHS:
        with model.session() as session:
            before()
            session.prefill(IDS[:length])
            yield session.logits()
            if model.plan.name == "fast":
                session.rewind(length)
                before(values=True)
                session.prefill(IDS[:length])
                yield session.logits()
                for options in ({"temperature": 0}, {"seed": 3}, {"seed": 3, "top_k": 4}):
                    before(SCRATCH)
                    yield np.array(session.generate_ids(4, Sampler(SamplingOptions(**options))))  # type: ignore[arg-type]
            session.rewind(len(session) - (length + 1) // 2)
            before(SCRATCH)
            yield session.logits()
            with session.fork() as other:
                before(SCRATCH)
                other.prefill(IDS[:6])
                yield other.logits()


def together(model: Model, before: Before) -> Iterator[Array]:
    """The likelihoods of texts, and the tokens of sequences that come and go."""
    for values in (False, True, False):  # the plan has its textures from the first run on
        before(values=values)
        for score in model.score([IDS[:40], IDS[3:9], IDS[:2], IDS[7:30]]):
            yield score.logprobs
    for values in (False, True):
        with model.scheduler(slots=2, piece=7) as scheduler:
            before(values=values)
            running = [scheduler.insert(request) for request in REQUESTS]
            while len(scheduler):
                scheduler.next()
                # A step that was issued ahead leaves its logits for the next call.
                before(SCRATCH, keep=() if scheduler._ahead is None else ("logits", "row.logits"))
            yield from (np.array(each.ids) for each in running)


def require_untouched(model: Model, *poisons: float) -> None:
    """Require the bits of undisturbed runs, whatever is in every texture but the weights' before each of them."""

    def everything() -> Iterator[Array]:
        yield from sequences(model, before)
        if model.plan.name == "fast":
            yield from together(model, before)

    def before(*given: Any, values: bool = False, **named: Any) -> None:
        if value is not None and values:
            poison_values(model.bound, model.config, value)
        elif value is not None:
            poison(model.bound, value, *given, **named)

    value: float | None = None
    expected = list(everything())
    for value in poisons:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for number, found in enumerate(everything()):
                assert np.array_equal(found, expected[number]), f"result {number} with {value} in all textures"


def test_no_run_reads_what_it_has_not_written(model: Model, reference: Model) -> None:
    require_untouched(model, np.nan)
    require_untouched(reference, np.nan)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "cache"), [("gpt2", "f16"), ("mistral", "q8")])
def test_other_families_and_caches_read_nothing_unwritten(family: str, cache: str) -> None:
    changes = {"sliding_window": 9} if family == "mistral" else {}
    with opened(of_family(family, **changes), cache=cache) as model:
        require_untouched(model, *POISONS)


@pytest.mark.slow
def test_no_product_of_blocks_reads_behind_its_inputs() -> None:
    with opened(mixed("gpt2")) as model:
        require_untouched(model, np.nan)


# Patches


def test_a_session_uses_nothing_that_another_patch_was_in_force_for(model: Model, reference: Model) -> None:
    def doubled(seen: Any) -> Array:
        return np.asarray(2 * seen.array)

    for made in (model, reference):
        with made.session() as session:
            session.prefill(IDS[:9])
            plain = session.logits()
            with made.patch("blocks.0.attn.k", doubled), made.session() as inner:
                inner.prefill(IDS[:9])
                patched = inner.logits()
                assert np.abs(patched - plain).max() > 1e-3
                assert agree(session.logits(), patched)
                fork = session.fork()
                with made.patch("blocks.1.mlp.hidden", doubled):
                    assert not np.array_equal(session.logits(), patched)
                assert agree(session.logits(), patched)
            with fork:
                assert agree(fork.logits(), plain)
            session.step(7)
            session.rewind(1)
            assert agree(session.logits(), plain)
            assert agree(made.logits(IDS[:9]), plain)


def test_a_scheduler_waits_outside_of_a_patch(model: Model) -> None:
    options = {"max_tokens": 5, "temperature": 0}
    expected = model.generate(IDS[:9], **options)  # type: ignore[call-overload]
    with model.scheduler(slots=2) as scheduler:
        running = scheduler.insert(BatchRequest(IDS[:9], options))
        scheduler.next()
        with model.patch("blocks.0.attn.k", lambda seen: 2 * seen.array), pytest.raises(InputError, match="leave the"):
            scheduler.next()
        finished(scheduler)
        assert running.ids == expected


# Errors


def test_a_session_goes_on_after_numbers_that_are_none(model: Model) -> None:
    for name in ("blocks.0.attn.v", "logits"):
        with model.session() as session:
            session.prefill(IDS[:20])
            expected = session.logits()
            tokens = session.generate_ids(4)
            session.rewind(4)
            with model.patch(name, lambda seen: seen.array * np.nan):
                for run in (session.logits, lambda: session.generate_ids(3), lambda: session.generate_ids(2, top_k())):
                    with pytest.raises(NumbersError, match="the model's output is broken"):
                        run()
            assert session.ids == IDS[:20]
            assert session.generate_ids(4) == tokens
            session.rewind(4)
            assert agree(session.logits(), expected)
            session.rewind(11)
            assert agree(session.logits(), fresh(model, IDS[:9]))


def test_nothing_is_held_that_was_run_up_to_an_error(model: Model) -> None:
    """One broken token may have spoilt those before it that ran in the same slot."""
    broken = model.bound.texture("wte")
    with model.session() as session:
        kept = broken.read()
        wrong = kept.copy()
        wrong[IDS[19]] = np.inf
        broken.upload(wrong)
        try:
            session.prefill(IDS[:20])
            with pytest.raises(NumbersError):
                session.logits()
            session.rewind(20 - IDS.index(IDS[19]))
            found = session.logits()
        finally:
            broken.upload(kept)
        assert agree(found, fresh(model, IDS[: IDS.index(IDS[19])]))


def test_a_session_goes_on_after_a_run_that_broke_off(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first draw of a run, in its middle or behind its last, of a chunk, of a token and of several."""
    run = Session.run
    left = [0]

    def go_on(session: DecodeSession, sampler: Sampler) -> None:
        session.prefill(IDS[10:20])
        session.generate_ids(4, sampler)

    def breaking(self: Session, *given: Any, **named: Any) -> int:
        def after(spec: DrawSpec) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise (KeyboardInterrupt, GLError)[count % 2]("planted")

        return run(self, *given, **named, after=after)

    with model.session() as session:
        session.prefill(IDS[:20])
        expected = session.logits()
        tokens = session.generate_ids(4)
    for count in range(0, 60, 7):
        with model.session() as session:
            session.prefill(IDS[:10])
            poison(model.bound, np.nan, SCRATCH, keep=("hidden",))
            monkeypatch.setattr(Session, "run", breaking)
            left[0], sampler = count, Sampler(SamplingOptions(temperature=0))
            with pytest.raises((KeyboardInterrupt, GLError), match="planted"):
                go_on(session, sampler)
            monkeypatch.undo()
            assert sampler.step == 0, "nothing was chosen"
            session.hold(IDS[:20])
            assert agree(session.logits(), expected)
            assert session.generate_ids(4) == tokens


def top_k() -> Sampler:
    """A sampler with a filter."""
    return Sampler(SamplingOptions(seed=1, top_k=5))
