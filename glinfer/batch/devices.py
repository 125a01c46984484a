"""Choose the EGL devices of a batch."""

from __future__ import annotations

from glinfer.errors import ContextError, InputError
from glinfer.formats.jsonl import short
from glinfer.gl import egl

_TWICE_BYTES = 1 << 30


def usual_processes(nbytes: int) -> int:
    """The default number of processes for models of ``nbytes`` on disk.

    Two on a GPU, unless the models are large: the GPU computes for one while Python reads tokens of the other.
    """
    try:
        hardware = any(not each.is_software for each in egl.list_devices())
    except ContextError:  # loading reports it
        return 1
    return 2 if hardware and nbytes <= _TWICE_BYTES else 1


def parse_devices(text: str) -> list[int]:
    """The devices for ``all``, or for numbers such as ``0,1``; a number given twice starts two processes.

    ``all`` means all hardware devices, or without hardware all devices.

    Raises:
        InputError: the machine has no such device.
        ContextError: EGL finds no device.
    """
    devices = egl.list_devices()
    if text == "all":
        hardware = [each.index for each in devices if not each.is_software]
        return hardware or [each.index for each in devices]
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts):
        raise InputError(f"the devices are {short(text)}; expected all, or numbers such as 0,1")
    numbers = list(map(int, parts))
    if missing := [number for number in numbers if number >= len(devices)]:
        raise InputError(f"there is no EGL device {missing[0]}; this machine has {len(devices)}, numbered from 0")
    return numbers
