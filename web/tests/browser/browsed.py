"""A page that is open in a browser, which does what it is told, step by step."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).with_name("steps.mjs")
WEB = DRIVER.parents[2]
EXPECTED = "GPU stall due to ReadPixels"
"""What a browser complains of and may: reading logits back waits for the renderer, which is what it is for."""


class Browsed:
    """A page that is open in a browser."""

    def __init__(self, node: str, chromium: str, **options: Any) -> None:
        """Open a browser, with options of Playwright's contexts."""
        command = [node, str(DRIVER), chromium, json.dumps(options)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.console: list[str] = []
        self.asked: list[str] = []

    def do(self, kind: str, *given: Any) -> Any:
        """Take a step, see steps.mjs; nothing may have been thrown, and no dialog opened."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        step = {kind: given[0] if len(given) == 1 else given}
        self.process.stdin.write(json.dumps(step) + "\n")
        self.process.stdin.flush()
        found = json.loads(self.process.stdout.readline())
        self.console += found["console"]
        self.asked += found["asked"]
        assert "failed" not in found, found["failed"]
        assert found["errors"] == []
        return found["value"]

    def close(self) -> None:
        """Close the browser."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0
