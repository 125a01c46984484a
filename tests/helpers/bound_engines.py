"""Engines bound for one test: the plan of a checkpoint on a device, released at the end of a block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from glinfer.engine.engine import Engine
from glinfer.engine.loading import prepare
from glinfer.formats import Checkpoint
from glinfer.gl.context import Device
from glinfer.inspect.verify.draws import DrawCheck, verify_draws


@contextmanager
def bound_engine(
    checkpoint: Checkpoint, device: Device, plan: str = "reference", *, shader_root: Path | None = None, **options: Any
) -> Iterator[Engine]:
    """The engine of a checkpoint; ``options`` are those of ``prepare``."""
    engine = prepare(checkpoint, device, plan, **options).bind(device, shader_root=shader_root)
    try:
        yield engine
    finally:
        engine.bound.release()


def checked_draws(
    checkpoint: Checkpoint,
    device: Device,
    ids: Sequence[int],
    plan: str = "reference",
    *,
    hooks: dict[str, Any] | None = None,
    **options: Any,
) -> list[DrawCheck]:
    """The draws of a bound engine against float64; ``hooks`` are those of ``verify_draws``."""
    with bound_engine(checkpoint, device, plan, **options) as engine:
        return verify_draws(engine, ids, **(hooks or {}))
