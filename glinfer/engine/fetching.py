"""Find models by name; a model that cannot run on this machine is refused before its download."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glinfer.errors import ContextError
from glinfer.formats import load_checkpoint
from glinfer.formats.checkpoint import Checkpoint
from glinfer.formats.files import AnyPath, is_directory
from glinfer.formats.huggingface.config import read_config
from glinfer.formats.huggingface.files import CONFIG
from glinfer.gl.context import Device, open_device
from glinfer.gl.faults import bytes_text
from glinfer.gl.memory import available_bytes, check_room
from glinfer.hub import find_model, header_of, named_on_a_hub, origin_of
from glinfer.program.plan import Plan

if TYPE_CHECKING:
    from glinfer.hub import Check, Described

Planned = Callable[[Checkpoint, Device], Plan]
"""Builds the plan of a model for a device; raises an error if it does not fit."""
_ADVICE = "use a machine with more memory, or download the model with 'glinfer pull' and inspect that copy"


def check_copy(
    path: Path,
    weight_bytes: int,
    *,
    read: Callable[[AnyPath], Checkpoint] = load_checkpoint,
    planned: Planned | None = None,
    device: Device | str | int | None = None,
    needs_device: bool = True,
    **options: Any,
) -> str:
    """Check a copy of a model without its weights before their download; returns a line on the memory it needs.

    Args:
        path, weight_bytes: the copy, and the size of the weights.
        read: reads a checkpoint with the requested context.
        planned: builds its plan; None if nothing will be drawn.
        device, options: an open device, or the arguments of :func:`glinfer.gl.context.open_device`.
        needs_device: whether to refuse a machine without a renderer.
    """
    bound = admit(path, weight_bytes)
    checkpoint = read(path)
    if planned is None:
        return bound
    try:
        opened = device if isinstance(device, Device) else open_device(device, **options)
    except ContextError:
        if needs_device:
            raise
        return "no renderer here to run it"
    try:
        plan = planned(checkpoint, opened)
    finally:
        if opened is not device:
            opened.close()
    total = plan.texture_bytes(opened.limits.max_texture_size)
    free = available_bytes() if opened.in_main_memory else None
    room = "" if free is None else f", and {bytes_text(free)} of memory are free"
    return f"{bytes_text(total)} of textures for a context of {checkpoint.config.max_position_embeddings}{room}"


def admit(path: AnyPath, weight_bytes: int) -> str:
    """Refuse a copy whose files are read whole if memory does not suffice (PlanError); returns an empty line."""
    folder = Path(path)
    if is_directory(path) and os.path.lexists(folder / CONFIG):
        if read_config(folder / CONFIG).family.published:
            check_room(2 * weight_bytes, f"reading this model takes {bytes_text(2 * weight_bytes)}", _ADVICE)
    elif folder.suffix == ".gab":
        check_room(weight_bytes, f"reading this model takes {bytes_text(weight_bytes)}", _ADVICE)
    return ""


def found_model(name: AnyPath, check: Check | None = None, tell: Callable[[str], None] | None = None) -> AnyPath:
    """The path of a model by its name; see :func:`glinfer.hub.find_model`.

    ``check`` is :func:`check_copy` with options; by default it refuses unknown families and tensor types.
    """
    return find_model(name, check=check or check_copy, tell=tell)


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
