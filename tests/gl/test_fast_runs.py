"""The fast plan end to end: draw by draw against float64, against the reference plan, and after other runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import moderngl
import numpy as np
import pytest
from block_draw import KERNELS, STALE, poisoned

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.formats import random_checkpoint
from glinfer.gl.context import Device, Limits, open_device
from glinfer.models.fast import HEAD_DRAWS, LOGITS, PICKS, fast_plan
from glinfer.models.fold import fold
from glinfer.models.gab import LOGITS as REFERENCE_LOGITS
from glinfer.models.gab import TOKENS, reference_plan
from glinfer.models.oracle import relative_error, run_plan
from glinfer.models.session import Session
from glinfer.ops import DrawSpec
from glinfer.ops.kernels import Kernels, default_kernels
from glinfer.ops.noise import gumbel_of_key, noise_key
from glinfer.ops.sample import best_candidate

Array = np.ndarray[Any, Any]
# Nothing is a multiple of 4 or 16, and the context takes more than one slot of scores.
ODD = ModelConfig(37, 15, 3, 2, 70)
WEIGHTS = random_checkpoint(ODD, seed=11, scale=0.3).tensors
IDS = [int(token) for token in np.random.default_rng(4).integers(0, ODD.vocab_size, 70)]
OTHERS = [(token + 1) % ODD.vocab_size for token in IDS]
PLAIN = KERNELS["plain"]
some_kernels = pytest.mark.parametrize("name", ["plain", "llvmpipe", "GPU", "one by one"])


def make(device: Device, name: str = "plain", weights: str = "q8", config: ModelConfig = ODD) -> Session:
    return make_with(device, KERNELS[name], weights, config)


def make_with(device: Device, kernels: Kernels, weights: str = "q8", config: ModelConfig = ODD) -> Session:
    plan = fast_plan(config, weights=weights, kernels=kernels, max_texture_size=device.limits.max_texture_size)
    return Session(plan, fold(config, WEIGHTS, weights), device)


def values(session: Session, position: int, token: int, **choice: Any) -> dict[str, int | float]:
    return {**session.plan.values_for(position + 1), "token": token, **choice}


def feed(session: Session, ids: Sequence[int], start: int = 0, **choice: Any) -> Array:
    """Run the ids from a position on; the logits after the last."""
    for place, token in enumerate(ids, start):
        assert session.run(values(session, place, token, **choice)) == len(session.plan.draws)
    return np.array(session.read(LOGITS)[0])


def chosen(session: Session, position: int) -> int:
    return best_candidate(session.read_rows(PICKS, position)[0])


def same(found: Array, expected: Array) -> bool:
    return np.array_equal(found.view(np.uint32), expected.view(np.uint32))


# Right


@pytest.mark.parametrize(
    ("name", "weights", "gelu"),
    [
        ("plain", "f32", "erf"),
        ("llvmpipe", "q8", "tanh"),
        ("GPU", "q16", "tanh"),
        ("one by one", "q8", "tanh"),
        ("mantissa", "q8l", "erf"),
        ("small points", "f16", "tanh"),
    ],
)
def test_every_draw_and_the_end_agree_with_float64(device: Device, name: str, weights: str, gelu: str) -> None:
    """Against the oracle of the packed weights, which runs on by itself, so that errors add up over all tokens."""
    config = ODD.with_gelu(gelu)
    session, folded = make(device, name, weights, config), fold(config, WEIGHTS, weights)
    caches: dict[str, Array] = {}
    checked: list[str] = []
    for place, token in enumerate(IDS):
        now = values(session, place, token)
        expected = run_plan(session.plan, folded, {}, now, caches)

        def check(spec: DrawSpec, now: Any = now, expected: Iterator[tuple[DrawSpec, Array]] = expected) -> None:
            draw, result = next(expected)
            assert draw is spec
            (rows, cols), first = spec.extent(now), spec.first_row(now)
            found = session.read_rows(spec.outputs[0], first, rows)[:, :cols]
            checked.append(spec.name)
            if spec.op == "pick":  # two nearly equal logits may change places
                found, result = (np.sort(part.reshape(16, 4)[:, 0]) for part in (found, result))
            assert relative_error(found, result) <= 1e-5, f"{spec.name} at {now['position']}"

        if place in (0, 1, 2, 62, 63, 64, 69):
            session.run(now, after=check)
            assert chosen(session, place) == int(session.read(LOGITS)[0].argmax())
        else:
            session.run(now)
        assert len(list(expected)) == (0 if checked and place in (0, 1, 2, 62, 63, 64, 69) else len(session.draws))
    assert len(checked) == 7 * len(session.plan.draws)


@pytest.mark.parametrize("name", ["plain", "one by one"])
def test_both_plans_give_the_same_logits(device: Device, name: str) -> None:
    session, reference = make(device, name, "f32"), Session(reference_plan(ODD), WEIGHTS, device)
    for place, token in enumerate(IDS):
        found = feed(session, [token], place)
        if place in (0, 1, 15, 63, 64, 69):
            reference.write(TOKENS, np.array(IDS[: place + 1], dtype=np.int32)[:, None])
            reference.run({"rows": place + 1})
            assert relative_error(found, reference.read(REFERENCE_LOGITS)[0]) <= 1e-5, f"position {place}"


def test_within_what_webgl2_guarantees(device: Device) -> None:
    with open_device(limits=Limits.webgl2_minimum()) as small:
        kernels = default_kernels(small.renderer, small.limits.max_point_size)
        assert kernels.cover == "quads"
        found = feed(make_with(small, kernels), IDS[:20])
    assert relative_error(found, feed(make(device), IDS[:20])) <= 1e-6


def test_points_larger_than_the_renderers_are_refused_before_anything_is_made() -> None:
    with open_device(limits=Limits.webgl2_minimum()) as device:
        with pytest.raises(PlanError, match=r"^draw \S+ draws points of 4×4 pixels; this renderer allows 1$"):
            make(device, "llvmpipe")
        assert not device.live_objects()


@pytest.mark.desktop
def test_desktop_opengl_gives_the_same(device: Device) -> None:
    """With points, whose size desktop OpenGL takes from the shader only where it is told to."""
    with open_device(api="desktop") as other:
        found = feed(make(other, "llvmpipe"), IDS[:20])
    assert relative_error(found, feed(make(device, "llvmpipe"), IDS[:20])) <= 1e-6


# What earlier runs left


@some_kernels
def test_activations_full_of_nan_change_nothing(device: Device, name: str) -> None:
    session = make(device, name)
    clean = [feed(session, [token], place) for place, token in enumerate(IDS[:20])]
    for place, token in enumerate(IDS[:20]):
        for tensor in session.plan.of_kind("activation"):
            session.texture(tensor.name).fill(np.nan)
        assert same(feed(session, [token], place), clean[place]), f"position {place}"


@some_kernels
def test_huge_numbers_in_the_caches_after_the_position_change_nothing(device: Device, name: str) -> None:
    """Nor does NaN between the blocks; only the places of slots to come have to be numbers."""
    fresh, session = make(device, name), make(device, name)
    for length in (1, 2, 15, 65):
        for tensor in session.plan.of_kind("cache"):
            texture = session.texture(tensor.name)
            stale = np.full(tensor.shape, STALE, dtype=np.float32)
            stale[:, ::2] *= -1
            texture.gl.write(poisoned(texture.layout, stale))
        assert same(feed(session, IDS[:length]), feed(fresh, IDS[:length])), f"{length} tokens"
        for tensor in fresh.plan.of_kind("cache"):
            fresh.texture(tensor.name).fill(0.0)


@some_kernels
def test_a_rewind_gives_what_a_fresh_session_gives(device: Device, name: str) -> None:
    """To the last bit, whatever tokens were after the position."""
    session, fresh = make(device, name), make(device, name)
    feed(session, OTHERS)
    for start in (64, 30, 3, 0):
        found = feed(session, IDS[start : start + 3], start)
        for tensor in fresh.plan.of_kind("cache"):
            fresh.texture(tensor.name).fill(0.0)
        expected = feed(fresh, OTHERS[:start] + IDS[start : start + 3])
        assert same(found, expected), f"from {start}: off by {relative_error(found, expected):.1e}"
        feed(session, OTHERS[start:], start)


def test_other_tokens_give_other_results(device: Device) -> None:
    session = make(device)
    first = feed(session, IDS[:66])
    for place in (0, 1, 17, 63, 64, 65):
        changed = [*IDS[:place], OTHERS[place], *IDS[place + 1 : 66]]
        assert not same(feed(session, changed[place:], place), first), f"token {place} is not seen"
        assert same(feed(session, IDS[place:66], place), first)


def test_the_passes_after_the_stream_can_be_left_out(device: Device) -> None:
    session, short = make(device), make(device)
    expected = feed(session, IDS[:30])
    for place, token in enumerate(IDS[:29]):
        inner = len(short.draws) - HEAD_DRAWS
        assert short.run(values(short, place, token), draws=inner) == inner
    assert same(feed(short, IDS[29:30], 29), expected)


def test_two_sessions_take_turns(device: Device) -> None:
    first, second = make(device, "llvmpipe"), make(device, "GPU", "q16")
    alone = [feed(session, IDS[:10]) for session in (first, second)]
    for place in range(10):
        found = [feed(session, IDS[place : place + 1], place) for session in (first, second)]
    assert same(found[0], alone[0])
    assert same(found[1], alone[1])
    reference = Session(reference_plan(ODD), WEIGHTS, device)
    reference.write(TOKENS, np.array(IDS[:10], dtype=np.int32)[:, None])
    reference.run({"rows": 10})
    again = feed(second, IDS[9:10], 9)
    assert same(again, alone[1])


@pytest.mark.parametrize("name", ["GPU", "plain"])
def test_a_run_that_was_broken_off_does_not_disturb_the_next(device: Device, name: str) -> None:
    """Wherever that was: while blending is on, too."""
    session = make(device, name)
    clean = feed(session, IDS[:3])
    for stop in range(len(session.plan.draws)):

        def interrupt(spec: DrawSpec, at: str = session.plan.draws[stop].name) -> None:
            if spec.name == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            session.run(values(session, 2, IDS[2]), after=interrupt)
        assert same(feed(session, IDS[:3]), clean), f"after draw {stop}"


# Choosing tokens


@pytest.mark.parametrize("name", ["llvmpipe", "GPU"])
def test_a_token_that_the_gpu_chose_is_as_good_as_one_that_was_given(device: Device, name: str) -> None:
    """A chain of tokens, each from the choice before, none read back until the end; greedy, and drawn."""
    session = make(device, name)
    for choice in ({}, {"noise": 1.0, "inverse_temperature": 0.8}):
        ids, logits = IDS[:3], []
        for place in range(30):
            keyed = {**choice, "noise_key": noise_key(9, place)} if choice else {}
            logits.append(feed(session, ids[place : place + 1], place, **keyed))
            scores = logits[-1]
            if choice:
                scores = scores * np.float32(0.8) + gumbel_of_key(noise_key(9, place), ODD.vocab_size)
            assert chosen(session, place) == int(scores.argmax())
            if place >= 2:
                ids.append(int(scores.argmax()))
        for place in range(30):
            keyed = {**choice, "noise_key": noise_key(9, place)} if choice else {}
            session.run(values(session, place, IDS[place] if place < 3 else -1, **keyed))
        assert same(np.array(session.read(LOGITS)[0]), logits[-1])
        assert [chosen(session, place) for place in range(2, 30)] == ids[3:]
        assert len(set(ids)) > 2


# What a token costs


MAKERS = ("texture", "framebuffer", "program", "vertex_array", "buffer", "simple_framebuffer", "renderbuffer")


@pytest.mark.parametrize("name", ["llvmpipe", "GPU"])
def test_a_token_issues_the_planned_draws_and_makes_nothing(
    device: Device, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    session = make(device, name)
    first = feed(session, IDS[:5])
    alive, programs, issued = device.live_objects(), session.program_count, device.draws_issued
    assert len(session.plan.draws) == 6 * ODD.num_hidden_layers + 3

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a GL object was made, or a shader compiled, for a token")

    for maker in MAKERS:
        monkeypatch.setattr(moderngl.Context, maker, refuse)
    assert same(feed(session, IDS[:5]), first)
    feed(session, IDS[5:70], 5)
    assert session.device.live_objects() == alive
    assert session.program_count == programs
    assert device.draws_issued - issued == 70 * (6 * ODD.num_hidden_layers + 3)


@some_kernels
def test_programs_are_shared_between_blocks(device: Device, name: str) -> None:
    session = make(device, name)
    assert session.program_count == device.live_objects()["program"] <= 9


def test_caches_start_as_zeros_and_outlive_runs(device: Device) -> None:
    session = make(device, "llvmpipe")
    caches = [tensor.name for tensor in session.plan.of_kind("cache")]
    assert not any(session.read(name).any() for name in caches)
    feed(session, IDS[:5])
    cache = np.array(session.read("h.1.attn.cache"))
    assert cache[:5].any(axis=1).all()
    assert not cache[5:].any()
    feed(session, IDS[5:6], 5)
    after = session.read("h.1.attn.cache")
    assert same(after[:5].copy(), cache[:5].copy())
    assert after[5].any()
    assert not after[6:].any()
