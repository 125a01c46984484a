"""Checks before a large allocation that the system has the memory for it.

A system that overcommits memory kills a process that uses too much, without a message. So large allocations are first
compared with the free memory. Sources: proc(5), and the kernel's documentation of control groups.

A virtual machine that gets memory only on demand reports too little until then. So the environment variable
GLINFER_MEMORY, in gigabytes, overrides the system's number.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from glinfer.errors import InputError, PlanError
from glinfer.gl.faults import bytes_text

VARIABLE = "GLINFER_MEMORY"
MIN_CHECKED_BYTES = 1 << 26
"""Smaller allocations are not checked, because a check takes time."""

_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60


def available_bytes() -> int | None:
    """Bytes of memory that this process can still get, swap included; None if the system does not report it.

    The value is GLINFER_MEMORY if set. Otherwise it is the least that the machine, the process's control groups (such
    as a container's) and its address space limit have left.

    Raises:
        InputError: GLINFER_MEMORY is not a number.
    """
    if wanted := os.environ.get(VARIABLE):
        return _gigabytes(wanted)
    found = [bound for bound in (_of_the_machine(), *_of_the_groups(), address_space_left()) if bound is not None]
    return max(0, min(found)) if found else None


def check_room(needed: int, what: str, advice: str) -> None:
    """Raise a PlanError of ``what`` and ``advice`` for an allocation of ``needed`` bytes beyond the free memory."""
    if needed < MIN_CHECKED_BYTES:
        return
    available = available_bytes()
    if available is not None and needed > available:
        raise PlanError(
            f"{what} of memory, and {bytes_text(available)} are free here; {advice} ({VARIABLE} overrides this)"
        )


def _gigabytes(text: str) -> int:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < 1e9:
        raise InputError(f"{VARIABLE} is {text!r}; expected gigabytes, such as 64, or nothing")
    return int(number * 1e9)


def _numbers(path: Path) -> dict[str, int]:
    """Numbers by name from lines ``name: number``, or one number under an empty name; empty for an unreadable file."""
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    found = re.findall(r"^([A-Za-z_()]*):?[ \t]*(\d+)(?: kB)?[ \t]*$", text, re.MULTILINE)
    return {name: int(number) for name, number in found}


def _of_the_machine() -> int | None:
    found = _numbers(_PROC / "meminfo")
    return 1024 * (found["MemAvailable"] + found.get("SwapFree", 0)) if "MemAvailable" in found else None


def _of_the_groups() -> Iterator[int]:
    """Free memory of each control group of the process, version 1 or 2."""
    try:
        lines = (_PROC / "self" / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            yield from _of_one_hierarchy(_GROUPS, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes"
            yield from _of_one_hierarchy(_GROUPS / "memory", path, *names)


def _of_one_hierarchy(root: Path, path: str, limit_name: str, usage_name: str) -> Iterator[int]:
    """Free memory of each group, from the process's own up to the root of the hierarchy or of its container."""
    folder = root / path.lstrip("/")
    for group in (folder, *folder.parents):
        if not group.is_relative_to(root):
            return
        limit = _numbers(group / limit_name).get("", _UNLIMITED)
        usage = _numbers(group / usage_name).get("")
        if limit < _UNLIMITED and usage is not None:
            kept = _numbers(group / "memory.stat")
            files = (kept.get(f"total_{name}", kept.get(name, 0)) for name in ("inactive_file", "active_file"))
            yield limit - usage + sum(files)  # page cache, reclaimed on demand


def address_space_left() -> int | None:
    """The unused part of the address space limit (``ulimit -v``)."""
    if sys.platform == "win32":
        return None
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    used = _numbers(_PROC / "self" / "status").get("VmSize")
    return limit - 1024 * used if limit != resource.RLIM_INFINITY and used is not None else None
