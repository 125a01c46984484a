from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from running_server import END, Running, Steps, opening, running, speaker
from scripted_models import SMALL, random_file

from glinfer.engine.random_model import demo_tokenizer
from glinfer.formats import write_bpe


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """``shakespeare``; ``speaker``, which answers "hi" with "héy"; and the random ``small``; three places each."""
    folder = tmp_path_factory.mktemp("served")
    path = speaker(folder / "speaker.gab", [*"héy".encode(), END], after=len(opening("hi")))
    small = random_file(folder / "small.gab", SMALL)
    write_bpe(demo_tokenizer(300), small.with_suffix(".bpe"))
    with running(("shakespeare", "shakespeare"), ("speaker", path), ("small", small), slots=3) as found:
        yield found


@pytest.fixture(scope="session")
def client(served: Running) -> Iterator[openai.OpenAI]:
    with served.client() as made:
        yield made


@pytest.fixture
def speaking(tmp_path: Path) -> Path:
    """The file of such a speaker."""
    return speaker(tmp_path / "speaker.gab", [*"héy".encode(), END], after=len(opening("hi")))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """Held until the test lets them go."""
    made = Steps(monkeypatch)
    yield made
    made.go()
