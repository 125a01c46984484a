"""What convolutions and delta rules see when sequences come in pieces, are cut back, forked, batched and drafted.

What such layers compute is in test_families.py; these are sequences on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from made_models import fresh, of_family, opened

from glinfer.config import ModelConfig
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.errors import PlanError
from glinfer.formats import Checkpoint
from glinfer.inspect.importance import _inputs
from glinfer.inspect.verify.draws import verify_draws
from glinfer.inspect.verify.greedy import verify_greedy
from glinfer.kernels.options import KernelOptions
from glinfer.lower.fused.rows import chunk_plan, fitting_chunk_plan
from glinfer.lower.options import PlanOptions
from glinfer.lower.plans import plan_for

pytestmark = pytest.mark.gl
slow = pytest.mark.slow

Array = np.ndarray[Any, Any]
TOKENS = 75
"""More than a ring."""
IDS = [int(token) for token in np.random.default_rng(7).integers(1, 90, TOKENS)]
LAYERS = ("linear_attention", "full_attention", "linear_attention")
CONVOLUTIONS = ("conv", "full_attention", "conv")
SIZES = {
    "max_position_embeddings": 96,
    "num_hidden_layers": 3,
    "layer_types": LAYERS,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
    "partial_rotary_factor": 0.5,
}


def made_model(scale: float = 6.0, sizes: Mapping[str, Any] = SIZES) -> Checkpoint:
    """A model whose values are large enough that what is long ago shows."""
    made = of_family("qwen3_5_text", **sizes)
    taps = {name: tensor * np.float32(scale) for name, tensor in made.tensors.items() if name.endswith("conv1d.weight")}
    return Checkpoint(made.config, {**made.tensors, **taps}, made.source)


def convolving() -> Checkpoint:
    return of_family("lfm2", max_position_embeddings=96, num_hidden_layers=3, layer_types=CONVOLUTIONS)


def scanning() -> Checkpoint:
    """Scans of Mamba-2, in groups of two heads."""
    own = {**SIZES, "partial_rotary_factor": 1.0, "linear_norm_groups": 2, "conv_bias": True}
    return of_family("granitemoehybrid", **own)


@pytest.fixture(scope="module", params=[made_model, convolving, scanning], ids=["delta rule", "convolution", "scan"])
def any_model(request: pytest.FixtureRequest) -> Iterator[Model]:
    with opened(request.param()) as made:
        yield made


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with opened(made_model()) as made:
        yield made


def stepped(model: Model, ids: list[int]) -> list[Array]:
    """The logits after each token, one by one from empty caches."""
    with model.session() as session:
        found = []
        for token in ids:
            session.step(token)
            found.append(session.logits())
    return found


@pytest.fixture(scope="module")
def wanted(any_model: Model) -> list[Array]:
    return stepped(any_model, IDS)


@pytest.fixture(scope="module")
def expected(model: Model) -> list[Array]:
    return stepped(model, IDS)


def same(found: Array, wanted: Array) -> bool:
    """As float32 allows, where sums of rows together are those of rows alone."""
    return bool(np.abs(found - wanted).max() <= 2e-6 * np.ptp(wanted))


@slow
@pytest.mark.parametrize("pieces", [(2, 9, 1, 17, 11, 35), (16, 1, 58)])
def test_a_prompt_in_pieces_sees_those_before_each(
    any_model: Model, wanted: list[Array], pieces: tuple[int, ...]
) -> None:
    with any_model.session() as session:
        done = 0
        for count in pieces:
            session.prefill(IDS[done : done + count])
            done += count
            assert same(session.logits(), wanted[done - 1]), done


@slow
@pytest.mark.parametrize("tokens", [1, 28, 60])
def test_tokens_that_were_taken_back_are_seen_no_more(any_model: Model, wanted: list[Array], tokens: int) -> None:
    """Others stood in their slots, in the same span or in later ones, and the ones before them are still there."""
    kept = TOKENS - tokens
    with any_model.session() as session:
        session.prefill([*IDS[:kept], *(token + 1 for token in IDS[kept:])])
        session.logits()
        session.rewind(tokens)
        for place in range(kept, min(kept + 20, TOKENS)):
            session.step(IDS[place])
            assert same(session.logits(), wanted[place]), place


@slow
def test_forks_go_on_by_themselves(any_model: Model, wanted: list[Array]) -> None:
    with any_model.session() as session:
        session.prefill(IDS[:40])
        session.logits()
        with session.fork() as other:
            session.step(88)
            session.step(89)
            other.step(IDS[40])
            assert same(other.logits(), wanted[40])
            other.prefill(IDS[41:66])
            assert same(other.logits(), wanted[65])
            session.rewind(2)
            session.step(IDS[40])
            assert same(session.logits(), wanted[40])


@slow
def test_prompts_together_share_their_beginning(any_model: Model) -> None:
    """The third takes over what the first has in its slot; all are as they are alone."""
    prompts = [IDS[:50], IDS[5:9], [*IDS[:45], 3], IDS[:50]]
    alone = [any_model.generate(prompt, max_tokens=20, temperature=0) for prompt in prompts]
    with any_model.scheduler(slots=4, piece=7) as scheduler:
        running = [scheduler.insert(BatchRequest(ids, {"max_tokens": 20, "temperature": 0})) for ids in prompts]
        while len(scheduler):
            scheduler.next()
        assert [each.ids for each in running] == alone
        assert sum(each.result.stats.reused_tokens for each in running if each.result is not None) > 32


@slow
def test_a_place_that_has_lost_a_prefix_runs_it_again(any_model: Model) -> None:
    """A slot has only the newest tokens of what it ran: a prompt may continue those, and no earlier ones."""
    options, prompt, wanted = {"max_tokens": 20, "temperature": 0}, IDS[:30], list[int]()
    with any_model.scheduler(slots=2) as scheduler:
        # A new text, one that goes on, one that goes on from an earlier token, and one that leaves the first early.
        for kept, end, reused in ((None, [], 0), (20, [7], 49), (5, [8], 56), (-40, [3, 4], 0)):
            if kept is not None:
                prompt = [*prompt, *wanted][: len(prompt) + kept] + end
            running = scheduler.insert(BatchRequest(prompt, options))
            while len(scheduler):
                scheduler.next()
            assert running.result is not None
            assert running.result.stats.reused_tokens == reused
            wanted = any_model.generate(prompt, **options)
            assert running.ids == wanted


@slow
def test_texts_are_scored_by_themselves(any_model: Model) -> None:
    """Short and long ones, though they share the caches."""
    texts = [IDS[:9], IDS[20:26], IDS, IDS[3:50]]
    for text, found in zip(texts, any_model.score(texts), strict=True):
        logits = np.array(stepped(any_model, text[:-1]), np.float64)
        wanted = logits - np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True))
        wanted -= logits.max(axis=1, keepdims=True)
        assert np.abs(found.logprobs - wanted[np.arange(len(text) - 1), text[1:]]).max() < 1e-4


@slow
def test_a_short_rewind_costs_nothing_and_a_long_one_all(model: Model) -> None:
    rewinds, draws = model.engine.plan.rewinds, len(model.engine.plan.draws)
    assert rewinds == 28
    with model.session() as session:
        session.prefill(IDS)
        session.logits()
        for tokens, most in ((rewinds, draws), (1, 3 * 2 * draws)):
            session.rewind(tokens)
            before = session.draws_issued
            found = session.logits()
            assert draws - 1 <= session.draws_issued - before <= most
            assert same(found, fresh(model, session.ids))
        assert session.draws_issued - before > 2 * draws, "the second went further back than the caches do"


@slow
def test_an_interrupted_run_leaves_nothing(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens are in the rings, and none of them is held."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with model.session() as session:
        session.prefill(IDS[:40])
        monkeypatch.setattr(session, "_candidates", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.generate_ids(50)
        assert same(session.logits(), fresh(model, IDS[:40]))
        assert session.ids == IDS[:40]


@slow
def test_a_long_rewind_continues_from_the_end_of_a_span_of_the_prompt(model: Model) -> None:
    """While replies after it are cut back and others take their place; before it the text runs from its first token."""
    first, starts = [*IDS[:50], *IDS[:25]], list[int]()
    with model.session() as session:
        reach = session._reach
        session._reach = lambda start, count=1: (starts.append(start), reach(start, count))
        session.prefill(first)
        for prompt, start in (
            ([*first[:70], 5, 6], 70),
            ([*first[:65], 8], 64),
            (first[:64], 0),
            (first, 32),
            ([*first[:64], 9], 64),
            (first[:50], 0),
            ([*first[:33], 7], 32),
            ([*first[:20], 7, 8, 9], 0),
        ):
            session.generate_ids(95 - len(session))
            starts.clear()
            session.hold(prompt)
            assert same(session.logits(), fresh(model, prompt)), prompt
            assert min(starts) == start, prompt


@slow
def test_a_convolution_continues_from_just_before_the_end_of_a_prompt() -> None:
    """Its ring has what precedes each of the last tokens, so the snapshot need not be at the end of a span."""
    starts = list[int]()
    with opened(convolving()) as model, model.session() as session:
        reach = session._reach
        session._reach = lambda start, count=1: (starts.append(start), reach(start, count))
        session.prefill(IDS)
        for prompt, start in (
            ([*IDS[:70], 5, 6], 70),
            ([*IDS[:40], 7, 8, 9, 1], 0),
            ([*IDS[:40], 7, 8, 9, 1, 2, 3], 36),
            (IDS[:39], 38),
            (IDS[:38], 0),
        ):
            session.generate_ids(95 - len(session))
            starts.clear()
            session.hold(prompt)
            assert same(session.logits(), fresh(model, prompt)), prompt
            assert min(starts) == start, prompt


@slow
def test_drafts_that_are_refused_leave_nothing(any_model: Model) -> None:
    """Their rows are in the cache, behind those that count, over the end of a span and of a ring too."""
    greedy = Sampler(SamplingOptions(temperature=0))
    for count in (30, 40, 61):
        greedily = any_model.generate(IDS[:count], max_tokens=7, temperature=0)
        with any_model.session() as session:
            session.prefill(IDS[:count])
            wrong = [(token + 1) % 90 for token in greedily[:4]]
            assert session.accept(wrong, greedy) == greedily[:1]
            assert session.accept([greedily[1], *wrong], greedy) == greedily[1:3]
            assert session.generate_ids(4, greedy) == greedily[3:]
    repeated = IDS[:8] * 5
    assert any_model.generate(repeated, max_tokens=20, temperature=0, speculate="ngram") == any_model.generate(
        repeated, max_tokens=20, temperature=0
    )


@slow
def test_a_capture_shows_the_results_of_the_rule(model: Model) -> None:
    """Both plans name them, and agree."""
    names = ["blocks.*.delta.mixed", "blocks.1.attn.joined"]
    fast = model.capture(names, IDS[:40])
    assert set(fast) == {"blocks.0.delta.mixed", "blocks.2.delta.mixed", "blocks.1.attn.joined"}
    checkpoint = made_model()
    with opened(checkpoint, plan="reference") as reference:
        plain = reference.capture([*names, "blocks.2.delta.out"], IDS[:40])
    for name, found in fast.items():
        assert found.shape == plain[name].shape == (40, 32 if "delta" in name else found.shape[1])
        assert np.abs(found - plain[name]).max() <= 1e-5 * np.ptp(plain[name]), name


def test_both_plans_agree_about_a_scan() -> None:
    """Tokens alone and together, over the ends of spans, and what a capture shows; eleven draws take its place."""
    names, checkpoint = ["blocks.*.ssm.mixed"], scanning()
    with opened(checkpoint, plan="reference") as reference:
        plain = reference.capture(names, IDS[:40])
    with opened(checkpoint) as model:
        fast = model.capture(names, IDS[:40])
        assert set(fast) == {"blocks.0.ssm.mixed", "blocks.2.ssm.mixed"}
        for name, found in fast.items():
            assert np.abs(found - plain[name]).max() <= 1e-5 * np.ptp(plain[name]), name
        wanted = stepped(model, IDS[:70])
        with model.session() as session:
            session.prefill(IDS)
            session.rewind(6)
            session.prefill(IDS[69:70])
            assert same(session.logits(), wanted[69])
    plan = plan_for(checkpoint.config, "fast")
    assert sum(draw.name.startswith("h.0.ssm.") for draw in plan.draws) == 12


LONG = {**SIZES, "max_position_embeddings": 256, "linear_key_head_dim": 36, "linear_conv_kernel_dim": 3}


@slow
@pytest.mark.parametrize("decay", ["usual", "none", "all"])
def test_long_pieces_give_what_tokens_one_by_one_give(decay: str) -> None:
    """Over more than three rings; with decays that forget nothing, and that underflow at once."""
    made = made_model(sizes=LONG)
    rate = {"usual": None, "none": -60.0, "all": 7.0}[decay]
    rates = {name: np.full_like(each, rate) for name, each in made.tensors.items() if rate and name.endswith("A_log")}
    ids = (IDS + IDS[::-1]) * 2
    made = Checkpoint(made.config, {**made.tensors, **rates}, made.source)
    with opened(made) as model:
        expected = stepped(model, ids[:205])
        for pieces in ((205,), (7, 48, 1, 60, 89)):
            with model.session() as session:
                done = 0
                for count in pieces:
                    session.prefill(ids[done : done + count])
                    done += count
                    assert same(session.logits(), expected[done - 1]), done
        if decay == "usual":
            checks = verify_draws(model.engine, ids[:96])
            assert all(check.passed for check in checks), [check for check in checks if not check.passed]
            with opened(made, plan="reference") as reference, reference.session() as session:
                session.prefill(ids[:205])
                assert np.abs(session.logits() - expected[204]).max() <= 1e-5 * np.ptp(expected[204])


@slow
def test_every_draw_is_that_of_float64(model: Model) -> None:
    checks = verify_draws(model.engine, IDS[:35])
    assert all(check.passed for check in checks), [check for check in checks if not check.passed]
    greedy = verify_greedy(model.engine, made_model(), IDS[:40], 5)
    assert greedy.passed, greedy


@pytest.mark.parametrize(
    ("layers", "most", "rings"),
    [
        ("family=qwen3_5_text,dim=1024,heads=8,kv_heads=2,head_dim=256,blocks=24,inner=3584,vocab=248320", 200e6, 72e6),
        ("family=lfm2,dim=2048,heads=32,kv_heads=8,blocks=16,inner=8192,vocab=65536", 111e6, 2.7e6),
    ],
    ids=["Qwen 3.5 0.8B", "LFM2 1.2B"],
)
def test_rings_do_not_grow_with_the_context(layers: str, most: float, rings: float) -> None:
    """Beside keys and values, which grow."""
    found = []
    for context in (4096, 16384):
        plan = plan_for(ModelConfig.from_options(f"{layers},context={context}"), "fast")
        sizes = {each.name: each.layout_within(16384).nbytes for each in plan.of_kind("cache")}
        found.append(sum(size for name, size in sizes.items() if ".delta." in name or ".conv." in name))
        assert context > 4096 or sum(sizes.values()) < most
    assert 0 < found[0] == found[1] < rings


def test_more_rows_than_a_span_are_no_plan() -> None:
    options = PlanOptions(made_model().config, "f32", KernelOptions(), 2048)
    with pytest.raises(PlanError, match="a plan for 40 rows that follow each other; expected at most 32"):
        chunk_plan(options, rows=40, cache_slots=64)
    assert fitting_chunk_plan(options, rows=120, cache_slots=64).max_rows == 30


@slow
def test_a_capture_shows_the_convolution() -> None:
    """Both plans name what it reads and what it gives, and agree; a layer without attention has no scores."""
    names = ["blocks.*.conv.gated", "blocks.*.conv.mixed"]
    checkpoint = convolving()
    with opened(checkpoint) as model:
        fast = model.capture(names, IDS[:9])
    assert set(fast) == {f"blocks.{layer}.conv.{part}" for layer in (0, 2) for part in ("gated", "mixed")}
    with opened(checkpoint, plan="reference") as reference:
        plain = reference.capture([*names, "blocks.0.conv.norm", "blocks.2.conv.out"], IDS[:9])
    for name, found in fast.items():
        assert found.shape == plain[name].shape == (9, 64)
        assert np.abs(found - plain[name]).max() <= 1e-5 * np.ptp(plain[name]), name
    taps, gated = checkpoint.floats("model.layers.0.conv.conv.weight")[:, 0], plain["blocks.0.conv.gated"]
    summed = sum(np.pad(gated, ((2 - k, 0), (0, 0)))[:9] * taps[:, k] for k in range(3))
    gates = plain["blocks.0.conv.norm"] @ checkpoint.floats("model.layers.0.conv.in_proj.weight")[64:128].T
    assert np.abs(gates * summed - plain["blocks.0.conv.mixed"]).max() <= 1e-4 * np.ptp(plain["blocks.0.conv.mixed"])


def test_every_input_of_a_matrix_can_be_watched() -> None:
    """Which those of a text are says how much errors of the matrix count when it is packed with few bits."""
    config = made_model().config
    inputs = dict(_inputs(config))
    parts = [f"model.layers.0.linear_attn.in_proj_{part}.weight" for part in ("qkv", "z", "b", "a")]
    assert inputs["blocks.0.delta.norm"] == parts
    assert inputs["blocks.2.delta.mixed"] == ["model.layers.2.linear_attn.out_proj.weight"]
    assert inputs.keys() <= plan_for(config, "reference", tokens=9).points.keys()
    config = convolving().config
    inputs = dict(_inputs(config))
    assert inputs["blocks.0.conv.norm"] == ["model.layers.0.conv.in_proj.weight"]
    assert inputs["blocks.2.conv.mixed"] == ["model.layers.2.conv.out_proj.weight"]
    assert inputs.keys() <= plan_for(config, "reference", tokens=9).points.keys()
