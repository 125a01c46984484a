"""Converting models: what may not be replaced, and what goes along beside the weights."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from goldens.gguf_models import K, byte_level
from tiny_embedders import write_bert, write_embedder

from glinfer.engine.defaults import USUAL, default_sampling
from glinfer.engine.random_model import demo_tokenizer
from glinfer.errors import FormatError, GlinferWarning, InputError
from glinfer.export.convert import convert_model
from glinfer.formats import load_checkpoint, random_checkpoint, write_bpe
from glinfer.formats.embedding import Embedding
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.gguf.write import write_gguf
from glinfer.formats.sampling import named_sampling
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
    first = contents(folder)
    convert_model(llama, there)
    del first[there.name]
    assert first.items() <= contents(folder).items(), "a second time changes nothing beside it"
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


@pytest.mark.parametrize("zipped", [False, True])
def test_how_texts_are_embedded_or_scored_goes_along(tmp_path: Path, zipped: bool) -> None:
    scores = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    write_embedder(tmp_path / "vectors", prompts={"query": "find: "})
    write_bert(tmp_path / "scores", **scores)
    for name in ("vectors", "scores"):
        source = tmp_path / name
        if zipped:
            source = Path(shutil.make_archive(str(tmp_path / name), "zip", source))
        (tmp_path / f"{name} there").mkdir()
        made = convert_model(source, there := tmp_path / f"{name} there" / "model.safetensors")
        expected, found = load_checkpoint(source), load_checkpoint(there)
        assert (found.embedding, found.config) == (expected.embedding, expected.config)
        assert found.embedding != Embedding()
        assert [path.name for path in made.beside] == ["tokenizer.json"]


@pytest.mark.parametrize(
    "changes",
    [{"most_tokens": -1}, {"normalizes": 0}, {"pair": "{query}"}, {"default_prompt": "query"}, {"prompts": {"a": 1}}],
    ids=lambda changes: next(iter(changes)),
)
def test_other_settings_of_an_embedding_model_are_refused(changes: dict[str, Any]) -> None:
    assert Embedding.from_json(Embedding(prompts={"q": "é"}).to_json(), "m") == Embedding(prompts={"q": "é"})
    for text in (dataclasses.replace(Embedding(), **changes).to_json(), "{}", "[", "null"):
        with pytest.raises(FormatError, match=r"^m: its metadata has the settings of an embedding model .*; convert"):
            Embedding.from_json(text, "m")


def test_a_template_for_tools_goes_along(llama: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "d").mkdir()
    there, back = folder / "model.safetensors", tmp_path / "back.gguf"
    convert_model(llama, there)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    (again := tmp_path / "again").mkdir()
    for source, target in ((there, back), (back, again / "model.safetensors")):
        convert_model(source, target)
        found = find_template(target)
        assert found is not None
        assert (found.source, found.tool_source) == (TEMPLATE, "{{ tools }}")


def test_a_tokenizer_given_from_elsewhere(llama: Path, tmp_path: Path) -> None:
    convert_model(llama, tmp_path / "bare.gguf", with_tokenizer=False)
    assert convert_model(tmp_path / "bare.gguf", tmp_path / "x.gguf").parts.tokenizer is None
    made = convert_model(tmp_path / "bare.gguf", tmp_path / "full.gguf", tokenizer=llama)
    assert made.parts.template is not None
    assert find_template(tmp_path / "full.gguf") == dataclasses.replace(
        made.parts.template, label=str(tmp_path / "full.gguf")
    )


def test_nothing_of_the_source_is_replaced(gab: Path, tmp_path: Path) -> None:
    words, given = gab.with_suffix(".bpe"), gab.with_name("given.gab")
    shutil.copy(words, given)
    symbolic, hard, hard_words = (gab.with_name(f"{name}.safetensors") for name in ("symbolic", "hard", "words"))
    symbolic.symlink_to(gab)
    hard.hardlink_to(gab)
    hard_words.hardlink_to(words)
    before = contents(gab.parent)
    for target in (gab.parent / ".." / "in" / gab.name, symbolic, hard, hard_words, given):
        with pytest.raises(InputError, match="which converting would replace; expected another file"):
            convert_model(gab, target, tokenizer=given if target == given else None)
        assert contents(gab.parent) == before, target


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
    values = {
        "model_type": "llama", "vocab_size": 64, "hidden_size": config.hidden_size, "num_attention_heads": 2,
        "num_hidden_layers": 2, "intermediate_size": 24, "max_position_embeddings": 48, "head_dim": 8,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(values))
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


def test_a_gab_names_formats_that_hold_the_dtype(gab: Path, tmp_path: Path) -> None:
    for dtype, named in (("q8_0", "write a .gguf file"), ("float16", "write a .safetensors or .gguf file")):
        with pytest.raises(InputError, match=f"a .gab file holds float32, not {dtype}; {named}"):
            convert_model(gab, tmp_path / "x.gab", dtype=dtype)
        assert [path.name for path in tmp_path.iterdir()] == ["in"]


GREEDY = {"temperature": 0.0, "top_p": 0.8}
NAMED = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.1}


def with_sampling(source: Path, named: dict[str, Any]) -> Path:
    """The model of a GGUF file in another one, whose metadata name sampling options; another model's lie beside."""
    made = load_checkpoint(source)
    (folder := source.parent / "named").mkdir()
    (folder / "generation_config.json").write_text('{"temperature": 9.0, "eos_token_id": 1}')
    metadata = read_gguf_file(source).metadata
    write_gguf(made, folder / "n.gguf", tokenizer=metadata, sampling=named)
    return folder / "n.gguf"


@pytest.mark.parametrize(
    "named",
    [
        NAMED,
        GREEDY,
        {},
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ({"repetition_penalty": 1.3}, {"top_k": 5}, {"temperature": 0.123456789123})
        ),
    ],
)
def test_sampling_goes_from_gguf_to_files_beside_and_back(llama: Path, tmp_path: Path, named: dict[str, Any]) -> None:
    source = with_sampling(llama, named)
    (folder := tmp_path / "d").mkdir()
    steps = [source, folder / "m.safetensors", tmp_path / "back.gguf", tmp_path / "same.gguf"]
    for one, other in itertools.pairwise(steps):
        assert convert_model(one, other).parts.sampling == named
        assert named_sampling(other)[0] == named
        assert default_sampling(other) == default_sampling(source)
    values = json.loads((folder / "generation_config.json").read_text())
    ends = {"eos_token_id": values["eos_token_id"]}
    if named == GREEDY:
        assert values == {"do_sample": False, "top_p": 0.8, **ends}  # transformers refuses a temperature of 0
    else:
        assert values == {**({"do_sample": True} if named.keys() - {"repetition_penalty"} else {}), **named, **ends}


def test_a_generation_config_goes_into_a_gguf(gab: Path, tmp_path: Path) -> None:
    gab.with_suffix(".bpe").unlink()  # the sampling of a model without a tokenizer goes along too
    start = "general.sampling."
    for values, metadata in (
        ({"do_sample": False, "temperature": 0.7, "top_k": 30}, {"temp": 0, "top_k": 30}),
        ({"do_sample": True, "temperature": 0.5, "top_p": 1}, {"temp": 0.5, "top_p": 1}),
        ({"min_p": 0.25, "repetition_penalty": 1.5, "max_length": 9}, {"min_p": 0.25, "penalty_repeat": 1.5}),
        ({"temperature": 1e300, "repetition_penalty": 1e-60}, {"temp": 1e300, "penalty_repeat": 1e-60}),
        ({"temperature": 0.6000000238418579}, {"temp": 0.6000000238418579}),
        ({"top_k": 10**30}, {"top_k": 2**31 - 1}),
    ):
        (gab.parent / "generation_config.json").write_text(json.dumps(values))
        convert_model(gab, tmp_path / "g.gguf")
        found = read_gguf_file(tmp_path / "g.gguf").metadata
        assert {key.removeprefix(start): value for key, value in found.items() if key.startswith(start)} == metadata
        same = default_sampling(tmp_path / "g.gguf")
        assert same == dataclasses.replace(default_sampling(gab), top_k=min(values.get("top_k", 0), 2**31 - 1))
    convert_model(gab, tmp_path / "bare.gguf", with_tokenizer=False)
    assert default_sampling(tmp_path / "bare.gguf") == USUAL


def test_a_generation_config_is_copied_and_may_stay_where_it_is(gab: Path, tmp_path: Path) -> None:
    own = gab.with_name("generation_config.json")
    own.write_text('{ "temperature":0.5,\n"max_length": 9 }')
    for folder in (tmp_path, gab.parent):
        made = convert_model(gab, folder / "new.safetensors")
        assert made.beside == (folder / "new.bpe", folder / own.name)
        assert (folder / own.name).read_bytes() == own.read_bytes()
    own.write_text('{"temperature": 0.25}')
    with pytest.raises(InputError, match=r"generation_config.json: found another model's"):
        convert_model(gab, tmp_path / "new.safetensors")


def test_sampling_that_cannot_be_used_is_left_out_with_a_warning(gab: Path, tmp_path: Path) -> None:
    named = gab.with_name("generation_config.json")
    for text, left, words in (
        ('{"top_p": 7, "top_k": -1, "min_p": 0.5}', {"top_k": 0, "min_p": 0.5}, "top_p is 7; expected .*; using 1"),
        ("[1]", {}, "found a JSON list; .*; its recommendations are not used"),
    ):
        named.write_text(text)
        with pytest.warns(GlinferWarning, match=rf"generation_config\.json: {words}"):
            convert_model(gab, tmp_path / "m.gguf")
        assert named_sampling(tmp_path / "m.gguf")[0] == left
