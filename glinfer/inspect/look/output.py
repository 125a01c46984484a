"""``glinfer look`` fills a folder with pictures of one run of a model, ``look.json`` and a page to browse them.

The folder changes only when everything is drawn; other files in it are kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from glinfer.engine.model import Model
from glinfer.engine.progress import Progress, no_progress
from glinfer.engine.report import plain
from glinfer.errors import InputError, required
from glinfer.formats import Checkpoint
from glinfer.formats.files import WORK_FOLDER, reason, shown, work_folder, writing
from glinfer.inspect.look.options import WEIGHTS, LookOptions, prompt_ids
from glinfer.inspect.pages import rendered
from glinfer.lower.plans import USUAL_TEXTURE_SIZE

FORMAT, VERSION = "glinfer-look", 1
"""``format`` and ``version`` in ``look.json``."""
DATA, PAGE = "look.json", "index.html"
_OWN_PICTURE = re.compile(r"[a-z]+/[a-z0-9-]+\.png")


def look(
    checkpoint: Checkpoint,
    folder: str | PathLike[str],
    options: LookOptions,
    *,
    model: Model | None = None,
    prompt: str | Sequence[int] | None = None,
    about: Mapping[str, Any] | None = None,
    max_texture_size: int = USUAL_TEXTURE_SIZE,
    force: bool = False,
    on_progress: Progress = no_progress,
) -> dict[str, Any]:
    """Draw pictures into a folder, with a page; returns the contents of ``look.json``.

    ``folder`` is new, empty, or the output of an earlier run; ``force`` allows other files in it, which are kept unless
    they have a picture's name. Unless only weights are drawn, ``model`` is the same model with its reference plan, and
    ``prompt`` a text or at most MAX_LOOK_TOKENS ids. ``about`` has further facts for the page, such as name and
    renderer, whose limit ``max_texture_size`` determines the layout of weights. ``on_progress`` receives (drawn
    pictures, pictures).

    Raises:
        InputError: matplotlib is missing, the folder is refused, or the text cannot be run.
        FormatError: a file cannot be written.
    """
    target = check_folder(folder, force=force)
    ids = prompt_ids(model, prompt) if model is not None and prompt is not None else []
    from glinfer.inspect.look.drawing import Drawing

    with filling(target) as new:
        drawing = Drawing(checkpoint, options, ids, None if model is None else model.tokenizer, new, on_progress)
        if model is not None:
            drawing.run(model)
        if WEIGHTS in options.what:
            drawing.weights(max_texture_size)
        facts = {
            "name": Path(checkpoint.source).name,
            "source": checkpoint.source,
            "config": checkpoint.config.to_dict(),
            "parameters": checkpoint.parameter_count,
            "renderer": None,
            **(about or {}),
        }
        text = prompt if isinstance(prompt, str) else None
        found = {"format": FORMAT, "version": VERSION, "model": facts, "text": text, **drawing.document()}
        document: dict[str, Any] = plain(found)
        (new / DATA).write_text(json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1), encoding="utf-8")
        (new / PAGE).write_text(page(document), encoding="utf-8")
    return document


def page(document: Mapping[str, Any]) -> str:
    """Render the page for the contents of ``look.json``, with embedded style and script and linked pictures."""
    return rendered("look.html.j2", scripts=["look.js"], styles=["look.css"], **document)


def check_folder(folder: str | PathLike[str], *, force: bool = False) -> Path:
    """Return the real path of a folder that can be created or filled.

    InputError if matplotlib is missing, it is a file, or without ``force`` if it has files of other origin.
    """
    required("matplotlib", "plots", "glinfer look needs")
    target = Path(os.path.realpath(folder))
    try:
        if not os.path.lexists(target):
            return target
        if not target.is_dir():
            raise InputError(f"{shown(folder)}: found a file; expected a folder to write into, or a new name")
        others = (each for each in target.iterdir() if not WORK_FOLDER.fullmatch(each.name))
        if force or not any(others) or earlier_pictures(target) is not None:
            return target
    except OSError as error:
        raise InputError(f"{shown(folder)}: cannot read this folder: {reason(error)}; check its permissions") from None
    raise InputError(
        f"{shown(folder)}: this folder has files that are not earlier output of 'glinfer look'; give a new or empty "
        "folder, or use --force to keep these files"
    )


def earlier_pictures(folder: Path) -> list[str] | None:
    """List the pictures of an earlier run by its ``look.json``; None without one."""
    try:
        found = json.loads((folder / DATA).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        return None
    pictures = found.get("pictures")
    entries = [each for each in pictures if isinstance(each, dict)] if isinstance(pictures, list) else []
    names = [each.get(key) for each in entries for key in ("file", "dark")]
    # The file is untrusted: remove only names that this module could have written.
    return [name for name in names if isinstance(name, str) and _OWN_PICTURE.fullmatch(name)]


@contextlib.contextmanager
def filling(target: Path) -> Iterator[Path]:
    """Yield a temporary folder, and move its files into ``target`` (made if missing) when the block ends.

    Files are renamed one by one, the page last; stale pictures of an earlier run are removed. When the block fails,
    ``target`` stays unchanged; an error of the operating system, such as a full disk, is a FormatError.
    """
    made = not target.exists()
    with writing(target, "check the folder, its permissions and the free space"):
        try:
            target.mkdir(parents=True, exist_ok=True)
            with work_folder(target) as new:
                yield new
                stale = set(earlier_pictures(target) or ())
                files = (path for path in new.rglob("*") if path.is_file())
                for path in sorted(files, key=lambda path: path.name in (DATA, PAGE)):
                    name = path.relative_to(new)
                    (target / name).parent.mkdir(exist_ok=True)
                    path.replace(target / name)
                    stale.discard(name.as_posix())
                for old in stale:
                    (target / old).unlink(missing_ok=True)
                    with contextlib.suppress(OSError):  # not empty, or missing
                        (target / old).parent.rmdir()
            made = False
        finally:
            if made:
                with contextlib.suppress(OSError):
                    target.rmdir()
