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

MAX_THREADS = 1024


class CheckedPeer(ABC):
    """A model in another engine, with a cache of keys and values that starts out empty.

    Input is checked before it reaches the engine, which might crash on it. Every use raises InputError once it is
    closed.
    """

    def __init__(self, config: ModelConfig, label: str) -> None:
        """``label`` is the peer's whole name in a table."""
        self.config = config
        self._label = label
        self._length = 0
        self._closed = False

    @property
    def label(self) -> str:
        """Name in a table: engine, way of running, number format, threads or device."""
        return self._label

    def prefill(self, ids: Sequence[int]) -> Logits:
        """Empty the cache, run ``ids`` through the model at once; logits [vocab] after the last, in host memory.

        Raises:
            InputError: no ids, more than the context holds, or one outside the vocabulary.
        """
        self._check_room(0, len(ids))
        for token in ids:
            self._check_token(token)
        self._clear()
        self._length = 0
        logits = self._prefill(ids)
        self._length = len(ids)
        return logits

    def step(self, token: int) -> Logits:
        """Append one token to the cache; logits [vocab] after it, in host memory.

        Raises:
            InputError: the cache is full, or the token is outside the vocabulary.
        """
        self._check_room(self._length, 1)
        self._check_token(token)
        logits = self._step(token)
        self._length += 1
        return logits

    def decode_greedy(self, token: int, count: int) -> list[int]:
        """Append ``token`` and choose ``count`` tokens greedily; returns them in order.

        The cache grows by ``count``: the last token chosen is not in it yet. Every token is read back before
        the next one starts, as a program that shows its text must do.

        Raises:
            InputError: the cache has no room for ``count``, or the token is outside the vocabulary.
        """
        self._check_room(self._length, count)
        self._check_token(token)
        chosen = self._decode_greedy(token, count)
        self._length += count
        return chosen

    def rewind(self, length: int) -> None:
        """Cut the cache back to its first ``length`` tokens.

        Raises:
            InputError: the cache is shorter than that.
        """
        self._check_open()
        if not 0 <= length <= self._length:
            raise InputError(f"{self._label}: cannot rewind to {length}; expected 0 to {self._length}, what is cached")
        self._rewind(length)
        self._length = length

    def close(self) -> None:
        """Release what the engine holds; harmless when repeated."""
        if not self._closed:
            self._closed = True
            self._close()

    def _check_open(self) -> None:
        if self._closed:
            raise InputError(f"{self._label}: it was closed; open it again to use it")

    def _check_room(self, cached: int, more: int) -> None:
        self._check_open()
        context = self.config.max_position_embeddings
        if more < 1 or cached + more > context:
            raise InputError(
                f"{self._label}: found {more} tokens after {cached} cached ones; "
                f"expected at least 1, and at most the context of {context} in all"
            )

    def _check_token(self, token: int) -> None:
        if not 0 <= token < self.config.vocab_size:
            raise InputError(f"{self._label}: token {token} is not within 0 to {self.config.vocab_size - 1}")

    @property
    def ways(self) -> dict[tuple[str, bool], Callable[[int, int], list[int]]]:
        """Greedy decoding, each token read back, as ``glinfer bench`` asks for it."""
        return {(GREEDY, False): self.decode_greedy}

    @abstractmethod
    def _clear(self) -> None:
        """Empty the engine's cache."""

    @abstractmethod
    def _prefill(self, ids: Sequence[int]) -> Logits:
        """Run checked ids into the empty cache."""

    @abstractmethod
    def _step(self, token: int) -> Logits:
        """Run one checked token; ``_length`` is still without it."""

    @abstractmethod
    def _decode_greedy(self, token: int, count: int) -> list[int]:
        """Run a checked greedy loop; ``_length`` is still without it."""

    @abstractmethod
    def _rewind(self, length: int) -> None:
        """Drop the cache from ``length`` on."""

    @abstractmethod
    def _close(self) -> None:
        """Release what the engine holds; called once."""


def open_peers(names: Sequence[str], checkpoint: Checkpoint, threads: int | None = None) -> list[CheckedPeer]:
    """Load a checkpoint into other engines; an engine may give several peers, one for each way to run it.

    Args:
        names: engines among :data:`PEERS`; a repeated name counts once.
        checkpoint: the weights, copied into each engine.
        threads: CPU threads of an engine; None for all cores that this process may run on.

    Raises:
        InputError: an unknown name, a package that is not installed, a bad number of threads, or an engine
            that cannot run this model.
        FormatError: the tensors are not those of the configuration.
    """
    for name in names:
        if name not in PEERS:
            raise InputError(f"unknown peer {name!r}; expected one of {', '.join(PEERS)}")
    if threads is None:
        threads = cores()
    if not 1 <= threads <= MAX_THREADS:
        raise InputError(f"found {threads} threads; expected 1 to {MAX_THREADS}")
    check_checkpoint(checkpoint)
    if "torch" in names and not is_published(checkpoint.config, checkpoint.formats()):
        published = " and ".join(name for name, family in FAMILIES.items() if family.published)
        raise InputError(
            f"{checkpoint.source}: the peer torch runs models of the families {published} in floats; leave it out for "
            f"this {checkpoint.config.model_type}, llama-cpp runs it"
        )
    wanted = list(dict.fromkeys(names))
    engines = [_engine(name) for name in wanted]  # all of them, before the first one loads any weights
    opened: list[CheckedPeer] = []
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


Engine = Callable[[Checkpoint, int], Iterable[CheckedPeer]]

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
