"""Traces of profiled runs in the Chrome trace event format, for Perfetto (ui.perfetto.dev) and chrome://tracing.

``traceEvents`` holds complete events (``X``, with ``ts`` and ``dur`` in microseconds), counters (``C``) and names
(``M``). Two tracks: Python issuing draws, and the draws, each of which begins when the previous one ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from glinfer.engine.report import plain
from glinfer.formats.files import AnyPath, replacing
from glinfer.inspect.profile.result import DrawProfile, ProfileReport

PROCESS = 1
CPU_TRACK, DRAW_TRACK = 1, 2
COUNTER = "bytes read a second"
Event = dict[str, Any]


def trace(report: ProfileReport) -> dict[str, Any]:
    """Convert the profiled run of median duration to one JSON object; ``ts`` 0 is its beginning."""
    return {
        "traceEvents": [*_names(report), *_issuing(report), *_drawing(report)],
        "displayTimeUnit": "ms",
        "otherData": {
            "model": report.model,
            "renderer": report.renderer,
            "plan": report.plan,
            "weights": report.weights,
            report.what: report.tokens,
            "timing": report.timing,
        },
    }


def write_trace(path: AnyPath, report: ProfileReport) -> None:
    """Write :func:`trace` to a file; FormatError if the file cannot be written."""
    text = json.dumps(trace(report), ensure_ascii=False, allow_nan=False)
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def _names(report: ProfileReport) -> Iterator[Event]:
    name = f"glinfer · {report.model or report.plan} · {report.renderer}"
    yield _event("M", "process_name", 0, 0, {"name": name})
    tracks = ((CPU_TRACK, "CPU: issuing draws"), (DRAW_TRACK, f"draws ({report.timing})"))
    for index, (track, name) in enumerate(tracks):
        yield _event("M", "thread_name", track, 0, {"name": name})
        yield _event("M", "thread_sort_index", track, 0, {"sort_index": index})


def _issuing(report: ProfileReport) -> Iterator[Event]:
    line = report.timeline
    for draw, (begin, end) in zip(report.draws, line.issued, strict=True):
        yield _span(draw.name, "issue", CPU_TRACK, begin - line.start, end - line.start, {"draw": draw.index})
    last = line.issued[-1][1]
    yield _span("waiting for the last draw", "wait", CPU_TRACK, last - line.start, line.end - line.start, {})


def _drawing(report: ProfileReport) -> Iterator[Event]:
    line = report.timeline
    # A renderer's clock may differ slightly from the CPU's.
    bounds = [max(0, bound - line.start) for bound in line.bounds]
    whole = {name: getattr(report.total, name) for name in ("bytes_read", "bytes_written", "draws")}
    yield _span(f"{report.what} {report.tokens}", "run", DRAW_TRACK, bounds[0], bounds[-1], whole)
    for draw, (begin, end) in zip(report.draws, pairwise(bounds), strict=True):
        yield _span(draw.name, draw.kind, DRAW_TRACK, begin, end, _arguments(draw))
        rate = draw.bytes_read / (end - begin) if end > begin else 0.0  # bytes in a nanosecond
        yield _event("C", COUNTER, DRAW_TRACK, begin, {"GB/s": round(rate, 3)})
    yield _event("C", COUNTER, DRAW_TRACK, bounds[-1], {"GB/s": 0.0})


def _event(phase: str, name: str, track: int, moment: int, arguments: dict[str, Any], **further: Any) -> Event:
    """Make an event at ``moment`` nanoseconds from the beginning of the run."""
    return {"ph": phase, "name": name, "pid": PROCESS, "tid": track, "ts": moment / 1000.0, "args": arguments} | further


def _span(name: str, category: str, track: int, begin: int, end: int, arguments: dict[str, Any]) -> Event:
    """Make a complete event."""
    return _event("X", name, track, begin, arguments, cat=category, dur=max(0, end - begin) / 1000.0)


def _arguments(draw: DrawProfile) -> dict[str, Any]:
    same = ("kind", "op", "outputs", "rows", "cols", "bytes_read", "bytes_written", "defines")
    return {
        "draw": draw.index,
        **{name: plain(getattr(draw, name)) for name in same},
        "shader": f"shaders/{draw.shader}.frag",
        "inputs": {
            read.sampler or "added to": f"{read.tensor} ({read.format}, {read.bytes} bytes)" for read in draw.reads
        },
        "usual_ms": draw.ms,
    }
