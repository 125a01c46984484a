from __future__ import annotations

import pytest
from worker_here import answered_here

from glinfer.text import templates


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates are rendered in this process."""
    monkeypatch.setattr(templates, "answer_of", answered_here)
