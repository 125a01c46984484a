"""Convert a model to another format, with its tokenizer, template, end tokens and sampling defaults."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from glinfer.engine.defaults import usable_sampling
from glinfer.engine.fetching import found_model
from glinfer.engine.progress import Progress, no_progress
from glinfer.errors import InputError
from glinfer.formats import AS_IN_FILE, Checkpoint, load_checkpoint, replacing, save_checkpoint
from glinfer.formats.adapters.merge import merged, read_adapter
from glinfer.formats.files import AnyPath, check_ending, shown
from glinfer.formats.gguf.write import DTYPES as GGUF_DTYPES
from glinfer.formats.vision import image_metadata
from glinfer.formats.zipped import unpacked
from glinfer.inspect.importance import importance_from
from glinfer.quant.packing import PACKED_HERE
from glinfer.text.parts import TextParts, gguf_metadata, sidecar_files, text_parts

WEIGHTED = tuple(dtype for dtype, (kind, _) in GGUF_DTYPES.items() if kind in PACKED_HERE)
"""The dtypes that use an importance matrix."""


@dataclass(frozen=True)
class Converted:
    """The result of a conversion.

    Attributes:
        checkpoint: the source model.
        nbytes: the size of the target.
        beside: the other files of the target, written or already there with the same bytes.
        parts: the parts for text; ``parts.reason`` says why the tokenizer is missing.
    """

    checkpoint: Checkpoint
    nbytes: int
    beside: tuple[Path, ...]
    parts: TextParts


def convert_model(
    source: AnyPath,
    target: AnyPath,
    *,
    dtype: str | None = None,
    tokenizer: AnyPath | None = None,
    with_tokenizer: bool = True,
    imatrix: AnyPath | None = None,
    lora: AnyPath | None = None,
    lora_scale: float = 1.0,
    on_progress: Progress = no_progress,
) -> Converted:
    """Read a model and write it in the format of the target's suffix.

    A ``.gguf`` includes tokenizer, chat template, end tokens and sampling defaults. Other formats have them in files
    next to the target: ``TARGET.bpe``, or ``tokenizer.json``, ``tokenizer_config.json`` and ``chat_template.jinja``,
    and ``generation_config.json``. Everything is checked before the first byte is written.

    Args:
        source: a file or directory for :func:`glinfer.formats.load_checkpoint`, or a name, see
            :func:`glinfer.hub.find_model`.
        target: the file to write or replace.
        dtype: the type of matrices; by default float32, in a ``.gguf`` that of the source.
        tokenizer: a tokenizer to use instead of the model's; a ``.gguf`` includes its chat template.
        with_tokenizer: whether to write anything apart from the weights.
        imatrix: a text to run through the model, or llama.cpp's importance matrix in GGUF. It weights the rounding
            errors of each input, for a ``.gguf`` of one of :data:`WEIGHTED`.
        lora: an adapter to merge into the weights, see :func:`glinfer.formats.adapters.merge.merged`; changed matrices
            become float32 unless ``dtype`` is given.
        lora_scale: a factor for the adapter.
        on_progress: called with (finished chunks of the text, chunks).

    Raises:
        InputError: ``imatrix`` with a dtype that does not use it, or with ``lora``; the target is a file of the source,
            another tokenizer is next to the target, or the format cannot hold the model.
        FormatError: a file is damaged, has invalid sampling options, or cannot be written.
    """
    if imatrix is not None and dtype not in WEIGHTED:
        raise InputError(
            f"found --imatrix {f'with the dtype {dtype}' if dtype else 'without --dtype'}; expected one that is "
            f"searched: {', '.join(WEIGHTED)}; others do not use an importance matrix"
        )
    if imatrix is not None and lora is not None:
        raise InputError(
            "found --imatrix with --lora; expected one of them, as the importance must be that of the merged model; "
            "merge first, then convert the merged model"
        )
    in_itself = check_ending(target) == ".gguf"
    path = unpacked(found_model(source))
    checkpoint = load_checkpoint(path)
    checkpoint.check_finite()
    if lora is not None:
        checkpoint = merged(checkpoint, [read_adapter(lora, checkpoint.config, lora_scale, base=checkpoint)])
    parts = text_parts(path, tokenizer, checkpoint.config) if with_tokenizer else TextParts(None)
    if parts.sampling:
        parts = replace(parts, sampling=usable_sampling(path)[0])
    beside = {} if in_itself else sidecar_files(parts, target)
    own = () if parts.tokenizer is None or parts.tokenizer.path is None else (parts.tokenizer.path,)
    found = (*checkpoint.files, *(() if tokenizer is None else (Path(tokenizer),)), *own)
    _check_target(Path(target), found)
    new = {file: data for file, data in beside.items() if not _has(file, data)}
    _check_sidecars(new, Path(target), found)
    metadata = gguf_metadata(parts, checkpoint.config.vocab_size) if in_itself else None
    images = image_metadata(path, checkpoint.config) if in_itself else None
    dtype = dtype or (AS_IN_FILE if in_itself else "float32")
    importance = None
    if imatrix is not None:
        options = {"tokenizer": tokenizer, "on_progress": on_progress}
        importance = importance_from(imatrix, path, checkpoint.config, **options)
    with contextlib.ExitStack() as written:  # the other files replace old ones after the target
        for file, data in new.items():
            written.enter_context(replacing(file)).write_bytes(data)
        further = {"sampling": parts.sampling, "importance": importance}
        save_checkpoint(checkpoint, target, dtype=dtype, tokenizer=metadata, images=images, **further)
    return Converted(checkpoint, Path(target).stat().st_size, tuple(beside), parts)


def _same(file: Path, others: Iterable[Path]) -> Path | None:
    """The file among ``others`` that is the same as ``file``, through any links; None without one."""
    for other in others:
        try:
            if os.path.samefile(file, other):  # noqa: PTH121 (Path.samefile raises its own kind of error)
                return other
        except (OSError, ValueError):
            continue
    return None


def _check_target(target: Path, sources: Iterable[Path]) -> None:
    own = _same(target, sources)
    if own is not None:
        found = "the source itself" if own == target else f"the same file as {shown(own)}"
        raise InputError(
            f"{shown(target)}: found {found}, which converting would replace; expected another file; give a new name"
        )


def _has(file: Path, data: bytes) -> bool:
    try:
        return file.stat().st_size == len(data) and file.read_bytes() == data
    except OSError:
        return False


def _check_sidecars(files: Iterable[Path], target: Path, sources: Iterable[Path]) -> None:
    """Refuse to replace files that may belong to another model; files named after the target may be replaced."""
    for file in files:
        if (file.stem != target.stem and os.path.lexists(file)) or _same(file, sources) is not None:
            raise InputError(
                f"{shown(file)}: found another model's, with other contents; expected none, as this model's file goes "
                "there; give a target in a new directory, or leave the tokenizer out (--no-tokenizer)"
            )
