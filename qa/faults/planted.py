"""The planted faults, chosen by what a user would suffer and not by what tests look at; planted.txt lists them.

Every fault changes behaviour in one place, and the program still starts. Where the code changes, its fault changes too.
A fault has a line with its name, its file and its rooms, then lines of ``-`` and ``+``: the text and what replaces it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Fault(NamedTuple):
    """One planted fault; ``old`` is once in the file ``path``, and ``rooms`` are tests that are run first."""

    name: str
    path: str
    old: str
    new: str
    rooms: tuple[str, ...]

    @classmethod
    def read(cls, block: str) -> Fault:
        """A fault of the list."""
        head, *changes = block.splitlines()
        name, path, *rooms = head.split()
        old, new = ("\n".join(line[1:] for line in changes if line[0] == sign) for sign in "-+")
        return cls(name, path, old, new, tuple(rooms))


FAULTS = tuple(map(Fault.read, Path(__file__).with_name("planted.txt").read_text("utf-8").split("\n\n")))
