"""``python -m qa`` inside the process of the tests."""

from __future__ import annotations

from collections.abc import Sequence

from glinfer.cli import app
from qa.__main__ import qa


def run(arguments: Sequence[str]) -> int:
    """Run a command of the group and return its exit status."""
    return app.run(arguments, qa)
