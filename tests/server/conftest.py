from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from running_server import END, Running, Steps, opening, running, speaker

from glinfer.server.auth import Access


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory, small: Path) -> Iterator[Running]:
    """``small``, which is random, and ``speaker`` of the same shape, which answers "hi" with "héy"; two slots each."""
    path = speaker(tmp_path_factory.mktemp("served") / "speaker.gab", [*"héy".encode(), END], after=len(opening("hi")))
    with running(("small", small), ("speaker", path), slots=2) as found:
        yield found


@pytest.fixture(scope="session")
def client(served: Running) -> Iterator[openai.OpenAI]:
    with served.client() as made:
        yield made


@pytest.fixture(scope="session")
def keyed(small: Path) -> Iterator[Running]:
    """A server with two keys, and the page that comes with glinfer."""
    with running(("small", small), access=Access(keys=("sésame", "two")), slots=2) as found:
        yield found


@pytest.fixture(scope="session")
def locked(tmp_path_factory: pytest.TempPathFactory, small: Path) -> Iterator[Running]:
    """One with other keys, a further host, a friendly site, and a page, from which a link leads to a secret beside."""
    folder = tmp_path_factory.mktemp("paged")
    (folder / "secret").write_text("the secret")
    page = folder / "page"
    page.mkdir()
    (page / "index.html").write_text("<!doctype html><title>hello</title>")
    (page / "app.js").write_text("export {};")
    (page / "link").symlink_to(folder / "secret")
    access = Access(keys=("one", "two"), hosts=("my.example",), origins=("https://friend.example",))
    with running(("small", small), access=access, page=page, slots=2) as found:
        yield found


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """They go on until the test holds them, as a server runs a request before it is ready."""
    made = Steps(monkeypatch)
    yield made
    made.go()
