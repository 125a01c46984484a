"""Keeps idle cores awake, for software renderers on machines where waking a core takes long.

llvmpipe's threads sleep between passes, and a pass of a decode step takes less time than some machines (virtual
ones above all) need to wake a sleeping core. Linux lets a process limit that time: it writes the longest latency it
accepts, in microseconds, to /dev/cpu_dma_latency as an int32; the request holds while the file is open. It affects
the whole machine, costs power and usually needs root, so glinfer makes it only on demand.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

from glinfer.errors import InputError

VARIABLE = "GLINFER_KEEP_AWAKE"
_FILE = Path("/dev/cpu_dma_latency")


def keep_awake() -> BinaryIO | None:
    """Keep cores from sleeping if GLINFER_KEEP_AWAKE is 1, until the returned file is closed.

    Raises:
        InputError: the variable is set to something else, or the request is refused.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted in ("", "0"):
        return None
    if wanted != "1":
        raise InputError(f"{VARIABLE} is {wanted!r}; expected 1 to keep idle cores awake, or 0")
    try:
        request = _FILE.open("wb", buffering=0)
        request.write(struct.pack("=i", 0))
    except OSError as error:
        raise InputError(
            f"{VARIABLE} is 1, but {_FILE} cannot be written ({error.strerror}); run as root or unset it"
        ) from None
    return request
