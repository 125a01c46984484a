"""``python -m qa flips``: flip bits in the textures of running models, and count how many are found."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from glinfer.cli.common import device_options, json_option, opened, print_json, show_table, stage_bars
from glinfer.config import ModelConfig
from glinfer.engine.loading import prepare
from glinfer.engine.model import Model
from glinfer.engine.progress import StagedProgress, no_staged_progress
from glinfer.engine.textures import TexturesReport, as_bits
from glinfer.errors import InputError
from glinfer.families import DECODERS
from glinfer.formats import Checkpoint, random_checkpoint
from glinfer.formats.packed import PackedTensor
from glinfer.gl.context import Device
from glinfer.gl.layouts.packing import ConstantLayout
from glinfer.gl.texture import Texture
from glinfer.inspect.tables import Column, Table
from glinfer.program.session import Session
from glinfer.quant.ggml import pack

FLIPPED_FAMILIES = ("gab", "gpt2", "llama", "qwen3")
"""LayerNorm and RMSNorm, learned and rotary positions, biases, norms of heads."""
FILE_FORMATS = ("Q8_ROW", "Q4_0")
"""Formats that files have their matrices in, and plans keep; GAB1 files have none."""
FLIPPED_FORMATS = ("f32", "f16", "q16", "q8", *FILE_FORMATS, "reference")
"""Formats of weights in fast plans, and the reference plan, whose norms and biases are textures of their own."""
SHARE = 0.25
"""Of the sampled comparison, which sees every line in four calls."""

INTACT = "intact"
"""The kind of a model without a fault."""

_HALF_INFINITY, _HALF_QUIET = 0x7C00, 0x0200


@dataclass(frozen=True)
class Count:
    """Bits flipped in one kind of texture of one model, or comparisons of a model without a fault.

    Attributes:
        family, weights: the model's, see :data:`FLIPPED_FORMATS`.
        kind: what the flipped number is, or :data:`INTACT`.
        textures: textures of that kind.
        tries: bits flipped, one at a time, or comparisons, whole and sampled in turn, with tokens in between.
        whole: how many flips the whole comparison named, with place and bits; how many comparisons found nothing.
        sampled: how many flips a cycle of sampled comparisons named; ``whole`` without a fault.
    """

    family: str
    weights: str
    kind: str
    textures: int
    tries: int
    whole: int
    sampled: int

    @property
    def passed(self) -> bool:
        """Whether every flip was found both ways, or nothing where there was none."""
        return self.whole == self.sampled == self.tries


def flip_everywhere(
    device: Device,
    *,
    count: int,
    clean: int,
    seed: int = 0,
    families: tuple[str, ...] = FLIPPED_FAMILIES,
    weights: tuple[str, ...] = FLIPPED_FORMATS,
    on_progress: StagedProgress = no_staged_progress,
) -> Iterator[Count]:
    """Flip ``count`` bits in each kind of texture of each family in each format, and compare ``clean`` times without.

    Args:
        device: the renderer.
        count: bits of each kind.
        clean: comparisons of a model without a fault, with tokens in between.
        seed: of models, places and bits.
        families: names of families.
        weights: of :data:`FLIPPED_FORMATS`.
        on_progress: receives (model, finished kinds, kinds).

    Raises:
        InputError: there is no such family or format.
    """
    for number, (family, form) in enumerate(product(families, weights)):
        if form in FILE_FORMATS and family in DECODERS and DECODERS[family].gab1:
            continue
        random = np.random.default_rng([seed, number])
        checkpoint = model_of(family, form, seed)
        kept = "file" if form in (*FILE_FORMATS, "reference") else form
        engine = prepare(checkpoint, device, "reference" if form == "reference" else "fast", kept).bind(device)
        with Model(engine) as model:
            kinds = kinds_of(model.bound)
            quiet = clean - _alarms(model, clean, random)
            yield Count(family, form, INTACT, len(model.bound.plan.of_kind("weight")), clean, quiet, quiet)
            for done, (kind, places) in enumerate(kinds.items()):
                on_progress(f"{family} in {form}", done, len(kinds))
                yield Count(family, form, kind, len(places), count, *_found(model, places, count, random))


def model_of(family: str, form: str, seed: int) -> Checkpoint:
    """A small random model, its matrices in a file's format where ``form`` is one.

    Raises:
        InputError: there is no such family or format.
    """
    if family not in DECODERS or form not in FLIPPED_FORMATS:
        raise InputError(
            f"found family {family} in {form}; expected one of {', '.join(DECODERS)}, in {', '.join(FLIPPED_FORMATS)}"
        )
    record = DECODERS[family]
    heads = "kv_heads=2," if record.rotary else ""
    shape = f"vocab=70,dim=64,heads=4,{heads}blocks=1,context=32"
    config = ModelConfig.from_options(shape if family == "gab" else f"family={family},{shape}")
    made = random_checkpoint(config, seed, scale=0.2)
    if form not in FILE_FORMATS:
        return made
    positions = f"{record.names.positions}.weight"
    names = [name for name, tensor in made.tensors.items() if tensor.ndim == 2 and name != positions]
    packed = {name: PackedTensor(form, pack(made.tensors[name], form)) for name in names}
    rest = {name: tensor for name, tensor in made.tensors.items() if name not in packed}
    return Checkpoint(config, rest, made.source, packed)


Places = list[tuple[str, npt.NDArray[np.bool_] | None]]
"""Names of tensors; and which columns of one are of the kind, None for all texels, padding included."""


def kinds_of(bound: Session) -> dict[str, Places]:
    """The weights of a session by kind."""
    found: dict[str, Places] = {}
    for tensor in bound.plan.of_kind("weight"):
        layout, name = bound.texture(tensor.name).layout, tensor.name
        if isinstance(layout, ConstantLayout):
            scale = np.arange(tensor.shape[1]) < 4 * layout.scales
            bias = np.arange(tensor.shape[1]) == tensor.shape[1] - 1
            for kind, columns in (("scale", scale), ("bias", bias), ("constant", ~(scale | bias))):
                if columns.any():
                    found.setdefault(kind, []).append((name, columns))
            continue
        found.setdefault(_kind_of(name, layout.format.is_integer), []).append((name, None))
    return found


def _kind_of(name: str, packed: bool) -> str:
    if name.endswith((".gain", ".turn")) or "ln_" in name or "norm" in name:
        return "norm"
    if name.endswith(".bias"):
        return "bias"
    if "wpe" in name or name == "rope":
        return "positions"
    if "wte" in name or "embed" in name:
        return "embedding"
    return "packed words" if packed else "matrix"


@contextmanager
def flipped(texture: Texture, x: int, y: int, channel: int, bit: int) -> Iterator[None]:
    """Flip one bit of a bound texture within the block."""
    line = texture.read_lines(y, 1)
    texel = np.ascontiguousarray(line[:, x : x + 1])
    changed = texel.copy()
    numbers = as_bits(changed).reshape(-1)
    numbers[channel] ^= numbers.dtype.type(1 << bit)
    try:
        texture.gl.write(numbers.view(texel.dtype).tobytes(), viewport=(x, y, 1, 1), alignment=4)
        yield
    finally:
        texture.gl.write(texel.tobytes(), viewport=(x, y, 1, 1), alignment=4)


def _place(
    texture: Texture, columns: npt.NDArray[np.bool_] | None, random: np.random.Generator
) -> tuple[int, int, int]:
    """A random (x, y, channel) of a texture, among some columns of its matrix."""
    layout = texture.layout
    shape = layout.height, layout.width, layout.format.channels
    if columns is None:
        y, x, channel = (int(random.integers(edge)) for edge in shape)
        return x, y, channel
    marks = layout.pack(np.tile(columns.astype(np.float32), (layout.rows, 1))).reshape(shape)
    places = np.argwhere(marks)
    y, x, channel = (int(edge) for edge in places[random.integers(len(places))])
    return x, y, channel


def _found(model: Model, places: Places, count: int, random: np.random.Generator) -> tuple[int, int]:
    """Flip bits one at a time; returns how many the whole and the sampled comparison found."""
    whole = sampled = 0
    for number in range(count):
        name, columns = places[number % len(places)]
        texture = model.bound.texture(name)
        place = _place(texture, columns, random)
        bit = int(random.integers(8 * np.dtype(texture.layout.format.dtype).itemsize))
        with flipped(texture, *place, bit):
            report = model.verify_textures()
            whole += _names(report, name, place, bit)
            reports = [model.verify_textures(SHARE) for _ in range(math.ceil(1 / SHARE))]
            sampled += any(_names(each, name, place, bit) for each in reports)
    return whole, sampled


def _names(report: TexturesReport, name: str, place: tuple[int, int, int], bit: int) -> bool:
    """Whether a report names exactly that bit."""
    if report.ok or len(report.different) != 1 or report.different[0].name != name:
        return False
    (found,) = report.different
    at = [(texel.x, texel.y, texel.channel) for texel in found.texels]
    if at != [place]:
        return False
    wanted = found.texels[0].expected ^ (1 << bit)
    # Half floats are read back as float32, which makes a signalling NaN a quiet one.
    quiet = _HALF_QUIET if found.format == "rgba16f" and wanted & _HALF_INFINITY == _HALF_INFINITY else 0
    return found.texels[0].found in (wanted, wanted | quiet)


def _alarms(model: Model, checks: int, random: np.random.Generator) -> int:
    """Compare without a fault, with tokens in between; returns how often something was found."""
    alarms = 0
    uses = _uses(model)
    for number in range(checks):
        uses[number % len(uses)](random.integers(model.config.vocab_size, size=5).tolist())
        alarms += not model.verify_textures(1.0 if number % 2 else SHARE).ok
    return alarms


def _uses(model: Model) -> list[Callable[[list[int]], Any]]:
    """Ways to run the model: a greedy and a sampled sequence, a batch, and scores."""
    greedy: Mapping[str, Any] = {"max_tokens": 4, "temperature": 0}
    uses: list[Callable[[list[int]], Any]] = [lambda ids: model.generate(ids, **greedy)]
    if model.plan.name == "fast":
        uses += [
            lambda ids: model.generate(ids, max_tokens=4, top_k=5, seed=ids[0]),
            lambda ids: model.generate([ids, ids[:2]], **greedy),
            lambda ids: model.score([ids, ids[:3]]),
        ]
    return uses


@click.command("flips")
@click.option("--count", type=click.IntRange(1), default=200, show_default=True, help="Bits to flip in each kind.")
@click.option("--clean", type=click.IntRange(0), default=200, show_default=True, help="Comparisons of intact models.")
@click.option("--families", default=",".join(FLIPPED_FAMILIES), show_default=True, help="Families, comma-separated.")
@click.option("--weights", default=",".join(FLIPPED_FORMATS), show_default=True, help="Formats of their weights.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of models, places and bits.")
@device_options
@json_option
def flips_command(
    count: int, clean: int, families: str, weights: str, seed: int, as_json: bool, **options: Any
) -> None:
    """Flip random bits in live textures one at a time, and count how many the texture comparison finds.

    A full comparison with the weights and a cycle of sampled comparisons with checksums look for each flip, which is
    then undone. A flip counts as found if exactly this texel and bit is named. Intact models are compared too, with
    sequences, batches and scores in between; nothing may be found there. The format 'reference' is the reference plan.

    \b
    python -m qa flips
    python -m qa flips --count 10 --clean 10 --families llama --weights q8,Q4_0

    The exit status is 1 if a flip is missed or anything else is found.
    """
    named, forms = (tuple(filter(None, text.split(","))) for text in (families, weights))
    with opened(options) as device, stage_bars() as advance:
        counts = flip_everywhere(
            device, count=count, clean=clean, seed=seed, families=named, weights=forms, on_progress=advance
        )
        found = list(counts)
        description = device.description
    passed = all(each.passed for each in found)
    if as_json:
        rows = [{**asdict(each), "passed": each.passed} for each in found]
        print_json({"seed": seed, "passed": passed, "counts": rows})
    else:
        columns = (
            *(Column(name, name) for name in ("family", "weights", "kind")),
            Column("textures", "textures", ""),
            Column("right whole", lambda each: f"{each.whole} of {each.tries}"),
            Column(f"sampled by {SHARE:g}", lambda each: f"{each.sampled} of {each.tries}"),
        )
        show_table(Table("Flips", columns, found))
        flips = [each for each in found if each.kind != INTACT]
        tries, whole, sampled = (sum(getattr(each, name) for each in flips) for name in ("tries", "whole", "sampled"))
        alarms = sum(each.tries - each.whole for each in found if each.kind == INTACT)
        click.echo(f"\n{tries:,} flips: {whole:,} found whole, {sampled:,} sampled; {alarms:,} alarms · {description}")
    if not passed:
        raise click.exceptions.Exit(1)
