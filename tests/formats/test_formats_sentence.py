"""Directories of sentence-transformers, and models in zip files: what is read of them, and what is refused."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_case import each_case
from tiny_embedders import write_bert, write_embedder

from glinfer.errors import FormatError
from glinfer.formats import load_checkpoint, unpacked
from glinfer.formats.embedding import Embedding

PROMPTS = "config_sentence_transformers.json"


def test_what_stands_behind_a_model(tmp_path: Path) -> None:
    write_embedder(tmp_path / "m", dense=(44, 7), prompts={"query": "find: ", "document": ""})
    found = load_checkpoint(tmp_path / "m")
    assert found.config.pooling == "mean"
    assert found.config.dense == ((44, True, "tanh"), (7, True, "tanh"))
    assert found.tensors["dense.1.weight"].shape == (7, 44)
    assert found.embedding == Embedding({"query": "find: ", "document": ""}, normalizes=True, most_tokens=40)
    assert {file.name for file in found.files} >= {"config.json", "model.safetensors", "sentence_bert_config.json"}


def test_a_model_alone_is_pooled_by_means(tmp_path: Path) -> None:
    write_bert(tmp_path / "m")
    found = load_checkpoint(tmp_path / "m")
    assert (found.config.pooling, found.config.dense, found.embedding) == ("mean", (), Embedding())


@each_case("given, own, expected", [(60, None, 60), (60, 30, 30), (10**30, None, 0), (None, None, 0)])
def test_the_longest_text(tmp_path: Path, given: int | None, own: int | None, expected: int) -> None:
    write_embedder(tmp_path / "m", most=own)
    (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps({"model_max_length": given}))
    assert load_checkpoint(tmp_path / "m").embedding.most_tokens == expected


@each_case(
    ("own", "squashes"),
    [
        ({}, True),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, False),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, True),
        ({"id2label": {"0": "a", "1": "b"}}, False),
    ],
)
def test_classifiers_rank(tmp_path: Path, own: dict[str, Any], squashes: bool) -> None:
    settings = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}, **own}
    write_bert(tmp_path / "m", **settings)
    found = load_checkpoint(tmp_path / "m")
    assert (found.embedding.ranks, found.embedding.squashes) == (True, squashes)
    assert found.config.dense[-1][0] == len(settings["id2label"])


@each_case(
    ("file", "change", "said"),
    [
        ("modules.json", {"type": 3}, r"modules.json: found a JSON dict; expected an array"),
        ("modules.json", [{"path": ""}], "expected objects with the type and the path of each module"),
        ("modules.json", [{"type": "a.CNN", "path": "x"}], "the module 'CNN' is not supported here; expected Transfo"),
        ("modules.json", [{"type": "a.Transformer", "path": ""}], "found no pooling in it"),
        ("modules.json", [{"type": "a.Pooling", "path": "../x"}], "the path '../x' is not a folder next to it; do not"),
        ("1_Pooling/config.json", {}, r"its pooling is \[\]; expected one of cls, mean"),
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "'cls', 'mean'"),
        ("2_Dense/config.json", {"in_features": 36, "out_features": 9}, r"expected bias, weight of \[9, 36\]"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.ReLU"}, "activation_function is 'torch.nn.ReLU'"),
        (PROMPTS, {"prompts": ["a"]}, "prompts is .*; expected an object with a text for each"),
        (PROMPTS, {"prompts": {"a": "b"}, "default_prompt_name": "c"}, "default_prompt_name is 'c'; expected the name"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length is 0; expected an integer"),
    ],
)
def test_what_is_refused(tmp_path: Path, file: str, change: Any, said: str) -> None:
    write_embedder(tmp_path / "m", dense=(8,))
    (tmp_path / "m" / file).write_text(json.dumps(change))
    with pytest.raises(FormatError, match=said) as caught:
        load_checkpoint(tmp_path / "m")
    assert str(tmp_path) in str(caught.value)


def test_a_dense_step_without_weights(tmp_path: Path) -> None:
    write_embedder(tmp_path / "m", dense=(8,))
    (tmp_path / "m" / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(FormatError, match=r"found no model.safetensors; expected the weights of this module there"):
        load_checkpoint(tmp_path / "m")


def packed(folder: Path, path: Path, under: str = "") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                made.write(file, under + file.relative_to(folder).as_posix())
    return path


class TestZip:
    @each_case("under", ["", "model/"])
    def test_a_model_in_a_zip_file(self, tmp_path: Path, under: str) -> None:
        write_embedder(tmp_path / "m")
        found = load_checkpoint(packed(tmp_path / "m", tmp_path / "other.zip", under))
        plain = load_checkpoint(tmp_path / "m")
        assert found.config == plain.config
        assert all(np.array_equal(found.tensors[name], plain.tensors[name]) for name in plain.tensors)

    def test_the_folder_of_a_package(self, tmp_path: Path) -> None:
        write_embedder(tmp_path / "m")
        (tmp_path / "package").mkdir()
        packed(tmp_path / "m", tmp_path / "package" / "model.zip")
        assert load_checkpoint(tmp_path / "package").config == load_checkpoint(tmp_path / "m").config

    def test_it_is_unpacked_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GLINFER_CACHE", str(tmp_path / "cache"))
        write_embedder(tmp_path / "m")
        file = packed(tmp_path / "m", tmp_path / "a.zip")
        first = Path(unpacked(file))
        assert first.is_relative_to(tmp_path / "cache")
        written = (first / "config.json").stat().st_mtime_ns
        assert unpacked(file) == first
        assert (first / "config.json").stat().st_mtime_ns == written
        assert [each.name for each in first.parent.iterdir()] == [first.name], "nothing is left behind"

    def test_one_without_a_model(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as made:
            made.writestr("readme.txt", "hello")
        with pytest.raises(FormatError, match=r"found no model in it; expected one config.json"):
            load_checkpoint(tmp_path / "a.zip")
