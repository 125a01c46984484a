"""Scripts of processes of their own, run here: a process for each test would take its time."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import pytest


def answers_here(worker: ModuleType) -> Callable[..., Mapping[str, Any]]:
    """What takes the place of ``glinfer.text.own_process.answer_of`` for a script, without its limits."""

    def answer(_: str, request: Mapping[str, Any], *, seconds: int, memory: int, clock: int = 0) -> Mapping[str, Any]:
        given = json.dumps({**request, "seconds": seconds, "memory": memory, "path": sys.path})
        said = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
            patch.setattr(sys, "stdin", io.StringIO(given))
            patch.setattr(worker, "limit", lambda *_: None)
            worker.main()
        return dict(json.loads(said.getvalue()))

    return answer
