"""The page of ``glinfer tour`` in Chromium: its numbers are Python's, its checks find planted bugs, its parts work."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsed import EXPECTED, Browsed

import glinfer
from glinfer.export.tour import export_tour

pytestmark = [pytest.mark.gl, pytest.mark.web]

TEXT = "ROMEO:\nBut, soft! what light"
WIDTHS = (360, 768, 1280, 1920)
READY = ("says", "#status", "Ready.")
TOLERANCE = 1e-6  # of the largest number; two renderers round exp differently
CAPTURED = """(async (plan) => {
  const { captured } = await import("glinfer-site/tour/recording.js");
  const text = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  return tour.tour.plans[plan].points.map((point) => {
    const { rows, cols, values } = captured(tour.recordings[plan], point);
    return [point.name, rows, cols, text(new Uint8Array(values.buffer))];
  });
})"""
CHECKED = """(async () => {
  const { checkDraws } = await import("glinfer-site/tour/checks.js");
  return Object.values(tour.recordings).map((recording) => checkDraws(recording, String));
})()"""
SUMS = """(async () => {
  const reports = [];
  for (const model of Object.values(tour.models)) {
    for (let part = 0; part < 2; part++) reports.push(await model.verifyTextures({ share: 0.5 }));
  }
  return reports.map(({ ok }) => ok);
})()"""
SAME = """(async () => {
  const { firstDifference } = await import("glinfer-site/tour/checks.js");
  return firstDifference(globalThis.healthy, tour.recordings.reference);
})()"""
NOTICED = {
    # OpenGL's errors, weights bit for bit, each draw in float64: the number of the draw, or whether it notices.
    "feedback": (80, True, 80),
    "linear": (None, False, 41),
    "uniform": (243, False, 243),
    "transpose": (None, True, None),
    "ping-pong": (13, True, 13),
    "mask": (None, False, 6),
}

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tour("shakespeare", tmp_path_factory.mktemp("tour") / "tour & page.html", TEXT).folder


@pytest.fixture
def opened(page: Path, browsed: Browsed) -> Iterator[Browsed]:
    browsed.do("open", page.as_uri())
    browsed.do(*READY)
    yield browsed
    assert all(address.startswith(("file:", "data:", "blob:")) for address in browsed.asked)


def complained(page: Browsed) -> list[str]:
    return [line for line in page.console if EXPECTED not in line]


def first(page: Browsed, expression: str) -> Any:
    return page.do("evaluate", expression)


@pytest.mark.parametrize("plan", ["reference", "fast"])
def test_values_are_those_of_capture(opened: Browsed, plan: str) -> None:
    """To the bit up to the first exp, which renderers round differently."""
    found = first(opened, f"{CAPTURED}('{plan}')")
    with glinfer.load("shakespeare", plan=plan) as model:
        expected = model.capture("*", TEXT)
    assert [name for name, *_ in found] == list(expected)
    identical = ["embed.centred"] if plan == "fast" else list(expected)[: list(expected).index("blocks.0.attn.probs")]
    assert plan == "fast" or identical[-1] == "blocks.0.attn.scores"
    for name, rows, cols, text in found:
        theirs = np.frombuffer(base64.b64decode(text), np.float32)
        ours = (expected[name][..., -1:, :] if plan == "fast" else expected[name]).reshape(rows * cols)
        seen = ours > -1e29
        assert (theirs[~seen] == ours[~seen]).all()
        assert np.abs(theirs - ours)[seen].max() <= TOLERANCE * np.abs(ours[seen]).max(), name
        if name in identical:
            assert theirs.tobytes() == ours.tobytes(), name
    assert complained(opened) == []


def test_draws_agree_with_float64_and_weights_with_the_export(opened: Browsed) -> None:
    reference, fast = first(opened, CHECKED)
    assert (reference["wrong"], fast["wrong"]) == (None, None)
    assert reference["numbers"] == 24 * 244
    assert first(opened, SUMS) == [True] * 4  # by the checksums of the texels that Python has packed
    assert "all identical" in first(opened, "tour.verify()")


def test_bugs_are_noticed_by_the_checks_that_can(opened: Browsed) -> None:
    first(opened, "(globalThis.healthy = tour.recordings.reference).steps.length")
    for bug, (error, weights, wrong) in NOTICED.items():
        opened.do("evaluate", f"document.querySelector('input[value={bug}]').click()")
        opened.do("wait", "#break dl:not(:empty)")
        opened.do("wait", ".bugs:enabled")
        lines = opened.do("evaluate", "[...document.querySelectorAll('#break dd')].map((each) => each.textContent)")
        assert len(lines) == 5
        for line, draw in ((lines[2], error), (lines[4], wrong)):
            assert ("does not notice" in line) == (draw is None), bug
            assert draw is None or f"draw {draw}," in line, bug
        assert lines[3].startswith("notice it" if weights else "identical"), bug
        text = "does not change" if bug == "mask" else "instead of"
        assert text in lines[0]
    opened.do("evaluate", "document.querySelector('.bugs input').click()")
    opened.do("wait", ".bugs:enabled")
    assert first(opened, SAME) == -1, "nothing stays of a bug"


def test_draws_are_stepped_through_by_keys_and_by_name(opened: Browsed) -> None:
    assert opened.do("text", "#count") == "1 of 244"
    opened.do("keys", "ArrowRight")
    assert "h.0.ln_1" in opened.do("text", "#draw-number")
    opened.do("keys", "End")
    assert opened.do("text", "#count") == "244 of 244"
    opened.do("fill", "#jump", "h.2.attn.head.3.scores")
    opened.do("press", "#jump", "Enter")
    assert opened.do("text", "#draw-title") == "Block 2, head 3: scores"
    assert "attention_scores.frag" in opened.do("text", "#facts")
    opened.do("click", "#shader summary")
    assert "void main()" in opened.do("text", "#source pre")
    opened.do("evaluate", "tour.panel.output.canvas.focus()")
    opened.do("keys", "ArrowDown")
    assert "What token 1 “O” looks for, times what token 0 “R” offers" in opened.do("text", "#texel-words")
    assert "in float64" in opened.do("text", "#texel-sum")


def test_one_plan_is_laid_over_the_other(opened: Browsed) -> None:
    opened.do("evaluate", "document.querySelector('#plans input[value=both]').click()")
    assert first(opened, "[...document.querySelectorAll('.chip')].length") == 39
    opened.do("evaluate", "document.querySelector('.chip[data-replaces=\"3\"]').click()")
    assert first(opened, "document.querySelectorAll('.cell.same').length") == 24
    assert "h.0.attn.head.0.probs" in opened.do("text", "#draw-number")
    opened.do("evaluate", "document.querySelector('#plans input[value=fast]').click()")
    assert opened.do("text", "#count") == "4 of 39"
    assert "h.0.attn.values" in opened.do("text", "#draw-number")


def test_the_next_word_follows_the_temperature_and_is_appended(opened: Browsed) -> None:
    with glinfer.load("shakespeare", plan="reference") as model:
        assert model.tokenizer is not None
        ids = model.tokenizer.encode(TEXT)
        likeliest = int(np.argmax(model.logits(ids)))
    opened.do("fill", "#set-temperature", "0")
    assert first(opened, "tour.token.chosen") == likeliest
    opened.do("evaluate", "[...document.querySelectorAll('.result button')].at(-1).click()")
    opened.do("wait", f"#tokens li:nth-child({len(ids) + 1})")
    opened.do(*READY)
    assert first(opened, "tour.tokens") == [*ids, likeliest]
    opened.do("evaluate", "document.querySelectorAll('#tokens button')[3].click()")
    assert "token 3" in opened.do("text", "#token-title")


def test_chapters_widths_and_axe(page: Path, browse: Callable[..., Browsed]) -> None:
    for scheme, chapters in (("light", range(1, 9)), ("dark", (4,))):
        seen = browse(colorScheme=scheme, reducedMotion="reduce")
        seen.do("open", page.as_uri())
        seen.do(*READY)
        titles = []
        for chapter in chapters:
            seen.do("evaluate", f"document.querySelectorAll('#chapters a')[{chapter - 1}].click()")
            seen.do("wait", f"#chapters li:nth-child({chapter}) a[aria-current]")
            titles.append(seen.do("text", "#draw-title"))
            for width in WIDTHS if chapter == 7 else ():
                seen.do("size", width, 800)
                wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
                assert not seen.do("evaluate", wide), width
        assert len(set(titles)) >= len(chapters) - 2
        assert seen.do("axe", True) == []
        assert complained(seen) == []


def test_a_text_that_is_too_long_is_refused_in_a_sentence(opened: Browsed) -> None:
    opened.do("fill", "#text", "To be " * 300)
    opened.do("click", "#run")
    assert "expected 1 to 256" in opened.do("text", "#problem")
