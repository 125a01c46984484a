"""Sites of models with a tokenizer and a template of Hugging Face's: what their files say, and what is left out."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from goldens import given
from tokenizers import pre_tokenizers, processors

from glinfer.config import ModelConfig
from glinfer.export.libraries import LIBRARIES
from glinfer.export.site import export_web, web_root
from glinfer.export.texts import CONVERSATIONS
from glinfer.formats import random_checkpoint, save_checkpoint
from glinfer.text.templates import JinjaTemplate
from glinfer.text.tokenizer import Tokenizer

SHAPE = "family=llama,blocks=1,heads=2,kv_heads=1,dim=16,inner=32,vocab=340,context=64"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + given.CHATML


def written(folder: Path, template: str | None = given.CHATML, **changes: Any) -> Path:
    """A Llama with a byte-level BPE, and a template."""
    folder.mkdir()
    values = {**json.loads(given.byte_level("<|endoftext|>", "<|im_start|>", "<|im_end|>").to_str()), **changes}
    (folder / "tokenizer.json").write_text(json.dumps(values))
    config = {"eos_token": "<|im_end|>", **({} if template is None else {"chat_template": template})}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    save_checkpoint(random_checkpoint(ModelConfig.from_options(SHAPE)), folder / "model.safetensors")
    return folder / "model.safetensors"


def test_the_site_has_tokenizer_template_and_libraries(tmp_path: Path) -> None:
    web = web_root()
    first = processors.TemplateProcessing(single="b:0 $A:0", special_tokens=[("b", 0)])
    path = written(tmp_path / "m", post_processor=json.loads(first.__getstate__()))
    made = export_web(path, tmp_path / "out", limits="webgl2")
    assert made.notes == ()
    for name in ("text/template.js", "text/marks.js", *(name for files in LIBRARIES.values() for name in files)):
        assert (made.folder / name).read_bytes() == (web / name).read_bytes()
    assert (made.folder / "texts.js").read_bytes() == (web / "library_texts.js").read_bytes()
    assert (made.folder / "answers.js").read_bytes() == (web / "markdown_answers.js").read_bytes()
    tokenizer = Tokenizer.from_file(path.parent)
    entry = json.loads((made.folder / "tokenizer.json").read_text())
    assert (entry["kind"], entry["prefix"], entry["before"], entry["after"]) == ("library", 0, [0], [])
    assert entry["control"] == dict(tokenizer.control_tokens)
    assert entry["library"]["post_processor"] is None
    assert entry["library"]["model"] == json.loads(tokenizer.library_json())["model"]
    pieces = list(map(base64.b64decode, entry["pieces"]))
    assert pieces == [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    for probe in entry["probes"]:
        assert tokenizer.encode(probe["text"]) == [0, *probe["whole"]]
        assert tokenizer.encode(probe["text"], allow_special=False) == probe["plain"]
    assert any(0 in probe["whole"] for probe in entry["probes"]), "one of them spells control tokens"
    chat = made.plan["model"]["chat"]
    assert (chat["template"], chat["tokens"]) == (given.CHATML, {"eos_token": "<|im_end|>"})
    assert chat["stop_ids"] == [tokenizer.control_tokens["<|im_end|>"]]
    assert made.plan["model"]["before"] == [0]
    assert chat["system"] is True
    assert len(chat["clock"]) == 5
    template = JinjaTemplate(given.CHATML, {}, "m")
    assert [probe["messages"] for probe in chat["probes"]] == list(map(list, CONVERSATIONS))
    assert [probe["ids"] for probe in chat["probes"][:2]] == [
        template.ids(tokenizer, each) for each in CONVERSATIONS[:2]
    ]
    assert made.plan["model"]["why"] is None
    assert "What can you help me with?" in made.plan["model"]["examples"]


@pytest.mark.slow
def test_what_a_page_lacks_is_said(tmp_path: Path) -> None:
    made = export_web(written(tmp_path / "no system", NO_SYSTEM), tmp_path / "out")
    chat = made.plan["model"]["chat"]
    assert chat["system"] is False
    assert [probe["ids"] is None for probe in chat["probes"]] == [False, False, True, True]
    made = export_web(written(tmp_path / "plain", None), tmp_path / "out")
    assert (made.notes, made.plan["model"]["chat"], made.plan["model"]["why"]) == ((), None, None)
    assert "Once upon a time" in made.plan["model"]["examples"]
    made = export_web(written(tmp_path / "bad", "{% if %}"), tmp_path / "out")
    (note,) = made.notes
    assert note == f"the site generates text but does not chat: {made.plan['model']['why']}"
    assert "the model's chat template cannot be used" in note
    assert made.plan["model"]["tokenizer"] is True
    steps = pre_tokenizers.Sequence([pre_tokenizers.UnicodeScripts(), pre_tokenizers.ByteLevel()])
    changes = {"pre_tokenizer": json.loads(steps.__getstate__())}
    made = export_web(written(tmp_path / "scripts", **changes), tmp_path / "out")
    why = "the page does not support the pre_tokenizer UnicodeScripts of this model's tokenizer"
    assert (made.notes, made.plan["model"]["why"]) == ((f"the site takes token ids only: {why}",), why)
    assert made.plan["model"]["tokenizer"] is False
    assert (made.folder / "texts.js").read_bytes() == (web_root() / "texts.js").read_bytes()
    assert not (made.folder / "libraries").exists()
