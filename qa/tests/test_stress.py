"""``python -m qa stress`` passes on a sound renderer, and names what is planted: texture, kernel, logits."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from glinfer.config import ModelConfig
from glinfer.engine.run.decode import DecodeSession
from glinfer.errors import GLError
from glinfer.formats import random_checkpoint
from glinfer.gl.context import Device, Limits, open_device
from glinfer.gl.layouts.matrix import FORMATS
from glinfer.gl.texture import Framebuffer, Texture
from glinfer.tensors.device import Device as TensorDevice
from qa.kernels.cases.case import KernelCase
from qa.stress import run as module
from qa.stress import textures
from qa.stress.run import StressCheck, verify_stress

pytestmark = [pytest.mark.gl, pytest.mark.slow]

GAB = "vocab=40,dim=16,heads=2,blocks=1,context=12"
LLAMA = "family=llama,vocab=40,dim=16,heads=2,blocks=1,context=12,inner=24"
EDGE = 256
SMALL = dataclasses.replace(Limits.webgl2_minimum(), max_texture_size=EDGE)
BITS = "of random bits"


@pytest.fixture
def tight() -> Iterator[Device]:
    """Textures of at most 256 texels a side, so that the largest are quick."""
    with open_device(limits=SMALL) as device:
        yield device


def stress(device: Device, shape: str = GAB, *, seconds: float = 0, **options: Any) -> StressCheck:
    checkpoint = random_checkpoint(ModelConfig.from_options(shape), seed=1)
    given = {"plan": "fast", "weights": "f32", **options}
    return verify_stress(checkpoint, device, seconds=seconds, **given)


def is_plain(found: StressCheck) -> bool:
    """Whether its JSON values come back from text as they were."""
    told = found.to_json()
    return bool(json.loads(json.dumps(told)) == told)


class TestSound:
    @pytest.mark.parametrize(("shape", "plan", "weights"), [(GAB, "reference", "f32"), (LLAMA, "fast", "q8")])
    def test_a_sound_renderer_passes(self, tight: Device, shape: str, plan: str, weights: str) -> None:
        told: list[float] = []
        found = stress(tight, shape, plan=plan, weights=weights, on_step=told.append)
        assert found.first_fault is None
        assert found.passed
        assert (found.rounds, found.textures, found.kernels) == (1, 7, 0)
        assert found.tokens > 0
        assert found.draws > 0
        assert found.objects_before == found.objects_after
        assert told == sorted(told)
        assert tight.live_objects().total() == 0
        assert is_plain(found)


class TestPlanted:
    @pytest.fixture
    def altered(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
        """A function after which the readback of every texture of random bits in one format has one wrong bit."""

        def alter(form: str) -> None:
            read = Framebuffer.read

            def changed(self: Framebuffer, *extent: int) -> Any:
                found = read(self, *extent)
                texture = self.textures[0]
                if BITS in texture.name and texture.layout.format.name == form:
                    found = np.array(found)
                    found.view(np.uint8).reshape(-1)[-1] ^= 0x80
                return found

            monkeypatch.setattr(Framebuffer, "read", changed)

        return alter

    @pytest.mark.parametrize("form", ["r32f", "rgba16f"])
    def test_one_wrong_bit_of_a_texture(self, tight: Device, altered: Any, form: str) -> None:
        altered(form)
        found = stress(tight, seed=5)
        assert found.faults == 1
        assert not found.passed
        fault = found.first_fault
        assert fault is not None
        assert (fault.kind, fault.format, fault.round, fault.seed) == ("texture", form, 0, 5)
        assert fault.name in textures.SIZES
        width, height = map(int, fault.size.split("×"))
        channel = FORMATS[form].channels - 1
        assert f"1 of {width * height * (channel + 1):,} elements differ" in fault.detail
        assert f"the first at texel ({width - 1}, {height - 1}), channel {channel}: found 0x" in fault.detail
        assert fault.text.endswith("repeat it with --seed 5")
        assert is_plain(found)

    @pytest.mark.parametrize(("which", "name"), [(1, "a sequence of a second session")])
    def test_logits_that_change_by_one_bit(
        self, tight: Device, monkeypatch: pytest.MonkeyPatch, which: int, name: str
    ) -> None:
        """Once, in either session, when there are two."""
        logits, sessions, planted = DecodeSession.logits, list[DecodeSession](), list[int]()

        def changed(self: DecodeSession) -> Any:
            found = logits(self)
            if self not in sessions:
                sessions.append(self)
            if len(sessions) == 2 and self is sessions[which] and not planted:
                planted.append(1)
                found.view(np.uint32)[3] ^= 1
            return found

        monkeypatch.setattr(DecodeSession, "logits", changed)
        found = stress(tight, seed=1)
        fault = found.first_fault
        assert fault is not None
        assert (found.faults, fault.kind, fault.format, fault.name) == (1, "logits", "f32", name)
        assert fault.detail.startswith("1 of 40 logits differ, the first at 3: ")

    def test_textures_that_are_left_behind(self, tight: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        release = Texture.release
        with monkeypatch.context() as patch:
            patch.setattr(Texture, "release", lambda self: None if BITS in self.name else release(self))
            found = stress(tight)
        assert found.first_fault is not None
        assert found.first_fault.kind == "objects"
        assert found.objects_after["texture"] - found.objects_before["texture"] == 7
        assert "expected 0 texture" in found.first_fault.detail

    @pytest.mark.parametrize("kind", ["wrong", "changing", "leaking"])
    def test_kernels(self, tight: Device, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        calls: list[Any] = []

        def check(device: TensorDevice, rng: np.random.Generator, rows: int, cols: int, form: str) -> Any:
            right = rng.standard_normal((rows, cols)).astype(np.float32)
            calls.append(device.tensor(right))
            if kind != "leaking":
                calls.pop().release()
            small = np.float32(1 + 1e-6 * len(calls if kind == "leaking" else told))
            told.append(1)
            return [(right * (np.float32(1.01) if kind == "wrong" else small if kind == "changing" else 1), right)]

        told: list[int] = []
        case = KernelCase("planted", "test", (), ("float32",), check, lambda device, rng: lambda: None, "")
        monkeypatch.setattr(module, "all_cases", lambda: [case])
        found = stress(tight, open_kernels=lambda: TensorDevice(limits=SMALL))
        fault = found.first_fault
        assert fault is not None
        assert fault.kind == ("objects" if kind == "leaking" else "kernel")
        assert (fault.name, fault.format) == ("planted", "float32")
        words = {"wrong": "off by 0.01 of float64", "changing": "two calls", "leaking": "2 tensors after the second"}
        assert words[kind] in fault.detail
        calls.clear()

    def test_an_error_ends_it_and_is_told(self, tight: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any) -> Any:
            raise GLError("planted: GL_OUT_OF_MEMORY")

        monkeypatch.setattr(module, "check_texture", refuse)
        found = stress(tight, seconds=60, seed=4)
        fault = found.first_fault
        assert fault is not None
        assert (found.faults, found.rounds, fault.kind, fault.seed) == (1, 1, "error", 4)
        assert fault.detail == "planted: GL_OUT_OF_MEMORY"
        assert tight.live_objects().total() == 0
        assert is_plain(found)
