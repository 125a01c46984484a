"""Sites of models that embed texts: what the plan's file says of tables, texts and characters, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_embedders import write_bert, write_embedder

from glinfer.errors import InputError
from glinfer.export import embedding
from glinfer.export import site as module
from glinfer.export.embedding import characters_of
from glinfer.export.libraries import LIBRARIES, TOKENIZERS
from glinfer.export.site import LIMITS, export_web, web_root
from glinfer.formats import load_checkpoint
from glinfer.lower.plans import plan_for
from glinfer.text.encoder import TextEncoder
from glinfer.text.tokenizer import find_tokenizer

PROMPTS = {"query": "in the rain ", "document": "a "}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at every character once for all models."""
    monkeypatch.setattr(embedding, "characters_of", lambda values: characters())


@cache
def characters() -> dict[str, str] | None:
    """Those of all models here, since a look at every character takes most of the time of an export."""
    return characters_of({"normalizer": {"type": "BertNormalizer"}, "pre_tokenizer": {"type": "BertPreTokenizer"}})


def test_a_site_that_embeds_has_what_the_page_needs(tmp_path: Path) -> None:
    web = web_root()
    model = tmp_path / "m"
    write_embedder(model, prompts=PROMPTS, normalize=False)
    made = export_web(model, tmp_path / "out", limits="webgl2")
    packed = shutil.make_archive(str(tmp_path / "my-embedder"), "zip", model)
    named = export_web(packed, tmp_path / "zipped", limits="webgl2").plan["model"]["name"]
    assert [made.plan["model"]["name"], named] == ["m", "my-embedder"]
    found = json.loads((made.folder / "plan.json").read_text())
    about, config = found["embedding"], load_checkpoint(model).config.with_context(40)
    assert found["driver"] == "encode"
    assert (found["logits"], found["input"], found["pictures"]) == (None, None, [])
    size, kernels = LIMITS["webgl2"].max_texture_size, module.web_kernels()
    plan = plan_for(config, "fast", formats={}, kernels=kernels, max_texture_size=size)
    assert made.draws == len(plan.draws) == len(found["draws"])
    names = [found["textures"][each]["name"] for each in (about["rows"], about["texts"], *about["vectors"])]
    assert names == ["rows", "texts", *(f"text.embeddings.{number}" for number in range(4))]
    assert (about["positions"], about["pooling"], about["most_tokens"]) == (40, "mean", 40)
    assert (about["prompts"], about["default_prompt"], about["normalizes"]) == (PROMPTS, "", False)
    tokenizer, _ = find_tokenizer(model, None, config)
    assert tokenizer is not None
    encoder = TextEncoder(tokenizer, 40)
    assert [about["before"], about["after"]] == [[each] for each in encoder.texts([""])[0].ids]
    probes = dict(map(tuple, about["probes"]))
    assert probes == dict(zip(probes, (each.ids for each in encoder.texts(list(probes))), strict=True))
    written = json.loads((made.folder / "tokenizer.json").read_text())
    assert written == {**json.loads(tokenizer.library_json()), "truncation": None, "padding": None}
    # The same classes in Python's own characters: a mark, punctuation, and what is neither.
    marks, ends, removed = (
        re.compile(
            "["
            + re.sub(r"\\u\{(\w+)\}", lambda code: re.escape(chr(int(code[1], 16))), about["characters"][name])
            + "]"
        )
        for name in ("marks", "punctuation", "removed")
    )
    assert [bool(marks.fullmatch(each)) for each in "\u0301\u20d0eé"] == [True, True, False, False]
    assert [bool(ends.fullmatch(each)) for each in "$.…«a 1"] == [True, True, True, True, False, False, False]
    assert [bool(removed.fullmatch(each)) for each in "\0\u200b\ufffd\n\ta"] == [True, True, True, False, False, False]
    tensors = load_file(made.folder / "weights.safetensors")
    assert "logits_order" not in tensors
    assert tensors["line_checksums"].dtype == np.uint32
    page = {"index.html": "search/index.html", "style.css": "style.css", "page/theme.js": "page/theme.js"}
    assert set(made.plan["offline"]["files"]) >= {"index.html", "search/app.js", "page/offline.js", "glinfer/kept.js"}
    for name in (
        *LIBRARIES[TOKENIZERS],
        "offline.js",
        "page/offline.js",
        "search/page.js",
        "embedding/embed.js",
        "text/library.js",
        "texts.js",
    ):
        page[name] = name
    for name, place in page.items():
        assert (made.folder / name).read_bytes() == (web / place).read_bytes()
    assert not (made.folder / "app.js").exists()
    assert not (made.folder / "text" / "jinja.js").exists()
    assert not (made.folder / "search" / "index.html").exists()
    again = export_web(model, tmp_path / "out", single=True)  # takes the place of the other
    assert [each.name for each in again.folder.iterdir()] == ["index.html"]


def test_what_cannot_embed_in_a_page_is_refused_in_one_line(tmp_path: Path) -> None:
    model = tmp_path / "m"
    write_embedder(model)
    (model / "vocab.txt").rename(tmp_path / "vocab.txt")
    with pytest.raises(InputError, match="a site that embeds texts needs the model's tokenizer"):
        export_web(model, tmp_path / "site")
    write_bert(tmp_path / "two", architectures=["BertForSequenceClassification"], id2label={"0": "x", "1": "y"})
    with pytest.raises(InputError, match="this model gives 2 scores for a pair of texts; expected one"):
        export_web(tmp_path / "two", tmp_path / "site")
    assert not (tmp_path / "site").exists()


def test_a_site_that_scores_pairs_says_how_they_are_written(tmp_path: Path) -> None:
    write_bert(tmp_path / "m", architectures=["BertForSequenceClassification"], id2label={"0": "x"})
    ranks = export_web(tmp_path / "m", tmp_path / "out", limits="webgl2").plan["embedding"]["ranks"]
    config = load_checkpoint(tmp_path / "m").config
    tokenizer, _ = find_tokenizer(tmp_path / "m", None, config)
    assert tokenizer is not None
    begin, end = (tokenizer.control_tokens[text] for text in ("[CLS]", "[SEP]"))
    assert (ranks["before"], ranks["between"], ranks["after"]) == ([[begin, 0]], [[end, 0]], [[end, 1]])
    assert (ranks["types"], ranks["form"], ranks["squashes"]) == ([0, 1], "", True)
    most = config.max_position_embeddings
    for query, text, ids, types in ranks["probes"]:
        assert TextEncoder(tokenizer, most).pairs(query, [text]) == [(ids, types)]
    assert max(len(ids) for _, _, ids, _ in ranks["probes"]) == most, "one of them is cut"
    write_embedder(tmp_path / "e")
    assert export_web(tmp_path / "e", tmp_path / "out").plan["embedding"]["ranks"] is None
