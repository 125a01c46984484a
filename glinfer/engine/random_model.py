"""A model of Gab's full shape with seeded random weights, for demos and benchmarks without a trained model.

Its text is noise; draws, textures and speed equal those of a trained model. The tokenizer is a byte-level BPE learned
from Python's own documentation after Gab's control tokens, with as many entries as the model has.
"""

from __future__ import annotations

from pathlib import Path
from pydoc_data.topics import topics

from glinfer.config import ModelConfig
from glinfer.errors import InputError
from glinfer.families import DEFAULT_SHAPE
from glinfer.formats import BpeModel, random_checkpoint, save_checkpoint, write_bpe
from glinfer.formats.files import cache_folder
from glinfer.text.tokenizer import learn_bpe

SEED = 2
_CONTROL = ("<|end|>", "<|user|>", "<|assistant|>", "<|think|>")


def demo_folder() -> Path:
    """Return the folder of the demo's files: ``demo`` in :func:`glinfer.formats.files.cache_folder`.

    Raises:
        InputError: this user has no cache folder.
    """
    return cache_folder() / "demo"


def write_demo(folder: Path, config: ModelConfig | None = None) -> tuple[Path, Path]:
    """Write ``random.gab`` and ``random.bpe`` into ``folder`` unless they exist; returns both paths.

    Raises:
        InputError: the folder cannot be made, or no tokenizer of the model's size can be learned.
        FormatError: a file cannot be written.
    """
    config = config or ModelConfig.from_options("")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot make this folder: {error.strerror}; set XDG_CACHE_HOME") from None
    model, tokenizer = folder / "random.gab", folder / "random.bpe"
    if not tokenizer.is_file():
        write_bpe(demo_tokenizer(config.vocab_size), tokenizer)
    if not model.is_file():
        save_checkpoint(random_checkpoint(config, seed=SEED), model)
    return model, tokenizer


def demo_tokenizer(size: int = DEFAULT_SHAPE["vocab"]) -> BpeModel:
    """Learn a byte-level BPE of ``size`` entries: bytes, control tokens, then merges from documentation.

    Raises:
        InputError: the documentation yields fewer entries.
    """
    learned = learn_bpe(topics.values(), size, _CONTROL)
    if len(learned.vocabulary) != size:
        nearest = len(learned.vocabulary)
        raise InputError(f"a demo tokenizer of {size} entries is not possible; the nearest size is {nearest}")
    return learned
