"""Charts of profiles with many blocks: labels that do not overlap, one long draw that does not squash the others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from test_profile_report import draw, report

pytest.importorskip("matplotlib", reason="matplotlib is not installed (pip install 'glinfer[plots]')")
from matplotlib.backends.backend_agg import FigureCanvasAgg

from glinfer.inspect.figures import Chart, svg_style
from glinfer.inspect.profile import charts
from glinfer.inspect.profile.charts import Figure, profile_charts, scale_top
from glinfer.inspect.profile.page import profile_page
from glinfer.inspect.profile.report import DrawProfile, ProfileReport

KINDS = ("attn.qkv", "attn.scores", "attn.values", "attn.out_proj", "mlp.fc_in", "mlp.fc_out")


def of_blocks(count: int, head: float) -> ProfileReport:
    names = [("embed", "embed")] + [(f"h.{block}.{kind}", kind) for block in range(count) for kind in KINDS]
    names += [("lm_head", "lm_head"), ("pick", "pick")]
    times = [head if kind == "lm_head" else 0.2 + 0.1 * (place % 7) for place, (_, kind) in enumerate(names)]
    draws: tuple[DrawProfile, ...] = tuple(
        draw(place, name, kind, ms, 1 << 16) for place, ((name, kind), ms) in enumerate(zip(names, times, strict=True))
    )
    return report(draws=draws)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Chart]:
    """The charts by name, as they are turned into SVG."""
    found: dict[str, Chart] = {}
    svg = Chart.svg

    def kept(self: Chart, name: str, title: str, about: str) -> str:
        found[name] = self
        return svg(self, name, title, about)

    monkeypatch.setattr(Chart, "svg", kept)
    return found


def made(name: str, profile: ProfileReport) -> Figure:
    """One chart alone."""
    with svg_style():
        figure: Figure = getattr(charts, f"_{name}")(profile)
    return figure


def boxes(chart: Chart) -> Iterator[tuple[str, Any]]:
    """Every text of a chart with the box that it takes."""
    canvas = FigureCanvasAgg(chart.figure)
    canvas.draw()
    for axes in chart.axes:
        for text in (*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels()):
            if text.get_text() and text.get_visible():
                yield text.get_text(), text.get_window_extent(canvas.get_renderer())


@pytest.mark.parametrize(
    ("name", "blocks"), [("kinds", 30), ("rates", 30), ("draws", 2), ("draws", 6), ("draws", 30), ("draws", 80)]
)
def test_no_label_lies_on_another(drawn: dict[str, Chart], name: str, blocks: int) -> None:
    made(name, of_blocks(blocks, head=25.0))
    found = list(boxes(drawn[name]))
    assert len(found) >= 9
    for (one, first), (other, second) in itertools.combinations(found, 2):
        assert not first.overlaps(second), f"{one!r} lies on {other!r}"


def test_blocks_are_numbered_above_the_chart(drawn: dict[str, Chart]) -> None:
    made("draws", of_blocks(30, head=1.0))
    texts = [text for text, _ in boxes(drawn["draws"])]
    assert {str(block) for block in range(30)} <= set(texts)


def test_values_stand_beside_their_bars(drawn: dict[str, Chart]) -> None:
    for name in ("kinds", "rates"):
        made(name, of_blocks(30, head=25.0))
        (axes,) = drawn[name].axes
        found = dict(boxes(drawn[name]))
        assert len(axes.patches) == len(KINDS) + 3
        marks = [line.get_window_extent() for line in axes.lines]
        for bar, text in zip(axes.patches, axes.texts, strict=True):
            end, box = bar.get_window_extent().x1, found[text.get_text()]
            mark = [each.x1 for each in marks if each.y0 < box.y1 and box.y0 < each.y1]
            assert min(abs(box.x0 - x) for x in (end, *mark)) < 12


class TestScale:
    def test_one_long_draw_is_cut_off(self, drawn: dict[str, Chart]) -> None:
        found = made("draws", of_blocks(30, head=25.0))
        (axes,) = drawn["draws"].axes
        assert axes.get_ylim()[1] < 1.5, "the others take nearly all of the height"
        assert "lm_head 25.00 ms" in [text for text, _ in boxes(drawn["draws"])]
        assert "longer than the scale" in found.caption

    def test_what_squashes_nothing_stays_whole(self, drawn: dict[str, Chart]) -> None:
        found = made("draws", of_blocks(30, head=2.0))
        assert drawn["draws"].axes[0].get_ylim()[1] > 2.0
        assert "longer than the scale" not in found.caption

    @pytest.mark.parametrize(
        ("times", "top"),
        [
            ([1.0], 1.0),
            ([0.0, 0.0], 1.0),
            ([1.0] * 30 + [100.0], 1.0),
            ([1.0] * 30 + [3.9, 100.0, 90.0], 3.9),
            ([1.0] * 30 + [5.5], 5.5),
            ([float(place) for place in range(1, 40)], 39.0),
        ],
    )
    def test_top(self, times: list[float], top: float) -> None:
        assert scale_top(times) == top


def test_growth_of_one_place_is_no_chart(drawn: dict[str, Chart]) -> None:
    full = report()
    assert len(full.growth) > 1
    profile_charts(full)
    assert "growth" in drawn
    drawn.clear()
    profile_charts(report(growth=full.growth[:1]))
    assert "growth" not in drawn


def test_every_card_has_a_sentence() -> None:
    page = profile_page(of_blocks(2, head=25.0))
    facts = page.partition('<dl class="facts">')[2].partition("</dl>")[0]
    cards = facts.split("<div>")[1:]
    assert len(cards) == 7
    for card in cards:
        sentence = card.partition('<p class="about">')[2].partition("</p>")[0]
        assert len(sentence.split()) >= 5
        assert sentence.endswith(".")
    assert page.count("<figcaption>") == page.count("<figure>") >= 4
