"""``glinfer look``: pictures of what happens inside a model over one text, and a page to browse them.

A run of the reference plan gives tensors by their names (:meth:`glinfer.engine.model.Model.capture`), the
checkpoint gives the weights and the logit lens. :mod:`glinfer.inspect.look.drawing` draws them, which needs matplotlib
and is imported only then.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.engine.ids import check_ids
from glinfer.errors import InputError
from glinfer.formats import Checkpoint
from glinfer.inspect.look.folder import DATA, PAGE, check_folder, filling
from glinfer.inspect.look.page import page
from glinfer.inspect.look.tokens import look_tokens
from glinfer.inspect.look.weights import textures_of
from glinfer.models.choice import USUAL_TEXTURE_SIZE
from glinfer.text.tokenizer import Tokenizer

Floats = npt.NDArray[np.floating]

ATTENTION, HIDDEN, LENS, WEIGHTS = KINDS = ("attention", "hidden", "lens", "weights")
"""What can be looked at."""
MOST_TOKENS = 512
USUAL_TOP = 8


class Watched(Protocol):
    """What is needed of a :class:`glinfer.engine.model.Model`."""

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Its tokenizer, if there is one."""

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer, or an InputError."""

    def names(self) -> Sequence[str]:
        """The tensors that its plan can give, in the order of computation."""

    def capture(self, patterns: str | Sequence[str], prompt: str | Sequence[int]) -> Mapping[str, Floats]:
        """Run a prompt; float32 arrays of the tensors that a pattern names."""


@dataclass(frozen=True)
class Wanted:
    """What to look at.

    Attributes:
        what: some of :data:`KINDS`.
        layers: the blocks to look at.
        top: how many of the likeliest tokens are listed.
    """

    what: tuple[str, ...]
    layers: tuple[int, ...]
    top: int = USUAL_TOP

    @classmethod
    def of(
        cls, config: ModelConfig, what: str | None = None, layers: str | None = None, top: int = USUAL_TOP
    ) -> Wanted:
        """Read what the options say: kinds by comma, and blocks as numbers, ranges or patterns: ``0,3-5,1*``.

        Raises:
            InputError: there is no such kind or no such block, or ``top`` is less than 1.
        """
        kinds = [part.strip() for part in (what or ",".join(KINDS)).split(",") if part.strip()]
        for kind in kinds:
            if kind not in KINDS:
                raise InputError(f"there is nothing called {kind!r} to look at; expected some of {','.join(KINDS)}")
        if top < 1:
            raise InputError(f"the number of likeliest tokens is {top}; expected at least 1")
        chosen = tuple(kind for kind in KINDS if kind in kinds)
        if not chosen:
            raise InputError(f"nothing to look at was named; expected some of {','.join(KINDS)}")
        return cls(chosen, _layers(layers, config.num_hidden_layers), min(top, config.vocab_size))

    @property
    def runs(self) -> bool:
        """Whether the model has to run, and so a text is needed."""
        return self.what != (WEIGHTS,)


def _layers(text: str | None, count: int) -> tuple[int, ...]:
    chosen: set[int] = set()
    for part in filter(None, map(str.strip, ("*" if text is None else text).split(","))):
        first, dash, last = part.partition("-")
        if first.isdecimal() and last.isdecimal() and dash and "[" not in part:
            found = set(range(max(0, int(first)), min(count, int(last) + 1)))
        else:
            found = {number for number in range(count) if fnmatchcase(str(number), part)}
        if not found:
            raise InputError(f"no block is called {part!r}; this model has blocks 0 to {count - 1}")
        chosen |= found
    if not chosen:
        raise InputError(f"no block was named; this model has blocks 0 to {count - 1}")
    return tuple(sorted(chosen))


def check_drawing() -> None:
    """Refuse to begin what could not be drawn.

    Raises:
        InputError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("glinfer look draws with matplotlib, which is not installed; pip install 'glinfer[plots]'")


def prompt_ids(model: Watched, prompt: str | Sequence[int]) -> list[int]:
    """The tokens to look at.

    Raises:
        InputError: a text without a tokenizer, or tokens that the model cannot run, or too many to draw.
    """
    ids = list(model.require_tokenizer().encode(prompt) if isinstance(prompt, str) else prompt)
    if len(ids) > MOST_TOKENS:
        raise InputError(
            f"the text has {len(ids)} tokens; 'glinfer look' draws up to {MOST_TOKENS}; give a shorter one"
        )
    return check_ids(ids, model.config)


def look(
    checkpoint: Checkpoint,
    folder: str | PathLike[str],
    wanted: Wanted,
    *,
    model: Watched | None = None,
    prompt: str | Sequence[int] | None = None,
    about: Mapping[str, Any] | None = None,
    max_texture_size: int = USUAL_TEXTURE_SIZE,
    force: bool = False,
    on_picture: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Draw everything that is wanted into a folder, with a page; returns what its ``look.json`` holds.

    Args:
        checkpoint: the model's weights.
        folder: new, empty, or the output of an earlier run.
        wanted: what to draw.
        model: the same model with its reference plan; not needed for the weights alone.
        prompt: text or token ids, of at most :data:`MOST_TOKENS` tokens; likewise.
        about: more about the model for the page and ``look.json``, such as its name and the renderer.
        max_texture_size: of the renderer, which decides how weights lie.
        force: write into a folder with other files too; they stay, unless they have a picture's name.
        on_picture: told (pictures drawn, pictures in all).

    Raises:
        InputError: matplotlib is missing, the folder cannot be taken, or the text cannot be run.
        FormatError: a file cannot be written.
    """
    check_drawing()
    target = check_folder(folder, force=force)
    ids: list[int] = []
    if wanted.runs:
        if model is None or prompt is None:
            raise InputError("a text to run is needed for everything but --what weights; give one, or --ids")
        ids = prompt_ids(model, prompt)
    tokenizer = None if model is None else model.tokenizer
    from glinfer.inspect.look.drawing import Drawing
    from glinfer.inspect.look.sheet import plain_style

    with filling(target) as new, plain_style():
        made = Drawing(checkpoint, wanted, look_tokens(ids, tokenizer), tokenizer, new, on_picture)
        if wanted.runs and model is not None:
            made.run(model, ids)
        if WEIGHTS in wanted.what:
            made.weights(textures_of(checkpoint, max_texture_size))
        text = prompt if isinstance(prompt, str) and wanted.runs else None
        document = made.document({**facts_of(checkpoint), **(about or {})}, text)
        (new / DATA).write_text(json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1), encoding="utf-8")
        (new / PAGE).write_text(page(document), encoding="utf-8")
    return document


def facts_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """What is told about the model, where nobody knows more."""
    return {
        "name": Path(checkpoint.source).name,
        "source": checkpoint.source,
        "config": checkpoint.config.to_dict(),
        "parameters": checkpoint.parameter_count,
        "renderer": None,
    }
