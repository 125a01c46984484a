"""The page of ``glinfer tour`` in Chromium: its numbers are Python's, its checks find planted bugs, its parts work."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from browsed import EXPECTED, Browsed, Browser
from scripted_models import random_file
from sites import in_blocks_of_256

import glinfer
from glinfer.config import ModelConfig
from glinfer.engine.random_model import demo_tokenizer
from glinfer.export.site import ExportedSite, export_web, web_kernels
from glinfer.export.tour import export_tour, export_tours
from glinfer.formats import random_checkpoint, save_checkpoint, write_bpe
from qa.renderers.browsers import serving
from qa.renderers.table import RENDERERS

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
_LLVM = r"LLVM ([\d.]+),? (\d+) bits"
RENDERER = """(async () => {
  const { rendererOf } = await import("glinfer-site/glinfer/limits.js");
  return rendererOf(Object.values(tour.models)[0].replay.gl);
})()"""
CHECKED = """(async () => {
  const { checkDraws } = await import("glinfer-site/tour/checks.js");
  return Object.values(tour.recordings).map((recording) => checkDraws(recording, String));
})()"""
EXPLAINED = """(async () => {
  const { explain } = await import("glinfer-site/tour/explain.js");
  const products = ["gemm.frag", "matmul.frag", "gate.frag", "linear.frag", "embed_token.frag", "lookup.frag"];
  return Object.values(tour.recordings).map((recording) => {
    const { plan, ids } = recording;
    const known = plan.draws.map((draw, index) => {
      const { fragment, defines } = plan.programs[draw.program];
      if (!products.includes(fragment) || "BATCHED" in defines || "EXPERT_BLOCKS" in defines) return [];
      const { rows, cols } = plan.textures[draw.outputs[0]].layout;
      const row = Math.min(rows, ids.length) - 1;
      const places = Array.from({ length: 40 }, (_, each) => (each * 7919 + 31 * index) % cols);
      const seen = places.map((col) => explain(recording, index, row, col, String));
      const largest = Math.max(...seen.map((each) => Math.abs(each?.exact)));
      return seen.map((each) => [draw.name, Math.abs(each.found - each.exact) / largest]);
    }).flat();
    return [known.length, ...known.reduce((one, other) => (one[1] > other[1] ? one : other))];
  });
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
IN_FRAME = """(async () => {
  const frame = document.querySelector("iframe");
  const text = (selector) => frame.contentDocument?.querySelector(selector)?.textContent ?? "";
  const until = async (done) => {
    while (!done()) await new Promise((resolve) => setTimeout(resolve, 50));
  };
  await until(() => text("#status") === "Ready.");
  frame.contentDocument.querySelector("#chapters li:nth-child(5) a").click();
  await until(() => text("#chapter h3").startsWith("5"));
  return text("#draw-title");
})()"""
NOTICED = {
    # OpenGL's errors, weights bit for bit, each draw in float64: the draw, or whether it finds the bug.
    "feedback": ("h.1.mlp.fc_in", True, "h.1.mlp.fc_in"),
    "linear": (None, False, "h.0.mlp.fc_out"),
    "uniform": ("lm_head", False, "lm_head"),
    "transpose": (None, True, None),
    "ping-pong": ("h.0.attn.head.1.joined", True, "h.0.attn.head.1.joined"),
    "mask": (None, False, "h.0.attn.head.0.scores"),
}
LLAMA = "blocks=2,heads=4,kv_heads=2,dim=64,inner=128,vocab=300,context=64"
WIDE = "blocks=1,heads=4,dim=256,inner=256,vocab=300,context=64"
SMALL = "blocks=6,heads=2,dim=32,vocab=300,context=64"


@pytest.fixture(scope="module")
def bundled_tour(tmp_path_factory: pytest.TempPathFactory) -> str:
    return export_tour("shakespeare", tmp_path_factory.mktemp("tour") / "tour & page.html", TEXT).folder.as_uri()


@pytest.fixture(scope="module")
def small_tour(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tour of a random model with Gab's passes, all of whose draws are fast."""
    path = random_file(tmp_path_factory.mktemp("small") / "small.gab", SMALL, 3)
    write_bpe(replace(demo_tokenizer(300), reserved=(b"<|end|>",)), path.with_suffix(".bpe"))
    return export_tour(path, path.with_suffix(".html"), "To be").folder.as_uri()


def opened(browse: Callable[..., Browsed], address: str, **options: Any) -> Browsed:
    page = browse(**options)
    page.do("open", address)
    page.do(*READY)
    return page


def complained(page: Browsed) -> list[str]:
    assert all(address.startswith(("file:", "data:")) for address in page.asked)
    return [line for line in page.console if EXPECTED not in line]


def test_every_draw_has_the_bits_of_python_on_the_same_renderer(bundled_tour: str, node: str, chromium: str) -> None:
    """Chromium on Mesa's llvmpipe, as Python's device here is."""
    row = next(each for each in RENDERERS if each.name == "chromium/llvmpipe")
    with glinfer.load("shakespeare", plan="reference") as model:
        ours = model.device.renderer
    if "llvmpipe" not in ours:
        pytest.skip(f"Python's renderer is {ours}, not Mesa's llvmpipe")
    browser = Browser(node, chromium, row.flags, row.variables)
    try:
        page = Browsed(browser)
        page.do("open", bundled_tour)
        page.do(*READY)
        theirs = page.do("evaluate", RENDERER)
        if re.findall(_LLVM, theirs) != re.findall(_LLVM, ours):
            pytest.skip(f"Chromium's renderer is {theirs}; expected that of Python, {ours}")
        found = {plan: page.do("evaluate", f"{CAPTURED}('{plan}')") for plan in ("reference", "fast")}
    finally:
        browser.do("context", None)
        browser.close()
    for plan, values in found.items():
        kernels = None if plan == "reference" else web_kernels("f32")
        with glinfer.load("shakespeare", plan=plan, kernels=kernels) as model:
            expected = model.capture("*", TEXT)
        assert [name for name, *_ in values] == list(expected)
        for name, rows, cols, text in values:
            wanted = (expected[name][..., -1:, :] if plan == "fast" else expected[name]).reshape(rows * cols)
            assert base64.b64decode(text) == wanted.tobytes(), f"{plan} {name}"


def test_a_folder_of_two_tours_opens_the_one_for_the_device(browse: Callable[..., Browsed], tmp_path: Path) -> None:
    files = [random_file(tmp_path / f"{name}.gab", SMALL, 3) for name in ("large", "less")]
    folder = export_tours(*files, tmp_path / "tours", "1 2 3").folder
    with serving(folder) as url:
        for width, page, name in ((360, "small.html", "less"), (1280, "tour.html", "large")):
            found = opened(browse, f"{url}#draw=lm_head", viewport={"width": width, "height": 800})
            assert found.do("evaluate", "location.pathname + location.hash") == f"/{page}#draw=lm_head"
            assert found.do("text", "#about").startswith(f"{name}: ")
        found.do("click", "#about a")
        found.do("says", "#about", "less: ")
    assert [line for line in found.console if EXPECTED not in line] == []


def test_values_are_those_of_capture_and_agree_with_float64(bundled_tour: str, browse: Callable[..., Browsed]) -> None:
    """To the bit up to the first exp, which renderers round differently."""
    page = opened(browse, bundled_tour)
    for plan in ("reference", "fast"):
        found = page.do("evaluate", f"{CAPTURED}('{plan}')")
        with glinfer.load("shakespeare", plan=plan) as model:
            expected = model.capture("*", TEXT)
        names = list(expected)
        assert [name for name, *_ in found] == names
        identical = ["embed.centred"] if plan == "fast" else names[: names.index("blocks.0.attn.probs")]
        assert plan == "fast" or identical[-1] == "blocks.0.attn.scores"
        for name, rows, cols, text in found:
            theirs = np.frombuffer(base64.b64decode(text), np.float32)
            ours = (expected[name][..., -1:, :] if plan == "fast" else expected[name]).reshape(rows * cols)
            seen = ours > -1e29
            assert (theirs[~seen] == ours[~seen]).all()
            assert np.abs(theirs - ours)[seen].max() <= TOLERANCE * np.abs(ours[seen]).max(), name
            assert name not in identical or theirs.tobytes() == ours.tobytes(), name
    reference, fast = page.do("evaluate", CHECKED)
    assert (reference["wrong"], fast["wrong"]) == (None, None)
    assert reference["numbers"] == 12 * 244
    assert page.do("evaluate", SUMS) == [True] * 4  # by the checksums of the texels that Python has packed
    assert complained(page) == []


FORMS: dict[str, tuple[str, str, str | list[str]]] = {
    "q8": (f"family=llama,{LLAMA},window=2", "q8", "float32"),
    "experts": (f"family=mixtral,{WIDE},experts=4,experts_used=2", "file", "float32"),
    "q16": (f"family=gpt2,{WIDE}", "q16", "float32"),
    "bf16": (f"family=llama,{LLAMA}", "file", "bfloat16"),
    "q5_1": (f"family=gpt2,{WIDE}", "file", "q5_1"),
    "K": (f"family=llama,{WIDE},kv_heads=2", "file", ["Q4_K", "Q6_K", "Q2_K"]),
    "codes": (f"family=llama,{WIDE},kv_heads=2", "file", ["IQ4_NL", "MXFP4", "Q3_K"]),
}
"""Shape, ``weights``, and the format of the file: LayerNorm and RMSNorm, gates, rotary positions, integers, blocks."""


@pytest.mark.parametrize("form", FORMS)
def test_products_of_packed_weights_are_explained(browse: Callable[..., Browsed], tmp_path: Path, form: str) -> None:
    options, weights, dtype = FORMS[form]
    path, config = tmp_path / ("m.safetensors" if dtype == "float32" else "m.gguf"), ModelConfig.from_options(options)
    checkpoint = in_blocks_of_256(config, dtype) if isinstance(dtype, list) else random_checkpoint(config, seed=4)
    save_checkpoint(checkpoint, path, dtype="file" if isinstance(dtype, list) else dtype)
    page = opened(browse, export_tour(path, tmp_path / "tour.html", "1 2 3", weights=weights).folder.as_uri())
    for count, name, error in page.do("evaluate", EXPLAINED):
        assert count >= 40 * 4
        assert error <= TOLERANCE * 10, name
    assert [each["wrong"] for each in page.do("evaluate", CHECKED)] == [None, None]  # scores too, in windows and not
    assert complained(page) == []


def test_draws_are_stepped_through_and_laid_over_each_other(bundled_tour: str, browse: Callable[..., Browsed]) -> None:
    page = opened(browse, bundled_tour)
    assert page.do("text", "#count") == "1 of 244"
    page.do("keys", "ArrowRight")
    assert "h.0.ln_1" in page.do("text", "#draw-number")
    page.do("click", "#back")
    page.do("keys", "End")
    assert page.do("text", "#count") == "244 of 244", "a button that was pressed leaves the page its keys"
    page.do("fill", "#jump", "h.2.attn.head.3.scores")
    page.do("press", "#jump", "Enter")
    assert page.do("text", "#draw-title") == "Block 2, head 3: scores"
    assert "attention_scores.frag" in page.do("text", "#facts")
    page.do("click", "#shader summary")
    page.do("says", "#source > pre", "void main()")  # the browser tells of an opened <details> a little later
    page.do("press", "#source > pre", "End")
    assert page.do("text", "#draw-title") == "Block 2, head 3: scores", "code is scrolled by these keys"
    page.do("evaluate", "tour.panel.output.canvas.focus()")
    page.do("keys", "ArrowDown")
    assert "What token 1 “O” looks for, times what token 0 “R” offers" in page.do("text", "#texel-words")
    assert "in float64" in page.do("text", "#texel-sum")
    # The context is as long as the stream is wide, and yet columns of queries are no tokens.
    elements = "['q', 'attn.probs'].map((name) => tour.panel.describe(textures.find((each) => each.name === name), at))"
    found = f"(({{ textures }}, at) => {elements})(tour.models.reference.plan, {{ row: 1, col: 0 }})"
    assert page.do("evaluate", found) == ["token 1 “O”, head 0, element 0", "token 1 “O” looks at token 0 “R”"]
    page.do("evaluate", "document.querySelector('#plans input[value=both]').click()")
    assert page.do("evaluate", "document.querySelectorAll('.chip').length") == 39
    page.do("evaluate", "document.querySelector('.chip[data-replaces=\"3\"]').click()")
    assert page.do("evaluate", "document.querySelectorAll('.cell.same').length") == 24
    assert page.do("text", "#draw-other") == "In the fast plan: draw 4, Block 0: softmax and mixing values"
    assert "h.0.attn.head.0.probs" in page.do("text", "#draw-number")
    for width in WIDTHS:
        page.do("size", width, 800)
        wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not page.do("evaluate", wide), width
    page.do("evaluate", "document.querySelector('#plans input[value=fast]').click()")
    assert page.do("text", "#count") == "4 of 39"
    assert "h.0.attn.values" in page.do("text", "#draw-number")
    assert complained(page) == []


def test_bugs_are_noticed_by_the_checks_that_can(small_tour: str, browse: Callable[..., Browsed]) -> None:
    page = opened(browse, small_tour)
    page.do("evaluate", "(globalThis.healthy = tour.recordings.reference).steps.length")
    names = page.do("evaluate", "tour.models.reference.plan.draws.map(({ name }) => name)")
    for bug, (error, weights, wrong) in NOTICED.items():
        page.do("evaluate", f"document.querySelector('input[value={bug}]').click()")
        page.do("wait", ".bugs:enabled")
        lines = page.do("evaluate", "[...document.querySelectorAll('#break dd')].map((each) => each.textContent)")
        assert len(lines) == 5
        for line, name in ((lines[2], error), (lines[4], wrong)):
            assert ("does not find" in line) == (name is None), bug
            assert name is None or f"draw {names.index(name) + 1}," in line, bug
        assert lines[3].startswith("find it" if weights else "identical"), bug
        assert bug != "mask" or "does not change" in lines[0]
    page.do("evaluate", "document.querySelector('.bugs input').click()")
    page.do("wait", ".bugs:enabled")
    assert page.do("evaluate", SAME) == -1, "nothing stays of a bug"


def test_the_next_word_follows_the_temperature_and_is_appended(small_tour: str, browse: Callable[..., Browsed]) -> None:
    page = opened(browse, small_tour)
    ids, logits = page.do("evaluate", "[tour.tokens, [...tour.token.value('logits').values]]")
    likeliest = int(np.argmax(logits))
    page.do("fill", "#set-temperature", "0")
    assert page.do("evaluate", "tour.token.chosen") == likeliest
    page.do("evaluate", "[...document.querySelectorAll('.result button')].at(-1).click()")
    page.do("wait", f"#tokens li:nth-child({len(ids) + 1})")
    page.do(*READY)
    assert page.do("evaluate", "tour.tokens") == [*ids, likeliest]
    page.do("evaluate", "document.querySelectorAll('#tokens button')[1].click()")
    assert "token 1" in page.do("text", "#token-title")
    page.do("fill", "#text", "To be<|end|>")
    assert page.do("evaluate", "tour.ids().length") == len(ids) + 1, "a control token, as in Python"
    page.do("evaluate", "tour.rerun([1, 2, 3]).then(() => (globalThis.healthy = tour.recordings.reference).ids)")
    page.do("evaluate", "Promise.all([tour.rerun([5, 4]), tour.rerun([1, 2, 3])]).then(() => 0)")  # Run, pressed twice
    assert page.do("evaluate", SAME) == -1
    page.do("fill", "#text", "To be " * 99)
    page.do("click", "#run")
    page.do("wait", "#problem:not(:empty)")
    assert "expected 1 to 64" in page.do("text", "#problem")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_chapters_and_axe(small_tour: str, browse: Callable[..., Browsed], scheme: str) -> None:
    page = opened(browse, small_tour, colorScheme=scheme, reducedMotion="reduce")
    page.do("evaluate", "location.hash = 'draw=h.3.ln_2'")
    page.do("says", "#draw-number", "h.3.ln_2")
    titles = []
    for chapter in range(1, 9):
        page.do("keys", str(chapter))
        page.do("wait", f"#chapters li:nth-child({chapter}) a[aria-current]")
        titles.append(page.do("text", "#draw-title"))
    assert len(set(titles)) >= 6
    page.do("click", "#chapter button")
    page.do("says", "#chapter [role=status]", "agree with float64")
    page.do("click", "#shader summary")
    page.do("says", "#source > pre:last-child", "void main()")
    assert page.do("axe", True) == []
    assert complained(page) == []
    page.do("media", "print")
    lines = page.do("evaluate", "document.body.innerText").splitlines()
    assert "Chapters" not in lines, "a heading needs its list"
    assert page.do("evaluate", "document.querySelector('.cards label select').checkVisibility()")


def test_colours_with_a_meaning_stay_where_the_system_replaces_others(
    small_tour: str, browse: Callable[..., Browsed]
) -> None:
    page = opened(browse, small_tour, forcedColors="active")
    for selector, count in (("#legend li:not([hidden]) span", 8), ("#plans span", 2), ("#tokens button", 2)):
        styles = f"[...document.querySelectorAll('{selector}')].map((each) => getComputedStyle(each))"
        colours = page.do("evaluate", f"{styles}.map((each) => each.borderColor + each.backgroundColor)")
        assert len(set(colours)) >= count, selector


def test_a_notebook_shows_the_page_in_a_frame(small_tour: str, browse: Callable[..., Browsed], tmp_path: Path) -> None:
    with glinfer.load(unquote(urlsplit(small_tour).path).replace(".html", ".gab"), plan="reference") as model:
        cell = model.tour("To be")._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<!DOCTYPE html><meta charset='utf-8'>{cell}", encoding="utf-8")
    page = browse()
    page.do("open", (tmp_path / "notebook.html").as_uri())
    assert page.do("evaluate", IN_FRAME) == "Block 2: MLP, first half"
    assert complained(page) == []


def test_an_example_that_is_longer_than_the_context_is_cut(browse: Callable[..., Browsed], tmp_path: Path) -> None:
    site = export_web(random_file(tmp_path / "m.gab", SMALL, 1), tmp_path / "site", context=2)
    page = browse()
    with serving(site.folder) as url:
        page.do("open", f"{url}tour.html")
        page.do(*READY)
        assert page.do("evaluate", "document.getElementById('text').value") == "1 2"
        for text, problem in (
            ("To be", "write token ids"),
            ("300", "Found the token 300; expected integers from 0"),
        ):
            page.do("fill", "#text", text)
            page.do("click", "#run")
            page.do("says", "#problem", problem)


def test_a_site_has_the_tour_of_its_own_plan(
    bundled: Callable[[str], ExportedSite], browse: Callable[..., Browsed]
) -> None:
    seen = browse()
    with serving(bundled("q8").folder) as url:
        seen.do("open", f"{url}?worker=0&offline=0&cache=0")
        seen.do("wait", "#tour")
        seen.do("click", "#tour")
        seen.do("wait", "#timeline")  # the page before has a status too
        seen.do(*READY)
        assert seen.do("text", "#count") == "1 of 39"
        assert "needs 39 of them" in seen.do("text", "#chapter")
        for chapter, words in (
            ("embedding", "row of the newest token"),
            ("fusing", "with 39 draws"),
        ):
            seen.do("evaluate", f"location.hash = 'chapter={chapter}'")
            seen.do("says", "#chapter", words)
        seen.do("keys", "Home")
        assert seen.do("evaluate", "tour.verify()").startswith("Plan fast: 52 textures")
        seen.do("keys", "End")
        assert seen.do("text", "#draw-title") == "Candidates"
        assert seen.do("axe", True) == []
    assert [line for line in seen.console if EXPECTED not in line] == []
