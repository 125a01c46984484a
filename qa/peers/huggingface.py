"""The model in Hugging Face's transformers, in float32, with its own cache of keys and values.

A directory that transformers wrote is loaded as it is, and so is a GGUF file, whose blocks transformers dequantises.
Any other model goes through a temporary GGUF file in float32, as GPT-2 where the family is ``gab``.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glinfer.config import ModelConfig
from glinfer.errors import InputError
from glinfer.formats.checkpoint import Checkpoint
from glinfer.formats.gguf.file import is_gguf
from glinfer.formats.gguf.write import as_relative
from qa.peers.peer import Peer, required, temporary_gguf, threads_text
from qa.peers.pytorch import TorchPeer

_PEER = "transformers"
os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported: nothing is fetched
transformers: Any = required("transformers", _PEER)


class TransformersPeer(TorchPeer):
    """One ``AutoModelForCausalLM`` with a ``DynamicCache``, decoding in eager mode."""

    def __init__(self, checkpoint: Checkpoint, model: Any, label: str, threads: int | None) -> None:
        """Take over a loaded model."""
        super().__init__(checkpoint.config, label, model.device, threads)
        self._model = model
        self.rewind(0)

    @torch.inference_mode()
    def forward(self, ids: Tensor) -> Tensor:
        """See :class:`TorchPeer`."""
        self.length += len(ids)
        how = {"past_key_values": self._cache, "use_cache": True, "logits_to_keep": 1}
        return self._model(ids[None], **how).logits[0, -1]

    def rewind(self, length: int) -> None:
        """See :class:`Peer`."""
        if length == 0:
            # Without the configuration, a layer with a window keeps every position too, and can be cut back.
            self._cache = transformers.DynamicCache()
        elif length < self.length:
            self._cache.crop(length - self.length)  # minus the number of tokens to remove
        super().rewind(length)

    def close(self) -> None:
        """See :class:`Peer`."""
        self._model = self._cache = None
        super().close()


def opened(checkpoint: Checkpoint, threads: int) -> Iterator[Peer]:
    """The peer of transformers: on the GPU where PyTorch has a CUDA device, on the CPU with ``threads`` elsewhere.

    Raises:
        InputError: transformers does not know the architecture, or loads other weights than the file has; GGUF cannot
            hold a model that is neither a directory nor a GGUF file; the temporary file cannot be written.
    """
    on_gpu = torch.cuda.is_available()
    where = torch.cuda.get_device_name() if on_gpu else threads_text(threads)
    model = _loaded(checkpoint).to("cuda" if on_gpu else "cpu").eval()
    label = f"transformers fp32, {where}{_left_out(checkpoint.config, model.config)}"
    yield TransformersPeer(checkpoint, model, label, None if on_gpu else threads)


def _left_out(config: ModelConfig, theirs: Any) -> str:
    """The parts of a model that transformers did not read from GGUF, for a label; they hardly change the speed."""
    if not hasattr(theirs, "quantization_config"):
        return ""
    lacks_window = bool(config.sliding_window) and config.sliding_window != getattr(theirs, "sliding_window", None)
    return ", no scaling of angles" * bool(config.rope_scaling) + ", no windows" * lacks_window


def _loaded(checkpoint: Checkpoint) -> Any:
    """The model, from the file that the checkpoint was read from or a temporary one."""
    first = checkpoint.files[0] if checkpoint.files else None
    if first is not None and first.name == "config.json":
        return _from_pretrained(checkpoint, first.parent, None)
    if first is not None and is_gguf(first):
        return _from_pretrained(checkpoint, first.parent, first.name)
    with temporary_gguf(checkpoint, _PEER) as path:
        # The loaded model has the checkpoint's form of GELU; the file can have the tanh form alone.
        relative = as_relative(checkpoint) if checkpoint.config.family.gguf_as else checkpoint
        return _from_pretrained(relative, path.parent, path.name)


def _from_pretrained(checkpoint: Checkpoint, folder: Path, gguf_file: str | None) -> Any:
    """Load a model in float32 and check that every weight of the file is in it.

    Raises:
        InputError: transformers cannot load it, or leaves weights out; or a package that GGUF files need is missing.
    """
    if gguf_file is not None:
        for package in ("gguf", "accelerate"):
            required(package, _PEER)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    offline = {"local_files_only": True, "trust_remote_code": False, "gguf_file": gguf_file}
    where = checkpoint.source
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **offline)
        if hasattr(config, "activation_function"):
            config.activation_function = checkpoint.config.hidden_act
        if gguf_file is not None:  # of these the metadata of some architectures are not read
            config.vocab_size = checkpoint.config.vocab_size
            config.max_position_embeddings = checkpoint.config.max_position_embeddings
            if hasattr(config, "n_inner"):
                config.n_inner = checkpoint.config.intermediate_size
            if hasattr(config, "sliding_window") and not hasattr(config, "use_sliding_window"):
                config.sliding_window = checkpoint.config.sliding_window or None
        with contextlib.redirect_stderr(io.StringIO()):  # the progress of GGUF files heeds no setting
            model, found = transformers.AutoModelForCausalLM.from_pretrained(
                folder, config=config, dtype=torch.float32, output_loading_info=True, **offline
            )
    except Exception as error:  # of any type, by version and family
        first = next(iter(str(error).splitlines()), "").rstrip(".") or type(error).__name__
        raise InputError(
            f"{where}: transformers {transformers.__version__} cannot load this {checkpoint.config.model_type}: "
            f"{first}; leave the peer {_PEER} out"
        ) from None
    weights = sum(each.numel() for each in model.parameters())
    if any(found.values()) or weights != checkpoint.parameter_count:
        raise InputError(
            f"{where}: transformers {transformers.__version__} loads {weights:,} weights of this "
            f"{checkpoint.config.model_type}; expected all {checkpoint.parameter_count:,}; leave the peer {_PEER} out"
        )
    return model
