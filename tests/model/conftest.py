"""Models that several test modules share; all are files, opened and closed by the tests themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from goldens import ModelWriter
from scripted_models import SMALL, random_file

from glinfer.engine.random_model import demo_tokenizer
from glinfer.formats import write_bpe


@pytest.fixture(scope="session")
def cache_home(tmp_path_factory: pytest.TempPathFactory, golden_model: ModelWriter) -> Path:
    """A cache directory in which the demo finds its 101 MB model: Gab's full shape, seed 2."""
    home = tmp_path_factory.mktemp("cache")
    folder = home / "glinfer" / "demo"
    folder.mkdir(parents=True)
    (folder / "random.gab").hardlink_to(golden_model("full"))
    return home


@pytest.fixture(scope="session")
def full_file(cache_home: Path) -> Path:
    """The full-size model of the goldens, where the demo finds it."""
    return cache_home / "glinfer" / "demo" / "random.gab"


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``small.gab`` (2 blocks, 4 heads, 300 tokens, context 64) with its tokenizer ``small.bpe`` beside it."""
    path = random_file(tmp_path_factory.mktemp("small") / "small.gab", SMALL)
    write_bpe(demo_tokenizer(300), path.with_suffix(".bpe"))
    return path


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with no tokenizer anywhere near."""
    return random_file(tmp_path_factory.mktemp("bare") / "bare.gab", SMALL)
