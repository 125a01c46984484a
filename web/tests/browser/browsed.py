"""A browser for all tests, and a page in it, which does what it is told, step by step."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).with_name("steps.mjs")
WEB = DRIVER.parents[2]
EXPECTED = "GPU stall due to ReadPixels"
"""What a browser complains of and may: reading logits back waits for the renderer, which is what it is for."""

KEEPS = """(async () => {
  for (;;) {
    const { active } = (await navigator.serviceWorker.getRegistration()) ?? {};
    if (active?.state === "activated" && active.scriptURL.endsWith(glinfer.plan.offline.version)) return true;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
})()"""
"""Ends when the files that open a page without its server are kept."""


REFUSED_STORAGE = """{
  const refused = { get() { throw new DOMException("", "SecurityError"); }, configurable: true };
  for (const name of ["indexedDB", "caches", "localStorage", "sessionStorage"])
    Object.defineProperty(globalThis, name, refused);
  Object.defineProperty(Navigator.prototype, "serviceWorker", refused);
}"""
"""A window that may use no storage, as in a sandboxed frame, or where a person blocks site data."""


class Browser:
    """Chromium, and the process of Node.js that drives it."""

    def __init__(
        self, node: str, chromium: str, flags: Sequence[str] = (), variables: Mapping[str, str] | None = None
    ) -> None:
        """Start both; flags replace those for SwiftShader, and variables are added to the environment."""
        command, pipe = [node, str(DRIVER), chromium, *flags], subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **(variables or {})}
        )

    def do(self, kind: str, given: Any) -> dict[str, Any]:
        """Take a step, see steps.mjs; nothing may have been thrown, and no dialog opened."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({kind: given}) + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert "failed" not in found, found["failed"]
        assert found["errors"] == [], found["errors"]
        return found

    def close(self) -> None:
        """Close the browser."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0


class Browsed:
    """A page that is open in a browser; only one is at a time."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        """Open a page with nothing kept, with options of Playwright's contexts."""
        self.browser = browser
        self.console: list[str] = []
        self.asked: list[str] = []
        browser.do("context", options)

    def do(self, kind: str, *given: Any) -> Any:
        """Take a step in the page; see steps.mjs."""
        found = self.browser.do(kind, given[0] if len(given) == 1 else given)
        self.console += found["console"]
        self.asked += found["asked"]
        return found["value"]
