"""Published GGUF files whose packages are installed, against the recorded figures of transformers and llama.cpp."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import glinfer
from tests.goldens import recorded
from tests.goldens.published import EVERY, GREEDY, PUBLISHED, TEXTS, published_file

pytestmark = [pytest.mark.gl, pytest.mark.slow]


@pytest.mark.parametrize("name", PUBLISHED)
def test_ids_logits_and_greedy_tokens(name: str, tmp_path: Path) -> None:
    path, prompt, golden = published_file(name, tmp_path), PUBLISHED[name].prompt, recorded("published")[name]
    ids = golden["special"][0]
    whole = [*ids, *golden["greedy"]]
    with glinfer.load(path, context=128, weights="file") as model:
        tokenizer = model.require_tokenizer()
        assert [tokenizer.encode(text) for text in (prompt, *TEXTS)] == golden["special"]
        assert [tokenizer.encode(text, allow_special=False) for text in TEXTS] == golden["plain"]
        assert [tokenizer.decode(each) for each in golden["plain"]] == list(TEXTS)
        assert model.generate(ids, max_tokens=GREEDY, temperature=0) == golden["greedy"]
        for count, expected, size in zip((len(ids), len(whole)), golden["logits"], golden["range"], strict=True):
            assert np.abs(model.logits(whole[:count])[::EVERY] - expected).max() < 1e-5 * size
        (exact,) = model.score([whole])
    with glinfer.load(path, context=128) as fast:
        (found,) = fast.score([whole])
    assert abs(found.total / exact.total - 1) < 0.02, "in the default format"
