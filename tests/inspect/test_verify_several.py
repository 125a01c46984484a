"""``verify`` over several weight formats and renderers: one report, exit statuses, and the schema of the document."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ran, refused
from jsonschema import Draft202012Validator
from scripted_models import SMALL
from tiers import tiered
from verify_documents import validated, verified

from glinfer.config import ModelConfig
from glinfer.engine.model import Model
from glinfer.errors import ContextError, GLError
from glinfer.formats import Checkpoint, random_checkpoint, save_checkpoint
from glinfer.gl import egl
from glinfer.gl.context import open_device
from glinfer.gl.egl import EglDevice
from glinfer.gl.texture import Texture
from glinfer.inspect.verify import suite as module
from glinfer.inspect.verify.draws import verify_draws
from glinfer.inspect.verify.suite import SCHEMA
from glinfer.program.session import Session

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

Told = Callable[..., dict[str, Any]]
ROTARY = ("llama", "gemma")
TWO = [EglDevice(0, None, ""), EglDevice(1, None, "")]


@pytest.fixture
def told(capsys: Capture) -> Told:
    """A function that runs ``verify … --json``, expects an exit status, and gives the document, which is valid."""
    return partial(verified, capsys)


@pytest.fixture
def two_devices(monkeypatch: Patch) -> None:
    """Device 1 does not open, and neither does desktop OpenGL; device 0 is the usual one."""

    def opened(device: Any, *, api: str, limits: Any) -> Any:
        if (device, api) == (0, "es"):
            return open_device("auto", api="es", limits=limits)
        raise ContextError(f"planted: {device} {api}")

    monkeypatch.setattr(egl, "list_devices", lambda: TWO)
    monkeypatch.setattr("glinfer.inspect.settings.open_device", opened)


def flip(monkeypatch: Patch, name: str, form: str) -> None:
    """From now on one texture, where it has that format, reads back with one wrong bit."""
    read = Texture.read_lines

    def changed(self: Texture, *extent: Any) -> Any:
        found = np.array(read(self, *extent))
        if (self.name, self.layout.format.name) == (name, form):
            found.view(np.uint8).reshape(-1)[-2] ^= 1
        return found

    monkeypatch.setattr(Texture, "read_lines", changed)


class TestSeveral:
    @pytest.fixture(autouse=True)
    def two_formats(self, monkeypatch: Patch) -> None:
        """--all-weights takes these only."""
        monkeypatch.setattr("glinfer.cli.verify.every_format", lambda *_: ["f32", "q8"])

    def test_every_weight_format(self, small: Path, told: Told) -> None:
        found = told(small, "--all-weights", "--draws", "--tokens", 3, "--greedy", 2)
        assert found["model"] == str(small)
        assert [each["weights"] for each in found["runs"]] == ["f32", "q8"]
        assert all(each["passed"] and len(each["draws"]) == 18 for each in found["runs"])
        assert all(each["greedy"]["agreeing"] == 2 for each in found["runs"])
        sizes = [sum(texture["bytes"] for texture in each["textures"]) for each in found["runs"]]
        assert sizes[0] > sizes[1]

    @pytest.mark.slow
    def test_every_renderer(self, small: Path, told: Told) -> None:
        found = told(small, "--all-devices", "--limits", "webgl2")
        tried = [(each["device"], each["api"]) for each in (*found["runs"], *found["unusable"])]
        devices = [device.index for device in egl.list_devices()]
        assert sorted(tried) == sorted((device, api) for device in devices for api in ("es", "desktop"))
        assert any(each["api"] == "es" for each in found["runs"])
        assert {each["max_texture_size"] for each in found["runs"]} == {2048}

    @pytest.mark.usefixtures("two_devices")
    def test_what_does_not_open_is_told_and_no_failure(self, small: Path, told: Told, capsys: Capture) -> None:
        found = told(small, "--all-devices")
        assert [(each["device"], each["api"], each["weights"]) for each in found["runs"]] == [(0, "es", "f32")]
        assert found["unusable"] == [
            {"device": device, "api": api, "weights": None, "problem": f"planted: {device} {api}"}
            for device, api in ((1, "es"), (0, "desktop"), (1, "desktop"))
        ]
        said = ran(capsys, "verify", small, "--all-devices")[0]
        assert "device 1, es, unusable: planted: 1 es" in said
        assert "1 run: all passed · 3 unusable" in said

    @pytest.mark.usefixtures("two_devices")
    def test_nothing_usable_exits_2(self, small: Path, capsys: Capture) -> None:
        arguments = ["verify", small, "--all-devices", "--api", "desktop"]
        words = "device 0, desktop: planted: 0 desktop; device 1, desktop: planted: 1 desktop"
        out, err = ran(capsys, *arguments, "--json", status=2)
        assert err == f"glinfer: nothing could be run: {words}\n"
        document = validated(json.loads(out))
        assert (document["passed"], document["runs"], len(document["unusable"])) == (False, [], 2)
        assert ran(capsys, *arguments, status=2)[0] == ""

    def test_a_format_that_does_not_fit_is_told_and_no_failure(
        self, tmp_path: Path, told: Told, monkeypatch: Patch, capsys: Capture
    ) -> None:
        monkeypatch.setattr("glinfer.cli.verify.every_format", lambda *_: ["f32", "f16"])
        made = random_checkpoint(ModelConfig.from_options(SMALL), seed=1)
        tensors = {**made.tensors, "lm_head.weight": made.tensors["lm_head.weight"] * np.float32(1e7)}
        path = tmp_path / "large.gab"
        save_checkpoint(Checkpoint(made.config, tensors, "large"), path)
        found = told(path, "--all-weights")
        assert [each["weights"] for each in found["runs"]] == ["f32"]
        [left_out] = found["unusable"]
        assert (left_out["weights"], left_out["api"]) == ("f16", "es")
        assert "lm_head" in left_out["problem"]
        assert "lm_head" in refused(capsys, "verify", path, "--weights", "f16")

    def test_one_of_several_that_differs_exits_1_and_is_named(
        self, small: Path, monkeypatch: Patch, capsys: Capture
    ) -> None:
        flip(monkeypatch, "h.1.mlp.fc_in.weight", "rgba32ui")
        said, _ = ran(capsys, "verify", small, "--all-weights", status=1)
        assert "device auto, es, weights q8:\ntexture h.1.mlp.fc_in.weight differs in " in said
        assert "2 runs: 1 FAILED" in said


class TestAfter:
    def test_tokens_are_generated_first(self, small: Path, capsys: Capture) -> None:
        assert (
            "MB: all identical after 5 tokens"
            in ran(capsys, "verify", small, "--after", "5", "--tokens", "3", "--plan", "reference")[0]
        )

    @tiered("shape", [SMALL, *(f"family={name},vocab=70,dim=32,heads=2,blocks=1,context=24" for name in ROTARY)])
    def test_every_way_to_run_is_taken(self, shape: str, monkeypatch: Patch, told: Told) -> None:
        plans: set[str] = set()
        session_run = Session.run

        def noted(session: Session, *arguments: Any, **options: Any) -> int:
            plans.add(session.plan.name)
            return session_run(session, *arguments, **options)

        monkeypatch.setattr(Session, "run", noted)
        [found] = told("--config", shape, "--after", 30)["runs"]
        assert plans >= {"fast", "chunk", "batch", "choice"}
        assert (found["passed"], found["after"], found["draws"], found["greedy"]) == (True, 30, [], None)

    def test_a_weight_that_tokens_overwrite_is_told(self, small: Path, monkeypatch: Patch, capsys: Capture) -> None:
        def overwriting(model: Model, *_: Any) -> None:
            matrix = np.array(model.bound.read("wpe"))
            matrix.view(np.uint32)[40, 9] ^= 1
            model.bound.texture("wpe").upload(matrix)

        monkeypatch.setattr(module, "use", overwriting)
        said, _ = ran(capsys, "verify", small, "--after", "2", status=1)
        assert "texture wpe differs in 1 number, by up to " in said
        assert "  texel (2, 40) G, element [40, 9]: found 0x" in said
        assert "1 DIFFER after 2 tokens" in said

    def test_flipped_bits_that_no_draw_shows_fail_the_check_of_draws(
        self, small: Path, told: Told, monkeypatch: Patch
    ) -> None:
        """The lowest bit of 256 weights, and rows of embeddings of no token of the run."""

        def plant(session: Session) -> None:
            for name, part in (("h.1.mlp.fc_out.weight", np.s_[:1, :256]), ("wte", np.s_[150:250])):
                matrix = np.array(session.read(name))
                matrix.view(np.uint32)[part] ^= 1
                session.texture(name).upload(matrix)

        monkeypatch.setattr(module, "verify_draws", partial(verify_draws, on_bound=plant))
        [found] = told(small, "--draws", "--ids", "1,2,3", status=1)["runs"]
        assert all(draw["passed"] for draw in found["draws"])
        differing = {texture["name"]: texture["differing"] for texture in found["textures"] if not texture["passed"]}
        assert differing["wte"] == 100 * 32
        assert 0 < differing["h.1.mlp.fc_out.weight"] <= 256

    def test_a_draw_that_samples_another_texture_is_told(
        self, small: Path, monkeypatch: Patch, capsys: Capture
    ) -> None:
        def rebound(model: Model, *_: Any) -> None:
            first, *others = model.bound.draws
            textures = (model.bound.texture("wpe"), *first.textures[1:])
            model.bound.draws = (dataclasses.replace(first, textures=textures), *others)

        monkeypatch.setattr(module, "use", rebound)
        said, _ = ran(capsys, "verify", small, "--after", "1", status=1)
        assert re.search(r"plan fast, draw embed: \w+ samples wpe; expected wte", said)


class TestNotFinite:
    @pytest.fixture
    def broken(self, tmp_path: Path) -> Path:
        made = random_checkpoint(ModelConfig.from_options(SMALL), seed=1)
        bias = np.array(made.tensors["lm_head.bias"])
        bias[7] = np.nan
        path = tmp_path / "nan.gab"
        save_checkpoint(Checkpoint(made.config, {**made.tensors, "lm_head.bias": bias}, "nan"), path)
        return path

    @tiered("options", [["--weights", "q8"], ["--plan", "reference"], ["--all-weights"]])
    def test_bits_are_compared_and_the_refusal_is_told(
        self, broken: Path, told: Told, capsys: Capture, options: list[str]
    ) -> None:
        refusal = "1 value is NaN or infinite in tensor 'lm_head.bias', first at [7]"
        found = told(broken, *options, "--allow-nan")
        assert all(each["passed"] for each in found["runs"])
        assert refusal in found["load_refuses"]
        assert found["allow_nan"] is True
        out, err = ran(capsys, "verify", broken, *options, status=1)
        assert f"load refuses this model: {broken}: {refusal}" in out
        assert err == ""

    def test_such_a_model_is_not_run(self, broken: Path, capsys: Capture) -> None:
        for options in (["--draws"], ["--greedy", "2"], ["--after", "2"]):
            assert "lm_head.bias" in refused(capsys, "verify", broken, *options, "--allow-nan")


class TestErrors:
    def test_an_error_of_opengl_fails_its_run_and_no_other(
        self, small: Path, told: Told, monkeypatch: Patch, capsys: Capture
    ) -> None:
        def lost(*_: Any, **options: Any) -> Any:
            raise GLError("planted: GL_CONTEXT_LOST")

        monkeypatch.setattr(module, "verify_special_values", lost)
        [found] = told(small, "--draws", status=1)["runs"]
        assert (found["problem"], found["special_values"], found["draws"]) == ("planted: GL_CONTEXT_LOST", [], [])
        assert len(found["textures"]) == 20
        assert "the run ended with an error: planted: GL_CONTEXT_LOST" in ran(capsys, "verify", small, status=1)[0]

    def test_options_that_make_no_sense(self, small: Path, capsys: Capture) -> None:
        for options, words in (
            (["--all-weights", "--weights", "q8"], "--all-weights checks every format; leave out --weights"),
            (["--all-devices", "--device", "0"], "--all-devices checks every renderer; leave out --device"),
            (["--plan", "reference", "--weights", "q8"], "the reference plan keeps its weights in f32"),
        ):
            assert words in refused(capsys, "verify", small, *options)


def test_the_schema_is_printed_and_is_one(capsys: Capture) -> None:
    printed = json.loads(ran(capsys, "verify", "--schema")[0])
    assert printed == json.loads(SCHEMA.read_text())
    Draft202012Validator.check_schema(printed)
    assert printed["$schema"] == "https://json-schema.org/draft/2020-12/schema"
