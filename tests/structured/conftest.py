from __future__ import annotations

import pytest
from worker_here import answered_here

from glinfer.structured import compiler


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Structures are tried in this process before they are compiled."""
    monkeypatch.setattr(compiler, "answer_of", answered_here)
