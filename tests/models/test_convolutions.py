"""What a convolution sees, in sequences that grow in pieces, are cut back, forked, batched and drafted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from made_models import of_family, opened
from tiers import tiered

from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest
from glinfer.engine.sampler import Sampler, SamplingOptions
from glinfer.formats.tensors import weight_shapes
from glinfer.inspect.importance import _inputs
from glinfer.models.capture.names import capture_points
from glinfer.models.choice import plan_for
from glinfer.models.fast.token import fast_plan
from glinfer.models.options import PlanOptions
from glinfer.ops.kernels import KernelOptions

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
IDS = [int(token) for token in np.random.default_rng(7).integers(1, 90, 40)]
LAYERS = ("conv", "full_attention", "conv")


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    with opened(of_family("lfm2", num_hidden_layers=3, layer_types=LAYERS)) as made:
        yield made


@pytest.fixture(scope="module")
def expected(model: Model) -> list[Array]:
    """The logits after each token, one by one from empty caches."""
    with model.session() as session:
        found = []
        for token in IDS:
            session.step(token)
            found.append(session.logits())
    return found


def same(found: Array, wanted: Array) -> bool:
    """As float32 allows, where sums of rows together are those of rows alone."""
    return bool(np.abs(found - wanted).max() <= 2e-6 * np.ptp(wanted))


@tiered("pieces", [(1, 1, 1, 37), (2, 9, 1, 17, 11), (3, 37), (16, 1, 23)], keep=(1,))
def test_a_prompt_in_pieces_sees_those_before_each(
    model: Model, expected: list[Array], pieces: tuple[int, ...]
) -> None:
    with model.session() as session:
        done = 0
        for count in pieces:
            session.prefill(IDS[done : done + count])
            done += count
            assert same(session.logits(), expected[done - 1]), done


@tiered("tokens", [1, 2, 3, 20, 39], keep=(0, 3))
def test_tokens_that_were_taken_back_are_seen_no_more(model: Model, expected: list[Array], tokens: int) -> None:
    """Others stood in their places, and the ones before them are still there."""
    kept = 40 - tokens
    with model.session() as session:
        session.prefill([*IDS[:kept], *(token + 1 for token in IDS[kept:])])
        session.logits()
        session.rewind(tokens)
        for place in range(kept, min(kept + 3, 40)):
            session.step(IDS[place])
            assert same(session.logits(), expected[place]), place


def test_forks_go_on_by_themselves(model: Model, expected: list[Array]) -> None:
    with model.session() as session:
        session.prefill(IDS[:20])
        session.logits()
        with session.fork() as other:
            session.step(88)
            session.step(89)
            other.step(IDS[20])
            assert same(other.logits(), expected[20])
            other.prefill(IDS[21:26])
            assert same(other.logits(), expected[25])
            session.rewind(2)
            session.step(IDS[20])
            assert same(session.logits(), expected[20])


def test_prompts_together_share_their_beginning(model: Model) -> None:
    """The third takes over what the first has in its place; all are as they are alone."""
    prompts = [IDS[:30], IDS[5:9], [*IDS[:25], 3], IDS[:30]]
    alone = [model.generate(prompt, max_tokens=6, temperature=0) for prompt in prompts]
    with model.scheduler(slots=4, piece=7) as scheduler:
        running = [scheduler.insert(BatchRequest(ids, {"max_tokens": 6, "temperature": 0})) for ids in prompts]
        while len(scheduler):
            scheduler.next()
        assert [each.ids for each in running] == alone


def test_drafts_that_are_refused_leave_nothing(model: Model) -> None:
    """Their rows are in the cache, behind those that count."""
    greedy = Sampler(SamplingOptions(temperature=0))
    wanted = model.generate(IDS, max_tokens=7, temperature=0)
    with model.session() as session:
        session.prefill(IDS)
        wrong = [(token + 1) % 90 for token in wanted[:4]]
        assert session.accept(wrong, greedy) == wanted[:1]
        assert session.accept([wanted[1], *wrong], greedy) == wanted[1:3]
        assert session.generate_ids(4, greedy) == wanted[3:]
    repeated = IDS[:8] * 3
    assert model.generate(repeated, max_tokens=8, temperature=0, speculate="ngram") == model.generate(
        repeated, max_tokens=8, temperature=0
    )


def test_a_capture_shows_the_convolution(model: Model) -> None:
    """Both plans name what it reads and what it gives, and agree; a layer without attention has no scores."""
    names = ["blocks.*.conv.gated", "blocks.*.conv.mixed"]
    fast = model.capture(names, IDS[:9])
    assert set(fast) == {f"blocks.{layer}.conv.{part}" for layer in (0, 2) for part in ("gated", "mixed")}
    checkpoint = of_family("lfm2", num_hidden_layers=3, layer_types=LAYERS)
    with opened(checkpoint, plan="reference") as reference:
        plain = reference.capture([*names, "blocks.0.conv.norm", "blocks.2.conv.out"], IDS[:9])
    for name, found in fast.items():
        assert found.shape == plain[name].shape == (9, 64)
        assert np.abs(found - plain[name]).max() <= 1e-5 * np.ptp(plain[name]), name
    taps, gated = checkpoint.floats("model.layers.0.conv.conv.weight")[:, 0], plain["blocks.0.conv.gated"]
    summed = sum(np.pad(gated, ((2 - k, 0), (0, 0)))[:9] * taps[:, k] for k in range(3))
    gates = plain["blocks.0.conv.norm"] @ checkpoint.floats("model.layers.0.conv.in_proj.weight")[64:128].T
    assert np.abs(gates * summed - plain["blocks.0.conv.mixed"]).max() <= 1e-4 * np.ptp(plain["blocks.0.conv.mixed"])


def test_the_draws_and_the_memory_of_a_layer() -> None:
    """Six draws; a row of the width of the stream for each token, where attention keeps its keys and values."""
    config = of_family("lfm2", num_hidden_layers=3, layer_types=LAYERS).config
    plan = plan_for(config, "fast")
    assert [draw.kind for draw in plan.draws if draw.name.startswith("h.0.")] == [
        *("conv.in_proj", "conv.store", "conv.mixed", "conv.out_proj", "mlp.fc_in", "mlp.fc_out")
    ]
    assert len(plan.draws) == 6 + 7 + 6 + 3
    for cache, size in (("f32", 4), ("f16", 2)):
        half = fast_plan(PlanOptions(config, "f32", KernelOptions(), 2048, cache=cache))
        assert half.table["h.0.conv.cache"].shape == (64, 64)
        assert half.table["h.0.conv.cache"].layout_within(2048).nbytes == 64 * 64 * size
    assert weight_shapes(config)["model.layers.0.conv.conv.weight"] == (64, 1, 3)


def test_every_input_of_a_matrix_can_be_watched() -> None:
    """Which those of a text are says how much errors of the matrix count when it is packed with few bits."""
    config = of_family("lfm2", num_hidden_layers=3, layer_types=LAYERS).config
    inputs = _inputs(config)
    assert inputs["blocks.0.conv.norm"] == ["model.layers.0.conv.in_proj.weight"]
    assert inputs["blocks.2.conv.mixed"] == ["model.layers.2.conv.out_proj.weight"]
    assert inputs.keys() <= capture_points(plan_for(config, "reference", tokens=9), config).keys()
