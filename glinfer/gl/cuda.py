"""Maps EGL devices to CUDA devices: their orders differ, and CUDA_VISIBLE_DEVICES affects only CUDA's.

Sources: EGL_NV_device_cuda, EGL_EXT_device_persistent_id.
"""

from __future__ import annotations

import ctypes
import json
import uuid
from ctypes import POINTER, byref, c_char, c_int32, c_ssize_t, c_uint32, c_void_p
from dataclasses import asdict, dataclass

from glinfer.gl import egl

_CUDA_DEVICE = 0x323A
_DEVICE_UUID = 0x335C


@dataclass(frozen=True)
class CudaName:
    """The index of a device in EGL's list, its number in CUDA, and its UUID, such as ``GPU-1b2c…``; or None."""

    index: int
    ordinal: int | None
    uuid: str | None


def cuda_names() -> list[CudaName]:
    """The CUDA name of each of :func:`egl.list_devices`, numbered by CUDA for this process's environment."""
    return [CudaName(each.index, _ordinal(each), _uuid(each)) for each in egl.list_devices()]


def _ordinal(device: egl.EglDevice) -> int | None:
    query = egl.extension("eglQueryDeviceAttribEXT", c_uint32, c_void_p, c_int32, POINTER(c_ssize_t))
    value = c_ssize_t(-1)
    if query is None or "EGL_NV_device_cuda" not in device.extensions.split():
        return None
    return value.value if query(device.handle, _CUDA_DEVICE, byref(value)) and value.value >= 0 else None


def _uuid(device: egl.EglDevice) -> str | None:
    query = egl.extension(
        "eglQueryDeviceBinaryEXT", c_uint32, c_void_p, c_int32, c_int32, POINTER(c_char), POINTER(c_int32)
    )
    if query is None or "EGL_EXT_device_persistent_id" not in device.extensions.split():
        return None
    data, size = ctypes.create_string_buffer(16), c_int32()
    if not query(device.handle, _DEVICE_UUID, 16, ctypes.cast(data, POINTER(c_char)), byref(size)) or size.value != 16:
        return None
    return f"GPU-{uuid.UUID(bytes=data.raw)}"


if __name__ == "__main__":
    print(json.dumps([asdict(each) for each in cuda_names()]))
