"""The report of ``glinfer profile --html`` in Chromium: every chart is there, the table sorts, nothing complains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsed import Browsed, Browser

import glinfer
from glinfer.inspect.profile.measure import profile
from glinfer.inspect.profile.page import profile_page, write_page

pytestmark = [pytest.mark.gl, pytest.mark.web]

KINDS = [
    "embed",
    "attn.qkv",
    "attn.scores",
    "attn.values",
    "attn.out_proj",
    "mlp.fc_in",
    "mlp.fc_out",
    "lm_head",
    "pick",
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, browser: Browser, small: Path) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("profile") / "report & more.html"
    with glinfer.load(small) as model:
        report = profile(model.engine, tokens=20, runs=2, growth=True, label="<i>Bard</i>")
    write_page(path, profile_page(report))
    seen: dict[str, Any] = browser.do("report", path.as_uri())["value"]
    return seen | {"address": path.as_uri()}


def test_nothing_complains_and_nothing_is_fetched(found: dict[str, Any]) -> None:
    assert found["console"] == found["errors"] == []
    assert set(found["asked"]) == {found["address"]}


def test_every_chart_is_drawn(found: dict[str, Any]) -> None:
    titles = [figure["title"] for figure in found["figures"]]
    assert titles[:2] == ["Time by kind of draw", "Time of every draw"]
    assert {"Texture memory", "Growth with the sequence"} <= set(titles)
    for figure in found["figures"]:
        assert figure["width"] > 400
        assert figure["height"] > 50
        assert figure["parts"] > 5


def test_the_table_sorts_and_the_page_suits_light_and_dark(found: dict[str, Any]) -> None:
    assert found["rows"]["before"] == KINDS
    assert found["rows"]["after"] == sorted(KINDS)
    assert len(set(found["papers"])) == 2
    assert found["ink"] == "rgb(0, 0, 0)", "charts of a dark page are printed in dark ink"
    assert not found["wide"]


def test_axe_finds_nothing_and_paper_has_what_the_captions_name(
    found: dict[str, Any], browse: Callable[..., Browsed]
) -> None:
    page = browse(viewport={"width": 390, "height": 800})
    page.do("open", found["address"])
    assert page.do("axe", True) == []
    styles = "[...document.querySelectorAll('.block span')].map((each) => getComputedStyle(each).visibility)"
    assert page.do("evaluate", styles) == ["visible"] * 2, "a phone has room for the numbers of both blocks"
    page.do("media", "print")
    for selector in (".bars i", ".bars b", ".block"):
        style = f"getComputedStyle(document.querySelector({selector!r})).printColorAdjust"
        assert page.do("evaluate", style) == "exact", selector
    page = browse(forcedColors="active")
    page.do("open", found["address"])
    parts = "[...document.querySelectorAll('.bars i')].map((each) => getComputedStyle(each).backgroundColor)"
    assert len(set(page.do("evaluate", parts))) > 2, "bars keep their colours where the system replaces others"
