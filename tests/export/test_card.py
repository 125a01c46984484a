"""The licence that a model's files name."""

from __future__ import annotations

from pathlib import Path

from goldens.gguf_file import write_gguf_file

from glinfer.export.card import licence_of


def test_the_card_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    assert licence_of(tmp_path) == "", "there is no model beside this card"
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    for card, expected in (
        ("---\nlanguage: en\nlicense: apache-2.0\n---\n# A\n", "apache-2.0"),
        ('---\r\nlicense: "mit"  \r\n---\r\n', "mit"),
        ("---\nlicense: other\nlicense_name: gemma  terms\n---\n", "gemma terms"),
        ("---\nlicense:\n- mit\n---\n", ""),
        ("---\nlicense: [mit]\n---\n", ""),
        ("---\ntags:\n  license: mit\n---\n", ""),
        ("# A\nlicense: mit\n", ""),
        ("---\nlicense: mit\n", ""),
        ("---\nlicense: " + "x" * 500 + "\n---\n", "x" * 200),
    ):
        (tmp_path / "README.md").write_bytes(card.encode())
        assert licence_of(tmp_path) == licence_of(tmp_path / "model.safetensors") == expected, card
    (tmp_path / "README.md").unlink()
    assert licence_of(tmp_path) == ""
    assert licence_of("shakespeare").startswith("weights MIT")


def test_the_metadata_of_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    for keys, expected in (
        ({}, ""),
        ({"general.license": "apache-2.0"}, "apache-2.0"),
        ({"general.license": "other", "general.license.name": "llama3.2"}, "llama3.2"),
        ({"general.license": ""}, ""),
        ({"general.license": 7}, ""),
    ):
        assert licence_of(write_gguf_file(path, "llama", keys)) == expected, keys
