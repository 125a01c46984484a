"""The same faults for glinfer, llama.cpp and transformers, each in a process of its own: what does a user get.

All run the same random Llama, see :mod:`qa.peers.soak`. A fault ends in one of these ways: ``said`` (an exception,
whose message is printed), ``as before`` (the same logits as without the fault), ``other numbers`` (another answer,
without a word), ``not numbers`` (NaN, without a word), ``died`` (the process, by a signal), ``hung``.

    .venv/bin/python -m qa.peers.faults

Needs llama-cpp-python, gguf, torch and transformers. An engine whose package is missing is left out.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from qa.peers.soak import CONTEXT, ROOT, write_models

Array = np.ndarray[Any, Any]
PROMPT = [5, 17, 200, 31]
SECONDS = 20


class Glinfer:
    """glinfer by the fast plan."""

    file = "model.safetensors"

    def __init__(self, folder: Path) -> None:
        """Load the model from ``folder``."""
        import glinfer

        self.model = glinfer.load(folder / self.file)

    def logits(self) -> Array:
        """Logits [vocab] after the prompt."""
        with self.model.session() as session:
            session.prefill(PROMPT)
            return session.logits()

    def close(self) -> None:
        """Close the model."""
        self.model.close()


class LlamaCpp:
    """llama.cpp on the CPU, with one thread."""

    file = "model.gguf"

    def __init__(self, folder: Path) -> None:
        """Load the model from ``folder``."""
        import llama_cpp

        path = str(folder / self.file)
        self.model: Any = llama_cpp.Llama(path, n_ctx=CONTEXT, n_threads=1, logits_all=True, verbose=False)

    def logits(self) -> Array:
        """Logits [vocab] after the prompt."""
        self.model.reset()
        self.model.eval(PROMPT)
        return np.array(self.model.scores[len(PROMPT) - 1])

    def close(self) -> None:
        """Close the model."""
        self.model.close()


class Transformers:
    """transformers in PyTorch on the CPU, with one thread."""

    file = "model.safetensors"

    def __init__(self, folder: Path) -> None:
        """Load the model from ``folder``."""
        import torch
        import transformers

        torch.set_num_threads(1)
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)

    def logits(self) -> Array:
        """Logits [vocab] after the prompt."""
        import torch

        with torch.no_grad():
            return np.asarray(self.model(torch.tensor([PROMPT])).logits[0, -1].numpy())

    def close(self) -> None:
        """Close the model."""
        raise NotImplementedError("it has no close")


ENGINES: dict[str, Any] = {"glinfer": Glinfer, "llama.cpp": LlamaCpp, "transformers": Transformers}


def judged(found: Array, plain: Array) -> str:
    """Name the outcome of a fault by comparing its logits with those without it."""
    if not np.isfinite(found).all():
        return "not numbers"
    return "as before" if np.array_equal(found, plain) else "other numbers"


def damaged(folder: Path, name: str) -> None:
    """One weight of the first matrix becomes NaN: a float32 in the middle of the file."""
    data = bytearray((folder / name).read_bytes())
    place = len(data) // 2 // 4 * 4
    data[place : place + 4] = b"\x00\x00\xc0\x7f"
    (folder / name).write_bytes(data)


def nan_weight(engine: Any, folder: Path) -> str:
    """Load a file with a NaN in it."""
    plain = engine(folder).logits()
    damaged(folder, engine.file)
    return judged(engine(folder).logits(), plain)


def cut_file(engine: Any, folder: Path) -> str:
    """Load a file without its last third."""
    data = (folder / engine.file).read_bytes()
    (folder / engine.file).write_bytes(data[: len(data) * 2 // 3])
    return judged(engine(folder).logits(), np.zeros(1))


def after_close(engine: Any, folder: Path) -> str:
    """Ask a model that was closed."""
    made = engine(folder)
    plain = made.logits()
    made.close()
    return judged(made.logits(), plain)


def other_thread(engine: Any, folder: Path) -> str:
    """Ask from a second thread."""
    made = engine(folder)
    plain, found = made.logits(), list[str]()

    def work() -> None:
        try:
            found.append(judged(made.logits(), plain))
        except Exception as error:
            found.append(said(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]


def forked(engine: Any, folder: Path) -> str:
    """Ask from a child process, then from the parent."""
    made = engine(folder)
    plain = made.logits()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS // 2)
        try:
            told = judged(made.logits(), plain)
        except Exception as error:
            told = said(error)
        os.write(write, told.encode())
        sys.exit(0)
    os.close(write)
    told = os.read(read, 4096).decode()
    status = os.waitpid(child, 0)[1]
    if not told:
        told = "hung" if os.WTERMSIG(status) == signal.SIGALRM else f"died of signal {os.WTERMSIG(status)}"
    return f"{told}; the parent: {judged(made.logits(), plain)}"


def out_of_range(engine: Any, folder: Path) -> str:
    """Ask with a token outside of the vocabulary."""
    made = engine(folder)
    plain = made.logits()
    PROMPT[2] = 10_000
    return judged(made.logits(), plain)


def little_memory(engine: Any, folder: Path) -> str:
    """Load a second model with 2 MB of address space left."""
    import resource

    made = engine(folder)
    plain = made.logits()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 21), resource.RLIM_INFINITY))
    another = engine(folder)
    return judged(another.logits(), plain)


def said(error: BaseException) -> str:
    """Name an exception by its type and the beginning of its message."""
    text = " ".join(str(error).split()) or repr(error)
    return f"said: {type(error).__name__}: {text[:110]}"


FAULTS: dict[str, Callable[[Any, Path], str]] = {
    "a NaN among the weights": nan_weight,
    "a file cut at two thirds": cut_file,
    "a token outside of the vocabulary": out_of_range,
    "use after close": after_close,
    "a second thread": other_thread,
    "fork after loading": forked,
    "no memory for a second model": little_memory,
}


def main() -> None:
    """Try each fault with each engine, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--one", nargs=3, metavar=("ENGINE", "FAULT", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        engine, fault, folder = options.one
        try:
            print("@" + FAULTS[fault](ENGINES[engine], Path(folder)))
        except (Exception, SystemExit) as error:
            print("@" + said(error))
        return
    for fault in FAULTS:
        for engine in ENGINES:
            print(f"{fault} | {engine} | {tried(engine, fault)}", flush=True)


def tried(engine: str, fault: str) -> str:
    """Try one fault with one engine in a process of its own; how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder))
        command = [sys.executable, "-m", "qa.peers.faults", "--one", engine, fault, folder]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 40, cwd=ROOT, check=False)
        except subprocess.TimeoutExpired:
            return "hung"
    told = [line[1:] for line in done.stdout.splitlines() if line.startswith("@")]
    if told:
        return told[-1]
    if done.returncode < 0:
        return f"died of signal {-done.returncode} ({signal.Signals(-done.returncode).name})"
    return f"exit {done.returncode}: {(done.stderr.strip().splitlines() or ['no word'])[-1][:110]}"


if __name__ == "__main__":
    main()
