"""llama.cpp on the CPU: logits, vectors and ids of GGUF files; keys and values float32, attention step by step."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Array = np.ndarray[Any, Any]
THREADS = 1  # it waits for its threads in loops, which the other processes of the tests would slow down


def llama_cpp() -> Any:
    """The package, saying only the worst; a test that needs it is skipped where it is not installed."""
    library = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (make test-all)")
    logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL)
    library.llama_backend_init()
    return library


@contextmanager
def _context(path: Path, positions: int, *, embeddings: bool = False) -> Iterator[tuple[Any, Any]]:
    """llama.cpp with the model on the CPU: the library and a context."""
    llama = llama_cpp()
    options = llama.llama_model_default_params()
    options.n_gpu_layers, options.use_mmap, options.use_extra_bufts = 0, False, False
    model = llama.llama_model_load_from_file(str(path).encode(), options)
    assert model, f"llama.cpp cannot load {path}"
    try:
        settings = llama.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = positions
        settings.n_threads = settings.n_threads_batch = THREADS
        settings.embeddings = embeddings
        settings.offload_kqv = settings.op_offload = False
        settings.type_k = settings.type_v = llama.GGML_TYPE_F32
        settings.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
        context = llama.llama_init_from_model(model, settings)
        assert context, f"llama.cpp opens no context for {path}"
        try:
            yield llama, context
        finally:
            llama.llama_free(context)
    finally:
        llama.llama_model_free(model)


def _decode(llama: Any, context: Any, ids: Sequence[int], first: int = 0) -> None:
    """Run tokens together, the first at position ``first``; every one has an output."""
    batch = llama.llama_batch_init(len(ids), 0, 1)
    try:
        batch.n_tokens = len(ids)
        for place, token in enumerate(ids):
            batch.token[place], batch.pos[place] = token, first + place
            batch.n_seq_id[place], batch.seq_id[place][0], batch.logits[place] = 1, 0, True
        assert llama.llama_decode(context, batch) == 0
    finally:
        llama.llama_batch_free(batch)


def llama_logits(path: Path, ids: list[int], *, together: bool = True) -> Array:
    """llama.cpp's logits [tokens, vocab] after each token, float64; the tokens together or one after the other."""
    step, found = len(ids) if together else 1, []
    with _context(path, max(256, len(ids))) as (llama, context):
        count = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(llama.llama_get_model(context)))
        for start in range(0, len(ids), step):
            _decode(llama, context, ids[start : start + step], start)
            for place in range(step):
                pointer = llama.llama_get_logits_ith(context, place)
                found.append(np.ctypeslib.as_array(pointer, shape=(count,)).astype(np.float64))
    return np.stack(found)


def llama_vectors(path: Path, texts: Sequence[Sequence[int]], width: int) -> Array:
    """llama.cpp's vector of each list of ids, float32 [n, width], pooled as the file says and not normalised."""
    found = []
    with _context(path, 512, embeddings=True) as (llama, context):
        for ids in texts:
            memory = llama.llama_get_memory(context)
            if memory:
                llama.llama_memory_clear(memory, True)
            _decode(llama, context, ids)
            found.append(np.ctypeslib.as_array(llama.llama_get_embeddings_seq(context, 0), shape=(width,)).copy())
    return np.array(found)


def llama_ids(path: Path, texts: Iterable[str], *, special: bool = True) -> list[list[int]]:
    """llama.cpp's tokens of texts: with control tokens and what stands around a text, or as plain text."""
    model = llama_cpp().Llama(str(path), vocab_only=True, verbose=False)
    return [model.tokenize(text.encode(), add_bos=special, special=special) for text in texts]
