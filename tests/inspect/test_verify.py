"""``verify`` has to pass good models and to find planted faults: the right texture, the FIRST wrong draw."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bound_engines import bound_engine, checked_draws
from goldens import ModelWriter
from jsonschema import Draft202012Validator
from scripted_models import SMALL, random_file
from tiers import tiered

from glinfer.cli.app import run
from glinfer.config import ModelConfig
from glinfer.errors import InputError, PlanError
from glinfer.formats import Checkpoint, load_checkpoint, random_checkpoint, save_checkpoint
from glinfer.gl import program
from glinfer.gl.context import Device, Limits, open_device
from glinfer.gl.texture import Texture
from glinfer.inspect.verify.draws import DrawCheck, verify_draws
from glinfer.inspect.verify.report import VerifyRun, schema
from glinfer.inspect.verify.special import SPECIAL_BITS, verify_special_values
from glinfer.models.choice import plan_for
from glinfer.models.tuning import default_for
from glinfer.ops.kernels import KernelOptions

pytestmark = pytest.mark.gl

SHADERS = Path(__file__).resolve().parents[2] / "shaders"
WRAPPING = Limits(112, 4, 16, 16384, 1.0)
"""Textures so small that most matrices of the small model are wrapped, at an edge that divides none of them."""
IDS = [13, 132, 251, 70, 299, 0, 8, 8]
REFERENCE = ["--plan", "reference"]


def one_run(text: str) -> dict[str, Any]:
    """The one run of a document that keeps to the schema."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    document = json.loads(text, parse_constant=refuse)
    Draft202012Validator(schema()).validate(document)
    [run] = document["runs"]
    assert document["passed"] is run["passed"]
    return dict(run)


def report(checkpoint: Checkpoint, device: Device, ids: list[int], shader_root: Path | None = None) -> VerifyRun:
    return report_of(checkpoint, device, ids, "reference", shader_root=shader_root)


def report_of(checkpoint: Checkpoint, device: Device, ids: list[int], plan: str, **options: Any) -> VerifyRun:
    """Textures before and after the draws of one bound engine."""
    with bound_engine(checkpoint, device, plan, **options) as engine:
        before = list(engine.textures.whole())
        draws = verify_draws(engine, ids)
        after = tuple(engine.textures.whole())
    assert before == list(after)
    return VerifyRun(
        device.description, textures=after, special=tuple(verify_special_values(device)), draws=tuple(draws)
    )


def small_checkpoint(options: str = SMALL, gelu: str = "tanh", seed: int = 1) -> Checkpoint:
    made = random_checkpoint(ModelConfig.from_options(options), seed=seed)
    return Checkpoint(made.config.with_gelu(gelu), made.tensors, made.source)


class TestGoodModels:
    @tiered("limits", [None, Limits.webgl2_minimum(), WRAPPING], keep=(0,), ids=["driver", "webgl2", "wrapping"])
    @tiered(
        ("options", "tokens"),
        [
            (SMALL, 1),
            (SMALL, 8),
            (SMALL, 64),
            ("vocab=7,dim=3,heads=3,blocks=1,context=2", 2),
            ("vocab=1,dim=1,heads=1,blocks=1,context=1", 1),
            ("vocab=131,dim=30,heads=1,blocks=2,context=17", 17),
            ("vocab=1000,dim=10,heads=2,blocks=3,context=5", 4),
        ],
        keep=(1, 5),
    )
    def test_every_shape_passes(self, options: str, tokens: int, limits: Limits | None) -> None:
        checkpoint = small_checkpoint(options)
        ids = [7919 * place % checkpoint.config.vocab_size for place in range(tokens)]
        with open_device(limits=limits) as device:
            found = report(checkpoint, device, ids)
        assert found.first_bad_draw is None
        assert found.passed
        assert len(found.draws) == len(plan_for(checkpoint.config, "reference").draws)
        assert len(found.textures) == len(checkpoint.tensors)

    def test_the_erf_form_passes(self) -> None:
        with open_device() as device:
            assert report(small_checkpoint(gelu="erf"), device, IDS).passed

    @pytest.mark.parametrize("name", ["tiny", "odd"])
    def test_the_golden_models_pass(self, golden_model: ModelWriter, name: str) -> None:
        with open_device() as device:
            assert report(load_checkpoint(golden_model(name)), device, IDS).passed

    def test_large_weights_pass(self) -> None:
        """Scores in the hundreds: a softmax without its maximum would overflow, a tanh would saturate."""
        made = random_checkpoint(ModelConfig.from_options(SMALL), seed=3, scale=0.5)
        with open_device() as device:
            assert report(made, device, IDS).passed

    def test_checks_are_told_as_they_come_and_nothing_is_left_behind(self) -> None:
        checkpoint, told = small_checkpoint(), []
        plan = plan_for(checkpoint.config, "reference")
        with open_device() as device:
            checks = checked_draws(checkpoint, device, IDS, hooks={"on_check": told.append})
            assert told == checks
            assert [check.index for check in checks] == list(range(len(plan.draws)))
            assert [check.name for check in checks] == [draw.name for draw in plan.draws]
            verify_special_values(device)
            assert sum(device.live_objects().values()) == 0

    @pytest.mark.parametrize(("ids", "error"), [([], "empty"), ([300], "token 0"), ([1] * 65, "context holds 64")])
    def test_ids_that_the_model_cannot_run_are_refused(self, ids: list[int], error: str) -> None:
        checkpoint = small_checkpoint()
        with open_device() as device, pytest.raises(InputError, match=error):
            checked_draws(checkpoint, device, ids)


DISCARD = "if (e == ivec2(3, 5)) discard;\n    float sum = 0.0;"
OTHER_HEAD = "min(head, 0) * HEAD_DIM"
HEADS = "h.0.attn.head"

# What is planted: the shader, what it says, what it says then, and the first draw that this makes wrong.
FAULTS = {
    "scores unscaled": ("attention_scores", "sum * SCALE", "sum", f"{HEADS}.0.scores"),
    "scores see the future": ("attention_scores", "e.y > e.x", "e.y > e.x + 1", f"{HEADS}.0.scores"),
    "scores miss themselves": ("attention_scores", "e.y > e.x", "e.y >= e.x", f"{HEADS}.0.scores"),
    "mask of zero": ("attention_scores", "MASKED = -1e30", "MASKED = 0.0", f"{HEADS}.0.scores"),
    "mask too weak": ("attention_scores", "MASKED = -1e30", "MASKED = -1e29", f"{HEADS}.0.scores"),
    "scores of the first head": ("attention_scores", "head * HEAD_DIM", OTHER_HEAD, f"{HEADS}.1.scores"),
    "softmax misses a column": ("softmax", "i = 0; i < cols", "i = 0; i < cols - 1", f"{HEADS}.0.probs"),
    "softmax unnormalised": ("softmax", "- largest) / sum;", "- largest);", f"{HEADS}.0.probs"),
    "values miss a row": ("attention_values", "j < rows", "j < rows - 1", f"{HEADS}.0.mixed"),
    "values of the first head": ("attention_values", "head * HEAD_DIM", OTHER_HEAD, f"{HEADS}.1.mixed"),
    "joined one column short": ("concat_head", "c < HEAD_DIM", "c < HEAD_DIM - 1", f"{HEADS}.0.joined"),
    "joined forgets": ("concat_head", "at(so_far, ", "0.5 * at(so_far, ", f"{HEADS}.1.joined"),
    "linear one input short": ("linear", "i < IN", "i < IN - 1", "h.0.attn.q_proj"),
    "linear transposed": ("linear", "at(weight, e.y, i, IN)", "at(weight, i, e.y, IN)", "h.0.attn.q_proj"),
    "bias of another output": ("linear", "at(bias, 0, e.y, OUT)", "at(bias, 0, 0, OUT)", "h.0.mlp.fc_in"),
    "bias all but missing": ("linear", "sum += at(bias", "sum += 1e-30 * at(bias", "h.0.mlp.fc_in"),
    "residual all but missing": ("linear", "y += at(residual", "y += 1e-30 * at(residual", "h.0.attn.out_proj"),
    "no activation": ("linear", "y = activation(sum);", "y = sum;", "h.0.mlp.fc_in"),
    "last row off by one": ("linear", "rows - 1", "rows - 2", "lm_head"),
    "gelu a thousandth off": ("common/activation", "0.7978845608028654", "0.7986824", "h.0.mlp.fc_in"),
    "norm without epsilon": ("layer_norm", "variance + EPS", "variance + 0.0 * EPS", "h.0.ln_1"),
    "norm over one less": ("layer_norm", "variance /= float(DIM)", "variance /= float(DIM - 1)", "h.0.ln_1"),
    "norm without its bias": ("layer_norm", "+ at(bias", "+ 1e-30 * at(bias", "h.0.ln_1"),
    "position always the first": ("embed", "at(position_embedding, e.x,", "at(position_embedding, 0,", "embed"),
    "last token id unknown": ("embed", "id < VOCAB", "id < VOCAB - 1", "embed"),
}

# The same for elements that a draw leaves as they were, or fills with NaN; and how many there are.
UNWRITTEN = {
    "one element": ("linear", "float sum = 0.0;", DISCARD, "h.0.attn.q_proj", 1),
    "one row": ("layer_norm", "float mean = 0.0;", "if (e.x == 7) discard; float mean = 0.0;", "h.0.ln_1", 32),
    "one row of NaN": ("embed", "hidden = token", "hidden = sqrt(float(e.x == 2 ? -1 : 0)) + token", "embed", 32),
    "what should be zero": (
        "softmax",
        "float sum = 0.0;",
        "if (e.y > e.x) discard; float sum = 0.0;",
        f"{HEADS}.0.probs",
        28,
    ),
    "the second half": (
        "softmax",
        "float sum = 0.0;",
        "if (e.y > 3) discard; float sum = 0.0;",
        f"{HEADS}.0.probs",
        32,
    ),
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
    @tiered("fault", FAULTS, keep=(0, 12, 18))
    def test_the_first_wrong_draw_is_named(self, fault: str, planted: Callable[[str, str, str], Path]) -> None:
        shader, old, new, first = FAULTS[fault]
        checkpoint = small_checkpoint()
        with open_device() as device:
            found = report(checkpoint, device, IDS, planted(shader, old, new))
        assert found.first_bad_draw is not None
        assert found.first_bad_draw.name == first
        assert not found.passed
        assert not found.bad_textures
        assert found.to_json()["first_bad_draw"] == first
        assert found.first_bad_draw.unwritten == 0

    @tiered("fault", UNWRITTEN, keep=(0, 3))
    def test_elements_that_were_not_written_are_counted(
        self, fault: str, planted: Callable[[str, str, str], Path]
    ) -> None:
        shader, old, new, first, count = UNWRITTEN[fault]
        with open_device() as device:
            found = report(small_checkpoint(), device, IDS, planted(shader, old, new)).first_bad_draw
        assert found is not None
        assert (found.name, found.unwritten, found.passed) == (first, count, False)

    @pytest.mark.slow
    def test_a_fault_of_wrapped_matrices_shows_only_where_they_wrap(
        self, planted: Callable[[str, str, str], Path]
    ) -> None:
        root = planted("common/matrix", "int i = row * cols + col;", "int i = row * cols + col + row / 50;")
        checkpoint = small_checkpoint()
        with open_device() as device:
            assert report(checkpoint, device, IDS, root).passed
        with open_device(limits=WRAPPING) as device:
            first = report(checkpoint, device, IDS, root).first_bad_draw
        assert first is not None
        assert first.name == "embed"

    @tiered(
        ("shader", "old", "new", "missing"),
        [
            ("linear", "sum += at(bias, 0, e.y, OUT);", "", "bias"),
            ("linear", "y += at(residual, e.x, e.y, OUT);", "", "residual"),
            ("linear", "rows - 1", "0", "rows"),
            ("attention_scores", "head * HEAD_DIM + i", "i", "head"),
        ],
    )
    def test_an_input_that_a_shader_no_longer_uses_is_refused_when_it_is_bound(
        self, planted: Callable[[str, str, str], Path], shader: str, old: str, new: str, missing: str
    ) -> None:
        root, checkpoint = planted(shader, old, new), small_checkpoint()
        with open_device() as device:
            with pytest.raises(PlanError, match=missing):
                checked_draws(checkpoint, device, IDS, shader_root=root)
            assert sum(device.live_objects().values()) == 0

    def test_what_an_earlier_run_left_hides_no_unwritten_element(
        self, planted: Callable[[str, str, str], Path]
    ) -> None:
        """In the textures of a session that ran with the good shader, the value would still be right."""
        root = planted("linear", "float sum = 0.0;", DISCARD)
        checkpoint = small_checkpoint()
        with open_device() as device:
            assert all(check.passed for check in checked_draws(checkpoint, device, IDS))
            checks = checked_draws(checkpoint, device, IDS, shader_root=root)
        bad = [check for check in checks if not check.passed]
        assert {check.unwritten for check in bad if check.shader == "linear"} == {1}


# The same for the fast plan, at the ninth token, and the kernels that show it.
FAST_FAULTS = {
    "ten times the epsilon": ("gemv", "+ float(EPS)", "+ 10.0 * float(EPS)", "h.0.attn.qkv", {}),
    "bias all but missing": ("gemv", "total += bias", "total += 1e-30 * bias", "h.0.attn.qkv", {}),
    "bias once an instance": ("gemv", "if (part == 0) total", "total", "h.0.mlp.fc_out", {"part_steps": 4}),
    "residual all but missing": ("gemv", "y += FETCH(residual", "y += 1e-30 * FETCH(residual", "h.0.attn.out_proj", {}),
    "no activation": ("gemv", "activations(totals[0])", "totals[0]", "h.0.mlp.fc_in", {}),
    "scores of the token after": (
        "cached_scores",
        "from + ivec2(4 * (n), 0)",
        "from + ivec2(4 * (n) + 4, 0)",
        "h.0.attn.scores",
        {},
    ),
    "scores see the future": (
        "cached_scores",
        "own + next, ivec4(position)",
        "own + next, ivec4(position + 1)",
        "h.0.attn.scores",
        {},
    ),
    "values miss the last four tokens": (
        "cached_values",
        "groups = position / (4 * stride) * stride + stride",
        "groups = max(position / 4, 1)",
        "h.0.attn.values",
        {},
    ),
    "values of another head": (
        "cached_values",
        "head = texel / HEAD_TEXELS",
        "head = texel / HEAD_TEXELS / 2",
        "h.0.attn.values",
        {},
    ),
    "position always the first": (
        "common/table",
        "(position / WPE_STACK) * WPE_TEXELS + column, position %",
        "column, 0 * position %",
        "embed",
        {},
    ),
    "a lane that misses its best": ("pick", "i < 4; i++", "i < 3; i++", "pick", {}),
    "another id": ("pick", "float(token + i));", "float(token + i + 1));", "pick", {}),
    "noise of another token": ("pick", "gumbel(uint(token + 1)", "gumbel(uint(token + 2)", "pick", {}),
    "noise a thousandth off": ("common/noise", "0.693359375", "0.6927", "pick", {}),
    "something in an unused channel": ("pick", "vec4(best, 0.0, 0.0)", "vec4(best, 1.0, 0.0)", "pick", {}),
    "gelu a thousandth off": ("common/activation", "0.7978845608028654", "0.7986824", "h.0.mlp.fc_in", {}),
}

LISTED_FAULTS: dict[str, tuple[str, str]] = {
    "two ids in each other's place": ("step_of.x + 4096.0 * step_of.y", "step_of.y + 4096.0 * step_of.x"),
    "a logit that is passed over": ("if (start + j >= steps) break;", "if (start + j >= steps - 1) break;"),
    "a weight that is lost": ("rest + 1.0 : rest", "rest : rest"),
    "a thousandth too warm": ("top.w) * inverse_temperature);", "top.w) * 0.999 * inverse_temperature);"),
    "noise of another token": ("uint(piece + (start + j) * PIECES)", "uint(piece + (start + j) * PIECES + 1)"),
    "no noise": ("(choice.z & 1u) != 0u", "(choice.z & 1u) != 1u"),
}


def kernels_of(device: Device, kernels: dict[str, Any]) -> KernelOptions:
    return KernelOptions(**kernels) if kernels else default_for(device)


def fast_draws(
    checkpoint: Checkpoint,
    device: Device,
    ids: list[int],
    weights: str = "f32",
    *,
    shader_root: Path | None = None,
    hooks: dict[str, Any] | None = None,
    **kernels: Any,
) -> list[DrawCheck]:
    """The draws of the fast plan against float64."""
    return checked_draws(
        checkpoint,
        device,
        ids,
        "fast",
        weights=weights,
        kernels=kernels_of(device, kernels),
        shader_root=shader_root,
        hooks=hooks,
    )


class TestFastPlan:
    def report(
        self, checkpoint: Checkpoint, device: Device, ids: list[int], weights: str = "f32", **kernels: Any
    ) -> VerifyRun:
        return report_of(checkpoint, device, ids, "fast", weights=weights, kernels=kernels_of(device, kernels))

    def test_half_floats_and_integers_pass(self) -> None:
        checkpoint = small_checkpoint()
        with open_device() as device:
            found = self.report(checkpoint, device, IDS, "q8l")
            assert sum(device.live_objects().values()) == 0
        assert found.first_bad_draw is None
        assert found.passed
        assert len(found.draws) == 6 * 2 + 3 + 1
        assert len(found.textures) == 2 + 2 * (4 * 2 + 1)
        assert {check.format for check in found.textures} == {"rgba16f", "rgba32f", "rgba32ui"}

    @tiered(
        ("options", "tokens", "limits"),
        [
            (SMALL, 64, None),
            ("vocab=1,dim=1,heads=1,blocks=1,context=1", 1, None),
            ("vocab=131,dim=30,heads=3,blocks=1,context=67", 66, Limits.webgl2_minimum()),
        ],
        keep=(0,),
        ids=["small", "ones", "odd"],
    )
    def test_every_shape_passes(self, options: str, tokens: int, limits: Limits | None) -> None:
        checkpoint = small_checkpoint(options)
        ids = [7919 * place % checkpoint.config.vocab_size for place in range(tokens)]
        with open_device(limits=limits) as device:
            assert self.report(checkpoint, device, ids, "q8").passed

    @pytest.mark.slow
    def test_blending_passes(self) -> None:
        with open_device() as device:
            found = self.report(small_checkpoint(), device, IDS, "q8", tiles=2, part_steps=4, split_values=True)
        assert found.first_bad_draw is None

    @tiered("fault", FAST_FAULTS, keep=(0, 10))
    def test_the_first_wrong_draw_is_named(self, fault: str, planted: Callable[[str, str, str], Path]) -> None:
        shader, old, new, first, kernels = FAST_FAULTS[fault]
        made = random_checkpoint(ModelConfig.from_options(SMALL), seed=3, scale=0.3)
        tensors = {
            name: tensor + np.float32(0.3) if "bias" in name else tensor for name, tensor in made.tensors.items()
        }
        checkpoint = Checkpoint(made.config, tensors, "with biases")
        with open_device() as device:
            root = planted(shader, old, new)
            checks = fast_draws(checkpoint, device, [*IDS, 9], "q8", shader_root=root, **kernels)
        wrong = next((check for check in checks if not check.passed), None)
        assert wrong is not None
        assert (wrong.name, wrong.unwritten, wrong.strays) == (first, 0, 0)

    @tiered("fault", [None, *LISTED_FAULTS], keep=(3,))
    def test_the_shortlist_is_a_draw_as_others_are(
        self, planted: Callable[[str, str, str], Path], fault: str | None
    ) -> None:
        """Of 3000 tokens, so that pieces have more of them than are listed."""
        checkpoint = small_checkpoint("vocab=3000,dim=30,heads=3,blocks=1,context=67")
        root = None if fault is None else planted("shortlist", *LISTED_FAULTS[fault])
        with open_device() as device:
            checks = fast_draws(checkpoint, device, IDS, shader_root=root)
        assert [check.name for check in checks][-2:] == ["pick", "shortlist"]
        assert [check.name for check in checks if not check.passed] == ([] if fault is None else ["shortlist"])

    @pytest.mark.slow
    def test_elements_that_were_not_written_are_counted(self, planted: Callable[[str, str, str], Path]) -> None:
        """In a cache as well, although it holds what other tokens left; and the draws after it go on."""
        root = planted(
            "gemv",
            "    y = activations(",
            "    if (at.block == 0 && at.lane == 1) discard;\n    y = activations(",
        )
        checkpoint = small_checkpoint()
        with open_device() as device:
            checks = fast_draws(checkpoint, device, IDS, "q8", shader_root=root)
        wrong = next(check for check in checks if not check.passed)
        assert (wrong.name, wrong.rows, wrong.cols, wrong.unwritten, wrong.strays) == ("h.0.attn.qkv", 1, 192, 4, 0)

    @tiered(
        ("old", "new", "unwritten"),
        [
            ("vec2(origin)", "vec2(OUT_BLOCK_STEP > 1 ? 2 : 0, 0) + vec2(origin)", 96),
            ("float(4 * edge) * vec2(", "vec2(OUT_BLOCK_STEP > 1 ? 6 : 4, 4) * vec2(", 0),
        ],
        ids=["too far right", "too wide"],
        keep=0,
    )
    def test_elements_beside_the_own_slot_are_counted(
        self, planted: Callable[[str, str, str], Path], old: str, new: str, unwritten: int
    ) -> None:
        """Half a block too far to the right, in a cache, is half in the next token's slot.

        The last of its three blocks, the queries, lies alone.
        """
        root, checkpoint = planted("common/block_cover.glsl", old, new), small_checkpoint()
        with open_device() as device:
            checks = fast_draws(checkpoint, device, IDS, "q8", shader_root=root, tiles=1)
        wrong = next(check for check in checks if not check.passed)
        assert (wrong.name, wrong.unwritten, wrong.strays) == ("h.0.attn.qkv", unwritten, 64)

    def test_the_tokens_before_count(self) -> None:
        """What is compared is the last token in its context: other tokens before it give other scores."""
        checkpoint, told = small_checkpoint(), []
        with open_device() as device:
            for ids in (IDS, [*IDS[:3], 71, *IDS[4:]]):
                checks = fast_draws(checkpoint, device, ids, "q8", hooks={"on_check": told.append})
                assert all(check.passed for check in checks)
                names = [draw.name for draw in plan_for(checkpoint.config, "fast").draws]
                assert [check.name for check in checks] == [*names, "shortlist"]
        first, second = told[: len(told) // 2], told[len(told) // 2 :]
        assert first != second
        assert [check.max_relative_error for check in first[:2]] == [check.max_relative_error for check in second[:2]]

    @pytest.mark.parametrize("extra", [[], ["--weights", "q8", "--tokens", "3"], ["--ids", "1,2,299", "--gelu", "erf"]])
    def test_the_command_checks_the_plan_that_runs(
        self, small: Path, extra: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(["verify", str(small), "--draws", *extra, "--json"]) == 0
        told = one_run(capsys.readouterr().out)
        assert told["passed"] is True
        assert len(told["draws"]) == 15 + 1, "those of a token, and the shortlist"
        assert {entry["name"] for entry in told["textures"]} >= {"wte", "wpe", "h.1.attn.qkv.weight", "lm_head.consts"}
        formats = {entry["format"] for entry in told["textures"]}
        assert ("rgba32ui" in formats) == ("q8" in extra)

    def test_a_planted_fault_exits_1_and_names_the_draw_and_its_file(
        self,
        small: Path,
        planted: Callable[[str, str, str], Path],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        shader, old, new, first, _ = FAST_FAULTS["values of another head"]
        root = planted(shader, old, new)
        monkeypatch.setattr(program, "shader_root", lambda: root)
        assert run(["verify", str(small), "--draws"]) == 1
        said = capsys.readouterr().out
        assert f"the first draw that differs is number 3, {first} (shaders/{shader}.frag)" in said
        assert "all identical" in said

    def test_packed_textures_with_one_wrong_bit_are_found_and_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        checkpoint = small_checkpoint()
        read = Texture.read_lines
        for name in ("wpe", "h.1.mlp.fc_in.weight", "lm_head.consts"):

            def flip(self: Texture, *extent: Any, name: str = name) -> Any:
                found = np.array(read(self, *extent))
                if self.name == name:
                    found.view(np.uint8)[-1, -1] ^= 1
                return found

            monkeypatch.setattr(Texture, "read_lines", flip)
            with open_device() as device, bound_engine(checkpoint, device, "fast", weights="q8") as engine:
                checks = list(engine.textures.whole())
            assert [check.name for check in checks if not check.identical] == [name]

    def test_weights_of_nan_are_not_folded(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        made = small_checkpoint()
        tensors = {**made.tensors, "lm_head.bias": np.full(300, np.nan, np.float32)}
        path = tmp_path / "nan.gab"
        save_checkpoint(Checkpoint(made.config, tensors, "nan"), path)
        assert run(["verify", str(path), "--draws"]) == 2
        assert "lm_head.bias" in capsys.readouterr().err

    def test_a_format_that_does_not_go_with_the_plan_is_refused(
        self, small: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(["verify", str(small), *REFERENCE, "--weights", "q8"]) == 2
        assert "reference" in capsys.readouterr().err

    @pytest.mark.slow
    def test_the_full_size_model(self, full_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["verify", str(full_file), "--weights", "q8", "--draws", "--tokens", "2", "--json"]) == 0
        told = one_run(capsys.readouterr().out)
        assert len(told["draws"]) == 39 + 1
        assert sum(entry["bytes"] for entry in told["textures"]) < 101_356_092 / 3


class TestTextures:
    @pytest.fixture
    def altered(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[Any], Any]], None]:
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

    def textures(self, checkpoint: Checkpoint) -> VerifyRun:
        with open_device() as device, bound_engine(checkpoint, device) as engine:
            return VerifyRun("", tuple(engine.textures.whole()))

    @pytest.mark.parametrize("name", ["transformer.wte.weight", "transformer.h.1.mlp.fc_out.bias", "lm_head.weight"])
    def test_one_wrong_bit_is_found_and_named(self, altered: Any, name: str) -> None:
        def flip(matrix: Any) -> Any:
            matrix.view(np.uint32)[-1, -1] ^= 1
            return matrix

        altered(name, flip)
        found = self.textures(small_checkpoint())
        assert [check.name for check in found.bad_textures] == [name]
        assert 0 < found.bad_textures[0].max_difference < 1e-6
        assert not found.passed

    def test_minus_zero_is_not_zero(self, altered: Any) -> None:
        made = small_checkpoint()
        tensors = {**made.tensors, "lm_head.bias": np.full(300, -0.0, np.float32)}
        checkpoint = Checkpoint(made.config, tensors, "zeros")
        assert self.textures(checkpoint).passed
        altered("lm_head.bias", lambda matrix: matrix + np.float32(0))
        found = self.textures(checkpoint)
        assert [(check.name, check.max_difference) for check in found.bad_textures] == [("lm_head.bias", 0.0)]

    def test_a_number_that_became_nan_is_an_infinite_difference(self, altered: Any) -> None:
        altered("lm_head.bias", lambda matrix: matrix * np.float32(np.nan))
        assert self.textures(small_checkpoint()).bad_textures[0].max_difference == np.inf

    def test_special_bits_in_weights_are_kept(self) -> None:
        made = small_checkpoint()
        bits = np.array([pattern for group in SPECIAL_BITS.values() for pattern in group], np.uint32)
        tensors = {}
        for name, tensor in made.tensors.items():
            filled = np.ascontiguousarray(tensor)
            filled.view(np.uint32).reshape(-1)[: bits.size] = bits
            tensors[name] = filled
        assert self.textures(Checkpoint(made.config, tensors, "special")).passed

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

    def test_the_command_says_so_and_exits_1(
        self, altered: Any, small: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        altered("lm_head.bias", lambda matrix: matrix * np.float32(np.nan))
        assert run(["verify", str(small), *REFERENCE]) == 1
        assert "1 DIFFER" in capsys.readouterr().out
        assert run(["verify", str(small), *REFERENCE, "--json"]) == 1
        told = one_run(capsys.readouterr().out)
        assert told["passed"] is False
        assert [entry["name"] for entry in told["textures"] if not entry["identical"]] == ["lm_head.bias"]


class TestCommand:
    def test_good_models_exit_0(self, small: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["verify", str(small), *REFERENCE]) == 0
        said = capsys.readouterr()
        assert "30 textures, 0.2 MB: all identical" in said.out
        assert "tolerance" not in said.out
        assert said.err == ""

    @tiered("extra", [[], ["--tokens", "3"], ["--ids", "1,2,299"], ["--tokens", "64"], ["--gelu", "erf"]], keep=2)
    def test_good_draws_exit_0(self, small: Path, extra: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["verify", str(small), *REFERENCE, "--draws", *extra, "--json"]) == 0
        told = one_run(capsys.readouterr().out)
        assert told["passed"] is True
        assert told["first_bad_draw"] is None
        assert len(told["draws"]) == 52
        assert told["draws"][0]["rows"] == {"3": 3, "1,2,299": 3, "64": 64}.get(extra[-1] if extra else "", 8)
        assert (told["plan"], told["weights"], told["api"], told["device"]) == ("reference", "f32", "es", None)

    def test_a_planted_fault_exits_1_and_names_the_draw_and_its_file(
        self,
        small: Path,
        planted: Callable[[str, str, str], Path],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        root = planted("attention_values", "head * HEAD_DIM", OTHER_HEAD)
        monkeypatch.setattr(program, "shader_root", lambda: root)
        assert run(["verify", str(small), *REFERENCE, "--draws"]) == 1
        said = capsys.readouterr().out
        assert "the first draw that differs is number 11, h.0.attn.head.1.mixed (shaders/attention_values.frag)" in said
        assert "all identical" in said
        assert run(["verify", str(small), *REFERENCE, "--draws", "--json"]) == 1
        assert one_run(capsys.readouterr().out)["first_bad_draw"] == "h.0.attn.head.1.mixed"
        assert run(["verify", str(small), *REFERENCE]) == 0, "without --draws only textures are looked at"

    def test_weights_of_nan_are_stored_bit_for_bit_but_not_run(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        made = small_checkpoint()
        wte = np.array(made.tensors["transformer.wte.weight"])
        wte.view(np.uint32)[2, :4] = 0x7FC12345, 0x7F800001, 0xFF800000, 0x80000000
        path = tmp_path / "nan.gab"
        save_checkpoint(Checkpoint(made.config, {**made.tensors, "transformer.wte.weight": wte}, "nan"), path)
        assert run(["verify", str(path), *REFERENCE, "--allow-nan"]) == 0
        assert "all identical" in capsys.readouterr().out
        assert run(["verify", str(path), *REFERENCE, "--draws"]) == 2
        assert "transformer.wte.weight" in capsys.readouterr().err

    @pytest.mark.slow
    def test_within_small_limits(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        wide = random_file(tmp_path / "wide.gab", "vocab=2500,dim=8,heads=2,blocks=1,context=16")
        assert run(["verify", str(wide), *REFERENCE, "--draws", "--limits", "webgl2", "--json"]) == 0
        told = one_run(capsys.readouterr().out)
        sizes = {entry["name"]: (entry["width"], entry["height"]) for entry in told["textures"]}
        assert sizes["lm_head.weight"] == (2048, 10)
        assert max(max(size) for size in sizes.values()) <= 2048

    @pytest.mark.slow
    def test_the_full_size_model(self, full_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["verify", str(full_file), *REFERENCE, "--draws", "--tokens", "2", "--json"]) == 0
        told = one_run(capsys.readouterr().out)
        assert len(told["draws"]) == 244
        assert sum(entry["bytes"] for entry in told["textures"]) == 101_356_092 - 28
