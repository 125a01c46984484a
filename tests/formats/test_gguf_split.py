"""GGUF files in several parts: one model whichever part is given, and what is missing or does not belong is named."""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_case import each_case
from goldens.gguf_models import CONFIGS
from small_models import split_file
from test_formats_gguf import refusal

from glinfer.errors import FormatError, InputError
from glinfer.export.convert import convert_model
from glinfer.formats import load_checkpoint, random_checkpoint, write_gguf
from glinfer.jobs.manifest import file_digest
from glinfer.text.parts import text_parts
from glinfer.text.tokenizer import learn_bpe

gguf = pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")

PARTS = 3
split = partial(split_file, count=PARTS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = random_checkpoint(dataclasses.replace(CONFIGS["llama"], vocab_size=300), seed=5)
    tokenizer = learn_bpe(["to be or not to be, to be"], 270)
    target = tmp_path / "model.gguf"
    write_gguf(made, target, dtype="q8_0", tokenizer=tokenizer)
    return target


def test_any_part_is_the_whole_model(path: Path) -> None:
    whole = load_checkpoint(path)
    for part in (*(parts := split(path)), *split(path, order=-1)):
        found = load_checkpoint(part)
        assert found.config == whole.config
        assert found.files == tuple(parts)
        assert found.formats() == whole.formats()
        for name in whole.formats():
            assert np.array_equal(found.floats(name), whole.floats(name)), name
        tokenizer = text_parts(part, None, found.config).tokenizer
        assert tokenizer is not None
        assert tokenizer.decode(tokenizer.encode("to be")) == "to be"


def test_parts_are_read_by_convert_and_are_no_target(path: Path) -> None:
    parts = split(path)
    made = convert_model(parts[1], path.parent / "joined.gguf")
    assert made.parts.tokenizer is not None
    assert load_checkpoint(path.parent / "joined.gguf").formats() == load_checkpoint(path).formats()
    with pytest.raises(InputError, match=r"found the same file as|found the source itself"):
        convert_model(parts[1], parts[2])


@each_case("gone", [[1], [0, 2], [0]])
def test_missing_parts_are_named(path: Path, gone: list[int]) -> None:
    parts = split(path)
    for number in gone:
        parts[number].unlink()
    kept = next(number for number in range(PARTS) if number not in gone)
    names = ", ".join(parts[number].name for number in gone)
    assert refusal(parts[kept]) == (
        f"this is part {kept + 1} of 3 of a model; found no {names} next to it; get all parts into one folder"
    )


def test_a_part_of_another_name_says_which_name_it_needs(path: Path) -> None:
    parts = split(path)
    for name in ("second.gguf", "model-00002-of-00004.gguf", "model-2-of-3.gguf"):
        renamed = parts[1].rename(path.parent / name)
        needed = "this is part 2 of 3 of a model; expected a name that ends in -00002-of-00003.gguf"
        assert refusal(renamed).startswith(needed)
        renamed.rename(parts[1])


@each_case(
    ("number", "key", "value", "message"),
    [
        (1, "split.count", 4, "its split.count is 4; expected 3, as the other parts of the model have it"),
        (2, "split.no", 1, "its split.no is 1; expected 2, as the other parts of the model have it"),
        (2, "split.tensors.count", 5, "its split.tensors.count is 5; expected 21, as the other parts of the model"),
        (1, "split.tensors.count", None, "its split.tensors.count is None; expected 21"),
        (0, "split.tensors.count", "x", "split.tensors.count is 'x'; expected an integer of at least 0"),
        (0, "split.count", "3", "split.count is '3'; expected an integer of at least 1"),
        (0, "split.no", 3, "split.count is 3; expected an integer of at least 4"),
    ],
)
def test_parts_that_do_not_belong_together(path: Path, number: int, key: str, value: Any, message: str) -> None:
    parts = split(path, changes={number: {key: value}})
    with pytest.raises(FormatError, match=re.escape(f"{parts[number].name}: {message}")):
        load_checkpoint(parts[0])


def test_tensors_are_counted_and_told_apart(path: Path) -> None:
    parts = split(path, changes={number: {"split.tensors.count": 22} for number in range(PARTS)})
    assert refusal(parts[0]).startswith("its 3 parts have 21 tensors; expected 22, as split.tensors.count says")
    parts = split(path, twice=True)
    with pytest.raises(FormatError, match=r"00002-of-00003.gguf: tensor .* is in another part too"):
        load_checkpoint(parts[2])


def test_a_batch_knows_a_model_by_all_of_its_parts(path: Path) -> None:
    parts = split(path)
    before = file_digest(parts[0])
    assert file_digest(parts[2]) == before != file_digest(path)
    data = bytearray(parts[1].read_bytes())
    data[-1] ^= 1
    parts[1].write_bytes(data)
    assert file_digest(parts[0]) != before
    parts[1].unlink()
    with pytest.raises(FormatError, match="00002-of-00003"):
        file_digest(parts[0])


def test_parts_that_nobody_named_lie_in_the_folder(path: Path, tmp_path: Path) -> None:
    parts = split(path)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    parts[1].rename(elsewhere / "part.gguf")
    parts[1].symlink_to(elsewhere / "part.gguf")
    assert load_checkpoint(parts[0]).files[1] == parts[1]
    (folder := tmp_path / "folder").mkdir()
    for number in (0, 2):
        parts[number].rename(folder / parts[number].name)
    (folder / parts[1].name).symlink_to(elsewhere / "part.gguf")
    with pytest.raises(FormatError, match="found a link that leads out of its folder"):
        load_checkpoint(folder / parts[0].name)
