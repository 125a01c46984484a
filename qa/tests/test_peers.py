"""Other engines must compute the same model, else comparing their speed means nothing."""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens import ModelWriter, recorded
from goldens.given import PEER_PROMPT
from goldens.models import write_recorded
from oracle_peer import OraclePeer, oracle
from own_process import ran
from tiers import tiered

import glinfer
from glinfer.config import ModelConfig
from glinfer.errors import FormatError, InputError
from glinfer.formats import Checkpoint, load_checkpoint, random_checkpoint
from glinfer.formats.gguf.write import write_gguf
from qa.peers import llama
from qa.peers import peer as peers
from qa.peers.peer import Logits, Peer, open_peers

pytestmark = pytest.mark.gl

SMALL = ModelConfig.from_options("vocab=300,dim=64,heads=4,blocks=2,context=200")
PROMPT = PEER_PROMPT
AFTER = [7, 299, 0]
ROUNDING = 1e-5  # of float32; measured: 2e-6


def need(*packages: str) -> Any:
    """Skip without one of these packages; returns the last."""
    for package in packages:
        found = pytest.importorskip(package, reason=f"{package} is not installed (make test-all installs it)")
    return found


def check_peer(peer: Peer, checkpoint: Checkpoint, tolerance: float) -> None:
    """Prefill, steps, rewinding and a second prefill, each against the oracle; and the greedy loop."""

    def check(found: Logits, ids: Sequence[int]) -> None:
        assert found.dtype == np.float32
        assert found.shape == (checkpoint.config.vocab_size,)
        assert np.abs(found - oracle(checkpoint, ids)).max() <= tolerance

    first = peer.prefill(PROMPT)
    kept = first.copy()
    for count, token in enumerate(AFTER, 1):
        check(peer.step(token), PROMPT + AFTER[:count])
    assert np.array_equal(first, kept), "logits that were handed out must not change later"
    check(first, PROMPT)
    peer.rewind(5)
    check(peer.step(9), [*PROMPT[:5], 9])
    check(peer.prefill(PROMPT[:3]), PROMPT[:3])

    token, expected = 7, []
    for _ in range(6):
        token = int(peer.step(token).argmax())
        expected.append(token)
    peer.rewind(3)
    assert peer.decode_greedy(7, 6) == expected
    check(peer.step(expected[-1]), [*PROMPT[:3], 7, *expected])


@pytest.fixture(params=["tiny", "odd, erf"])
def checkpoint(request: pytest.FixtureRequest, golden_model: ModelWriter) -> Checkpoint:
    name, _, erf = request.param.partition(", ")
    found = load_checkpoint(golden_model(name))
    return dataclasses.replace(found, config=found.config.with_gelu(erf or None))


@pytest.mark.slow
def test_the_oracle_itself_is_a_peer(checkpoint: Checkpoint) -> None:
    """So that the check of other engines is run where there are none, and can fail."""
    check_peer(OraclePeer(checkpoint), checkpoint, ROUNDING)
    other = dataclasses.replace(checkpoint, tensors={**checkpoint.tensors})
    name = "transformer.h.1.attn.q_proj.weight"
    other.tensors[name] = other.tensors[name][::-1].copy()
    with pytest.raises(AssertionError):
        check_peer(OraclePeer(other), checkpoint, 100 * ROUNDING)


# PyTorch


@pytest.mark.slow
def test_the_oracle_gives_what_pytorch_gave(request: pytest.FixtureRequest, checkpoint: Checkpoint) -> None:
    figures = recorded("peers")
    found = oracle(checkpoint, PROMPT)[::7]
    near = [
        name
        for name, logits in figures.items()
        if len(logits) == len(found) and np.abs(found - np.array(logits)).max() <= ROUNDING
    ]
    assert near == [request.node.callspec.params["checkpoint"]]


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = need("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def touched(*_: Any) -> None:
        raise AssertionError("CUDA was touched on a machine without it")

    monkeypatch.setattr(torch.cuda, "get_device_name", touched)
    monkeypatch.setattr(torch.cuda, "_lazy_init", touched)


@pytest.mark.slow
def test_torch_on_the_cpu(no_cuda: None, checkpoint: Checkpoint) -> None:
    torch = need("torch")
    before = torch.get_num_threads()
    [peer] = open_peers(["torch"], checkpoint, threads=2)
    try:
        assert peer.label == "torch eager fp32, 2 threads"
        assert torch.get_num_threads() == 2
        check_peer(peer, checkpoint, ROUNDING)
    finally:
        peer.close()
    assert torch.get_num_threads() == before


# llama.cpp


@pytest.mark.slow
def test_llama_cpp(checkpoint: Checkpoint) -> None:
    need("gguf", "llama_cpp")
    # Half floats in the cache and in GELU's table; for the erf form, tanh beside that. Measured: 0.003 and 0.09.
    tolerances = {"llama.cpp F32": 0.01, "llama.cpp Q8_0": 0.2}
    opened = open_peers(["llama-cpp"], checkpoint, threads=2)
    try:
        assert len(opened) == (2 if checkpoint.config.hidden_size % 32 == 0 else 1)
        for peer in opened:
            kind, _, rest = peer.label.partition(", ")
            assert rest == "2 threads" + ", tanh GELU" * (checkpoint.config.hidden_act == "gelu")
            check_peer(peer, checkpoint, tolerances[kind])
    finally:
        for peer in opened:
            peer.close()


def test_no_room_for_the_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("gguf")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(InputError, match=r"cannot write a temporary model for llama.cpp: No such file or directory"):
        next(iter(llama.opened(random_checkpoint(SMALL), 1)))


# transformers


@pytest.fixture
def transformers_peer(no_cuda: None) -> Iterator[Callable[[Checkpoint], Peer]]:
    """Opens the peer of a checkpoint; the CPU's number of threads is as before in the end."""
    torch = need("gguf", "accelerate", "transformers", "torch")
    threads, opened = torch.get_num_threads(), []

    def open_one(checkpoint: Checkpoint) -> Peer:
        [peer] = open_peers(["transformers"], checkpoint, threads=1)
        opened.append(peer)
        return peer

    yield open_one
    for peer in opened:
        peer.close()
    assert torch.get_num_threads() == threads


@pytest.mark.slow
def test_transformers(transformers_peer: Callable[[Checkpoint], Peer], checkpoint: Checkpoint) -> None:
    """Gab as a GPT-2 in a temporary GGUF file, with either form of GELU."""
    peer = transformers_peer(checkpoint)
    assert peer.label == "transformers fp32, 1 thread"
    check_peer(peer, checkpoint, ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2-windows", "gpt2-untied"])
def test_transformers_runs_a_directory(
    tmp_path: Path, transformers_peer: Callable[[Checkpoint], Peer], name: str
) -> None:
    write_recorded(name, tmp_path)
    peer = transformers_peer(load_checkpoint(tmp_path))
    assert peer.label == "transformers fp32, 1 thread"
    check_beside_glinfer(peer, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), [("llama", "q8_0"), ("gpt2", "float32")])
def test_transformers_runs_a_gguf_file(
    tmp_path: Path, transformers_peer: Callable[[Checkpoint], Peer], name: str, dtype: str
) -> None:
    write_recorded(name, tmp_path)
    path = tmp_path / "model.gguf"
    write_gguf(load_checkpoint(tmp_path), path, dtype=dtype)
    check_beside_glinfer(transformers_peer(load_checkpoint(path)), path)


def check_beside_glinfer(peer: Peer, path: Path) -> None:
    """The logits after a prompt beyond any window, after going back, and the greedy tokens."""
    ids = [token % 151 for token in range(0, 420, 7)]

    def check(found: Logits, expected: Logits) -> None:
        assert np.abs(found - expected).max() <= ROUNDING * np.ptp(expected)

    with glinfer.load(path) as model, model.session() as session:
        check(peer.prefill(ids), model.logits(ids))
        peer.rewind(5)
        check(peer.step(9), model.logits([*ids[:5], 9]))
        session.prefill([*ids[:5], 9])
        session.step(7)
        assert peer.decode_greedy(7, 6) == session.generate_ids(6)


@pytest.mark.slow
def test_what_transformers_does_not_take(tmp_path: Path, transformers_peer: Callable[[Checkpoint], Peer]) -> None:
    """Weights that it does not load are an error; what of a family it leaves out is in the label."""
    write_recorded("llama3-biases-tied", tmp_path)
    write_gguf(load_checkpoint(tmp_path), tmp_path / "model.gguf")
    with pytest.raises(InputError, match=r"loads 72,960 weights of this llama; expected all 73,872; leave the peer"):
        transformers_peer(load_checkpoint(tmp_path / "model.gguf"))
    options = "family=mistral,vocab=300,dim=32,heads=4,kv_heads=2,blocks=2,inner=64,context=64"
    config = dataclasses.replace(ModelConfig.from_options(options), sliding_window=30)
    assert transformers_peer(random_checkpoint(config)).label == "transformers fp32, 1 thread, no windows"


# What is the same for all


class Recorded(OraclePeer):
    """An engine that notes that it is closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


@tiered(("name", "package"), [("llama-cpp", "gguf"), ("llama-cpp", "llama_cpp"), ("transformers", "transformers")])
def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    need({"llama_cpp": "gguf", "transformers": "torch"}.get(package, "numpy"))
    monkeypatch.delitem(sys.modules, "qa.peers.huggingface", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"{package}.* is not installed; install it with: .*\[peers\]"):
        open_peers([name], random_checkpoint(SMALL))


def test_bad_requests() -> None:
    small = random_checkpoint(SMALL)
    with pytest.raises(InputError, match="unknown peer 'onnx'; expected one of torch, llama-cpp"):
        open_peers(["torch", "onnx"], small)
    assert open_peers([], small) == []
    incomplete = {name: small.tensors[name] for name in small.tensors if name != "transformer.wte.weight"}
    with pytest.raises(FormatError, match=r"'transformer.wte.weight' is missing"):
        open_peers([], dataclasses.replace(small, tensors=incomplete))


def test_an_engine_that_fails_closes_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, calls = Recorded(random_checkpoint(SMALL)), list[str]()

    def works(*_: Any) -> list[Peer]:
        calls.append("torch")
        return [first]

    def fails(*_: Any) -> list[Peer]:
        raise InputError("no")

    monkeypatch.setattr(peers, "_engine", {"torch": works, "llama-cpp": fails}.get)
    with pytest.raises(InputError, match=r"^no$"):
        open_peers(["torch", "torch", "llama-cpp"], random_checkpoint(SMALL))
    assert first.closed == 1
    assert calls == ["torch"], "a name given twice is opened once"


@pytest.mark.slow
def test_no_engine_is_imported_before_it_is_asked_for() -> None:
    engines = "('torch', 'gguf', 'llama_cpp', 'transformers')"
    (found,) = ran(f"import sys; import qa.peers.peer, qa.peers.llama; print([*{{*{engines}}} & {{*sys.modules}}])")
    assert found == "[]"
