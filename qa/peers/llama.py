"""The model in llama.cpp, on the CPU, through a temporary GGUF file; Gab as a GPT-2 whose other biases are 0.

llama.cpp's GELU is the tanh form, looked up in a table of half floats. A model with the erf form runs with tanh too, as
the label says; no time changes. Keys and values are cached as half floats and attention is "flash attention":
llama.cpp's defaults, and of all combinations the fastest on a CPU. With GELU's table they leave logits about 1e-3 off
float32.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from glinfer.errors import InputError
from glinfer.formats.checkpoint import Checkpoint
from glinfer.formats.files import reason
from glinfer.formats.gguf.write import write_gguf
from qa.peers.peer import Logits, Peer, required

_PEER = "llama-cpp"
_AS_IT_IS = "as in the file"
_DTYPES = {"F32": "float32", "Q8_0": "q8_0", _AS_IT_IS: None}
_BLOCK_OF_Q8_0 = 32


class LlamaPeer(Peer):
    """One llama.cpp model with one context; its cache of keys and values is as long as the model's context."""

    def __init__(self, checkpoint: Checkpoint, path: Path, label: str, threads: int) -> None:
        """Load the GGUF file at ``path`` that was made from ``checkpoint``; it may be deleted afterwards."""
        super().__init__(checkpoint.config, label)
        self._model = self._context = None
        self._llama: Any = required("llama_cpp", _PEER)
        # The library's own logger, of which all but the worst would run across a progress bar.
        logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL)
        self._llama.llama_backend_init()
        try:
            self._load(path, threads)
        except BaseException:
            self.close()
            raise
        self._memory = self._llama.llama_get_memory(self._context)
        self._one = (self._llama.llama_token * 1)()
        self._batch_of_one = self._llama.llama_batch_get_one(self._one, 1)

    def _load(self, path: Path, threads: int) -> None:
        llama = self._llama
        options = llama.llama_model_default_params()
        options.n_gpu_layers = 0
        options.use_mmap = False  # the file goes away
        options.use_extra_bufts = False  # repacked for AMX, 0.3.36 breaks down on some processors
        self._model = llama.llama_model_load_from_file(str(path).encode(), options)
        if not self._model:
            raise InputError(f"{self.label}: llama.cpp cannot load this model; another version may: 0.3.36 does")
        options = llama.llama_context_default_params()
        options.n_ctx = options.n_batch = self.config.max_position_embeddings
        options.n_threads = options.n_threads_batch = threads
        options.offload_kqv = options.op_offload = False
        self._context = llama.llama_init_from_model(self._model, options)
        if not self._context:
            raise InputError(f"{self.label}: llama.cpp cannot open a context of {self.config.max_position_embeddings}")

    def _decode(self, batch: Any) -> Logits:
        """Append a batch; a view of the logits [V] of its last token, valid until the next batch."""
        failed = self._llama.llama_decode(self._context, batch)
        if failed:
            raise InputError(f"{self.label}: llama_decode failed with status {failed} at length {self._length}")
        pointer = self._llama.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(pointer, shape=(self.config.vocab_size,))

    def _clear(self) -> None:
        self._llama.llama_memory_clear(self._memory, False)

    def _prefill(self, ids: Sequence[int]) -> Logits:
        array = (self._llama.llama_token * len(ids))(*(int(token) for token in ids))
        return self._decode(self._llama.llama_batch_get_one(array, len(ids))).copy()

    def _step(self, token: int) -> Logits:
        self._one[0] = int(token)
        return self._decode(self._batch_of_one).copy()

    def _decode_greedy(self, token: int, count: int) -> list[int]:
        chosen = []
        self._one[0] = int(token)
        for _ in range(count):
            chosen.append(int(self._decode(self._batch_of_one).argmax()))
            self._one[0] = chosen[-1]
        return chosen

    def _rewind(self, length: int) -> None:
        if not self._llama.llama_memory_seq_rm(self._memory, 0, length, -1):
            raise InputError(f"{self.label}: llama.cpp cannot cut its cache back to {length}")

    def _close(self) -> None:
        if self._context:
            self._llama.llama_free(self._context)
        if self._model:
            self._llama.llama_model_free(self._model)
        self._context = self._model = None


def open_llama(checkpoint: Checkpoint, threads: int) -> Iterator[Peer]:
    """llama.cpp's peers: float32 weights, and Q8_0 ones; of a file whose weights are packed these as they are.

    There is no Q8_0 peer where the width is not a multiple of Q8_0's block size: most of it would stay float32.

    Raises:
        InputError: the model has no architecture there, the temporary file cannot be written, or llama.cpp refuses the
            model.
    """
    config = checkpoint.config
    written = replace(checkpoint, config=config.with_gelu("tanh")) if config.family.gguf_as else checkpoint
    kinds = ["F32"] if config.hidden_size % _BLOCK_OF_Q8_0 else ["F32", "Q8_0"]
    suffix = ", tanh GELU" if config.family.gguf_as and config.hidden_act != "gelu_new" else ""
    for kind in [_AS_IT_IS] if checkpoint.packed else kinds:
        label = f"llama.cpp {kind}, {threads} thread{'s' * (threads > 1)}{suffix}"
        try:
            with tempfile.TemporaryDirectory(prefix="glinfer-") as folder:
                path = Path(folder) / "model.gguf"
                write_gguf(written, path, dtype=_DTYPES[kind])
                peer = LlamaPeer(checkpoint, path, label, threads)
        except OSError as error:
            raise InputError(
                f"cannot write a temporary model for llama.cpp: {reason(error)}; "
                "check the free space there, or set TMPDIR to another directory"
            ) from None
        yield peer
