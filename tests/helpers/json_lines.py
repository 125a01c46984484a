"""Files of JSON lines, as batches read and write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from glinfer.jobs.files import open_source


def write_lines(path: Path, *lines: object) -> Path:
    """Write lines: bytes as they are, anything else as JSON."""
    path.write_bytes(b"".join((x if isinstance(x, bytes) else json.dumps(x).encode()) + b"\n" for x in lines))
    return path


def results_in(*paths: Path | str, key: str = "custom_id") -> dict[Any, dict[str, Any]]:
    """The results in files by their ids, of which each has one."""
    lines = list[dict[str, Any]]()
    for path in paths:
        with open_source(path) as file:
            lines += map(json.loads, file.read().splitlines())
    found = {line[key]: line for line in lines}
    assert len(found) == len(lines)
    return found
