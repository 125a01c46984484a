"""``python -m qa programs``: compare every plan with a recorded hash, and list what a change of the source does to it.

A program is what plan.json holds (run values, tensors with their layouts, draws), or the texels of all weights with the
recipes that made them. Each line of tests/models/programs.json has the hashes of a row of :func:`programs`.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import unified_diff
from functools import cache, lru_cache, partial
from hashlib import blake2b
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from glinfer.config import POOLINGS, ModelConfig
from glinfer.engine.run.fallback import plainest
from glinfer.errors import InputError, PlanError
from glinfer.export.companions import companions_of
from glinfer.export.plan import PlanExport, layout_entry
from glinfer.export.site import LIMITS, web_kernels
from glinfer.families import DECODERS, FAMILIES, TOWERS
from glinfer.formats import Checkpoint
from glinfer.formats.packed import PACKED_FORMATS
from glinfer.kernels.fused.delta import SPAN
from glinfer.kernels.options import KernelOptions, default_kernels, without_blending
from glinfer.lower.feed import runs
from glinfer.lower.fused.caches import delta_layers
from glinfer.lower.fused.choice import choice_plan
from glinfer.lower.fused.encode import encode_plan
from glinfer.lower.fused.image import image_plan
from glinfer.lower.fused.rows import batch_plan, chunk_plan, drafted_plan
from glinfer.lower.fused.token import HEAD_DRAWS, LOGITS, fast_plan
from glinfer.lower.options import ImageInputs, PlanOptions
from glinfer.lower.plain.gab import reference_plan
from glinfer.lower.plans import plan_for, weights_for
from glinfer.lower.weights.low_rank import AdapterRanks
from glinfer.lower.weights.recipe import Recipes
from glinfer.program.compiled import compile_plan
from glinfer.program.plan import Plan, PlanLimits
from glinfer.program.regions import region_layouts
from glinfer.program.session import weight_matrix
from glinfer.quant.formats import CACHE_FORMATS, FROM_FILE, WEIGHT_FORMATS
from qa.steps import ROOT, run
from tests.helpers.family_layers import formats_of, of_family
from tests.helpers.tiny_models import adapters_of, in_floats, in_formats

RECORD = Path("tests", "models", "programs.json")
MANY = 99
"""Draw buffers and texture units."""
SHOWN = 3
"""Programs of which ``--against`` prints the differences."""
LONGROPE = {"rope_type": "longrope", "factor": 3.0, "original_max_position_embeddings": 40}
LONGROPE |= {"short_factor": (1.0,) * 20, "long_factor": (2.0,) * 20}
MODELS = {
    **{name: of_family(name) for name in DECODERS},
    "gab odd": ModelConfig(70, 34, 2, 2, 130),
    "llama biased": replace(of_family("llama"), attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "lfm2 biased": replace(of_family("lfm2"), conv_bias=True),
    "granite scaled": replace(
        of_family("granite"), residual_multiplier=0.25, logits_scaling=8.0, embedding_multiplier=3.0
    ),
    "phi3 two angles": replace(of_family("phi3"), rope_scaling=tuple(LONGROPE.items())),
}
"""A small decoder of each family, and others with what these lack."""
EMBEDDING = [*(name for name in FAMILIES if name not in DECODERS), "qwen3"]
EMBEDDERS = {
    name: replace(of_family(name), pooling=POOLINGS[1 + number % 5], type_vocab_size=2 * (name == "bert"))
    for number, name in enumerate(sorted(EMBEDDING, key=lambda name: FAMILIES[name].experts))
}
TOWER = ModelConfig(
    *(36, 24, 3, 2, 36, 40),
    model_type="siglip",
    patch_size=5,
    patches_per_token=9,
    dense=((28, False, "none"),),
    **TOWERS["siglip"].options,
)
"""A small image encoder."""
BY_GRID = ModelConfig(
    *(16, 24, 3, 2, 4096, 40),
    model_type="qwen3_vl_vision",
    patch_size=4,
    patches_per_token=4,
    deepstack_layers=(0,),
    dense=((96, True, "gelu"), (28, True, "none")) * 2,
    **TOWERS["qwen3_vl_vision"].options,
)
"""A small one for images of any shape."""
FEW = ("llama", "gpt2", "qwen3_moe")
"""Models whose programs are recorded with adapters, and for every packed format."""
ROUNDED = tuple(WEIGHT_FORMATS)[1:]
"""Weight formats that only the fast plan has."""
Facts = dict[str, Any]


class Program(NamedTuple):
    """One program: its row of the record, its name in the row, its index there, and what makes its facts."""

    row: str
    name: str
    place: int
    make: Callable[[], Facts]

    @property
    def key(self) -> str:
        """The name in messages, such as ``llama token: gpu q8 f32``."""
        return f"{self.row}: {self.name}"

    def facts(self) -> Facts:
        """The facts, or that there is no such program."""
        try:
            return self.make()
        except PlanError:
            return {"refused": True}

    @property
    def hash(self) -> str:
        """Six hexadecimal digits."""
        return blake2b(_json(self.facts()).encode(), digest_size=3).hexdigest()


def _json(facts: Any) -> str:
    return json.dumps(facts, default=lambda array: [*array.shape, zlib.crc32(array.astype(np.int64).tobytes())])


def lines_of(facts: Any, name: str = "") -> Iterator[str]:
    """Facts as text, one in each line."""
    if isinstance(facts, dict):
        for key, each in facts.items():
            yield from lines_of(each, f"{name} / {key}" if name else key)
    else:
        yield f"{name}: {_json(facts)}"


@cache
def kernel_options(weights: str) -> dict[str, tuple[KernelOptions, int]]:
    """Options that an engine may choose, with a texture size: defaults, WebGL2's limits, retries, and a search's."""
    software, gpu = (default_kernels(name, 1024.0, weights) for name in ("llvmpipe", "GPU"))
    least = [replace(default_kernels(name, 1.0, weights), rows_per_draw=4) for name in ("llvmpipe", "GPU")]
    usual = {
        "software": software,
        "gpu": gpu,
        "gpu unblended": replace(without_blending(gpu), quad=False),
        "retry": plainest(gpu),
        "retry prompt": plainest(software, same_layouts=True),
        "counted": KernelOptions(),
        "tuned": KernelOptions(
            mantissa=True, fused=True, unroll=2, tiles=4, pitch=16, largest_cell=2, part_steps=4, split_values=True
        ),
        "tuned rows": replace(gpu, quad=False, mantissa=True, rows_per_draw=2, split_inner=True, blends=False),
    }
    found = {name: (kernels, 16384) for name, kernels in usual.items()}
    return {**found, "software webgl2": (least[0], 2048), "gpu webgl2": (least[1], 2048)}


def options_of(config: ModelConfig, kernels: str, form: str, cache_format: str = "f32") -> PlanOptions:
    """Options by name; ``form`` is a weight format, or that of a file, which may be ``mixed``."""
    weights = form if form in WEIGHT_FORMATS else FROM_FILE
    formats = formats_of(config, form) if weights == FROM_FILE else None
    return PlanOptions(config, weights, *kernel_options(weights)[kernels], formats, cache_format)


def plans_of(options: PlanOptions) -> dict[str, Callable[[], Plan]]:
    """The plans of a decoder."""
    config = options.config
    longest = SPAN if delta_layers(config) else config.max_position_embeddings
    found: dict[str, Callable[[], Plan]] = {
        "token": partial(fast_plan, options),
        "prompt": partial(chunk_plan, options, rows=longest, cache_slots=192, export_residual=True),
        "piece": partial(chunk_plan, options, rows=20, cache_slots=576, every=192),
        "score": partial(chunk_plan, options, rows=20, cache_slots=192, likelihoods=True),
        "drafted": partial(drafted_plan, options, rows=16, cache_slots=192),
        "batch": partial(batch_plan, options, sequences=3, capacity=128),
    }
    if options.weights not in ROUNDED and options.cache == "f32" and not options.adapters.names:
        how: dict[str, Any] = {"weights": options.weights, "formats": options.formats, "kernels": options.kernels}
        edge, how["images"] = options.max_texture_size, options.images
        found["reference"] = partial(plan_for, config, "reference", max_texture_size=edge, tokens=20, **how)
    return found


def planned() -> Iterator[tuple[str, str, int, Callable[[], Plan]]]:
    """(row, name in the row, texture size, builder) of every plan but those of pages."""
    for model, config in MODELS.items():
        for kernels, form, cache_format in _choices(model):
            options = options_of(config, kernels, form, cache_format)
            for kind, make in plans_of(options).items():
                if kind != "reference" or kernels in ("software", "gpu", "counted", "software webgl2"):
                    yield f"{model} {kind}", f"{kernels} {form} {cache_format}", options.max_texture_size, make
    for name, (_, edge) in kernel_options("f32").items():
        for (model, config), form in product(EMBEDDERS.items(), ("f32", "q8", "mixed")):
            make = partial(encode_plan, options_of(config, name, form), rows=20)
            yield f"{model} encode", f"{name} {form}", edge, make
        for form in ("f32", "q8"):
            yield "siglip image", f"{name} {form}", edge, partial(image_plan, options_of(TOWER, name, form))
            yield "qwen3_vl image", f"{name} {form}", edge, partial(image_plan, options_of(BY_GRID, name, form), 48)
        pictured = plans_of(replace(options_of(MODELS["llama"], name, "f32"), images=ImageInputs()))
        for kind in ("prompt", "reference"):
            yield "llama images", f"{name} {kind}", edge, pictured[kind]
        turned = replace(options_of(MODELS["qwen3_vl_text"], name, "f32"), images=ImageInputs(1, (24, 20, 20)))
        for kind, make in plans_of(turned).items():
            yield "qwen3_vl images", f"{name} {kind}", edge, make
        for model in FEW:
            ranks = AdapterRanks.of(_adapters(MODELS[model]))
            options = replace(options_of(MODELS[model], name, "f32"), adapters=ranks)
            for kind, make in plans_of(options).items():
                yield f"{model} adapters", f"{name} {kind}", edge, make
        options = options_of(MODELS["gab"], name, "f32")
        for kind, masked, changed in product(("token", "drafted", "batch"), (False, True), (False, True)):
            how = f"after {kind}{' masked' * masked}{' changed' * changed}"
            yield "choice", f"{name} {how}", edge, partial(_choice, options, kind, masked=masked, changed=changed)
    for model in ("gab", "gpt2"):
        yield "reference rows", model, 16384, partial(reference_plan, MODELS[model], all_rows=True)


def _choices(model: str) -> Iterator[tuple[str, str, str]]:
    """(kernels, form, cache): for all kernels floats and a file's blocks, and the other forms and caches in turn."""
    kernels, forms = list(kernel_options("f32")), (*WEIGHT_FORMATS, "mixed")
    for number, name in enumerate(kernels):
        yield from ((name, form, "f32") for form in ("f32", "mixed", *(("q8",) if model in FEW else ())))
        yield name, forms[(number // 2 + 3 * number) % len(forms)], ("f16", "q8")[number % 2]
    for number, form in enumerate(PACKED_FORMATS if model in FEW else ()):
        yield kernels[number % len(kernels)], form, list(CACHE_FORMATS)[number % 3]


def _choice(options: PlanOptions, after: str, **how: bool) -> Plan:
    size = options.max_texture_size
    return choice_plan(plans_of(options)[after](), kernels=options.kernels, max_texture_size=size, **how)


def _others() -> Iterator[tuple[str, str, Callable[[], Facts]]]:
    """Exported pages, which have several plans, and the texels of weights."""
    for model, config in MODELS.items():
        for form, cache_format in zip(("f32", "q8", "mixed"), CACHE_FORMATS, strict=True):
            for limits in LIMITS:
                yield f"{model} page", f"{limits} {form}", partial(_page, config, form, cache_format, limits)
        for form in (*WEIGHT_FORMATS, "mixed", *(PACKED_FORMATS if model in FEW[:2] else ())):
            yield f"{model} weights", form, partial(_texels, config, "fast", form)
            if form in ("f32", "mixed"):
                yield f"{model} weights", f"reference {form}", partial(_texels, config, "reference", form)
            if form in ("f32", "q8", "mixed"):
                yield f"{model} weights", f"apart {form}", partial(_texels, config, "fast", form, "retry")
    for (model, config), form in product(EMBEDDERS.items(), ("f32", "q8", "mixed")):
        yield f"{model} encoder weights", form, partial(_texels, config, "fast", form)
    for model in FEW:
        yield f"{model} weights", "adapters", partial(_texels, MODELS[model], "fast", "f32", adapted=True)


def programs() -> Iterator[Program]:
    """Every program; those of a row come in the order of the record."""
    places: dict[str, int] = {}
    of_plans = ((row, name, lambda m=make, e=edge: facts_of(m(), e)) for row, name, edge, make in planned())
    for row, name, facts in chain(of_plans, _others()):
        places[row] = places.get(row, -1) + 1
        yield Program(row, name, places[row], facts)


def facts_of(plan: Plan, edge: int, **further: Any) -> Facts:
    """The facts of a plan on a renderer with textures of ``edge`` texels a side."""
    tokens = sorted({min(each, plan.max_rows) for each in (1, 2, 17, 64, 65, plan.max_rows)})
    found: Facts = {"rows": plan.max_rows, "long_after": plan.long_after, **further}
    usual = [plan.values_for(each) for each in tokens]
    for value in sorted(plan.run_values, key=lambda each: each.name):
        numbers = value.smallest, value.largest, *(each[value.name] for each in usual)
        found[f"run value {value.name}"] = list(map(_number, numbers))
    if plan.name not in ("batch", "choice"):
        found["feeds"] = [_feed(plan, each) for each in (1, 5, min(20, plan.max_rows))]
    for tensor in sorted(plan.tensors, key=lambda each: each.name):
        layout = tensor.layout_within(edge)
        packing = {name: getattr(layout, name, None) for name in ("weights", "quad")}
        about = {"kind": tensor.kind, "format": tensor.format, "view_of": tensor.view_of}
        found[f"tensor {tensor.name}"] = {**about, **packing, "layout": layout_entry(layout)}
    compiled = compile_plan(plan, PlanLimits(edge, MANY, MANY))
    for value in compiled.plan.run_values[len(plan.run_values) :]:
        found[f"run value {value.name}"] = value.value
    for spec, draw in zip(plan.draws, compiled.draws, strict=True):
        call = {name: value for name, value in vars(draw.call).items() if name not in ("constants", "per_run")}
        found[f"draw {draw.name}"] = {
            "kind": draw.kind,
            "shaders": [draw.shaders.fragment, draw.shaders.vertex],
            "inputs": spec.inputs,
            "outputs": spec.outputs,
            "defines": dict(draw.shaders.defines),
            "uniforms": {name: _number(value) for name, value in sorted(draw.call.constants)},
            "per_run": dict(sorted(draw.call.per_run)),
            "size": [*spec.size, spec.first],
            "call": call,
        }
    return {**found, "regions": region_layouts(plan, edge)}


def _number(value: float) -> int | str:
    """Integers stay; floats are spelt, since 1 and 1.0 are two programs."""
    return int(value) if isinstance(value, int | np.integer) else repr(float(value))


def _feed(plan: Plan, tokens: int) -> list[Any]:
    """The run values that the engine sets in the last run over some tokens, and the tables that it writes."""
    inputs, values = runs(plan, range(tokens))[-1]
    return [{each.name: _number(values[each.name]) for each in plan.run_values}, inputs]


def _page(config: ModelConfig, form: str, cache_format: str, limits: str) -> Facts:
    """All plans of an exported page, with what its runtime has to know."""
    options, edge = options_of(config, "counted", form, cache_format), LIMITS[limits].max_texture_size
    options = replace(options, kernels=web_kernels(options.weights), max_texture_size=edge)
    plan = fast_plan(options)
    companions = companions_of(options, plan)
    export = PlanExport(plan, LIMITS[limits], companions)
    pictures = [each["name"] for each in export.pictures()]
    found: Facts = {"head": HEAD_DRAWS, "pictures": pictures, "logits": export.logits(LOGITS)[1]}
    for each in companions:
        shared = {"shared": sorted(each.plan.shared), "over": each.over, "late": each.on_demand}
        found[each.name] = facts_of(each.plan, edge, **shared, facts=dict(each.facts), inputs=dict(each.inputs))
    return facts_of(plan, edge, **found)


def _texels(config: ModelConfig, name: str, form: str, kernels: str = "counted", *, adapted: bool = False) -> Facts:
    """A checksum of the texels of every weight of a model with random ones, and the recipes of the fast plan."""
    options, made = options_of(config, kernels, form), _checkpoint(config, "f32" if form in WEIGHT_FORMATS else form)
    made = replace(made, adapters=_adapters(config)) if adapted else made
    formats, adapters = made.formats(), AdapterRanks.of(made.adapters)
    how: dict[str, Any] = {"kernels": options.kernels, "tokens": 20, "adapters": adapters}
    plan = plan_for(config, name, weights=options.weights, formats=formats, **how)
    arrays, found = weights_for(made, name, options.weights), Facts()
    for tensor in sorted(plan.of_kind("weight"), key=lambda each: each.name):
        texels = np.ascontiguousarray(tensor.layout_within(16384).pack(weight_matrix(tensor, arrays)))
        if tensor.name.startswith("rope"):
            texels = texels.view(np.uint32) >> 8  # libraries differ in the last bits of a cosine
        found[f"texels {tensor.name}"] = [*texels.shape, zlib.crc32(texels.tobytes())]
    for recipe in Recipes(config, options.weights, formats).products() if name == "fast" else ():
        unset = (each for each in ("rounded", "apart") if not vars(recipe)[each])
        unnamed = ("kind", "layer", "width", "gated", *unset)
        about = {name: value for name, value in vars(recipe).items() if name not in unnamed}
        found[f"recipe {recipe.name}"] = {"name": recipe.name, **about}
    return found


@lru_cache(maxsize=2)
def _checkpoint(config: ModelConfig, form: str) -> Checkpoint:
    return in_floats(config) if form == "f32" else in_formats(config, formats_of(config, form))


_adapters = cache(adapters_of)


def recorded(root: Path = ROOT) -> dict[str, list[str]]:
    """The recorded hashes of each row, in a checkout."""
    if not (root / RECORD).is_file():
        raise InputError(f"{root}: there is no {RECORD}; expected a checkout with a record of its programs")
    return {row: hashes.split() for row, hashes in json.loads((root / RECORD).read_text()).items()}


def differing(chosen: Iterable[Program], record: Mapping[str, Sequence[str]]) -> Iterator[Program]:
    """The programs whose hash is not the recorded one, or that have none."""
    return (each for each in chosen if each.hash not in record.get(each.row, ())[each.place : each.place + 1])


def difference(program: Program, root: Path) -> str:
    """The facts of a program that differ in another checkout."""
    theirs = run(sys.executable, "-m", "qa", "programs", "--show", program.key, cwd=root).splitlines()
    ours = list(lines_of(program.facts()))
    return "\n".join(unified_diff(theirs, ours, str(root), program.key, n=0, lineterm=""))


@click.command("programs")
@click.argument("rows", nargs=-1)
@click.option("--update", is_flag=True, help="Record what there is now.")
@click.option(
    "--against", metavar="PATH", type=click.Path(exists=True, path_type=Path), help="Compare with a checkout."
)
@click.option("--show", metavar="NAME", help="Print the facts of one program.")
def programs_command(rows: Sequence[str], update: bool, against: Path | None, show: str | None) -> int:
    """List the programs that differ from tests/models/programs.json: those whose row begins with one of ROWS, or all.

    All take about a minute. --against takes the record of another checkout, such as 'git worktree add' makes, and
    prints the facts that differ in the first programs. The exit status is 1 if programs differ.

    \b
    python -m qa programs "llama token" "gab reference"
    python -m qa programs --against ../before
    """
    every = list(programs())
    unknown = [row for row in rows if not any(each.row.startswith(row) for each in every)]
    if unknown:
        raise InputError(f"no row begins with {unknown[0]!r}; 'llama token' is one, and {RECORD} lists them")
    chosen = [each for each in every if each.row.startswith(tuple(rows) or "")]
    if show is not None:
        shown = [line for each in chosen if each.key == show for line in lines_of(each.facts())]
        if not shown:
            raise InputError(f"there is no program {show!r}; expected a name such as 'llama token: gpu q8 f32'")
        click.echo("\n".join(shown))
        return 0
    if update:
        record = {row: hashes for row, hashes in recorded().items() if not row.startswith(tuple(rows) or "")}
        for each in chosen:
            record.setdefault(each.row, []).append(each.hash)
        text = json.dumps({row: " ".join(hashes) for row, hashes in sorted(record.items())}, indent=0)
        (ROOT / RECORD).write_text(f"{text}\n")
        return 0
    found = 0
    for each in differing(chosen, recorded(against or ROOT)):
        found += 1
        click.echo(each.key)
        if against is not None and found <= SHOWN:
            click.echo(difference(each, against))
    return int(found > 0)
