"""What a profile says: draws with their times and bytes, by kind and in all, textures, and how time grows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glinfer.gl.timers import Timeline
from glinfer.inspect.bench.turns import Spread
from glinfer.inspect.ceiling import FetchRate
from glinfer.inspect.profile.bytes import Read, TextureUse, least_seconds

REPORT = "glinfer profile"
"""What ``"report"`` is in the JSON of a report."""
VERSION = 1


@dataclass(frozen=True)
class DrawProfile:
    """One draw; times in milliseconds, sizes in bytes.

    Attributes:
        index: its place in the plan, from 0.
        name, kind, op, shader: see :class:`glinfer.ops.spec.DrawSpec`.
        reads: what it reads, see :mod:`glinfer.inspect.profile.bytes`.
        outputs: tensors by attachment.
        rows, cols: of the output matrix that it writes.
        defines: compile-time constants of its shader.
        ms: its time, from the end of the draw before; the mean over the middle third of the profiled runs.
        issue_ms: Python's part of it: how long it took to issue.
        bytes_read, bytes_written: in all.
    """

    index: int
    name: str
    kind: str
    op: str
    shader: str
    reads: tuple[Read, ...]
    outputs: tuple[str, ...]
    rows: int
    cols: int
    defines: Mapping[str, int | float]
    ms: float
    issue_ms: float
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True)
class KindProfile:
    """All draws of one kind; ``share`` is of the time of all draws, ``of_ceiling`` None where none was measured."""

    kind: str
    shaders: tuple[str, ...]
    draws: int
    ms: float
    share: float
    bytes_read: int
    bytes_written: int
    bytes_per_second: float
    of_ceiling: float | None


@dataclass(frozen=True)
class GrowthPoint:
    """A run at another place of the sequence: milliseconds of a plain run, and of the draws by kind; bytes read."""

    tokens: int
    wall_ms: float
    bytes_read: int
    kinds: Mapping[str, float]


@dataclass(frozen=True)
class ProfileReport:
    """One run of a plan, profiled. Times in milliseconds, sizes in bytes.

    Attributes:
        model: what was profiled, for people.
        config: its shape.
        renderer: what drew.
        plan, weights: of the engine.
        what, tokens: the run, see :class:`glinfer.inspect.profile.subject.Subject`.
        timing: ``GPU timestamps`` or ``CPU fences``.
        fence_us: what an empty fence costs, in microseconds; taken off each draw where fences time.
        runs: plain runs, and as many profiled ones.
        disturbed: profiled runs that were thrown away because the renderer's clock was disturbed.
        wall: of a plain run, from the first draw's issuing to the end of the last.
        issue: until all draws of a plain run are issued.
        profiled: of a profiled run.
        before_ms: of a profiled run, from its begin until the renderer begins with the first draw.
        after_ms: likewise from the end of the last draw until Python knows of it.
        draws: every draw in order.
        textures: every texture that the run needs.
        ceilings: how fast texels of the formats that matter can be fetched at most; empty where not measured.
        growth: at other places of the sequence; empty where not measured.
        notes: what was left out, and why.
        timeline: the profiled run that took a median time; not in the JSON.
    """

    model: str
    config: Mapping[str, Any]
    renderer: str
    plan: str
    weights: str
    what: str
    tokens: int
    timing: str
    fence_us: float
    runs: int
    disturbed: int
    wall: Spread
    issue: Spread
    profiled: Spread
    before_ms: float
    after_ms: float
    draws: tuple[DrawProfile, ...]
    textures: tuple[TextureUse, ...]
    ceilings: tuple[FetchRate, ...]
    growth: tuple[GrowthPoint, ...]
    notes: tuple[str, ...]
    timeline: Timeline

    @property
    def draws_ms(self) -> float:
        """The times of all draws together."""
        return sum(draw.ms for draw in self.draws)

    @property
    def share_of_draws(self) -> float:
        """The times of all draws over the time of a plain run."""
        return self.draws_ms / self.wall.median

    @property
    def accounted(self) -> float:
        """The same with what passes before the first draw and after the last."""
        return (self.before_ms + self.draws_ms + self.after_ms) / self.wall.median

    @property
    def overhead(self) -> float:
        """The time of a profiled run over that of a plain one."""
        return self.profiled.median / self.wall.median

    @property
    def bytes_read(self) -> int:
        """By all draws."""
        return sum(draw.bytes_read for draw in self.draws)

    @property
    def bytes_written(self) -> int:
        """By all draws."""
        return sum(draw.bytes_written for draw in self.draws)

    def of_ceiling(self, draws: Sequence[DrawProfile]) -> float | None:
        """How long fetching what some draws read takes at least, over their time; None without ceilings."""
        milliseconds = sum(draw.ms for draw in draws)
        if not self.ceilings or not milliseconds:
            return None
        rates = {rate.format: rate.bytes_per_second for rate in self.ceilings}
        return 1000.0 * least_seconds([read for draw in draws for read in draw.reads], rates) / milliseconds

    def kinds(self) -> list[KindProfile]:
        """The draws by kind, in the order of the plan."""
        groups: dict[str, list[DrawProfile]] = {}
        for draw in self.draws:
            groups.setdefault(draw.kind, []).append(draw)
        return [
            KindProfile(
                kind,
                tuple(dict.fromkeys(draw.shader for draw in draws)),
                len(draws),
                sum(draw.ms for draw in draws),
                sum(draw.ms for draw in draws) / max(self.draws_ms, 1e-9),
                sum(draw.bytes_read for draw in draws),
                sum(draw.bytes_written for draw in draws),
                rate_of(draws),
                self.of_ceiling(draws),
            )
            for kind, draws in groups.items()
        ]

    def memory(self, by: str) -> dict[str, int]:
        """Texture memory by ``kind`` of tensor, or by ``part`` of the model."""
        found: dict[str, int] = {}
        for texture in self.textures:
            group = getattr(texture, by)
            found[group] = found.get(group, 0) + texture.bytes
        return found

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values, and what follows from it."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del fields["timeline"]
        plain = {name: _plain(value) for name, value in fields.items()}
        totals = {
            "draws": len(self.draws),
            "draws_ms": self.draws_ms,
            "share_of_draws": self.share_of_draws,
            "accounted": self.accounted,
            "overhead": self.overhead,
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "bytes_per_second": rate_of(self.draws),
            "of_ceiling": self.of_ceiling(self.draws),
            "texture_bytes": sum(texture.bytes for texture in self.textures),
        }
        for ceiling, rate in zip(plain["ceilings"], self.ceilings, strict=True):
            ceiling["bytes_per_second"] = rate.bytes_per_second
        derived = {
            "totals": totals,
            "kinds": _plain(self.kinds()),
            "memory": {by: self.memory(by) for by in ("kind", "part")},
        }
        return {"report": REPORT, "version": VERSION, **plain, **derived}


def _plain(value: Any) -> Any:
    """Dataclasses as mappings, tuples as lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def rate_of(draws: Sequence[DrawProfile]) -> float:
    """Bytes read a second, over the time of some draws; 0 where that is too short to tell."""
    milliseconds = sum(draw.ms for draw in draws)
    return 1000.0 * sum(draw.bytes_read for draw in draws) / milliseconds if milliseconds else 0.0
