"""Load a checkpoint into other engines, to compare their speed within one run on one machine.

Each engine is an optional package, which :func:`open_peers` imports when it is asked for.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import InputError, install_command
from glinfer.families import FAMILIES
from glinfer.formats.checkpoint import Checkpoint, check_checkpoint
from glinfer.inspect.bench.engines import GREEDY
from glinfer.lower.plans import is_published
from glinfer.quant.threads import cores

Logits = npt.NDArray[np.float32]


class Peer(ABC):
    """A model in another engine, with a cache of keys and values that starts out empty.

    Nothing is checked: ids are in the vocabulary, and a sequence is within the context.
    """

    def __init__(self, config: ModelConfig, label: str) -> None:
        """``label`` is the name in a table: engine, way of running, number format, threads or device."""
        self.config, self.label, self._length, self._closed = config, label, 0, False

    def prefill(self, ids: Sequence[int]) -> Logits:
        """Empty the cache, run ``ids`` through the model at once; logits [vocab] after the last, in host memory."""
        self._clear()
        self._length = 0
        logits = self._prefill(ids)
        self._length = len(ids)
        return logits

    def step(self, token: int) -> Logits:
        """Append one token to the cache; logits [vocab] after it, in host memory."""
        logits = self._step(token)
        self._length += 1
        return logits

    def decode_greedy(self, token: int, count: int) -> list[int]:
        """Append ``token`` and choose ``count`` tokens greedily; returns them in order.

        The cache grows by ``count``: the last token chosen is not in it yet. Every token is read back before
        the next one starts, as a program that shows its text must do.
        """
        chosen = self._decode_greedy(token, count)
        self._length += count
        return chosen

    def rewind(self, length: int) -> None:
        """Cut the cache back to its first ``length`` tokens."""
        self._rewind(length)
        self._length = length

    def close(self) -> None:
        """Release what the engine holds; harmless when repeated."""
        if not self._closed:
            self._closed = True
            self._close()

    @property
    def ways(self) -> dict[tuple[str, bool], Callable[[int, int], list[int]]]:
        """Greedy decoding, each token read back, as ``glinfer bench`` asks for it."""
        return {(GREEDY, False): self.decode_greedy}

    @abstractmethod
    def _clear(self) -> None:
        """Empty the engine's cache."""

    @abstractmethod
    def _prefill(self, ids: Sequence[int]) -> Logits:
        """Run ids into the empty cache."""

    @abstractmethod
    def _step(self, token: int) -> Logits:
        """Run one token; ``_length`` is still without it."""

    @abstractmethod
    def _decode_greedy(self, token: int, count: int) -> list[int]:
        """Run a greedy loop; ``_length`` is still without it."""

    @abstractmethod
    def _rewind(self, length: int) -> None:
        """Drop the cache from ``length`` on."""

    @abstractmethod
    def _close(self) -> None:
        """Release what the engine holds; called once."""


def open_peers(names: Sequence[str], checkpoint: Checkpoint, threads: int | None = None) -> list[Peer]:
    """Load a checkpoint into other engines; an engine may give several peers, one for each way to run it.

    Args:
        names: engines among :data:`PEERS`; a repeated name counts once.
        checkpoint: the weights, copied into each engine.
        threads: CPU threads of an engine; None for all cores that this process may run on.

    Raises:
        InputError: an unknown name, a package that is not installed, or an engine that cannot run this model.
        FormatError: the tensors are not those of the configuration.
    """
    for name in names:
        if name not in PEERS:
            raise InputError(f"unknown peer {name!r}; expected one of {', '.join(PEERS)}")
    threads = cores() if threads is None else threads
    check_checkpoint(checkpoint)
    if "torch" in names and not is_published(checkpoint.config, checkpoint.formats()):
        published = " and ".join(name for name, family in FAMILIES.items() if family.published)
        raise InputError(
            f"{checkpoint.source}: the peer torch runs models of the families {published} in floats; leave it out for "
            f"this {checkpoint.config.model_type}, llama-cpp runs it"
        )
    wanted = list(dict.fromkeys(names))
    engines = [_engine(name) for name in wanted]  # all of them, before the first one loads any weights
    opened: list[Peer] = []
    try:
        for engine in engines:
            opened.extend(engine(checkpoint, threads))
    except BaseException:
        for peer in opened:
            peer.close()
        raise
    return opened


def required(package: str, peer: str) -> ModuleType:
    """Import a package that a peer needs.

    Raises:
        InputError: it is not installed, or its installation is broken; says how to install it.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        why = f"the package {error.name or package!r} is not installed"
    except (ImportError, OSError, RuntimeError) as error:  # the latter two: a compiled library that does not load
        first = next(iter(str(error).splitlines()), type(error).__name__)
        why = f"the package {package!r} cannot be imported ({first})"
    raise InputError(f"the peer {peer!r} cannot run: {why}; install it with: {install_command('peers')}")


Engine = Callable[[Checkpoint, int], Iterable[Peer]]

PEERS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "torch": (("torch",), "qa.peers.pytorch", "open_torch"),
    "llama-cpp": (("gguf", "llama_cpp"), "qa.peers.llama", "open_llama"),
    "transformers": (("torch",), "qa.peers.huggingface", "open_transformers"),
}
"""Packages that an engine needs, and the module and function that open its peers, by the engine's name."""


def _engine(name: str) -> Engine:
    packages, module, function = PEERS[name]
    for package in packages:
        required(package, name)
    found: Any = getattr(importlib.import_module(module), function)
    engine: Engine = found
    return engine
