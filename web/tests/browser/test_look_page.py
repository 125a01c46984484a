"""The page of ``glinfer look`` in Chromium: nothing complains, no picture is missing, mouse and keys browse it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsed import Browsed, Browser

import glinfer
from glinfer.formats import load_checkpoint
from glinfer.inspect.look.options import LookOptions
from glinfer.inspect.look.output import look

pytestmark = [pytest.mark.gl, pytest.mark.web]

BLOCKS = (0, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, small: Path) -> Path:
    target = tmp_path_factory.mktemp("look") / "inside & out"
    checkpoint = load_checkpoint(small)
    wanted = LookOptions.of(checkpoint.config, layers=",".join(map(str, BLOCKS)))
    with glinfer.load(small, plan="reference") as model:
        look(checkpoint, target, wanted, model=model, prompt="To be, or not\nto be", about={"name": "<i>Bard</i>"})
    return target


@pytest.fixture(scope="module")
def found(folder: Path, browser: Browser) -> dict[str, Any]:
    seen: dict[str, Any] = browser.do("look", (folder / "index.html").as_uri())["value"]
    return seen


def pictures(kind: str, *names: str | int) -> list[str]:
    return [f"{kind}/{name if isinstance(name, str) else f'block-{name:03d}'}.png" for name in names]


LENS = pictures("lens", "positions-000", "last")
ATTENTION = pictures("attention", "overview", *BLOCKS)
HIDDEN = pictures("hidden", "norms", "embed", *BLOCKS)
WEIGHTS = pictures("weights", "outside", *BLOCKS)


def test_nothing_complains_and_nothing_is_fetched_from_elsewhere(found: dict[str, Any], folder: Path) -> None:
    assert found["console"] == []
    assert found["errors"] == []
    assert all(address.startswith((folder.as_uri(), "data:")) for address in found["asked"])


def test_every_picture_is_there_in_its_size_with_words_for_it(found: dict[str, Any], folder: Path) -> None:
    told = json.loads((folder / "look.json").read_text())["pictures"]
    assert [image["file"] for image in found["images"]] == [*LENS, *ATTENTION, *HIDDEN, *WEIGHTS]
    for image, picture in zip(found["images"], told, strict=True):
        assert (image["naturalWidth"], image["naturalHeight"]) == (picture["width"], picture["height"])
        assert image["naturalWidth"] > 0
        assert image["width"] > 200
        assert len(image["alt"]) > 20


def test_kinds_and_blocks_are_chosen(found: dict[str, Any]) -> None:
    steps = found["steps"]
    assert steps["opened"]["files"] == [*LENS, *ATTENTION, *HIDDEN, *WEIGHTS]
    assert steps["opened"]["headings"] == ["Logit lens", "Attention", "Hidden states", "Weights", "Numbers"]
    assert steps["attention"]["files"] == ATTENTION
    assert steps["attention"]["headings"] == ["Attention"]
    assert steps["attention"]["hash"] == "#kind=attention&layer=all"
    assert steps["first block"]["files"] == [ATTENTION[1], ATTENTION[0]], "the chosen block comes first"
    assert steps["by key"]["files"] == [HIDDEN[3], *HIDDEN[:2]]
    assert steps["by key"]["hash"] == "#kind=hidden&layer=1"
    assert steps["block 1 of everything"]["files"] == [ATTENTION[2], HIDDEN[3], WEIGHTS[2]]
    assert "Logit lens" not in steps["block 1 of everything"]["headings"]


def test_the_viewer_opens_turns_and_closes_by_keys(found: dict[str, Any]) -> None:
    steps = found["steps"]
    assert not steps["block 1 of everything"]["open"]
    assert (steps["viewer"]["open"], steps["viewer"]["picture"]) == (True, ATTENTION[2])
    assert steps["viewer"]["title"] == "Attention of block 1 (1 of 3)"
    assert steps["viewer, next"]["picture"] == HIDDEN[3]
    width = next(image["naturalWidth"] for image in found["images"] if image["file"] == HIDDEN[3])
    assert steps["viewer, full"]["pictureWidth"] == width
    assert not steps["closed"]["open"]
    assert steps["closed"]["focus"] == HIDDEN[3]


def test_addresses_phones_dark_screens_and_no_script(found: dict[str, Any]) -> None:
    steps = found["steps"]
    assert steps["phone"]["files"] == [HIDDEN[3], *HIDDEN[:2]]
    assert steps["phone"]["shown"].endswith("hidden/block-001-dark.png"), "a dark page has dark pictures"
    assert steps["opened"]["shown"].endswith("lens/positions-000.png")
    assert steps["phone viewer"]["picture"] == "hidden/block-001-dark.png"
    assert not steps["phone"]["wide"]
    assert steps["printed"]["shown"].endswith("hidden/block-001.png"), "paper is light"
    assert steps["phone"]["paper"] == "rgb(15, 20, 25)"
    assert steps["opened"]["paper"] == "rgb(246, 247, 249)"
    assert steps["odd"]["files"] == steps["opened"]["files"]
    assert steps["odd"]["layer"] == "all"
    assert steps["without"] == len(found["images"])


def test_axe_finds_nothing(folder: Path, browse: Callable[..., Browsed]) -> None:
    page = browse()
    page.do("open", (folder / "index.html").as_uri())
    page.do("wait", "#choice")
    assert page.do("axe", True) == []
    page = browse(forcedColors="active")
    page.do("open", (folder / "index.html").as_uri())
    colours = "[...document.querySelectorAll('#choice span')].map((each) => getComputedStyle(each).backgroundColor)"
    assert len(set(page.do("evaluate", colours))) == 2, "the chosen kind is seen where the system replaces colours"
