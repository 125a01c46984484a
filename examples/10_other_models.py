"""Run a Llama from GGUF files, its weights packed as in the files. Needs the extra: pip install 'glinfer[gguf]'."""

import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

import glinfer
from glinfer import ModelConfig
from glinfer.formats import load_checkpoint, random_checkpoint, save_checkpoint

SHAPE = "family=llama,blocks=4,heads=8,kv_heads=2,dim=256,inner=768,vocab=1000,context=8192"
PROMPT = [1, 2, 3, 4, 5]


def show(path: str | Path) -> np.ndarray:
    """Generate ids; print formats, draws of a token and texture memory. Returns the prompt's logits."""
    checkpoint = load_checkpoint(path)  # maps the file and reads only its header
    formats = Counter(checkpoint.formats().values())
    context = min(512, checkpoint.config.max_position_embeddings)  # keys and values take memory for every position
    with glinfer.load(path, context=context) as model:
        stream = model.stream(PROMPT, max_tokens=8, temperature=0)
        ids = list(stream)
        planned, issued = model.draws().total, stream.stats.draws_per_token
        edge = model.device.limits.max_texture_size
        logits = model.logits(PROMPT)
        weights, cache = (model.plan.texture_bytes(edge, kind) for kind in ("weight", "cache"))
        print(f"{Path(path).name}: {', '.join(f'{count} tensors in {name}' for name, count in formats.items())}")
        print(f"  ids {ids}")
        print(f"  {planned} draws/token planned, {issued:g} issued; as planned: {issued == planned}")
        print(f"  textures: weights {weights / 1e6:.1f} MB, cache {cache / 1e6:.1f} MB")
    with glinfer.load(path, context=context, plan="reference") as model:  # the whole sequence, in the simplest passes
        same = list(model.stream(PROMPT, max_tokens=8, temperature=0)) == ids
        print(f"  the reference plan chooses the same ids: {same}")
    return logits


if len(sys.argv) > 1:
    show(sys.argv[1])  # a model of your own: a .gguf, a Hugging Face directory, …
    sys.exit()

with tempfile.TemporaryDirectory() as folder:
    llama = random_checkpoint(ModelConfig.from_options(SHAPE), seed=1, scale=0.08)  # noise, in a Llama's shape
    exact = None
    for dtype in ("float32", "q8_0", "q4_0"):
        path = Path(folder) / f"noise-{dtype}.gguf"
        save_checkpoint(llama, path, dtype=dtype)
        found = show(path)
        exact = found if exact is None else exact
        print(f"  logits are off float32's by {np.abs(found - exact).max() / np.ptp(exact):.2%} of their range")
