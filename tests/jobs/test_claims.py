"""Which device a process finds: by CUDA's numbers, by a lease, or the software that all share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from glinfer.errors import ContextError
from glinfer.gl import cuda, egl
from glinfer.gl.cuda import CudaName
from glinfer.gl.egl import EglDevice
from glinfer.jobs import claims
from glinfer.jobs.claims import claim_device

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
NVIDIA, SOFTWARE = "EGL_EXT_device_drm EGL_NV_device_cuda", "EGL_MESA_device_software"


def devices(monkeypatch: pytest.MonkeyPatch, *extensions: str) -> None:
    found = [EglDevice(index, 100 + index, text) for index, text in enumerate(extensions)]
    monkeypatch.setattr(egl, "list_devices", lambda: found)


@pytest.fixture
def mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three GPUs and a rasteriser, which EGL lists in another order than CUDA."""
    devices(monkeypatch, NVIDIA, NVIDIA, SOFTWARE, NVIDIA)
    ordinals, uuids = (2, 0, None, 1), ("GPU-AAAA-1", "GPU-bbbb-2", None, "GPU-cccc-3")
    names = [CudaName(index, *each) for index, each in enumerate(zip(ordinals, uuids, strict=True))]
    monkeypatch.setattr(claims, "_unhidden_names", lambda: names)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("mixed")
class TestCuda:
    def test_the_gpu_that_is_meant(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        meant = {"0": 1, "1": 3, "2": 0, "1,0": 3, " 2 ,1": 0, "GPU-bbbb-2": 1, "GPU-aaaa": 0, "gpu-cc,0": 3}
        for visible, index in meant.items():
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
            found = [claim_device(tmp_path) for _ in range(2)]
            assert [(each.index, each.lease) for each in found] == [(index, None)] * 2, visible
        for visible in ("3", "-1", "GPU-dddd", "MIG-1"):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
            with pytest.raises(ContextError, match=r"EGL has no such device \(device 0 is 2, device 1 is 0, dev"):
                claim_device(tmp_path)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("mixed")
class TestLeases:
    @pytest.mark.parametrize("visible", [None, ""])
    def test_each_takes_another_until_all_are_taken(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None
    ) -> None:
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        found = [claim_device(tmp_path / "new") for _ in range(3)]
        assert [each.index for each in found if each.lease] == [0, 1, 3]
        with pytest.raises(ContextError, match="all 3 devices of this machine are leased by other processes"):
            claim_device(tmp_path / "new")
        found[1].release()
        found[1].release()
        again = claim_device(tmp_path / "new")
        assert again.index == 1
        for each in (*found, again):
            each.release()

    def test_one_that_is_given_back_meanwhile(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        found = [claim_device(tmp_path) for _ in range(3)]
        monkeypatch.setattr("time.sleep", lambda _: found[2].release())
        again = claim_device(tmp_path, wait=600)
        assert again.index == 3
        for each in (*found, again):
            each.release()

    def test_without_cuda_on_the_devices_its_variable_says_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        devices(monkeypatch, "EGL_EXT_device_drm", SOFTWARE)
        claim = claim_device(tmp_path)
        assert (claim.index, claim.lease is None) == (0, False)
        claim.release()
        (tmp_path / "file").touch()
        with pytest.raises(ContextError, match="no lease can be kept there"):
            claim_device(tmp_path / "file")


def test_software_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices(monkeypatch, SOFTWARE)
    found = [claim_device(tmp_path) for _ in range(5)]
    assert {(each.index, each.lease) for each in found} == {(0, None)}
    for each in found:
        each.release()
    assert list(tmp_path.iterdir()) == []


class TestNames:
    """What EGL says, by a driver that is made up."""

    def test_ordinals_and_uuids(self, monkeypatch: pytest.MonkeyPatch) -> None:
        devices(monkeypatch, NVIDIA + " EGL_EXT_device_persistent_id", SOFTWARE, NVIDIA)

        def ordinal(handle: int, name: int, value: object) -> int:
            assert name == 0x323A
            value._obj.value = {100: 1, 102: 0}[handle]  # type: ignore[attr-defined]
            return 1

        def uuid(handle: int, name: int, most: int, data: object, size: object) -> int:
            assert (handle, name, most) == (100, 0x335C, 16)
            for place in range(16):
                data[place] = bytes([place * 16 + 1])  # type: ignore[index]
            size._obj.value = 16  # type: ignore[attr-defined]
            return 1

        functions = {"eglQueryDeviceAttribEXT": ordinal, "eglQueryDeviceBinaryEXT": uuid}
        monkeypatch.setattr(egl, "extension", lambda name, *_: functions[name])
        assert cuda.cuda_names() == [
            CudaName(0, 1, "GPU-01112131-4151-6171-8191-a1b1c1d1e1f1"),
            CudaName(1, None, None),
            CudaName(2, 0, None),
        ]
        devices(monkeypatch, NVIDIA)
        monkeypatch.setattr(egl, "extension", lambda name, *_: None)
        assert cuda.cuda_names() == [CudaName(0, None, None)], "of a driver without the functions"


def test_a_process_of_its_own_sees_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert [each.index for each in claims._unhidden_names()] == [each.index for each in egl.list_devices()]
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ContextError, match="EGL's devices cannot be matched with CUDA's: 1"):
        claims._unhidden_names()
