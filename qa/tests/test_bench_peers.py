"""``python -m qa bench``: other engines in the table of ``glinfer bench``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
from oracle_peer import OraclePeer
from qa_commands import run

from glinfer.cli.bench import bench_command
from qa.bench import bench_with_peers
from qa.peers import peer as peers

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
LLAMA = "family=llama,vocab=300,dim=32,heads=4,kv_heads=2,blocks=2,inner=64,context=64"
GIFT = "family=gift_of_gab,vocab=300,dim=32,heads=4,blocks=2,context=64"


def refused(capsys: Capture, *arguments: str | Path) -> str:
    assert run(["bench", *map(str, arguments), "--runs", "1"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("python -m qa: ")
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.slow
def test_peers_stand_in_the_same_table(small: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setattr(peers, "_engine", lambda name: lambda checkpoint, threads: [OraclePeer(checkpoint)])
    assert run(["bench", str(small), "--contexts", "20", "--peers", "torch", "--runs", "1", "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    found = json.loads(said.out)
    assert [(row["label"], row["sampling"]) for row in found["rows"]] == [
        *[("glinfer f32", "default"), ("glinfer f32", "greedy"), ("oracle", "greedy")],
    ]
    assert [about["label"] for about in found["engines"]] == ["glinfer f32", "oracle"]
    assert (found["rows"][2]["pipelined"], found["rows"][2]["bytes_per_second"]) == (None, None)
    assert all(row["prefill_tokens_per_second"] > 0 for row in found["rows"])


def test_beside_peers_it_is_the_command_of_glinfer() -> None:
    names = [option.name for option in bench_with_peers.params]
    assert names == [*(option.name for option in bench_command.params), "peers"]


def test_what_does_not_go_together(small: Path, capsys: Capture) -> None:
    for arguments, words in (
        (["--plan", "reference", "--peers", "torch"], "--peers needs --plan fast"),
        (["--peers", "numpy"], "unknown peer 'numpy'"),
        (["--lengths", "3", "--peers", "torch"], "--lengths needs --plan reference"),
    ):
        assert words in refused(capsys, small, *arguments)


def test_peers_that_have_not_the_family(capsys: Capture, monkeypatch: Patch) -> None:
    said = refused(capsys, "--config", LLAMA, "--contexts", "8", "--peers", "torch")
    expected = "the peer torch runs models of the families gab and gpt2 in floats; leave it out for this llama"
    assert f"{expected}, llama-cpp runs it" in said
    monkeypatch.setitem(sys.modules, "llama_cpp", ModuleType("llama_cpp"))  # the refusal comes before its use
    assert "gift_of_gab" in refused(capsys, "--config", GIFT, "--contexts", "8", "--peers", "llama-cpp")
