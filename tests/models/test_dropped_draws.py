"""Draws that a driver drops, or that give zeros, are noticed when results are read back."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
from made_models import IDS, of_family, opened
from rounded_caches import REQUESTS

from glinfer.engine.model import Model
from glinfer.errors import GLError, NumbersError
from glinfer.formats import Checkpoint
from glinfer.gl import replay
from glinfer.gl.context import Device, open_device
from glinfer.gl.raw import GL_SCISSOR_TEST
from glinfer.gl.replay import Draw, Tape
from glinfer.program.session import WATCH_EVERY, Session

pytestmark = pytest.mark.gl


def drop(monkeypatch: pytest.MonkeyPatch, pattern: str, *, zeros: bool = False) -> None:
    """From here on draws whose names match write nothing, or zeros except where a few texels are drawn alone."""
    calls = replay._State.calls

    def without(state: replay._State, draw: Draw) -> Iterator[replay.Call]:
        made = list(calls(state, draw))
        if re.fullmatch(pattern, draw.name) is None:
            return iter(made)
        return iter([*made[:-1], (partial(zeroed, draw, made[-1]) if zeros else lambda _: None, None)])

    monkeypatch.setattr(replay._State, "calls", without)
    monkeypatch.setattr(Session, "_tape", lambda self, first, end, _: Tape(self.device, self.draws[first:end]))


def zeroed(draw: Draw, render: replay.Call, values: Mapping[str, int | float]) -> None:
    """Render if only a few texels are drawn; otherwise write zeros."""
    raw = draw.framebuffer.device.raw
    if raw.integer(GL_SCISSOR_TEST):
        replay._make([render], values)
        return
    for place, texture in enumerate(draw.framebuffer.textures):
        raw.clear_color(place, 0, texture.form.kind, [draw.rectangle(values)])


def watched(session: Session) -> list[str]:
    """The names of the draws that runs watch in turn."""
    return [session.draws[place].name for place in session._watchable]


def several_logits(model: Model, count: int) -> None:
    """Runs with a readback each."""
    for start in range(count):
        model.logits([*IDS[:4], start % 20])


@pytest.mark.parametrize("float_targets", [True, False])
def test_a_dropped_product_is_named(monkeypatch: pytest.MonkeyPatch, *, float_targets: bool) -> None:
    with open_device() as device:
        device.limits = dataclasses.replace(device.limits, float_targets=float_targets)
        with opened(of_family("llama"), device=device) as model:
            names = watched(model.engine.bound)
            assert sorted(re.sub(r"h\.\d+\.", "", name) for name in names) == sorted(WATCHED)
            model.generate(IDS[:5], max_tokens=8, temperature=0)
            for name in names:
                with monkeypatch.context() as patch:
                    drop(patch, name)
                    with pytest.raises(GLError, match=rf"^pass {name} wrote nothing: .* dropped it without an error"):
                        several_logits(model, 2 * WATCH_EVERY * len(names))
            model.generate(IDS[:5], max_tokens=8, temperature=0)


def test_several_sequences_notice_it_too(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    with opened(of_family("llama"), device=device) as model:
        list(model.batch(REQUESTS, slots=3))
        monkeypatch.setattr("glinfer.program.session.WATCH_EVERY", 1)
        drop(monkeypatch, "h.1.mlp.fc_in")
        with pytest.raises(GLError, match=r"^pass h.1.mlp.fc_in wrote nothing: "):
            list(model.batch(REQUESTS, slots=3))


WATCHED = ("attn.scores", "attn.values", "attn.out_proj", "mlp.fc_in", "mlp.fc_out", "lm_head")
LIES = (
    *((name, zeros) for name in (*WATCHED, "pick", "choice.pick") for zeros in (False, True)),
    *((name, False) for name in ("embed", "attn.qkv")),
)


@pytest.fixture(scope="module")
def llama() -> Iterator[Model]:
    """A model that has run everything once."""
    with opened(of_family("llama")) as model:
        for options in OPTIONS:
            model.generate(IDS[:20], max_tokens=20, **options)
        yield model


OPTIONS: tuple[dict[str, Any], ...] = ({"temperature": 0}, {"seed": 1}, {"seed": 1, "top_k": 5})


@pytest.mark.parametrize(("name", "zeros"), LIES)
def test_faults_that_begin_late_are_noticed(
    monkeypatch: pytest.MonkeyPatch, llama: Model, name: str, *, zeros: bool
) -> None:
    """Of one kind of draw in every layer: dropped ones within the run, zeros within 24."""
    found = []
    for options in OPTIONS:
        if name.endswith("pick") and ("top_k" in options) != name.startswith("choice"):
            continue
        with monkeypatch.context() as patch:
            drop(patch, rf"(h\.\d+\.)?{name}", zeros=zeros)
            try:
                llama.generate(IDS[2:22], max_tokens=(WATCH_EVERY + 1) * len(WATCHED), **options)
                found.append((options, "text"))
            except (GLError, NumbersError):
                pass
    assert found == []


def test_logits_of_zeros_are_refused(device: Device) -> None:
    made = of_family("llama")
    zeros = {
        name: np.zeros_like(tensor) if name == "lm_head.weight" else tensor for name, tensor in made.tensors.items()
    }
    with opened(Checkpoint(made.config, zeros, "zeros"), device=device) as model:
        with pytest.raises(NumbersError, match=r"broken: all \d+ logits after 3 tokens are 0"):
            model.logits(IDS[:3])
        with pytest.raises(NumbersError, match=r"broken: the best logits after 3 tokens are all 0"):
            model.generate(IDS[:3], max_tokens=1, temperature=0)
        with pytest.raises(NumbersError, match=r"broken: the best logits after 3 tokens are all 0"):
            list(model.batch(REQUESTS[:1], slots=2))
