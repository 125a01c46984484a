"""``glinfer.load``: tokenizers given or found, options good and bad, weights that are no numbers, small textures."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_models import of_family
from tiers import tiered

import glinfer
from glinfer.engine.prefill import MAX_SINGLE_TOKENS, MAX_SINGLE_TOKENS_BEFORE
from glinfer.engine.random_model import demo_tokenizer
from glinfer.engine.run.cached import CachedSession
from glinfer.errors import FormatError, GlinferError, InputError
from glinfer.formats import save_checkpoint, write_bpe
from glinfer.formats.gguf import file as gguf_file
from glinfer.formats.gguf.file import gguf_files_read_once
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.gl.context import Limits
from glinfer.kernels.options import KernelOptions
from glinfer.lower.plans import PLANS
from glinfer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.gl

PROMPT = [13, 132, 251, 70]


REFUSED: list[tuple[dict[str, Any], str]] = [
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
    ({"tokenizer": ""}, "the tokenizer is empty; expected a path"),
    ({"limits": "webgl2"}, r"limits is 'webgl2'; expected None or glinfer\.gl\.context\.Limits, such as"),
    ({"limits": Limits(8, 4, 16, 16384, 1.0)}, "largest texture here is 8×8"),
    ({"limits": Limits(2048, 4, 1, 16384, 1.0)}, "samples"),
]


class TestLoading:
    def test_which_tokenizer_beside_a_checkpoint_is_taken(self, bare: Path, tmp_path: Path) -> None:
        """Its own name before model.bpe, but only if it fits; a string does as a path."""
        path = Path(shutil.copy(bare, tmp_path / "any name.v2.gab"))
        (tmp_path / "model.bpe").write_bytes(b"not read at all")
        write_bpe(demo_tokenizer(300), path.with_suffix(".bpe"))
        with glinfer.load(path) as model:
            assert model.tokenizer is not None
            assert model.tokenizer.vocab_size == model.config.vocab_size == 300
        write_bpe(demo_tokenizer(290), path.with_suffix(".bpe"))
        write_bpe(demo_tokenizer(300), tmp_path / "model.bpe")
        with glinfer.load(str(path)) as model:
            assert model.tokenizer is not None
        path.with_suffix(".bpe").unlink()
        with glinfer.load(path) as model:
            assert model.tokenizer is not None

    def test_a_tokenizer_given_may_be_a_path_a_string_or_a_tokenizer(self, bare: Path, tmp_path: Path) -> None:
        path = tmp_path / "words"
        write_bpe(demo_tokenizer(300), path)
        texts = set()
        for given in (path, str(path), Tokenizer.from_file(path)):
            with glinfer.load(bare, tokenizer=given) as model:
                texts.add(model.generate("Once", max_tokens=4, temperature=0))
        assert len(texts) == 1

    def test_files_given_in_each_others_place_are_recognised(self, small: Path) -> None:
        words = small.with_suffix(".bpe")
        for given in (words, small):
            with pytest.raises(FormatError, match="this is a"):
                glinfer.load(given, tokenizer=small)

    @pytest.mark.parametrize("plan", PLANS)
    def test_progress_of_the_upload_reaches_the_end_and_never_falls(self, bare: Path, plan: str) -> None:
        seen: list[tuple[int, int]] = []
        with glinfer.load(bare, plan=plan, on_upload=lambda done, total: seen.append((done, total))) as model:
            total = model.plan.texture_bytes(model.device.limits.max_texture_size, "weight")
            assert plan == "fast" or total == bare.stat().st_size - 28
        assert [entry[1] for entry in seen] == [total] * len(seen)
        assert sorted(seen) == seen
        assert seen[-1] == (total, total)

    def test_options_and_paths_that_cannot_be_are_one_line(self, bare: Path) -> None:
        for option, error in REFUSED:
            with pytest.raises(GlinferError, match=error):
                glinfer.load(bare, **option)
        for path in (None, 3, b"shakespeare", ["shakespeare"], ""):
            with pytest.raises(InputError, match=r"\Athe model is [^\n]*; expected a path[^\n]*\Z"):
                glinfer.load(path)  # type: ignore[arg-type]

    @tiered("plan", PLANS)
    def test_gelu_changes_the_result_a_little(self, bare: Path, plan: str) -> None:
        results = []
        for form in (None, "tanh", "erf"):
            with glinfer.load(bare, gelu=form, plan=plan) as model:
                results.append(model.logits(PROMPT))
        assert np.array_equal(results[0], results[1])
        assert 0 < np.abs(results[1] - results[2]).max() < 1e-2


# Done once for all who ask, or put off until it is needed


@pytest.fixture
def gguf_model(tmp_path: Path) -> Path:
    pytest.importorskip("gguf", reason="gguf is not installed")
    path = tmp_path / "small.gguf"
    save_checkpoint(of_family("llama"), path)
    return path


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the GGUF files that were parsed, once for each time."""
    seen: list[str] = []
    contents = gguf_file._contents

    def spy(*given: Any) -> Any:
        seen.append(Path(given[-1]).name)
        return contents(*given)

    monkeypatch.setattr(gguf_file, "_contents", spy)
    return seen


def test_a_gguf_file_is_parsed_once_for_all_who_ask(gguf_model: Path, parsed: list[str]) -> None:
    with glinfer.load(gguf_model) as model:
        assert parsed == ["small.gguf"]
        assert model.verify_textures().ok, "the file's stamp is known, and it is read again"
        assert parsed == ["small.gguf"] * 2


def test_a_file_that_was_written_again_is_read_again(gguf_model: Path, parsed: list[str]) -> None:
    with gguf_files_read_once():
        first = read_gguf_file(gguf_model)
        assert read_gguf_file(gguf_model) is first
        os.utime(gguf_model, ns=(1, 1))
        assert read_gguf_file(gguf_model) is not first
    assert read_gguf_file(gguf_model) is not first
    assert len(parsed) == 3
    assert gguf_file._read.get() is None, "nothing of it is kept"


class TestFirstPrompts:
    def test_short_ones_do_without_the_chunk_plan(self, small: Path) -> None:
        prompt = list(range(5, 5 + MAX_SINGLE_TOKENS + 1))
        with glinfer.load(small) as model, model.session() as session:
            assert isinstance(session, CachedSession)
            programs = model.bound.program_count
            for _ in range(MAX_SINGLE_TOKENS_BEFORE // len(prompt)):
                session.prefill(prompt)
                assert (session._companions.chunks, model.bound.program_count) == ({}, programs)
                session.rewind(len(prompt))
            session.prefill(prompt)
            assert session._companions.chunks, "many short ones are worth it"
            with model.session() as other:
                assert isinstance(other, CachedSession)
                other.prefill(prompt)
                assert other._companions.chunks, "its shaders are there now"
