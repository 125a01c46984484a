"""Makes glibc return freed large blocks to the system, for long-running processes.

By default the threshold for that rises to the largest freed block (32 MiB at most), and each thread has its own arena:
a server that had read bodies of 8 MB kept twice the memory that it needed.
"""

from __future__ import annotations

import contextlib
import ctypes

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # numbers of options in glibc's malloc.h
_THRESHOLD, _ARENAS = 1 << 20, 2


def return_large_blocks() -> None:
    """Set glibc's options, before any thread starts; other C libraries stay unchanged."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _THRESHOLD)
        mallopt(_ARENA_MAX, _ARENAS)
