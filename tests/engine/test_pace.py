"""Runs on slow GPUs: as many rows as the slowest draw computes in 50 ms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_models import of_family, opened
from tiny_embedders import TEXTS, write_embedder

import glinfer
from glinfer.engine import pace
from glinfer.engine.pace import Pace
from glinfer.engine.prefill import Chunks
from glinfer.engine.score import TextScorer
from glinfer.gl.context import open_device
from glinfer.kernels.fused.score import RowScores

pytestmark = pytest.mark.gl
IDS = [place % 50 for place in range(40)]


def test_a_slow_gpu_runs_small_pieces_with_the_same_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []
    run = Chunks.run

    def noted(chunks: Chunks, *args: object, **options: object) -> int:
        pieces.append(run(chunks, *args, **options))  # type: ignore[arg-type]
        return pieces[-1]

    monkeypatch.setattr(Chunks, "run", noted)
    monkeypatch.setattr(pace, "SLOW", 1.0)
    with open_device() as device, opened(of_family("llama"), device=device) as model:
        expected = model.logits(IDS)
        whole = pieces.copy()
        assert device.rate is None, "software renderers have no limit"
        device.in_main_memory = False
        model.logits(IDS[::-1][:1])  # forgets the caches
        assert np.array_equal(model.logits(IDS), expected)
        cut = pieces[len(whole) :]
        assert sum(cut) == sum(whole) == len(IDS)
        assert cut[0] == model.engine.options.kernels.rows_per_draw, "the first piece measures the rate"
        assert device.rate is not None
        device.rate = 1.0
        model.logits(IDS[::-1])
        assert device.rate > 1.0
        device.rate = 1e30
        model.logits(IDS)  # nothing is cached of it
        assert (pieces[-1], device.rate) == (whole[-1], 1e30), "a piece that was not cut is not measured"


def test_scores_are_cut_and_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "SLOW", 1.0)
    with open_device() as device, opened(of_family("llama"), device=device) as model:
        texts = [IDS, IDS[:9], IDS[::-1]]
        expected = model.score(texts)
        pieces: list[object] = []
        run = TextScorer._run

        def noted(scorer: TextScorer, *args: Any) -> RowScores:
            pieces.extend(args[1])
            return run(scorer, *args)

        monkeypatch.setattr(TextScorer, "_run", noted)
        device.in_main_memory = False
        found = model.score(texts)
        for ours, theirs in zip(found, expected, strict=True):
            assert np.array_equal(ours.logprobs, theirs.logprobs)
        assert device.rate is not None
        assert device.rate > 1.0
        assert len(pieces) > len(texts)
        device.rate = 1.0
        model.score([IDS[:2]])
        assert device.rate == 1.0, "a run of a token is too short to measure"


def test_texts_to_embed_are_spread_over_more_runs(tmp_path: Path) -> None:
    write_embedder(tmp_path / "bert")
    with open_device() as device, glinfer.load(tmp_path / "bert", device=device) as model:
        texts = TEXTS * 2
        expected, runs = model.embed(texts), list[int]()
        device.in_main_memory = False
        device.rate = 1.0
        found = model.embed(texts, on_progress=lambda done, _: runs.append(done))
        assert np.array_equal(found, expected)
        assert runs[0] == 1, "a text is not cut"
        assert device.rate > 1.0
        device.rate = 1e30
        assert np.array_equal(model.embed(texts, on_progress=lambda done, _: runs.append(done)), expected)
        assert (runs[-1], device.rate) == (len(texts), 1e30)


def test_rows_follow_the_rate() -> None:
    with open_device() as device, opened(of_family("llama"), device=device) as model:
        made = Pace(model.engine.bound, 8)
        assert made.rows(512) == 512
        device.in_main_memory = False
        for seconds, rows in ((1.0, 8), (0.05 / 8.5, 8), (0.05 / 30, 24), (1e-9, 512)):
            device.rate = made._largest / seconds
            assert made.rows(512) == rows


def test_little_work_waits_in_the_queue_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    # With all runs of a long text pending, NVIDIA's driver resets the context.
    monkeypatch.setattr(Pace, "rows", lambda self, most: min(most, 8))
    with open_device() as device, opened(of_family("llama"), device=device) as model:
        pending: list[int] = []
        most: list[int] = []
        fence, wait_for, delete = device.raw.fence, device.raw.wait_for, device.raw.delete_fence

        def fenced() -> int:
            pending.append(fence())
            most.append(len(pending))
            return pending[-1]

        def waited(first: int) -> None:
            assert first == pending.pop(0)
            wait_for(first)

        def deleted(last: int) -> None:
            if last in pending:
                pending.remove(last)
            delete(last)

        monkeypatch.setattr(device.raw, "fence", fenced)
        monkeypatch.setattr(device.raw, "wait_for", waited)
        monkeypatch.setattr(device.raw, "delete_fence", deleted)
        device.in_main_memory = False
        model.logits(IDS)
        assert most == [1, 2, 2, 2, 2], "five runs of eight rows"
        most.clear()
        with model.session() as session:
            session.prefill(IDS[:4])
            session.generate_ids(9)
        assert most == [2, 2, 2, 2], "the prompt, and each fourth token"
        device.close()
        assert not pending
