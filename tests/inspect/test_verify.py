"""``verify`` has to pass good models and to find planted faults: the right texture, the FIRST wrong draw."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bound_engines import bound_engine, checked_draws
from commands import ran
from scripted_models import SMALL
from tiers import tiered
from verify_documents import verified

from glinfer.config import ModelConfig
from glinfer.errors import InputError, PlanError
from glinfer.formats import Checkpoint, random_checkpoint
from glinfer.gl import program
from glinfer.gl.context import Device, Limits, open_device
from glinfer.gl.texture import Texture
from glinfer.inspect.verify.draws import verify_draws
from glinfer.inspect.verify.special import SPECIAL_BITS, verify_special_values
from glinfer.inspect.verify.suite import VerifyRun
from glinfer.lower.plans import plan_for

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
Planter = Callable[[str, str, str], Path]

SHADERS = Path(__file__).resolve().parents[2] / "shaders"
WRAPPING = Limits(112, 4, 16, 16384, 1.0)
"""Textures so small that most matrices of the small model are wrapped, at an edge that divides none of them."""
IDS = [13, 132, 251, 70, 299, 0, 8, 8]
REFERENCE = ["--plan", "reference"]


def report(checkpoint: Checkpoint, device: Device, ids: list[int], plan: str = "reference", **how: Any) -> VerifyRun:
    """Textures before and after the draws of one bound engine."""
    with bound_engine(checkpoint, device, plan, **how) as engine:
        before = list(engine.textures.whole())
        draws = verify_draws(engine, ids)
        after = tuple(engine.textures.whole())
    assert before == list(after)
    special = tuple(verify_special_values(device))
    return VerifyRun(device.description, textures=after, special=special, draws=tuple(draws))


def small_checkpoint(options: str = SMALL) -> Checkpoint:
    return random_checkpoint(ModelConfig.from_options(options), seed=1)


def with_biases() -> Checkpoint:
    made = random_checkpoint(ModelConfig.from_options(SMALL), seed=3, scale=0.3)
    tensors = {name: tensor + np.float32(0.3 * ("bias" in name)) for name, tensor in made.tensors.items()}
    return Checkpoint(made.config, tensors, "with biases")


class TestGoodModels:
    @tiered(
        ("options", "tokens", "limits", "plan"),
        [
            (SMALL, 8, None, "reference"),
            (SMALL, 64, None, "fast"),
            (SMALL, 64, WRAPPING, "reference"),
            ("vocab=1,dim=1,heads=1,blocks=1,context=1", 1, None, "reference"),
            ("vocab=131,dim=30,heads=1,blocks=2,context=17", 17, Limits.webgl2_minimum(), "reference"),
            ("vocab=131,dim=30,heads=3,blocks=1,context=67", 66, Limits.webgl2_minimum(), "fast"),
        ],
        ids=["small", "fast", "wrapping", "ones", "odd", "odd fast"],
        keep=2,
    )
    def test_every_shape_passes(self, options: str, tokens: int, limits: Limits | None, plan: str) -> None:
        checkpoint = small_checkpoint(options)
        ids = [7919 * place % checkpoint.config.vocab_size for place in range(tokens)]
        with open_device(limits=limits) as device:
            found = report(checkpoint, device, ids, plan, weights="q8" if plan == "fast" else "f32")
        assert found.first_bad_draw is None
        assert found.passed
        if plan == "reference":
            assert len(found.draws) == len(plan_for(checkpoint.config, "reference").draws)
            assert len(found.textures) == len(checkpoint.tensors)

    def test_checks_are_told_as_they_come_and_nothing_is_left_behind(self) -> None:
        checkpoint, printed = small_checkpoint(), []
        plan = plan_for(checkpoint.config, "reference")
        with open_device() as device:
            checks = checked_draws(checkpoint, device, IDS, hooks={"on_check": printed.append})
            assert printed == checks
            assert [check.index for check in checks] == list(range(len(plan.draws)))
            assert [check.name for check in checks] == [draw.name for draw in plan.draws]
            verify_special_values(device)
            assert sum(device.live_objects().values()) == 0

    def test_ids_that_the_model_cannot_run_are_refused(self) -> None:
        checkpoint = small_checkpoint()
        with open_device() as device, bound_engine(checkpoint, device) as engine:
            for ids, error in (([], "empty"), ([300], "token 0"), ([1] * 65, "context holds 64")):
                with pytest.raises(InputError, match=error):
                    verify_draws(engine, ids)


DISCARD = "if (e == ivec2(3, 5)) discard;\n    float sum = 0.0;"
DISCARD_FUTURE = "if (e.y > e.x) discard; float sum = 0.0;"
OTHER_HEAD = "min(head, 0) * HEAD_DIM"
HEADS = "h.0.attn.head"

# What is planted: the shader, what it says, what it says then, and the first draw that this makes wrong; and how many
# elements it leaves as they were, or fills with NaN.
FAULTS: dict[str, tuple[Any, ...]] = {
    "norm without epsilon": ("layer_norm", "variance + EPS", "variance + 0.0 * EPS", "h.0.ln_1"),
    "linear one input short": ("linear", "i < IN", "i < IN - 1", "h.0.attn.q_proj"),
    "scores see the future": ("attention_scores", "e.y > e.x", "e.y > e.x + 1", f"{HEADS}.0.scores"),
    "mask too weak": ("attention_scores", "MASKED = -1e30", "MASKED = -1e29", f"{HEADS}.0.scores"),
    "scores of the first head": ("attention_scores", "head * HEAD_DIM", OTHER_HEAD, f"{HEADS}.1.scores"),
    "softmax misses a column": ("softmax", "i = 0; i < cols", "i = 0; i < cols - 1", f"{HEADS}.0.probs"),
    "joined forgets": ("concat_head", "at(so_far, ", "0.5 * at(so_far, ", f"{HEADS}.1.joined"),
    "bias all but missing": ("linear", "sum += at(bias", "sum += 1e-30 * at(bias", "h.0.mlp.fc_in"),
    "last row off by one": ("linear", "rows - 1", "rows - 2", "lm_head"),
    "gelu a thousandth off": ("common/activation", "0.7978845608028654", "0.7986824", "h.0.mlp.fc_in"),
    "last token id unknown": ("embed", "id < VOCAB", "id < VOCAB - 1", "embed"),
    "one element unwritten": ("linear", "float sum = 0.0;", DISCARD, "h.0.attn.q_proj", 1),
    "zeros unwritten": ("softmax", "float sum = 0.0;", DISCARD_FUTURE, f"{HEADS}.0.probs", 28),
    "one row of NaN": ("embed", "hidden = token", "hidden = sqrt(float(e.x == 2 ? -1 : 0)) + token", "embed", 32),
}

VALUES_OF_ANOTHER_HEAD = "cached_values", "head = texel / HEAD_TEXELS", "head = texel / HEAD_TEXELS / 2"
# The same for the fast plan, at the ninth token.
FAST_FAULTS = {
    "another id": ("pick", "float(token + i));", "float(token + i + 1));", "pick"),
    "ten times the epsilon": ("gemm", "gathered.x + float(EPS)", "gathered.x + 10.0 * float(EPS)", "h.0.attn.qkv"),
    "residual all but missing": ("common/each_row", "+ FETCH(R", "+ 1e-30 * FETCH(R", "h.0.attn.out_proj"),
    "cached scores see the future": ("cached_scores", "ivec4(position)", "ivec4(position + 1)", "h.0.attn.scores"),
    "values of another head": (*VALUES_OF_ANOTHER_HEAD, "h.0.attn.values"),
    "noise a thousandth off": ("common/noise", "0.693359375", "0.6927", "pick"),
    "something in an unused channel": ("pick", "vec4(best, 0.0,", "vec4(best, 1.0,", "pick"),
}


@pytest.fixture
def planted(tmp_path: Path) -> Callable[[str, str, str], Path]:
    """A function that copies the shaders and changes one place in one of them; returns the copy's folder."""

    def plant(shader: str, old: str, new: str) -> Path:
        root = tmp_path / "shaders"
        shutil.copytree(SHADERS, root, dirs_exist_ok=True)
        file = next(path for path in (root / shader, *root.glob(f"{shader}.*")) if path.is_file())
        text = file.read_text()
        assert text.count(old) >= 1, f"{file.name} no longer says {old!r}"
        file.write_text(text.replace(old, new))
        return root

    return plant


class TestPlantedFaults:
    @tiered("fault", [*FAULTS, *FAST_FAULTS], keep=(0, len(FAULTS) - 3, len(FAULTS)))
    def test_the_first_wrong_draw_is_named(self, fault: str, planted: Planter) -> None:
        shader, old, new, first, *unwritten = {**FAULTS, **FAST_FAULTS}[fault]
        root = planted(shader, old, new)
        with open_device() as device:
            if fault in FAULTS:
                found = report(small_checkpoint(), device, IDS, shader_root=root)
            else:
                found = report(with_biases(), device, [*IDS, 9], "fast", weights="q8", shader_root=root)
        wrong = found.first_bad_draw
        assert wrong is not None
        assert (wrong.name, wrong.unwritten, wrong.strays) == (first, sum(unwritten), 0)
        assert not found.passed
        assert not found.bad_textures

    @tiered(("old", "new", "missing"), [("sum += at(bias, 0, e.y, OUT);", "", "bias"), ("rows - 1", "0", "rows")])
    def test_an_input_that_a_shader_no_longer_uses_is_refused_when_it_is_bound(
        self, planted: Planter, old: str, new: str, missing: str
    ) -> None:
        root, checkpoint = planted("linear", old, new), small_checkpoint()
        with open_device() as device:
            with pytest.raises(PlanError, match=missing):
                checked_draws(checkpoint, device, IDS, shader_root=root)
            assert sum(device.live_objects().values()) == 0


LOST_WEIGHT = "choice_list", "rest + 1.0 : rest", "rest : rest"


class TestFastPlan:
    @pytest.mark.slow
    def test_the_choice_is_checked_as_other_draws_are(self, planted: Planter) -> None:
        """Of 3000 tokens, so that pieces have more of them than are listed."""
        checkpoint = small_checkpoint("vocab=3000,dim=30,heads=3,blocks=1,context=67")
        for root, wrong in ((None, []), (planted(*LOST_WEIGHT), ["choice.list"])):
            with open_device() as device:
                checks = checked_draws(checkpoint, device, IDS, "fast", shader_root=root)
            assert [check.name for check in checks][-4:] == ["pick", "choice.list", "choice.rank", "choice.pick"]
            assert [check.name for check in checks if not check.passed] == wrong

    def test_the_command_checks_the_plan_that_runs(self, small: Path, capsys: Capture) -> None:
        for extra in (["--ids", "1,2,299"], ["--weights", "q8", "--tokens", "3"]):
            [report] = verified(capsys, small, "--draws", *extra)["runs"]
            assert len(report["draws"]) == 15 + 3, "those of a token, and of a choice with filters"
            assert {entry["name"] for entry in report["textures"]} >= {
                "wte",
                "wpe",
                "h.1.attn.qkv.weight",
                "lm_head.consts",
            }
            formats = {entry["format"] for entry in report["textures"]}
            assert ("rgba32ui" in formats) == ("q8" in extra)

    def test_a_planted_fault_exits_1_and_names_the_draw_and_its_file(
        self, small: Path, planted: Planter, monkeypatch: Patch, capsys: Capture
    ) -> None:
        root = planted(*VALUES_OF_ANOTHER_HEAD)
        monkeypatch.setattr(program, "shader_root", lambda: root)
        said, _ = ran(capsys, "verify", small, "--draws", status=1)
        assert "the first draw that differs is 4 of 18, h.0.attn.values (shaders/cached_values.frag)" in said
        assert "all identical" in said


class TestTextures:
    @pytest.fixture
    def altered(self, monkeypatch: Patch) -> Callable[[str, Callable[[Any], Any]], None]:
        """A function that makes the readback of one texture go through another function."""

        def alter(name: str, change: Callable[[Any], Any]) -> None:
            for method in ("read", "read_lines"):
                monkeypatch.setattr(Texture, method, changed(getattr(Texture, method), name, change))

        def changed(read: Any, name: str, change: Callable[[Any], Any]) -> Any:
            def reading(self: Texture, *extent: Any) -> Any:
                found = read(self, *extent)
                return change(np.array(found)) if self.name == name else found

            return reading

        return alter

    def test_minus_zero_is_not_zero(self, altered: Any) -> None:
        made = small_checkpoint()
        tensors = {**made.tensors, "lm_head.bias": np.full(300, -0.0, np.float32)}
        checkpoint = Checkpoint(made.config, tensors, "zeros")
        with open_device() as device, bound_engine(checkpoint, device) as engine:
            assert all(check.passed for check in engine.textures.whole())
            altered("lm_head.bias", lambda matrix: matrix + np.float32(0))
            found = VerifyRun("", tuple(engine.textures.whole()))
        assert [(check.name, check.max_difference) for check in found.bad_textures] == [("lm_head.bias", 0.0)]
        assert not found.passed

    def test_special_values_that_do_not_survive_are_found_by_class(self, altered: Any) -> None:
        def quiet(matrix: Any) -> Any:
            bits = matrix.view(np.uint32)
            bits[np.isnan(matrix)] |= 0x00400000
            return matrix

        with open_device() as device:
            assert all(check.stored for check in verify_special_values(device))
            altered("special values", quiet)
            checks = verify_special_values(device)
        assert {check.name: check.stored for check in checks} == {name: name != "NaN payloads" for name in SPECIAL_BITS}
        assert not VerifyRun("", special=tuple(checks)).passed

    def test_a_driver_that_only_fails_in_the_copying_draw_is_told_not_judged(self, altered: Any) -> None:
        altered("their copy", np.zeros_like)
        with open_device() as device:
            found = VerifyRun("", special=tuple(verify_special_values(device)))
        assert not any(check.through_a_draw for check in found.special)
        assert found.passed

    def test_the_command_says_so_and_exits_1(self, altered: Any, small: Path, capsys: Capture) -> None:
        altered("lm_head.bias", lambda matrix: matrix * np.float32(np.nan))
        [report] = verified(capsys, small, *REFERENCE, status=1)["runs"]
        assert [entry["name"] for entry in report["textures"] if not entry["identical"]] == ["lm_head.bias"]


class TestCommand:
    def test_good_models_exit_0(self, small: Path, capsys: Capture) -> None:
        out, err = ran(capsys, "verify", small, *REFERENCE)
        assert "30 textures, 0.2 MB: all identical" in out
        assert "tolerance" not in out
        assert err == ""

    @tiered("extra", [["--tokens", "3"], ["--tokens", "64"], ["--gelu", "erf"]])
    def test_good_draws_exit_0(self, small: Path, extra: list[str], capsys: Capture) -> None:
        [report] = verified(capsys, small, *REFERENCE, "--draws", *extra)["runs"]
        assert report["first_bad_draw"] is None
        assert len(report["draws"]) == 52
        assert report["draws"][0]["rows"] == {"3": 3, "64": 64}.get(extra[-1], 8)
        assert (report["plan"], report["weights"], report["api"], report["device"]) == ("reference", "f32", "es", None)

    @pytest.mark.slow
    def test_the_full_size_model(self, full_file: Path, capsys: Capture) -> None:
        [report] = verified(capsys, full_file, *REFERENCE, "--draws", "--tokens", "2")["runs"]
        assert len(report["draws"]) == 244
        assert sum(entry["bytes"] for entry in report["textures"]) == 101_356_092 - 28
