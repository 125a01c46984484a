"""A manifest next to results records model and options, so that no run mixes two kinds of results."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glinfer import __version__
from glinfer.errors import FormatError, InputError
from glinfer.formats.files import AnyPath, inside, opened, reason, shown, writing
from glinfer.formats.gguf.split import gguf_parts
from glinfer.formats.huggingface.files import CONFIG
from glinfer.formats.jsonl import parse_object, short
from glinfer.jobs.files import Target

_MAX_BYTES = 1 << 20
_CHUNK = 1 << 20
_OF_MODELS = (".json", ".safetensors", ".bin")
Fingerprint = Mapping[str, Any]
"""Names and JSON values of everything that determines results."""


def write_manifest(target: Target, fingerprint: Fingerprint) -> None:
    """Write the manifest of ``target``, unless it is up to date.

    It is written in place while the file of results is empty, so a torn manifest does no harm.
    """
    path, text = target.manifest, json.dumps({"glinfer": __version__, **fingerprint}, indent=1) + "\n"
    with writing(path):
        if not path.exists() or path.read_text(encoding="utf-8", errors="replace") != text:
            path.write_text(text, encoding="utf-8")


def check_manifest(target: Target, fingerprint: Fingerprint, *, required: bool) -> None:
    """Compare the manifest of earlier results with this run."""
    path, ours = target.manifest, {"glinfer": __version__, **fingerprint}
    if not path.exists():
        if required:
            raise InputError(
                f"{shown(target.path)}: its manifest {shown(path.name)} is missing, so the model and options of its "
                "results are unknown; restore it, give another --out, or --restart to start over"
            )
        return
    with opened(path) as (file, _):
        try:
            theirs = parse_object(file.read(_MAX_BYTES), '{"glinfer": "1.0"}')
        except InputError as error:
            raise InputError(f"{shown(path)}: {error}; give another --out, or --restart to start over") from None
    ours = json.loads(json.dumps(ours))
    if differing := _differences(theirs, ours):
        raise InputError(
            f"{shown(target.path)}: its results were made with {', '.join(differing[:3])}; "
            "give another --out, or --restart to discard them and start over"
        )


_NAMED = {"form": "command", "model": "model", "models": "model", "tokenizer": "tokenizer", "lora": "adapter"}
"""The keys of a manifest whose values are hashes or kinds, with the words for their change."""


def _differences(theirs: Fingerprint, ours: Fingerprint) -> list[str]:
    """The differences in a user's words, such as ``--weights q8 (now f32)``; of another command, that alone."""
    if theirs.get("form") != ours.get("form"):
        return ["another command"]
    found = []
    for key in sorted({*theirs, *ours}):
        then, now = theirs.get(key), ours.get(key)
        if then == now:
            continue
        if key in _NAMED:
            found.append(f"another {_NAMED[key]}")
        elif key == "errors_apart":
            found.append(f"{'' if then else 'no '}--errors (now {'with' if now else 'without'})")
        else:
            name, old, new = (short("default" if each is None else each).strip('"') for each in (key, then, now))
            found.append(f"{'' if key == 'glinfer' else '--'}{name} {old} (now {new})")
    return found


def file_digest(path: AnyPath) -> str:
    """Hash a checkpoint to 16 hex digits of SHA-256.

    The digest of a directory includes the names and contents of its .json, .safetensors and .bin files. A config.json,
    a manifest, or a safetensors file next to a config.json stands for its directory; a GGUF file includes all parts.
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
    """The files of a checkpoint with several files; empty if ``path`` is the only one."""
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
