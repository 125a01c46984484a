"""Record every draw of one token: ``model.tour("text").draws[17].output``. Notebooks show the page of the tour."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from glinfer.engine.capture import Inspected
from glinfer.engine.ids import Ids
from glinfer.engine.run.nan_guard import written_by
from glinfer.errors import InputError, counted
from glinfer.kernels import DrawSpec
from glinfer.program.session import Observer, Session

Floats = npt.NDArray[np.float32]
_PAGES = "glinfer.export.tour"
"""The module that writes pages, which is imported by name when a page is wanted, since exports build on the engine."""


@dataclass(frozen=True)
class TourDraw:
    """One draw of a token; ``number`` is its index among the draws, from 0.

    Attributes:
        name, kind: as in the plan, such as ``h.2.attn.head.3.scores`` and ``attn.scores``.
        shader: the file of its fragment shader in ``shaders/``.
        inputs: the tensors that it samples, by sampler.
        outputs: the tensors that it writes, float32 [rows, columns] in use, by name.
    """

    number: int
    name: str
    kind: str
    shader: str
    inputs: Mapping[str, str] = field(repr=False)
    outputs: Mapping[str, Floats] = field(repr=False)

    @property
    def output(self) -> Floats:
        """What it wrote, or the first of several tensors that it wrote: float32 [rows, columns]."""
        return next(iter(self.outputs.values()))


class Tour:
    """The draws of the last token of a text, in order.

    Attributes:
        ids: the tokens of the text.
        draws: every draw of the model's plan; ``reference`` runs all tokens, ``fast`` the last one.
    """

    def __init__(self, ids: list[int], draws: tuple[TourDraw, ...], text: str, path: str | None) -> None:
        """Use :meth:`glinfer.Model.tour` instead."""
        self.ids, self.draws, self._text, self._path = ids, draws, text, path

    def __repr__(self) -> str:
        """The number of draws and tokens."""
        return f"Tour({counted(len(self.draws), 'draw')} over {counted(len(self.ids), 'token')})"

    def __len__(self) -> int:
        """The number of draws."""
        return len(self.draws)

    def write(self, target: str | PathLike[str], *, tokenizer: str | PathLike[str] | None = None) -> Path:
        """Write the page of ``glinfer tour`` for this model and text, and return its path.

        ``target`` is a new .html file, or an earlier page; ``tokenizer`` the tokenizer's file, if the model was loaded
        with one. Raises the errors of :func:`glinfer.export.tour.export_tour`.
        """
        if self._path is None:
            raise InputError("this model was not loaded from a file; run 'glinfer tour FILE' on a saved one")
        export_tour = importlib.import_module(_PAGES).export_tour
        page: Path = export_tour(self._path, target, self._text, tokenizer=tokenizer).folder
        return page

    def _repr_html_(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            page = self.write(Path(folder) / "tour.html").read_text("utf-8")
        return (
            f'<iframe srcdoc="{escape(page)}" title="{escape(repr(self))}" width="100%" height="720" '
            'style="border: 1px solid #8888; border-radius: 8px"></iframe>'
        )


class _Recorder(Observer):
    """Copies what each draw of one session writes."""

    def __init__(self, bound: Session) -> None:
        self.bound, self.draws = bound, list[TourDraw]()

    def drawn(self, session: Session, spec: DrawSpec, values: Mapping[str, int | float]) -> None:
        if session.plan is not self.bound.plan and session.plan.name != self.bound.plan.name:
            return
        outputs = {name: written_by(session, spec, name, values).astype(np.float32) for name in spec.outputs}
        number, shader = len(self.draws), f"{spec.shader}.frag"
        self.draws.append(TourDraw(number, spec.name, spec.kind, shader, dict(spec.inputs), outputs))


def recorded(model: Inspected, text: str | Ids, path: str | None) -> Tour:
    """Run a text, and record the draws of its last token; the model's own sequence stays as it is."""
    ids = model._ids_of(text)
    recorder = _Recorder(model.bound)
    with model.session() as session:
        for token in ids:
            session.prefill([token])
        with model._observing(recorder):
            session.generate_ids(1)
    shown = text if isinstance(text, str) else " ".join(map(str, ids))
    return Tour(ids, tuple(recorder.draws), shown, path)
