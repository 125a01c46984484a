"""The tokenizers and templates of pages against Python's on many more texts than library.test.js has by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.slow
def test_four_hundred_texts_of_every_tokenizer() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no Node.js; 'make test-web' installs it where it may")
    ran = subprocess.run(
        [node, "--test", str(HERE / "library.test.js")],
        env={**os.environ, "GLINFER_TEXTS": "400", "GLINFER_CONVERSATIONS": "60"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:]
    assert "# skipped 0" in ran.stdout
