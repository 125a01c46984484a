"""The model in llama.cpp, on the CPU, through a temporary GGUF file; Gab as a GPT-2 whose other biases are 0.

llama.cpp's GELU is the tanh form, looked up in half floats, and keys and values are cached as half floats: its
defaults, and the fastest. They leave logits about 1e-3 off float32. A model with the erf form is labelled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from glinfer.errors import InputError
from glinfer.formats.checkpoint import Checkpoint
from qa.peers.peer import Logits, Peer, required, temporary_gguf, threads_text

_PEER = "llama-cpp"
_AS_IT_IS = "as in the file"
_DTYPES = {"F32": "float32", "Q8_0": "q8_0", _AS_IT_IS: None}
_BLOCK_OF_Q8_0 = 32


class LlamaPeer(Peer):
    """One llama.cpp model with one context; its cache of keys and values is as long as the model's context."""

    def __init__(self, checkpoint: Checkpoint, path: Path, label: str, threads: int) -> None:
        """Load the GGUF file at ``path`` that was made from ``checkpoint``; it may be deleted afterwards."""
        super().__init__(checkpoint.config, label)
        llama: Any = required("llama_cpp", _PEER)
        # The library's own logger, of which all but the worst would run across a progress bar.
        logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL)
        llama.llama_backend_init()
        with ExitStack() as held:
            options = llama.llama_model_default_params()
            options.n_gpu_layers = 0
            options.use_mmap = False  # the file goes away
            options.use_extra_bufts = False  # repacked for AMX, 0.3.36 breaks down on some processors
            model = llama.llama_model_load_from_file(str(path).encode(), options)
            if not model:
                raise InputError(f"{label}: llama.cpp cannot load this model; another version may: 0.3.36 does")
            held.callback(llama.llama_model_free, model)
            options = llama.llama_context_default_params()
            options.n_ctx = options.n_batch = self.config.max_position_embeddings
            options.n_threads = options.n_threads_batch = threads
            options.offload_kqv = options.op_offload = False
            context = llama.llama_init_from_model(model, options)
            if not context:
                raise InputError(f"{label}: llama.cpp cannot open a context of {self.config.max_position_embeddings}")
            held.callback(llama.llama_free, context)
            self._held = held.pop_all()
        self._llama, self._context, self._memory = llama, context, llama.llama_get_memory(context)

    def append(self, ids: Sequence[int]) -> Logits:
        """See :class:`Peer`."""
        array = (self._llama.llama_token * len(ids))(*map(int, ids))  # the batch only points to it
        failed = self._llama.llama_decode(self._context, self._llama.llama_batch_get_one(array, len(ids)))
        if failed:
            raise InputError(f"{self.label}: llama_decode failed with status {failed} at length {self.length}")
        self.length += len(ids)
        pointer = self._llama.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(pointer, shape=(self.config.vocab_size,)).copy()

    def rewind(self, length: int) -> None:
        """See :class:`Peer`."""
        if not self._llama.llama_memory_seq_rm(self._memory, 0, length, -1):
            raise InputError(f"{self.label}: llama.cpp cannot cut its cache back to {length}")
        super().rewind(length)

    def close(self) -> None:
        """See :class:`Peer`."""
        self._held.close()


def opened(checkpoint: Checkpoint, threads: int) -> Iterator[Peer]:
    """llama.cpp's peers: float32 weights, and Q8_0 ones; of a file whose weights are packed these as they are.

    There is no Q8_0 peer where the width is not a multiple of Q8_0's block size: most of it would stay float32.

    Raises:
        InputError: the model has no architecture there, the temporary file cannot be written, or llama.cpp refuses the
            model.
    """
    config = checkpoint.config
    kinds = ["F32"] if config.hidden_size % _BLOCK_OF_Q8_0 else ["F32", "Q8_0"]
    suffix = ", tanh GELU" if config.family.gguf_as and config.hidden_act != "gelu_new" else ""
    for kind in [_AS_IT_IS] if checkpoint.packed else kinds:
        label = f"llama.cpp {kind}, {threads_text(threads)}{suffix}"
        with temporary_gguf(checkpoint, "llama.cpp", _DTYPES[kind]) as path:
            peer = LlamaPeer(checkpoint, path, label, threads)
        yield peer
