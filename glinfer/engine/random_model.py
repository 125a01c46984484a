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
    """The folder ``demo`` in the cache folder; InputError if this user has none."""
    return cache_folder() / "demo"


def write_demo(folder: Path, config: ModelConfig | None = None) -> tuple[Path, Path]:
    """Write ``random.gab`` and ``random.bpe`` into ``folder`` unless they exist; returns both paths.

    Raises InputError or FormatError if the folder or a file cannot be written, or no such tokenizer can be learned.
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
    """Learn a BPE of ``size`` entries: bytes, control tokens, merges from documentation; InputError if too few."""
    learned = learn_bpe(topics.values(), size, _CONTROL)
    if len(learned.vocabulary) != size:
        nearest = len(learned.vocabulary)
        raise InputError(f"cannot make a demo tokenizer with {size} entries; the nearest size is {nearest}")
    return learned
