"""The page of a model that embeds texts, in Chromium: Python's ids and vectors, and a search in a folder."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsed import EXPECTED, KEEPS, WEB, Browsed
from tiny_embedders import TEXTS, WORDS, write_bert, write_embedder

import glinfer
from glinfer.export.site import export_web
from glinfer.formats.embedding import Embedding
from qa.renderers.browsers import serving

pytestmark = [pytest.mark.gl, pytest.mark.web]

PROMPTS = {"query": "in the rain ", "document": "a "}
HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script><b id=bad>the cat</b>'
PARAGRAPHS = ["the cat sat on the mat.", "the dog plays in the rain.", "rain, rain and rain?"]
TOLERANCE = 1e-5


def embedded(page: Browsed, texts: list[Any], **options: Any) -> tuple[list[list[int]], np.ndarray[Any, Any]]:
    """The ids of texts in the page, and their vectors."""
    script = (
        "(async ([texts, options]) => { const { model } = glinfer; const all = await model.embed(texts, options); "
        "const ids = model.encode(texts, model.prompt(options.promptName)).map((each) => each.ids); "
        f"return [ids, all.map((each) => Array.from(each))]; }})({json.dumps([texts, options])})"
    )
    ids, vectors = page.do("evaluate", script)
    return ids, np.array(vectors, np.float32)


def unicode_texts(count: int) -> list[str]:
    """Letters of many scripts, marks, signs, controls, ideographs, words that end in Σ; texts of no and all lengths."""
    chance = random.Random(5)
    blocks = [(0x20, 0x7F), (0xA0, 0x250), (0x370, 0x600), (0x600, 0x1000), (0x1E00, 0x2100), (0x3000, 0x3100)]
    blocks += [(0x4E00, 0x5000), (0x1F300, 0x1F700), (0, 0x20), (0x20000, 0x20100), (0x300, 0x370), (0x1AB0, 0x1AFF)]

    def one() -> str:
        kinds = chance.choices(["cats and mats ", "ΟΔΟΣ ", None], k=chance.randrange(60))
        return "".join(kind or chr(chance.randrange(*chance.choice(blocks))) for kind in kinds)

    return ["", " ", *(one() for _ in range(count - 2))]


def test_a_folder_is_searched_and_its_texts_stay_texts(browsed: Browsed, tmp_path: Path) -> None:
    """Vectors as in Python, with prompts; then files, a query by keyboard, and markup that is shown and never run."""
    write_embedder(tmp_path / "m", prompts=PROMPTS)
    made = export_web(tmp_path / "m", tmp_path / "site", limits="webgl2")
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "rain.txt").write_text("\n\n".join(PARAGRAPHS), encoding="utf-8")
    (folder / "<b id=bad>hostile.md").write_text(f"{HOSTILE}\n\n{'cats playing ' * 20}", encoding="utf-8")
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00")
    chance = random.Random(3)
    texts = [*TEXTS, HOSTILE, *(" ".join(chance.choices(WORDS, k=chance.randrange(60))) for _ in range(40))]
    others = unicode_texts(400)
    with glinfer.load(tmp_path / "m") as model:
        ids, other_ids = ([each.ids for each in model.embedder.encoded(all)] for all in (texts, others))
        vectors = model.embed(texts)
        asked = model.embed(texts[:9], prompt_name="query", dimensions=5, normalize=False)
        ranked = model.rerank("the dog", [*PARAGRAPHS, HOSTILE])
    with serving(made.folder) as url:
        browsed.do("open", f"{url}?minimum=1")
        browsed.do("says", "#status", "Ready.")
        found_ids, found = embedded(browsed, texts)
        assert found_ids == ids
        assert np.abs(found - vectors).max() <= TOLERANCE
        script = f"{json.dumps(others)}.map((text) => glinfer.model.tokenizer.encode(text))"
        assert browsed.do("evaluate", script) == other_ids
        _, found = embedded(browsed, texts[:9], promptName="query", dimensions=5, normalize=False)
        assert np.abs(found - asked).max() <= TOLERANCE * np.abs(asked).max()
        assert browsed.do("evaluate", "glinfer.model.verifyTextures().then((report) => report.ok)")
        wrong = "glinfer.model.embed(['a'], {promptName: 'ask'}).catch((error) => error.message)"
        assert browsed.do("evaluate", wrong).startswith('there is no prompt "ask"; this model has "query", "document"')

        browsed.do("files", "#folder", [str(folder)])
        browsed.do("says", "#status", "can be searched")
        assert "1 file skipped" in browsed.do("text", "#left-out")
        assert "notes/picture.png" in browsed.do("text", "#left-out")
        browsed.do("fill", "#query", "the dog")
        browsed.do("press", "#query", "Enter")
        browsed.do("says", "#status", "The nearest")
        items = (
            "[...document.querySelectorAll('#found li')].map((item) => [...item.children].map((e) => e.textContent))"
        )
        listed = browsed.do("evaluate", items)
        shown = {text: (float(score), where) for score, where, text in listed}
        assert HOSTILE in shown
        assert sum(text.startswith("cats playing") for _, _, text in listed) > 1  # parts of what is longer than fits
        assert browsed.do("evaluate", "document.querySelectorAll('#found img, #found script, #bad').length") == 0
        by_script = browsed.do("evaluate", f"glinfer.model.rerank('the dog', {json.dumps([*PARAGRAPHS, HOSTILE])})")
        assert [each["index"] for each in by_script] == [each.index for each in ranked]
        assert [each["score"] for each in by_script] == pytest.approx([each.score for each in ranked], abs=TOLERANCE)
        for each in ranked:
            text = [*PARAGRAPHS, HOSTILE][each.index]
            assert shown[text][0] == pytest.approx(each.score, abs=6e-4)
        assert shown[PARAGRAPHS[1]][1] == "notes/deep/rain.txt, line 3"
        assert shown[HOSTILE][1] == "notes/<b id=bad>hostile.md, line 1"
        scores = [float(score) for score, _, _ in listed]
        assert scores == sorted(scores, reverse=True)
        (folder / "deep" / "rain.txt").write_text("the cat, changed.", encoding="utf-8")
        browsed.do("files", "#folder", [str(folder)])
        browsed.do("says", "#status", "can be searched")
        held = "glinfer.page.passages.filter(({ file }) => file.endsWith('rain.txt')).map(({ text }) => text)"
        assert browsed.do("evaluate", held) == ["the cat, changed."], "a file that is read again is there twice"
        assert browsed.do("evaluate", "glinfer.page.passages.length - glinfer.page.vectors.length") == 0
        assert [address for address in browsed.asked if not address.startswith((url, "data:", "blob:"))] == []
        if (WEB / "node_modules" / "axe-core").is_dir():
            assert browsed.do("axe", True) == []
        browsed.do("click", "#forget")
        assert browsed.do("evaluate", "document.querySelectorAll('#found li').length") == 0
        early = "glinfer.page.read([new File(['the dog plays.'], 'dog.txt')])"
        browsed.do("evaluate", f"Promise.all([{early}, glinfer.page.search()]).then(() => true)")
        assert browsed.do("evaluate", "document.querySelectorAll('#found li').length") == 1, (
            "asked while files are read"
        )
        assert browsed.do("text", "#status").startswith("The nearest 1")
        # A browser that finds other tokens, or lacks something, says so in one sentence.
        plan = json.loads((made.folder / "plan.json").read_text())
        plan["embedding"]["probes"][1][1][1] += 1
        (made.folder / "plan.json").write_text(json.dumps(plan))
        browsed.do("open", url)
        browsed.do("says", "#status", "This model cannot run here.")
        assert "differently from Python" in browsed.do("text", "#problem")
        plan["requires"]["max_texture_size"] = 4096
        (made.folder / "plan.json").write_text(json.dumps(plan))
        later = (made.folder / "plan.json").stat().st_mtime + 2  # browsers ask whether it changed since a whole second
        os.utime(made.folder / "plan.json", (later, later))
        browsed.do("open", f"{url}?minimum=1")
        browsed.do("says", "#status", "This model cannot run here.")
        assert "textures of 4096 texels a side" in browsed.do("text", "#problem")
    assert [line for line in browsed.console if EXPECTED not in line] == []


@pytest.mark.parametrize("form", ["", "about {query}? {text} in the"])
def test_pairs_get_the_scores_of_python(browsed: Browsed, tmp_path: Path, form: str) -> None:
    """A small BERT that scores pairs, by script and in the page; and with pairs that are written as a form says."""
    write_bert(tmp_path / "m", architectures=["BertForSequenceClassification"], id2label={"0": "x"})
    chance = random.Random(4)
    texts = [*PARAGRAPHS, "", HOSTILE, *(" ".join(chance.choices(WORDS, k=chance.randrange(200))) for _ in range(12))]
    with pytest.MonkeyPatch.context() as patch:
        if form:
            make = Embedding.__init__
            patch.setattr(Embedding, "__init__", lambda self, **values: make(self, **{**values, "pair": form}))
        made = export_web(tmp_path / "m", tmp_path / "site", limits="webgl2")
        with glinfer.load(tmp_path / "m") as model:
            assert model.embedder.embedding.pair == form
            ranked = model.rerank("the dog", texts)
            pairs = model.embedder.rank_request("the dog", texts).encoded
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "rain.txt").write_text("\n\n".join(PARAGRAPHS), encoding="utf-8")
    with serving(made.folder) as url:
        browsed.do("open", f"{url}?minimum=1")
        browsed.do("says", "#status", "Ready.")
        script = f"{json.dumps(texts)}.map((text) => glinfer.model.tokenizer.encodePair('the dog', text))"
        found = [(each["ids"], each["types"]) for each in browsed.do("evaluate", script)]
        assert found == pairs
        scores = browsed.do("evaluate", f"glinfer.model.rerank('the dog', {json.dumps(texts)})")
        by_index = {each["index"]: each["score"] for each in scores}
        assert [each["score"] for each in scores] == sorted(by_index.values(), reverse=True)
        assert len(by_index) == len(texts)
        for each in ranked:
            assert by_index[each.index] == pytest.approx(each.score, abs=TOLERANCE)
        wrong = "glinfer.model.embed(['a']).catch((error) => error.message)"
        assert "scores pairs of texts" in browsed.do("evaluate", wrong)
        browsed.do("files", "#folder", [str(folder)])
        browsed.do("says", "#status", "3 passages can be searched.")
        browsed.do("fill", "#query", "the dog")
        browsed.do("press", "#query", "Enter")
        browsed.do("says", "#status", "The nearest 3 of 3 passages.")
        items = (
            "[...document.querySelectorAll('#found li')].map((item) => [...item.children].map((e) => e.textContent))"
        )
        shown = [(float(score), text) for score, _, text in browsed.do("evaluate", items)]
        expected = [(each.score, PARAGRAPHS[each.index]) for each in ranked if each.index < len(PARAGRAPHS)]
        assert [text for _, text in shown] == [text for _, text in expected]
        assert [score for score, _ in shown] == pytest.approx([score for score, _ in expected], abs=6e-4)
        if not form:
            browsed.do("evaluate", KEEPS)
    if not form:  # the page opens again without its server
        browsed.do("open", url)
        browsed.do("says", "#status", "Ready.")
        assert browsed.do("evaluate", f"glinfer.model.rerank('the dog', {json.dumps(texts)})") == scores
