"""The chat page of ``glinfer serve`` in Chromium: replies, stop, keys, colours, phones, a server that goes away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from browsed import REFUSED_STORAGE, Browsed, Browser
from running_server import END, Running, opening, running, speaker

import glinfer
from glinfer.engine.batch import Batch
from glinfer.server import worker
from glinfer.server.auth import Access
from glinfer.server.run import HttpServer, ServerOptions
from glinfer.server.served import ModelSource

pytestmark = [pytest.mark.gl, pytest.mark.web]

MARKUP = "<b id=bad>&"
REFUSED = "Failed to load resource: the server responded with a status of "


class ChatPage(Browsed):
    """The chat page in a browser."""

    def open(self, server: Running, status: str = "Ready.") -> ChatPage:
        self.do("open", server.url)
        self.do("says", "#status", status)
        return self

    def send(self, message: str, *, done: str = "Done.") -> str:
        """Send a message by Enter; the last turn in the log, once the status is ``done``."""
        self.do("fill", "#message", message)
        self.do("press", "#message", "Enter")
        self.do("says", "#status", done)
        return self.last

    @property
    def last(self) -> str:
        parts = "['.given', '.answer'].map((name) => document.querySelector('#log').lastChild?.querySelector(name))"
        return str(self.do("evaluate", f"{parts}.map((part) => part?.textContent ?? '').join('')"))


@pytest.fixture
def browse(browser: Browser) -> Iterator[Callable[..., ChatPage]]:
    """Open a page with nothing kept, with options of Playwright's contexts."""

    def made(**options: Any) -> ChatPage:
        return ChatPage(browser, **options)

    yield made
    browser.do("context", None)


@contextmanager
def slow_steps(seconds: float) -> Iterator[None]:
    run = Batch.run

    def slowly(self: Batch, *given: Any) -> Any:
        time.sleep(seconds)
        return run(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "run", slowly)
        yield


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """``shakespeare``, and ``speaker``, which answers "hi" with markup."""
    folder = tmp_path_factory.mktemp("served")
    path = speaker(folder / "speaker.gab", [*MARKUP.encode(), END], after=len(opening("hi")))
    with running(("shakespeare", "shakespeare"), ("speaker", path), slots=2) as found:
        yield found


def test_a_text_goes_on_as_in_python(served: Running, browse: Callable[..., ChatPage]) -> None:
    page = browse().open(served)
    page.do("fill", "#length", "20")
    page.do("fill", "#seed", "7")
    with glinfer.load("shakespeare") as model:
        drawn = "ROMEO:" + model.generate("ROMEO:", max_tokens=20, seed=7)
        greedy = "JULIET:" + model.generate("JULIET:", max_tokens=20, temperature=0)
    assert page.send("ROMEO:") == drawn
    assert page.do("text", "#held").endswith(" of 256")
    assert float(page.do("text", "#speed")) > 0
    assert page.do("evaluate", "document.querySelector('#temperature').value") == "0.7"
    page.do("fill", "#temperature", "0")
    assert page.send("JULIET:") == greedy
    assert page.console == []
    assert all(address.startswith((served.url, "data:")) for address in page.asked), "it asks no other server"


def test_a_chat_shows_markup_as_text_and_remembers(served: Running, browse: Callable[..., ChatPage]) -> None:
    page = browse().open(served)
    page.do("choose", "#model", "speaker")
    page.do("says", "#about", "speaker")
    page.do("says", "#status", "Ready.")
    page.do("fill", "#length", "20")
    page.do("fill", "#temperature", "0")
    assert page.send("hi") == MARKUP
    assert not page.do("evaluate", "document.querySelector('#bad') !== null"), "text of a model became an element"
    prompt_tokens = served.metric("glinfer_prompt_tokens_total", model="speaker")
    page.send("you")
    grown = served.metric("glinfer_prompt_tokens_total", model="speaker") - prompt_tokens
    assert grown == len(opening("hi")) + len(MARKUP) + 1 + len(opening("you"))
    for _ in range(6):  # more than the context of 64 tokens holds: the oldest turns are left out
        page.send("hi again")
    assert page.do("text", "#problem") == ""
    page.do("click", "#clear")
    assert page.do("text", "#log") == ""
    assert page.send("hi") == MARKUP


def test_attention_is_shown_when_asked_for(served: Running, browse: Callable[..., ChatPage]) -> None:
    page = browse().open(served)
    assert page.do("evaluate", "document.querySelector('#look').disabled"), "there is no reply yet"
    page.do("fill", "#length", "5")
    page.send("ROMEO:")
    page.do("choose", "#layer", "3")
    page.do("click", "#look")
    page.do("wait", "#picture[aria-label*='block 3']")
    label, width, height = page.do(
        "evaluate", "(({ ariaLabel, width, height }) => [ariaLabel, width, height])(picture)"
    )
    held = int(page.do("text", "#held").split()[0])
    assert (label, height) == (f"Attention of block 3: 8 rows over {width} tokens", 8)
    assert abs(width - held) <= 1, "the reply's tokens, made of its text again"


def test_stop_ends_the_work(served: Running, browse: Callable[..., ChatPage]) -> None:
    """By its button and by Escape."""
    page = browse().open(served)
    for stop in (("click", "#stop"), ("press", "body", "Escape")):
        page.do("fill", "#length", "200")
        cancelled = served.metric("glinfer_finished_total", reason="cancelled")
        with slow_steps(0.1):
            page.do("fill", "#message", "ROMEO:")
            page.do("click", "#send")
            page.do("says", "#status", "Writing…")
            page.do("wait", "#log .turn:last-child .answer:not(:empty)")
            early = page.last
            assert len(early) > len("ROMEO:"), "shown while the rest is written"
            page.do(*stop)
            page.do("says", "#status", "Stopped.")
            served.wait(
                lambda before=cancelled: served.metric("glinfer_finished_total", reason="cancelled") == before + 1
            )
        assert page.last.startswith(early)
        assert page.do("text", "#problem") == ""
        page.do("fill", "#length", "2")
        assert page.send("ROMEO:").startswith("ROMEO:")


def test_a_key_is_asked_for(browse: Callable[..., ChatPage], small: Path) -> None:
    with running(("small", small), access=Access(keys=("secret",))) as server:
        page = browse().open(server, "This server asks for an API key.")
        assert page.do("text", "#problem") == ""
        page.do("fill", "#key", "wrong")
        page.do("press", "#key", "Enter")
        page.do("says", "#problem", "This API key is not valid")
        page.do("fill", "#key", "secret")
        page.do("click", "#use-key")
        page.do("says", "#status", "Ready.")
        assert not page.do("evaluate", "document.querySelector('#key').checkVisibility()")
        page.do("fill", "#length", "2")
        page.send("hi")
        assert page.do("evaluate", "[localStorage.length, document.cookie]") == [0, ""]
        page.open(server)  # the tab keeps it
        assert {line[: len(REFUSED)] for line in page.console} == {REFUSED}
        page = browse()
        page.do("before", REFUSED_STORAGE)
        page.open(server, "This server asks for an API key.")
        page.do("fill", "#key", "secret")
        page.do("click", "#use-key")
        page.do("says", "#status", "Ready.")


def test_a_server_that_goes_away(browse: Callable[..., ChatPage]) -> None:
    page = browse()
    with running(("shakespeare", "shakespeare"), grace=0.0) as server:
        page.open(server)
        with slow_steps(0.1):
            page.do("fill", "#message", "ROMEO:")
            page.do("click", "#send")
            page.do("says", "#status", "Writing…")
            server.server.end()
            page.do("says", "#problem", "The server is shutting down")
    assert page.do("text", "#status") == "Stopped by an error."
    page.send("JULIET:", done="Stopped by an error.")
    page.do("says", "#problem", "The server does not answer; check that 'glinfer serve' is running")
    page.do("wait", "#send:enabled")  # it can be tried again


def test_what_the_server_refuses_is_said(served: Running, browse: Callable[..., ChatPage]) -> None:
    page = browse(viewport={"width": 360, "height": 420}).open(served)
    assert page.send("x" * 2000, done="Stopped by an error.") == "", "nothing came of it"
    assert "the context of shakespeare holds 256" in page.do("text", "#problem")
    page.do("click", "#show-panel")
    page.do("fill", "#top-p", "7")
    page.do("click", "#hide-panel")
    page.send("ROMEO:", done="Stopped by an error.")
    assert "top_p: found 7" in page.do("text", "#problem")
    hidden = "(({ scrollHeight, clientHeight }) => scrollHeight - clientHeight)(document.querySelector('#problem'))"
    assert page.do("evaluate", hidden) <= 0, "the sentence is cut on a phone"
    own = page.do("evaluate", "document.querySelector('#top-p').defaultValue")
    page.do("click", "#show-panel")
    page.do("fill", "#top-p", "")
    page.do("press", "#top-p", "Tab")
    assert page.do("evaluate", "document.querySelector('#top-p').value") == own != ""


def test_an_example_on_a_phone_dark_and_light(served: Running, browse: Callable[..., ChatPage]) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = browse(colorScheme="dark", viewport={"width": 360, "height": 740}, isMobile=True, hasTouch=True).open(served)
    papers = [dark.do("evaluate", paper)]
    dark.do("click", "#theme")
    papers.append(dark.do("evaluate", paper))
    brightness = [sum(int(part) for part in found.strip("rgb()").split(",")) for found in papers]
    assert brightness[0] < 150 < 600 < brightness[1]
    dark.do("click", "#show-panel")
    dark.do("fill", "#length", "3")
    dark.do("click", "#hide-panel")
    examples = dark.do("text", "#examples button").split("\n")
    assert len(examples) >= 3
    dark.do("click", "#examples button:nth-child(2)")
    dark.do("says", "#status", "Done.")
    assert dark.last.startswith(examples[1])
    assert dark.do("evaluate", "document.documentElement.scrollWidth <= innerWidth")
    assert dark.do("evaluate", "document.querySelector('#send').getBoundingClientRect().height") >= 40


def test_everything_has_a_name_and_the_keyboard_reaches_it(served: Running, browse: Callable[..., ChatPage]) -> None:
    page = browse().open(served)
    nameless = """[...document.querySelectorAll("button, input, select, textarea")].filter((each) =>
        each.checkVisibility() && !each.textContent.trim() && !each.labels?.length).map((each) => each.id)"""
    assert page.do("evaluate", nameless) == []
    assert page.do("evaluate", "document.activeElement.id") == "message"
    page.do("evaluate", "document.querySelector('#theme').focus()")
    seen = []
    for _ in range(40):
        page.do("press", ":focus", "Tab")
        seen.append(page.do("evaluate", "document.activeElement.id || document.activeElement.tagName"))
        if seen[-1] == "BODY":
            break
    assert {"show-panel", "send", "clear", "temperature", "top-k", "top-p", "length", "seed", "layer"} <= set(seen)
    page.do("fill", "#message", "a")
    page.do("press", "#message", "Shift+Enter")
    assert page.do("evaluate", "document.querySelector('#message').value") == "a\n"
    assert page.do("text", "#log") == ""


def test_a_model_that_is_loaded_is_waited_for(
    browse: Callable[..., ChatPage], monkeypatch: pytest.MonkeyPatch, small: Path
) -> None:
    load, started = worker.load_model, time.monotonic()

    def loading(*given: Any, **named: Any) -> Any:
        while time.monotonic() < started + 60 and not go:
            time.sleep(0.02)
        return load(*given, **named)

    go: list[bool] = []
    monkeypatch.setattr(worker, "load_model", loading)
    server = Running(HttpServer([ModelSource("small", str(small))], ServerOptions(port=0)))
    page = browse().open(server, "Loading small…")
    go.append(True)
    page.do("says", "#status", "Ready.")
    server.server.end()
    server.thread.join(30)
    assert server.failure is None
