"""Visits of a site in Chromium: what is asked of the server, what is kept, and the worker that computes."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsed import KEEPS, WEB, Browsed
from sites import ChatSite
from tiny_embedders import TEXTS, write_embedder

import glinfer
from glinfer.export import serve
from glinfer.export.site import export_web
from qa.renderers.browsers import serving

pytestmark = [pytest.mark.gl, pytest.mark.web]

PROMPT = "Once upon a time"
TOKENS = 8
Sites = Callable[[int], ChatSite]
MINE = '<!DOCTYPE html><link rel="icon" href="data:,"><title>mine</title>'
# A worker's canvas is out of reach of a page: this one gives its context away when it is told to.
LOSES = """
const { getContext } = OffscreenCanvas.prototype;
let last = null;
OffscreenCanvas.prototype.getContext = function (...given) { return (last = getContext.apply(this, given)); };
new BroadcastChannel("lose").onmessage = () => last.getExtension("WEBGL_lose_context").loseContext();
"""
# Clicks on Stop at the first words of the next reply.
STOPS = """
new MutationObserver((_, watch) => {
  if (!document.querySelector("#log .turn:last-child .answer")?.textContent) return;
  watch.disconnect();
  document.getElementById("stop").click();
}).observe(document.getElementById("log"), { subtree: true, childList: true });
"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What servers of sites were asked for, and the status of the answer."""
    found: list[tuple[str, int]] = []

    def log(self: Any, code: Any = "-", *_: Any) -> None:
        found.append((self.path.split("?")[0], int(code)))

    monkeypatch.setattr(serve._Handler, "log_request", log)
    return found


@pytest.fixture
def first(chat_site: Sites) -> ChatSite:
    """The model of most tests, and its site, which none of them changes."""
    return chat_site(3)


ONLINE = "?offline=0"
"""No page is kept, which takes as many requests again."""


def replaced(site: Path, other: ChatSite) -> None:
    """Put another export at the address of a site."""
    shutil.rmtree(site)
    shutil.copytree(other.folder, site)


def opened(page: Browsed, url: str, query: str = "") -> Browsed:
    page.do("open", url + query)
    page.do("says", "#status", "Ready.")
    if not query:
        page.do("evaluate", KEEPS)
    return page


def written(page: Browsed) -> str:
    """What the page replies to PROMPT, in a conversation of its own."""
    send(page)
    return answer_of(page)


def send(page: Browsed, tokens: int = TOKENS) -> None:
    page.do("click", "#clear")
    page.do("fill", "#temperature", "0")
    page.do("fill", "#length", str(tokens))
    page.do("fill", "#message", PROMPT)
    page.do("press", "#message", "Enter")


def answer_of(page: Browsed) -> str:
    page.do("says", "#status", "Done.")
    return str(page.do("evaluate", "glinfer.page.turns.at(-1).answer"))


def large(asked: list[tuple[str, int]]) -> list[str]:
    """Of what was asked for, that which a browser keeps."""
    kept = [path for path, _ in asked if path.startswith(("/weights", "/shaders", "/tokenizer.json"))]
    asked.clear()
    return kept


def caches_of(page: Browsed, ours: str = "glinfer ") -> list[str]:
    """Names of caches of weights, or with ``glinfer-offline`` of pages."""
    names = [name for name in page.do("evaluate", "caches.keys()") if not name.endswith(" opened")]
    return [name for name in names if name.startswith(ours)]


def test_a_second_visit_asks_for_nothing_that_is_kept(
    browse: Callable[[], Browsed], asked: list[tuple[str, int]], chat_site: Sites, first: ChatSite, tmp_path: Path
) -> None:
    page, site, second = browse(), shutil.copytree(first.folder, tmp_path / "site"), chat_site(4)
    with serving(site) as url:
        opened(page, url, ONLINE)
        assert page.do("evaluate", "glinfer.model.worker") is True
        once = large(asked)
        assert {"/weights.safetensors", "/tokenizer.json"} <= set(once)
        (name,) = caches_of(page)
        opened(page, url, ONLINE)
        assert asked.count(("/plan.json", 200)) + asked.count(("/plan.json", 304)) == 1
        assert large(asked) == []
        assert caches_of(page) == [name]
        assert written(page) == first.reply(PROMPT, TOKENS)
        opened(page, url, f"{ONLINE}&cache=0")
        assert sorted(large(asked)) == sorted(once)
        replaced(site, second)
        opened(page, url, ONLINE)
        assert "/weights.safetensors" in large(asked)
        assert written(page) == second.reply(PROMPT, TOKENS) != first.reply(PROMPT, TOKENS)
        (other,) = caches_of(page)
        assert other != name
        assert page.console == []


def test_a_page_opens_again_without_its_server(
    browse: Callable[[], Browsed], chat_site: Sites, first: ChatSite, tmp_path: Path
) -> None:
    page, site, second = browse(), shutil.copytree(first.folder, tmp_path / "site"), chat_site(4)
    with serving(site) as url:
        opened(page, url)
    opened(page, url)
    assert page.do("evaluate", "glinfer.model.worker") is True
    assert written(page) == first.reply(PROMPT, TOKENS)
    version = page.do("evaluate", "glinfer.plan.offline.version")
    replaced(site, second)
    with serving(site, int(url.split(":")[2].strip("/"))):  # the page that is open sees nothing of the other export
        assert (
            page.do("evaluate", "fetch('plan.json').then((plan) => plan.json()).then((plan) => plan.offline.version)")
            == version
        )
        opened(page, url)
        (kept,) = caches_of(page, "glinfer-offline ")
        assert not kept.endswith(version)
    opened(page, url)
    assert written(page) == second.reply(PROMPT, TOKENS)
    with serving(site, int(url.split(":")[2].strip("/"))):
        opened(page, url, ONLINE)
        assert page.do("evaluate", "navigator.serviceWorker.getRegistrations().then((all) => all.length)") == 0
        assert caches_of(page, "glinfer-offline") == []
        assert len(caches_of(page)) == 1  # of weights
    with pytest.raises(AssertionError, match="ERR_CONNECTION_REFUSED"):
        page.do("open", url)


def test_weights_of_another_export_are_refused(
    browse: Callable[[], Browsed], chat_site: Sites, first: ChatSite, tmp_path: Path
) -> None:
    site = shutil.copytree(first.folder, tmp_path / "site")
    shutil.copy(chat_site(4).folder / "weights.safetensors", site)
    page = browse()
    with serving(site) as url:
        page.do("open", url)
        page.do("says", "#problem", "weights.safetensors cannot be read: it is not the file that plan.json was written")


def test_pictures_checks_and_stop_in_a_worker(browse: Callable[[], Browsed], first: ChatSite) -> None:
    page = browse()
    with serving(first.folder) as url:
        opened(page, url, ONLINE)
        assert page.do("evaluate", "Boolean(glinfer.model.worker)")
        assert not page.do("evaluate", "document.getElementById('watch').checked"), "pictures cost time"
        page.do("click", "#watch")
        assert written(page) == first.reply(PROMPT, TOKENS)
        label = page.do("evaluate", "picture.getAttribute('aria-label')")
        assert label.startswith("Attention of block 0: 4 rows over ")
        page.do("evaluate", "document.getElementById('inside').open = true")
        page.do("click", "#check")
        page.do("says", "#checked", "all identical")
        page.do("evaluate", STOPS)
        page.do("fill", "#length", "40")
        page.do("fill", "#message", PROMPT)
        page.do("press", "#message", "Enter")
        page.do("says", "#status", "Stopped.")
        page.do("click", "#clear")
        assert written(page) == first.reply(PROMPT, TOKENS)
        assert page.console == []


def test_where_a_worker_has_no_webgl2_the_page_computes(
    browse: Callable[[], Browsed], first: ChatSite, tmp_path: Path
) -> None:
    site = shutil.copytree(first.folder, tmp_path / "site")
    worker = site / "page" / "worker.js"
    none = "OffscreenCanvas.prototype.getContext = () => null;"
    worker.write_text(worker.read_text().replace("serveWorker(new", f"{none}\nserveWorker(new"))
    page = browse()
    with serving(site) as url:
        opened(page, url, ONLINE)  # no page is kept whose files are others
        assert page.do("evaluate", "Boolean(glinfer.model.worker)") is False
        assert written(page) == first.reply(PROMPT, TOKENS)


def test_a_lost_context_is_told(browse: Callable[[], Browsed], first: ChatSite, tmp_path: Path) -> None:
    site = shutil.copytree(first.folder, tmp_path / "site")
    worker = site / "page" / "worker.js"
    worker.write_text(worker.read_text().replace("serveWorker(new", f"{LOSES}\nserveWorker(new"))
    page = browse()
    with serving(site) as url:
        opened(page, url, ONLINE)  # no page is kept whose files are others
        page.do("evaluate", "new BroadcastChannel('lose').postMessage(1)")
        page.do("says", "#status", "The model was lost and has been loaded again.")
        assert page.do("evaluate", "glinfer.errors") == [
            "The browser dropped the graphics context, and the model with it."
        ]
        assert page.do("evaluate", "document.getElementById('send').disabled") is False


def test_a_script_has_the_model_in_a_worker(browse: Callable[[], Browsed], first: ChatSite, tmp_path: Path) -> None:
    with glinfer.load(first.path) as model:
        pieces = "".join(model.stream(PROMPT, max_tokens=TOKENS, temperature=0))
        reply = str(model.chat(PROMPT, max_tokens=TOKENS, temperature=0.8, seed=5))
        assert model.tokenizer is not None
        ids = model.tokenizer.encode(PROMPT)
    script = (
        """(async (here) => {
      const { load } = await import("./glinfer/remote.js");
      const told = [];
      const model = await load(".", { onProgress: ({ part, done, all }) => told.push([part, done / all]) });
      const { threaded, context } = model;
      const found = { threaded, context, text: "", ids: await model.encode(here.prompt) };
      const greedy = { maxTokens: here.tokens, temperature: 0 };
      for await (const piece of model.stream(here.prompt, greedy)) found.text += piece;
      const guessed = await model.chat(here.prompt, { ...greedy, speculate: "ngram" });
      found.same = guessed.text === (await model.chat(here.prompt, greedy)).text;
      found.guessed = [guessed.drafted, guessed.accepted].every(Number.isInteger);
      found.reply = (await model.chat(here.prompt, { maxTokens: here.tokens, temperature: 0.8, seed: 5 })).text;
      found.stopped = 0;
      const ends = new AbortController();
      for await (const id of model.streamIds([1, 2], { maxTokens: 1000, signal: ends.signal })) {
        if (id >= 0 && ++found.stopped === 3) ends.abort();
      }
      found.checked = (await model.verifyTextures()).ok;
      found.error = await model.embed(["a"]).catch(({ name, message }) => `${name}: ${message}`);
      found.parts = [...new Set(told.filter(([, share]) => share === 1).map(([part]) => part))].sort();
      await model.release();
      return found;
    })("""
        + json.dumps({"prompt": PROMPT, "tokens": TOKENS})
        + ")"
    )
    site = shutil.copytree(first.folder, tmp_path / "site")
    (site / "mine.html").write_text(MINE)
    page = browse()
    with serving(site) as url:
        page.do("open", f"{url}mine.html")
        found = page.do("evaluate", script)
    assert found == {
        "threaded": True,
        "context": 64,
        "text": pieces,
        "ids": ids,
        "same": True,
        "guessed": True,
        "reply": reply,
        "stopped": 3,
        "checked": True,
        "error": "GlinferError: this model continues texts, and has no embed",
        "parts": ["plan", "programs", "shaders", "weights"],
    }


def test_several_files_of_weights(
    browse: Callable[[], Browsed], monkeypatch: pytest.MonkeyPatch, first: ChatSite, tmp_path: Path
) -> None:
    monkeypatch.setattr("glinfer.export.weights.MAX_SITE_FILE_BYTES", 20_000)
    site = export_web(first.path, tmp_path / "site").folder
    one, other, *more = sorted(site.glob("weights-*.safetensors"))
    assert more
    page = browse()
    with serving(site) as url:
        opened(page, url, ONLINE)
        assert written(page) == first.reply(PROMPT, TOKENS)
        page.do("evaluate", "document.getElementById('inside').open = true")
        page.do("click", "#check")
        page.do("says", "#checked", "all identical")
        shutil.copy(one, other)
        page.do("click", "#check")
        page.do("says", "#problem", "changed since they were loaded")


@pytest.fixture(scope="module")
def package(node: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The npm package."""
    folder = tmp_path_factory.mktemp("npm") / "made"
    made = subprocess.run([node, str(WEB / "tools" / "package.mjs"), str(folder)], capture_output=True, text=True)
    if "run: npm ci" in made.stderr:
        pytest.skip(made.stderr.strip())
    assert made.returncode == 0, made.stderr
    return folder


def test_the_npm_package_runs_sites_of_both_kinds(
    browse: Callable[[], Browsed], package: Path, first: ChatSite, tmp_path: Path
) -> None:
    """The one that chats in a worker, and the one that embeds without."""
    write_embedder(tmp_path / "bert", prompts={"query": "find: "})
    site = shutil.copytree(first.folder, tmp_path / "site")
    export_web(tmp_path / "bert", site / "vectors", limits="webgl2")
    shutil.copytree(package, site / "package")
    (site / "mine.html").write_text(MINE)
    texts = list(TEXTS[:3])
    with glinfer.load(tmp_path / "bert") as model:
        vectors = model.embed(texts, normalize=True)
        ranked = model.rerank(texts[0], texts)
    script = """(async (here) => {
      const { forget, load, GlinferError } = await import("./package/index.js");
      const model = await load(".");
      const found = { threaded: [model.threaded] };
      found.reply = (await model.chat(here.prompt, { maxTokens: here.tokens, temperature: 0 })).text;
      found.unknown = await model.chat("Hi", { maxToken: 5 }).catch(({ message }) => message);
      const stopped = model.stream("Hi", { stopIds: 13 })[Symbol.asyncIterator]();
      found.foreign = await model.chat("Hi", { stopIds: [1] }).catch(({ message }) => message);
      found.signal = await model.chat("Hi", { signal: "x" }).catch(({ message }) => message);
      const outside = model.stream("Hi", { stopIds: [-1] })[Symbol.asyncIterator]();
      found.outside = await outside.next().catch(({ message }) => message);
      found.stops = await stopped.next().catch(({ message }) => message);
      await model.release();
      found.misspelt = await load("vectors", { onprogress: console.log }).catch(({ message }) => message);
      const other = await load("vectors", { worker: false });
      found.threaded.push(other.threaded);
      found.vectors = (await other.embed(here.texts, { normalize: true })).map((vector) => Array.from(vector));
      found.ranked = (await other.rerank(here.texts[0], here.texts)).map(({ index }) => index);
      found.error = await other.chat("Hi").catch((error) => error instanceof GlinferError && error.message);
      found.nothing = await other.embed([null]).catch(({ message }) => message);
      found.aborts = await other.embed(["a"], { signal: 5 }).catch(({ message }) => message);
      found.switch = await other.embed(["a"], { normalize: "yes" }).catch(({ message }) => message);
      found.mistyped = await other.embed(["a"], { dimension: 4 }).catch(({ message }) => message);
      await other.release();
      await forget("vectors");
      found.gone = await other.embed(["a"]).then(() => "", ({ message }) => message);
      found.none = await load("nowhere/").catch(({ message }) => message);
      return found;
    })("""
    given = {"prompt": PROMPT, "tokens": TOKENS, "texts": texts}
    page = browse()
    with serving(site) as url:
        page.do("open", f"{url}mine.html")
        found = page.do("evaluate", script + json.dumps(given) + ")")
    assert found["threaded"] == [True, False]
    assert found["reply"] == first.reply(PROMPT, TOKENS)
    np.testing.assert_allclose(found["vectors"], vectors, atol=1e-5)
    assert found["ranked"] == [each.index for each in ranked]
    assert found["unknown"].startswith("unknown option maxToken; known: maxTokens, ")
    assert found["foreign"].startswith("unknown option stopIds; ")
    assert found["foreign"].count("stopIds") == 1
    assert found["signal"] == 'signal is "x"; expected that of an AbortController'
    assert found["stops"] == "stopIds is 13; expected an array of token ids"
    assert found["outside"].startswith("found the token -1; expected integers from 0 to ")
    assert found["mistyped"].startswith("unknown option dimension; known: promptName, ")
    assert found["misspelt"].startswith("unknown option onprogress; known: worker, onLost, ")
    assert found["aborts"] == "signal is 5; expected that of an AbortController"
    assert found["switch"] == 'normalize is "yes"; expected true or false'
    assert found["nothing"] == "text 0 is null; expected a string, or token ids"
    assert found["error"] == "this model embeds texts, and has no chat"
    assert found["gone"]
    assert found["none"] == f"{url}nowhere/plan.json could not be loaded: the server answered 404"
