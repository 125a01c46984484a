"""Images, and the files of image encoders: llama.cpp's, and the settings of a Hugging Face directory."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

from glinfer.formats.vision import Vision, read_vision
from glinfer.text.images import decoded, squares_of
from qa.fuzz.folders import written
from qa.fuzz.reads import Files, put_one
from tests.goldens.pictures import TEXT, picture, write_mmproj, write_smolvlm

_NAMES = ("mmproj.gguf", "config.json", "preprocessor_config.json")


@cache
def encoders() -> Files:
    """The files that are damaged."""
    made = written(lambda folder: (write_smolvlm(folder), write_mmproj(folder / _NAMES[0])))
    return {name: made[name] for name in _NAMES}


def prepare(folder: Path) -> None:
    """A whole directory."""
    write_smolvlm(folder)


def encoder(data: bytes, folder: Path) -> None:
    """An encoder, and squares for it."""
    path = put_one(encoders(), data, folder)
    found = read_vision(folder, TEXT, path if path.name == _NAMES[0] else None)
    if isinstance(found, Vision):
        found.checkpoint.check_finite()
        squares_of(picture(9, 9), found.form)


@cache
def images() -> list[bytes]:
    """An image in each format."""
    found = []
    for form in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        data = io.BytesIO()
        picture(9, 7).save(data, form)
        found.append(data.getvalue())
    return found


def image(data: bytes, folder: Path) -> None:
    """An image, from a file."""
    (folder / "image").write_bytes(data)
    decoded(folder / "image")
