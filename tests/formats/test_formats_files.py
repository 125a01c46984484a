"""Writing a file whole or not at all, opening one safely, loading by content and saving by name."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from each_case import each_case
from own_process import DEADLINE, ROOT

from glinfer.config import ModelConfig
from glinfer.errors import FormatError, InputError
from glinfer.formats import (
    load_checkpoint,
    random_checkpoint,
    save_checkpoint,
    write_gab,
    write_safetensors,
)
from glinfer.formats.files import opened, replacing, shown

SMALL = ModelConfig.from_options("vocab=3,dim=2,heads=1,blocks=1,context=2")


@each_case("error", [KeyboardInterrupt, RuntimeError, SystemExit, GeneratorExit])
def test_a_failed_block_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "out.bin"
    target.write_bytes(b"old")

    def write_half() -> None:
        with replacing(target) as temporary:
            temporary.write_bytes(b"half")
            raise error

    with pytest.raises(error):
        write_half()
    assert [p.name for p in tmp_path.iterdir()] == ["out.bin"]
    assert target.read_bytes() == b"old"


def test_an_operating_system_error_while_writing_becomes_one_line(tmp_path: Path) -> None:
    def fill_the_disk() -> None:
        with replacing(tmp_path / "out.bin"):
            raise OSError(28, "No space left on device", "somewhere")

    with pytest.raises(FormatError, match=r"out\.bin: cannot write it: No space left on device; check"):
        fill_the_disk()
    assert not list(tmp_path.iterdir())


def _write(path: str | Path) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(b"new")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(FormatError, match="cannot write it: Permission denied"):
        _write(tmp_path / "out.bin")


def test_a_directory_or_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="found a pipe; expected a regular file to replace"):
        _write(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    with pytest.raises(FormatError, match="found a directory"):
        _write(tmp_path)
    with pytest.raises(FormatError, match=r"missing/out\.bin: cannot write it: No such file or directory"):
        _write(tmp_path / "missing" / "out.bin")


@each_case("anew", [False, True])
def test_a_new_file_follows_the_umask_and_an_old_one_keeps_its_mode(tmp_path: Path, anew: bool) -> None:
    """Also where a library writes the file ``anew``, with permissions of its own."""
    modes = {"fresh": 0o640, "old": 0o604}
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "old").chmod(modes["old"])
    before = os.umask(0o027)
    try:
        for name in modes:
            with replacing(tmp_path / name) as temporary:
                if anew:
                    temporary.unlink()
                    temporary.touch(mode=0o600)
                temporary.write_bytes(b"new")
    finally:
        os.umask(before)
    assert {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in modes} == modes
    assert (tmp_path / "old").read_bytes() == b"new"


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    _write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    (tmp_path / "to_nothing").symlink_to("new")
    _write(tmp_path / "to_nothing")
    assert (tmp_path / "to_nothing").is_symlink()
    assert (tmp_path / "new").read_bytes() == b"new"


def _open(path: str | Path) -> bytes:
    with opened(path) as (file, size):
        data = file.read()
    assert size == len(data)
    return data


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"12345")
    assert _open(tmp_path / "in") == b"12345"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    cases = {
        tmp_path / "missing": "cannot read it: No such file or directory; check",
        tmp_path: "found a directory; expected a regular file",
        tmp_path / "pipe": "found a pipe; expected a regular file",  # and does not wait for a writer
        Path(os.devnull): "found a device; expected a regular file",
        tmp_path / "loop": "cannot read it: ",
    }
    for path, message in cases.items():
        with pytest.raises(FormatError) as caught:
            _open(path)
        assert f"{path}: {message}" in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_without_permission_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "secret").chmod(0)
    with pytest.raises(FormatError, match="cannot read it: Permission denied"):
        _open(tmp_path / "secret")


@each_case("name", ["nul\0", "half\ud800"])
def test_names_that_no_file_can_have(name: str) -> None:
    with pytest.raises(FormatError, match="no file can have this name"):
        _open(name)
    with pytest.raises(FormatError, match="no file can have this name"):
        _write(name)


def test_shown_keeps_a_message_on_one_printable_line() -> None:
    assert shown("models/é.gab") == "models/é.gab"
    assert shown("") == "''"
    assert shown("two\nlines") == r"'two\nlines'"
    assert shown(os.fsdecode(b"\xff")).isascii()


# Checkpoints of any format


def test_the_format_is_told_by_content_and_never_by_name(tmp_path: Path) -> None:
    original = random_checkpoint(SMALL)
    write_gab(original, tmp_path / "really_gab.safetensors")
    write_safetensors(original, tmp_path / "really_safetensors.gab")
    for name in ("really_gab.safetensors", "really_safetensors.gab"):
        loaded = load_checkpoint(tmp_path / name)
        assert loaded.config == SMALL
        assert {k: v.tolist() for k, v in loaded.tensors.items()} == {
            k: v.tolist() for k, v in original.tensors.items()
        }


@each_case(
    ("data", "message"),
    [
        (b"", r"found an empty file \(0 bytes in all\); expected a GAB1, safetensors or GGUF checkpoint"),
        (b"G", r"found first bytes 47 \(1 bytes in all\); expected"),
        (b"GGUF\x03\0\0\0rest", r"found 12 bytes; expected a GGUF file, whose header alone has 24"),
        (b"PK\x03\x04" + bytes(30), r"found first bytes 50 4b 03 04 .* expected a GAB1, safetensors or GGUF"),
        (struct.pack("<I", 0x47414231), "found 4 bytes; expected at least the 28 of a GAB1 header"),
        (struct.pack("<Q", 7) + b"{", "promise a safetensors header of 7 bytes in a file of 9;"),
    ],
)
def test_what_is_no_checkpoint(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "m.gab").write_bytes(data)
    with pytest.raises(FormatError, match=message):
        load_checkpoint(tmp_path / "m.gab")


@each_case("name", ["m.gab", "m.GAB", "m.safetensors", "m.v2.safetensors"])
def test_saving_follows_the_name(tmp_path: Path, name: str) -> None:
    save_checkpoint(random_checkpoint(SMALL), tmp_path / name)
    is_gab = (tmp_path / name).read_bytes().startswith(struct.pack("<I", 0x47414231))
    assert is_gab == name.lower().endswith(".gab")
    assert load_checkpoint(str(tmp_path / name)).config == SMALL


@each_case(("name", "found"), [("m.bin", "the name ends in '.bin'"), ("model", "the name has no ending")])
def test_saving_under_another_name_says_which_there_are(tmp_path: Path, name: str, found: str) -> None:
    with pytest.raises(InputError, match=rf"{name}: {found}; expected \.gab, \.safetensors or \.gguf"):
        save_checkpoint(random_checkpoint(SMALL), tmp_path / name)
    assert not list(tmp_path.iterdir())


MAKER = """
import sys
from pathlib import Path
from glinfer.formats.files import work_folder

with work_folder(Path(sys.argv[1])) as made:
    (made / "part").touch()
    print(made, flush=True)
    sys.stdin.read()
"""


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".glinfer-notes.tmp").mkdir()
    folders, makers = [], []
    for _ in range(2):
        maker = subprocess.Popen(
            [sys.executable, "-c", MAKER, tmp_path], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert maker.stdout is not None
        makers.append(maker)
        folders.append(Path(maker.stdout.readline().strip()))
    dead, alive = makers
    try:
        dead.kill()
        dead.wait(DEADLINE)
        assert all(folder.is_dir() for folder in folders)
        with replacing(tmp_path / "new") as temporary:
            temporary.write_text("new")
        assert {path.name for path in tmp_path.iterdir()} == {"new", ".glinfer-notes.tmp", folders[1].name}
        alive.communicate(timeout=DEADLINE)
        assert not folders[1].exists()
    finally:
        for maker in makers:
            maker.kill()
            maker.communicate()
