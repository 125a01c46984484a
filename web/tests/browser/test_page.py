"""The chat page of exported sites as a person uses it: conversations, Markdown, a lost context, two tabs, axe-core."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest
from browsed import EXPECTED, REFUSED_STORAGE, WEB, Browsed
from running_server import END, opening
from scripted_models import scripted

from glinfer.engine.random_model import demo_tokenizer
from glinfer.export.site import ExportedSite, export_web
from glinfer.formats import save_checkpoint, write_bpe
from qa.renderers.browsers import serving

pytestmark = [pytest.mark.gl, pytest.mark.web]

REPLY = "**b** [l](https://a.example) <i id=bad>\n```js\nx = 1;\n```\n| h |\n|---|\n| c |\n"
CONTEXT = 256
HOSTILE = (
    "<script>window.ran = 1</script><img src=x onerror='window.ran = 2'><svg onload='window.ran = 3'>",
    "[a](javascript:window.ran=4) ![b](https://a.example/x.png) ![c](data:image/svg+xml,<svg/onload=window.ran=5>)",
    "<style>body { display: none }</style><base href='https://a.example'><iframe srcdoc='<script>'></iframe>",
    "[d](https://a.example/\"onclick=\"window.ran=6) <https://a.example/'onclick='window.ran=7>",
    "```<script>\nwindow.ran = 8\n```\n\n| <img src=x onerror=window.ran=9> | ![e](x) |\n|--|--|\n| a | b |",
    "> " * 3000 + "*a " * 3000,
    "*a " * 3000 + "b* " * 3000,
    "- " * 3000,
    "a \u202e b `c \u202e d` [e \u202e](https://a.example)",
    "**half [half](https://a.exam",
)
ELEMENTS = [
    "A",
    "BR",
    "BUTTON",
    "CODE",
    "DIV",
    "EM",
    "PRE",
    "SPAN",
    "STRONG",
    "TABLE",
    "TBODY",
    "TD",
    "TH",
    "THEAD",
    "TR",
]
ELEMENTS += ["BLOCKQUOTE", "HR", "LI", "P", "UL"]


# Presses a button, and gives the label that it has next.
PRESSED = """
(selector) =>
  new Promise((resolve) => {
    const button = document.querySelector(selector);
    new MutationObserver(() => resolve(button.textContent)).observe(button, { childList: true });
    button.click();
  })
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a site whose model answers "hi" with Markdown, and everything else with full stops."""
    folder = tmp_path_factory.mktemp("speaker")
    script = [ord(".")] * (len(opening("hi")) - 1) + [*REPLY.encode(), END]
    save_checkpoint(scripted(script, vocab=300, dim=32, context=CONTEXT), folder / "speaker.gab")
    write_bpe(demo_tokenizer(300), folder / "speaker.bpe")
    made = export_web(folder / "speaker.gab", folder / "site", limits="webgl2")
    if made.notes:
        pytest.skip(made.notes[0])
    with serving(made.folder) as url:
        yield f"{url}?worker=0&offline=0"  # tests look into the model


def opened(page: Browsed, site: str) -> Browsed:
    page.do("open", site)
    page.do("says", "#status", "Ready.")
    page.do("fill", "#temperature", "0")
    page.do("fill", "#length", "120")
    return page


def send(page: Browsed, message: str, status: str = "Done.") -> None:
    page.do("fill", "#message", message)
    page.do("press", "#message", "Enter")
    page.do("wait", "#stop:enabled, #log[aria-busy=false] .turn:last-child")
    page.do("wait", "#stop:disabled")
    page.do("says", "#status", status)


def turns(page: Browsed) -> list[list[str]]:
    """What was written, and the start of each answer."""
    found = page.do("evaluate", "glinfer.page.turns.map(({ message, answer }) => [message, answer])")
    return [[message, answer] for message, answer in found]


def titles(page: Browsed) -> list[str]:
    found: list[str] = page.do(
        "evaluate", "[...document.querySelectorAll('#conversations .title')].map((each) => each.textContent)"
    )
    return found


def complained(page: Browsed) -> list[str]:
    return [line for line in page.console if EXPECTED not in line]


def test_answers_are_formatted_edited_and_written_again(site: str, browse: Callable[..., Browsed]) -> None:
    page = opened(browse(permissions=["clipboard-read", "clipboard-write"]), site)
    send(page, "hi")
    assert turns(page) == [["hi", REPLY]]
    shown = {name: page.do("text", f"#log .answer {name}") for name in ("strong", "a", "pre code", "th", "td")}
    assert shown == {"strong": "b", "a": "l", "pre code": "x = 1;\n", "th": "h", "td": "c"}
    assert "<i id=bad>" in page.do("text", "#log .answer")
    assert page.do("evaluate", "document.querySelector('#bad')") is None
    link = "(({ href, rel, target }) => [href, rel, target])(document.querySelector('.answer a'))"
    assert page.do("evaluate", link) == ["https://a.example/", "noopener noreferrer nofollow", "_blank"]
    for button, expected in ((".answer .copy", "x = 1;\n"), (".turn:last-child .actions .copy", REPLY)):
        assert page.do("evaluate", f"({PRESSED})({json.dumps(button)})") == "Copied"
        assert page.do("evaluate", "navigator.clipboard.readText()") == expected
    assert float(page.do("text", "#first").removesuffix(" s")) > 0
    assert page.do("text", "#held").endswith(f" of {CONTEXT}")
    assert page.do("text", "#spoken") == REPLY, "a screen reader hears the answer once, when it is complete"
    assert page.do("evaluate", "document.querySelector('#log').closest('[aria-live]')") is None
    page.do("fill", "#length", "3")
    send(page, "you")
    assert [message for message, _ in turns(page)] == ["hi", "you"]
    second = turns(page)[1][1]
    page.do("click", ".turn:last-child .again")
    page.do("says", "#status", "Done.")
    page.do("wait", "#stop:disabled")  # buttons beside answers are hidden until the conversation is kept
    assert turns(page) == [["hi", REPLY], ["you", second]]
    # By keys alone: the first message is written anew, and the second turn is dropped.
    page.do("evaluate", "document.querySelector('.turn .actions button:nth-child(2)').focus()")
    page.do("keys", "Enter")
    assert page.do("evaluate", "document.activeElement.value") == "hi"
    page.do("keys", "Escape")
    assert page.do("evaluate", "document.querySelector('.edit')") is None
    page.do("click", ".turn .actions button:nth-child(2)")
    page.do("fill", ".edit textarea", "so")
    page.do("press", ".edit textarea", "Enter")
    page.do("wait", ".turn:nth-of-type(2):last-child")
    page.do("wait", "#stop:disabled")
    assert [message for message, _ in turns(page)] == ["so"]
    assert complained(page) == []
    assert [address for address in page.asked if not address.startswith((site[: site.index("?")], "data:"))] == []


def test_a_message_waits_until_the_model_is_ready(site: str, browse: Callable[..., Browsed]) -> None:
    page = browse()
    page.do(
        "before",
        "globalThis.held = new Promise((go) => (globalThis.go = go)); const ask = fetch; "
        "globalThis.fetch = async (...given) => { await globalThis.held; return ask(...given); };",
    )
    page.do("open", site)
    for message in ("taken back", "hi"):
        page.do("fill", "#message", message)
        page.do("click", "#send")
        page.do("wait", "#queued")
        if message != "hi":
            page.do("keys", "Escape")
            page.do("gone", "#queued")
    page.do("evaluate", "go()")
    page.do("says", "#status", "Done.")
    assert turns(page) == [["hi", REPLY]]
    assert page.do("evaluate", "document.querySelector('#queued').hidden")
    assert complained(page) == []


def test_settings_open_over_a_narrow_page(site: str, browse: Callable[..., Browsed]) -> None:
    page = browse(viewport={"width": 360, "height": 740})
    page.do("open", site)
    page.do("says", "#status", "Ready.")
    send(page, "hi")
    page.do("click", "#kept summary")
    title = "getComputedStyle(document.querySelector('#conversations .title')).display"
    assert page.do("evaluate", title) == "block", "a button of its own"
    shown = "[panel.hidden, document.activeElement.id, innerWidth - document.documentElement.scrollWidth]"
    page.do("evaluate", "(globalThis.panel = document.querySelector('#panel')).hidden")
    page.do("click", "#show-panel")
    assert page.do("evaluate", shown) == [False, "hide-panel", 0]
    page.do("keys", "Escape")
    assert page.do("evaluate", shown) == [True, "show-panel", 0]


def test_a_message_in_hebrew_ends_at_its_left(site: str, browse: Callable[..., Browsed]) -> None:
    page = opened(browse(), site)
    send(page, "שלום?")
    text = "const { firstChild: text } = document.querySelector('#log .given'); const range = document.createRange();"
    left = "range.setStart(text, at); range.setEnd(text, at + 1); return range.getBoundingClientRect().left;"
    places = "['?', 'ם', 'ש'].map((letter) => left(text.data.indexOf(letter)))"
    found = page.do("evaluate", f"(() => {{ {text} const left = (at) => {{ {left} }}; return {places}; }})()")
    assert found == sorted(set(found)), "the question mark is left of the letters"


def test_a_text_in_hebrew_goes_on_at_its_left(
    bundled: Callable[[str], ExportedSite], browse: Callable[..., Browsed]
) -> None:
    with serving(bundled("q8").folder) as url:
        page = opened(browse(), f"{url}?worker=0&offline=0&cache=0")
        page.do("fill", "#length", "1")
        send(page, "שלום")
        page.do("evaluate", "document.querySelector('.answer').textContent = ' עולם'")
        left = "['.answer', '.given'].map((part) => document.querySelector(part).getBoundingClientRect().left)"
        found = page.do("evaluate", left)
    assert found == sorted(set(found)), "the answer is left of the text"


def test_conversations_are_kept_named_and_deleted(site: str, browse: Callable[..., Browsed]) -> None:
    page = opened(browse(), site)
    page.do("fill", "#length", "4")
    for message in ("one", "two"):
        send(page, message)
        page.do("click", "#clear")
        assert page.do("text", "#log") == ""
    assert titles(page) == ["two", "one"]
    page.do("click", "#conversations li:nth-child(2) .title")
    page.do("says", "#log .given", "one")
    page.do("reload")
    page.do("says", "#status", "Ready.")
    assert [message for message, _ in turns(page)] == ["one"], "a tab that is loaded again has its conversation"
    assert page.do("text", "#log .given").strip() == "one"
    page.do("fill", "#length", "4")
    send(page, "more")
    assert titles(page) == ["one", "two"], "the latest comes first"
    page.do("click", "#conversations [aria-label='Rename “one”']")
    page.do("fill", "#ask-value", "<b>first</b>")
    page.do("press", "#ask-value", "Enter")
    page.do("says", "#conversations .title", "<b>first</b>")
    page.do("click", "#conversations [aria-label='Delete “<b>first</b>”']")
    page.do("keys", "Escape")
    assert len(titles(page)) == 2, "Escape keeps it"
    page.do("click", "#conversations [aria-label='Delete “<b>first</b>”']")
    page.do("click", "#ask-yes")
    page.do("wait", "#log:empty")
    assert titles(page) == ["two"]
    page.do("click", "#delete-all")
    page.do("click", "#ask-yes")
    page.do("gone", "#conversations li")
    page.do("reload")
    page.do("says", "#status", "Ready.")
    assert (titles(page), turns(page)) == ([], [])
    assert complained(page) == []


def test_what_comes_to_nothing_changes_nothing(site: str, browse: Callable[..., Browsed]) -> None:
    page = opened(browse(), site)
    page.do("fill", "#length", "4")
    send(page, "hi")
    before = turns(page)
    send(page, "x" * 1000, "Stopped by an error.")
    assert "the message takes" in page.do("text", "#problem").lower()
    assert turns(page) == before
    assert page.do("evaluate", "document.querySelector('#message').value") == "x" * 1000, "it can be shortened"
    page.do("click", ".turn .actions button:nth-child(2)")
    page.do("fill", ".edit textarea", "y" * 1000)
    page.do("press", ".edit textarea", "Enter")
    page.do("says", "#status", "Stopped by an error.")
    page.do("wait", "#stop:disabled")
    assert turns(page) == before, "later turns are there still"


def test_two_tabs_lose_nothing(site: str, browse: Callable[..., Browsed]) -> None:
    page = opened(browse(), site)
    page.do("fill", "#length", "4")
    send(page, "one")
    page.do("tab", 1)
    opened(page, site)
    page.do("fill", "#length", "4")
    assert turns(page) == []
    page.do("click", "#conversations .title")
    page.do("says", "#log .given", "one")
    send(page, "two")
    page.do("tab", 0)
    page.do("says", "#log .given", "two")
    assert [message for message, _ in turns(page)] == ["one", "two"]
    page.do("click", "#conversations [aria-label='Delete “one”']")
    page.do("click", "#ask-yes")
    page.do("gone", "#conversations li")
    page.do("tab", 1)
    page.do("says", "#status", "This conversation was deleted in another tab.")
    assert turns(page) == []


@pytest.mark.parametrize("query", ["", "?offline=0"])
def test_without_storage_the_page_works_and_says_so(site: str, browse: Callable[..., Browsed], query: str) -> None:
    page = browse()
    page.do("before", REFUSED_STORAGE)
    opened(page, f"{site}{query}")
    page.do("fill", "#length", "4")
    send(page, "one")
    page.do("click", "#clear")
    send(page, "two")
    assert titles(page) == ["two", "one"]
    assert "closing it deletes the conversations" in page.do("text", "#kept-hint")
    assert complained(page) == []


GL = "const gl = WebGL2RenderingContext.prototype; const given = Object.assign({}, "
GL += "...['uniform1ui', 'readPixels', 'drawArrays', 'drawArraysInstanced'].map((name) => ({ [name]: gl[name] }))); "
EVERY_THIRD = "let n = 0; for (const name of ['drawArrays', 'drawArraysInstanced']) "
LIES = {
    "no drivers' lies": ("", "passed"),
    "uniforms of 16 bits": (
        "gl.uniform1ui = function (at, word) { given.uniform1ui.call(this, at, word & 0xffff); };",
        "passed, tokens drawn by the processor",
    ),
    "floats that come back rounded": (
        "gl.readPixels = function (...all) { given.readPixels.apply(this, all); const out = all.at(-1); "
        "if (out instanceof Float32Array) out.forEach((x, n) => (out[n] = Math.round(64 * x) / 64)); };",
        "passed, floats in integer textures",
    ),
    "dropped draws": (
        f"{EVERY_THIRD} gl[name] = function (...all) {{ if (++n % 3) given[name].apply(this, all); }};",
        "compute wrong numbers in the test of arithmetic: found NaN, NaN, NaN, NaN; expected -0.4484295, ",
    ),
    "draws of zeros": (
        f"{EVERY_THIRD} gl[name] = function (...all) {{ if (++n % 3) given[name].apply(this, all); "
        "else for (const kind of ['fv', 'uiv']) this[`clearBuffer${kind}`](this.COLOR, 0, [0, 0, 0, 0]); };",
        "compute wrong numbers in the test of arithmetic: found 0, 0, 0, 0; expected -0.4484295, ",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_of_the_driver_are_avoided_or_reported(site: str, browse: Callable[..., Browsed], lie: str) -> None:
    """In the first case before weights are loaded, with the usual answer otherwise."""
    page = browse()
    script, says = LIES[lie]
    page.do("before", f"{{ {GL}{script} }}")
    if says.startswith("passed"):
        opened(page, site)
        page.do("evaluate", "glinfer.page.turns.length")
        assert page.do("text", "#card").endswith(f"Self-test{says}")
        send(page, "hi")
        assert turns(page) == [["hi", REPLY]]
    else:
        page.do("open", site)
        page.do("says", "#problem", says)
        assert not any("weights" in address for address in page.asked)


@pytest.mark.parametrize("instead", ["undefined", "this.clearBufferfv(this.COLOR, 0, [0, 0, 0, 0])"])
def test_draws_that_fail_after_an_answer_end_the_next_one(
    site: str, browse: Callable[..., Browsed], instead: str
) -> None:
    page = opened(browse(), site)
    send(page, "hi")
    lie = f"this.isEnabled(this.SCISSOR_TEST) ? given[name].apply(this, all) : {instead}"
    page.do("evaluate", f"(() => {{ {GL}{EVERY_THIRD} gl[name] = function (...all) {{ {lie}; }}; }})()")
    send(page, "hi again", "Stopped by an error.")
    assert re.search("output is broken|dropped it without an error", page.do("text", "#problem"))
    assert len(turns(page)) == 1


def test_a_lost_context_is_said_and_the_model_loaded_again(site: str, browse: Callable[..., Browsed]) -> None:
    page = opened(browse(), site)
    lose = "glinfer.model.replay.gl.getExtension('WEBGL_lose_context').loseContext()"
    step = (
        "(() => { const { model } = glinfer; const choose = model.choose.bind(model); let count = 0; "
        f"model.choose = (...given) => {{ if (++count === 3) {lose}; return choose(...given); }}; }})()"
    )
    page.do("evaluate", step)
    page.do("fill", "#message", "hi")
    page.do("press", "#message", "Enter")
    page.do("says", "#status", "The model was lost and has been loaded again.")
    assert page.do("evaluate", "glinfer.errors") == ["The browser dropped the graphics context, and the model with it."]
    ((message, answer),) = turns(page)
    assert message == "hi"
    assert REPLY.startswith(answer)
    assert 0 < len(answer) < len(REPLY), "what was read from a lost context is not a text"
    assert page.do("evaluate", "document.querySelector('#length').value") == "120", "settings stay"
    page.do("click", ".turn:last-child .again")
    page.do("says", "#status", "Done.")
    assert turns(page) == [["hi", REPLY]]
    page.do("evaluate", f"glinfer.page.reloaded = performance.now(), {lose}")  # so soon again: only if asked
    page.do("click", "#problem button")
    page.do("says", "#status", "The model was lost and has been loaded again.")
    assert turns(page) == [["hi", REPLY]]


SHOW = """
async (texts) => {
  const { Answer } = await import("./page/answer.js");
  const found = [];
  for (const text of texts) {
    const place = Object.assign(document.createElement("div"), { className: "answer" });
    document.querySelector("#log").replaceChildren(place);
    const answer = new Answer(place, true);
    for (const letter of text.slice(0, 300)) {
      answer.add(letter);
      answer.show();
    }
    answer.add(text.slice(300));
    answer.show();
    const all = [...place.querySelectorAll("*")];
    const links = [...place.querySelectorAll("a")];
    for (const link of links) link.addEventListener("click", (event) => event.preventDefault());
    for (const each of all) each.click();
    await new Promise((resolve) => setTimeout(resolve, 20));
    const depthOf = (each) => (each === place ? 0 : 1 + depthOf(each.parentElement));
    found.push({
      tags: all.map(({ tagName }) => tagName),
      names: all.flatMap((each) => each.getAttributeNames()),
      depth: Math.max(0, ...all.map(depthOf)),
      links: links.map(({ href }) => href),
      text: place.textContent,
    });
  }
  return found;
}
"""


INJECT = """
async () => {
  document.querySelector("#log").innerHTML =
    "<img src=https://a.example/x.png onerror='window.ran = 1'><svg onload='window.ran = 2'></svg>" +
    "<style>body { color: red }</style>";
  const inline = Object.assign(document.createElement("script"), { textContent: "window.ran = 3" });
  const far = Object.assign(document.createElement("script"), { src: "https://a.example/x.js" });
  document.body.append(inline, far);
  const gone = await fetch("https://a.example/x").catch((error) => error.name);
  await new Promise((resolve) => setTimeout(resolve, 100));
  return [window.ran ?? null, gone, getComputedStyle(document.body).color];
}
"""


def test_hostile_answers_are_texts_and_the_policy_forbids_more(site: str, browse: Callable[..., Browsed]) -> None:
    """If something did get HTML of its own into the page, it would neither run nor load anything."""
    page = opened(browse(), site)
    found = page.do("evaluate", f"({SHOW})({json.dumps(HOSTILE)})")
    for each in found:
        assert set(each["tags"]) <= set(ELEMENTS)
        assert set(each["names"]) <= {"href", "title", "target", "rel", "dir", "class", "type", "tabindex"}
        assert each["depth"] < 40
        assert all(link.startswith("https://a.example") for link in each["links"])
    assert "<script>window.ran = 1</script>" in found[0]["text"]
    assert "c ⟨U+202E⟩ d" in found[-2]["text"]
    assert page.do("evaluate", "window.ran") is None
    assert complained(page) == []
    assert [address for address in page.asked if not address.startswith((site[: site.index("?")], "data:"))] == []
    ran, gone, colour = page.do("evaluate", f"({INJECT})()")
    assert (ran, gone) == (None, "TypeError")
    assert colour != "rgb(255, 0, 0)"
    assert sum("Content Security Policy" in line for line in page.console) >= 5


@pytest.mark.skipif(not (WEB / "node_modules" / "axe-core").is_dir(), reason="axe-core is not in web/node_modules")
def test_axe_finds_nothing(site: str, browse: Callable[..., Browsed]) -> None:
    page = browse(reducedMotion="reduce")
    opened(page, site)
    page.do("evaluate", "document.querySelector('main').append(document.createElement('button'))")
    assert len(page.do("axe", True)) == 1, "as it opens, and it would find a button without a name"
    page.do("evaluate", "document.querySelector('main').lastChild.remove()")
    send(page, "hi")
    page.do("click", "#inside summary")
    page.do("click", "#conversations .title")
    page.do("wait", "#message:focus")  # the conversation is shown again
    page.do("click", ".turn .actions button:nth-child(2)")
    assert page.do("axe", True) == [], "with an answer, the model's card and a message that is edited"
    page.do("click", "#theme")
    page.do("size", [390, 844])
    page.do("wait", "#kept:not([open])")
    page.do("click", "#kept summary")
    assert page.do("axe", True) == [], "dark, on a phone, with the list of conversations"
    assert page.do("evaluate", "document.documentElement.scrollWidth <= innerWidth")
    page.do("click", "#delete-all")
    assert page.do("axe", True) == [], "with a question"
    page.do("keys", "Escape")
    page.do("evaluate", "glinfer.page.close('A problem.')")
    assert page.do("axe", True) == [], "with a problem"
    assert complained(page) == []


def test_a_browser_without_webgl2_says_so_in_one_sentence(site: str, browse: Callable[..., Browsed]) -> None:
    page = browse()
    page.do("before", "HTMLCanvasElement.prototype.getContext = () => null; delete globalThis.OffscreenCanvas;")
    page.do("open", site)
    page.do("says", "#status", "This model cannot run here.")
    (sentence,) = page.do("evaluate", "glinfer.errors")
    assert "WebGL2" in sentence
    assert page.do("evaluate", "document.querySelector('#send').disabled")
