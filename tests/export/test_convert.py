"""Converting models: what may not be replaced, and what goes along beside the weights."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from goldens.gguf_models import K, byte_level

from glinfer.engine.random_model import demo_tokenizer
from glinfer.errors import InputError
from glinfer.export.convert import convert_model
from glinfer.formats import load_checkpoint, random_checkpoint, write_bpe
from glinfer.formats.gguf.write import write_gguf
from glinfer.text.stops import default_stops
from glinfer.text.templates import find_template
from glinfer.text.tokenizer import find_tokenizer

pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A GGUF file of a small Llama with tokenizer and template."""
    from tiny_models import tiny

    metadata = {**byte_level(), "tokenizer.chat_template": TEMPLATE}
    made = random_checkpoint(tiny("llama", vocab_size=len(metadata[K + "tokens"])), seed=1)
    (tmp_path / "in").mkdir()
    write_gguf(made, tmp_path / "in" / "l.gguf", tokenizer=metadata)
    return tmp_path / "in" / "l.gguf"


@pytest.fixture
def gab(tmp_path: Path) -> Path:
    from scripted_models import SMALL, random_file

    (tmp_path / "in").mkdir()
    write_bpe(demo_tokenizer(300), tmp_path / "in" / "g.bpe")
    return random_file(tmp_path / "in" / "g.gab", SMALL)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_from_gguf_and_back(llama: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "d").mkdir()
    there, back = folder / "model.safetensors", tmp_path / "back.gguf"
    made = convert_model(llama, there)
    assert sorted(path.name for path in made.beside) == sorted({*contents(folder)} - {there.name})
    convert_model(there, back)
    config = load_checkpoint(llama).config
    found = set()
    for path in (llama, there, back):
        tokenizer, template = find_tokenizer(path, None, config)[0], find_template(path)
        assert tokenizer is not None
        assert template is not None
        ids = tuple(tokenizer.encode("hello <|im_end|> x = 123"))
        stops = frozenset(default_stops(path, tokenizer, config))
        found.add((ids, stops, template.source, tuple(template.tokens.items())))
    assert len(found) == 1
    first, last = load_checkpoint(llama), load_checkpoint(back)
    assert all((first.floats(name) == last.floats(name)).all() for name in first.formats())


def test_a_second_time_changes_nothing(llama: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "d").mkdir()
    convert_model(llama, folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    before = contents(folder)
    convert_model(llama, folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    assert contents(folder) == before


def test_a_tokenizer_given_from_elsewhere(llama: Path, tmp_path: Path) -> None:
    convert_model(llama, tmp_path / "bare.gguf", with_tokenizer=False)
    assert convert_model(tmp_path / "bare.gguf", tmp_path / "x.gguf").parts.tokenizer is None
    made = convert_model(tmp_path / "bare.gguf", tmp_path / "full.gguf", tokenizer=llama)
    assert made.parts.template is not None
    assert find_template(tmp_path / "full.gguf") == dataclasses.replace(
        made.parts.template, label=str(tmp_path / "full.gguf")
    )


@pytest.mark.parametrize("how", ["itself", "symbolic link", "hard link", "its tokenizer", "given tokenizer"])
def test_nothing_of_the_source_is_replaced(gab: Path, tmp_path: Path, how: str) -> None:
    target, given = tmp_path / "in" / "t.safetensors", None
    if how == "itself":
        target = gab.parent / ".." / "in" / gab.name
    elif how == "symbolic link":
        target.symlink_to(gab)
    elif how == "hard link":
        target.hardlink_to(gab)
    elif how == "its tokenizer":
        target.hardlink_to(gab.with_suffix(".bpe"))
    else:
        given = target.with_name("given.gab")
        shutil.copy(gab.with_suffix(".bpe"), given)
        target = given
    before = contents(gab.parent)
    with pytest.raises(InputError, match="which converting would replace; expected another file"):
        convert_model(gab, target, tokenizer=given)
    assert contents(gab.parent) == before


def test_a_member_of_a_directory_is_of_the_source(tmp_path: Path) -> None:
    transformers = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    from tiny_models import tiny

    config = tiny("llama", vocab_size=64)
    tensors = dict(random_checkpoint(config, seed=1).tensors)
    (folder := tmp_path / "hf").mkdir()
    names = sorted(tensors)
    shards = {f"model-0000{n}-of-00002.safetensors": names[n - 1 :: 2] for n in (1, 2)}
    for shard, held in shards.items():
        transformers.save_file({name: tensors[name] for name in held}, folder / shard)
    placed = {name: shard for shard, held in shards.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    told = {
        "model_type": "llama", "vocab_size": 64, "hidden_size": config.hidden_size, "num_attention_heads": 2,
        "num_hidden_layers": 2, "intermediate_size": 24, "max_position_embeddings": 48, "head_dim": 8,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(told))
    before = contents(folder)
    for source in (folder, folder / "config.json", folder / next(iter(shards))):
        for shard in shards:
            with pytest.raises(InputError, match="which converting would replace"):
                convert_model(source, folder / shard)
    assert contents(folder) == before
    convert_model(folder, folder / "own.gguf")
    convert_model(folder, folder / "own.gguf")
    assert {name: data for name, data in contents(folder).items() if name != "own.gguf"} == before


def test_files_of_another_model_stay(llama: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "d").mkdir()
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer.json: found another model's, with other contents"):
        convert_model(llama, folder / "m.safetensors")
    assert list(contents(folder)) == ["tokenizer.json"]
    convert_model(llama, folder / "m.safetensors", with_tokenizer=False)


@pytest.mark.parametrize(
    ("dtype", "named"), [("q8_0", "write a .gguf file"), ("float16", "write a .safetensors or .gguf file")]
)
def test_a_gab_names_formats_that_hold_the_dtype(gab: Path, tmp_path: Path, dtype: str, named: str) -> None:
    with pytest.raises(InputError, match=f"a .gab file holds float32, not {dtype}; {named}"):
        convert_model(gab, tmp_path / "x.gab", dtype=dtype)
    assert not (tmp_path / "x.gab").exists()
    assert not (tmp_path / "x.bpe").exists()
    for ending in (".safetensors", ".gguf"):
        if ending in named:
            convert_model(gab, tmp_path / f"y{ending}", dtype=dtype)
