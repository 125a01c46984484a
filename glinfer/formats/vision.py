"""Image encoders of models that take images, and how a model's processor makes squares of pixels from an image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glinfer.config import ModelConfig
from glinfer.errors import ConfigError, FormatError
from glinfer.families import TOWERS
from glinfer.families.settings import Settings, is_whole, quoted
from glinfer.formats.checkpoint import Checkpoint, check_blocks
from glinfer.formats.files import AnyPath, is_directory, shown
from glinfer.formats.gguf.file import is_gguf
from glinfer.formats.gguf.model import checked_parts
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.huggingface.config import read_config
from glinfer.formats.huggingface.files import find_tensors, locate
from glinfer.formats.huggingface.model import check_tensors, loaded
from glinfer.formats.json_files import read_json
from glinfer.formats.tensors import stored_tensors
from glinfer.limits import MAX_CONFIG_BYTES, MAX_IMAGE_SIDE, MAX_PATCHES

_SIGLIP = TOWERS["siglip"]
_TYPES = ("smolvlm", "idefics3")
_PROCESSORS = (("preprocessor_config.json", ""), ("processor_config.json", "image_processor"))
_FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
_LANCZOS, _RESCALE, _HALF = 1, 1 / 255, (0.5, 0.5, 0.5)
_NONE = "this model has no image encoder; leave images out, or give llama.cpp's file of one: mmproj"


@dataclass(frozen=True)
class ImageForm:
    """How an image becomes squares, as transformers' processors of SmolVLM and Idefics 3 do it.

    Attributes:
        side: pixels of a side of a square.
        longest: pixels of the longest side, to which an image is resized before it is split.
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


@dataclass(frozen=True)
class Vision:
    """An image encoder: its weights, and the form of its images."""

    checkpoint: Checkpoint
    form: ImageForm


def read_vision(path: AnyPath, config: ModelConfig, mmproj: AnyPath | None = None) -> Vision | str:
    """The image encoder of a model, or why it takes no images.

    Args:
        path: the model's file or directory.
        config: the model's shape.
        mmproj: llama.cpp's file of an image encoder; by default the only one beside a GGUF file.

    Raises:
        FormatError: the encoder of ``mmproj``, or of a supported Hugging Face model, is damaged or does not fit.
    """
    if mmproj is not None:
        found: Vision | str = _in_gguf(mmproj)
    elif is_directory(path) or Path(path).name.endswith((".json", ".safetensors")):
        found = _in_huggingface(path) if is_directory(path) or (Path(path).parent / "config.json").is_file() else _NONE
    else:
        found = _beside(Path(path)) if is_gguf(path) else _NONE
    if isinstance(found, Vision) and (width := found.checkpoint.config.dense[0][0]) != config.hidden_size:
        raise FormatError(
            f"{found.checkpoint.source}: its rows have {width} numbers; expected {config.hidden_size}, the width of "
            "the model; give the image encoder that belongs to it"
        )
    return found


def _beside(path: Path) -> Vision | str:
    """The encoder in the only file of one beside a GGUF file."""
    files = sorted(each for each in path.parent.glob("*.gguf") if "mmproj" in each.name.lower() and each != path)
    if len(files) > 1:
        return f"found {len(files)} image encoders beside the model; give the file of one: mmproj"
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
    usual = {name: value for name, value in _SIGLIP.usual.items() if name not in fields}
    count = {"vocab_size": patches**2, "max_position_embeddings": patches**2, "patches_per_token": scale**2}
    try:
        return ModelConfig(**count, **usual, **fields, model_type=_SIGLIP.name)
    except ConfigError as error:
        raise FormatError(f"{label}: it describes no possible image encoder: {error}") from None


def _in_huggingface(path: AnyPath) -> Vision | str:
    config_file, weights = locate(path)
    values = read_json(config_file, MAX_CONFIG_BYTES)
    label, kind = shown(config_file), values.get("model_type")
    if kind not in _TYPES:
        pictured = isinstance(values.get("vision_config"), dict)
        known = " and ".join(_TYPES)
        return f"images of {quoted(kind)} models are not supported, only those of {known}" if pictured else _NONE
    own = values.get("vision_config")
    settings = Settings(own if isinstance(own, dict) else {}, f"{label}: vision_config")
    settings.only("num_channels", (3, None))
    usual = _SIGLIP.in_huggingface
    side, scale = settings.whole("image_size", 224), Settings(values, label).whole("scale_factor", 2, most=64)
    fields = {
        "hidden_size": settings.whole("hidden_size", usual.sizes[1]),
        "intermediate_size": settings.whole("intermediate_size", usual.sizes[2]),
        "num_hidden_layers": settings.whole("num_hidden_layers", usual.sizes[3]),
        "num_attention_heads": settings.whole("num_attention_heads", usual.sizes[4]),
        "patch_size": settings.whole("patch_size", 32, most=MAX_IMAGE_SIDE),
        "layer_norm_eps": settings.number("layer_norm_eps", usual.eps),
        "hidden_act": settings.one_of("hidden_act", usual.activations["hidden_act"], "gelu_pytorch_tanh"),
        "dense": ((read_config(config_file).hidden_size, False, "none"),),
    }
    config = _fitting(fields, side, scale, label)
    stored = stored_tensors(config, _SIGLIP.names)
    found = {name.removeprefix("model."): each for name, each in find_tensors(weights).items()}
    found = {name: each for name, each in found.items() if name.startswith(("vision_model.", "connector."))}
    check_blocks(config.num_hidden_layers, found, "layers of vision_config", label)
    check_tensors(config, stored, found, "", shown(weights))
    form = _processor(config_file.parent, side)
    return form if isinstance(form, str) else Vision(loaded(config, stored, found, shown(path)), form)


def _processor(folder: Path, side: int) -> ImageForm | str:
    """The form of images in the files of a Hugging Face processor, or what is missing."""
    for name, inner in _PROCESSORS:
        if not (folder / name).is_file():
            continue
        values: Any = read_json(folder / name, MAX_CONFIG_BYTES)
        values = values.get(inner) if inner else values
        if isinstance(values, dict):
            return _form(Settings(values, shown(folder / name)), side)
    return f"{shown(folder)}: found no preprocessor_config.json; expected the settings of its images"


def _form(settings: Settings, side: int) -> ImageForm:
    for name in ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb"):
        settings.only(name, (True, None))
    rescale = settings.number("rescale_factor", _RESCALE)
    if abs(rescale / _RESCALE - 1) > 1e-6:
        raise settings.refused("rescale_factor", "1/255")
    square, whole = (_edge(settings, name, usual) for name, usual in (("max_image_size", side), ("size", 4 * side)))
    if square != side:
        raise settings.refused("max_image_size", f"{side}, the side of the encoder's images")
    number = settings.whole("resample", _LANCZOS, least=0, most=max(_FILTERS))
    mean, std = (_colours(settings, name) for name in ("image_mean", "image_std"))
    return ImageForm(side, whole, settings.flag("do_image_splitting", default=True), number, mean, std)


def _edge(settings: Settings, name: str, usual: int) -> int:
    """A size, as an object with ``longest_edge``."""
    found = settings.value(name)
    if found is None:
        return usual
    if not isinstance(found, dict) or not is_whole(found.get("longest_edge"), 1):
        raise settings.refused(name, "an object with longest_edge")
    return min(MAX_IMAGE_SIDE, int(found["longest_edge"]))


def _colours(settings: Settings, name: str) -> tuple[float, ...]:
    """Three numbers, of red, green and blue."""
    found = settings.values.get(name, _HALF)
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
    if kind != "idefics3":
        raise FormatError(
            f"{file.source}: the image encoder is of type {quoted(kind)}, which is not supported; expected idefics3, "
            "which SmolVLM has"
        )
    top.only("clip.use_silu", (False,))
    vision = {key.removeprefix("clip.vision."): value for key, value in file.metadata.items()}
    keys = Settings(vision, f"{file.source}: clip.vision")
    side, scale = keys.whole("image_size"), keys.whole("projector.scale_factor", most=64)
    fields = {
        "hidden_size": keys.whole("embedding_length"),
        "intermediate_size": keys.whole("feed_forward_length"),
        "num_hidden_layers": keys.whole("block_count"),
        "num_attention_heads": keys.whole("attention.head_count"),
        "patch_size": keys.whole("patch_size", most=MAX_IMAGE_SIDE),
        "layer_norm_eps": keys.number("attention.layer_norm_epsilon"),
        "dense": ((keys.whole("projection_dim"), False, "none"),),
    }
    config = _fitting(fields, side, scale, file.source)
    mean, std = (_colours(keys, name) for name in ("image_mean", "image_std"))
    longest = min(MAX_IMAGE_SIDE, keys.whole("preproc_image_size", 4 * side))
    names, down = _SIGLIP.in_gguf.names, file.tensors.get("v.blk.0.ffn_down.weight")
    if down is not None and down.shape[-1] == config.hidden_size != config.intermediate_size:
        names = replace(names, up=names.down, down=names.up)  # older conversions have the two names reversed
    checkpoint = checked_parts(config, file, names)
    return Vision(checkpoint, ImageForm(side, longest, mean=mean, std=std))
