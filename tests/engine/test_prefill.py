"""Prompts taken in by chunks: the same numbers as token by token, whatever the chunks, and nothing left behind."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import agree
from scripted_models import random_file
from tiny_models import in_floats, tiny
from token_streams import random_ids

import glinfer
from glinfer.engine.model import Model
from glinfer.engine.prefill import MAX_SINGLE_TOKENS, Prefill
from glinfer.engine.run.cached import CachedSession
from glinfer.formats import save_checkpoint
from glinfer.gl.context import Limits
from glinfer.kernels.options import KernelOptions
from glinfer.lower.options import PlanOptions
from glinfer.program.session import Session

pytestmark = [pytest.mark.gl, pytest.mark.usefixtures("chunk_at_once")]

CONTEXT = 64
Floats = np.ndarray[Any, Any]
IDS = random_ids(90, vocab=131)


@pytest.fixture(scope="module")
def pieces(shared_gab: Model, small: Path) -> Iterator[Model]:
    """The small model, which takes prompts in by 16 tokens."""
    with glinfer.load(small, kernels=dataclasses.replace(shared_gab.kernels, chunk=16)) as opened:
        yield opened


def stepped(model: Model, ids: list[int]) -> Floats:
    """The logits after tokens that were run one by one."""
    with model.session() as session:
        for token in ids:
            session.step(token)
        assert isinstance(session, CachedSession)
        assert not session._companions.chunks, "the fast plan alone"
        return session.logits()


def chunked(model: Model, ids: list[int]) -> Floats:
    """The logits after tokens that came as one prompt."""
    with model.session() as session:
        session.prefill(ids)
        assert isinstance(session, CachedSession)
        assert bool(session._companions.chunks) == (len(ids) > MAX_SINGLE_TOKENS)
        return session.logits()


@pytest.fixture
def chunk_runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(position of the first token, how many tokens) of every run of the plan ``chunk``."""
    seen: list[tuple[int, int]] = []
    run = Session.run

    def spy(self: Session, values: Any, **options: Any) -> int:
        if self.plan.name == "chunk":
            seen.append((values["strip_first"], values["rows"]))
        return run(self, values, **options)

    monkeypatch.setattr(Session, "run", spy)
    return seen


class TestTheSameNumbers:
    def test_in_one_chunk_and_in_several(self, model: Model, pieces: Model) -> None:
        for made, tokens in itertools.product((model, pieces), (MAX_SINGLE_TOKENS + 1, 16, 17, CONTEXT)):
            assert agree(chunked(made, IDS[:tokens]), stepped(made, IDS[:tokens])), tokens


@pytest.mark.slow
def test_a_context_beyond_any_edge_of_a_texture(tmp_path: Path) -> None:
    """4,500 tokens: more than 2048 or 4096 texels in a line, and more scores than fit a texture in one chunk."""
    path = random_file(tmp_path / "long.gab", "vocab=40,dim=16,heads=2,blocks=2,context=4500")
    ids, found = random_ids(4400, vocab=40), []
    for limits in (None, Limits.webgl2_minimum()):
        with glinfer.load(path, limits=limits) as model:
            found.append(chunked(model, ids))
            assert np.isfinite(found[-1]).all()
            rows = model.engine._prefill.plan().max_rows
            assert rows == (512 if limits is None else 256), "or this test shows nothing of smaller chunks"
            assert len(model.score([ids])[0].logprobs) == 4399
    assert agree(found[0], found[1])


class TestSessions:
    """All with chunks of 16 tokens."""

    def test_only_new_tokens_are_run(self, pieces: Model, chunk_runs: list[tuple[int, int]]) -> None:
        with pieces.session() as session:
            session.hold(IDS[:50])
            assert chunk_runs == [(0, 16), (16, 16), (32, 16), (48, 2)]
            chunk_runs.clear()
            ids = [*IDS[:20], *random_ids(30, 2, 131)]
            session.hold(ids)
            assert chunk_runs == [(20, 16), (36, 14)]
            assert agree(session.logits(), stepped(pieces, ids))
            chunk_runs.clear()
            session.hold([*ids, 7, 8, 9])
            assert chunk_runs == [], "two are run, one by one, and the last one waits"
            session.hold([*ids, 7, 8, 9, 10, 11, 12, 13])
            assert chunk_runs == [(52, 5)]
            assert agree(session.logits(), stepped(pieces, [*ids, 7, 8, 9, 10, 11, 12, 13]))

    def test_more_than_the_context_holds(self, model: Model, pieces: Model) -> None:
        for made, tokens in ((model, CONTEXT + 1), (pieces, CONTEXT), (pieces, CONTEXT + 1), (pieces, 3 * CONTEXT)):
            ids = random_ids(tokens, tokens, 131)
            with made.session() as session, made.session() as other:
                session.prefill(ids)
                for token in ids:
                    other.step(token)
                assert (session.ids, session.dropped) == (other.ids, other.dropped)
                assert (session.dropped > 0) == (tokens > CONTEXT)
                assert agree(session.logits(), other.logits())
                assert session.generate_ids(9) == other.generate_ids(9)

    def test_a_rewind_into_a_chunk(self, pieces: Model) -> None:
        for count in (1, 13, 16, 39):
            with pieces.session() as session:
                session.prefill(IDS[:40])
                session.rewind(count)
                assert agree(session.logits(), stepped(pieces, IDS[: 40 - count])), count
                new = random_ids(20, count, 131)
                session.prefill(new)
                assert agree(session.logits(), stepped(pieces, [*IDS[: 40 - count], *new])), count


def test_few_rows_of_experts_have_a_plan_of_their_own() -> None:
    kernels = KernelOptions(product_table="llvmpipe", rows_per_draw=4)
    config = tiny("qwen3_moe", hidden_size=96, intermediate_size=96, max_position_embeddings=128)
    prefill = Prefill(PlanOptions(config, "f32", kernels, 2048))
    few = prefill.rows_for(1)
    assert 9 < few < 100, "or this test shows nothing"
    assert [prefill.rows_for(tokens) for tokens in (few, few + 1)] == [few, 128]
    for rows in (few, 128):
        assert any(draw.op == "group_experts" for draw in prefill.plan(rows).draws) == (rows == 128)


@pytest.mark.slow
def test_both_plans_of_experts_give_the_same_bits(model: Model, tmp_path: Path) -> None:
    """Each row by itself there, and rows of one expert together in the other: the same bits on llvmpipe."""
    config = tiny("qwen3_moe", hidden_size=96, intermediate_size=96, max_position_embeddings=128)
    save_checkpoint(in_floats(config), tmp_path / "model.safetensors")
    ids = random_ids(100, vocab=config.vocab_size)
    kernels = dataclasses.replace(model.kernels, product_table="llvmpipe", rows_per_draw=4)
    with glinfer.load(tmp_path / "model.safetensors", kernels=kernels) as model:
        prefill = model.engine._prefill
        for tokens, rows in ((9, prefill.rows_for(1)), (100, 128)):
            with model.session() as session, model.session() as alone:
                session.prefill(ids[:tokens])
                found = session.logits()
                assert set(session._companions.chunks) == {rows}
                for token in ids[:tokens]:
                    alone.step(token)
                assert agree(found, alone.logits())
        assert model.generate([ids, ids[:9]], max_tokens=3, temperature=0) == [
            model.generate(each, max_tokens=3, temperature=0) for each in (ids, ids[:9])
        ]
