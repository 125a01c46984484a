"""One device for one process among several that know nothing of each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from glinfer.errors import ContextError
from glinfer.formats.files import reason, shown
from glinfer.gl import egl
from glinfer.gl.cuda import CudaName

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SECONDS = 60
_PAUSE = 0.1
RESTART_SECONDS = 30.0
"""How long a process that takes the place of another one waits for its lease."""


@dataclass(frozen=True)
class Claim:
    """A device that was found for this process.

    Attributes:
        index: in EGL's list.
        how: ``cuda``, ``lease`` or ``software``.
        lease: the locked file, which the system unlocks when the process ends; None without a lease.
    """

    index: int
    how: str
    lease: FileIO | None = None

    def release(self) -> None:
        """Give a lease back; harmless when repeated."""
        if self.lease is not None:
            self.lease.close()


def claim_device(leases: Path | None = None, *, wait: float = 0.0) -> Claim:
    """Find an EGL device for this process.

    Where CUDA_VISIBLE_DEVICES names a GPU, it is the one that EGL_NV_device_cuda matches with it. Otherwise it is the
    first of hardware that no other process has a lease of. Where there is only software, all share it.

    Args:
        leases: the folder of the lease files; default: ``glinfer-leases-UID`` in the system's temporary folder.
        wait: seconds to wait for a lease, such as that of a process that is just ending.

    Raises:
        ContextError: no such GPU is among EGL's devices, or every device has a lease.
    """
    devices = egl.list_devices()
    wanted = os.environ.get(_VISIBLE, "").split(",")[0].strip()
    if wanted and any("EGL_NV_device_cuda" in each.extensions.split() for each in devices):
        return Claim(_matched(wanted), "cuda")
    hardware = [each.index for each in devices if not each.is_software]
    if not hardware:
        return Claim(devices[0].index, "software")
    folder = leases or Path(tempfile.gettempdir()) / f"glinfer-leases-{getattr(os, 'getuid', int)()}"
    ends = time.monotonic() + wait
    while True:
        for index in hardware:
            if (lease := _leased(folder, index)) is not None:
                return Claim(index, "lease", lease)
        if time.monotonic() >= ends:
            break
        time.sleep(_PAUSE)
    raise ContextError(
        f"all {len(hardware)} devices of this machine are leased by other processes ({shown(folder)}); "
        "start as many actors as there are devices"
    )


def _matched(wanted: str) -> int:
    """The device that CUDA_VISIBLE_DEVICES names by a number, or by the beginning of a UUID."""
    names = _unhidden_names()
    for each in names:
        if wanted.isdecimal():
            found = each.ordinal == int(wanted)
        else:
            found = each.uuid is not None and each.uuid.lower().startswith(wanted.lower())
        if found:
            return each.index
    known = ", ".join(f"device {each.index} is {each.ordinal}" for each in names if each.ordinal is not None)
    raise ContextError(
        f"{_VISIBLE} begins with {wanted[:60]!r}, which is none of EGL's devices ({known or 'none is known to CUDA'}); "
        "unset it, or name a device"
    )


def _unhidden_names() -> list[CudaName]:
    """What EGL's devices are in CUDA while none is hidden: the numbers that CUDA_VISIBLE_DEVICES has itself."""
    environment = {name: value for name, value in os.environ.items() if name != _VISIBLE}
    path = os.pathsep.join(filter(None, (str(Path(__file__).resolve().parents[2]), environment.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "glinfer.gl.cuda"],
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        timeout=_SECONDS,
        check=False,
    )
    try:
        return [CudaName(**each) for each in json.loads(done.stdout)]
    except (ValueError, TypeError):
        words = " ".join(done.stderr.decode(errors="replace").split())[-200:]
        raise ContextError(f"EGL's devices cannot be matched with CUDA's: {words or done.returncode}") from None


def _leased(folder: Path, index: int) -> FileIO | None:
    """The lease of a device; None if another process has it."""
    import fcntl

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (folder / f"device-{index}").open("ab", buffering=0)
    except OSError as error:
        raise ContextError(f"{shown(folder)}: no lease can be kept there: {reason(error)}; set TMPDIR") from None
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
