"""Processor time of a server, of its clients, and of everything on the machine, as Linux counts it."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_IDLE = (3, 4)  # places of "idle" and "iowait" among the numbers of /proc/stat
_COUNTED = 8  # numbers there that add up to all time; those behind them are counted among these already


@dataclass(frozen=True)
class Spent:
    """Seconds of processors, user and system.

    Attributes:
        server: of the server's process, and of its child processes that have ended.
        clients: of this process.
        machine: of all programs, and of other virtual machines in the place of this one.
        capacity: all that the processors had to give.
    """

    server: float = 0.0
    clients: float = 0.0
    machine: float = 0.0
    capacity: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        """Both together."""
        pairs = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return Spent(*(mine + others for mine, others in pairs))

    def __sub__(self, earlier: Spent) -> Spent:
        """What was spent since."""
        pairs = zip(asdict(self).values(), asdict(earlier).values(), strict=True)
        return Spent(*(now - then for now, then in pairs))

    @property
    def others(self) -> float:
        """The share of the processors that other programs had; 0 to 1."""
        rest = self.machine - self.server - self.clients
        return min(max(rest / self.capacity, 0.0), 1.0) if self.capacity else 0.0


def spent(server: int) -> Spent | None:
    """What was spent so far, with the process of that id as the server; None where the system does not say."""
    try:
        own = (_PROC / str(server) / "stat").read_text("ascii", errors="replace").rpartition(")")[2].split()
        whole = (_PROC / "stat").read_text("ascii").split("\n")[0].split()[1:]
    except OSError:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    machine = [int(number) / ticks for number in whole[:_COUNTED]]
    if len(machine) < _COUNTED or not any(machine):  # some containers have a file of zeros
        return None
    idle = sum(machine[place] for place in _IDLE)
    here = os.times()
    in_server = sum(int(number) for number in own[11:15]) / ticks
    return Spent(in_server, here.user + here.system, sum(machine) - idle, sum(machine))


@dataclass(frozen=True)
class Window:
    """What a server did between two samples.

    Attributes:
        tokens: of prompts and answers, as the server counts them.
        processor_seconds: of its process, user and system.
        others: the share of the machine's processors that other programs had meanwhile; 0 to 1.
    """

    tokens: int
    processor_seconds: float
    others: float

    @property
    def rate(self) -> float:
        """Tokens a second of the processor."""
        return self.tokens / self.processor_seconds if self.processor_seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """The window as plain JSON values."""
        return {**asdict(self), "tokens_per_processor_second": self.rate}
