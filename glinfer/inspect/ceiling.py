"""What fragment passes can do at most here: texels fetched, multiply-adds, and what a pass costs by itself.

Measured with passes that do nothing else. Decoding has to fetch every weight once a token, so the bytes of the
weights over the fetch rate are the least that a token can take, however it is computed. Taking in a prompt fetches a
weight for many tokens at once and is bound by multiply-adds instead: how near the plan's own large matrix products come
to their ceiling is measured too (:func:`measure_products`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glinfer.engine.model import Model
from glinfer.engine.prefill import Prefill
from glinfer.gl.context import Device
from glinfer.gl.layouts.matrix import FORMATS, Layout
from glinfer.gl.program import Program
from glinfer.gl.replay import Draw, replay
from glinfer.gl.texture import Texture
from glinfer.inspect.draws import example_ids

FETCHED = ("rgba32f", "rgba32ui", "rgba16f", "r32f")
"""The texture formats that are measured, by their names in :data:`glinfer.gl.layouts.matrix.FORMATS`."""
PRODUCTS = ("h.0.mlp.fc_in", "h.0.mlp.fc_out")
"""The draws of the chunk plan that are timed alone: the largest matrix products of a block."""
STANDARD_BYTES = 1 << 24
"""Of the texture that is fetched, unless another size is asked for."""

_EDGES = (128, 256, 512)  # of the target: CPUs want long fragments, GPUs many; the best counts
_SMALL_EDGE = 32  # of the target of a pass that does nothing
_MOST_TEXELS = 1 << 22  # 2048×2048, which every renderer has
_FETCH_ROUNDS = 8  # a draw that lasts long makes what it costs by itself small
_ALU_ROUNDS = 64
_ALU_EDGE = 256
_CHAIN = 64  # passes that depend on each other
_SAMPLES = 5
_SAMPLE_SECONDS = 0.01


@dataclass(frozen=True)
class FetchRate:
    """How fast the texels of one texture are fetched, one after the other; ``function`` is GLSL's faster one of two."""

    format: str
    texture_bytes: int
    function: str
    texels_per_second: float

    @property
    def bytes_per_second(self) -> float:
        """The same in bytes."""
        return self.texels_per_second * FORMATS[self.format].bytes_per_texel


@dataclass(frozen=True)
class ProductRate:
    """How fast one draw of a model's chunk plan multiplies [rows, inputs] by [inputs, outputs], run alone.

    A multiply-add is one multiplication and one addition, as in ``CeilingReport.multiply_adds_per_second``. Only those
    that the matrices ask for count: ``rows · inputs · outputs``, not the padding to whole blocks, norm or activation.
    A gate's outputs are among them.
    """

    label: str
    draw: str
    rows: int
    inputs: int
    outputs: int
    milliseconds: float

    @property
    def multiply_adds_per_second(self) -> float:
        """What the product needs over the time that it took."""
        return 1000.0 * self.rows * self.inputs * self.outputs / self.milliseconds


@dataclass(frozen=True)
class CeilingReport:
    """A renderer's ceilings; times in microseconds.

    Attributes:
        fetches: by format, and by size where others were asked for.
        multiply_adds_per_second: of float32 in fragments, without any fetch; twice as many floating-point operations.
        pass_us: from pass to pass in a chain in which each reads what the one before wrote, 32×32 texels.
        issue_us: Python's time to issue such a draw where it depends on none.
        readback_us: to read one texel back when nothing is left to draw.
        products: matrix products of the models that were measured beside it.
    """

    renderer: str
    fetches: tuple[FetchRate, ...]
    multiply_adds_per_second: float
    pass_us: float
    issue_us: float
    readback_us: float
    products: tuple[ProductRate, ...] = ()

    def fetch(self, format_name: str, size: int) -> FetchRate:
        """The rate of a format for the texture that is nearest to so many bytes."""
        measured = [rate for rate in self.fetches if rate.format == format_name]
        return min(measured, key=lambda rate: abs(math.log2(rate.texture_bytes / size)))

    def of_multiply_adds(self, product: ProductRate) -> float:
        """Multiply-adds a second of a product as a share of what a pass that does nothing else reaches."""
        return product.multiply_adds_per_second / self.multiply_adds_per_second

    def to_json(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        fetches = [{**dataclasses.asdict(rate), "bytes_per_second": rate.bytes_per_second} for rate in self.fetches]
        products = [
            {
                **dataclasses.asdict(product),
                "multiply_adds_per_second": product.multiply_adds_per_second,
                "of_multiply_adds": self.of_multiply_adds(product),
            }
            for product in self.products
        ]
        return {**dataclasses.asdict(self), "fetches": fetches, "products": products}


def measure_ceilings(
    device: Device,
    sizes: Sequence[tuple[str, int]] = (),
    *,
    sample_seconds: float = _SAMPLE_SECONDS,
    on_step: Callable[[int, int], None] = lambda done, total: None,
) -> CeilingReport:
    """Measure everything that :class:`CeilingReport` tells.

    Args:
        device: the renderer.
        sizes: further (format, bytes) to fetch from, such as those of a model's weights; smaller ones than the
            standard size are taken as that.
        sample_seconds: how long one of five samples takes at least.
        on_step: told (steps done, steps in all).
    """
    wanted = dict.fromkeys([(name, nearest_texels(name, STANDARD_BYTES)) for name in FETCHED])
    wanted.update(dict.fromkeys((name, nearest_texels(name, max(size, STANDARD_BYTES))) for name, size in sizes))
    fetches = []
    total = len(wanted) + 2
    for done, (name, texels) in enumerate(wanted):
        on_step(done, total)
        fetches.append(fetch_rate(device, name, texels, sample_seconds))
    on_step(total - 2, total)
    multiply_adds = _multiply_adds(device, sample_seconds)
    on_step(total - 1, total)
    pass_us, issue_us, readback_us = _overheads(device)
    on_step(total, total)
    return CeilingReport(device.description, tuple(fetches), multiply_adds, pass_us, issue_us, readback_us)


def measure_products(model: Model, label: str, *, sample_seconds: float = _SAMPLE_SECONDS) -> tuple[ProductRate, ...]:
    """Time :data:`PRODUCTS` of the model's chunk plan alone, each at a full chunk; none where it has no such draw.

    The last block of the chunk plan ends with its keys and values, so a model of one block has none.

    Args:
        model: with the fast plan; it stays as it is.
        label: for the rows.
        sample_seconds: how long one of five samples takes at least; the fastest counts.

    Raises:
        PlanError: the chunk plan does not fit the renderer.
    """
    found = []
    with contextlib.ExitStack() as held:
        caches = model.bound.sharer()  # the model's own hold what it has run
        held.callback(caches.release)
        chunks = Prefill(model.engine.options).into(caches)
        session = chunks.session
        held.callback(session.release)
        rows = session.plan.max_rows
        chunks.run(example_ids(model.config, rows).tolist(), 0)  # what is multiplied are then real numbers
        values = session.plan.values_for(rows)
        for spec, draw in zip(session.plan.draws, session.draws, strict=True):
            if spec.name in PRODUCTS:
                # Flushed one by one: a tiler would run all of them tile by tile, out of its caches.
                seconds = _seconds(model.device, [draw], sample_seconds, values, flush_every=1)
                inputs, outputs = (session.plan.table[name].shape[1] for name in (spec.input("x0"), spec.outputs[0]))
                outputs *= 1 + int(dict(spec.defines)["GATED"])
                found.append(ProductRate(label, spec.name, rows, inputs, outputs, 1000.0 * seconds))
    return tuple(found)


def nearest_texels(format_name: str, size: int) -> int:
    """The power of two nearest to so many bytes, within what the shader and every renderer can do."""
    power = round(math.log2(max(1, size / FORMATS[format_name].bytes_per_texel)))
    return min(_MOST_TEXELS, max(_EDGES[0] ** 2, 1 << power))


class _Bench:
    """Textures and programs of one measurement, released together."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.owned: list[Texture | Program] = []

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for item in reversed(self.owned):
            item.release()

    def texture(self, width: int, height: int, format_name: str = "rgba32f", *, filled: bool = False) -> Texture:
        form = FORMATS[format_name]
        layout = Layout(height, width, width, height, form)
        texels = None
        if filled:
            shape = (height, width) if form.channels == 1 else (height, width, form.channels)
            texels = np.random.default_rng(1).random(shape, dtype=np.float32).astype(form.dtype)
        made = Texture(self.device, layout, "ceiling", texels)
        self.owned.append(made)
        return made

    def program(self, shader: str, defines: dict[str, int | float], samplers: Sequence[str]) -> Program:
        made = Program(self.device, shader, defines, samplers)
        self.owned.append(made)
        return made

    def draw(
        self,
        program: Program,
        target: Texture,
        textures: Sequence[Texture] = (),
        constants: tuple[tuple[str, float], ...] = (),
    ) -> Draw:
        return Draw(
            name="ceiling",
            program=program,
            framebuffer=target.framebuffer,
            textures=tuple(textures),
            constants=constants,
            per_run=(),
            size=(target.layout.rows, target.layout.cols),
        )

    def fetching(
        self, source: Texture, targets: Sequence[Texture], steps: int, *, rounds: int = 1, lookup: bool = False
    ) -> list[Draw]:
        """Draws that fetch from one texture, into each of the targets."""
        layout = source.layout
        defines: dict[str, int | float] = {
            "X_WIDTH": layout.width,
            "X_HEIGHT": layout.height,
            "BLOCKS_WIDE": targets[0].layout.width // 4,
            "STEPS": steps,
            "HALVES": targets[0].layout.width * targets[0].layout.height // 8,
            "ROUNDS": rounds,
            "UNROLL": min(steps, 8),
            "INTEGERS": int(layout.format.is_integer),
            "LOOKUP_TEXTURE": int(lookup),
        }
        program = self.program("ceiling_fetch", defines, ["x"])
        return [self.draw(program, target, [source]) for target in targets]


def _seconds(
    device: Device,
    draws: Sequence[Draw],
    least: float,
    values: Mapping[str, int | float] | None = None,
    *,
    flush_every: int = 0,
) -> float:
    """Of one draw: the fastest of a few samples, each of at least so many seconds. Draws take turns.

    One after the other goes to another target: a tiler would run all draws of one target tile by tile, and find
    the texels of the draw before in its cache.
    """

    def sample(count: int) -> float:
        started = time.perf_counter()
        replay(device, [draws[place % len(draws)] for place in range(count)], values or {}, flush_every=flush_every)
        draws[(count - 1) % len(draws)].framebuffer.read(0, 1, 1)  # waits for all of them
        return time.perf_counter() - started

    count, best = len(draws), float("inf")
    sample(count)  # compiles, in the drivers that do so at the first draw
    while (taken := sample(count)) < least and count < 1 << 14:
        count *= 2
    for _ in range(_SAMPLES):
        best = min(best, taken)
        taken = sample(count)
    return min(best, taken) / count


def fetch_rate(device: Device, format_name: str, texels: int, least: float) -> FetchRate:
    """Measure how fast a texture of so many texels is fetched; a sample takes ``least`` seconds."""
    width = 2048 if texels > 1 << 20 else 1024
    found: dict[str, float] = {}
    with _Bench(device) as bench:
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


def _multiply_adds(device: Device, least: float) -> float:
    edge = _ALU_EDGE
    with _Bench(device) as bench:
        program = bench.program("ceiling_alu", {"ROUNDS": _ALU_ROUNDS}, [])
        constants = (("factor", 0.999), ("addend", 0.5))
        draws = [bench.draw(program, bench.texture(edge, edge), constants=constants) for _ in range(2)]
        return 96 * _ALU_ROUNDS * edge * edge / _seconds(device, draws, least)


def _overheads(device: Device) -> tuple[float, float, float]:
    """Microseconds of a dependent pass, of issuing one that waits for nothing, and of a readback."""
    edge = _SMALL_EDGE
    with _Bench(device) as bench:
        first, second, third = (bench.texture(edge, edge, filled=True) for _ in range(3))
        there, aside = bench.fetching(first, [second, third], 1)
        (back,) = bench.fetching(second, [first], 1)
        chain, independent = [there, back] * (_CHAIN // 2), [there, aside] * (_CHAIN // 2)
        found = []
        for _ in range(4 * _SAMPLES):
            times = [time.perf_counter()]
            for work in (
                lambda: replay(device, chain, {}),
                lambda: back.framebuffer.read(0, 1, 1),
                lambda: back.framebuffer.read(0, 1, 1),
                lambda: replay(device, independent, {}),
                lambda: aside.framebuffer.read(0, 1, 1),
            ):
                work()
                times.append(time.perf_counter())
            found.append((times[2] - times[0], times[4] - times[3], times[3] - times[2]))
    # Noise only ever adds, so the smallest sample has least of it.
    whole, issue, readback = (1e6 * min(samples) for samples in zip(*found, strict=True))
    return whole / _CHAIN, issue / _CHAIN, readback
