"""What results show of themselves: a line in a terminal, a small table or picture in a notebook; and text for ids."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_models import SMALL, random_file

import glinfer
from glinfer.engine.capture import Captured
from glinfer.engine.model import Model
from glinfer.engine.textures import Checked as TexturesRead
from glinfer.engine.textures import TextureCheck, TexturesReport
from glinfer.errors import InputError
from glinfer.notebook import MAX_ROWS, table
from glinfer.program.session import WrongTexture

pytestmark = pytest.mark.gl

TEXT = "Once upon a time"


class Checked(HTMLParser):
    """Collects tags and text, and fails on tags that do not close."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.opened == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag != "img":
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_lines_are_short_and_say_what_matters(small: Path) -> None:
    """And notebooks get tables."""
    with glinfer.load(small) as model:
        assert repr(model).startswith(
            "<Model gab: 2 blocks of 32, 300 tokens, context 64; plan fast, weights f32, cache"
        )
        assert "temperature 0.7, top_k 40, top_p 0.95, min_p 0, repetition_penalty 1; " in repr(model)
        assert model.device.description in repr(model)
        session = model.session()
        session.prefill([1, 2, 3])
        assert repr(session) == "<CachedSession: 3 of 64 tokens>"
        assert "3 of 64 tokens" in Checked(session._repr_html_()).text
        assert '<td style="text-align: right">3</td>' in session._repr_html_()
        session.close()
        assert repr(session) == "<CachedSession: closed>"
        assert repr(model.draws()).startswith("DrawTable(fast, 15 draws: embed")
        score = model.score(TEXT)
        assert repr(score).startswith(f"TextScore({len(score.ids)} tokens, total -")
        options = {"max_tokens": 40, "temperature": 0, "stop_ids": ()}
        requests = [
            glinfer.BatchRequest("a", options, key="k"),
            glinfer.BatchRequest([1], {**options, "max_tokens": 2}),
        ]
        by_ids, by_text = model.batch(requests)
        assert by_text.text is not None
        assert repr(by_text) == f"BatchResult(key 'k', 40 tokens, length, {repr(by_text.text)[:59]}…)"
        assert repr(by_ids) == f"BatchResult(2 tokens, length, {by_ids.ids})"
        assert "no room" in repr(replace(by_ids, error=ValueError("no room")))
        seen = model.capture("blocks.0.attn.scores", TEXT)
        assert repr(seen).startswith("Captured(blocks.0.attn.")
        likely = Checked(score._repr_html_()).text
        assert "log-probability" in likely
        assert all(model.require_tokenizer().token_bytes(token).decode() in likely for token in score.ids[:3])
        assert "temperature" in Checked(model.sampling._repr_html_()).text
        assert "all as they should be" in Checked(model.verify_textures()._repr_html_()).text
        assert repr(list(model.draws())) == repr(list(model.draws().rows))
        assert len(model.draws()) == len(model.draws().rows)
        shown = [repr(each) for each in (model, session, model.draws(), score, seen)]
        assert all("\n" not in each and len(each) < 400 for each in shown)
    assert repr(model).endswith("; closed>")
    draws = Checked(model.draws()._repr_html_())
    assert draws.tags.count("tr") == 1 + len(model.draws().rows)
    assert "15 draws for one run of the fast plan" in draws.text
    assert "blocks.0.attn.scores" in Checked(seen._repr_html_()).text


def test_everything_in_a_table_is_escaped_and_its_length_is_bounded() -> None:
    found = Checked(table(["<b>"], [["<script>alert(1)</script>"], [1234567], [0.5]], "<i>"))
    assert set(found.tags) == {"table", "caption", "thead", "tr", "th", "tbody", "td"}
    assert "1,234,567" in found.text
    many = Checked(table(["n"], [[number] for number in range(MAX_ROWS + 5)]))
    assert many.tags.count("tr") == MAX_ROWS + 2
    assert "and 5 more" in many.text
    assert Checked(Captured({"<b>": np.zeros((2, 3), np.float32)})._repr_html_()).tags.count("b") == 0


def test_masked_scores_do_not_count() -> None:
    """They are counted by themselves; NaN shows, and nothing but masks is no error."""
    scores = np.array([[1.0, -1e30], [2.0, 4.5]], np.float32)
    lowest = np.full(3, np.finfo(np.float32).min)
    broken = np.array([np.nan, 1.0], np.float32)
    captured = Captured({"scores": scores, "masks": lowest, "broken": broken})
    found = captured._repr_html_().split("<tr>")[2:]
    rows = [re.findall(">([^<]*)</td>", row) for row in found]
    assert rows == [
        ["scores", "2×2", "1", "2.5", "4.5", "1"],
        ["masks", "3", "", "", "", "3"],
        ["broken", "2", "nan", "nan", "nan", ""],
    ]


def test_wrong_textures_are_listed() -> None:
    different = TextureCheck(("w",), 4, 2, "rgba32f", 128, identical=False, differing=3, lines=(1,))
    wrong = WrongTexture("fast", "lm_head", "x", "a", "b")
    report = TexturesReport(1.0, TexturesRead(2, 16, 256), (different,), (wrong,))
    shown = Checked(report._repr_html_())
    assert shown.tags.count("tr") == 3
    assert all(words in shown.text for words in ("2 problems in 2 textures", "4×2 rgba32f", "lm_head, x"))


class TestTextForIds:
    def test_of_models_and_sessions(self, model: Model, reference: Model) -> None:
        tokenizer = model.require_tokenizer()
        ids = tokenizer.encode(TEXT)
        assert np.array_equal(model.logits(TEXT), model.logits(ids))
        assert np.array_equal(model.probs(TEXT), model.probs(ids))
        (listed,) = model.score([TEXT])
        assert np.array_equal(model.score(TEXT).logprobs, listed.logprobs)
        assert model.score(TEXT).ids == ids
        assert reference.forward(TEXT) == reference.forward(ids)
        with model.session() as session:
            session.prefill(TEXT)
            assert session.ids == ids
            session.prefill(" there")
            assert session.ids == [*ids, *tokenizer.encode(" there")]
            session.hold("Once")
            assert session.ids == tokenizer.encode("Once")
            session.hold([1, 2])
            assert session.ids == [1, 2]

    def test_without_a_tokenizer_it_says_why(self, bare: Path) -> None:
        with glinfer.load(bare) as model, model.session() as session:
            for use in (model.generate, model.stream, model.logits, model.score, session.prefill, session.hold):
                with pytest.raises(InputError, match="no tokenizer was given"):
                    use(TEXT)  # type: ignore[operator]
            with pytest.raises(InputError, match="this session has no tokenizer"):
                model.engine.session().prefill(TEXT)


# ``model.tour``


TOURED = "To be, or not"


@pytest.mark.parametrize(("plan", "draws", "last"), [("reference", 244, "probs"), ("fast", 39, "pick")])
def test_each_draw_has_what_it_wrote(plan: str, draws: int, last: str) -> None:
    with glinfer.load("shakespeare", plan=plan) as model:
        tour = model.tour(TOURED)
        expected = model.capture(["blocks.2.mlp.hidden", "logits"], TOURED)
        assert (len(tour), tour.draws[-1].name) == (draws, last)
        assert [draw.number for draw in tour.draws] == list(range(draws))
        named = {draw.name: draw for draw in tour.draws}
        hidden = expected["blocks.2.mlp.hidden"]
        assert named["h.2.mlp.fc_in"].output.tobytes() == (hidden if plan == "reference" else hidden[-1:]).tobytes()
        assert named["lm_head"].output.tobytes() == expected["logits"][-1:].tobytes()
        assert named["lm_head"].inputs["x" if plan == "reference" else "x0"] == (
            "normed" if plan == "reference" else "hidden.a"
        )
        assert repr(tour) == f"Tour({draws} draws over {len(tour.ids)} tokens)"
        assert model.tour(tour.ids).draws[17].output.tobytes() == tour.draws[17].output.tobytes()


def test_a_notebook_shows_the_page_and_a_model_of_arrays_has_none(tmp_path: Path) -> None:
    path = random_file(tmp_path / "model.gab", SMALL, 1)
    with glinfer.load(path, plan="reference") as model:
        tour = model.tour([1, 2, 3])
        assert tour.draws[0].output.dtype == np.float32
        assert tour.write(tmp_path / "tour.html").stat().st_size > 100_000
        assert tour._repr_html_().startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
        tour._path = None
        with pytest.raises(InputError, match="not loaded from a file"):
            tour.write(tmp_path / "other.html")
        with pytest.raises(InputError):
            model.tour([])
