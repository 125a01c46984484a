"""Loading by content, saving by name."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import glinfer.formats
from glinfer.config import ModelConfig
from glinfer.errors import FormatError, InputError
from glinfer.formats import (
    BpeModel,
    load_checkpoint,
    random_checkpoint,
    save_checkpoint,
    write_bpe,
    write_gab,
    write_safetensors,
)

SMALL = ModelConfig.from_options("vocab=3,dim=2,heads=1,blocks=1,context=2")


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


def test_a_tokenizer_is_recognised(tmp_path: Path) -> None:
    write_bpe(BpeModel((), tuple(bytes([i]) for i in range(256))), tmp_path / "model.gab")
    with pytest.raises(FormatError, match=r"this is a BPE1 tokenizer file; expected a checkpoint; give the"):
        load_checkpoint(tmp_path / "model.gab")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"found an empty file \(0 bytes in all\); expected a GAB1, safetensors or GGUF checkpoint"),
        (b"G", r"found first bytes 47 \(1 bytes in all\); expected"),
        (b"GGUF\x03\0\0\0rest", r"found 12 bytes; expected a GGUF file, whose header alone has 24"),
        (b"PK\x03\x04" + bytes(30), r"found first bytes 50 4b 03 04 .* expected a GAB1, safetensors or GGUF"),
        (struct.pack("<I", 0x47414231), "found 4 bytes; expected at least the 28 of a GAB1 header"),
        (struct.pack("<Q", 7) + b"{", "promise a safetensors header of 7 bytes; expected at most 1"),
    ],
)
def test_what_is_no_checkpoint(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "m.gab").write_bytes(data)
    with pytest.raises(FormatError, match=message) as caught:
        load_checkpoint(tmp_path / "m.gab")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"m\.gab: cannot read it: No such file or directory"):
        load_checkpoint(tmp_path / "m.gab")


@pytest.mark.parametrize("name", ["m.gab", "m.GAB", "m.safetensors", "m.v2.safetensors"])
def test_saving_follows_the_name(tmp_path: Path, name: str) -> None:
    save_checkpoint(random_checkpoint(SMALL), tmp_path / name)
    is_gab = (tmp_path / name).read_bytes().startswith(struct.pack("<I", 0x47414231))
    assert is_gab == name.lower().endswith(".gab")
    assert load_checkpoint(str(tmp_path / name)).config == SMALL


@pytest.mark.parametrize(("name", "found"), [("m.bin", "the name ends in '.bin'"), ("model", "the name has no ending")])
def test_saving_under_another_name_says_which_there_are(tmp_path: Path, name: str, found: str) -> None:
    with pytest.raises(InputError, match=rf"{name}: {found}; expected \.gab, \.safetensors or \.gguf"):
        save_checkpoint(random_checkpoint(SMALL), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_everything_that_the_room_offers_is_there() -> None:
    assert all(hasattr(glinfer.formats, name) for name in glinfer.formats.__all__)
    assert sorted(glinfer.formats.__all__) == glinfer.formats.__all__
