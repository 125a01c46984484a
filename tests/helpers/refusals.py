"""The line with which the reader of a format refuses a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from glinfer.errors import FormatError


def refusal_by(read: Callable[[Path], object], path: Path, data: bytes | None = None) -> str:
    """The error of reading a file without its path; ``data`` is written to the file first, if given."""
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        read(path)
    message, start = str(caught.value), f"{path}/" if path.is_dir() else f"{path}: "
    assert message.startswith(start)
    return message.removeprefix(start)
