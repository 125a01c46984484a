"""A site that runs GGUF files without Python: ready programs for the shapes of published models.

A program holds what :func:`glinfer.export.site.export_web` computes from a model's shape: its ``plan.json``, and how
each texture of weights is made of the file's tensors. ``web/drop/`` reads the file, finds the program of its shape, and
packs the weights as Python does for ``--weights q8``, the default for GGUF files.

The site's ``plan.json`` has an entry ``drop``: ``shapes`` lists the programs with the metadata that a file must have,
the other keys are tables of file formats, limits and texts that JavaScript shares with Python, see :func:`tables`.
A program is a gzip file of JSON:

============= ==============================================================================================
key           holds
============= ==============================================================================================
``tensors``   the shape of each tensor of the file, outermost dimension first
``optional``  the same for tensors that some files have: a head, if it may be the embeddings
``factors``   the numbers of ``rope_freqs.weight`` in the published file; null for shapes without that tensor
``plan``      ``plan.json`` for embeddings in Q8_0, with few blocks
``variants``  for each other format of the embeddings, ``F16``, or format and vocabulary, ``F16 32001``, the differences
              of its plan: pairs of a path and a value
``tokens``    the sizes of the vocabulary, and the tensors with a row for each token
``repeats``   the blocks of the plan, and how many of them repeat, see :func:`repeated_blocks`
``rows``      tables of row numbers as differences, -1 for a row of zeros
``weights``   the textures of weights, see :meth:`Program._steps`
``offset``    added to the gains of norms after the file's form of them was undone
============= ==============================================================================================
"""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glinfer.config import ModelConfig
from glinfer.engine.defaults import USUAL
from glinfer.engine.sampler import NEUTRAL, SamplingOptions
from glinfer.errors import FormatError, PlanError
from glinfer.export.card import CHAT_EXAMPLES, TEXT_EXAMPLES
from glinfer.export.libraries import JINJA, MARKDOWN, TOKENIZERS
from glinfer.export.page import PAGE
from glinfer.export.site import (
    LIMITS,
    PLAN,
    VERSION,
    ExportedSite,
    bytes_in,
    check_target,
    laid_out,
    offline_version,
    plan_file,
    replacing,
    site_parts,
    web_kernels,
    web_root,
    write_json,
    write_page,
)
from glinfer.export.weights import FORMAT
from glinfer.families import FAMILIES
from glinfer.families.layer import Rope
from glinfer.families.settings import shortest
from glinfer.formats.gguf.config import ROPE_FREQS, USUAL_SETTINGS, config_from, metadata_of
from glinfer.formats.gguf.file import GGML_TYPES, VERSIONS
from glinfer.formats.gguf.model import rows_from_file
from glinfer.formats.gguf.words import BEGIN_WITH_BOS, COMPOSED, EXPRESSIONS, WHOLE_WORDS
from glinfer.formats.sampling import GGUF_OPTIONS, NAMES
from glinfer.formats.tensors import stored_tensors
from glinfer.gl.layouts.matrix import FORMATS
from glinfer.graph.nodes import Attention, ModelTensor
from glinfer.limits import (
    MAX_GGUF_DIMENSIONS,
    MAX_GGUF_ELEMENTS,
    MAX_GGUF_ENTRIES,
    MAX_GGUF_NAME_BYTES,
    MAX_GGUF_PARTS,
    MAX_GGUF_SKIPPED,
    MAX_GGUF_STRING_BYTES,
    MAX_REMOTE_HEADER_BYTES,
    MAX_TOKEN_CHARACTERS,
    MAX_VOCABULARY_CHARACTERS,
)
from glinfer.lower.plans import DEFAULT_PLAN, check_choice
from glinfer.lower.ropes import frequencies_of, rope_names
from glinfer.lower.weights.fold import Weights
from glinfer.lower.weights.recipe import PADDING, Recipe, head_floats, weight_name
from glinfer.quant.formats import BLOCK_FORMATS, DEFAULT_CACHE
from glinfer.text.tokenizers.gguf import ENDS, ENDS_A_MESSAGE, ENDS_A_REPLY

WEIGHTS = "q8"
"""The weight format of the programs, Python's default for GGUF files."""
CONTEXT = 2048
"""The context of a program, if the caller gives none."""
PROGRAMS = "programs"
"""The folder of the programs in a site."""
BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
"""The block formats that web/drop/blocks.js reads, besides F32, F16 and BF16."""
_TEXTURE_SIZES = (4096, 8192, 16384)
"""Texels a side that are tried for a program, one after another."""
_USUAL = "Q8_0"
"""The format of embeddings of most files."""
_FLOATS = ("F32", "F16", "BF16")
_SETTINGS: Mapping[str, tuple[Any, ...]] = {
    **USUAL_SETTINGS,
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
    "nextn_predict_layers": (0,),
    "rope.scaling.type": ("none", "linear"),
    "rope.scaling.factor": (0.0, 1.0),
    "rope.scale_linear": (0.0, 1.0),
}
"""Settings that change nothing for some families; a program accepts those that change nothing for its shape."""
_WINDOWS = "attention.sliding_window_pattern"
_DROP = {"drop": "drop", "app.js": "drop_app.js", "page/worker.js": "drop/worker.js"}
"""The page's own modules, two of them in place of those of other sites."""
_OWN_ONLY, _ANY_SITE = "connect-src 'self';", "connect-src 'self' https: http:;"
"""What the page may request: its own site, and files at addresses that are entered."""
HEAD = "lm_head"
"""The product of the logits."""
Rows = npt.NDArray[np.intp]


def published_shapes() -> dict[str, ModelConfig]:
    """The shapes of the programs of a site, by their names in the page; add one to ``shapes.json``."""
    acts = {name: family.activation for name, family in FAMILIES.items()}
    return {name: ModelConfig(hidden_act=acts[each["model_type"]], **each) for name, (each, *_) in _listed().items()}


def published_vocabularies() -> dict[str, list[int]]:
    """Further sizes of the vocabulary of each published shape, as its finetunes have them."""
    return {name: sizes for name, (_, *sizes) in _listed().items()}


def _listed() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = json.loads(Path(__file__).with_name("shapes.json").read_text(encoding="utf-8"))
    return found


def repeated_blocks(config: ModelConfig) -> tuple[int, int]:
    """The number of blocks of a program's plan, and the number that repeat; 0 if the model has too few to repeat any.

    Blocks [step, 2 · step) of the plan stand for any number of further groups of ``step`` blocks.
    """
    layers = [config.layer(number) for number in range(config.num_hidden_layers)]
    step = next(each for each in range(1, len(layers) + 1) if layers[each:] == layers[:-each])
    blocks = 2 * step + 1 + (len(layers) - 1) % step
    return (blocks, step) if blocks <= len(layers) else (len(layers), 0)


def tables() -> dict[str, Any]:
    """The tables of file formats that JavaScript shares with Python, for ``drop`` of ``plan.json``."""
    return {
        "versions": VERSIONS,
        "types": GGML_TYPES,
        "blocks": {name: _block_entry(name) for name in BLOCKS},
        "readable": [*_FLOATS, *BLOCKS],
        "limits": {
            "dimensions": MAX_GGUF_DIMENSIONS,
            "elements": MAX_GGUF_ELEMENTS,
            "entries": MAX_GGUF_ENTRIES,
            "parts": MAX_GGUF_PARTS,
            "name_bytes": MAX_GGUF_NAME_BYTES,
            "skipped": MAX_GGUF_SKIPPED,
            "string_bytes": MAX_GGUF_STRING_BYTES,
            "header_bytes": MAX_REMOTE_HEADER_BYTES,
            "token_characters": MAX_TOKEN_CHARACTERS,
            "vocabulary_characters": MAX_VOCABULARY_CHARACTERS,
        },
        "sampling": {"names": GGUF_OPTIONS, "usual": _options(USUAL), "neutral": _options(NEUTRAL)},
        "examples": {"chat": CHAT_EXAMPLES, "text": TEXT_EXAMPLES},
        "vocabulary": {
            "expressions": {name: list(cuts) for name, cuts in EXPRESSIONS.items()},
            "whole_words": sorted(WHOLE_WORDS),
            "composed": sorted(COMPOSED),
            "begin_with_bos": sorted(BEGIN_WITH_BOS),
            "ends": sorted(ENDS),
            "ends_a_message": ENDS_A_MESSAGE,
            "ends_a_reply": sorted(ENDS_A_REPLY),
        },
    }


def _options(sampling: SamplingOptions) -> dict[str, float]:
    return {name: getattr(sampling, name) for name in NAMES}


def _block_entry(name: str) -> dict[str, Any]:
    """A block format for web/drop/blocks.js, with the form of its groups (:mod:`glinfer.quant.groups`)."""
    block = BLOCK_FORMATS[name]
    form = block.groups
    assert form is not None
    return {
        "weights": block.weights,
        "bytes": block.nbytes,
        "planes": [[each.start, each.nbytes, each.chunks, each.bits, each.position] for each in form.planes],
        "scales": form.scales,
        "scale_start": form.scale_start,
        "factor_start": form.factor_start,
        "low_bits": form.low_bits,
        "high_words": form.high_words,
        "offset": form.offset,
        "halves": list(block.scales),
    }


class Program:
    """The ready program of one shape, see the module's docstring."""

    def __init__(
        self,
        name: str,
        shape: ModelConfig,
        context: int = CONTEXT,
        cache: str = DEFAULT_CACHE,
        vocabularies: Sequence[int] = (),
    ) -> None:
        """Describe the file of a shape, with all its positions, and with further sizes of the ``vocabularies``.

        The longest sequence has ``context`` tokens, or fewer if the model has fewer positions.

        Raises:
            FormatError, InputError: no GGUF file describes the shape.
        """
        self.name, self._cache, self._blocks = name, cache, shape.num_hidden_layers
        self._vocabularies, self.repeats = (shape.vocab_size, *vocabularies), repeated_blocks(shape)
        shape = replace(shape, num_hidden_layers=self.repeats[0])
        metadata, factors = metadata_of(shape)
        self._family = shape.family
        self.architecture = self._family.in_gguf.architecture
        self.metadata = {key: _as_stored(value) for key, value in metadata.items()}
        self.factors = factors.get(ROPE_FREQS)
        stored = stored_tensors(shape, self._family.in_gguf.names)
        self._files = {each.name: each for each in stored}
        self._whole = self._config(self.metadata)
        self.config = self._whole.with_context(min(context, self._whole.max_position_embeddings))
        self._plans: dict[tuple[str, int], tuple[dict[str, Any], list[str]]] = {}
        self._names = {
            tensor.name(self._family.names): (each.name, tensor) for each in stored for tensor in each.tensors
        }

    def _config(self, metadata: Mapping[str, Any]) -> ModelConfig:
        """The configuration of a file of this shape with other metadata."""
        factors = {} if self.factors is None else {ROPE_FREQS: self.factors}
        return config_from(metadata, self._family, self._files.values(), factors, self.name)

    def _accepts(self, key: str, value: Any) -> bool:
        """Whether a file with another value of a key, None for none, has the same configuration."""
        others = {name: each for name, each in self.metadata.items() if name != key}
        try:
            return self._config(others if value is None else {**others, key: value}) == self._whole
        except FormatError:
            return False

    def _grows_to(self, blocks: int) -> bool:
        """Whether a file with another number of blocks differs in nothing else."""
        metadata = {**self.metadata, f"{self.architecture}.block_count": blocks}
        return self._config(metadata) == replace(self._whole, num_hidden_layers=blocks)

    def entry(self) -> dict[str, Any]:
        """What ``drop`` of ``plan.json`` has of the program: the metadata of its files, and its sizes.

        ``keys`` has the possible values of each key, ``required`` the keys that a file must have.
        """
        before = f"{self.architecture}."
        keys = {key: [value] for key, value in self.metadata.items()}
        windows = [self.config.layer(layer).window > 0 for layer in range(self.repeats[0])]
        patterns = (len(self.config.layer_types), windows)
        for name, values in {**_SETTINGS, _WINDOWS: patterns}.items():
            keys.setdefault(before + name, []).extend(value for value in values if self._accepts(before + name, value))
        blocks, step = self.repeats
        for each in (found for found in keys.get(before + _WINDOWS, []) if found == windows):
            each += [windows[blocks - step + number % step] for number in range(self._blocks - blocks)]
        keys[before + "vocab_size"] = list(self._vocabularies)
        counts = range(blocks, 2 * self._blocks, step) if step else ()
        keys[before + "block_count"] = [self._blocks, *filter(self._grows_to, counts)]
        return {
            "name": self.name,
            "architecture": self.architecture,
            "keys": {key: values for key, values in keys.items() if values},
            "free": [key for key, _ in self._free_angles().values()],
            "required": [key for key in self.metadata if not self._accepts(key, None)],
            "repeats": self.repeats,
            "context": self.config.max_position_embeddings,
            "bytes": self._bytes(),
            "requires": self.plan["requires"],
        }

    def _bytes(self) -> dict[str, int]:
        """Bytes of the textures of the published shape, of its weights, and of a group of blocks that repeats."""
        blocks, step = self.repeats
        repeated = {f"h.{number}" for number in range(step, 2 * step)}
        found = {"weights": 0, "all": 0, "group": 0}
        for each in self.plan["textures"]:
            repeats = ".".join(each["name"].split(".")[:2]) in repeated
            times = 1 + (self._blocks - blocks) // step if repeats else 1
            nbytes = each["width"] * each["height"] * FORMATS[each["format"]].bytes_per_texel
            found["all"] += times * nbytes
            found["weights"] += times * nbytes * (each["kind"] == "weight")
            found["group"] += nbytes * repeats
        return found

    def _free_angles(self) -> dict[Rope, tuple[str, float]]:
        """The key of the base of each kind of angles that a file may have otherwise, and its value in this shape."""
        free = (rope for rope in rope_names(self.config) if rope.theta == self.config.rope_theta)
        scaled = ("default", "longrope" if self.factors is not None else "default")
        key = f"{self.architecture}.rope.freq_base"
        return {each: (key, each.theta) for each in free if dict(each.scaling).get("rope_type", "default") in scaled}

    @cached_property
    def plan(self) -> dict[str, Any]:
        """``plan.json`` for embeddings in :data:`_USUAL`."""
        return self._plan(_USUAL, self._vocabularies[0])[0]

    @cached_property
    def shaders(self) -> set[str]:
        """The shader files of the plans."""
        return set().union(*(self._plan(form, self._vocabularies[0])[1] for form in self._embeddings))

    @property
    def _head(self) -> str:
        """The file's name of a head that is not the embeddings."""
        return weight_name(self._family.in_gguf.names.head)

    @property
    def _embeddings(self) -> list[str]:
        """The formats that embeddings of this width can have; ``F16`` stands for floats of any kind."""
        return ["F16", *(name for name in BLOCKS if self.config.hidden_size % BLOCK_FORMATS[name].weights == 0)]

    def _plan(self, form: str, tokens: int) -> tuple[dict[str, Any], list[str]]:
        """``plan.json`` for embeddings in one format and for a size of the vocabulary, and its shader files."""
        if (form, tokens) not in self._plans:
            config = replace(self.config, vocab_size=tokens)
            embeddings = weight_name(self._family.names.embeddings)
            for size in _TEXTURE_SIZES:
                limits, kernels = replace(LIMITS["usual"], max_texture_size=size), web_kernels(WEIGHTS)
                try:
                    given = config, {embeddings: form}, DEFAULT_PLAN, WEIGHTS, self._cache, kernels, limits
                    made, export = laid_out(*given)
                    break
                except PlanError:
                    if size == _TEXTURE_SIZES[-1]:
                        raise
            about = {"name": self.name, "plan": DEFAULT_PLAN, "weights": WEIGHTS, "cache": self._cache}
            parameters = sum(math.prod(each.shape) for each in self._files.values())
            values, _ = plan_file(about, made, export, config, parameters)
            # As read from JSON, to be compared with others.
            self._plans[form, tokens] = json.loads(json.dumps(values)), export.shaders
        return self._plans[form, tokens]

    def contents(self) -> dict[str, Any]:
        """The contents of the program's file."""
        rows, numbers = _RowTables(), {each["name"]: index for index, each in enumerate(self.plan["textures"])}
        width = [self.config.vocab_size, self.config.hidden_size]
        return {
            "tensors": {each.name: list(each.outer_shape) for each in self._files.values()},
            "optional": {self._head: width} if self.config.tie_word_embeddings else {},
            "factors": None if self.factors is None else self.factors.tolist(),
            "plan": self.plan,
            "variants": {
                form if tokens == self.config.vocab_size else f"{form} {tokens}": list(changes(self.plan, plan))
                for tokens in self._vocabularies
                for form in self._embeddings
                if (plan := self._plan(form, tokens)[0]) is not self.plan
            },
            "tokens": {
                "sizes": self._vocabularies,
                "tensors": [self._file(weight_name(self._family.names.embeddings))[0], self._head],
            },
            "repeats": self.repeats,
            "weights": sorted(self._steps(rows), key=lambda step: numbers[_texture(step)]),
            "rows": rows.tables,
            "offset": self._family.norm_offset,
        }

    def _steps(self, rows: _RowTables) -> Iterator[dict[str, Any]]:
        """How the textures of weights are made.

        ``kind`` is ``table`` for embeddings; ``angles`` with ``frequencies``, a ``factor``,
        and ``base``, the key of a base that files may have otherwise, with its usual value, or null; ``vectors`` with a
        ``source`` and ``rows`` for each row of gains; ``product`` with ``sources``, ``rows``, ``inputs``, ``gain`` and
        ``biases``. ``rows`` and ``inputs`` are numbers of tables, or null for all in order. Sources, gains and biases
        are tensors of the file. A source is a list: the first that the file has is meant.
        """
        config, made = self.config, Weights(self.config, WEIGHTS)
        unsupported = self._family.norm != "rms" or self._family.layer.norms == "sum" or config.long_after
        if unsupported or not self._family.rotary or made.position_rows or config.residual_multiplier != 1:
            raise PlanError(f"{self.name}: web/drop has no such weights; export the model itself")
        yield {"kind": "table", "name": "wte", "source": self._file(weight_name(made.graph.embeddings.name))[0]}
        free = self._free_angles()
        for rope, name in made.ropes.items():
            if rope.scales_queries:
                raise PlanError(f"{self.name}: web/drop does not scale queries; export the model itself")
            frequencies, factor = frequencies_of(rope, config.max_position_embeddings)
            angles = {"frequencies": frequencies.tolist(), "factor": factor, "base": free.get(rope)}
            yield {"kind": "angles", "name": name, **angles}
        for layer in range(config.num_hidden_layers):
            node = made.graph.layer(layer).mixing.body
            if not isinstance(node, Attention) or node.sinks is not None or config.layer(layer).experts is not None:
                raise PlanError(f"{self.name}: web/drop knows layers of attention and an MLP; export the model itself")
            norms = [norm for norm in (node.k_norm, node.q_norm) if norm is not None]
            if norms:
                recipe = made.qkv(layer)
                order = rows.number(recipe.rows[: head_floats(config.head_dim)], config.head_dim)
                vectors = [{"source": self._file(weight_name(norm.name))[0], "rows": order} for norm in norms]
                yield {"kind": "vectors", "name": f"{recipe.name}.turn", "vectors": vectors}
        for recipe in made.products():
            yield self._product(recipe, rows)
            gains = {recipe.named(recipe.post_kind): recipe.post_norm}
            gains |= {f"{recipe.name}.gain": recipe.norm} if recipe.apart else {}
            for name, norm in gains.items():
                if norm:
                    vectors = [{"source": self._file(weight_name(norm))[0], "rows": None}]
                    yield {"kind": "vectors", "name": name, "vectors": vectors}

    def _product(self, recipe: Recipe, rows: _RowTables) -> dict[str, Any]:
        if recipe.kept or recipe.scale != 1 or recipe.packing != WEIGHTS:
            raise PlanError(f"{self.name}: web/drop does not pack {recipe.name} like that; export the model itself")
        order, above = [], 0
        rivals = [self._head] if recipe.name == HEAD and self.config.tie_word_embeddings else []
        files = [self._file(weight_name(name)) for name in recipe.sources]
        for _, tensor in files:  # each row's number in the file, whose heads may have their elements in another order
            order.append(above + rows_from_file(self.config, tensor, np.arange(tensor.shape[0])))
            above += tensor.shape[0]
        found = np.where(recipe.rows == PADDING, PADDING, np.concatenate(order)[recipe.rows])
        return {
            "kind": "product",
            "name": recipe.name,
            "sources": [[*rivals, file] for file, _ in files],
            "rows": rows.number(found, above),
            "inputs": None if recipe.inputs is None else rows.number(recipe.inputs, -1),
            "gain": self._file(weight_name(recipe.norm))[0] if recipe.norm and not recipe.apart else None,
            "biases": [self._names.get(f"{name}.bias", (None,))[0] for name in recipe.sources],
        }

    def _file(self, name: str) -> tuple[str, ModelTensor]:
        """The name in the file of one of the model's tensors, and the tensor."""
        file, tensor = self._names[name]
        if len(self._files[file].tensors) > 1:
            raise PlanError(f"{self.name}: web/drop does not split {file}; export the model itself")
        return file, tensor


def _texture(step: Mapping[str, Any]) -> str:
    """The first texture of a step."""
    return f"{step['name']}.weight" if step["kind"] == "product" else str(step["name"])


class _RowTables:
    """Tables of row numbers, each kept once."""

    def __init__(self) -> None:
        self.tables: list[list[int]] = []
        self._numbers: dict[bytes, int] = {}

    def number(self, rows: Rows, count: int) -> int | None:
        """The number of a table; None if it is all of ``count`` rows in order."""
        if len(rows) == count and np.array_equal(rows, np.arange(count)):
            return None
        key = np.asarray(rows, dtype=np.int64).tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self.tables)
            self.tables.append(np.diff(rows, prepend=0).tolist())
        return self._numbers[key]


def changes(before: Any, after: Any, path: Sequence[str | int] = ()) -> Iterator[tuple[list[str | int], Any]]:
    """The differences of two JSON documents: paths, and the values that the second has there."""
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        pairs: Sequence[tuple[str | int, Any, Any]] = [(key, before[key], after[key]) for key in before]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = [(index, *both) for index, both in enumerate(zip(before, after, strict=True))]
    else:
        if before != after or type(before) is not type(after):
            yield list(path), after
        return
    for key, one, other in pairs:
        yield from changes(one, other, (*path, key))


def _as_stored(value: Any) -> Any:
    """A number as a file keeps it, in float32."""
    return shortest(float(np.float32(value))) if isinstance(value, float) else value


def export_drop(
    folder: str | PathLike[str],
    *,
    context: int = CONTEXT,
    cache: str = DEFAULT_CACHE,
    shapes: Mapping[str, ModelConfig] | None = None,
    vocabularies: Mapping[str, Sequence[int]] | None = None,
) -> ExportedSite:
    """Write the page that opens GGUF files; ``folder`` appears, or is replaced, only when it is complete.

    Args:
        folder: a new or empty folder, or an earlier export.
        context: tokens of the longest sequence.
        cache: how keys and values are kept, as in :func:`glinfer.load`.
        shapes: the shapes of its programs by name; default: :func:`published_shapes`.
        vocabularies: further sizes of their vocabularies by name; default: :func:`published_vocabularies`.

    Raises:
        InputError: ``folder`` is anything else; the context or the cache format is not possible.
        FormatError: the files cannot be written.
    """
    check_choice(DEFAULT_PLAN, WEIGHTS, cache)
    target, root = Path(os.path.realpath(folder)), web_root()
    check_target(target)
    shapes = published_shapes() if shapes is None else shapes
    sizes = published_vocabularies() if vocabularies is None else vocabularies
    programs = [Program(name, shape, context, cache, sizes.get(name, ())) for name, shape in shapes.items()]
    parts = site_parts(root, (TOKENIZERS, JINJA, MARKDOWN), embeds=False, tour=False)
    parts |= {name: root / file for name, file in _DROP.items()}
    with replacing(target, page=False) as new:
        write_page(new, parts, set().union(*(program.shaders for program in programs)))
        page = (new / PAGE).read_text(encoding="utf-8")
        (new / PAGE).write_text(page.replace(_OWN_ONLY, _ANY_SITE), encoding="utf-8")
        (new / PROGRAMS).mkdir()
        entries = []
        for number, program in enumerate(programs):
            name = f"{PROGRAMS}/{number}.gz"
            text = json.dumps(program.contents(), separators=(",", ":"), allow_nan=False).encode()
            (new / name).write_bytes(gzip.compress(text, mtime=0))
            entries.append({**program.entry(), "file": name})
        values: dict[str, Any] = {"format": FORMAT, "version": VERSION, "drop": {"shapes": entries, **tables()}}
        values["offline"] = offline_version(new, values)
        write_json(new / PLAN, values)
        written = bytes_in(new)
    return ExportedSite(target, written, 0, values, ())
