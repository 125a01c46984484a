"""Transformer language models on WebGL2-class graphics, headless, from Python.

    import glinfer

    with glinfer.load("model.gab", tokenizer="model.bpe") as model:
        for piece in model.stream("Once upon a time", max_tokens=40, seed=1):
            print(piece, end="", flush=True)

A GGUF file or the directory of a Hugging Face model goes in its place, and brings its own tokenizer.

And the kernels under them, over tensors of any shape:

    with glinfer.Device() as dev:
        y = dev.ops.silu(dev.tensor(array)).numpy()

Importing glinfer loads no OpenGL and creates no context; :func:`load` and :class:`Device` do.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from inspect import signature  # the package has a folder inspect, whose name would hide the module
from os import PathLike
from typing import TYPE_CHECKING, Any

from glinfer.config import ModelConfig
from glinfer.errors import GlinferError

if TYPE_CHECKING:
    from glinfer.engine.capture import Seen
    from glinfer.engine.model import Model
    from glinfer.engine.requests import BatchRequest
    from glinfer.engine.stream import TextStream, TokenStream
    from glinfer.tensors.device import Device
    from glinfer.tensors.tensor import Tensor

__version__ = "0.1.0"
__all__ = [
    "BatchRequest",
    "Device",
    "GlinferError",
    "ModelConfig",
    "Seen",
    "Tensor",
    "__version__",
    "generate",
    "load",
    "stream",
]
_LATE = {
    "BatchRequest": "glinfer.engine.requests",
    "Device": "glinfer.tensors.device",
    "Seen": "glinfer.engine.capture",
    "Tensor": "glinfer.tensors.tensor",
}


if not TYPE_CHECKING:  # to a type checker they are as imported above, and any other name is a mistake

    def __getattr__(name: str) -> Any:
        """Import what brings OpenGL along when it is first asked for."""
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_LATE[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """What there is, what was not asked for yet among it."""
        return sorted({*globals(), *_LATE})


def load(path: str | PathLike[str], **options: Any) -> Model:
    """Open a checkpoint on a headless OpenGL ES context, ready to run.

    Args:
        path: a ``.gab``, ``.safetensors`` or ``.gguf`` checkpoint, the directory of a Hugging Face model, the manifest
            of a second-generation Gab, or the name of a bundled model; what a file holds tells what it is, not its
            name.
        **options: see :func:`glinfer.engine.loading.load_model`: ``tokenizer``, ``plan``, ``weights``,
            ``cache``, ``kernels``, ``gelu``, ``context``, ``device``, ``api``, ``limits``, ``on_upload``.

    Returns:
        A :class:`glinfer.engine.model.Model`; close it, or use it in a ``with`` block.

    Raises:
        GlinferError: one line that says what was found, what was expected and what to do.
    """
    from glinfer.engine.loading import load_model

    return load_model(path, **options)


def generate(path: str | PathLike[str], prompt: str | Sequence[int], **options: Any) -> str | list[int]:
    """Load, continue one prompt, close. ``options`` are those of :func:`load` and of ``Model.generate`` together."""
    loading, running = _split(options)
    with load(path, **loading) as model:
        return model.generate(prompt, **running)


def stream(path: str | PathLike[str], prompt: str | Sequence[int], **options: Any) -> TextStream | TokenStream:
    """Load and continue one prompt piece by piece; the model closes when the stream ends or is closed.

    ``options`` are those of :func:`load` and of ``Model.stream`` together. A stream that is not read to its end
    has to be closed, best by a ``with`` block around it.
    """
    loading, running = _split(options)
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


def _split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of ``load``, and the others."""
    from glinfer.engine.loading import load_model

    names = signature(load_model).parameters
    loading = {name: value for name, value in options.items() if name in names}
    return loading, {name: value for name, value in options.items() if name not in names}
