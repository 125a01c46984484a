"""Export a model as a folder of static files for browsers: page, runtime, shaders, plan and packed weights.

The export needs no OpenGL. Layouts respect the limits of nearly every browser, or WebGL2's minimum. Passes avoid
features that some browsers lack: float blending, points larger than a pixel, exact derivatives.
For ``plan.json`` see :mod:`glinfer.export.plan` and docs/web.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from glinfer.config import ModelConfig
from glinfer.engine.fetching import found_model
from glinfer.engine.loading import read_model
from glinfer.engine.report import plain
from glinfer.errors import FormatError, InputError, PlanError
from glinfer.export.card import licence_of
from glinfer.export.companions import companions_of
from glinfer.export.embedding import embedding_entry, exported_tokenizer
from glinfer.export.libraries import MARKDOWN, TOKENIZERS, library_files
from glinfer.export.page import NOTE, PAGE, single_file, site_files
from glinfer.export.plan import PlanExport
from glinfer.export.texts import TextSupport, continued_texts
from glinfer.export.weights import FORMAT, is_weights_file, write_weights
from glinfer.formats import Checkpoint
from glinfer.formats.files import opened, reason, shown, work_folder
from glinfer.gl.context import Limits
from glinfer.gl.program import shader_root
from glinfer.gl.signals import signals_held
from glinfer.hub import title_of
from glinfer.kernels.options import KernelOptions, default_kernels, without_blending
from glinfer.kernels.spec import Array
from glinfer.limits import MAX_SINGLE_FILE_BYTES
from glinfer.lower.fused.token import HEAD_DRAWS, PICKS
from glinfer.lower.options import PlanOptions
from glinfer.lower.plain.decoder import LOGITS, TOKENS
from glinfer.lower.plans import DEFAULT_PLAN, DEFAULT_WEIGHTS, check_choice, plan_for, weights_for, weights_named
from glinfer.lower.weights.recipe import Formats
from glinfer.program.plan import Plan
from glinfer.quant.formats import DEFAULT_CACHE

VERSION = 5
PLAN, TOKENIZER = "plan.json", "tokenizer.json"
LIMITS: Mapping[str, Limits] = {
    "usual": dataclasses.replace(Limits.webgl2_minimum(), max_texture_size=4096),
    "webgl2": Limits.webgl2_minimum(),
}
"""Limits for layouts: those of nearly every browser, or WebGL2's minimum."""
_TEXTS, _LIBRARY_TEXTS = "texts.js", "library_texts.js"
"""The module that gives the runtime its tokenizer, and its replacement for sites with libraries."""
ANSWERS, MARKDOWN_ANSWERS = "answers.js", "markdown_answers.js"
"""The module that shows answers, and its replacement for sites with the Markdown library."""
OFFLINE = "offline.js"
"""The service worker that opens the page without its server; a single-file site does not need it."""
_SITE = (PAGE, "app.js", "style.css", "page", "glinfer", _TEXTS, ANSWERS, OFFLINE)
_WORDS = ("text/charsmap.js", "text/library.js", "text/spaces.js", "text/steps.js")
_PAGE = ("page/elements.js", "page/offline.js", "page/theme.js")
_SEARCH = ("style.css", *_PAGE, "search", "embedding", "glinfer", _TEXTS, OFFLINE, *_WORDS)
_SEARCH_PAGE = "search/index.html"
"""Page of an embedding model's site, written as ``index.html``."""
_FETCH = "embedded.js"
_TEXT = "Once upon a time"
TOUR, TOUR_PAGE, _TOUR_SOURCE = "tour.json", "tour.html", "tour/index.html"
"""What the page of the tour needs to know of the site's model; the page, and where it comes from."""
SMALL_TOUR_PAGE = "small.html"
"""The tour of a second model for phones, in a folder of two tours."""
_OWN = {
    *_SITE,
    "drop",
    "programs",
    "tour",
    TOUR,
    TOUR_PAGE,
    SMALL_TOUR_PAGE,
    "choose.js",
    "search",
    "embedding",
    "text",
    "libraries",
    "shaders",
    PLAN,
    TOKENIZER,
}


@dataclass(frozen=True)
class ExportedSite:
    """A written site.

    Attributes:
        folder: its folder, or the page of a single file.
        bytes: total size of its files.
        draws: draws of one token, or of one run of an embedding model.
        plan: contents of ``plan.json``.
        notes: features of the model that the site lacks.
    """

    folder: Path
    bytes: int
    draws: int
    plan: dict[str, Any]
    notes: tuple[str, ...]


def web_root() -> Path:
    """Find the folder of the page and its runtime in the installed package, or next to it in a source checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "web", package.parent / "web"):
        if (folder / PAGE).is_file():
            return folder
    raise FormatError(f"the web page is missing: neither {package}/web nor {package.parent}/web has {PAGE}")


def web_kernels(weights: str = "f32") -> KernelOptions:
    """Choose kernel options for unknown browsers: those of GPUs, without features that some browsers lack.

    One tile, and lookups by texture(), reduce the time of blocks by a third on Chromium's software renderer.
    """
    able = without_blending(default_kernels("browser", 1.0, weights))
    return dataclasses.replace(able, quad=False, one_state=False, tiles=1, lookup_texture=True)


def export_web(
    path: str | PathLike[str],
    folder: str | PathLike[str],
    *,
    plan: str = DEFAULT_PLAN,
    weights: str = DEFAULT_WEIGHTS,
    cache: str = DEFAULT_CACHE,
    context: int | None = None,
    gelu: str | None = None,
    tokenizer: str | PathLike[str] | None = None,
    limits: str = "usual",
    kernels: KernelOptions | None = None,
    single: bool = False,
) -> ExportedSite:
    """Write a model as static files; ``folder`` appears, or is replaced, only when they are complete.

    The site of a model that generates text includes its tokenizer and chat form, see :mod:`glinfer.export.texts`. If
    the page does not support them, it accepts token ids, or generates text without chat, and a note gives the reason.
    The site of an embedding model is a search page with its ``tokenizer.json``.

    Args:
        path: the model's file or directory, or the name of a bundled model.
        folder: a new or empty folder, or an earlier export; with ``single`` also a name that ends in .html.
        plan, weights, cache, context, gelu, tokenizer: as in :func:`glinfer.load`.
        limits: a key of :data:`LIMITS`.
        kernels: kernel options; default: :func:`web_kernels`.
        single: write a single page that includes everything, which a browser opens as a file.

    Raises:
        InputError: ``folder`` is anything else, or ends in .html without ``single``; or the plan, weights or limits are
            unknown.
        PlanError: the model does not fit the textures.
        FormatError: the model or its tokenizer cannot be read, or the files cannot be written.
    """
    check_choice(plan, weights, cache)
    if limits not in LIMITS:
        raise InputError(f"there are no limits {limits!r}; expected one of {', '.join(LIMITS)}")
    target = Path(os.path.realpath(folder))
    page = is_page(target)
    if page and not single:
        raise InputError(f"{shown(target)}: found the name of a page; name a folder, or add --single-file")
    check_target(target)
    root = web_root()
    given, model = path, found_model(path)
    path, checkpoint = read_model(model, gelu=gelu, context=context)
    checkpoint.check_finite()
    weights = weights_named(weights, checkpoint.formats(), plan)
    embeds = checkpoint.config.embeds
    texts, notes = (_embedded_texts if embeds else continued_texts)(path, tokenizer, checkpoint)
    parts = site_parts(root, texts.libraries, embeds=embeds, tour=not (embeds or single))
    made, export = laid_out(
        checkpoint.config, checkpoint.formats(), plan, weights, cache, kernels or web_kernels(weights), LIMITS[limits]
    )
    size = made.texture_bytes(LIMITS[limits].max_texture_size, "weight")
    if single and size > MAX_SINGLE_FILE_BYTES:
        raise InputError(
            f"the weights take {size:,} bytes; a single file can hold {MAX_SINGLE_FILE_BYTES:,}; "
            "leave --single-file out, or keep them in fewer bits (--weights q8)"
        )
    about = {
        "name": title_of(path if path == model else given),  # not the folder that a zip file was unpacked into
        "plan": plan,
        "weights": weights,
        "cache": cache,
        **({"rewinds": made.rewinds} if made.rewinds else {}),
        **about_texts(path, texts),
    }
    values, order = plan_file(about, made, export, checkpoint.config, checkpoint.parameter_count)
    if embeds:
        values["embedding"] = {**texts.embedding, **embedding_entry(made, export, checkpoint.config)}
    with replacing(target, page=page) as new:
        write_page(new, parts, export.shaders, texts.tokenizer)
        digest = hashlib.sha256()
        for name in (TOKENIZER, *(f"shaders/{name}" for name in export.shaders)):
            if (new / name).is_file():
                digest.update(hashlib.sha256((new / name).read_bytes()).digest())
        # Browsers cache these files by the fingerprint in the plan, which they always request.
        values["files"] = write_weights(new, export, weights_for(checkpoint, plan, weights), order, digest)
        if TOUR_PAGE in parts:
            write_json(new / TOUR, {"text": starting_text(texts), "plans": {plan: {"points": points_of(made, export)}}})
        values["offline"] = None if single else offline_version(new, values)
        write_json(new / PLAN, values)
        if single:
            (new / OFFLINE).unlink()
            _make_single(new, root / _FETCH)
        written = bytes_in(new)
    return ExportedSite(target, written, len(made.draws), values, tuple(notes))


def about_texts(path: str | PathLike[str], texts: TextSupport) -> dict[str, Any]:
    """What ``model`` of ``plan.json`` says of texts and of the licence."""
    return {"tokenizer": texts.tokenizer is not None, "licence": licence_of(path), **texts.about}


def plan_file(
    about: Mapping[str, Any], plan: Plan, export: PlanExport, config: ModelConfig, parameters: int
) -> tuple[dict[str, Any], Array | None]:
    """Make the contents of ``plan.json`` and the order of the logits (None for embedding models)."""
    logits, order = export.logits(LOGITS) if LOGITS in plan.table else (None, None)
    values = {
        "format": FORMAT,
        "version": VERSION,
        "model": {
            **about,
            **({"long_after": plan.long_after} if plan.long_after else {}),
            "parameters": parameters,
            "draws_per_token": len(plan.draws),
            "config": config.to_dict(),
        },
        "driver": plan.name,
        **export.tables(),
        # Draws at the end (logits, pick), skipped for prompt tokens.
        "head_draws": HEAD_DRAWS if plan.name == "fast" else 0,
        "input": export.texture(TOKENS) if TOKENS in plan.table else None,
        "logits": logits,
        "picks": export.texture(PICKS) if PICKS in plan.table else None,
        "pictures": [] if logits is None else export.pictures(),
    }
    return values, order


def laid_out(
    config: ModelConfig,
    formats: Formats,
    plan: str,
    weights: str,
    cache: str,
    kernels: KernelOptions,
    limits: Limits,
    *,
    alone: bool = False,
) -> tuple[Plan, PlanExport]:
    """A plan with its companions, or ``alone``, laid out within limits."""
    try:
        size = limits.max_texture_size
        made = plan_for(
            config, plan, weights=weights, cache=cache, formats=formats, kernels=kernels, max_texture_size=size
        )
        options = PlanOptions(config, weights, kernels, size, formats, cache)
        companions = [] if alone or PICKS not in made.table else companions_of(options, made)
        return made, PlanExport(made, limits, companions)
    except PlanError as error:
        raise PlanError(
            f"this model does not fit a browser's textures: {error}; try a shorter --context, or --weights with "
            "fewer bits"
        ) from None


def _embedded_texts(
    path: str | PathLike[str], given: str | PathLike[str] | None, checkpoint: Checkpoint
) -> tuple[TextSupport, list[str]]:
    """The text support of an embedding model; arguments are those of :func:`continued_texts`."""
    tokenizer, embedding = exported_tokenizer(path, given, checkpoint)
    return TextSupport(tokenizer, {}, (TOKENIZERS,), embedding), []


def starting_text(texts: TextSupport, text: str | None = None) -> str:
    """The text that a tour starts with: the given one, or an example of the model."""
    return text or next(iter(texts.about["examples"]), _TEXT if texts.tokenizer else "1 2 3")


def points_of(plan: Plan, export: PlanExport) -> list[dict[str, Any]]:
    """The named values of a plan (:mod:`glinfer.program.points`), with numbers of draws and textures."""
    number = {draw.name: index for index, draw in enumerate(plan.draws)}
    return [
        {
            "name": point.name,
            "sites": [[number[draw], export.texture(tensor)] for draw, tensor in point.sites],
            "view": plain(dataclasses.asdict(point.view)),
            "last_only": point.last_only,
        }
        for point in plan.points.values()
    ]


def site_parts(root: Path, libraries: Sequence[str], *, embeds: bool, tour: bool) -> dict[str, Path]:
    """The files and folders of a site's page, by their path in the site."""
    if embeds:
        own = {PAGE: root / _SEARCH_PAGE, **{name: root / name for name in _SEARCH}}
    elif TOKENIZERS in libraries:
        own = {**{name: root / name for name in (*_SITE, "text")}, _TEXTS: root / _LIBRARY_TEXTS}
    else:
        own = {name: root / name for name in _SITE}
    if MARKDOWN in libraries:
        own[ANSWERS] = root / MARKDOWN_ANSWERS
    if tour:
        own |= {TOUR_PAGE: root / _TOUR_SOURCE, "tour": root / "tour"}
    return {**own, **library_files(root, libraries)}


def write_page(
    new: Path, parts: Mapping[str, Path], shaders: Iterable[str], tokenizer: Mapping[str, Any] | None = None
) -> None:
    """Write the page and its runtime, see :func:`site_parts`, the shaders, and the tokenizer if there is one."""
    for name, file in _page_files(parts):
        copy_file(file, new / name)
    for name in sorted(set(shaders)):
        copy_file(shader_root() / name, new / "shaders" / name)
    if tokenizer is not None:
        write_json(new / TOKENIZER, tokenizer)


def offline_version(site: Path, plan: Mapping[str, Any]) -> dict[str, Any]:
    """The files that open the page of a site, with their SHA-256, and a unique version of this export.

    The files exclude those that browsers cache by fingerprint, the plan and the service worker; the version depends on
    the last two as well.
    """
    files = site_files(site)
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files if _opens(name)}
    worker = (site / OFFLINE).read_bytes()
    named = json.dumps([plan, digests], ensure_ascii=False, sort_keys=True).encode()
    version = hashlib.sha256(worker + named).hexdigest()
    return {"version": version, "files": digests}


def _opens(name: str) -> bool:
    """Whether a file of a site belongs to its page."""
    return not (name in (TOKENIZER, PLAN, OFFLINE) or name.startswith("shaders/") or is_weights_file(name))


def _page_files(parts: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """The files of a site's page: path in the site, and source path."""
    for name, path in parts.items():
        if not path.is_dir():
            yield name, path
            continue
        for file in sorted(path.rglob("*")):
            inner = file.relative_to(path)
            hidden = any(part.startswith(".") for part in inner.parts)
            if file.is_file() and file.name != PAGE and not hidden:
                yield f"{name}/{inner.as_posix()}", file


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's bytes but not its permissions, which may be read-only in an installed package."""
    with opened(source) as (file, _):
        data = file.read()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON file without spaces."""
    path.write_text(json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":")), encoding="utf-8")


def bytes_in(folder: Path) -> int:
    """The size of all files in a folder."""
    return sum(path.stat().st_size for _, path in site_files(folder))


def _make_single(new: Path, fetch: Path) -> None:
    """Replace the files of a finished export by a page that embeds them."""
    page = single_file(new, fetch)
    for entry in new.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    with (new / PAGE).open("w", encoding="utf-8") as file:
        file.writelines(page)


def is_page(target: Path) -> bool:
    """Whether a path names a page, not a folder."""
    return target.suffix.lower() in (".html", ".htm")


def check_target(target: Path) -> None:
    """Check that an export may make or replace a folder, or a page."""
    if not os.path.lexists(target):
        if not target.parent.is_dir():
            raise InputError(f"{shown(target)}: there is no folder {shown(target.parent)}; make it, or name another")
        return
    advice = "name a new folder, or one that export-web has written"
    if is_page(target):
        if not target.is_file() or not is_export(target):
            found = "this page is not an earlier export" if target.is_file() else "found a folder"
            raise InputError(f"{shown(target)}: {found}; name a new page, or remove it")
        return
    if not target.is_dir():
        raise InputError(f"{shown(target)}: found a file; {advice}")
    entries = {entry.name for entry in target.iterdir()}
    if not entries:
        return
    if not is_export(target):
        raise InputError(f"{shown(target)}: this folder is not an earlier export; {advice}")
    if foreign := sorted(name for name in entries - _OWN if not is_weights_file(name)):
        raise InputError(f"{shown(target)}: found {foreign[0]!r} in the earlier export, which would be lost; {advice}")


def is_export(folder: Path) -> bool:
    """Whether :func:`export_web` has written a folder or a page."""
    try:
        if (folder / PLAN).is_file():
            found = json.loads((folder / PLAN).read_text(encoding="utf-8"))
            return isinstance(found, dict) and found.get("format") == FORMAT
        with (folder if folder.is_file() else folder / PAGE).open("rb") as file:
            return NOTE.encode() in file.read(1024)
    except (OSError, ValueError, RecursionError):
        return False


@contextlib.contextmanager
def replacing(target: Path, *, page: bool) -> Iterator[Path]:
    """Yield a new folder; at the end of the block it, or its page, replaces ``target``. Removed on failure."""
    old = target
    try:
        with work_folder(target.parent) as new:
            old = new.with_suffix(".old")
            yield new
            if page:
                (new / PAGE).replace(target)
                return
            with signals_held():  # an interrupt between two renames would leave no site
                _replace_site(new, target, old)
    except OSError as error:
        kept = f"; the earlier export is {shown(old)} now" if old != target and os.path.lexists(old) else ""
        raise FormatError(
            f"{shown(target)}: cannot write it: {reason(error)}; check the folder, its permissions and the free space"
            f"{kept}"
        ) from None


def _replace_site(new: Path, target: Path, old: Path) -> None:
    """Rename ``new`` to ``target``; the earlier folder moves to ``old``, and back if that fails."""
    if target.exists():
        target.rename(old)
    try:
        new.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)
