"""``python -m qa bench-web``: what is compared before it is timed, what is left out, and the prompts of wllama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from glinfer.errors import InputError
from glinfer.text.tokenizer import Tokenizer
from glinfer.text.tokenizers.gguf import gguf_tokenizer
from qa import bench_web


def _ways(weights: str = "f32") -> list[dict[str, Any]]:
    return [
        {"name": "glinfer", "peer": "glinfer", "model": "/site", "weights": weights},
        {"name": "other", "peer": "wllama", "model": "/wllama", "weights": weights},
    ]


def _told(*tops: float) -> dict[str, Any]:
    sample = {"seconds": 3.0, "processors": None}
    parts = {"prompt": [sample], "decode": [sample, sample, {**sample, "seconds": 9.0}], "ids": [7, 8]}
    return {"ways": [{"top": [[7, top], [8, -9.0]], **parts} for top in tops]}


def test_medians_and_differences_are_added() -> None:
    ours, other = bench_web._compared(_told(-0.5, -0.505), _ways(), 3)["ways"]
    assert other["difference"] == pytest.approx(0.005)
    assert other["same_tokens"] == 2
    assert ours["difference"] == 0
    assert (ours["prompt_seconds"]["median"], ours["decode_processors"]) == (3.0, None)
    assert ours["decode_seconds"] == {"median": 1.0, "fastest": 1.0, "slowest": 3.0}


def test_an_engine_that_computes_something_else_is_not_timed() -> None:
    with pytest.raises(InputError, match="other computes something else"):
        bench_web._compared(_told(-0.5, -1.0), _ways(), 3)
    bench_web._compared(_told(-0.5, -1.0), _ways("q8"), 3)


def test_what_is_not_installed_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_web, "_packages", lambda: tmp_path)
    (tmp_path / "@wllama" / "wllama").mkdir(parents=True)
    found, left_out = bench_web._installed(["tfjs", "wllama"])
    assert (found, left_out) == (["wllama"], [f"tfjs, without @tensorflow/tfjs-core; run: {bench_web._INSTALL}"])
    with pytest.raises(InputError, match="no peer 'nosuch'"):
        bench_web._installed(["nosuch"])


def test_ids_are_spelt_for_wllama() -> None:
    ids = [7, 11, 3, 7]
    tokenizer = Tokenizer(gguf_tokenizer(bench_web._spelt_ids(ids, 16), "the metadata"))
    assert tokenizer.encode("".join(f"<|{token}|>" for token in ids), allow_special=True) == ids
