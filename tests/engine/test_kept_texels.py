"""Texels that a model leaves for the next start: the same bits, and only from the same files, options and code."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import glinfer
from glinfer.engine.model import Model
from glinfer.engine.textures import as_bits
from glinfer.formats import Checkpoint
from glinfer.gl.context import open_device
from glinfer.gl.texture import Texture
from glinfer.program import session, texels

pytestmark = pytest.mark.gl

HEAD = 32
FORMS: dict[str, dict[str, Any]] = {
    "floats": {},
    "halves": {"weights": "f16"},
    "words": {"weights": "q8"},
    "reference": {"plan": "reference"},
}
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    """The folder of kept texels, which is not there yet; small models are kept too."""
    monkeypatch.setenv("GLINFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(texels, "MIN_BYTES", 0)
    return tmp_path / "cache" / "texels"


@pytest.fixture
def path(small: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(small, tmp_path / "own.gab"))


@pytest.fixture
def packed(monkeypatch: Patch) -> list[int]:
    """Grows by one for each weight that is made from the model's file."""
    made: list[int] = []
    pack = session._packed

    def spy(layout: Any, matrix: Any) -> Any:
        made.append(layout.nbytes)
        return pack(layout, matrix)

    monkeypatch.setattr(session, "_packed", spy)
    return made


def bits(model: Model) -> dict[str, bytes]:
    """The texels of each weight, as the texture has them."""
    textures = {each.name: model.bound.texture(each.name) for each in model.plan.of_kind("weight")}
    return {name: as_bits(each.read_lines(0, each.layout.height)).tobytes() for name, each in textures.items()}


def start(path: Path, packed: list[int], **options: Any) -> tuple[dict[str, bytes], int]:
    """The texels of a model that is loaded, checked against its file and closed, and how many weights were packed."""
    packed.clear()
    with glinfer.load(path, **options) as model:
        made = len(packed)
        assert model.verify_textures().ok
        assert model.verify_textures(0.5).ok
        return bits(model), made


@pytest.mark.parametrize("form", FORMS)
def test_the_next_start_packs_nothing_and_has_the_same_bits(
    path: Path, packed: list[int], form: str, monkeypatch: Patch
) -> None:
    checked: list[Checkpoint] = []
    check = Checkpoint.check_finite
    monkeypatch.setattr(Checkpoint, "check_finite", lambda self: checked.append(self) or check(self))
    before, made = start(path, packed, **FORMS[form])
    assert made == len(before)
    assert start(path, packed, **FORMS[form]) == (before, 0)
    assert len(checked) == 1, "weights are read at the first start only"


def test_bits_of_floats_in_integer_textures_are_kept(path: Path, packed: list[int]) -> None:
    found = []
    for _ in range(2):
        with open_device() as device:
            device.limits = dataclasses.replace(device.limits, float_targets=False)
            found.append(start(path, packed, device=device))
    assert found[0][1] == len(found[0][0])
    assert found[1] == (found[0][0], 0)


def test_other_files_options_and_code_pack_again(
    path: Path, packed: list[int], folder: Path, monkeypatch: Patch
) -> None:
    start(path, packed)
    for options in (
        {"weights": "q8"},
        {"context": 32},
        {"plan": "reference"},
        {"kernels": glinfer.KernelOptions(quad=False)},
    ):
        assert start(path, packed, **options)[1], options
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert start(path, packed)[1]
    assert not start(path, packed)[1]
    assert start(Path(shutil.copy(path, path.with_name("other.gab"))), packed)[1]
    monkeypatch.setattr(texels, "_stamps_of_code", lambda: ())
    assert start(path, packed)[1]
    assert len(list(folder.iterdir())) == 8


def test_a_module_written_again_is_other_code(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "room" / "__pycache__").mkdir(parents=True)
    module = tmp_path / "room" / "module.py"
    module.touch()
    monkeypatch.setattr(texels, "__file__", str(tmp_path / "room" / "module.py"))
    stamps = texels._stamps_of_code.__wrapped__
    before = stamps()
    assert [name for name, _ in before] == ["/room/module.py"]
    os.utime(module, (1, 1))
    assert stamps() != before


def flipped(place: int) -> Callable[[bytes], bytes]:
    """Flip a bit of a byte of a file."""

    def change(data: bytes) -> bytes:
        found = bytearray(data)
        found[place] ^= 16
        return bytes(found)

    return change


@pytest.mark.parametrize(
    ("change", "whole"),
    [
        (lambda data: b"", False),
        (lambda data: data[:-1], False),
        (lambda data: data + b"\0", False),
        (lambda data: data[: len(data) // 2].ljust(len(data), b"\0"), True),
        (flipped(0), False),
        (flipped(HEAD + 3), True),
        (flipped(-1), True),
    ],
    ids=["empty", "short", "long", "half of it zero", "key", "checksum", "texel"],
)
def test_a_damaged_file_is_made_anew(
    path: Path, packed: list[int], folder: Path, change: Callable[[bytes], bytes], whole: bool
) -> None:
    before, _ = start(path, packed)
    [file] = folder.iterdir()
    right = file.read_bytes()
    file.write_bytes(change(right))
    after, made = start(path, packed)
    assert after == before
    assert (0 < made < len(before)) if whole else made == len(before), "right weights of a whole file are taken"
    assert file.read_bytes() == right
    assert start(path, packed) == (before, 0)


def test_a_folder_in_place_of_the_file_does_no_harm(path: Path, packed: list[int], folder: Path) -> None:
    before, _ = start(path, packed)
    [file] = folder.iterdir()
    file.unlink()
    file.mkdir()
    for _ in range(2):
        assert start(path, packed) == (before, len(before))
    assert list(folder.iterdir()) == [file]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("cache", ["", "/dev/null", "/proc/none"], ids=["off", "no folder", "not writable"])
def test_nothing_is_kept_where_it_cannot_be(path: Path, packed: list[int], monkeypatch: Patch, cache: str) -> None:
    monkeypatch.setenv("GLINFER_CACHE", cache)
    for _ in range(2):
        assert start(path, packed)[1]


def test_a_full_disk_keeps_nothing_and_stays_as_it_is(
    path: Path, packed: list[int], folder: Path, monkeypatch: Patch
) -> None:
    with monkeypatch.context() as patch:
        usage = shutil.disk_usage("/")._replace(free=texels.MAX_BYTES)
        patch.setattr(texels.shutil, "disk_usage", lambda _: usage)
        assert start(path, packed)[1]
    assert list(folder.iterdir()) == []
    read, calls = Texture.read_lines, []

    def full(texture: Texture, *lines: int) -> Any:
        calls.append(lines)
        if len(calls) == 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return read(texture, *lines)

    model = glinfer.load(path)
    monkeypatch.setattr(Texture, "read_lines", full)
    model.close()
    assert len(calls) == 5
    assert list(folder.iterdir()) == []


def test_a_texture_that_was_changed_is_not_kept(path: Path, folder: Path) -> None:
    with glinfer.load(path) as model:
        texture = model.bound.texture("lm_head.weight")
        texture.upload_lines(0, 2 * texture.read_lines(0, 1))
    assert list(folder.iterdir()) == []


def test_the_files_used_last_stay_within_the_limit(
    path: Path, packed: list[int], folder: Path, monkeypatch: Patch
) -> None:
    start(path, packed)
    [first] = folder.iterdir()
    size = first.stat().st_size
    start(path, packed, context=32)
    [second] = set(folder.iterdir()) - {first}
    for age, file in ((2, first), (1, second)):
        os.utime(file, (10**9 - age, 10**9 - age))
    start(path, packed)  # is used last now
    monkeypatch.setattr(texels, "MAX_BYTES", 2 * size)
    start(path, packed, context=48)
    assert first.exists()
    assert not second.exists()
    assert len(list(folder.iterdir())) == 2
    monkeypatch.setattr(texels, "MAX_BYTES", size)
    assert start(path, packed)[1], "a file may have half of the limit"


def test_models_without_many_texels_are_not_kept(path: Path, folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("GLINFER_CACHE", str(folder.parent))
    glinfer.load(path).close()
    assert not folder.exists()
    glinfer.load("shakespeare").close()
    assert len([*folder.iterdir()]) == 1, "the bundled model has enough of them"


def test_of_two_models_at_once_one_writes(path: Path, packed: list[int], folder: Path) -> None:
    with glinfer.load(path), glinfer.load(path) as second:
        second.close()
        [file] = folder.iterdir()
        written = file.stat()
    assert file.stat().st_ino == written.st_ino
    assert not start(path, packed)[1]
    assert file.stat().st_mode & 0o77 == 0 or folder.stat().st_mode & 0o77 == 0, "a model's file may be private"
