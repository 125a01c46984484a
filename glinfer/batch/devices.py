"""Which EGL devices a batch runs on."""

from __future__ import annotations

from glinfer.errors import ContextError, InputError
from glinfer.formats.jsonl import short
from glinfer.gl import egl

_TWICE_BYTES = 1 << 30


def usual_processes(nbytes: int) -> int:
    """How many processes answer lines where no device is named, of models that take ``nbytes`` on disk.

    Two on a GPU, unless the models are large: while Python reads the tokens of one, the GPU computes for the other.
    """
    try:
        hardware = any(not each.is_software for each in egl.list_devices())
    except ContextError:  # which loading tells
        return 1
    return 2 if hardware and nbytes <= _TWICE_BYTES else 1


def parse_devices(text: str) -> list[int]:
    """The devices of ``all``, or of numbers such as ``0,1``; one that is named twice has two processes.

    ``all`` are those of hardware, or all others where there is none.

    Raises:
        InputError: there is no such device.
        ContextError: EGL finds none at all.
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
