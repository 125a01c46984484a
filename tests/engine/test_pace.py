"""Pieces of a prompt on slow GPUs: as many rows as the slowest draw computes in 50 ms."""

from __future__ import annotations

import numpy as np
import pytest
from made_models import of_family, opened

from glinfer.engine import pace
from glinfer.engine.pace import Pace
from glinfer.engine.prefill import Chunks
from glinfer.gl.context import open_device

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


def test_rows_follow_the_rate() -> None:
    with open_device() as device, opened(of_family("llama"), device=device) as model:
        made = Pace(model.engine.bound, 8)
        assert made.rows(512) == 512
        device.in_main_memory = False
        for seconds, rows in ((1.0, 8), (0.05 / 8.5, 8), (0.05 / 30, 24), (1e-9, 512)):
            device.rate = made._largest / seconds
            assert made.rows(512) == rows
