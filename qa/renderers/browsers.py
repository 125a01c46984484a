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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from glinfer.export.serve import address, site_server
from glinfer.export.site import export_web, web_root
from qa.renderers import cells
from qa.renderers.cells import Cell
from qa.renderers.environments import MissingError
from qa.renderers.operations import OPERATIONS, browser_jobs, digest
from qa.renderers.table import Renderer

_TIMEOUT = 600  # seconds for one site
_GREEDY = 12
_GAB = "tiny"


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
    node, browser = find_browser(renderer)
    goldens, written, verified, bits, count = list[float](), list[bool](), 0, dict[str, str](), 0
    with tempfile.TemporaryDirectory(prefix="glinfer-renderers-") as folder:
        for name in (_GAB, "shakespeare", *cells.FAMILIES):
            path = name if name == "shakespeare" else cells.golden_file(name)
            made = export_web(path, Path(folder) / name, plan="reference" if name == _GAB else "fast")
            jobs = _jobs(name, renderer, texts)
            output = _drive(node, browser, renderer, made.folder, [*jobs, {"kind": "verify"}])
            if name == _GAB:
                yield {"renderer": output["renderer"]}
                if not all(words in output["renderer"] for words in renderer.expects):
                    return
            *results, verify = output["results"]
            for job, found in zip(jobs, results, strict=True):
                if job["kind"] == "draw":
                    named = list(OPERATIONS)[len(bits)]
                    bits[named] = digest(np.array(found["bits"], np.uint32))
                elif "golden" in job:
                    goldens.append(_golden_error(name, found))
                else:
                    written.append(found["ids"] == list(job["expected"]))
            (report,) = verify["reports"]
            verified += report.get("ok") is True
            count += report.get("checked", {}).get("textures", 0)
    yield asdict(Cell("operations", True, "", bits))
    yield asdict(Cell("goldens", max(goldens) <= 1, f"{len(goldens)} models, at {max(goldens):.0%} of the tolerance"))
    yield asdict(Cell("texts", all(written), f"{sum(written)} of {len(written)}"))
    yield asdict(Cell("draws", verified == 4, f"{count} textures by the page, {verified} of 4 models"))


def _jobs(name: str, renderer: Renderer, texts: Mapping[str, Sequence[Sequence[int]]]) -> list[dict[str, Any]]:
    """Jobs of web/tests/browser/drive.mjs for one site; keys that it does not know are for :func:`check_browser`."""
    if name == _GAB:
        return [{"kind": "logits", "ids": cells.gab_record(name)["tokens"], "golden": True}, *browser_jobs()]
    jobs: list[dict[str, Any]] = []
    if name in cells.FAMILIES:
        ids = cells.figures_of(name).ids[: cells.GIVEN]
        jobs.append({"kind": "greedy", "ids": ids, "count": _GREEDY, "logits": 1, "golden": True})
    if texts:
        ids = cells.prompt_of(name)
        drawn = {"kind": "drawn", "temperature": cells.TEMPERATURE, "seed": cells.SEED}
        forms: list[dict[str, Any]] = [{"kind": "greedy"}, drawn]
        for form, text in zip(forms, texts[name], strict=True):
            expected = text[: renderer.tokens]
            jobs.append({**form, "ids": ids, "count": len(expected), "expected": expected})
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


def _drive(
    node: str, browser: str, renderer: Renderer, site: Path, jobs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Run jobs in the page of a site; errors are those of :func:`check_browser`."""
    driver = web_root() / "tests" / "browser" / "drive.mjs"
    with serving(site) as url:
        asked = {"url": f"{url}?worker=0", "jobs": jobs, "browser": renderer.browser, "flags": renderer.flags}
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
        if found[key]:
            raise RuntimeError(f"{key}: {found[key][0]}")
    return found
