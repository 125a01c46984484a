from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_templates import ENDLESS_FOR_SOME, runs
from hub_fixtures import cache, gguf, hub, servers
from running_server import Running, running
from template_models import write_other
from tiny_embedders import write_bert
from worker_here import answered_here

from glinfer.text import templates

__all__ = ["cache", "gguf", "hub", "servers"]


@pytest.fixture(scope="session")
def marker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is there if a template has run a command."""
    return tmp_path_factory.mktemp("marker") / "pwned"


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one large file."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "large.bin").write_bytes(bytes(1 << 20))
    return folder


@pytest.fixture(scope="session")
def attacked(tmp_path_factory: pytest.TempPathFactory, small: Path, marker: Path, page: Path) -> Iterator[Running]:
    """``small`` continues texts, ``chatty`` and ``endless`` have templates, and that of ``ranker`` means harm."""
    folder = tmp_path_factory.mktemp("attacked")
    for name in ("chatty", "endless"):
        (folder / name).mkdir()
    chatty, _ = write_other(folder / "chatty", {}, context=64)
    endless, _ = write_other(folder / "endless", {}, ENDLESS_FOR_SOME, context=64)
    ranker = folder / "ranker"
    write_bert(ranker, architectures=["BertForSequenceClassification"], id2label={"0": "x"})
    (ranker / "chat_template.jinja").write_text(runs(marker))
    models = [("small", small), ("chatty", chatty), ("endless", endless), ("ranker", ranker)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(templates, "answer_of", answered_here)  # while templates are tried out, which takes processes
        with running(*models, slots=2, page=page) as found:
            patch.undo()
            yield found
