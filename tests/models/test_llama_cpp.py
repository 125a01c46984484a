"""The same GGUF files in glinfer and in llama.cpp: logits after each of 64 tokens, the text given.

Both multiply with the same weights, so what differs is rounding. glinfer unpacks a block and multiplies float32.
llama.cpp rounds what it multiplies with: for F16 matrices to half floats; for Q8_0 and Q4_0 to 8-bit integers in blocks
of 32 numbers, for the K formats in blocks of 256. GELU it takes from a table of half floats, for F32 matrices too. Keys
and values are float32 here and "flash attention" is off, so that they add no noise.

`.venv/bin/python -m pytest -m slow -s` on this file shows how much differs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens.llama import THREADS, llama_cpp, llama_logits

import glinfer
from glinfer.config import ModelConfig
from glinfer.formats import load_checkpoint, random_checkpoint, weight_shapes, write_gguf

pytestmark = [pytest.mark.gl, pytest.mark.slow]

Array = np.ndarray[Any, Any]
LLAMA = ModelConfig(
    512, 256, 4, 4, 256,
    intermediate_size=512, model_type="llama", hidden_act="silu", num_key_value_heads=2, head_dim=64,
)  # fmt: skip
DTYPES = {"F32": "float32", "F16": "float16", "Q8_0": "q8_0", "Q4_0": "q4_0"}
"""What glinfer writes itself."""
NOISE = {
    ("shakespeare", "F32"): 6.1e-4, ("shakespeare", "Q4_K_M"): 4.4e-2, ("llama", "F32"): 1e-5,
    ("llama", "F16"): 1.9e-3, ("llama", "Q8_0"): 5.3e-2, ("llama", "Q4_0"): 5.0e-2,
}  # fmt: skip
"""The RMS of what llama.cpp's roundings change, of a simulation in float64; in the F32 Llama there are none."""
NOISES = 1.5
"""What was found is 0.9 to 1.1 times the noise. A transposed matrix in one layer alone of the bundled model makes 2.4
times of it in Q4_K, so that there is little room above."""
SURE = 4.0 * 2**0.5  # so many times the noise between the best two logits; the √2 is for a difference of two
TEXT = """ROMEO:
But, soft! what light through yonder window breaks?
It is the east, and Juliet is the sun.
Arise, fair sun, and kill the envious moon,
Who is already sick and pale with grief."""


@pytest.fixture(scope="module")
def ids() -> dict[str, list[int]]:
    """The 64 tokens that each model reads."""
    with glinfer.load("shakespeare") as model:
        text = model.require_tokenizer().encode(TEXT)[:64]
    return {"shakespeare": text, "llama": np.random.default_rng(0).integers(0, LLAMA.vocab_size, 64).tolist()}


def write(path: Path, name: str, kind: str) -> None:
    """A model in a format that glinfer writes, or that llama.cpp makes of floats."""
    # At this scale attention is sharp: logits depend on every rotation and on every head.
    whole = load_checkpoint(name) if name == "shakespeare" else random_checkpoint(LLAMA, seed=3, scale=0.08)
    write_gguf(whole, path, dtype=DTYPES.get(kind, "float32"))
    if kind not in DTYPES:
        source, llama = path.rename(path.with_suffix(".f32")), llama_cpp()
        options = llama.llama_model_quantize_default_params()
        options.ftype, options.nthread = getattr(llama, f"LLAMA_FTYPE_MOSTLY_{kind}"), THREADS
        assert llama.llama_model_quantize(str(source).encode(), str(path).encode(), options) == 0


def glinfer_logits(path: Path, ids: list[int]) -> Array:
    """The logits after each token, run one by one, and once more after all of them, run together."""
    with glinfer.load(path, weights="file") as model, model.session() as session:
        found = []
        for token in ids:
            session.step(token)
            found.append(session.logits())
        return np.array([*found, model.logits(ids)], np.float64)


@pytest.mark.parametrize(("name", "kind"), NOISE)
def test_logits_differ_by_the_rounding_of_llama_cpp(
    name: str, kind: str, ids: dict[str, list[int]], tmp_path: Path
) -> None:
    for package in ("llama_cpp", "gguf"):
        pytest.importorskip(package, reason=f"{package} is not installed (make test-all)")
    write(path := tmp_path / "m.gguf", name, kind)
    formats, shapes = load_checkpoint(path).formats(), weight_shapes(load_checkpoint(path).config)
    matrices = {each for each, shape in shapes.items() if len(shape) == 2} - {"transformer.wpe.weight"}
    assert {formats[each] for each in matrices} == ({"Q4_K", "Q6_K"} if kind == "Q4_K_M" else {kind})
    *stepped, together = glinfer_logits(path, ids[name])
    ours, noise = np.array(stepped), NOISE[name, kind]
    assert np.abs(together - ours[-1]).max() <= 1e-5 * np.ptp(ours)
    best = np.sort(ours, axis=-1)[:, -2:]
    sure = best[:, 1] - best[:, 0] > SURE * noise
    assert sure.sum() >= len(ours) / 8, "too few tokens are judged"
    for batched in (False, True):
        theirs = llama_logits(path, ids[name], together=batched)
        rms, largest = float(np.sqrt(((ours - theirs) ** 2).mean())), np.abs(ours - theirs).max()
        same = ours.argmax(-1) == theirs.argmax(-1)
        print(f"\n{name} {kind}: range {np.ptp(ours):.1f}, RMS {rms:.1e}, max {largest:.1e}, top-1 {same.sum()}")
        assert rms <= NOISES * noise
        assert rms * NOISES >= noise or noise <= 1e-5
        assert same[sure].all()
