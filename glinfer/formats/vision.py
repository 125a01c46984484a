"""Image encoders of models that take images, and how a model's processor makes squares of pixels from an image."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from glinfer.config import ModelConfig
from glinfer.errors import FormatError
from glinfer.families import TOWERS
from glinfer.families.huggingface import SIZES, TANH, Fields
from glinfer.families.record import Family
from glinfer.families.settings import Settings, is_integer, quoted
from glinfer.formats.checkpoint import Checkpoint, FloatArray, check_blocks
from glinfer.formats.files import AnyPath, check_path, described_by, is_directory, shown
from glinfer.formats.gguf.file import GgufFile, GgufTensor, is_gguf
from glinfer.formats.gguf.model import checked_parts
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.huggingface.config import read_config
from glinfer.formats.huggingface.files import find_tensors, locate
from glinfer.formats.huggingface.model import check_tensors, loaded
from glinfer.formats.json_files import read_json
from glinfer.formats.tensors import stored_tensors
from glinfer.limits import MAX_CONFIG_BYTES, MAX_DEEP_VECTORS, MAX_GRID_PATCHES, MAX_IMAGE_SIDE, MAX_PATCHES

_SIGLIP, _BY_GRID = TOWERS["siglip"], TOWERS["qwen3_vl_vision"]
_QWEN = "qwen3_vl"
_QWENS = (_QWEN, "qwen3_5", "qwen3_5_moe")
_TYPES = ("smolvlm", "idefics3", *_QWENS)
_PROJECTORS = {"idefics3": "SmolVLM", "qwen3vl_merger": "Qwen3-VL and Qwen 3.5"}
_PROCESSORS = (("preprocessor_config.json", ""), ("processor_config.json", "image_processor"))
_SECTIONS, _DEEP = "rope.dimension_sections", (8, 16, 24)
_LANCZOS, _BICUBIC, _RESCALE, _HALF = 1, 3, 1 / 255, (0.5, 0.5, 0.5)
_CLIP = {"image_mean": (0.48145466, 0.4578275, 0.40821073), "image_std": (0.26862954, 0.26130258, 0.27577711)}
_SIZES = {"shortest_edge": (256**2, "min_pixels"), "longest_edge": (4096**2, "max_pixels")}
_NONE = "this model has no image encoder; leave images out, or name llama.cpp's file of one by mmproj= (--mmproj)"


@dataclass(frozen=True)
class ImageForm:
    """How an image becomes squares, or one piece of any shape, as transformers' processors of these models do it.

    Attributes:
        side: pixels of a side of a square, or of a token of one piece.
        longest: pixels of the longest side, to which an image is resized before it is split; pixels of the largest
            piece.
        splits: whether images are split; otherwise an image is one square.
        filter: Pillow's number of the filter for resizing.
        mean, std: subtracted from red, green and blue between 0 and 1, and the divisors of the differences.
    """

    side: int
    longest: int
    splits: bool = True
    filter: int = _LANCZOS
    mean: tuple[float, ...] = _HALF
    std: tuple[float, ...] = _HALF
    pixels: tuple[int, int] = (0, 0)
    """The least and the most pixels of a piece to which an image is resized; (0, 0) for squares."""


@dataclass(frozen=True)
class Vision:
    """An image encoder: its weights, the form of its images, and the sections of rotary pairs of their tokens."""

    checkpoint: Checkpoint
    form: ImageForm
    sections: tuple[int, ...] = ()

    @property
    def table(self) -> FloatArray:
        """The learned positions [positions, width]."""
        return self.checkpoint.floats(f"{self.checkpoint.config.family.names.embeddings}.weight")


def read_vision(path: AnyPath, config: ModelConfig, mmproj: AnyPath | None = None) -> Vision | str:
    """The image encoder of a model, or why it takes no images.

    Args:
        path: the model's file or directory.
        config: the model's shape.
        mmproj: llama.cpp's file of an image encoder; by default the only one next to a GGUF file.

    Raises:
        FormatError: the encoder of ``mmproj``, or of a supported Hugging Face model, is damaged or does not fit.
    """
    if mmproj is not None:
        check_path("mmproj", mmproj)
        found: Vision | str = _in_gguf(mmproj)
    elif _has_config(path):
        found = _in_huggingface(path)
    else:
        found = _beside(Path(path)) if is_gguf(path) else _NONE
    if isinstance(found, Vision) and (width := found.checkpoint.config.dense[-1][0]) != config.hidden_size:
        raise FormatError(
            f"{found.checkpoint.source}: its rows have {width} numbers; expected {config.hidden_size}, the width of "
            "the model; give the image encoder that belongs to it"
        )
    if isinstance(found, Vision) and found.checkpoint.config.family.by_grid:
        fitting, form = (_QWEN,) if found.checkpoint.config.deepstack_layers else _QWENS, config.family.huggingface
        if form is None or not {*fitting} & {*form.wrapped}:
            raise FormatError(
                f"{found.checkpoint.source}: it is the image encoder of {' or '.join(fitting)}; the model is of family "
                f"{config.model_type}; give the image encoder that belongs to it"
            )
        if config.long_after:
            return "images do not run with rope scaling of two sets of angles; leave images out"
        found = replace(found, sections=_sections_of(path, config))
    return found


def _beside(path: Path) -> Vision | str:
    """The encoder in the only file of one next to a GGUF file."""
    files = sorted(each for each in path.parent.glob("*.gguf") if "mmproj" in each.name.lower() and each != path)
    if len(files) > 1:
        return f"found {len(files)} image encoders next to the model; name the file of one by mmproj= (--mmproj)"
    try:
        return _in_gguf(files[0]) if files else _NONE
    except FormatError as error:
        return str(error)


def _fitting(fields: Mapping[str, Any], side: int, scale: int, label: str) -> ModelConfig:
    """The shape of an encoder."""
    patches = side // fields["patch_size"]
    if patches % scale or not 1 <= patches <= math.isqrt(MAX_PATCHES) or side > MAX_IMAGE_SIDE:
        raise FormatError(
            f"{label}: images of {side} pixels a side in patches of {fields['patch_size']}, joined {scale} × {scale}; "
            f"expected whole tokens, and at most {MAX_PATCHES} patches"
        )
    count = {"vocab_size": patches**2, "max_position_embeddings": patches**2, "patches_per_token": scale**2}
    return _shape(_SIGLIP, {**fields, **count}, label)


def _shape(family: Family, fields: Mapping[str, Any], label: str) -> ModelConfig:
    """The shape of an encoder with these fields of a configuration."""
    with described_by(f"{label}: it", "image encoder"):
        return ModelConfig(**{**family.options, **fields, "model_type": family.name})


def _in_huggingface(path: AnyPath) -> Vision | str:
    config_file, weights = locate(path)
    values = read_json(config_file, MAX_CONFIG_BYTES)
    label, kind, own = shown(config_file), values.get("model_type"), values.get("vision_config")
    settings = Settings(own if isinstance(own, dict) else {}, f"{label}: vision_config")
    if kind in _QWENS:
        return _qwen_in_huggingface(config_file, weights, settings, deep=kind == _QWEN)
    if kind not in _TYPES:
        known = " and ".join(_TYPES)
        return (
            f"images of {quoted(kind)} models are not supported, only those of {known}"
            if isinstance(own, dict)
            else _NONE
        )
    settings.only("num_channels", (3, None))
    side, scale = settings.integer("image_size", 224), Settings(values, label).integer("scale_factor", 2, most=64)
    fields = {
        **_sizes(settings, _SIGLIP, "num_hidden_layers", "num_attention_heads", 32),
        "layer_norm_eps": settings.number("layer_norm_eps", _SIGLIP.in_huggingface.eps),
        "dense": ((read_config(config_file).hidden_size, False, "none"),),
    }
    config = _fitting(fields, side, scale, label)
    checkpoint = _tensors(config, config_file, weights, ("vision_model.", "connector."))
    given = _processor(config_file.parent)
    return given if isinstance(given, str) else Vision(checkpoint, _form(given, side))


def _sizes(settings: Settings, family: Family, layers: str, heads: str, patch: int) -> Fields:
    """The fields that both forms of encoders have, with the names of two of them and the usual side of a patch."""
    form = family.in_huggingface
    names = ("hidden_size", "intermediate_size", layers, heads)
    found = [settings.integer(name, usual) for name, usual in zip(names, form.sizes[1:5], strict=True)]
    return {
        **dict(zip(SIZES[1:5], found, strict=True)),
        "patch_size": settings.integer("patch_size", patch, most=MAX_IMAGE_SIDE),
        "hidden_act": settings.one_of("hidden_act", form.activations["hidden_act"], TANH),
    }


def _tensors(config: ModelConfig, config_file: Path, weights: Path, prefixes: tuple[str, ...]) -> Checkpoint:
    """The encoder's tensors in the files of a Hugging Face model."""
    names = config.family.in_huggingface.names or config.family.names
    label, stored = shown(config_file), stored_tensors(config, names)
    found = {name.removeprefix("model."): each for name, each in find_tensors(weights).items()}
    found = {name: each for name, each in found.items() if name.startswith(prefixes)}
    check_blocks(config.num_hidden_layers, found, "layers of vision_config", label)
    check_tensors(config, stored, found, "", shown(weights))
    return loaded(config, stored, found, shown(config_file.parent))


def _qwen_in_huggingface(config_file: Path, weights: Path, settings: Settings, *, deep: bool) -> Vision | str:
    """The encoder of a Qwen3-VL (``deep``), or of a Qwen 3.5, which gives one vector for each token."""
    label = shown(config_file)
    for name, only in (("in_channels", (3, None)), ("temporal_patch_size", (2, None))):
        settings.only(name, only)
    angles = settings.values.get("rope_parameters")
    fields = {
        **_sizes(settings, _BY_GRID, "depth", "num_heads", 16),
        "layer_norm_eps": 1e-6,
        "rope_theta": Settings(angles if isinstance(angles, dict) else {}, label).number("rope_theta", 10000.0),
    }
    scale = settings.integer("spatial_merge_size", 2, most=64)
    count = settings.integer("num_position_embeddings", 2304)
    width = settings.integer("out_hidden_size", 3584)
    layers = settings.values.get("deepstack_visual_indexes", _DEEP) if deep else ()
    config = _any_shape(fields, count, scale, width, layers, label)
    checkpoint = _tensors(config, config_file, weights, ("visual.",))
    found = _processor(config_file.parent)
    return found if isinstance(found, str) else Vision(checkpoint, _piece(found, config))


def _any_shape(fields: Mapping[str, Any], count: int, scale: int, width: int, deep: object, label: str) -> ModelConfig:
    """The shape of an encoder for images of any shape, whose tokens have ``width`` numbers."""
    layers, side = fields["num_hidden_layers"], math.isqrt(count)
    deep = tuple(deep) if isinstance(deep, (list, tuple)) else (None,)
    if (
        not all(is_integer(each, 0) and each < layers for each in deep)
        or list(deep) != sorted(set(deep))[:MAX_DEEP_VECTORS]
    ):
        raise FormatError(
            f"{label}: deepstack layers are {quoted(list(deep))}; expected at most {MAX_DEEP_VECTORS} of {layers}, in "
            "order"
        )
    if side * side != count or count > MAX_PATCHES:
        raise FormatError(f"{label}: {count} learned positions; expected a square of at most {MAX_PATCHES}")
    joined = fields["hidden_size"] * scale**2
    further = {"vocab_size": count, "max_position_embeddings": MAX_GRID_PATCHES, "patches_per_token": scale**2}
    dense = ((joined, True, "gelu"), (width, True, "none")) * (1 + len(deep))
    config = _shape(_BY_GRID, {**fields, **further, "dense": dense, "deepstack_layers": deep}, label)
    if config.head_dim % 4:
        raise FormatError(f"{label}: heads of {config.head_dim} elements; expected a multiple of 4")
    return config


def _piece(settings: Settings, config: ModelConfig) -> ImageForm:
    """The form of images of any shape in the settings of a processor."""
    scale = math.isqrt(config.patches_per_token)
    wanted = {"patch_size": config.patch_size, "merge_size": scale, "temporal_patch_size": 2}
    for name, number in wanted.items():
        settings.only(name, (number, None))
    size = settings.value("size")
    limits = [
        Settings(size if isinstance(size, dict) else {}, f"{settings.label}: size").integer(name, usual)
        if settings.value(other) is None
        else settings.integer(other)
        for name, (usual, other) in _SIZES.items()
    ]
    number = settings.integer("resample", _BICUBIC, least=0, most=_BICUBIC)
    mean, std = (_colours(settings, name, _CLIP[name]) for name in ("image_mean", "image_std"))
    return _piece_form(config, limits, number, mean, std)


def _piece_form(
    config: ModelConfig, limits: Sequence[int], number: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> ImageForm:
    """The form of images of any shape, within this encoder's own limit."""
    most = config.max_position_embeddings * config.patch_size**2
    pixels = min(limits[0], most), min(limits[1], most)
    side = config.patch_size * math.isqrt(config.patches_per_token)
    return ImageForm(side, most, False, number, mean, std, pixels)


def _processor(folder: Path) -> Settings | str:
    """The settings of images in the files of a Hugging Face processor that leaves out no step, or what is missing."""
    for name, inner in _PROCESSORS:
        if not (folder / name).is_file():
            continue
        values: Any = read_json(folder / name, MAX_CONFIG_BYTES)
        values = values.get(inner) if inner else values
        if not isinstance(values, dict):
            continue
        settings = Settings(values, shown(folder / name))
        for step in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
            settings.only(step, (True, None))
        if abs(settings.number("rescale_factor", _RESCALE) / _RESCALE - 1) > 1e-6:
            raise settings.refused("rescale_factor", "1/255")
        return settings
    return f"{shown(folder)}: found no preprocessor_config.json; expected the settings of its images"


def _form(settings: Settings, side: int) -> ImageForm:
    """The form of squares in the settings of a processor."""
    square, whole = (_edge(settings, name, usual) for name, usual in (("max_image_size", side), ("size", 4 * side)))
    if square != side:
        raise settings.refused("max_image_size", f"{side}, the side of the encoder's images")
    number = settings.integer("resample", _LANCZOS, least=0, most=_BICUBIC)
    mean, std = (_colours(settings, name) for name in ("image_mean", "image_std"))
    return ImageForm(side, whole, settings.flag("do_image_splitting", default=True), number, mean, std)


def _edge(settings: Settings, name: str, usual: int) -> int:
    """A size, as an object with ``longest_edge``."""
    found = settings.value(name)
    if found is None:
        return usual
    if not isinstance(found, dict) or not is_integer(found.get("longest_edge"), 1):
        raise settings.refused(name, "an object with longest_edge")
    return min(MAX_IMAGE_SIDE, int(found["longest_edge"]))


def _colours(settings: Settings, name: str, usual: tuple[float, ...] = _HALF) -> tuple[float, ...]:
    """Three numbers, of red, green and blue."""
    found = settings.values.get(name, usual)
    good = isinstance(found, (list, tuple)) and len(found) == 3
    if not good or not all(isinstance(each, (int, float)) and 0 <= each <= 1 for each in found):
        raise settings.refused(name, "three numbers from 0 to 1")
    if name == "image_std" and not all(found):
        raise settings.refused(name, "three numbers above 0")
    return tuple(map(float, found))


def _in_gguf(path: AnyPath) -> Vision:
    """The image encoder in llama.cpp's file of one.

    Source of the keys: tools/mtmd/clip.cpp of llama.cpp.
    """
    file = read_gguf_file(path)
    top = Settings(file.metadata, file.source)
    kind = file.metadata.get("clip.vision.projector_type", file.metadata.get("clip.projector_type"))
    if file.metadata.get("general.architecture") != "clip" or kind is None:
        raise FormatError(f"{file.source}: found no image encoder; expected a file of architecture clip (mmproj)")
    if kind not in _PROJECTORS:
        known = " or ".join(f"{name}, of {model}" for name, model in _PROJECTORS.items())
        raise FormatError(
            f"{file.source}: the image encoder is of type {quoted(kind)}, which is not supported; expected {known}"
        )
    top.only("clip.use_silu", (False,))
    vision = {key.removeprefix("clip.vision."): value for key, value in file.metadata.items()}
    keys = Settings(vision, f"{file.source}: clip.vision")
    side, width = keys.integer("image_size"), keys.integer("projection_dim")
    fields: dict[str, Any] = {
        "hidden_size": keys.integer("embedding_length"),
        "intermediate_size": keys.integer("feed_forward_length"),
        "num_hidden_layers": keys.integer("block_count"),
        "num_attention_heads": keys.integer("attention.head_count"),
        "patch_size": keys.integer("patch_size", most=MAX_IMAGE_SIDE),
        "layer_norm_eps": keys.number("attention.layer_norm_epsilon"),
    }
    if kind != "idefics3":
        return _qwen_in_gguf(file, keys, fields, width)
    fields["dense"] = ((width, False, "none"),)
    config = _fitting(fields, side, keys.integer("projector.scale_factor", most=64), file.source)
    mean, std = (_colours(keys, name) for name in ("image_mean", "image_std"))
    longest = min(MAX_IMAGE_SIDE, keys.integer("preproc_image_size", 4 * side))
    names, down = _SIGLIP.in_gguf.names, file.tensors.get("v.blk.0.ffn_down.weight")
    if down is not None and down.shape[-1] == config.hidden_size != config.intermediate_size:
        names = replace(names, up=names.down, down=names.up)  # older conversions have the two names reversed
    checkpoint = checked_parts(config, file, names)
    return Vision(checkpoint, ImageForm(side, longest, mean=mean, std=std))


def _qwen_in_gguf(file: GgufFile, keys: Settings, fields: Mapping[str, Any], width: int) -> Vision:
    """The encoder of a Qwen3-VL in llama.cpp's file of one.

    Source of the names: conversion/qwen3vl.py of llama.cpp.
    """
    flags, names = keys.values.get("is_deepstack_layers", []), _BY_GRID.in_gguf.names
    deep = tuple(layer for layer, flag in enumerate(flags) if flag) if isinstance(flags, list) else ()
    side, scale = keys.integer("image_size") // fields["patch_size"], keys.integer("spatial_merge_size", 2, most=64)
    config = _any_shape(fields, side**2, scale, width, deep, file.source)
    # Files have the numbers of layers in the names, glinfer those of the vectors.
    prefix = names.dense_norm.removesuffix("norm")
    renamed = {prefix.format(layer): prefix.format(number) for number, layer in enumerate(deep)}
    tensors = {
        next((to + name.removeprefix(at) for at, to in renamed.items() if name.startswith(at)), name): tensor
        for name, tensor in file.tensors.items()
    }
    name = f"{names.patches}.weight"
    first, second = (tensors.pop(each, None) for each in (name, f"{name}.1"))
    if first is None or second is None or first.shape != second.shape:
        raise FormatError(f"{file.source}: expected the tensors {name} and {name}.1, of two frames and of one shape")
    frames = np.stack([first.floats(), second.floats()], axis=2).astype("<f4")
    tensors[name] = GgufTensor(name, "F32", frames.shape, frames.reshape(-1).view(np.uint8))
    checkpoint = checked_parts(config, replace(file, tensors=tensors), names)
    limits = [keys.integer(f"image_{other}", usual) for usual, other in _SIZES.values()]
    mean, std = (_colours(keys, each) for each in ("image_mean", "image_std"))
    return Vision(checkpoint, _piece_form(config, limits, _BICUBIC, mean, std))


def image_metadata(path: AnyPath, config: ModelConfig) -> dict[str, Any]:
    """The metadata of a language model's images for a GGUF file: what the model's own files say of them.

    These are the sections of rotary pairs, and how many vectors a Qwen3-VL encoder gives besides a token's first.
    """
    form, deep = config.family.gguf, None
    if form is None or not form.sections or not (is_gguf(path) or _has_config(path)):
        return {}
    sections, label = _given_sections(path)
    found = {} if sections is None else {f"{form.architecture}.{_SECTIONS}": [*_checked_sections(sections, label), 0]}
    key = f"{form.architecture}.n_deepstack_layers"
    if is_gguf(path):
        deep = read_gguf_file(path).metadata.get(key)
    elif isinstance(vision := (values := read_json(locate(path)[0], MAX_CONFIG_BYTES)).get("vision_config"), dict):
        layers = vision.get("deepstack_visual_indexes", _DEEP) if values.get("model_type") == _QWEN else None
        deep = len(layers) if isinstance(layers, list | tuple) else None
    return found if deep is None else found | {key: deep}


def _has_config(path: AnyPath) -> bool:
    """Whether there is a configuration of Hugging Face in a directory, or next to a file of weights."""
    beside = Path(path).name.endswith((".json", ".safetensors"))
    return is_directory(path) or (beside and (Path(path).parent / "config.json").is_file())


def _sections_of(path: AnyPath, config: ModelConfig) -> tuple[int, ...]:
    """The sections of rotary pairs of a language model."""
    found, label = _given_sections(path)
    return _checked_sections(config.family.in_gguf.sections if found is None else found, label)


def _given_sections(path: AnyPath) -> tuple[object, str]:
    """The sections of rotary pairs in the files of a language model, or None; and what has them."""
    if is_gguf(path):
        file = read_gguf_file(path)
        key = f"{file.metadata.get('general.architecture')}.{_SECTIONS}"
        return file.metadata.get(key), f"{file.source}: {key}"
    config_file, _ = locate(path)
    values = read_json(config_file, MAX_CONFIG_BYTES)
    text = values.get("text_config", values)
    settings = text if isinstance(text, dict) else {}
    angles = settings.get("rope_parameters") or settings.get("rope_scaling")
    return angles.get("mrope_section") if isinstance(angles, dict) else None, shown(config_file)


def _checked_sections(found: object, label: str) -> tuple[int, ...]:
    """Three integers, or more; FormatError for others."""
    if not isinstance(found, (list, tuple)) or len(found) < 3 or not all(is_integer(each, 0) for each in found):
        raise FormatError(f"{label}: sections of rotary pairs are {quoted(found)}; expected three integers")
    return tuple(found[:3])
