"""``python -m qa bench``: other engines in the table of ``glinfer bench``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from oracle_peer import OraclePeer
from qa_commands import run

from glinfer.cli.bench import bench_command
from glinfer.config import ModelConfig
from glinfer.errors import InputError
from glinfer.formats import load_checkpoint, random_checkpoint
from glinfer.formats.gguf.write import write_gguf
from qa.bench import bench_with_peers
from qa.peers import peer as peers
from qa.peers.peer import open_peers

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
LLAMA = "family=llama,vocab=300,dim=32,heads=4,kv_heads=2,blocks=2,inner=64,context=64"
GIFT = "family=gift_of_gab,vocab=300,dim=32,heads=4,blocks=2,context=64"


def told(capsys: Capture, *arguments: str | Path) -> Any:
    assert run(["bench", *map(str, arguments), "--runs", "1", "--json"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return json.loads(said.out)


def refused(capsys: Capture, *arguments: str | Path) -> str:
    assert run(["bench", *map(str, arguments), "--runs", "1"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("python -m qa: ")
    assert said.err.count("\n") == 1
    return said.err


class TestTable:
    @pytest.mark.slow
    def test_peers_stand_in_the_same_table(self, small: Path, capsys: Capture, monkeypatch: Patch) -> None:
        monkeypatch.setattr(peers, "_engine", lambda name: lambda checkpoint, threads: [OraclePeer(checkpoint)])
        self.check_table(small, capsys, "oracle")

    @pytest.mark.slow
    def test_pytorch_stands_in_the_same_table(self, small: Path, capsys: Capture) -> None:
        pytest.importorskip("torch", reason="PyTorch is not installed (make test-all installs it)")
        self.check_table(small, capsys, "torch eager fp32, ")

    def check_table(self, small: Path, capsys: Capture, label: str) -> None:
        found = told(capsys, small, "--contexts", "20", "--peers", "torch")
        labels = [row["label"] for row in found["rows"]]
        assert labels[0] == "glinfer f32"
        assert labels[1].startswith(label)
        assert [about["label"] for about in found["engines"]] == labels
        assert (found["rows"][1]["pipelined"], found["rows"][1]["bytes_per_second"]) == (None, None)
        assert all(row["prefill_tokens_per_second"] > 0 for row in found["rows"])

    @pytest.mark.slow
    def test_llama_cpp_stands_in_the_same_table(self, tmp_path: Path, capsys: Capture) -> None:
        pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (make test-all installs it)")
        write_gguf(random_checkpoint(ModelConfig.from_options(LLAMA)), tmp_path / "q8.gguf", dtype="q8_0")
        labels = [
            row["label"]
            for row in told(capsys, tmp_path / "q8.gguf", "--contexts", "8", "--peers", "llama-cpp")["rows"]
        ]
        assert labels[0] == "glinfer file"
        assert any(label.startswith("llama.cpp") for label in labels[1:])

    @pytest.mark.slow
    def test_transformers_stands_in_the_same_table(self, tmp_path: Path, capsys: Capture) -> None:
        for package in ("torch", "accelerate", "transformers"):
            pytest.importorskip(package, reason=f"{package} is not installed (make test-all installs it)")
        write_gguf(random_checkpoint(ModelConfig.from_options(LLAMA)), tmp_path / "q8.gguf", dtype="q8_0")
        found = told(capsys, tmp_path / "q8.gguf", "--contexts", "8", "--peers", "transformers")
        labels = [row["label"] for row in found["rows"]]
        assert labels[0] == "glinfer file"
        assert labels[1].startswith("transformers fp32, ")

    @pytest.mark.slow
    def test_without_peers_it_is_the_command_of_glinfer(self, small: Path, capsys: Capture) -> None:
        names = [option.name for option in bench_with_peers.params]
        assert names == [*(option.name for option in bench_command.params), "peers"]
        assert [row["label"] for row in told(capsys, small, "--contexts", "8")["rows"]] == ["glinfer f32"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--plan", "reference", "--peers", "torch"], "--peers belongs to --plan fast"),
        (["--peers", "numpy"], "unknown peer 'numpy'"),
        (["--lengths", "3", "--peers", "torch"], "--lengths belongs to --plan reference"),
    ],
)
def test_what_does_not_go_together(small: Path, capsys: Capture, arguments: list[str], words: str) -> None:
    assert words in refused(capsys, small, *arguments)


def test_peers_that_have_not_the_family(capsys: Capture, monkeypatch: Patch) -> None:
    with pytest.raises(InputError, match="the peer torch runs models of the families gab and gpt2 in floats"):
        open_peers(["torch"], random_checkpoint(ModelConfig.from_options(LLAMA)))
    said = refused(capsys, "--config", LLAMA, "--contexts", "8", "--peers", "torch")
    assert "leave it out for this llama, llama-cpp runs it" in said
    monkeypatch.setitem(sys.modules, "llama_cpp", ModuleType("llama_cpp"))  # the refusal comes before its use
    assert "gift_of_gab" in refused(capsys, "--config", GIFT, "--contexts", "8", "--peers", "llama-cpp")


@pytest.mark.slow
def test_torch_takes_a_prompt_in_with_one_forward_pass(small: Path, monkeypatch: Patch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (make test-all installs it)")
    from qa.peers.pytorch import EagerPeer

    forward, passes = EagerPeer._forward, list[tuple[int, int]]()

    def noted(peer: EagerPeer, ids: Any, start: int) -> Any:
        passes.append((len(ids), start))
        return forward(peer, ids, start)

    monkeypatch.setattr(EagerPeer, "_forward", noted)
    (peer, *others) = open_peers(["torch"], load_checkpoint(small))
    for each in (peer, *others):
        passes.clear()
        assert each.prefill(range(50)).shape == (300,)
        assert passes == [(50, 0)]
        each.close()
