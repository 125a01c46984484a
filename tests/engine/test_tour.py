"""``model.tour``: the draws of a token with what each wrote, and the page for notebooks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scripted_models import SMALL, random_file

import glinfer
from glinfer.errors import InputError

pytestmark = pytest.mark.gl
TEXT = "To be, or not"


@pytest.mark.parametrize(("plan", "draws", "last"), [("reference", 244, "probs"), ("fast", 39, "pick")])
def test_each_draw_has_what_it_wrote(plan: str, draws: int, last: str) -> None:
    with glinfer.load("shakespeare", plan=plan) as model:
        tour = model.tour(TEXT)
        expected = model.capture(["blocks.2.mlp.hidden", "logits"], TEXT)
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
