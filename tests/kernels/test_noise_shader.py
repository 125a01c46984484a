"""The noise of shaders/common/noise.glsl is that of glinfer/kernels/noise.py, and so are the tokens drawn with it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_draw import KERNELS, pick_draw
from one_draw import Case
from tiers import tiered
from whole_noise import gumbel_of_key, uniform_bits

from glinfer.gl.context import Device, open_device
from glinfer.gl.layouts.matrix import Layout
from glinfer.gl.program import Program, shader_root
from glinfer.gl.replay import Draw, DrawCall, replay
from glinfer.gl.texture import Texture
from glinfer.kernels import noise
from glinfer.kernels.fused.sample import best_candidate
from glinfer.kernels.noise import noise_key

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
SIDE = 256
TOKENS = SIDE * SIDE
KEYS = [0, 0x80000000, 0xFFFFFFFF, noise_key(3, 4), noise_key(10**20, 77)]
LAST_BITS = 2e-6
"""How far the noise may be off where a renderer joins a product and a sum into one rounding."""

HEAD = '#version 300 es\n#include "common/noise.glsl"\nuniform uint key;\nlayout(location = 0) out KIND y;\n'
MAIN = "void main() {\n    uint token = uint(gl_FragCoord.y) * 256u + uint(gl_FragCoord.x);\n    y = VALUE;\n}\n"


def computed(device: Device, root: Path, kind: str, value: str, keys: list[int]) -> list[Array]:
    """A GLSL expression of ``token`` and ``key``, for 65536 tokens and each key: [tokens] of int or float."""
    shutil.copytree(shader_root(), root, dirs_exist_ok=True)
    (root / "noise_test.frag").write_text((HEAD + MAIN).replace("KIND", kind).replace("VALUE", value))
    program = Program(device, "noise_test", {}, [], root=root)
    target = Texture(device, Layout.of((SIDE, SIDE), "r32i" if kind == "int" else "r32f", 2048), "target")
    found = []
    for key in keys:
        draw = Draw("noise", program, target.framebuffer, call=DrawCall((("key", key),)))
        replay(device, [draw], {})
        found.append(target.read().copy().reshape(-1))
    return found


def agree_on_noise(device: Device, root: Path) -> None:
    """Random bits to the last one, and noise to the last bits."""
    bits = computed(device, root, "int", "int(mix_bits(mix_bits(token) ^ key))", KEYS)
    noise = computed(device, root, "float", "gumbel(token, key)", KEYS)
    for key, found, values in zip(KEYS, bits, noise, strict=True):
        assert np.array_equal(found.view(np.uint32), uniform_bits(key, TOKENS)), hex(key)
        assert np.abs(values - gumbel_of_key(key, TOKENS)).max() <= LAST_BITS, hex(key)


def test_noise_is_the_same_to_the_last_bits(device: Device, tmp_path: Path) -> None:
    agree_on_noise(device, tmp_path)


@pytest.mark.slow
@pytest.mark.desktop
def test_desktop_opengl_has_the_same_noise(tmp_path: Path) -> None:
    with open_device(api="desktop") as device:
        agree_on_noise(device, tmp_path)


def test_the_largest_and_smallest_noise_is_the_same(device: Device, tmp_path: Path) -> None:
    """The ends of the range, where drivers' own logarithms are off by 2, and which no 65536 tokens reach."""
    starts = [0, 2**23 - TOKENS]
    value = "-natural_log(-natural_log((float(token + key) + 0.5) * 1.1920928955078125e-7))"
    for start, found in zip(starts, computed(device, tmp_path, "float", value, starts), strict=True):
        bits = np.arange(start, start + TOKENS, dtype=np.uint32) << np.uint32(9)
        assert np.abs(found - noise._gumbel_of(bits)).max() <= LAST_BITS


# What is drawn


def drawn(key: int, temperature: float, **arrays: Array) -> Case:
    return Case({"noise": 1.0, "inverse_temperature": 1 / temperature, "noise_key": key, "position": 0}, arrays)


@tiered(("name", "vocab"), [("llvmpipe", 300), ("one by one", 67), ("small points", 1100)], keep=2)
def test_the_same_tokens_are_drawn(device: Device, name: str, vocab: int) -> None:
    """Each lane's candidate, and so the token; two scores closer than the last bits are nowhere among these."""
    one = pick_draw(KERNELS[name], vocab)
    cases = [drawn(noise_key(7, step), temperature) for temperature in (0.01, 0.7, 5.0) for step in range(12)]
    chosen = []
    for case, found in zip(cases, one.run(device, *cases), strict=True):
        expected = one.expected(case).reshape(16, 4)
        assert np.array_equal(found.reshape(16, 4)[:, 1:], expected[:, 1:])
        assert np.allclose(found.reshape(16, 4)[:, 0], expected[:, 0], rtol=1e-6, atol=LAST_BITS)
        scores = one.arrays["x"][0] * np.float32(case.values["inverse_temperature"])
        exact = scores + gumbel_of_key(int(case.values["noise_key"]), vocab)
        chosen.append(best_candidate(found[0]))
        assert chosen[-1] == int(exact.argmax())
    assert len(set(chosen[:12])) <= 2, "hardly any chance at a temperature of 0.01"
    assert len(set(chosen[-12:])) > 6, "much of it at 5"


def test_without_noise_neither_key_nor_temperature_changes_anything(device: Device) -> None:
    one = pick_draw(KERNELS["llvmpipe"], 300)
    cases = [
        Case({"noise": 0.0, "inverse_temperature": by, "noise_key": key, "position": 0}) for by, key in ((0, 0), (9, 7))
    ]
    first, second, other = one.run(device, *cases, drawn(7, 1.0))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_an_infinite_temperature_draws_from_all_tokens_alike(device: Device) -> None:
    """The inverse is 0: logits of any size count for nothing."""
    one = pick_draw(KERNELS["llvmpipe"], 300, scale=1e6)
    case = Case({"noise": 1.0, "inverse_temperature": 0.0, "noise_key": 5, "position": 0})
    (found,) = one.run(device, case)
    assert best_candidate(found[0]) == int(gumbel_of_key(5, 300).argmax())
