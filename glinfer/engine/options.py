"""The limits of a scheduler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SchedulerOptions:
    """How many sequences a scheduler runs at once, and how long they may be; None leaves a number to the scheduler.

    Attributes:
        slots: sequences at once at most.
        memory: bytes of texture memory for their caches.
        longest: tokens of the longest sequence, prompt and continuation together.
        piece: tokens of prompts in one step.
    """

    slots: int | None = None
    memory: int | None = None
    longest: int | None = None
    piece: int | None = None
