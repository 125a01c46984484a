"""Find models by name; a model that cannot run on this machine is refused before its download."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from glinfer.formats import load_checkpoint
from glinfer.formats.checkpoint import Checkpoint
from glinfer.formats.files import AnyPath, is_directory
from glinfer.formats.huggingface.config import read_config
from glinfer.formats.huggingface.files import CONFIG
from glinfer.gl.faults import bytes_text
from glinfer.gl.memory import check_room
from glinfer.hub import find_model, header_of, named_on_a_hub, origin_of

if TYPE_CHECKING:
    from glinfer.hub import Check, Described

_ADVICE = "use a machine with more memory, or download the model with 'glinfer pull' and inspect that copy"


def admit(path: AnyPath, weight_bytes: int) -> str:
    """Refuse a copy whose files are read whole if memory does not suffice (PlanError); returns an empty line."""
    folder = Path(path)
    if is_directory(path) and os.path.lexists(folder / CONFIG):
        if read_config(folder / CONFIG).family.published:
            check_room(2 * weight_bytes, f"reading this model takes {bytes_text(2 * weight_bytes)}", _ADVICE)
    elif folder.suffix == ".gab":
        check_room(weight_bytes, f"reading this model takes {bytes_text(weight_bytes)}", _ADVICE)
    return ""


def readable(path: Path, weight_bytes: int) -> str:
    """Refuse also a copy of an unknown family or with unknown tensor types; returns an empty line."""
    needs = admit(path, weight_bytes)
    load_checkpoint(path)
    return needs


def found_model(name: AnyPath, check: Check = readable, tell: Callable[[str], None] | None = None) -> AnyPath:
    """The path of a model by its name; see :func:`glinfer.hub.find_model`."""
    return find_model(name, check=check, tell=tell)


def described_model(name: AnyPath) -> AbstractContextManager[Described]:
    """A path with all files of a model except the weights; see :func:`glinfer.hub.header_of`."""
    return header_of(name, check=admit)


def named_source(checkpoint: Checkpoint, name: AnyPath) -> Checkpoint:
    """The checkpoint, with the requested name as its source if the model is on a hub."""
    wanted = named_on_a_hub(name)
    return checkpoint if wanted is None else replace(checkpoint, source=str(wanted))


def origin_report(checkpoint: Checkpoint) -> dict[str, str] | None:
    """Repository, commit and first weight file of a model from a hub, for reports; None for other models."""
    weights = [each for each in checkpoint.files if each.suffix != ".json"] or list(checkpoint.files)
    origin = origin_of(weights[0]) if weights else None
    return None if origin is None else {"repo": origin.repo, "commit": origin.commit, "file": origin.path}
