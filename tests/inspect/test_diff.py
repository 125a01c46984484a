"""Two sides run for real: what is the same, what differs first, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glinfer
from glinfer.config import ModelConfig
from glinfer.errors import ContextError, GlinferError, InputError
from glinfer.formats import load_checkpoint, random_checkpoint, save_checkpoint
from glinfer.gl.context import Limits
from glinfer.inspect.diff.compare import OTHER_FORMAT, SAME_FORMAT, RunConfig, diff
from glinfer.inspect.diff.report import DiffReport
from glinfer.models.oracle import relative_error

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
IDS = [13, 132, 251, 7, 7, 299]
OUT_PROJ, FC_IN = "transformer.h.1.attn.out_proj.weight", "transformer.h.0.mlp.fc_in.weight"
LLAMA = "family=llama,blocks=2,heads=4,kv_heads=2,dim=24,inner=28,vocab=101,context=24"


def with_tensor(model: Path, target: Path, name: str, change: Callable[[Array], Array]) -> Path:
    """The same model with one tensor changed."""
    checkpoint = load_checkpoint(model)
    tensors = {**checkpoint.tensors, name: np.ascontiguousarray(change(checkpoint.tensors[name]))}
    save_checkpoint(dataclasses.replace(checkpoint, tensors=tensors), target)
    return target


def first_beyond(report: DiffReport) -> str | None:
    return None if report.first_beyond is None else report.first_beyond.name


class TestSameModel:
    def test_both_sides_alike_are_identical_bit_for_bit(self, bare: Path) -> None:
        told: list[tuple[int, int]] = []
        report = diff(RunConfig(bare), RunConfig(bare), IDS, on_progress=lambda done, total: told.append((done, total)))
        assert report.identical
        assert report.passed
        assert report.first_different is None
        assert report.weights is None
        assert report.tolerance == SAME_FORMAT
        assert [at.kl for at in report.along.positions] == [0.0] * len(IDS)
        assert report.along.agreement == 1.0
        with glinfer.load(bare) as model:
            assert [each.name for each in report.passes] == model.names()
            assert {each.draw for each in report.passes} < {draw.name for draw in model.plan.draws}
        assert told == [(done, 12) for done in range(1, 13)]

    @pytest.mark.parametrize("plan", ["fast", "reference"])
    def test_smaller_textures_are_named_and_change_nothing(self, bare: Path, plan: str) -> None:
        least = Limits.webgl2_minimum()
        report = diff(RunConfig(bare, plan=plan), RunConfig(bare, plan=plan, limits=least), IDS[:3])
        assert report.identical
        assert report.a.max_texture_size > report.b.max_texture_size == 2048

    def test_the_fast_plan_against_the_reference(self, bare: Path) -> None:
        fast, reference = RunConfig(bare), RunConfig(bare, plan="reference")
        report = diff(fast, reference, IDS)
        assert report.passed
        assert not report.identical
        with glinfer.load(bare) as model:
            assert [each.name for each in report.passes] == model.names()
        assert max(each.error or 0 for each in report.passes) < 1e-5
        assert {each.draw for each in report.passes} == {None}
        assert report.only_a == ()
        assert {"blocks.0.attn.probs", "blocks.1.mlp.norm", "final_norm", "probs"} <= set(report.only_b)
        assert report.along.kl[2] < 1e-9
        other_way = diff(reference, fast, IDS)
        assert {each.name for each in other_way.passes} == {each.name for each in report.passes}
        assert (other_way.passed, other_way.only_b) == (True, ())

    def test_what_is_said_of_the_next_tokens(self, bare: Path) -> None:
        report = diff(RunConfig(bare), RunConfig(bare, plan="reference"), IDS, positions=3)
        assert [at.position for at in report.along.positions] == [0, 2, 5]
        assert [(at.token, at.following) for at in report.along.positions] == [(13, 132), (251, 7), (299, None)]
        with glinfer.load(bare) as model:
            for at in report.along.positions:
                probs = model.probs(IDS[: at.position + 1])
                assert at.top_a == at.top_b == int(probs.argmax())
                if at.following is not None:
                    assert at.logprob_a == pytest.approx(float(np.log(probs[at.following])), abs=1e-5)

    def test_passes_of_a_part_and_tokens_of_a_part(self, bare: Path) -> None:
        report = diff(RunConfig(bare), RunConfig(bare), [*IDS] * 20, tokens=7, trace=2)
        assert (len(report.ids), report.traced, len(report.along.positions)) == (7, 2, 7)
        assert diff(RunConfig(bare), RunConfig(bare, context=9), [*IDS] * 20, shorten=True).ids == tuple([*IDS] * 2)[:9]


class TestWeights:
    def test_fewer_bits_are_told_and_pass(self, bare: Path) -> None:
        report = diff(RunConfig(bare), RunConfig(bare, weights="q8"), IDS)
        assert report.tolerance == OTHER_FORMAT
        assert (report.a.kept, report.b.kept) == (("F32",), ("Q8",))
        assert report.passed
        assert not report.identical
        assert report.along.kl[0] > 0
        strict = diff(RunConfig(bare), RunConfig(bare, weights="q8"), IDS, tolerance=1e-4)
        assert not strict.passed
        assert first_beyond(strict) == "embed.centred"

    @pytest.mark.parametrize("plan", ["fast", "reference"])
    def test_a_transposed_matrix_is_named_and_found(self, bare: Path, tmp_path: Path, plan: str) -> None:
        other = with_tensor(bare, tmp_path / "transposed.gab", OUT_PROJ, np.transpose)
        report = diff(RunConfig(bare, plan=plan), RunConfig(other, plan=plan), IDS)
        assert report.weights is not None
        assert {what: [each.name for each in group] for what, group in report.weights.groups.items()} == {
            "B is A transposed": [OUT_PROJ]
        }
        name = "blocks.1.resid_mid" + (".centred" if plan == "fast" else "")
        assert first_beyond(report) == name
        assert report.first_different == report.first_beyond
        assert report.first_beyond is not None
        assert report.first_beyond.draw == "h.1.attn.out_proj"

    def test_a_matrix_that_was_scaled(self, bare: Path, tmp_path: Path) -> None:
        other = with_tensor(bare, tmp_path / "scaled.gab", FC_IN, lambda array: array * np.float32(1.25))
        report = diff(RunConfig(bare), RunConfig(other, plan="reference"), IDS)
        assert report.weights is not None
        assert list(report.weights.groups) == ["B is A × 1.25"]
        assert first_beyond(report) == "blocks.0.mlp.hidden"
        found = report.first_beyond
        assert found is not None
        assert found.place is not None
        with glinfer.load(bare) as a, glinfer.load(other, plan="reference") as b:
            x, y = (each.capture(found.name, IDS)[found.name] for each in (a, b))
        assert found.error == pytest.approx(relative_error(y, x))
        at = found.place.token, found.place.column
        assert abs(float(x[at]) - float(y[at])) == pytest.approx(float(np.abs(x - y).max()))

    def test_one_configuration_that_differs_is_told(self, bare: Path) -> None:
        report = diff(RunConfig(bare), RunConfig(bare, gelu="erf"), IDS)
        assert report.config == {"hidden_act": ("gelu_new", "gelu")}
        assert report.first_different is not None
        assert report.first_different.name == "blocks.0.mlp.hidden"

    @pytest.mark.slow
    def test_models_of_other_widths_and_depths(self, bare: Path, tmp_path: Path) -> None:
        config = dataclasses.replace(load_checkpoint(bare).config, hidden_size=48, intermediate_size=64, head_dim=12)
        save_checkpoint(
            random_checkpoint(dataclasses.replace(config, num_hidden_layers=1)), tmp_path / "other.safetensors"
        )
        report = diff(RunConfig(bare), RunConfig(tmp_path / "other.safetensors"), IDS[:2])
        assert report.first_beyond is not None
        assert (report.first_beyond.name, report.first_beyond.error) == ("embed.centred", None)
        assert "blocks.1.attn.q" in report.only_a
        assert report.config["num_hidden_layers"] == (2, 1)


class TestDecoders:
    @pytest.fixture
    def llama(self, tmp_path: Path) -> Path:
        path = tmp_path / "llama.safetensors"
        save_checkpoint(random_checkpoint(ModelConfig.from_options(LLAMA), seed=4, scale=0.2), path)
        return path

    @pytest.mark.slow
    def test_fast_against_reference(self, llama: Path) -> None:
        ids = [3, 100, 7, 7, 55]
        report = diff(RunConfig(llama), RunConfig(llama, plan="reference"), ids)
        assert report.passed
        assert report.tolerance == SAME_FORMAT
        assert {"embed", "blocks.0.attn.q", "blocks.1.attn.joined", "blocks.1.resid_post", "logits"} <= {
            each.name for each in report.passes
        }
        assert max(each.error or 0 for each in report.passes) < 1e-5
        assert report.only_a == ()
        fused = ("attn.norm", "mlp.norm", "mlp.gate", "mlp.up")
        assert {"final_norm", *(f"blocks.{layer}.{name}" for layer in range(2) for name in fused)} <= set(report.only_b)

    def test_formats_of_a_file_decide_the_tolerance(self, llama: Path) -> None:
        report = diff(RunConfig(llama), RunConfig(llama, weights="q8"), [3, 100, 7])
        assert report.tolerance == OTHER_FORMAT
        assert (report.a.kept, report.b.kept) == (("F32",), ("Q8",))
        assert report.along.kl[0] > 0


class TestRefused:
    def test_other_vocabularies(self, bare: Path, tmp_path: Path) -> None:
        save_checkpoint(
            random_checkpoint(ModelConfig.from_options("vocab=301,dim=8,heads=2,blocks=1")), tmp_path / "b.gab"
        )
        with pytest.raises(InputError, match="A has a vocabulary of 300 tokens and B of 301"):
            diff(RunConfig(bare), RunConfig(tmp_path / "b.gab"), IDS)

    def test_tokenizers_that_split_a_text_differently(self, small: Path, tmp_path: Path) -> None:
        from glinfer.formats import write_bpe
        from glinfer.text.tokenizer import learn_bpe

        other = tmp_path / "other.bpe"
        write_bpe(learn_bpe(["xyzzy xyzzyx plugh plover " * 20] * 3, 300, [chr(0x4E00 + n) for n in range(40)]), other)
        text = "the model and the light"
        with pytest.raises(InputError, match=r"split this text differently, from token \d+ on; .* as ids"):
            diff(RunConfig(small), RunConfig(small, tokenizer=other), text)
        assert diff(RunConfig(small), RunConfig(small, tokenizer=other), IDS).identical

    def test_a_text_needs_one_tokenizer(self, small: Path, bare: Path) -> None:
        with pytest.raises(InputError, match="no tokenizer was given"):
            diff(RunConfig(bare), RunConfig(bare), "text")
        report = diff(RunConfig(bare), RunConfig(small), "light")
        assert "".join(report.words[token] for token in report.ids) == "light"

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"tolerance": -1.0}, "tolerance is -1.0"),
            ({"tolerance": float("nan")}, "tolerance is nan"),
            ({"tokens": 0}, "number of tokens is 0"),
            ({"positions": 0}, "number of positions is 0"),
            ({"trace": 0}, "number of traced tokens is 0"),
        ],
    )
    def test_options(self, bare: Path, options: dict[str, Any], expected: str) -> None:
        with pytest.raises(InputError, match=expected):
            diff(RunConfig(bare), RunConfig(bare), IDS, **options)

    @pytest.mark.parametrize(
        ("side", "ids", "kind", "expected"),
        [
            ({}, [], InputError, "the prompt is empty"),
            ({}, [1] * 65, InputError, "the prompt has 65 tokens"),
            ({"context": 5}, IDS, InputError, "the prompt has 6 tokens; this model's context holds 5"),
            ({}, [300], InputError, "token 0 of the prompt is 300"),
            ({"device": "99"}, IDS, ContextError, "B: there is no EGL device 99"),
            ({"plan": "reference", "weights": "q8"}, IDS, InputError, "B: the reference plan keeps its weights in f32"),
            ({"context": 65}, IDS, GlinferError, "B: a context of 65 was asked for"),
        ],
    )
    def test_sides_and_tokens(
        self, bare: Path, side: dict[str, Any], ids: list[int], kind: type[GlinferError], expected: str
    ) -> None:
        with pytest.raises(kind, match=expected):
            diff(RunConfig(bare), RunConfig(bare, **side), ids)
