"""The report of a profile: draws with their times and bytes, totals by kind, textures, and growth with the sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from glinfer.engine.report import Report
from glinfer.gl.timers import Timeline
from glinfer.inspect.ceiling import FetchRate
from glinfer.inspect.profile.traffic import Read, TextureUse, min_seconds
from glinfer.inspect.tables import Cell, Column, Table, megabytes
from glinfer.inspect.timing import Spread

REPORT, VERSION = "glinfer profile", 1
"""``report`` and ``version`` in the JSON of a report."""
_READ, _WRITTEN = Column("read", "bytes_read", megabytes), Column("written", "bytes_written", megabytes)
_KIND_COLUMNS = (
    Column("pass", "kind"),
    Column("shader", lambda kind: ", ".join(kind.shaders)),
    Column("draws", "draws", ""),
    Column("ms", "ms", ".3f"),
    Column("share", "share", ".1%"),
    *(_READ, _WRITTEN),
    Column("GB/s", lambda kind: kind.bytes_per_second / 1e9, ".1f"),
    Column("of ceiling", "of_ceiling", ".0%"),
)
_DRAW_COLUMNS = (
    Column("draw", "index", ""),
    Column("name", "name"),
    Column("shader", "shader"),
    Column("output", lambda draw: Cell(f"{draw.cols}×{draw.rows}", draw.cols * draw.rows), ""),
    Column("ms", "ms", ".3f"),
    Column("issue µs", lambda draw: 1000.0 * draw.issue_ms, ".1f"),
    *(_READ, _WRITTEN),
)
_TEXTURE_COLUMNS = (
    Column("texture", "name"),
    *(Column(name, name) for name in ("kind", "part", "format")),
    Column("texels", lambda used: Cell(f"{used.width:,}×{used.height:,}", used.width * used.height), ""),
    Column("size", "bytes", megabytes),
)


@dataclass(frozen=True)
class DrawProfile:
    """One :class:`glinfer.kernels.spec.DrawSpec`, of ``rows`` by ``cols``; times in milliseconds, sizes in bytes.

    ``ms`` is from the end of the previous draw, the mean over the middle third of the profiled runs; ``issue_ms`` is
    Python's time to issue it; for ``reads`` see :mod:`glinfer.inspect.profile.traffic`.
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
    """Draws of one kind; ``share`` is of the time of all draws, ``of_ceiling`` None if no ceiling was measured."""

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
    """A run at another position: milliseconds of a plain run and of its draws by kind, and bytes read."""

    tokens: int
    wall_ms: float
    bytes_read: int
    kinds: Mapping[str, float]


@dataclass(frozen=True)
class ProfileReport(Report):
    """One profiled run of a plan, see :class:`glinfer.inspect.profile.measure.PlanRun`; milliseconds and bytes.

    Attributes:
        timing: ``GPU timestamps`` or ``CPU fences``.
        fence_us: microseconds of an empty fence, subtracted from each draw that fences time.
        runs: number of plain runs, and of profiled ones.
        disturbed: profiled runs discarded because the renderer's clock was disturbed.
        wall, issue: a plain run, to the end of the last draw, and until all draws are issued.
        profiled: a profiled run.
        before_ms, after_ms: of it, until the renderer begins, and from its end until Python detects that.
        ceilings, growth: fetch rates of the main formats, and other positions; empty if not measured.
        notes: reasons for parts that were left out.
        timeline: the profiled run of median time; not in the JSON.
    """

    hidden = ("timeline",)
    derived = ("totals", "kinds", "memory")

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
    def subject(self) -> str:
        """Description of the profiled run."""
        if self.what == "token":
            return f"token {self.tokens} of a sequence"
        return f"{self.tokens} tokens of a prompt" if self.what == "prompt" else f"a sequence of {self.tokens} tokens"

    @cached_property
    def total(self) -> KindProfile:
        """All draws."""
        return replace(self._kind("total", self.draws), shaders=())

    @property
    def draws_ms(self) -> float:
        """Time of all draws."""
        return sum(draw.ms for draw in self.draws)

    @property
    def share_of_draws(self) -> float:
        """Time of all draws over that of a plain run."""
        return self.draws_ms / self.wall.median

    @property
    def accounted(self) -> float:
        """Time of all draws, before the first and after the last, over that of a plain run."""
        return (self.before_ms + self.draws_ms + self.after_ms) / self.wall.median

    @property
    def overhead(self) -> float:
        """Time of a profiled run over that of a plain one."""
        return self.profiled.median / self.wall.median

    @cached_property
    def kinds(self) -> list[KindProfile]:
        """Draws by kind, in the order of the plan."""
        groups: dict[str, list[DrawProfile]] = {}
        for draw in self.draws:
            groups.setdefault(draw.kind, []).append(draw)
        return [self._kind(kind, draws) for kind, draws in groups.items()]

    def _kind(self, kind: str, draws: Sequence[DrawProfile]) -> KindProfile:
        ms, read = sum(draw.ms for draw in draws), sum(draw.bytes_read for draw in draws)
        rates = {rate.format: rate.bytes_per_second for rate in self.ceilings}
        return KindProfile(
            kind=kind,
            shaders=tuple(dict.fromkeys(draw.shader for draw in draws)),
            draws=len(draws),
            ms=ms,
            share=ms / max(self.draws_ms, 1e-9),
            bytes_read=read,
            bytes_written=sum(draw.bytes_written for draw in draws),
            bytes_per_second=1000.0 * read / ms if ms else 0.0,
            of_ceiling=1000.0 * min_seconds([each for draw in draws for each in draw.reads], rates) / ms
            if rates and ms
            else None,
        )

    @property
    def memory(self) -> dict[str, dict[str, int]]:
        """Texture bytes by ``kind`` of tensor, and by ``part`` of the model."""
        found: dict[str, dict[str, int]] = {"kind": {}, "part": {}}
        for texture in self.textures:
            for by, groups in found.items():
                group = getattr(texture, by)
                groups[group] = groups.get(group, 0) + texture.bytes
        return found

    @property
    def totals(self) -> dict[str, Any]:
        """Sums over all draws and textures, by name."""
        of_total = ("bytes_read", "bytes_written", "bytes_per_second", "of_ceiling")
        return {
            "draws": self.total.draws,
            **{name: getattr(self, name) for name in ("draws_ms", "share_of_draws", "accounted", "overhead")},
            **{name: getattr(self.total, name) for name in of_total},
            "texture_bytes": sum(texture.bytes for texture in self.textures),
        }

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"report": REPORT, "version": VERSION, **super().to_json()}

    def kind_table(self) -> Table:
        """Tabulate the draws by kind."""
        caption = "Of one run, in the order of the plan."
        return Table("Draws by kind", _KIND_COLUMNS, self.kinds, self.total, caption)

    def draw_table(self) -> Table:
        """Tabulate every draw."""
        caption = (
            "Outputs are columns×rows of a matrix. Issue is Python's time to issue the draw; meanwhile, a software "
            "renderer executes earlier draws."
        )
        return Table(f"Every draw ({len(self.draws)})", _DRAW_COLUMNS, self.draws, caption=caption, folded=True)

    def texture_table(self) -> Table:
        """Tabulate every texture."""
        title, caption = f"Every texture ({len(self.textures)})", "Texels are width×height."
        return Table(title, _TEXTURE_COLUMNS, self.textures, caption=caption, folded=True)
