"""Choose the EGL devices of a batch, and a device for this process apart from others of the machine."""

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

from glinfer.errors import ContextError, InputError
from glinfer.formats.files import lock, reason, shown
from glinfer.formats.jsonl import short
from glinfer.gl import egl
from glinfer.gl.cuda import CudaName

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SECONDS = 60
_PAUSE = 0.1
_TWICE_BYTES = 1 << 30
RESTART_SECONDS = 30.0
"""How long a replacement waits for the lease of a dead process."""


@dataclass(frozen=True)
class Claim:
    """The device of this process by its ``index`` in EGL's list.

    ``lease`` is a locked file, which the system unlocks when the process ends; None where devices are shared.
    """

    index: int
    lease: FileIO | None = None

    def release(self) -> None:
        """Release the lease, if any; calling it again does nothing."""
        if self.lease is not None:
            self.lease.close()


def claim_device(leases: Path | None = None, *, wait: float = 0.0) -> Claim:
    """Find an EGL device for this process.

    If CUDA_VISIBLE_DEVICES names a GPU, EGL_NV_device_cuda finds its device. Otherwise the first hardware device
    without a lease is leased. Without hardware, all processes share the software renderer.
    """
    devices = egl.list_devices()
    wanted = os.environ.get(_VISIBLE, "").split(",")[0].strip()
    if wanted and any("EGL_NV_device_cuda" in each.extensions.split() for each in devices):
        return Claim(_matched(wanted))
    hardware = [each.index for each in devices if not each.is_software]
    if not hardware:
        return Claim(devices[0].index)
    folder = leases or Path(tempfile.gettempdir()) / f"glinfer-leases-{getattr(os, 'getuid', int)()}"
    ends = time.monotonic() + wait
    while True:
        for index in hardware:
            if (lease := _leased(folder, index)) is not None:
                return Claim(index, lease)
        if time.monotonic() >= ends:
            break
        time.sleep(_PAUSE)
    raise ContextError(
        f"all {len(hardware)} devices of this machine are leased by other processes ({shown(folder)}); "
        "start as many actors as there are devices"
    )


def _matched(wanted: str) -> int:
    """The device that CUDA_VISIBLE_DEVICES names, by a number or the start of a UUID."""
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
        f"{_VISIBLE} begins with {wanted[:60]!r}; EGL has no such device ({known or 'CUDA knows none of them'}); "
        "unset it, or name a device"
    )


def _unhidden_names() -> list[CudaName]:
    """CUDA's names of EGL's devices without CUDA_VISIBLE_DEVICES, whose numbers the variable uses."""
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
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (folder / f"device-{index}").open("ab", buffering=0)
    except OSError as error:
        raise ContextError(f"{shown(folder)}: no lease can be kept there: {reason(error)}; set TMPDIR") from None
    if lock(file.fileno()) is False:
        file.close()
        return None
    return file


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
    """
    if text == "all":
        devices = egl.list_devices()
        hardware = [each.index for each in devices if not each.is_software]
        return hardware or [each.index for each in devices]
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts):
        raise InputError(f"the devices are {short(text)}; expected all, or numbers such as 0,1")
    return [egl.device_at(int(part)).index for part in parts]
