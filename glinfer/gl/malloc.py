"""Has glibc return the memory of large blocks to the system, for processes that run for long.

By default its threshold for that rises to the largest block that was freed (32 MiB at most), and each thread has an
arena of its own: a server that had read bodies of 8 MB kept twice the memory that it needed.
"""

from __future__ import annotations

import contextlib
import ctypes

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # numbers of options in glibc's malloc.h
_THRESHOLD, _ARENAS = 1 << 20, 2


def return_large_blocks() -> None:
    """Set it for this process, before its threads begin; nothing happens with another C library."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _THRESHOLD)
        mallopt(_ARENA_MAX, _ARENAS)
