"""Transformer language models on WebGL2-class graphics, headless, from Python.

    import glinfer

    with glinfer.load("model.gab", tokenizer="model.bpe") as model:
        for piece in model.stream("Once upon a time", max_tokens=40, seed=1):
            print(piece, end="", flush=True)

``load`` also opens GGUF files and Hugging Face model directories, which include a tokenizer.

The kernels also work on tensors of any shape:

    with glinfer.Device() as dev:
        y = dev.ops.silu(dev.tensor(array)).numpy()

Importing glinfer loads no OpenGL and creates no context; ``load`` and :class:`Device` do.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

from glinfer.engine.option_names import check_options
from glinfer.errors import GlinferError

if TYPE_CHECKING:
    from glinfer.config import ModelConfig
    from glinfer.engine.capture import Captured, Seen
    from glinfer.engine.chat import ChatReply, ChatSession, ChatStream
    from glinfer.engine.ids import Ids
    from glinfer.engine.loading import load_model as load
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
    from glinfer.gl.context import Limits
    from glinfer.kernels.options import KernelOptions
    from glinfer.program.plan import DrawTable
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
_EXPORTS = {
    "config": ("ModelConfig",),
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
    "program.plan": ("DrawTable",),
    "kernels.options": ("KernelOptions",),
    "tensors.device": ("Device",),
    "tensors.tensor": ("Tensor",),
    "text.tokenizer": ("Tokenizer",),
}
_LATE = {name.removeprefix("Decode"): (module, name) for module, names in _EXPORTS.items() for name in names}
_LATE["load"] = "engine.loading", "load_model"


if not TYPE_CHECKING:  # so that a type checker knows the imports above alone, and reports other names

    def __getattr__(name: str) -> Any:
        """Import names that load NumPy or OpenGL at first use."""
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, own_name = _LATE[name]
        value = getattr(importlib.import_module(f"glinfer.{module}"), own_name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """The public names."""
        return list(__all__)


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
    from glinfer import load

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
    from glinfer import load
    from glinfer.engine.ids import check_callback

    then = running.pop("on_end", None)
    check_callback("on_end", then)
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
    from inspect import signature  # slow to import; the package's folder inspect would hide the module itself

    from glinfer.engine.loading import load_model
    from glinfer.engine.model import StreamOptions

    names = signature(load_model).parameters
    check_options(call, options, {*names, *StreamOptions.__annotations__} - {"path"})
    loading = {name: value for name, value in options.items() if name in names}
    return loading, {name: value for name, value in options.items() if name not in names}
