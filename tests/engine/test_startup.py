"""What loading does once for all who ask, and what it puts off until it is needed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tiny_models import in_floats, tiny

import glinfer
from glinfer.engine.cached import CachedSession
from glinfer.engine.prefill import MAX_SINGLE_TOKENS, MAX_SINGLE_TOKENS_BEFORE
from glinfer.formats import save_checkpoint
from glinfer.formats.gguf import file as gguf_file
from glinfer.formats.gguf.file import gguf_files_read_once
from glinfer.formats.gguf.split import read_gguf_file

pytestmark = pytest.mark.gl


@pytest.fixture
def gguf_model(tmp_path: Path) -> Path:
    pytest.importorskip("gguf", reason="gguf is not installed")
    path = tmp_path / "small.gguf"
    save_checkpoint(in_floats(tiny("llama")), path)
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


class TestOneParse:
    def test_of_a_gguf_file_for_weights_tokenizer_stops_and_sampling(self, gguf_model: Path, parsed: list[str]) -> None:
        with glinfer.load(gguf_model) as model:
            assert parsed == ["small.gguf"]
            assert model.verify_textures().ok, "the file's stamp is known, and it is read again"
            assert parsed == ["small.gguf"] * 2

    def test_but_a_file_that_was_written_again_is_read_again(self, gguf_model: Path, parsed: list[str]) -> None:
        with gguf_files_read_once():
            first = read_gguf_file(gguf_model)
            assert read_gguf_file(gguf_model) is first
            os.utime(gguf_model, ns=(1, 1))
            assert read_gguf_file(gguf_model) is not first
        assert read_gguf_file(gguf_model) is not first
        assert len(parsed) == 3

    def test_nothing_of_it_is_kept_behind_the_block(self, gguf_model: Path) -> None:
        with gguf_files_read_once():
            read_gguf_file(gguf_model)
        assert gguf_file._read.get() is None


class TestFirstPrompts:
    def test_short_ones_do_without_the_chunk_plan(self, small: Path) -> None:
        prompt = list(range(5, 5 + MAX_SINGLE_TOKENS + 1))
        with glinfer.load(small) as model, model.session() as session:
            assert isinstance(session, CachedSession)
            programs = model.bound.program_count
            for _ in range(MAX_SINGLE_TOKENS_BEFORE // len(prompt)):
                session.prefill(prompt)
                assert (session._chunks, model.bound.program_count) == ({}, programs)
                session.rewind(len(prompt))
            session.prefill(prompt)
            assert session._chunks, "many short ones are worth it"
            with model.session() as other:
                assert isinstance(other, CachedSession)
                other.prefill(prompt)
                assert other._chunks, "its shaders are there now"

    def test_long_ones_are_chunks_at_once(self, small: Path) -> None:
        with glinfer.load(small) as model, model.session() as session:
            assert isinstance(session, CachedSession)
            session.prefill(range(MAX_SINGLE_TOKENS_BEFORE + 2))
            assert session._chunks
