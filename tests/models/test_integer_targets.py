"""Plans on renderers that cannot render to floats: the same bits as with float textures, in every family."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from made_models import IDS, fresh, of_family, opened, packed
from rounded_caches import REQUESTS
from tiers import tiered

from glinfer.formats import Checkpoint
from glinfer.gl.context import Device, Limits, open_device
from glinfer.gl.integer_targets import rewritten
from glinfer.inspect.verify.special import verify_special_values
from glinfer.inspect.verify.state import low_precisions

pytestmark = pytest.mark.gl

FAMILIES = ("llama", "gpt2", "gemma3_text", "lfm2", "qwen3_5_text", "qwen3_moe")
FORMATS = ("F16", "Q8_0", "Q4_K")


@pytest.fixture(scope="module")
def integers() -> Iterator[Device]:
    """A device with the driver's limits, but for the targets."""
    with open_device() as device:
        device.limits = dataclasses.replace(device.limits, float_targets=False)
        yield device


def results(checkpoint: Checkpoint, **options: Any) -> list[Any]:
    """The bits of logits, greedy tokens, and tokens of several sequences together."""
    with opened(checkpoint, **options) as model:
        logits = fresh(model, IDS)
        batch = [result.ids for result in model.batch(REQUESTS, slots=3)] if model.plan == "fast" else []
        return [logits.view(np.uint32).tolist(), model.generate(IDS[:9], max_tokens=12, temperature=0), batch]


@tiered(
    ("family", "plan", "cache"),
    [
        *(("qwen3_5_text", "fast", "f32"), ("lfm2", "fast", "f16"), ("llama", "fast", "q8")),
        *((family, "fast", "f32") for family in FAMILIES if family != "qwen3_5_text"),
        *((family, "reference", "f32") for family in FAMILIES),
    ],
    keep=3,
)
def test_families_give_the_same_bits(device: Device, integers: Device, family: str, plan: str, cache: str) -> None:
    checkpoint = of_family(family)
    floats, bits = (results(checkpoint, plan=plan, cache=cache, device=each) for each in (device, integers))
    assert bits == floats


@tiered("form", FORMATS)
def test_weights_in_formats_of_files_give_the_same_bits(device: Device, integers: Device, form: str) -> None:
    checkpoint = packed(of_family("llama", width=256), lambda _: form)
    floats, bits = (results(checkpoint, device=each) for each in (device, integers))
    assert bits == floats


def test_special_numbers_keep_their_bits(integers: Device) -> None:
    assert all(check.stored and check.through_a_draw for check in verify_special_values(integers))


@pytest.mark.desktop
def test_desktop_opengl_has_integer_targets_too() -> None:
    checkpoint, limits = of_family("llama"), Limits.webgl2_minimum()
    floats, bits = (results(checkpoint, cache="f16", api="desktop", limits=each) for each in (None, limits))
    assert bits == floats


def test_samplers_and_outputs_are_rewritten_by_their_formats() -> None:
    text = """precision highp float;
precision highp sampler2D;
uniform sampler2D q, taps;
uniform highp usampler2D rows;
#define DECLARE_INPUT(n, X) uniform sampler2D X;
layout(location = 0) out vec4 y;
layout(location = 1) out ivec4 places;
float first(sampler2D from) { return texelFetch(from, ivec2(0), 0).x; }
void main() {}"""
    found, after = rewritten(text, {"taps", "x0"}, ["rgba16f", "rgba32i"])
    assert found.splitlines() == [
        "precision highp float;",
        "precision highp usampler2D;",
        "uniform isampler2D[1] taps; uniform usampler2D[1] q;",
        "uniform highp usampler2D rows;",
        "#define DECLARE_INPUT(n, X) uniform isampler2D[1] X;",
        "vec4 y;",
        "layout(location = 1) out ivec4 places;",
        "float first(usampler2D[1] from) { return FETCHED(from, ivec2(0), 0).x; }",
        "void computed() {}",
    ]
    assert after == [
        "layout(location = 0) out ivec4 bits0;",
        "void main() {",
        "    computed();",
        "    bits0 = halves_of_floats(vec4(y));",
        "}",
    ]
    assert low_precisions("\n".join([found, *after])) == {}
