"""What verify found, as values and as the JSON document that glinfer/schemas/verify.schema.json describes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glinfer.inspect.verify.draws import DrawCheck
from glinfer.inspect.verify.greedy import GreedyCheck
from glinfer.inspect.verify.textures import SpecialCheck, TextureCheck
from glinfer.quant.formats import DEFAULT_CACHE

VERSION = 1
"""Of the JSON document; another number when something in it comes to mean something else."""
_SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "verify.schema.json"


@dataclass(frozen=True)
class VerifyRun:
    """Everything that was found about one weight format on one renderer.

    Attributes:
        renderer: version and name.
        textures: the weights, uploaded and read back.
        special: special values.
        draws: every draw against float64, where that was asked for.
        greedy: tokens against float64, likewise.
        device: the number of the device that was asked for; None where nobody said which.
        api: ``es`` or ``desktop``.
        max_texture_size: what textures were laid out within, in texels a side.
        plan: ``fast`` or ``reference``.
        weights: the weight format.
        cache: the format of keys and values.
        problem: the error that ended the run before its end; empty where there was none.
    """

    renderer: str
    textures: tuple[TextureCheck, ...]
    special: tuple[SpecialCheck, ...]
    draws: tuple[DrawCheck, ...] = ()
    greedy: GreedyCheck | None = None
    device: int | None = None
    api: str = ""
    max_texture_size: int = 0
    plan: str = ""
    weights: str = ""
    cache: str = DEFAULT_CACHE
    problem: str = ""

    @property
    def bad_textures(self) -> list[TextureCheck]:
        """Textures that gave back other bits."""
        return [check for check in self.textures if not check.identical]

    @property
    def bad_draws(self) -> list[DrawCheck]:
        """Draws that differ from the oracle, or were made in a wrong state."""
        return [check for check in self.draws if not check.passed]

    @property
    def first_bad_draw(self) -> DrawCheck | None:
        """The first of them."""
        return next(iter(self.bad_draws), None)

    @property
    def passed(self) -> bool:
        """Whether everything that was checked holds."""
        stored = all(check.stored for check in self.special)
        chosen = self.greedy is None or self.greedy.passed
        return not self.problem and stored and chosen and not self.bad_textures and self.first_bad_draw is None

    def to_json(self) -> dict[str, Any]:
        """The run as plain JSON values; null stands for a difference or an error that is infinite or NaN."""
        first = self.first_bad_draw
        found = {
            "passed": self.passed,
            "device": self.device,
            "api": self.api,
            "renderer": self.renderer,
            "max_texture_size": self.max_texture_size,
            "plan": self.plan,
            "weights": self.weights,
            "cache": self.cache,
            "problem": self.problem or None,
            "textures": [dataclasses.asdict(check) for check in self.textures],
            "special_values": [dataclasses.asdict(check) for check in self.special],
            "draws": [{**dataclasses.asdict(check), "passed": check.passed} for check in self.draws],
            "first_bad_draw": None if first is None else first.name,
            "greedy": None if self.greedy is None else self.greedy.to_json(),
        }
        return {name: _finite(value) for name, value in found.items()}


@dataclass(frozen=True)
class Unusable:
    """What was asked for and cannot be run: a renderer, or a weight format on it.

    ``device`` and ``api`` are what was asked for; ``weights`` is None where it is the renderer that does not open.
    """

    device: int | None
    api: str | None
    weights: str | None
    problem: str

    @property
    def where(self) -> str:
        """In words."""
        parts = [named(self.device, self.api), self.weights and f"weights {self.weights}"]
        return ", ".join(filter(None, parts))


@dataclass(frozen=True)
class VerifyReport:
    """All runs that were asked for, and what could not be run."""

    model: str
    runs: tuple[VerifyRun, ...]
    unusable: tuple[Unusable, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether something was run, and everything that was run holds."""
        return bool(self.runs) and all(run.passed for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values, see :func:`schema`."""
        return {
            "version": VERSION,
            "passed": self.passed,
            "model": self.model,
            "runs": [run.to_json() for run in self.runs],
            "unusable": [dataclasses.asdict(each) for each in self.unusable],
        }


def named(device: int | None, api: str | None) -> str:
    """A renderer that was asked for, in words."""
    return f"device {'auto' if device is None else device}{f', {api}' if api else ''}"


def schema_text() -> str:
    """The JSON schema of the document (draft 2020-12)."""
    return _SCHEMA.read_text("utf-8")


def schema() -> dict[str, Any]:
    """The same, parsed."""
    found: dict[str, Any] = json.loads(schema_text())
    return found


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinities: null stands for them."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
