"""What tests of qa/ share, and what those of fuzzing need."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from scripted_models import SMALL, random_file

if TYPE_CHECKING:
    from glinfer.tensors.device import Device

# GGUF files are among those that are damaged, and are read with this package.
collect_ignore_glob = [] if importlib.util.find_spec("gguf") else ["test_fuzz*.py"]

# The library's threads and the processes that render templates do not go together without a warning.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``small.gab`` (2 blocks, 4 heads, 300 tokens, context 64) with its tokenizer ``small.bpe`` beside it."""
    from glinfer.engine.random_model import demo_tokenizer
    from glinfer.formats import write_bpe

    path = random_file(tmp_path_factory.mktemp("small") / "small.gab", SMALL)
    write_bpe(demo_tokenizer(300), path.with_suffix(".bpe"))
    return path


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with no tokenizer anywhere near."""
    return random_file(tmp_path_factory.mktemp("bare") / "bare.gab", SMALL)


@pytest.fixture
def dev() -> Iterator[Device]:
    """A device for tensors."""
    from glinfer.tensors.device import Device

    with Device() as opened:
        yield opened
