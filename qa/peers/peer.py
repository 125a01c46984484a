"""Load a checkpoint into other engines, to compare their speed within one run on one machine.

Each engine is an optional package, which :func:`open_peers` imports when it is asked for.
"""

from __future__ import annotations

import importlib
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.errors import InputError, install_command
from glinfer.families import FAMILIES
from glinfer.formats.checkpoint import Checkpoint, check_checkpoint
from glinfer.formats.files import reason
from glinfer.formats.gguf.write import write_gguf
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
        self.config, self.label, self.length = config, label, 0

    def prefill(self, ids: Sequence[int]) -> Logits:
        """Empty the cache, run ``ids`` through the model at once; logits [vocab] after the last, in host memory."""
        self.rewind(0)
        return self.append(ids)

    def step(self, token: int) -> Logits:
        """Append one token to the cache; logits [vocab] after it, in host memory."""
        return self.append([token])

    @property
    def ways(self) -> dict[tuple[str, bool], Callable[[int, int], list[int]]]:
        """Greedy decoding, each token read back, as ``glinfer bench`` asks for it."""
        return {(GREEDY, False): self.decode_greedy}

    @abstractmethod
    def append(self, ids: Sequence[int]) -> Logits:
        """Append one token, or several to an empty cache; logits [vocab] after the last, which stay as they are."""

    def decode_greedy(self, token: int, count: int) -> list[int]:
        """Append ``token`` and choose ``count`` tokens greedily; returns them in order.

        The cache grows by ``count``: the last token chosen is not in it yet. Every token is read back before
        the next one starts, as a program that shows its text must do.
        """
        chosen = [token]
        for _ in range(count):
            chosen.append(int(self.step(chosen[-1]).argmax()))
        return chosen[1:]

    def rewind(self, length: int) -> None:
        """Cut the cache back to its first ``length`` tokens."""
        self.length = length

    @abstractmethod
    def close(self) -> None:
        """Release what the engine holds; harmless when repeated."""


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
    check_checkpoint(checkpoint)
    if "torch" in names and not is_published(checkpoint.config, checkpoint.formats()):
        published = " and ".join(name for name, family in FAMILIES.items() if family.published)
        raise InputError(
            f"{checkpoint.source}: the peer torch runs models of the families {published} in floats; leave it out for "
            f"this {checkpoint.config.model_type}, llama-cpp runs it"
        )
    engines = [_engine(name) for name in dict.fromkeys(names)]  # all of them, before the first one loads any weights
    with ExitStack() as opened:
        peers = [
            opened.enter_context(closing(peer)) for engine in engines for peer in engine(checkpoint, threads or cores())
        ]
        opened.pop_all()
    return peers


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


@contextmanager
def temporary_gguf(checkpoint: Checkpoint, engine: str, dtype: str | None = "float32") -> Iterator[Path]:
    """A GGUF file of a checkpoint within the block, with the tanh form of GELU where it is written as GPT-2.

    Raises:
        InputError: it cannot be written.
    """
    if checkpoint.config.family.gguf_as:
        checkpoint = replace(checkpoint, config=checkpoint.config.with_gelu("tanh"))
    try:
        with tempfile.TemporaryDirectory(prefix="glinfer-") as folder:
            path = Path(folder, "model.gguf")
            write_gguf(checkpoint, path, dtype=dtype)
            yield path
    except OSError as error:
        raise InputError(
            f"cannot write a temporary model for {engine}: {reason(error)}; "
            "check the free space there, or set TMPDIR to another directory"
        ) from None


def threads_text(threads: int) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{threads} thread{'s' * (threads > 1)}"


Engine = Callable[[Checkpoint, int], Iterable[Peer]]

PEERS: dict[str, tuple[tuple[str, ...], str]] = {
    "torch": (("torch",), "pytorch"),
    "llama-cpp": (("gguf", "llama_cpp"), "llama"),
    "transformers": (("torch",), "huggingface"),
}
"""Packages that an engine needs, and the module beside this one whose ``opened`` opens its peers, by its name."""


def _engine(name: str) -> Engine:
    packages, module = PEERS[name]
    for package in packages:
        required(package, name)
    engine: Engine = importlib.import_module(f"qa.peers.{module}").opened
    return engine
