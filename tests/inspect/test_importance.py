"""Importance of inputs: the mean squares of what float64 computes, llama.cpp's files, and packing with it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from goldens.gguf_file import write_gguf_file
from made_models import of_family
from scripted_models import SMALL
from tiers import tiered

from glinfer.cli.app import cli, run
from glinfer.config import ModelConfig
from glinfer.engine.random_model import demo_tokenizer
from glinfer.errors import FormatError, InputError
from glinfer.formats import Checkpoint, load_checkpoint, random_checkpoint, save_checkpoint, write_bpe, write_gguf
from glinfer.formats.tensors import weight_shapes
from glinfer.inspect.importance import importance_from, importance_of_text, read_importance
from glinfer.text.parts import text_parts

pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
TEXT = "to be, or not to be, that is the question: whether tis nobler in the mind to suffer the slings"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A model with a tokenizer beside it, and a text."""
    made = of_family("llama", 256, vocab_size=300)
    model = tmp_path / "model.gguf"
    write_gguf(made, model)
    write_bpe(demo_tokenizer(300), tmp_path / "model.bpe")
    (tmp_path / "text.txt").write_text(TEXT, "utf-8")
    return model, tmp_path / "text.txt"


def normed_inputs(checkpoint: Checkpoint, ids: list[int]) -> Array:
    """The embeddings, normalised for the first attention, in float64."""
    names = checkpoint.config.family.names
    stream = checkpoint.floats(f"{names.embeddings}.weight").astype(np.float64)[ids]
    gain = checkpoint.floats(f"{names.of('attention_norm', 0)}.weight") + checkpoint.config.family.norm_offset
    if checkpoint.config.family.norm == "layer":
        stream = stream + checkpoint.floats(f"{names.positions}.weight")[: len(ids)]
        stream = stream - stream.mean(axis=1, keepdims=True)
        gain = gain.astype(np.float64)
    scale = np.sqrt((stream**2).mean(axis=1, keepdims=True) + checkpoint.config.layer_norm_eps)
    shift = checkpoint.tensors.get(f"{names.of('attention_norm', 0)}.bias", np.zeros(1))
    return np.asarray(stream / scale * gain + shift)


@tiered("family", ["gab", "llama", "qwen3"])
def test_it_is_the_mean_square_of_the_inputs(family: str, tmp_path: Path) -> None:
    gab = random_checkpoint(ModelConfig.from_options(SMALL), scale=0.15)
    checkpoint = gab if family == "gab" else of_family(family, vocab_size=300)
    path = tmp_path / "model.safetensors"
    save_checkpoint(checkpoint, path)
    write_bpe(demo_tokenizer(300), tmp_path / "model.bpe")
    found = importance_of_text(path, TEXT)
    names, shapes = checkpoint.config.family.names, weight_shapes(checkpoint.config)
    outside = {f"{name}.weight" for name in (names.embeddings, names.head, names.positions)}
    assert set(found) == {name for name, shape in shapes.items() if len(shape) == 2} - outside
    assert all(found[name].shape == (shapes[name][1],) for name in found)
    assert all((values > 0).all() and np.isfinite(values).all() for values in found.values())
    ids = _ids(path, checkpoint)
    context = checkpoint.config.max_position_embeddings
    chunks = [ids[start : start + context] for start in range(0, len(ids), context)]
    assert len(chunks) > 1
    expected = np.concatenate([normed_inputs(checkpoint, chunk) for chunk in chunks])
    for letter in "qkv":
        name = f"{names.of('projection', 0, letter)}.weight"
        assert found[name] == pytest.approx((expected**2).mean(axis=0), rel=1e-4, abs=1e-6)


def _ids(path: Path, checkpoint: Checkpoint) -> list[int]:
    tokenizer = text_parts(path, None, checkpoint.config).tokenizer
    assert tokenizer is not None
    return tokenizer.encode(TEXT)


@tiered("source", ["imatrix", "text"])
def test_convert_packs_with_it(files: tuple[Path, Path], tmp_path: Path, source: str) -> None:
    """The product with the inputs of the text has smaller errors than without."""
    model, text = files
    if source == "imatrix":
        squares = np.random.default_rng(1).exponential(size=(1, 256)).astype(np.float32) ** 4
        parts = {"in_sum2": squares, "counts": np.ones((1, 1), np.float32)}
        tensors = {f"blk.{layer}.attn_q.weight.{name}": part for layer in (0, 1) for name, part in parts.items()}
        text = imatrix(tmp_path / "i.gguf", tensors)
    plain, weighted = tmp_path / "plain.gguf", tmp_path / "weighted.gguf"
    for target, options in ((plain, []), (weighted, ["--imatrix", str(text)])):
        given = ["convert", str(model), str(target), "--dtype", "q2_k", "--tokenizer", str(model.with_suffix(".bpe"))]
        result = CliRunner().invoke(cli, [*given, *options], catch_exceptions=False)
        assert result.exit_code == 0, result.output
    importance = importance_from(text, model, load_checkpoint(model).config, tokenizer=model.with_suffix(".bpe"))
    exact, *others = (load_checkpoint(each) for each in (model, plain, weighted))
    for name, values in importance.items():
        errors = [((each.floats(name) - exact.floats(name)) ** 2 * values).sum() for each in others]
        assert errors[1] < errors[0], name


def imatrix(path: Path, tensors: dict[str, Array], kind: str = "imatrix") -> Path:
    """A file as llama-imatrix writes it."""
    return write_gguf_file(path, "llama", {"general.type": kind}, tensors)


def test_llama_cpps_files_are_read(tmp_path: Path) -> None:
    config = of_family("llama").config
    squares = np.arange(1, config.hidden_size + 1, dtype=np.float32)[None] * 8
    good = {"blk.1.attn_q.weight.in_sum2": squares, "blk.1.attn_q.weight.counts": np.array([[8.0]], np.float32)}
    found = read_importance(imatrix(tmp_path / "i.gguf", good), config)
    assert set(found) == {"model.layers.1.self_attn.q_proj.weight"}
    assert np.array_equal(*found.values(), np.arange(1, config.hidden_size + 1, dtype=np.float32))
    assert np.array_equal(*importance_from(tmp_path / "i.gguf", "unused", config).values(), *found.values())

    def refusal(tensors: dict[str, Array], kind: str = "imatrix") -> str:
        with pytest.raises(FormatError) as caught:
            read_importance(imatrix(tmp_path / "bad.gguf", tensors, kind), config)
        return str(caught.value).partition(": ")[2]

    assert refusal(good, "model").startswith("its general.type is 'model'; expected 'imatrix'")
    assert refusal({"blk.9.attn_q.weight.in_sum2": squares}).startswith("found no importance of this model's matrices")
    short = {**good, "blk.1.attn_q.weight.in_sum2": squares[:, :7]}
    assert "is F32 [1, 7]; expected F32 with 64 numbers and a count" in refusal(short)
    assert "has numbers that are not mean squares" in refusal({**good, "blk.1.attn_q.weight.in_sum2": -squares})


def test_what_cannot_be_used_is_refused(files: tuple[Path, Path], tmp_path: Path, small: Path) -> None:
    model, text = files
    config = load_checkpoint(model).config
    (tmp_path / "binary").write_bytes(b"\xff\xff\x00")
    with pytest.raises(InputError, match=r"binary is not UTF-8 .*; expected a text, or an importance matrix in GGUF"):
        importance_from(tmp_path / "binary", model, config)
    with pytest.raises(FormatError, match=r"missing.txt: cannot read it: No such file"):
        importance_from(tmp_path / "missing.txt", model, config)
    with pytest.raises(InputError, match="has no tokens; expected thousands"):
        importance_of_text(small, "")
    assert run(["convert", str(model), str(tmp_path / "o.gguf"), "--imatrix", str(text)]) == 2
    assert not (tmp_path / "o.gguf").exists()


def test_inputs_that_a_text_never_uses_still_count(tmp_path: Path) -> None:
    config = dataclasses.replace(of_family("llama").config)
    squares = np.zeros((1, config.hidden_size), np.float32)
    squares[0, 3] = 64.0
    tensors = {"blk.0.ffn_up.weight.in_sum2": squares, "blk.0.ffn_up.weight.counts": np.array([[1.0]], np.float32)}
    (found,) = read_importance(imatrix(tmp_path / "i.gguf", tensors), config).values()
    assert found[3] == 64.0
    assert np.array_equal(np.delete(found, 3), np.full(config.hidden_size - 1, 1e-4, np.float32))
