"""The report of ``glinfer verify``; glinfer/schemas/verify.schema.json describes its JSON document."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glinfer.engine.report import Report, plain
from glinfer.engine.textures import TextureCheck
from glinfer.inspect.settings import UnusableRun
from glinfer.inspect.verify.draws import DrawCheck
from glinfer.inspect.verify.greedy import GreedyCheck
from glinfer.inspect.verify.special import SpecialCheck
from glinfer.models.session import WrongTexture
from glinfer.quant.formats import DEFAULT_CACHE

VERSION = 2
"""Version of the JSON document; it changes with the meaning of a field."""
_SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "verify.schema.json"


@dataclass(frozen=True)
class VerifyRun(Report):
    """Checks of one weight format on one renderer.

    Attributes:
        renderer: version and name.
        textures: weights, read back from the bound textures after everything else has run.
        wrong_textures: inputs of draws that sample another texture than their plan names.
        after: tokens that were generated before; None if not requested.
        special: special values.
        draws: draws against float64; empty if not checked.
        greedy: tokens against float64; None if not checked.
        device: number of the requested device; None if not given.
        api: ``es`` or ``desktop``.
        max_texture_size: limit of texture layouts, in texels a side.
        plan: ``fast`` or ``reference``.
        weights: weight format.
        cache: format of keys and values.
        problem: error that ended the run; empty without one.
    """

    hidden = ("special",)
    derived = ("passed",)

    renderer: str
    textures: tuple[TextureCheck, ...] = ()
    wrong_textures: tuple[WrongTexture, ...] = ()
    after: int | None = None
    special: tuple[SpecialCheck, ...] = ()
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
        """Textures with wrong bits."""
        return [check for check in self.textures if not check.passed]

    @property
    def bad_draws(self) -> list[DrawCheck]:
        """Draws that differ from the oracle or ran in a wrong state."""
        return [check for check in self.draws if not check.passed]

    @property
    def first_bad_draw(self) -> DrawCheck | None:
        """First of the bad draws."""
        return next(iter(self.bad_draws), None)

    @property
    def passed(self) -> bool:
        """Whether all checks passed."""
        stored = all(check.stored for check in self.special)
        chosen = self.greedy is None or self.greedy.passed
        held = not self.bad_textures and not self.wrong_textures
        return not self.problem and stored and chosen and held and self.first_bad_draw is None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; null stands for an infinite or NaN error."""
        first = self.first_bad_draw
        further = {"problem": self.problem or None, "first_bad_draw": first and first.name}
        return {**super().to_json(), **further, "special_values": plain(self.special)}


@dataclass(frozen=True)
class VerifyReport(Report):
    """Finished runs and unusable ones; the JSON form is described by :func:`schema`.

    Attributes:
        model: source of the checkpoint.
        runs: the finished runs.
        unusable: renderers and formats that could not be run.
        load_refuses: reason why loading refuses the model, whose weights are not all finite; None if it does not.
        allow_nan: whether such weights are accepted.
        origin: repository, commit and file of a model in the cache of a hub; None for any other.
    """

    derived = ("version", "passed")

    version = VERSION

    model: str
    runs: tuple[VerifyRun, ...]
    unusable: tuple[UnusableRun, ...] = ()
    load_refuses: str | None = None
    allow_nan: bool = False
    origin: dict[str, str] | None = None

    @property
    def passed(self) -> bool:
        """Whether at least one run finished, and all passed."""
        accepted = self.load_refuses is None or self.allow_nan
        return accepted and bool(self.runs) and all(run.passed for run in self.runs)


def schema_text() -> str:
    """Return the JSON schema of the document (draft 2020-12)."""
    return _SCHEMA.read_text("utf-8")


def schema() -> dict[str, Any]:
    """Parse the JSON schema of the document."""
    found: dict[str, Any] = json.loads(schema_text())
    return found
