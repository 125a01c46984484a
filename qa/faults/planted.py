"""The planted faults, chosen by what a user would suffer and not by what tests look at; planted.txt lists them.

Every fault changes behaviour in one place, and the program still starts. Where the code changes, its fault changes too.
A fault has a line with its name, its file and its rooms, then lines of ``-`` and ``+``: the text and what replaces it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    Attributes:
        name: the fault in a few words.
        path: the file, relative to the checkout.
        old: text that occurs exactly once in the file.
        new: text that replaces it.
        rooms: folders or files of tests that are run first.
    """

    name: str
    path: str
    old: str
    new: str
    rooms: tuple[str, ...]


def _read(text: str) -> Iterator[Fault]:
    for block in text.split("\n\n"):
        head, *changes = block.splitlines()
        name, path, *rooms = head.split()
        old, new = ("\n".join(line[1:] for line in changes if line[0] == sign) for sign in "-+")
        yield Fault(name, path, old, new, tuple(rooms))


FAULTS = tuple(_read(Path(__file__).with_name("planted.txt").read_text("utf-8")))
