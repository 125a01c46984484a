"""Default stop ids: the end-of-text tokens of a model."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from glinfer.config import ModelConfig
from glinfer.errors import FormatError, GlinferWarning
from glinfer.families.settings import quoted
from glinfer.formats.files import AnyPath, inside, is_directory, shown
from glinfer.formats.gguf.file import is_gguf
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.huggingface.files import CONFIG, GENERATION_CONFIG
from glinfer.formats.json_files import read_json
from glinfer.limits import MAX_CONFIG_BYTES
from glinfer.text.tokenizer import END_OF_TURN, Tokenizer
from glinfer.text.tokenizers.gguf import gguf_stops


def stop_ids_of(path: AnyPath) -> tuple[int, ...]:
    """The end-of-text ids of the model in a Hugging Face directory or a GGUF file; empty if it names none.

    In a directory they are ``eos_token_id`` (a number or a list) of ``generation_config.json``, else of
    ``config.json``. Negative ids, which some configurations use for "none", are left out. A malformed value in
    ``generation_config.json`` is skipped with a GlinferWarning. If that file cannot be read it is skipped, and
    :func:`glinfer.formats.sampling.recommended_sampling` warns of it. A GGUF file's ids come from
    :func:`glinfer.text.tokenizers.gguf.gguf_stops`; an unusable vocabulary has none.
    """
    if is_gguf(path):
        found_in = read_gguf_file(path)
        try:
            return gguf_stops(found_in.metadata, found_in.source)
        except FormatError:  # find_tokenizer reports it
            return ()
    folder = Path(path) if is_directory(path) else Path(path).parent
    for name in (GENERATION_CONFIG, CONFIG):
        file = folder / name
        if not os.path.lexists(file):
            continue
        try:
            found = read_json(inside(file), MAX_CONFIG_BYTES).get("eos_token_id")
        except FormatError:
            if name == CONFIG:
                raise
            continue
        ids = found if isinstance(found, list) else [] if found is None else [found]
        if any(isinstance(token, bool) or not isinstance(token, int) for token in ids):
            words = f"{shown(file)}: eos_token_id is {quoted(found)}; expected a token id or a list of them"
            if name == CONFIG:
                raise FormatError(words)
            warnings.warn(f"{words}; using those of {CONFIG}", GlinferWarning, stacklevel=2)
            continue
        if ids := [token for token in ids if token >= 0]:
            return tuple(dict.fromkeys(ids))
    return ()


def named_stops(checkpoint: AnyPath, tokenizer: Tokenizer | None, config: ModelConfig) -> tuple[int, ...]:
    """The end-of-text ids that a model's files name, else those in the files of its tokenizer.

    Empty for families whose record names end tokens.
    """
    if config.family.stops:
        return ()
    beside = None if tokenizer is None else tokenizer.path
    for path in (checkpoint, *(() if beside is None else (beside,))):
        if known := tuple(token for token in stop_ids_of(path) if token < config.vocab_size):
            return known
    return ()


def default_stops(checkpoint: AnyPath, tokenizer: Tokenizer | None, config: ModelConfig) -> tuple[int, ...]:
    """The end-of-text ids of a model: those of :func:`named_stops`, else the tokenizer's ``<|end|>``.

    If the record of its family names end tokens, they are always the tokenizer's ids of these.
    """
    if known := named_stops(checkpoint, tokenizer, config):
        return known
    if tokenizer is None:
        return ()
    names = config.family.stops or (END_OF_TURN,)
    return tuple(token for name in names if (token := tokenizer.special_id(name)) is not None)
