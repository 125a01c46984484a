"""Activations as regions of one texture: the same bits, barriers where OpenGL asks for them, and the same engine.

llvmpipe has a texture barrier in desktop OpenGL alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from block_draw import KERNELS as FORMS
from made_models import of_family as made_model
from subjects import Subject, gab, of_family
from tiers import tiered

from glinfer.engine.loading import prepare
from glinfer.engine.model import Model
from glinfer.errors import PlanError
from glinfer.formats import Checkpoint
from glinfer.gl import replay
from glinfer.gl.context import Device, Limits, open_device
from glinfer.gl.layouts.blocks import BlockLayout, RowLayout
from glinfer.gl.region import Region
from glinfer.gl.texture import Texture
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Array
from glinfer.lower.fused.token import HIDDEN, LOGITS, PICKS, fast_plan
from glinfer.program import session as session_module
from glinfer.program.plan import Plan
from glinfer.program.regions import RegionLayout, region_layouts
from glinfer.program.session import Session

pytestmark = [pytest.mark.gl, pytest.mark.desktop]

IDS = [3, 11, 7, 7, 30, 2]
SPLIT = KernelOptions(
    cover="points", part_steps=4, split_norms=True, split_inner=True, split_values=True, blends=True, flush_every=3
)
KERNELS = {"split": SPLIT, **FORMS}
GAB = gab("f32")


@pytest.fixture
def device() -> Iterator[Device]:
    with open_device(api="desktop") as opened:
        if opened.texture_barrier is None:
            pytest.skip("this driver has no texture barrier")
        yield opened


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """No region begins at the origin, where a missing offset would not show."""

    def layouts(*given: Any) -> dict[str, RegionLayout]:
        return {
            name: RegionLayout(20 + x, 36 + y, 20 + width, 36 + height)
            for name, (x, y, width, height) in region_layouts(*given).items()
        }

    monkeypatch.setattr(session_module, "region_layouts", layouts)


def plan_of(device: Device, subject: Subject = GAB, kernels: KernelOptions = SPLIT) -> Plan:
    return fast_plan(subject.options(kernels, device))


def values(session: Session, position: int, token: int) -> dict[str, int | float]:
    return {**session.plan.values_for(position + 1), "token": token}


def bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint32)


def trace(session: Session, ids: list[int] = IDS) -> list[Array]:
    """The bits of every activation and choice behind each token."""
    found = []
    names = [tensor.name for tensor in session.plan.of_kind("activation")]
    for place, token in enumerate(ids):
        assert session.run(values(session, place, token)) == len(session.plan.draws)
        rows = {"attn.scores": 1, "attn.stats": 1}  # the others of their slots are for longer sequences
        found += [bits(session.read(name, rows.get(name))) for name in names]
        found.append(bits(session.read_rows(PICKS, place)))
    return found


def same(found: list[Array], expected: list[Array]) -> bool:
    return len(found) == len(expected) and all(map(np.array_equal, found, expected))


def regions(session: Session) -> dict[str, Region]:
    textures = ((tensor.name, session.texture(tensor.name)) for tensor in session.plan.of_kind("activation"))
    return {name: texture for name, texture in textures if isinstance(texture, Region)}


def written_alone(plan: Plan) -> set[str]:
    """The activations that no draw writes together with another; only these can be regions."""
    together = {name for draw in plan.draws if len(draw.outputs) > 1 for name in draw.outputs}
    return {tensor.name for tensor in plan.of_kind("activation")} - together


# The same bits


@pytest.mark.usefixtures("moved")
@tiered(
    ("family", "form", "name"),
    [
        ("gab", "f32", "split"),
        ("gab", "q8", "one by one, looked up"),
        ("qwen3", "Q8_0", "GPU"),
        ("gpt2", "mixed", "mantissa"),
        ("llama", "", "small points"),
    ],
)
def test_every_activation_has_the_same_bits(device: Device, family: str, form: str, name: str) -> None:
    subject = gab(form) if family == "gab" else of_family(family, form)
    plan, found = plan_of(device, subject, KERNELS[name]), []
    for one_state in (False, True):
        session = Session(plan, subject.folded, device, one_state=one_state)
        found.append(trace(session))
        shared = regions(session)
        assert set(shared) == (written_alone(plan) if one_state else set())
        assert len({id(region.framebuffer.gl) for region in shared.values()}) == int(one_state), "one framebuffer"
        session.release()
    assert same(*found)
    assert any(array.any() for array in found[0])


def test_regions_lie_apart(device: Device) -> None:
    for kernels in KERNELS.values():
        plan = plan_of(device, of_family("qwen3", "Q8_0"), kernels)
        layouts = region_layouts(plan, 2048)
        taken = np.zeros((2048, 2048), dtype=int)
        for name, (x, y, width, height) in layouts.items():
            layout = plan.table[name].layout_within(2048)
            taken[y : y + layout.height, x : x + layout.width] += 1
            assert (x + layout.width <= width, y + layout.height <= height) == (True, True)
        assert taken.max() == 1


def test_what_does_not_fit_stays_apart(device: Device) -> None:
    plan = plan_of(device)
    every, few = (region_layouts(plan, edge) for edge in (2048, 64 + 4))
    assert len(every) > 3
    assert 1 < len(few) < len(every)
    assert region_layouts(plan, 4) == {}, "one alone gains nothing"
    assert HIDDEN not in region_layouts(plan, 2048, apart=[HIDDEN])


@pytest.mark.slow
def test_some_activations_in_one_texture_and_others_apart(device: Device) -> None:
    device.limits = dataclasses.replace(device.limits, max_texture_size=128)
    plan = plan_of(device)
    session, plain = (Session(plan, GAB.folded, device, one_state=one_state) for one_state in (True, False))
    assert 1 < len(regions(session)) < len(plan.of_kind("activation"))
    assert same(trace(session), trace(plain))


# Barriers


@pytest.mark.usefixtures("moved")
def test_a_barrier_stands_before_every_draw_that_needs_one(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    barrier, made = device.texture_barrier, list[str]()
    assert barrier is not None
    monkeypatch.setattr(device, "texture_barrier", lambda: (made.append("barrier"), barrier()))
    monkeypatch.setattr(Session, "_watched", lambda *_, **__: {})  # or it would notice that nothing is drawn
    session = Session(plan_of(device), GAB.folded, device, one_state=True)
    calls = replay._State.calls
    monkeypatch.setattr(
        replay._State, "calls", lambda state, draw: [*list(calls(state, draw))[:-1], (made.append, (draw.name,))]
    )
    shared = set(regions(session))
    for first in (0, 5, len(session.draws) - 2):
        made.clear()
        assert session.run(values(session, 0, 1), first=first) == len(session.draws) - first, "a barrier is not a draw"
        specs = {spec.name: spec for spec in session.plan.draws}
        written: set[str] | None = None  # since the last barrier; None before the first
        read = set[str]()
        for name in made:
            if name == "barrier":
                written, read = set(), set()
                continue
            spec = specs[name]
            if shared & set(spec.outputs):
                assert written is not None, f"no barrier before {name}, the first"
                assert not written & set(spec.reads), f"no barrier before {name}"
                assert not read & set(spec.outputs), f"no barrier before {name}"
                written |= set(spec.outputs)
            read |= set(spec.reads)
        assert made.count("barrier") <= 1 + sum(draw.barrier for draw in session.draws[first:])
    assert sum(draw.barrier for draw in session.draws) < len(session.draws) * 2 / 3
    made.clear()
    plain = Session(session.plan, GAB.folded, device)
    plain.run(values(plain, 0, 1))
    assert "barrier" not in made, "without regions there is none"


# Refusals


def test_a_driver_without_barriers_is_refused() -> None:
    with open_device(limits=Limits.webgl2_minimum()) as device:
        device.texture_barrier = None
        with pytest.raises(PlanError, match=r"^one_state needs a texture barrier, which OpenGL ES .* does not have; "):
            Session(plan_of(device, kernels=KernelOptions()), GAB.folded, device, one_state=True)
        assert not device.live_objects()


def test_a_draw_that_samples_its_target_or_takes_no_region_is_refused(device: Device) -> None:
    plan = plan_of(device)
    whole = Texture(device, RowLayout.of((256, 4 * 512), "rgba32f", 2048), "whole")
    layouts = {tensor.name: tensor.layout for tensor in plan.tensors}
    lent = {name: Region(whole, _blocks(layouts[name]), name, (0, 0)) for name in (HIDDEN, LOGITS)}
    with pytest.raises(PlanError, match=r"^draw lm_head samples hidden\.a, which has texels of its target logits$"):
        Session(plan, GAB.folded, device, lent=lent)
    cache = "h.0.attn.cache"
    message = rf"^draw h\.0\.attn\.scores: {cache} is a region of a larger texture; expected its own texture$"
    with pytest.raises(PlanError, match=message):
        Session(plan, GAB.folded, device, lent={cache: Region(whole, _blocks(layouts[cache]), cache, (0, 0))})


def _blocks(layout: Any) -> BlockLayout:
    assert isinstance(layout, BlockLayout)
    return layout


# The engine


@contextmanager
def model_of(made: Checkpoint, device: Device, **changes: Any) -> Iterator[Model]:
    kernels = dataclasses.replace(SPLIT, rows_per_draw=4, **changes)
    engine = prepare(made, device, "fast", kernels=kernels).bind(device)
    with Model(engine) as model:
        yield model


def doings(model: Model) -> dict[str, Any]:
    """What a model answers: chunks and tokens, forks, filtered choices, captures and patches."""
    ids = [place * 7 % 29 for place in range(20)]
    found: dict[str, Any] = {}
    with model.session() as session:
        session.prefill(ids)
        found["chunk and token"] = session.logits()
        with session.fork() as fork:
            fork.step(5)
            found["fork"] = fork.logits()
        session.step(6)
        found["beside the fork"] = session.logits()
        session.prefill(ids[:9])
        found["another chunk"] = session.logits()
    found["greedy"] = np.array(model.generate(ids, max_tokens=8, temperature=0.0))
    found["sampled"] = np.array(model.generate(ids, max_tokens=8, temperature=1.1, top_k=5, seed=3))
    names = [name for name in model.names() if "attn" in name or "mlp" in name or "resid" in name]
    found.update(model.capture(names, ids[:4]).items())
    name = next(name for name in names if "resid" in name)
    with model.patch(name, lambda seen: seen.array * 0.5):
        found["patched"] = model.logits(ids[:4])
    found["not patched"] = model.logits(ids[:4])
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("moved")
@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_a_model_answers_alike(device: Device, family: str) -> None:
    made, answers = made_model(family, width=192), []  # three blocks, or the index of a block would not show
    for one_state in (False, True):
        with model_of(made, device, one_state=one_state) as model:
            assert bool(regions(model.bound)) == one_state
            answers.append(doings(model))
    plain, shared = answers
    assert plain.keys() == shared.keys()
    for name, expected in plain.items():
        np.testing.assert_array_equal(shared[name], expected, err_msg=name)
    assert not np.array_equal(shared["patched"], shared["not patched"])


@pytest.mark.usefixtures("moved")
def test_a_sharer_has_regions_of_its_own_and_no_token_makes_an_object(device: Device) -> None:
    session = Session(plan_of(device), GAB.folded, device, one_state=True)
    programs, expected = session.program_count, trace(session)
    sharer = session.sharer()
    assert sharer.program_count == programs
    assert regions(sharer).keys() == regions(session).keys()
    assert regions(sharer)[HIDDEN].whole is not regions(session)[HIDDEN].whole
    trace(sharer, IDS[::-1])
    assert same(trace(sharer), expected)
    sharer.release()
    before = device.live_objects()
    assert same(trace(session), expected)
    assert device.live_objects() == before
    plan = session.plan
    apart = len(plan.of_kind("activation")) - len(written_alone(plan))
    assert before["texture"] == len(plan.of_kind("weight") + plan.of_kind("cache")) + apart + 1
    session.release()
    assert not device.live_objects()
