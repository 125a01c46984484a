"""Blocks of every format that llama.cpp's own quantiser makes: the logits are those of llama.cpp, but for its rounding.

Each matrix is quantised by its library, with importance where the format asks for it; both read the same file. glinfer
has to be within 1e-4 of the range of the logits that float64 gives with the weights that the package gguf unpacks.
llama.cpp rounds activations to 8-bit integers beside such weights, and is further off.
"""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens.gguf_models import config
from llama_cpp_peer import Arithmetic, llama_logits

import glinfer
from glinfer.formats import Checkpoint, load_checkpoint, random_checkpoint, write_gguf
from glinfer.formats.packed import PackedTensor
from glinfer.quant.formats import BLOCK_FORMATS, block_format

pytestmark = [pytest.mark.gl, pytest.mark.slow]

FORMATS = [name for name, form in BLOCK_FORMATS.items() if form.number >= BLOCK_FORMATS["IQ4_NL"].number]
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
EXACT, ROUNDED = 1e-4, 0.06  # of the range

gguf = pytest.importorskip("gguf", reason="gguf is not installed (make test-all)")


@pytest.fixture(scope="module")
def quantize() -> Any:
    """``ggml_quantize_chunk`` of llama.cpp's library."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama_cpp is not installed (make test-all)")
    logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL)  # the library's own
    library = ctypes.CDLL(str(next((Path(llama_cpp.__file__).parent / "lib").glob("*ggml-base*"))))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,
        *[ctypes.c_void_p] * 2,
        *[ctypes.c_int64] * 3,
        ctypes.c_void_p,
    ]
    return library.ggml_quantize_chunk


def quantised(made: Checkpoint, name: str, quantize: Any) -> Checkpoint:
    """The same model with its matrices as llama.cpp quantises them."""
    tensors, packed = {}, {}
    for tensor, values in made.tensors.items():
        if values.ndim == 1:
            tensors[tensor] = values
            continue
        rows, inputs = values.shape
        weights = np.ascontiguousarray(values, dtype=np.float32)
        importance = np.random.default_rng(rows).uniform(0.5, 2.0, inputs).astype(np.float32)
        blocks = np.zeros((rows, block_format(name).row_bytes(inputs)), np.uint8)
        kind = int(gguf.GGMLQuantizationType[name])
        given = importance.ctypes.data
        assert quantize(kind, weights.ctypes.data, blocks.ctypes.data, 0, rows, inputs, given) == blocks.size
        packed[tensor] = PackedTensor(name, blocks)
    return Checkpoint(made.config, tensors, name, packed)


@pytest.mark.parametrize("name", FORMATS[::3])
def test_logits_are_those_of_llama_cpp(name: str, quantize: Any, tmp_path: Path) -> None:
    wide = config("llama", hidden_size=256, intermediate_size=256, vocab_size=96, num_hidden_layers=2)
    path = tmp_path / "model.gguf"
    write_gguf(quantised(random_checkpoint(wide, seed=7, scale=0.05), name, quantize), path, dtype=None)
    found = load_checkpoint(path)
    assert set(found.formats().values()) == {"F32", name}
    exact = Arithmetic(found).logits(IDS)
    extent = np.ptp(exact)
    with glinfer.load(path, weights="file") as model:
        ours = model.logits(IDS)
    theirs = llama_logits(path, IDS, wide.vocab_size)
    print(
        f"\n{name:8} range {extent:6.2f}, glinfer {np.abs(ours - exact[-1]).max() / extent:.1e} of it, "
        f"llama.cpp {np.abs(theirs - exact).max() / extent:.1e}",
        end="",
    )
    assert np.abs(ours - exact[-1]).max() <= EXACT * extent
    assert np.abs(theirs - exact).max() <= ROUNDED * extent
