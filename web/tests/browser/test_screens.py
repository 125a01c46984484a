"""What the tour and the chat look like at four widths, in light and dark: their parts, and their pictures in blocks.

A picture is compared as the lightness of blocks of 80 × 80 pixels, two hexadecimal digits each, so that fonts and
renderers may differ. ``SCREENS=update`` writes screens.json again; look at the pictures before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsed import Browsed
from PIL import Image
from sites import ChatSite

from glinfer.export.tour import export_tour
from qa.renderers.browsers import serving

pytestmark = [pytest.mark.gl, pytest.mark.web]

SCREENS = Path(__file__).with_name("screens.json")
WIDTHS, HEIGHT, BLOCK = (360, 768, 1280, 1920), 800, 80
MOST = 0.35
"""Differences of all blocks, relative to their distances from the page's colour. Another font gives up to 0.31. A part
that is absent, one column instead of two, invisible text or cards without edges give 0.43 to 1.4 at some width."""
PARTS = {
    "tour": ["header", "#guide", "#words", "#timeline", "#draw", "#token"],
    "chat": ["header", "nav", "#log", "#form", "#numbers", "#panel"],
}
AT_LEAST = {"tour": 6, "chat": 4}  # parts that are seen at every width
BOXES = """(async (parts) => {
  await document.fonts.ready;
  for (let frame = 0; frame < 4; frame++) await new Promise(requestAnimationFrame); // canvases follow the new size
  scrollTo(0, 0);
  const seen = (each) => each?.checkVisibility({ visibilityProperty: true }) && each.getClientRects().length > 0;
  const boxes = parts.map((part) => document.querySelector(part)).filter(seen).map((each) => {
    const { left, top, right, bottom } = each.getBoundingClientRect();
    return [each.id || each.localName, left, top, right, bottom];
  });
  const cut = [...document.querySelectorAll("button")].filter(seen)
    .filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.textContent);
  return { boxes, cut, width: document.documentElement.clientWidth };
})"""


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("screens") / "tour.html"
    return export_tour("tiny", target, "ROMEO:\nBut, soft!").folder.as_uri()


def in_tour(page: Browsed, address: str) -> None:
    page.do("open", f"{address}#chapter=attention")
    page.do("says", "#status", "Ready.")
    page.do("wait", "#chapters li:nth-child(4) a[aria-current]")


def in_chat(page: Browsed, address: str) -> None:
    page.do("open", f"{address}?worker=0&offline=0&cache=0")
    page.do("wait", "#clear:enabled")
    page.do("fill", "#length", "12")
    page.do("fill", "#temperature", "0")
    page.do("fill", "#message", "To be or not to be")
    page.do("click", "#send")
    page.do("wait", "#log .turn")
    page.do("wait", "#stop:disabled")
    page.do("evaluate", "document.activeElement.blur()")


def blocks_of(picture: Path) -> str:
    """The digits of each line of blocks."""
    with Image.open(picture) as image:
        size = (image.width // BLOCK, image.height // BLOCK)
        levels = np.asarray(image.convert("L").resize(size, Image.Resampling.BOX))
    return " ".join(line.tobytes().hex() for line in levels)


def lightness(lines: str) -> np.ndarray[Any, Any]:
    return np.array([list(bytes.fromhex(line)) for line in lines.split()], np.float64)


def apart(one: list[float], other: list[float]) -> bool:
    """Whether two boxes share no pixel."""
    return one[2] <= other[0] + 1 or other[2] <= one[0] + 1 or one[3] <= other[1] + 1 or other[3] <= one[1] + 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PARTS)
def test_a_page_looks_as_it_did(
    name: str,
    scheme: str,
    browse: Callable[..., Browsed],
    tour: str,
    chat_site: Callable[[int], ChatSite],
    tmp_path: Path,
) -> None:
    page = browse(colorScheme=scheme, reducedMotion="reduce", viewport={"width": WIDTHS[-1], "height": HEIGHT})
    if name == "tour":
        in_tour(page, tour)
        look_at(page, name, scheme, tmp_path)
        return
    with serving(chat_site(1).folder) as address:
        in_chat(page, address)
        look_at(page, name, scheme, tmp_path)


def look_at(page: Browsed, name: str, scheme: str, folder: Path) -> None:
    """Compare the parts of a page and its picture at each width."""
    known: dict[str, str] = json.loads(SCREENS.read_text())
    for width in WIDTHS:
        place = f"{name} {scheme} {width}"
        page.do("size", width, HEIGHT)
        found = page.do("evaluate", f"{BOXES}({json.dumps(PARTS[name])})")
        boxes = {part: box for part, *box in found["boxes"]}
        assert len(boxes) >= AT_LEAST[name], place
        assert found["cut"] == [], f"{place}: texts of buttons are cut off"
        for part, box in boxes.items():
            assert box[0] >= 0, f"{place}: {part}"
            assert box[2] <= found["width"] + 1, f"{place}: {part}"
            for other, its in boxes.items():
                assert other == part or apart(box, its), f"{place}: {part} is on {other}"
        page.do("picture", str(picture := folder / f"{width}.png"), False)
        blocks = blocks_of(picture)
        if os.environ.get("SCREENS") == "update":
            known[place] = blocks
            continue
        old, new = lightness(known[place]), lightness(blocks)
        off = np.abs(new - old).sum() / np.abs(old - np.median(old)).sum()
        assert off <= MOST, f"{place}: {off:.2f}; see {picture}"
    if os.environ.get("SCREENS") == "update":
        SCREENS.write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n")
