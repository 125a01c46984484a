"""``glinfer.load``: tokenizers given or found, options good and bad, weights that are no numbers, small textures."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_models import BYTES
from tiers import tiered

import glinfer
from glinfer.engine.random_model import demo_tokenizer
from glinfer.errors import FormatError, GlinferError, InputError
from glinfer.formats import write_bpe
from glinfer.gl.context import Limits, open_device
from glinfer.ops.kernels import KernelOptions
from glinfer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.gl

PROMPT = [13, 132, 251, 70]


class TestLoading:
    def test_a_tokenizer_beside_the_checkpoint_is_found(self, small: Path) -> None:
        with glinfer.load(small) as model:
            assert model.tokenizer is not None
            assert model.tokenizer.vocab_size == model.config.vocab_size == 300

    def test_the_name_may_be_model_bpe(self, bare: Path, tmp_path: Path) -> None:
        path = Path(shutil.copy(bare, tmp_path / "any name.v2.gab"))
        write_bpe(demo_tokenizer(300), tmp_path / "model.bpe")
        with glinfer.load(path) as model:
            assert model.tokenizer is not None

    def test_the_checkpoints_own_name_goes_before_model_bpe(self, bare: Path, tmp_path: Path) -> None:
        path = Path(shutil.copy(bare, tmp_path / "own.gab"))
        write_bpe(demo_tokenizer(300), tmp_path / "own.bpe")
        (tmp_path / "model.bpe").write_bytes(b"not read at all")
        with glinfer.load(path) as model:
            assert model.tokenizer is not None

    @pytest.mark.parametrize("content", ["another size", "damaged"])
    def test_a_tokenizer_beside_it_that_cannot_be_used_is_named_when_text_comes(
        self, bare: Path, tmp_path: Path, content: str
    ) -> None:
        path, beside = Path(shutil.copy(bare, tmp_path / "own.gab")), tmp_path / "own.bpe"
        write_bpe(demo_tokenizer(290), beside)
        if content == "damaged":
            beside.write_bytes(beside.read_bytes()[:-3])
        with glinfer.load(path) as model:
            assert model.tokenizer is None
            assert len(model.generate(PROMPT, max_tokens=2)) == 2, "ids need no tokenizer"
            with pytest.raises(InputError, match=r"own\.bpe.*tokenizer=") as caught:
                model.generate("text")
        assert "290 tokens" in str(caught.value) if content == "another size" else "truncated" in str(caught.value)

    def test_model_bpe_helps_out_where_the_own_one_does_not_fit(self, bare: Path, tmp_path: Path) -> None:
        path = Path(shutil.copy(bare, tmp_path / "own.gab"))
        write_bpe(demo_tokenizer(290), tmp_path / "own.bpe")
        write_bpe(demo_tokenizer(300), tmp_path / "model.bpe")
        with glinfer.load(path) as model:
            assert model.tokenizer is not None

    def test_without_any_tokenizer_text_is_refused_and_ids_are_not(self, bare: Path) -> None:
        with glinfer.load(bare) as model:
            assert model.tokenizer is None
            with pytest.raises(InputError, match="no tokenizer was given"):
                model.generate("text")
            with pytest.raises(InputError, match="no tokenizer was given"):
                model.stream("text")
            assert len(model.generate(PROMPT, max_tokens=3)) == 3

    def test_a_tokenizer_given_may_be_a_path_a_string_or_a_tokenizer(self, bare: Path, tmp_path: Path) -> None:
        path = tmp_path / "words"
        write_bpe(demo_tokenizer(300), path)
        texts = set()
        for given in (path, str(path), Tokenizer.from_file(path)):
            with glinfer.load(bare, tokenizer=given) as model:
                texts.add(model.generate("Once", max_tokens=4, temperature=0))
        assert len(texts) == 1

    def test_a_tokenizer_given_that_does_not_fit_is_refused(self, bare: Path, tmp_path: Path) -> None:
        write_bpe(BYTES, tmp_path / "other.bpe")
        with pytest.raises(InputError, match="the tokenizer has 256 tokens, the model 300"):
            glinfer.load(bare, tokenizer=tmp_path / "other.bpe")

    @pytest.mark.parametrize("swapped", ["checkpoint", "tokenizer"])
    def test_files_given_in_each_others_place_are_recognised(self, small: Path, swapped: str) -> None:
        words = small.with_suffix(".bpe")
        with pytest.raises(FormatError, match="this is a"):
            glinfer.load(*(words,) if swapped == "checkpoint" else (small,), tokenizer=small)

    def test_a_string_does_as_a_path(self, bare: Path) -> None:
        with glinfer.load(str(bare)) as model:
            assert model.config.vocab_size == 300

    @pytest.mark.parametrize("plan", ["fast", "reference"])
    def test_progress_of_the_upload_reaches_the_end_and_never_falls(self, bare: Path, plan: str) -> None:
        seen: list[tuple[int, int]] = []
        with glinfer.load(bare, plan=plan, on_upload=lambda done, total: seen.append((done, total))) as model:
            total = model.plan.texture_bytes(model.device.limits.max_texture_size, "weight")
            assert plan == "fast" or total == bare.stat().st_size - 28
        assert [entry[1] for entry in seen] == [total] * len(seen)
        assert sorted(seen) == seen
        assert seen[-1] == (total, total)

    def test_an_error_during_the_upload_comes_through_and_leaves_nothing_open(self, bare: Path) -> None:
        def fail(done: int, total: int) -> None:
            raise RuntimeError("stop here")

        with open_device() as device:
            with pytest.raises(RuntimeError, match="stop here"):
                glinfer.load(bare, device=device, on_upload=fail)
            assert sum(device.live_objects().values()) == 0

    @pytest.mark.parametrize(
        ("option", "error"),
        [
            ({"plan": "fastest"}, "there is no plan 'fastest'"),
            ({"weights": "f64"}, "there is no weight format 'f64'; expected one of f32, "),
            ({"plan": "reference", "weights": "q8"}, "the reference plan keeps its weights in f32, found q8"),
            ({"plan": "reference", "kernels": KernelOptions()}, "kernels shape the fast plan's passes"),
            ({"gelu": "relu"}, "expected 'tanh' or 'erf'"),
            ({"api": "vulkan"}, "unknown OpenGL flavour"),
            ({"device": "first"}, "unknown device"),
            ({"device": 63}, "there is no EGL device 63"),
            ({"tokenizer": "/nowhere/x.bpe"}, "/nowhere/x.bpe"),
            ({"tokenizer": 3}, "the tokenizer is int; expected a path"),
            ({"tokenizer": ""}, "the tokenizer is an empty text; expected a path"),
            ({"limits": "webgl2"}, r"limits is 'webgl2'; expected None or glinfer\.gl\.context\.Limits, such as"),
            ({"limits": Limits(8, 4, 16, 16384, 1.0)}, "largest texture here is 8×8"),
            ({"limits": Limits(2048, 4, 1, 16384, 1.0)}, "samples"),
        ],
    )
    def test_options_that_cannot_be_are_one_line(self, bare: Path, option: dict[str, Any], error: str) -> None:
        with pytest.raises(GlinferError, match=error) as caught:
            glinfer.load(bare, **option)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("path", [None, 3, b"shakespeare", ["shakespeare"], ""])
    def test_what_is_no_path_is_one_line(self, path: Any) -> None:
        with pytest.raises(InputError, match=r"\Athe model is [^\n]*; expected a path[^\n]*\Z"):
            glinfer.load(path)

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_a_weight_that_is_no_number_names_the_tensor(self, bare: Path, tmp_path: Path, value: float) -> None:
        data = bytearray(bare.read_bytes())
        data[28 + 4 * 35 : 28 + 4 * 36] = np.float32(value).tobytes()  # [1, 3] of the first tensor, 32 wide
        (tmp_path / "bad.gab").write_bytes(data)
        with pytest.raises(FormatError, match=r"transformer\.wte\.weight.*\[1, 3\]"):
            glinfer.load(tmp_path / "bad.gab")

    @tiered("plan", ["fast", "reference"])
    def test_gelu_changes_the_result_a_little(self, bare: Path, plan: str) -> None:
        results = []
        for form in (None, "tanh", "erf"):
            with glinfer.load(bare, gelu=form, plan=plan) as model:
                results.append(model.logits(PROMPT))
        assert np.array_equal(results[0], results[1])
        assert 0 < np.abs(results[1] - results[2]).max() < 1e-2

    @tiered("plan", ["fast", "reference"], keep=0)
    def test_small_textures_give_the_same_numbers(self, bare: Path, plan: str) -> None:
        results = []
        smallest = 112 if plan == "reference" else 320
        for limits in (None, Limits.webgl2_minimum(), Limits(smallest, 4, 16, 16384, 1.0)):
            with glinfer.load(bare, limits=limits, plan=plan) as model:
                results.append(model.logits(PROMPT))
        if plan == "reference":
            assert np.array_equal(results[0], results[1])
        for result in results[1:]:
            np.testing.assert_allclose(result, results[0], atol=1e-5)

    @pytest.mark.slow
    def test_kernels_and_weights_can_be_chosen(self, bare: Path) -> None:
        results = []
        for options in ({}, {"kernels": KernelOptions(quad=False)}, {"weights": "f16"}, {"plan": "reference"}):
            with glinfer.load(bare, **options) as model:
                results.append(model.logits(PROMPT))
                assert model.weights == options.get("weights", "f32")
                assert model.kernels == options.get("kernels", model.kernels)
        np.testing.assert_allclose(results[1], results[0], atol=1e-5)
        np.testing.assert_allclose(results[3], results[0], atol=1e-5)
        assert 1e-5 < np.abs(results[2] - results[0]).max() < 1e-2
