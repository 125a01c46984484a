"""The tool that holds one long conversation in Chromium, in a short form."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from conftest import WEB

pytestmark = [pytest.mark.gl, pytest.mark.web]


def test_a_conversation_that_overflows_keeps_its_memory_and_has_pythons_replies(chromium: str, node: str) -> None:
    command = [node, str(WEB / "tools" / "long_chat.mjs"), "--turns", "12"]
    environment = {**os.environ, "GLINFER_CHROMIUM": chromium, "GLINFER_PYTHON": sys.executable}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "12 turns, " in ran.stdout
    assert "of 12; choices" in ran.stdout
