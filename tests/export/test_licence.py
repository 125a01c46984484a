"""The licence that a model's files name."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from glinfer.export.licence import licence_of


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("---\nlanguage: en\nlicense: apache-2.0\n---\n# A\n", "apache-2.0"),
        ('---\r\nlicense: "mit"  \r\n---\r\n', "mit"),
        ("---\nlicense: other\nlicense_name: gemma  terms\n---\n", "gemma terms"),
        ("---\nlicense:\n- mit\n---\n", ""),
        ("---\nlicense: [mit]\n---\n", ""),
        ("---\ntags:\n  license: mit\n---\n", ""),
        ("# A\nlicense: mit\n", ""),
        ("---\nlicense: mit\n", ""),
        ("---\nlicense: " + "x" * 500 + "\n---\n", "x" * 200),
    ],
)
def test_the_card_of_a_directory(tmp_path: Path, card: str, expected: str) -> None:
    (tmp_path / "README.md").write_bytes(card.encode())
    assert licence_of(tmp_path) == "", "there is no model beside this card"
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert licence_of(tmp_path) == expected
    assert licence_of(tmp_path / "model.safetensors") == expected


def test_no_card_and_a_bundled_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert licence_of(tmp_path) == ""
    assert licence_of("shakespeare").startswith("weights MIT")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, ""),
        ({"general.license": "apache-2.0"}, "apache-2.0"),
        ({"general.license": "other", "general.license.name": "llama3.2"}, "llama3.2"),
        ({"general.license": ""}, ""),
    ],
)
def test_the_metadata_of_a_gguf_file(tmp_path: Path, keys: dict[str, str], expected: str) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in keys.items():
        writer.add_string(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert licence_of(path) == expected


def test_a_licence_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint32("general.license", 7)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert licence_of(tmp_path / "m.gguf") == ""
