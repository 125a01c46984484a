"""Visits of a site in Chromium: what is asked of the server, what is kept, and the worker that computes."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsed import WEB, Browsed
from tiny_embedders import TEXTS, write_embedder

import glinfer
from glinfer.config import ModelConfig
from glinfer.engine.random_model import demo_tokenizer
from glinfer.export import serve
from glinfer.export.site import export_web
from glinfer.formats import random_checkpoint, save_checkpoint, write_bpe
from qa.renderers.browsers import serving

pytestmark = [pytest.mark.gl, pytest.mark.web]

CONFIG = ModelConfig.from_options("blocks=2,heads=2,dim=32,vocab=300,context=64")
PROMPT = "Once upon a time"
TOKENS = 8
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
def browse(chromium: str, node: str) -> Iterator[Callable[[], Browsed]]:
    """Open browsers, each with nothing kept."""
    opened = []

    def made() -> Browsed:
        opened.append(Browsed(node, chromium))
        return opened[-1]

    yield made
    for each in opened:
        each.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What servers of sites were asked for, and the status of the answer."""
    found: list[tuple[str, int]] = []

    def log(self: Any, code: Any = "-", *_: Any) -> None:
        found.append((self.path.split("?")[0], int(code)))

    monkeypatch.setattr(serve._Handler, "log_request", log)
    return found


def exported(folder: Path, seed: int = 3) -> Path:
    """A small model with Gab's chat form, and its site."""
    path = folder / f"model{seed}.gab"
    save_checkpoint(random_checkpoint(CONFIG, seed=seed), path)
    write_bpe(demo_tokenizer(CONFIG.vocab_size), path.with_suffix(".bpe"))
    export_web(path, folder / "site")
    return path


def reply_in_python(path: Path, tokens: int = TOKENS) -> str:
    with glinfer.load(path) as model:
        return str(model.chat(PROMPT, max_tokens=tokens, temperature=0))


# Ends when the files that open the page without a server are kept.
KEEPS = """(async () => {
  for (;;) {
    const { active } = (await navigator.serviceWorker.getRegistration()) ?? {};
    if (active?.state === "activated" && active.scriptURL.endsWith(glinfer.plan.offline.version)) return true;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
})()"""


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
    browse: Callable[[], Browsed], asked: list[tuple[str, int]], tmp_path: Path
) -> None:
    first = exported(tmp_path)
    page = browse()
    with serving(tmp_path / "site") as url:
        opened(page, url)
        assert page.do("evaluate", "glinfer.model.worker") is True
        once = large(asked)
        assert {"/weights.safetensors", "/tokenizer.json"} <= set(once)
        assert written(page) == reply_in_python(first)
        (name,) = caches_of(page)
        opened(page, url)
        assert asked.count(("/plan.json", 200)) + asked.count(("/plan.json", 304)) == 1
        assert large(asked) == []
        assert caches_of(page) == [name]
        assert written(page) == reply_in_python(first)
        opened(page, url, "?cache=0")
        assert sorted(large(asked)) == sorted(once)
        second = exported(tmp_path, seed=4)  # another export at the same address
        opened(page, url)
        assert "/weights.safetensors" in large(asked)
        assert written(page) == reply_in_python(second) != reply_in_python(first)
        (other,) = caches_of(page)
        assert other != name
        assert page.console == []


def test_a_page_opens_again_without_its_server(browse: Callable[[], Browsed], tmp_path: Path) -> None:
    first, site = exported(tmp_path), tmp_path / "site"
    page = browse()
    with serving(site) as url:
        opened(page, url)
    for query in ("", "?worker=0"):
        opened(page, url, query)
        assert bool(page.do("evaluate", "Boolean(glinfer.model.worker)")) == (query == "")
        assert written(page) == reply_in_python(first)
    version = page.do("evaluate", "glinfer.plan.offline.version")
    second, port = exported(tmp_path, seed=4), int(url.split(":")[2].strip("/"))
    with serving(site, port):  # there is another export now, of which the page that is open sees nothing
        assert (
            page.do("evaluate", "fetch('plan.json').then((plan) => plan.json()).then((plan) => plan.offline.version)")
            == version
        )
        opened(page, url)
        assert written(page) == reply_in_python(second) != reply_in_python(first)
        (kept,) = caches_of(page, "glinfer-offline ")
        assert not kept.endswith(version)
    opened(page, url)
    assert written(page) == reply_in_python(second)
    with serving(site, port):
        opened(page, url, "?offline=0")
        assert page.do("evaluate", "navigator.serviceWorker.getRegistrations().then((all) => all.length)") == 0
        assert caches_of(page, "glinfer-offline") == []
        assert len(caches_of(page)) == 1  # of weights
    with pytest.raises(AssertionError, match="ERR_CONNECTION_REFUSED"):
        page.do("open", url)


def test_a_search_page_opens_again_without_its_server(browse: Callable[[], Browsed], tmp_path: Path) -> None:
    write_embedder(tmp_path / "m")
    site = export_web(tmp_path / "m", tmp_path / "site", limits="webgl2").folder
    script = f"glinfer.model.embed({json.dumps(list(TEXTS[:3]))}).then((all) => all.map((each) => Array.from(each)))"
    with glinfer.load(tmp_path / "m") as model:
        vectors = model.embed(list(TEXTS[:3]))
    page = browse()
    with serving(site) as url:
        opened(page, url)
        found = page.do("evaluate", script)
    page.do("open", url)
    page.do("says", "#status", "Ready.")
    assert page.do("evaluate", script) == found
    np.testing.assert_allclose(found, vectors, atol=1e-5)


# Before a page's own scripts: it is one that nobody sees, whose timers come in an hour.
HIDDEN = """
Object.defineProperty(document, "hidden", { get: () => true });
const later = setTimeout;
globalThis.setTimeout = (act, pause) => later(act, pause && 3_600_000);
"""


def test_two_tabs_write_at_the_same_time_one_of_them_in_the_background(
    browse: Callable[[], Browsed], tmp_path: Path
) -> None:
    path, page, tokens = exported(tmp_path), browse(), 40
    with serving(tmp_path / "site") as url:
        opened(page, url)
        page.do("before", HIDDEN)
        page.do("tab", 1)
        opened(page, url, "?worker=0")
        send(page, tokens)
        page.do("tab", 0)
        send(page, tokens)
        first = answer_of(page)
        page.do("tab", 1)
        assert [first, answer_of(page)] == [reply_in_python(path, tokens)] * 2
        assert page.console == []


def test_weights_of_another_export_are_refused(browse: Callable[[], Browsed], tmp_path: Path) -> None:
    exported(tmp_path)
    plan = (tmp_path / "site" / "plan.json").read_text()
    exported(tmp_path, seed=4)
    (tmp_path / "site" / "plan.json").write_text(plan)
    page = browse()
    with serving(tmp_path / "site") as url:
        page.do("open", url)
        page.do("says", "#problem", "Weights.safetensors cannot be read: it is not the file that plan.json was written")


@pytest.mark.parametrize("query", ["", "?worker=0"], ids=["worker", "page"])
def test_pictures_checks_and_stop(browse: Callable[[], Browsed], tmp_path: Path, query: str) -> None:
    path = exported(tmp_path)
    page = browse()
    with serving(tmp_path / "site") as url:
        opened(page, url, query)
        threaded = bool(page.do("evaluate", "Boolean(glinfer.model.worker)"))
        assert threaded == (query == "")
        assert written(page) == reply_in_python(path)
        label = page.do("evaluate", "picture.getAttribute('aria-label')")
        assert label.startswith("Attention of block 0: 2 lines over ")
        page.do("evaluate", "document.getElementById('inside').open = true")
        page.do("click", "#check")
        page.do("says", "#checked", "all identical")
        page.do("evaluate", STOPS)
        page.do("fill", "#length", "40")
        page.do("fill", "#message", PROMPT)
        page.do("press", "#message", "Enter")
        page.do("says", "#status", "Stopped.")
        page.do("click", "#clear")
        assert written(page) == reply_in_python(path)
        assert page.console == []


@pytest.mark.parametrize("broken", ["missing", "without WebGL2"])
def test_where_no_worker_can_compute_the_page_does(browse: Callable[[], Browsed], tmp_path: Path, broken: str) -> None:
    path = exported(tmp_path)
    worker = tmp_path / "site" / "page" / "worker.js"
    if broken == "missing":
        worker.unlink()
    else:
        none = "OffscreenCanvas.prototype.getContext = () => null;"
        worker.write_text(worker.read_text().replace("serveWorker(new", f"{none}\nserveWorker(new"))
    page = browse()
    with serving(tmp_path / "site") as url:
        opened(page, url, "?offline=0")  # no page is kept whose files are others
        assert page.do("evaluate", "Boolean(glinfer.model.worker)") is False
        assert written(page) == reply_in_python(path)


def test_a_lost_context_is_told(browse: Callable[[], Browsed], tmp_path: Path) -> None:
    exported(tmp_path)
    worker = tmp_path / "site" / "page" / "worker.js"
    worker.write_text(worker.read_text().replace("serveWorker(new", f"{LOSES}\nserveWorker(new"))
    page = browse()
    with serving(tmp_path / "site") as url:
        opened(page, url, "?offline=0")  # no page is kept whose files are others
        page.do("evaluate", "new BroadcastChannel('lose').postMessage(1)")
        page.do("says", "#status", "The model was lost, and is ready again.")
        assert page.do("evaluate", "glinfer.errors") == [
            "The browser took the graphics context away, and the model with it."
        ]
        assert page.do("evaluate", "document.getElementById('send').disabled") is False


def test_a_script_has_the_model_in_a_worker(browse: Callable[[], Browsed], tmp_path: Path) -> None:
    path = exported(tmp_path)
    with glinfer.load(path) as model:
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
    page = browse()
    with serving(tmp_path / "site") as url:
        page.do("open", f"{url}?worker=0")
        page.do("says", "#status", "Ready.")
        found = page.do("evaluate", script)
    assert found == {
        "threaded": True,
        "context": CONFIG.max_position_embeddings,
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
    browse: Callable[[], Browsed], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("glinfer.export.weights.MAX_SITE_FILE_BYTES", 20_000)
    path = exported(tmp_path)
    assert len(list((tmp_path / "site").glob("weights-*.safetensors"))) > 2
    page = browse()
    with serving(tmp_path / "site") as url:
        opened(page, url)
        assert written(page) == reply_in_python(path)
        page.do("evaluate", "document.getElementById('inside').open = true")
        page.do("click", "#check")
        page.do("says", "#checked", "all identical")
        spoilt = sorted((tmp_path / "site").glob("weights-*.safetensors"))[1]
        shutil.copy(sorted((tmp_path / "site").glob("weights-*.safetensors"))[0], spoilt)
        page.do("click", "#check")
        page.do("says", "#problem", "no longer those that were loaded")


@pytest.fixture(scope="module")
def package(node: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The npm package, unpacked from its archive."""
    folder = tmp_path_factory.mktemp("npm")
    command = [node, str(WEB / "tools" / "package.mjs"), str(folder / "made")]
    made = subprocess.run(command, check=False, capture_output=True, text=True)
    if made.stdout.startswith("skipped"):
        pytest.skip(made.stdout.strip())
    assert made.returncode == 0, made.stderr
    quiet = ["--offline", "--ignore-scripts", "--loglevel=error", "--pack-destination", str(folder)]
    subprocess.run(["npm", "pack", *quiet], cwd=folder / "made", check=True, capture_output=True)
    (archive,) = folder.glob("glinfer-*.tgz")
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    return folder / "package"


@pytest.mark.parametrize("threaded", [True, False], ids=["worker", "page"])
def test_the_npm_package_runs_sites_of_both_kinds(
    browse: Callable[[], Browsed], package: Path, tmp_path: Path, threaded: bool
) -> None:
    path = exported(tmp_path)
    write_embedder(tmp_path / "bert", prompts={"query": "find: "})
    export_web(tmp_path / "bert", tmp_path / "vectors", limits="webgl2")
    site = tmp_path / "site"
    shutil.copytree(package, site / "package")
    shutil.copytree(tmp_path / "vectors", site / "vectors")
    (site / "mine.html").write_text('<!DOCTYPE html><link rel="icon" href="data:,"><title>mine</title>')
    texts = list(TEXTS[:3])
    with glinfer.load(tmp_path / "bert") as model:
        vectors = model.embed(texts, normalize=True)
        ranked = model.rerank(texts[0], texts)
    script = """(async (here) => {
      const { load, GlinferError } = await import("./package/index.js");
      const options = { worker: here.threaded };
      const model = await load(".", options);
      const found = { threaded: model.threaded };
      found.reply = (await model.chat(here.prompt, { maxTokens: here.tokens, temperature: 0 })).text;
      await model.release();
      const other = await load("vectors/", options);
      found.vectors = (await other.embed(here.texts, { normalize: true })).map((vector) => Array.from(vector));
      found.ranked = (await other.rerank(here.texts[0], here.texts)).map(({ index }) => index);
      found.error = await other.chat("Hi").catch((error) => error instanceof GlinferError && error.message);
      await other.release();
      found.gone = await other.embed(["a"]).then(() => "", ({ message }) => message);
      found.none = await load("nowhere/", options).catch(({ message }) => message);
      return found;
    })("""
    given = {"prompt": PROMPT, "tokens": TOKENS, "texts": texts, "threaded": threaded}
    page = browse()
    with serving(site) as url:
        page.do("open", f"{url}mine.html")
        found = page.do("evaluate", script + json.dumps(given) + ")")
    assert found["threaded"] is threaded
    assert found["reply"] == reply_in_python(path)
    np.testing.assert_allclose(found["vectors"], vectors, atol=1e-5)
    assert found["ranked"] == [each.index for each in ranked]
    assert found["error"] == "this model embeds texts, and has no chat"
    assert "released" in found["gone"] or not threaded
    assert found["none"] == "plan.json could not be loaded: the server answered 404"
