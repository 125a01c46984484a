"""A tour of a model: one page that replays the draws of a token in the browser, and shows what each of them computes.

The page has two plans of one model, ``reference`` and ``fast``, each as a site's ``plan.json`` describes it. They share
their weights: ``weights.bin`` has each tensor of the file once, in half floats where these keep every bit. From it the
page makes the bytes of each plan's ``weights.safetensors``, segment by segment as ``tour.json`` lists them: a run of
bytes of ``weights.bin``, or a texture that is computed from tensors of the file (see :func:`_derivation`). The export
computes the same and compares all numbers; a texture that is not equal bit for bit is stored whole.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from glinfer.engine.engine import EMBEDS
from glinfer.engine.ids import check_ids
from glinfer.engine.loading import for_use, read_model
from glinfer.errors import InputError
from glinfer.export.libraries import TOKENIZERS, library_files
from glinfer.export.page import PAGE, single_file
from glinfer.export.plan import PlanExport, layout_entry
from glinfer.export.site import (
    LIMITS,
    SMALL_TOUR_PAGE,
    TOUR,
    TOUR_PAGE,
    ExportedSite,
    about_texts,
    check_target,
    copy_file,
    laid_out,
    plan_file,
    points_of,
    replacing,
    starting_text,
    web_kernels,
    web_root,
    write_json,
    write_page,
)
from glinfer.export.texts import TextSupport, continued_texts
from glinfer.export.weights import write_weights
from glinfer.formats import Checkpoint
from glinfer.hub import title_of
from glinfer.kernels.spec import Array
from glinfer.limits import MAX_SINGLE_FILE_BYTES
from glinfer.lower.plans import DEFAULT_WEIGHTS, PLANS, weights_for, weights_named
from glinfer.lower.weights.fold import FoldedWeights
from glinfer.lower.weights.recipe import weight_name
from glinfer.program.plan import Plan
from glinfer.program.points import CENTRED
from glinfer.quant.formats import DEFAULT_CACHE

STORE = "weights.bin"
_PAGE = "tour/index.html"
_FILES = ("tour", "glinfer", "texts.js", "page/theme.js", "page/elements.js")
_FETCH = "embedded.js"
_CONTEXT = 256  # tokens of rotary models; the reference plan has the scores of all pairs of them in a texture
_HEADER = struct.Struct("<Q")


def export_tour(
    path: str | PathLike[str],
    target: str | PathLike[str],
    text: str | None = None,
    *,
    weights: str = DEFAULT_WEIGHTS,
    context: int | None = None,
    gelu: str | None = None,
    tokenizer: str | PathLike[str] | None = None,
    limits: str = "usual",
    other: str | None = None,
) -> ExportedSite:
    """Write the tour of a model as one self-contained page, which appears only when it is complete. Needs no OpenGL.

    Args:
        path: the model's file or directory, or the name of a bundled model.
        target: the page: a new name, or an earlier export.
        text: the text that the page starts with; default: an example of the model.
        weights: weight format of the fast plan; the reference plan has the file's numbers.
        context, gelu, tokenizer: as in :func:`glinfer.load`, but rotary models have 256 tokens of context.
        limits: a key of :data:`glinfer.export.site.LIMITS`.
        other: the page of another model's tour, to which this one links.

    Raises:
        InputError: the target is something else, the model embeds texts or is too large for one page, or the text is
            longer than its context.
        PlanError: the model does not fit the textures.
        FormatError: the model or its tokenizer cannot be read, or the page cannot be written.
    """
    page = Path(target).absolute()
    check_target(page)
    root = web_root()
    path, checkpoint = read_model(path, gelu=gelu, context=context)
    if context is None and checkpoint.config.family.rotary:
        most = min(checkpoint.config.max_position_embeddings, _CONTEXT)
        checkpoint = for_use(checkpoint, gelu=gelu, context=most)
    if checkpoint.config.embeds:
        raise InputError(EMBEDS)
    checkpoint.check_finite()
    texts, notes = continued_texts(path, tokenizer, checkpoint)
    if text:
        check_ids(_ids_of(text, texts), checkpoint.config)
    about = {"name": title_of(path), **about_texts(path, texts)}
    with replacing(page, page=True) as new:
        store = _Store(new / STORE, checkpoint)
        plans = {name: _write_plan(new, name, checkpoint, weights, limits, about, store) for name in reversed(PLANS)}
        store.close()
        if store.bytes > MAX_SINGLE_FILE_BYTES:
            raise InputError(
                f"the weights of both plans take {store.bytes:,} bytes; one page can hold {MAX_SINGLE_FILE_BYTES:,}"
            )
        made, exports = {name: each[0] for name, each in plans.items()}, [each[1] for each in plans.values()]
        write_json(
            new / TOUR,
            {
                "text": starting_text(texts, text),
                "other": other,
                "tensors": store.tensors,
                "plans": {name: each[2] for name, each in plans.items()},
                "replaced_by": replaced_by(made["reference"], made["fast"]),
            },
        )
        _write_page(new, root, exports, texts)
        parts = list(single_file(new, root / _FETCH))
        (new / PAGE).write_text("".join(parts), encoding="utf-8")
        size = (new / PAGE).stat().st_size
    counts = {name: len(plan.draws) for name, plan in made.items()}
    return ExportedSite(page, size, counts["reference"], {"plans": counts}, tuple(notes))


def _ids_of(text: str, texts: TextSupport) -> list[int]:
    """The tokens that the page makes of a text."""
    if texts.read is not None:
        return texts.read.encode(text)
    try:
        return [int(part) for part in re.split(r"[\s,]+", text) if part]
    except ValueError:
        raise InputError(f"found {text[:40]!r}; the page has no tokenizer; expected token ids such as 1,2,3") from None


def export_tours(
    path: str | PathLike[str],
    small: str | PathLike[str],
    target: str | PathLike[str],
    text: str | None = None,
    **options: Any,
) -> ExportedSite:
    """Write a folder for a web server: the tours of two models, and a page that opens the one for the visitor's device.

    Devices that are narrow, have little memory or a slow line get ``small``. Each tour links to the other.

    Args:
        path, text, options: as for :func:`export_tour`.
        small: the second model.
        target: a new or empty folder, or an earlier export.

    Raises:
        InputError, PlanError, FormatError: as :func:`export_tour`, for each model; ``small`` has the larger tour.
    """
    folder, root = Path(target).absolute(), web_root() / "tours"
    check_target(folder)
    pages = {TOUR_PAGE: path, SMALL_TOUR_PAGE: small}
    with replacing(folder, page=False) as new:
        made = {}
        for (page, model), other in zip(pages.items(), reversed(pages), strict=True):
            made[page] = export_tour(model, new / page, text, other=other, **options)
        first, second = made.values()
        if second.bytes > first.bytes:
            raise InputError(
                f"the tour of {small} has {second.bytes:,} bytes and that of {path} {first.bytes:,}; swap them"
            )
        for file in sorted(root.iterdir()):
            copy_file(file, new / file.name)
    notes = tuple(dict.fromkeys((*first.notes, *second.notes)))
    return ExportedSite(folder, first.bytes + second.bytes, first.draws, first.plan, notes)


def _write_plan(
    folder: Path,
    name: str,
    checkpoint: Checkpoint,
    weights: str,
    limits: str,
    about: Mapping[str, Any],
    store: _Store,
) -> tuple[Plan, PlanExport, dict[str, Any]]:
    """Write ``<name>.json``; returns the plan, its export, and its entry in ``tour.json``."""
    config, formats = checkpoint.config, checkpoint.formats()
    chosen = weights_named(weights if name == "fast" else DEFAULT_WEIGHTS, formats, name)
    given = config, formats, name, chosen, DEFAULT_CACHE, web_kernels(chosen), LIMITS[limits]
    plan, export = laid_out(*given, alone=True)
    about = {**about, "plan": name, "weights": chosen}
    values, order = plan_file(about, plan, export, config, checkpoint.parameter_count)
    arrays = weights_for(checkpoint, name, chosen)
    values["files"] = write_weights(folder, export, arrays, order, hashlib.sha256())
    values["offline"] = None
    write_json(folder / f"{name}.json", values)
    segments: dict[str, list[Any]] = {}
    for file in values["files"]["weights"]:
        segments[file["name"]] = store.segments(folder / file["name"], export, arrays)
        (folder / file["name"]).unlink()
    return plan, export, {"segments": segments, "points": points_of(plan, export)}


def replaced_by(reference: Plan, fast: Plan) -> list[int]:
    """The number of the fast plan's draw that does the work of each draw of the reference plan.

    A draw whose value has a name in both plans belongs to the fast draw with that name; every other one to the fast
    draw of the first later draw that reads what it writes, and at the end to the last.
    """
    indices = {draw.name: index for index, draw in enumerate(fast.draws)}
    owners = {point.name.removesuffix(CENTRED): indices[point.sites[-1][0]] for point in fast.points.values()}
    named = {
        draw: owners[name]
        for point in reference.points.values()
        if (name := point.name.removesuffix(CENTRED)) in owners
        for draw, _ in point.sites
    }
    found: list[int] = []
    readers: dict[str, int] = {}  # by tensor: the fast draw of the next draw that reads it
    for draw in reversed(reference.draws):
        written = map(reference.root, draw.outputs)
        later = [readers[name] for name in written if name in readers]
        found.append(named.get(draw.name, min(later, default=len(fast.draws) - 1)))
        for name in map(reference.root, draw.outputs):
            readers.pop(name, None)
        for name in map(reference.root, draw.reads):
            readers[name] = found[-1]
    return found[::-1]


@dataclass(frozen=True)
class _Derivation:
    """How a matrix follows from tensors of the file, in float64: stacked rows, times gains of columns, centred.

    Attributes:
        rows: tensors whose rows are stacked.
        gain: a tensor with the factor of each column, or None.
        centre: ``rows`` or ``columns``, whose means are subtracted, in this order.
    """

    rows: tuple[str, ...]
    gain: str | None = None
    centre: tuple[str, ...] = ()

    def matrix(self, checkpoint: Checkpoint) -> Array:
        """The matrix, rounded to float32."""
        found = np.concatenate([np.atleast_2d(checkpoint.floats(name)).astype(np.float64) for name in self.rows])
        if self.gain is not None:
            found = found * checkpoint.floats(self.gain).astype(np.float64)
        for each in self.centre:
            found = found - found.mean(axis=1 if each == "rows" else 0, keepdims=True)
        return found.astype(np.float32)


def _derivation(name: str, arrays: Mapping[str, Array], checkpoint: Checkpoint) -> _Derivation | None:
    """The likely derivation of a weight; None for those that are stored whole."""
    if not isinstance(arrays, FoldedWeights):
        return _Derivation((name,)) if name in checkpoint.tensors else None
    names = checkpoint.config.family.names
    table = {"wte": names.embeddings, "wpe": names.positions}.get(name)
    if table is not None:
        return _Derivation((weight_name(table),), centre=("rows",))
    recipe = arrays.kept_tensors(name)[1]
    if recipe is None:
        return None
    centre = (*(["rows"] if recipe.norm else []), *(["columns"] if recipe.writes_stream else []))
    return _Derivation(
        tuple(map(weight_name, recipe.sources)), weight_name(recipe.norm) if recipe.norm else None, centre
    )


class _Store:
    """Writes ``weights.bin``: tensors of the file once, and whatever else the plans need.

    Attributes:
        tensors: by name: its offset in bytes, its shape, and whether it is in half floats.
        bytes: written so far.
    """

    def __init__(self, path: Path, checkpoint: Checkpoint) -> None:
        self._file, self._checkpoint = path.open("wb"), checkpoint
        self.tensors: dict[str, dict[str, Any]] = {}
        self.bytes = 0

    def close(self) -> None:
        """Finish the file."""
        self._file.close()

    def segments(self, path: Path, export: PlanExport, arrays: Mapping[str, Array]) -> list[dict[str, Any]]:
        """Add a file of weights, and return its segments in order.

        A segment has ``bytes``, and either ``at``, its offset in the store, or ``rows``, ``gain``, ``centre`` and
        ``layout`` of a derived texture.
        """
        data = path.read_bytes()
        (length,) = _HEADER.unpack_from(data)
        start = _HEADER.size + length
        header = json.loads(data[_HEADER.size : start])
        found = [self._raw(data[:start])]
        tables: list[bytes] = []
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            begin, end = (start + offset for offset in entry["data_offsets"])
            derived = self._derived(name, export, arrays) if name in arrays else None
            if derived is not None:
                found.append({"bytes": end - begin, **derived})
            elif name in arrays:
                found.append(self._raw(data[begin:end]))
            else:
                tables.append(data[begin:end])
        return [*found, self._raw(b"".join(tables))]

    def _derived(self, name: str, export: PlanExport, arrays: Mapping[str, Array]) -> dict[str, Any] | None:
        """A derived texture, or None if the numbers are not equal or the page does not know the layout."""
        layout, derivation = export.layout(name), _derivation(name, arrays, self._checkpoint)
        entry = layout_entry(layout)
        known = entry["kind"] in ("matrix", "table") or (entry["kind"] == "words" and entry["texels"] == 4)
        if derivation is None or not known or layout.format.dtype_name != "float32":
            return None
        held = [*derivation.rows, *([derivation.gain] if derivation.gain else [])]
        if any(each not in self._checkpoint.tensors for each in held):
            return None
        actual, expected = np.asarray(arrays[name]), derivation.matrix(self._checkpoint)
        if actual.reshape(-1).tobytes() != expected.reshape(-1).tobytes():
            return None
        for each in held:
            self._hold(each)
        return {**dataclasses.asdict(derivation), "layout": entry, "channels": layout.format.channels}

    def _hold(self, name: str) -> None:
        if name in self.tensors:
            return
        array = np.asarray(self._checkpoint.floats(name), dtype="<f4")
        with np.errstate(over="ignore"):
            half = array.astype("<f2")
        exact = bool((half.astype("<f4").view(np.uint32) == array.view(np.uint32)).all())
        at = self._raw((half if exact else array).tobytes())["at"]
        self.tensors[name] = {"at": at, "shape": [1, *array.shape][-2:], "half": exact}

    def _raw(self, data: bytes) -> dict[str, int]:
        padded = data + b"\0" * (-len(data) % 4)  # so that the page can look at numbers in place
        self._file.write(padded)
        self.bytes += len(padded)
        return {"at": self.bytes - len(padded), "bytes": len(data)}


def _write_page(new: Path, root: Path, exports: Sequence[PlanExport], texts: TextSupport) -> None:
    """Write the page, the runtime, the shaders and the tokenizer."""
    parts = {PAGE: root / _PAGE, **{name: root / name for name in _FILES}}
    if TOKENIZERS in texts.libraries:
        parts |= {"text": root / "text", "texts.js": root / "library_texts.js"}
    shaders = [each for export in exports for each in export.shaders]
    write_page(new, {**parts, **library_files(root, texts.libraries)}, shaders, texts.tokenizer)
