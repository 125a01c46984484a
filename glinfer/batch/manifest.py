"""What results were made with, in a file beside them, so that no run mixes two kinds."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glinfer import __version__
from glinfer.batch.places import Target
from glinfer.errors import FormatError, InputError
from glinfer.formats.files import AnyPath, inside, opened, reason, shown
from glinfer.formats.gguf.split import gguf_parts
from glinfer.formats.huggingface.files import CONFIG
from glinfer.formats.jsonl import parse_object, short

_MAX_BYTES = 1 << 20
_CHUNK = 1 << 20
_OF_MODELS = (".json", ".safetensors", ".bin")
Fingerprint = Mapping[str, Any]
"""Names of what determines results, and values as JSON has them."""


def write_manifest(target: Target, fingerprint: Fingerprint) -> None:
    """Write what the results of ``target`` are made with, where it is not written already.

    Written in place while the file of results is empty: what is torn then counts for nothing.

    Raises:
        FormatError: it cannot be written.
    """
    path, told = target.manifest, json.dumps({"glinfer": __version__, **fingerprint}, indent=1) + "\n"
    try:
        if not path.exists() or path.read_text(encoding="utf-8", errors="replace") != told:
            path.write_text(told, encoding="utf-8")
    except OSError as error:
        raise FormatError(
            f"{shown(path)}: cannot write it: {reason(error)}; check the free space and the permissions"
        ) from None


def check_manifest(target: Target, fingerprint: Fingerprint, *, required: bool) -> None:
    """Compare what earlier results were made with.

    Args:
        target: the file of results, which has some.
        fingerprint: of this run.
        required: whether results without a manifest are refused.

    Raises:
        InputError: something differs (names the first three), or the manifest is missing or is none.
    """
    path, ours = target.manifest, {"glinfer": __version__, **fingerprint}
    if not path.exists():
        if required:
            raise InputError(
                f"{shown(target.path)}: its manifest {shown(path.name)} is missing, which says what the results were "
                "made with; put it back, give another --out, or --restart to start over"
            )
        return
    with opened(path) as (file, _):
        try:
            theirs = parse_object(file.read(_MAX_BYTES), '{"glinfer": "1.0"}')
        except InputError as error:
            raise InputError(f"{shown(path)}: {error}; give another --out, or --restart to start over") from None
    ours = json.loads(json.dumps(ours))
    differing = _differences(theirs, ours, "")
    if differing:
        raise InputError(
            f"{shown(target.path)}: its results were made with {', '.join(differing[:3])}; "
            "give another --out, or --restart to discard them and start over"
        )


def _differences(theirs: Any, ours: Any, name: str) -> list[str]:
    """What differs, as ``weights q8 (now f32)``; in nested objects by dotted names."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        found = []
        for key in sorted({*theirs, *ours}):
            found += _differences(theirs.get(key), ours.get(key), f"{name}.{key}" if name else key)
        return found
    return [] if theirs == ours else [f"{name} {short(theirs)} (now {short(ours)})"]


def file_digest(path: AnyPath) -> str:
    """Hash a checkpoint to 16 hex digits of SHA-256.

    Of a model's directory, the names and contents of its .json, .safetensors and .bin files count; a config.json, a
    manifest, or a safetensors file beside a config.json stands for its directory. Of a GGUF file in parts all count.

    Raises:
        FormatError: a file cannot be read.
    """
    digest, parts = hashlib.sha256(), files_of(path)
    for part in parts or [Path(path)]:
        if parts:
            digest.update(os.fsencode(part.name) + b"\0")
        with opened(inside(part) if parts else part) as (file, _):
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()[:16]


def files_of(path: AnyPath) -> list[Path]:
    """The files of a checkpoint that has several; none where ``path`` is its only one. Errors as in file_digest."""
    folder = Path(path)
    stands = folder.suffix == ".json" or (folder.suffix == ".safetensors" and (folder.parent / CONFIG).exists())
    if stands and not folder.is_dir():
        folder = folder.parent
    return _parts_of(folder) if folder.is_dir() else list(gguf_parts(folder))


def _parts_of(folder: Path) -> list[Path]:
    try:
        return sorted(part for part in folder.iterdir() if part.suffix in _OF_MODELS)
    except OSError as error:
        raise FormatError(f"{shown(folder)}: cannot read it: {reason(error)}; check its permissions") from None
