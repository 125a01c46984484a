"""Floats packed as K formats and IQ4: errors as small as those of llama.cpp's quantiser, and what importance does."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_case import each_case

from glinfer.errors import InputError
from glinfer.quant.formats import block_format
from glinfer.quant.ggml import dequantize, pack
from glinfer.quant.packing import PACKED_HERE

Array = np.ndarray[Any, Any]
every_format = each_case("name", PACKED_HERE)
NEAR = {"Q2_K": 0.34, "Q3_K": 0.17, "Q4_K": 0.075, "Q5_K": 0.038, "Q6_K": 0.019, "IQ4_NL": 0.08, "IQ4_XS": 0.08}
"""The RMS of errors of normal weights, over the RMS of the weights."""
ALIKE = 1.002
"""How much larger than llama.cpp's errors those here may be; found: 1.0002."""

gguf = pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")


def normal(rows: int = 6, inputs: int = 512) -> Array:
    return np.random.default_rng(3).standard_normal((rows, inputs)).astype(np.float32)


def importance_of(inputs: int) -> Array:
    return np.random.default_rng(4).gamma(0.5, 1.0, inputs).astype(np.float32)


def error(weights: Array, blocks: Array, name: str, importance: Array | float = 1.0) -> float:
    """The RMS of the errors, each times the importance of its input, over that of the weights."""
    off = (dequantize(blocks, name) - weights) ** 2 * importance
    return float(np.sqrt(off.mean() / (weights**2 * importance).mean()))


@every_format
def test_errors_are_small_and_importance_moves_them_to_where_they_do_not_matter(name: str) -> None:
    weights, importance = normal(), importance_of(512)
    blocks, weighted = pack(weights, name), pack(weights, name, importance)
    assert blocks.shape == (6, block_format(name).row_bytes(512))
    assert error(weights, blocks, name) <= NEAR[name]
    assert np.array_equal(pack(weights[:, None], name)[:, 0], blocks)
    assert np.array_equal(pack(weights[2:3], name), blocks[2:3]), "a row depends on the others"
    assert error(weights, weighted, name, importance) < 0.995 * error(weights, blocks, name, importance)


@every_format
def test_zeros_and_equal_weights_stay(name: str) -> None:
    zeros = np.zeros((2, 256), np.float32)
    assert not dequantize(pack(zeros, name), name).any()
    for value in (1.0, -0.25, 1e-9):
        found = dequantize(pack(np.full((1, 256), value, np.float32), name), name)
        assert np.abs(found - value).max() <= max(0.02 * abs(value), 6e-8)
    one = zeros.copy()
    one[1, 77] = -3.0
    found = dequantize(pack(one, name), name)
    assert found[1, 77] == pytest.approx(-3.0, rel=0.01)
    assert not found[0].any()
    assert np.abs(np.delete(found[1], 77)).max() <= 0.03  # the table of IQ4 has no zero, but a 1 beside its 127


@every_format
def test_weights_beyond_half_floats_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=rf"^a weight of \S+ is too large for {name}; scale the weights down"):
        pack(np.where(np.arange(256) == 3, np.float32(1e30), np.float32(-1e30))[None], name)


def llama_blocks(weights: Array, name: str, importance: Array | None) -> Array:
    """What llama.cpp's own quantiser makes."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama_cpp is not installed (make test-all)")
    library = next((Path(llama_cpp.__file__).parent / "lib").glob("*ggml-base*"))
    quantize = ctypes.CDLL(str(library)).ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]
    rows, inputs = weights.shape
    found = np.zeros((rows, block_format(name).row_bytes(inputs)), np.uint8)
    given = None if importance is None else importance.ctypes.data
    kind = int(gguf.GGMLQuantizationType[name])
    assert quantize(kind, weights.ctypes.data, found.ctypes.data, 0, rows, inputs, given) == found.size
    return found


@pytest.mark.slow
@every_format
@each_case("weighted, heavy", [(False, False), (True, False), (False, True)])
def test_errors_are_as_small_as_llama_cpps(name: str, weighted: bool, heavy: bool) -> None:
    random = np.random.default_rng(5)
    drawn = random.standard_t(4, (32, 1024)) if heavy else random.standard_normal((32, 1024))
    weights = np.ascontiguousarray(0.03 * drawn, dtype=np.float32)
    importance = importance_of(1024) if weighted else None
    each: Array | float = 1.0 if importance is None else importance
    ours = error(weights, pack(weights, name, importance), name, each)
    theirs = error(weights, llama_blocks(weights, name, importance), name, each)
    assert ours <= ALIKE * theirs
