from __future__ import annotations

import pytest
from worker_here import answers_here

from glinfer.text import template_worker, templates


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates are rendered in this process."""
    monkeypatch.setattr(templates, "answer_of", answers_here(template_worker))
