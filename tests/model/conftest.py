"""Models that several test modules share; all are files, opened and closed by the tests themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted_models import SMALL, random_file

from glinfer.config import ModelConfig
from glinfer.formats import random_checkpoint, save_checkpoint, write_bpe
from glinfer.tools.demo import demo_tokenizer


@pytest.fixture(scope="session")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory in which the demo finds its 101 MB model: Gab's full shape, seed 2."""
    home = tmp_path_factory.mktemp("cache")
    folder = home / "glinfer" / "demo"
    folder.mkdir(parents=True)
    save_checkpoint(random_checkpoint(ModelConfig.from_options(""), seed=2), folder / "random.gab")
    return home


@pytest.fixture(scope="session")
def full_file(cache_home: Path) -> Path:
    """The full-size model that the goldens call "full"."""
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
