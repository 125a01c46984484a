"""The checks of a browser: sites of the models of the matrix, whose page has to compute what Python does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import glinfer
from glinfer.config import ModelConfig
from glinfer.export.drop import export_drop
from glinfer.export.serve import address, site_server
from glinfer.export.site import export_web, web_root
from glinfer.formats import random_checkpoint, save_checkpoint
from qa.renderers import cells
from qa.renderers.environments import MissingError
from qa.renderers.operations import OPERATIONS, browser_jobs, digest
from qa.renderers.table import Cell, Renderer
from tests.goldens.gguf_models import byte_level
from tests.goldens.given import CHATML

_TIMEOUT = 600  # seconds for one site
_GREEDY = 12
_GAB, _BUNDLED = "tiny", "shakespeare"
_SITES = (_BUNDLED, *cells.BARE)
"""Models whose pages run with extensions, and without."""
_TIMED = 100
"""Tokens of the text that is timed."""


def find_browser(renderer: Renderer) -> tuple[str, str]:
    """Node.js, and the program of the browser.

    Raises:
        MissingError: one of them, or what they need, is not here.
    """
    node, browser = shutil.which("node"), next(filter(None, map(shutil.which, renderer.browsers)), None)
    advice = f"sudo apt-get install {' '.join(renderer.packages)}"
    if browser is None:
        raise MissingError(f"there is no {renderer.browsers[0]}; {advice}")
    if node is None:
        raise MissingError("there is no Node.js; install 20.19 or newer")
    if not (web_root() / "node_modules" / "playwright-core").is_dir():
        raise MissingError("playwright-core is missing; npm ci --ignore-scripts --prefix web")
    if "xvfb" in renderer.packages and shutil.which("Xvfb") is None:
        raise MissingError(f"this browser has no WebGL without a display; {advice}")
    return node, browser


def check_browser(renderer: Renderer, texts: Mapping[str, Sequence[Sequence[int]]]) -> Iterator[Mapping[str, Any]]:
    """Run all checks; yields what a process of :mod:`qa.renderers.cells` prints.

    Args:
        renderer: a browser of the matrix.
        texts: those of the first renderer.

    Raises:
        MissingError: the browser, or what it needs, is not here.
        RuntimeError: a page failed; the message says how.
    """
    drive = partial(_drive, *find_browser(renderer), renderer)
    found = Found()
    # WebKit's scripts may begin after the page's own.
    bare_query = "minimum=1" if renderer.browser == "webkit" else "extensions=0"
    with tempfile.TemporaryDirectory(prefix="glinfer-renderers-") as folder:
        for name in (_GAB, *_SITES):
            path = name if name == _BUNDLED else cells.golden_file(name)
            site = export_web(path, Path(folder) / name, plan="reference" if name == _GAB else "fast").folder
            jobs = _jobs(name, renderer, texts)
            output = drive(site, "worker=0", jobs=[*jobs, {"kind": "verify"}])
            if name == _GAB:
                yield {"renderer": output["renderer"]}
                if not all(words in output["renderer"] for words in renderer.expects):
                    return
            found.add(name, jobs, output["results"])
            if name != _GAB:
                bare = drive(site, f"worker=0&{bare_query}", jobs=jobs)
                if bare["computes"]["floats"]:
                    raise RuntimeError("the page renders to floats without the extension for it")
                found.add_bare(name, jobs, bare["results"], output["results"])
        for site, form, answer in _forms(Path(folder)):
            shown = [drive(site, query, **form)["shown"] for query in ("cache=0", "cache=0&minimum=1")]
            found.forms += [each["answer"] == answer for each in shown]
            found.workers += [each["worker"] for each in shown]
    yield from map(asdict, found.cells())


@dataclass
class Found:
    """What the pages of a browser computed, of what they had to."""

    bits: dict[str, str] = field(default_factory=dict)
    goldens: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    written: list[bool] = field(default_factory=list)
    forms: list[bool] = field(default_factory=list)
    workers: list[bool] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    verified: list[bool] = field(default_factory=list)
    textures: int = 0

    def add(self, name: str, jobs: Sequence[Mapping[str, Any]], results: Sequence[Mapping[str, Any]]) -> None:
        """What the jobs of a site gave, and a check of its textures after them."""
        (report,) = results[-1]["reports"]
        self.verified.append(report.get("ok") is True)
        self.textures += report.get("checked", {}).get("textures", 0)
        for job, result in zip(jobs, results[:-1], strict=True):
            if job["kind"] == "draw":
                self.bits[list(OPERATIONS)[len(self.bits)]] = digest(np.array(result["bits"], np.uint32))
            else:
                self._compare(name, job, result, self.goldens)

    def add_bare(self, name: str, jobs: Sequence[Mapping[str, Any]], *results: Sequence[Mapping[str, Any]]) -> None:
        """What the same jobs gave without extensions, and what with them."""
        for job, result, plain in zip(jobs, *results, strict=False):
            self._compare(name, job, result, self.bare)
            if result.get("logits") != plain.get("logits"):
                self.other.append(name)

    def _compare(self, name: str, job: Mapping[str, Any], result: Mapping[str, Any], goldens: list[float]) -> None:
        if "golden" in job:
            goldens.append(_golden_error(name, result))
            return
        expected = list(job["expected"])
        self.written.append(result["ids"][: len(expected)] == expected)
        if job["count"] == _TIMED:
            self.milliseconds.append(result["milliseconds"] / _TIMED)

    def cells(self) -> Iterator[Cell]:
        """A cell for each check."""
        yield Cell("operations", True, "", self.bits)
        for check, errors in (("goldens", self.goldens), ("bare", self.bare)):
            words = f"{len(errors)} models, at {max(errors):.0%} of the tolerance"
            if check == "bare" and self.other:
                words += f"; other bits than with float targets: {', '.join(self.other)}"
            yield Cell(check, max(errors) <= 1, words)
        words = f"{sum(self.written)} of {len(self.written)}"
        if self.milliseconds:
            plain, bare = self.milliseconds
            words += f", {_BUNDLED} at {plain:.1f} ms a token, {bare:.1f} without extensions"
        words += f"; by the form {sum(self.forms)} of {len(self.forms)}, {sum(self.workers)} of them in a worker"
        yield Cell("texts", all(self.written + self.forms), words)
        passed = sum(self.verified)
        words = f"{self.textures} textures by the page, {passed} of {len(self.verified)} models"
        yield Cell("draws", all(self.verified), words)


def _forms(folder: Path) -> Iterator[tuple[Path, dict[str, Any], str]]:
    """Sites, what to send to them by the form of their page, and Python's answer; the second opens a GGUF file."""
    asked: dict[str, Any] = {"text": "ROMEO:", "tokens": _GREEDY}
    with glinfer.load(_BUNDLED) as model:
        answer = model.generate(asked["text"], max_tokens=_GREEDY, temperature=0)
    yield folder / _BUNDLED, {"ask": asked}, answer
    words = {**byte_level("smollm"), "tokenizer.chat_template": CHATML}
    vocab = f"vocab={len(words['tokenizer.ggml.tokens'])}"
    config = ModelConfig.from_options(f"family=llama,blocks=2,heads=4,kv_heads=2,dim=64,inner=128,{vocab},context=96")
    path = folder / "model.gguf"
    save_checkpoint(random_checkpoint(config, 3), path, dtype="q8_0", tokenizer=words)
    with glinfer.load(path) as model:
        answer = model.chat(asked["text"], max_tokens=_GREEDY, temperature=0)
    site = export_drop(folder / "drop", context=96, shapes={"llama": config}).folder
    path.rename(site / path.name)
    yield site, {"drop": path.name, "ask": asked}, answer


def _jobs(name: str, renderer: Renderer, texts: Mapping[str, Sequence[Sequence[int]]]) -> list[dict[str, Any]]:
    """Jobs of web/tests/browser/drive.mjs for one site; keys that it does not know are for :class:`Found`."""
    if name == _GAB:
        return [{"kind": "logits", "ids": cells.gab_record(name)["tokens"], "golden": True}, *browser_jobs()]
    jobs: list[dict[str, Any]] = []
    if name in cells.BARE:
        ids = cells.figures_of(name).ids[: cells.GIVEN]
        jobs.append({"kind": "greedy", "ids": ids, "count": _GREEDY, "logits": 1, "golden": True})
    if name in texts:
        given, (greedy, drawn) = {"ids": cells.prompt_of(name)}, (text[: renderer.tokens] for text in texts[name])
        sampling = {"temperature": cells.TEMPERATURE, "seed": cells.SEED}
        jobs.append({"kind": "drawn", **given, "count": len(drawn), **sampling, "expected": drawn})
        count, options = _TIMED if name == _BUNDLED else len(greedy), {"temperature": 0, "stopIds": []}
        jobs.append({"kind": "stream", **given, "count": count, "options": options, "expected": greedy})
    return jobs


def _golden_error(name: str, found: Mapping[str, Any]) -> float:
    logits = np.array(found["logits"][0], np.float64)
    if name == _GAB:
        powers = np.exp(logits - logits.max())
        return cells.gab_error(cells.gab_record(name), powers / powers.sum())
    figures = cells.figures_of(name)
    if found["ids"] != figures.ids[cells.GIVEN :][:_GREEDY]:
        return float("inf")
    return figures.error(cells.GIVEN - 1, logits) / cells.OF_RANGE


@contextmanager
def serving(site: Path, port: int = 0) -> Iterator[str]:
    """The address of a site while it is served, on any free port where none is given."""
    with site_server(site, port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield address(server)
        finally:
            server.shutdown()
            thread.join()


def _drive(node: str, browser: str, renderer: Renderer, site: Path, query: str, **asked: Any) -> dict[str, Any]:
    """Run jobs in the page of a site, or use its form, see drive.mjs; errors are those of :func:`check_browser`."""
    driver = web_root() / "tests" / "browser" / "drive.mjs"
    with serving(site) as url:
        asked |= {"url": f"{url}?offline=0&{query}", "browser": renderer.browser, "flags": renderer.flags}
        done = subprocess.run(
            [node, "--experimental-websocket", str(driver), browser],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            env={**os.environ, **renderer.variables},
            timeout=_TIMEOUT,
            check=False,
        )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line] or done.stderr.splitlines() or [""]
        raise RuntimeError(lines[0].strip()[:300])
    found: dict[str, Any] = json.loads(done.stdout)
    for key in ("errors", "pageErrors", "glErrors"):
        if found.get(key):
            raise RuntimeError(f"{key}: {found[key][0]}")
    return found
