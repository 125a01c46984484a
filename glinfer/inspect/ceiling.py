"""Ceilings of a renderer, by passes that do nothing else: fetch rates, multiply-adds, and the overhead of a pass.

Decoding fetches every weight once per token, so a token takes at least the time of these fetches. Prefill fetches a
weight once for many tokens and is bound by multiply-adds.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glinfer.engine.model import Model
from glinfer.engine.prefill import Companions, Prefill
from glinfer.engine.progress import Progress, no_progress
from glinfer.engine.report import Report
from glinfer.gl.context import Device
from glinfer.gl.layouts.matrix import FORMATS, Layout
from glinfer.gl.program import Program
from glinfer.gl.replay import Draw, DrawCall, Tape
from glinfer.gl.texture import Texture
from glinfer.inspect.draws import example_ids
from glinfer.inspect.timing import Work, interleaved, milliseconds

FETCHED = ("rgba32f", "rgba32ui", "rgba16f", "r32f")
"""Measured texture formats, by their names in :data:`glinfer.gl.layouts.matrix.FORMATS`."""
PRODUCTS = ("h.0.mlp.fc_in", "h.0.mlp.fc_out")
"""Draws of the chunk plan that are timed alone: the largest matrix products of a block."""
STANDARD_BYTES = 1 << 24
"""Default size of the fetched texture."""

_EDGES = (128, 256, 512)  # target sizes: CPUs want long fragments, GPUs many; the best counts
_SMALL_EDGE = 32  # target of an empty pass
_MAX_TEXELS = 1 << 22  # 2048×2048, which every renderer has
_FETCH_ROUNDS = 8  # makes a draw long relative to its overhead
_ALU_ROUNDS = 64
_ALU_EDGE = 256
_CHAIN = 64  # passes that depend on each other
_SAMPLES = 5
_SAMPLE_SECONDS = 0.01


@dataclass(frozen=True)
class FetchRate(Report):
    """Rate of fetching the texels of one texture in order; ``function`` is the faster of two GLSL functions."""

    derived = ("bytes_per_second",)

    format: str
    texture_bytes: int
    function: str
    texels_per_second: float

    @property
    def bytes_per_second(self) -> float:
        """Rate in bytes."""
        return self.texels_per_second * FORMATS[self.format].bytes_per_texel


@dataclass(frozen=True)
class ProductRate(Report):
    """Rate at which one draw of a model's chunk plan, run alone, multiplies [rows, inputs] by [inputs, outputs].

    Only ``rows · inputs · outputs`` multiply-adds count, a gate included; padding to whole blocks, norm
    and activation do not.
    """

    derived = ("multiply_adds_per_second",)

    label: str
    draw: str
    rows: int
    inputs: int
    outputs: int
    milliseconds: float

    @property
    def multiply_adds_per_second(self) -> float:
        """Multiply-adds of the product over its time."""
        return 1000.0 * self.rows * self.inputs * self.outputs / self.milliseconds


@dataclass(frozen=True)
class CeilingReport(Report):
    """Ceilings of a renderer: fetch rates by format and size, times in microseconds, and products if measured.

    A pass that reads the previous one's output takes ``pass_us``; issuing one without such a dependency ``issue_us``;
    reading one texel back from an idle renderer ``readback_us``.
    """

    renderer: str
    fetches: tuple[FetchRate, ...]
    multiply_adds_per_second: float
    pass_us: float
    issue_us: float
    readback_us: float
    products: tuple[ProductRate, ...] = ()

    def fetch(self, format_name: str, size: int) -> FetchRate:
        """Return the rate of a format for the measured texture nearest to ``size`` bytes."""
        measured = [rate for rate in self.fetches if rate.format == format_name]
        return min(measured, key=lambda rate: abs(math.log2(rate.texture_bytes / size)))

    def of_multiply_adds(self, product: ProductRate) -> float:
        """Return a product's multiply-adds a second as a share of the ceiling."""
        return product.multiply_adds_per_second / self.multiply_adds_per_second

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        products = [{**each.to_json(), "of_multiply_adds": self.of_multiply_adds(each)} for each in self.products]
        return {**super().to_json(), "products": products}


def measure_ceilings(
    device: Device,
    sizes: Sequence[tuple[str, int]] = (),
    *,
    formats: Sequence[str] | None = None,
    sample_seconds: float = _SAMPLE_SECONDS,
    on_progress: Progress = no_progress,
) -> CeilingReport:
    """Measure the ceilings of a renderer; each of five samples takes at least ``sample_seconds``.

    Fetched are textures of :data:`STANDARD_BYTES` in these formats, by default :data:`FETCHED`, and ``sizes``, further
    (format, bytes), such as those of a model's weights. ``on_progress`` receives (finished steps, steps).
    """
    wanted = [*((name, STANDARD_BYTES) for name in (FETCHED if formats is None else formats)), *sizes]
    fetches = fetch_rates(device, wanted, sample_seconds, lambda done, total: on_progress(done, total + 2))
    multiply_adds = multiply_add_rate(device, sample_seconds)
    on_progress(len(fetches) + 1, len(fetches) + 2)
    pass_us, issue_us, readback_us = _overheads(device)
    on_progress(len(fetches) + 2, len(fetches) + 2)
    return CeilingReport(device.description, tuple(fetches), multiply_adds, pass_us, issue_us, readback_us)


def fetch_rates(
    device: Device, sizes: Sequence[tuple[str, int]], least: float, on_progress: Progress = no_progress
) -> list[FetchRate]:
    """Measure the rates of fetching textures of (format, bytes), at least :data:`STANDARD_BYTES` and each size once.

    A sample takes ``least`` seconds; ``on_progress`` receives (finished rates, rates).
    """
    wanted = dict.fromkeys((name, _nearest_texels(name, max(size, STANDARD_BYTES))) for name, size in sizes)
    found = []
    for done, (name, texels) in enumerate(wanted):
        on_progress(done, len(wanted))
        found.append(fetch_rate(device, name, texels, least))
    on_progress(len(wanted), len(wanted))
    return found


def measure_products(model: Model, label: str, *, sample_seconds: float = _SAMPLE_SECONDS) -> tuple[ProductRate, ...]:
    """Time :data:`PRODUCTS` of the model's chunk plan alone, each at a full chunk; rows are labelled ``label``.

    The model's sequence runs again afterwards. The chunk plan's last block ends after its keys and values, so a model
    of one block has no products. PlanError if the chunk plan does not fit the renderer.
    """
    found, prefill = [], Prefill(model.engine.options)
    model.engine.forget_own()
    chunks = Companions(prefill, model.bound).chunk(prefill.rows)
    session = chunks.session
    try:
        rows = session.plan.max_rows
        chunks.run(example_ids(model.config, rows).tolist(), 0)  # fills the inputs with real numbers
        values = session.compiled.plan.values(session.plan.values_for(rows))
        for spec, draw in zip(session.plan.draws, session.draws, strict=True):
            if spec.name in PRODUCTS:
                # Flush each: a tiler would otherwise run all of them tile by tile, from its caches.
                seconds = _seconds(model.device, [draw], sample_seconds, values, flush_every=1)
                inputs, outputs = (session.plan.table[name].shape[1] for name in (spec.input("x0"), spec.outputs[0]))
                outputs *= 1 + int(dict(spec.defines)["GATED"])
                found.append(ProductRate(label, spec.name, rows, inputs, outputs, 1000.0 * seconds))
    finally:
        session.release()
    return tuple(found)


def _nearest_texels(format_name: str, size: int) -> int:
    """Return the power of two of texels nearest to ``size`` bytes, within the limits of shader and renderers."""
    power = round(math.log2(max(1, size / FORMATS[format_name].bytes_per_texel)))
    return min(_MAX_TEXELS, max(_EDGES[0] ** 2, 1 << power))


class _Resources(contextlib.ExitStack):
    """Textures and programs of one measurement, released together."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def texture(self, width: int, height: int, format_name: str = "rgba32f", *, filled: bool = False) -> Texture:
        form = FORMATS[format_name]
        layout = Layout(height, width, width, height, form)
        texels = None
        if filled:
            shape = (height, width) if form.channels == 1 else (height, width, form.channels)
            texels = np.random.default_rng(1).random(shape, dtype=np.float32).astype(form.dtype)
        made = Texture(self.device, layout, "ceiling", texels)
        self.callback(made.release)
        return made

    def program(self, shader: str, defines: dict[str, int | float], samplers: Sequence[str], *inputs: str) -> Program:
        made = Program(self.device, shader, defines, samplers, formats=(inputs, ("rgba32f",)))
        self.callback(made.release)
        return made

    def draw(
        self,
        program: Program,
        target: Texture,
        textures: Sequence[Texture] = (),
        constants: tuple[tuple[str, float], ...] = (),
    ) -> Draw:
        call = DrawCall(constants, rows=target.layout.rows)
        return Draw("ceiling", program, target.framebuffer, tuple(textures), call)

    def fetching(
        self, source: Texture, targets: Sequence[Texture], steps: int, *, rounds: int = 1, lookup: bool = False
    ) -> list[Draw]:
        """Make draws that fetch from one texture into each target."""
        layout = source.layout
        defines: dict[str, int | float] = {
            "X_WIDTH": layout.width,
            "X_HEIGHT": layout.height,
            "BLOCKS_WIDE": targets[0].layout.width // 4,
            "STEPS": steps,
            "HALVES": targets[0].layout.width * targets[0].layout.height // 8,
            "ROUNDS": rounds,
            "UNROLL": min(steps, 8),
            "INTEGERS": "fui".index(layout.format.kind),
            "LOOKUP_TEXTURE": int(lookup),
        }
        program = self.program("ceiling_fetch", defines, ["x"], layout.format.name)
        return [self.draw(program, target, [source]) for target in targets]


def _seconds(
    device: Device,
    draws: Sequence[Draw],
    least: float,
    values: Mapping[str, int | float] | None = None,
    *,
    flush_every: int = 0,
) -> float:
    """Return the seconds of one draw: the fastest of a few samples of at least ``least`` seconds each.

    Draws alternate between targets: a tiler would run all draws of one target tile by tile, and find the texels of the
    previous draw in its cache.
    """

    def work(count: int) -> Callable[[], None]:
        tape = Tape(device, [draws[index % len(draws)] for index in range(count)], flush_every)

        def run() -> None:
            tape.run(values or {})
            tape.draws[-1].framebuffer.read(0, 1, 1)  # waits for all of them

        return run

    count = len(draws)
    work(count)()  # some drivers compile at the first draw
    while (taken := milliseconds(work(count))) < 1000.0 * least and count < 1 << 14:
        count *= 2
    (times,) = interleaved([Work(work(count))], _SAMPLES, warm_ups=0)
    return min(taken, *times) / count / 1000.0


def fetch_rate(device: Device, format_name: str, texels: int, least: float) -> FetchRate:
    """Measure the rate of fetching a texture of ``texels`` texels; a sample takes ``least`` seconds."""
    width = 2048 if texels > 1 << 20 else 1024
    found: dict[str, float] = {}
    with _Resources(device) as bench:
        source = bench.texture(width, texels // width, format_name, filled=True)
        for edge, function in itertools.product(_EDGES, ("texelFetch", "texture")):
            if edge * edge > texels:
                continue
            targets = [bench.texture(edge, edge) for _ in range(2)]
            steps, lookup = texels // (edge * edge), function == "texture"
            draws = bench.fetching(source, targets, steps, rounds=_FETCH_ROUNDS, lookup=lookup)
            reached = _FETCH_ROUNDS * texels / _seconds(device, draws, least)
            found[function] = max(found.get(function, 0.0), reached)
    best = max(found, key=lambda name: found[name])
    return FetchRate(format_name, texels * FORMATS[format_name].bytes_per_texel, best, found[best])


def multiply_add_rate(device: Device, least: float) -> float:
    """Measure multiply-adds a second; a sample takes ``least`` seconds."""
    edge = _ALU_EDGE
    with _Resources(device) as bench:
        program = bench.program("ceiling_alu", {"ROUNDS": _ALU_ROUNDS}, [])
        constants = (("factor", 0.999), ("addend", 0.5))
        draws = [bench.draw(program, bench.texture(edge, edge), constants=constants) for _ in range(2)]
        return 96 * _ALU_ROUNDS * edge * edge / _seconds(device, draws, least)


def _overheads(device: Device) -> tuple[float, float, float]:
    """Return microseconds of a dependent pass, of issuing an independent one, and of a readback."""
    edge = _SMALL_EDGE
    with _Resources(device) as bench:
        first, second, third = (bench.texture(edge, edge, filled=True) for _ in range(3))
        there, aside = bench.fetching(first, [second, third], 1)
        (back,) = bench.fetching(second, [first], 1)
        chain, independent = (Tape(device, [there, each] * (_CHAIN // 2)) for each in (back, aside))

        def read(draw: Draw) -> None:
            draw.framebuffer.read(0, 1, 1)  # waits for all draws

        def chained() -> int:
            issued = chain.run({})
            read(back)
            return issued

        works = (
            Work(chained, prepare=lambda: read(aside)),
            Work(lambda: read(back)),
            Work(lambda: independent.run({})),
        )
        times = interleaved(works, 4 * _SAMPLES, warm_ups=0)
    # Noise only adds time, so the smallest sample has the least noise.
    passing, readback, issue = (1000.0 * min(samples) for samples in times)
    return passing, issue, readback
