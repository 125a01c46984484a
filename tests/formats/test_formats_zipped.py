"""Models in zip files that mean harm or are damaged: one line each, and nothing is left in the cache."""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import struct
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import ran
from each_case import each_case
from tiny_embedders import write_embedder

import glinfer
from glinfer.errors import FormatError, GlinferError
from glinfer.formats import load_checkpoint, zipped
from glinfer.formats.files import noted_files
from glinfer.formats.zipped import is_model_zip, unpacked

Change = Callable[[zipfile.ZipInfo], None]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache, which is not there yet."""
    monkeypatch.setenv("GLINFER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a model, config.json last."""
    folder = tmp_path_factory.mktemp("model") / "m"
    write_embedder(folder)
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return dict(sorted(files.items(), key=lambda each: each[0] == "config.json"))


def zip_of(path: Path, files: dict[str, bytes], *more: tuple[str, bytes, Change], method: int = 8) -> Path:
    """A zip file, with entries that are changed before they are written."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", method) as made:
        warnings.simplefilter("ignore")  # names that are there already
        for name, data in files.items():
            made.writestr(name, data)
        for name, data, change in more:
            entry = zipfile.ZipInfo(name)
            change(entry)
            made.writestr(entry, data)
    return path


def patched(path: Path, signature: bytes, offset: int, data: bytes, which: int = 0) -> Path:
    """Write over bytes of one of the headers with this signature."""
    found = bytearray(path.read_bytes())
    at = [place for place in range(len(found)) if found[place : place + 4] == signature][which]
    found[at + offset : at + offset + len(data)] = data
    path.write_bytes(found)
    return path


def refused(path: Path, cache: Path, words: str) -> str:
    """The one line that a zip file is refused with; afterwards there is nothing in the cache."""
    with pytest.raises(FormatError, match=words) as caught:
        load_checkpoint(path)
    line = str(caught.value)
    assert line.startswith(str(path))
    assert line.isprintable()
    assert ".making-" not in line
    assert not list(cache.rglob("*")), "what was refused has left something"
    return line


def kept(entry: zipfile.ZipInfo) -> None:
    """Change nothing."""


def of_kind(kind: int) -> Change:
    return lambda entry: setattr(entry, "external_attr", (kind | 0o777) << 16)


def of_method(method: int) -> Change:
    return lambda entry: setattr(entry, "compress_type", method)


KINDS = (stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK)
OUTSIDE = r"found the file name .*; do not trust this file"
NAMES = ("../x", "/x", "a/../x", "a//x", "./x", "a\\x", "c:x", "CON", "nul.txt", "x.", "x ", "", "/", "../", "x" * 300)
ENTRIES: list[tuple[str, Change, str]] = [
    *((name, kept, OUTSIDE) for name in (*NAMES, "\x1b]0;x\x07", "\u202ex", "a/" * 20 + "x")),
    *(("link", of_kind(kind), "'link' in it is a link or a device") for kind in KINDS),
    *(
        ("x", of_method(method), f"is compressed by method {method}")
        for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    ),
    *(
        (name, kept, "has the name of another one")
        for name in ("config.json", "CONFIG.json", "config.json/x", "1_pooling")
    ),
]


class TestEntries:
    @each_case("name, change, words", ENTRIES)
    def test_what_no_model_has(
        self, tmp_path: Path, cache: Path, model: dict[str, bytes], name: str, change: Change, words: str
    ) -> None:
        cache.mkdir(exist_ok=True)
        refused(zip_of(tmp_path / "a.zip", model, (name, b"harm", change)), cache, words)

    def test_names_of_letters_that_are_composed_otherwise(
        self, tmp_path: Path, cache: Path, model: dict[str, bytes]
    ) -> None:
        both = ("\u00e9", b"", kept), ("e\u0301", b"", kept)
        refused(zip_of(tmp_path / "a.zip", model, *both), cache, "has the name of another one")

    def test_a_name_that_ends_at_a_nul(self, tmp_path: Path, cache: Path, model: dict[str, bytes]) -> None:
        path = zip_of(tmp_path / "a.zip", {**model, "abc": b""})
        path.write_bytes(path.read_bytes().replace(b"abc", b"a\0c"))
        refused(path, cache, OUTSIDE)

    @each_case("flag", [0x1, 0x21, 0x41, 0x2001])
    def test_encrypted_ones(self, tmp_path: Path, cache: Path, model: dict[str, bytes], flag: int) -> None:
        path = zip_of(tmp_path / "a.zip", model)
        patched(patched(path, b"PK\x01\x02", 8, struct.pack("<H", flag)), b"PK\x03\x04", 6, struct.pack("<H", flag))
        refused(path, cache, "is encrypted")

    def test_folders_that_are_listed_too(self, tmp_path: Path, cache: Path, model: dict[str, bytes]) -> None:
        path = zip_of(tmp_path / "a.zip", {"m/": b"", **{f"m/{name}": data for name, data in model.items()}})
        assert Path(unpacked(path)).is_relative_to(cache)


class TestPlaceOfTheModel:
    @each_case("folder", ["", "m/"])
    def test_the_top_or_one_folder(self, tmp_path: Path, cache: Path, model: dict[str, bytes], folder: str) -> None:
        files = {f"{folder}{name}": data for name, data in model.items()}
        path = zip_of(tmp_path / "a.zip", {"README.md": b"", **files})
        for _ in range(2):  # unpacked, and found again
            assert load_checkpoint(path).config.pooling == "mean"
            assert (Path(unpacked(path)) / "config.json").read_bytes() == model["config.json"]

    @each_case("beside", ["modules.json", "model.safetensors", "pytorch_model.bin"])
    def test_a_part_of_a_model_is_none(self, tmp_path: Path, cache: Path, model: dict[str, bytes], beside: str) -> None:
        """Such as the pooling, or the whole model without its pooling."""
        for folder in ("1_Pooling", "0_Transformer"):
            path = zip_of(tmp_path / "a.zip", {beside: b"[]", f"{folder}/config.json": model["config.json"]})
            refused(path, cache, "found no model in it; expected one config.json with the weights next to it")

    @each_case("folders", [("a", "b"), ("x/m",)])
    def test_several_or_none(
        self, tmp_path: Path, cache: Path, model: dict[str, bytes], folders: tuple[str, ...]
    ) -> None:
        files = {f"{folder}/{name}": data for folder in folders for name, data in model.items()}
        refused(zip_of(tmp_path / "a.zip", files), cache, "found no model in it")


class TestSizes:
    def test_entries_that_share_their_bytes(self, tmp_path: Path, cache: Path, model: dict[str, bytes]) -> None:
        """Python does not refuse them before 3.11.8 and 3.12.2; each may unpack the same bytes."""
        path = zip_of(tmp_path / "a.zip", {"aaa": bytes(99), "aab": bytes(99), **model})
        path.write_bytes(path.read_bytes().replace(b"aab", b"aaa"))
        patched(path, b"PK\x01\x02", 42, struct.pack("<I", 0), 1)
        zip_of(tmp_path / "b.zip", {"aaa": bytes(99), "aab": bytes(99), **model}, method=0)
        patched(tmp_path / "b.zip", b"PK\x01\x02", 20, struct.pack("<II", 240, 240))
        refused(tmp_path / "b.zip", cache, "'aab' in it overlaps another one|damaged zip file: Overlapped entries")
        refused(path, cache, "has the name of another one")

    def test_a_file_that_goes_on_into_the_list(self, tmp_path: Path, cache: Path, model: dict[str, bytes]) -> None:
        path = zip_of(tmp_path / "a.zip", {**model, "last": bytes(9)}, method=0)
        for signature, offset in ((b"PK\x01\x02", 20), (b"PK\x03\x04", 18)):
            patched(path, signature, offset, struct.pack("<II", 20, 20), len(model))
        refused(path, cache, "damaged zip file: its last file overlaps the list of files")

    def test_zeros(self, tmp_path: Path, cache: Path, model: dict[str, bytes]) -> None:
        path = zip_of(tmp_path / "a.zip", model)
        size = struct.pack("<I", 1 << 30)
        patched(patched(path, b"PK\x01\x02", 24, size), b"PK\x03\x04", 22, size)
        refused(
            path,
            cache,
            r"found \d+ files of 1\d{9} bytes, which exceeds the limit of 4096 files of \d{8} bytes together",
        )

    def test_more_than_the_disk_has(
        self, tmp_path: Path, cache: Path, model: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
        refused(
            zip_of(tmp_path / "a.zip", model), cache, r"it holds 0\.00 GB, and the disk of .* has 0\.00 GB free; make"
        )

    def test_a_list_of_files_without_end(self, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It would be taken into memory before anything is looked at."""
        monkeypatch.setattr(zipped, "MAX_ZIP_LIST_BYTES", 1000)
        path = zip_of(tmp_path / "a.zip", {f"{number}.txt": b"" for number in range(100)})
        refused(path, cache, r"its list of files has \d+ bytes, which exceeds the limit of 1000")
        assert not is_model_zip(path)

    def test_the_configuration_is_looked_at_first(
        self, tmp_path: Path, cache: Path, model: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written = []
        copy = shutil.copyfileobj

        def counted(source: io.BufferedIOBase, out: io.BufferedWriter, length: int) -> None:
            written.append(Path(out.name).name)
            copy(source, out, length)

        monkeypatch.setattr(shutil, "copyfileobj", counted)
        path = zip_of(tmp_path / "a.zip", {**model, "config.json": b'{"model_type": "none"}'})
        assert str(path) + "/config.json: " in refused(path, cache, "model_type")
        assert set(written) == {"config.json"}


class TestNothingStays:
    def test_of_a_model_that_is_refused_later(self, tmp_path: Path, cache: Path, model: dict[str, bytes]) -> None:
        path = zip_of(tmp_path / "a.zip", {**model, "model.safetensors": model["model.safetensors"][:-1]})
        with pytest.raises(FormatError, match="safetensors"):
            load_checkpoint(path)
        assert not list(cache.rglob("*"))
        with pytest.raises(FormatError, match="safetensors"):  # as commands do it, which ask for the folder first
            load_checkpoint(unpacked(path))
        assert not list(cache.rglob("*"))

    @each_case("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), MemoryError()])
    def test_where_unpacking_ends_early(
        self,
        tmp_path: Path,
        cache: Path,
        model: dict[str, bytes],
        monkeypatch: pytest.MonkeyPatch,
        error: BaseException,
    ) -> None:
        def fail(source: io.BufferedIOBase, out: io.BufferedWriter, length: int) -> None:
            out.write(b"some")
            raise error

        monkeypatch.setattr(shutil, "copyfileobj", fail)
        expected = FormatError if isinstance(error, OSError) else type(error)
        with pytest.raises(expected):
            load_checkpoint(zip_of(tmp_path / "a.zip", model))
        assert not list(cache.rglob("*"))

    @each_case("state", ["read-only", "read-only, with the model", "under a file"])
    def test_where_the_cache_cannot_be_written(
        self, tmp_path: Path, cache: Path, model: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, state: str
    ) -> None:
        path = zip_of(tmp_path / "a.zip", model)
        if state == "under a file":
            shutil.rmtree(cache)
            cache.write_bytes(b"")
        if state == "read-only, with the model":
            unpacked(path)
        monkeypatch.setattr(os, "access", lambda *_: False)
        found = Path(unpacked(path))
        assert found == unpacked(path)
        assert found.is_relative_to(cache) == (state == "read-only, with the model")
        assert load_checkpoint(path).config.embeds

    @pytest.mark.gl
    @each_case("file", ["model.safetensors", "modules.json", "vocab.txt"])
    def test_messages_name_the_zip_file(self, tmp_path: Path, cache: Path, model: dict[str, bytes], file: str) -> None:
        path = zip_of(tmp_path / "a.zip", {**model, file: b"x"})
        with pytest.raises(GlinferError) as caught, glinfer.load(path) as loaded:
            loaded.embed(["a"])
        assert f"{path}/{file}: " in str(caught.value)
        assert str(cache) not in str(caught.value)

    def test_a_folder_beside_it_stays(self, tmp_path: Path, cache: Path, model: dict[str, bytes]) -> None:
        good = Path(unpacked(zip_of(tmp_path / "a.zip", model)))
        with pytest.raises(FormatError):
            load_checkpoint(zip_of(tmp_path / "b.zip", {**model, "model.safetensors": b"x"}))
        assert [each.name for each in good.parent.iterdir()] == [good.name]

    def test_a_folder_that_cannot_be_named(
        self, tmp_path: Path, cache: Path, model: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(made: Path, target: Path) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(Path, "rename", fail)
        refused(zip_of(tmp_path / "a.zip", model), cache, "cannot unpack it: Input/output error")

    def test_another_process_was_faster(
        self, tmp_path: Path, cache: Path, model: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def slow(made: Path, target: Path) -> None:
            shutil.copytree(made, target)
            raise OSError(errno.ENOTEMPTY, "Directory not empty")

        monkeypatch.setattr(Path, "rename", slow)
        found = Path(unpacked(zip_of(tmp_path / "a.zip", model)))
        assert (found / "config.json").read_bytes() == model["config.json"]
        assert len(list(found.parent.iterdir())) == 1


def test_the_files_noted_are_those_that_stay(tmp_path: Path, cache: Path, model: dict[str, bytes]) -> None:
    path = zip_of(tmp_path / "a.zip", model)
    found = []
    for _ in range(2):
        with noted_files() as files:
            load_checkpoint(unpacked(path))
        found.append(files)
    assert found[0] == found[1]
    assert all(Path(each).is_file() for each in files)


class TestInstalledPackages:
    @each_case("damaged", ["model.zip", "RECORD", "METADATA"])
    def test_a_damaged_one_hides_no_other(
        self,
        tmp_path: Path,
        model: dict[str, bytes],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        damaged: str,
    ) -> None:
        for name in ("cats", "dogs"):
            (info := tmp_path / f"{name}-1.dist-info").mkdir(parents=True)
            (tmp_path / name).mkdir()
            zip_of(tmp_path / name / "model.zip", model)
            (info / "RECORD").write_text(f"{name}/model.zip,,\n{name}/{'x' * 300}.gguf,,\n")
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        if damaged == "model.zip":
            path = tmp_path / "cats" / damaged
            patched(patched(path, b"PK\x01\x02", 46, b"\xff"), b"PK\x01\x02", 8, struct.pack("<H", 0x800))
            assert not is_model_zip(path)
        else:
            path = tmp_path / "cats-1.dist-info" / damaged
            path.write_bytes(b"\xff" + path.read_bytes())
        monkeypatch.setattr("importlib.metadata.distributions", partial(distributions, path=[str(tmp_path)]))
        shown = ran(capsys, "models")[0]
        assert "pypi:dogs" in shown
        assert "pypi:cats" not in shown
