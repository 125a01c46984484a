"""The model in PyTorch: plain eager code, and on an NVIDIA GPU also decoding as a CUDA graph.

Q, K and V are one matrix product; keys and values are in a cache as long as the context, allocated once. Nothing
else is fused, compiled or quantised: straightforward PyTorch code, with the fastest of PyTorch's attentions for one
row.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from glinfer.config import ModelConfig
from glinfer.formats.checkpoint import Checkpoint
from glinfer.formats.tensors import head_weight
from qa.peers.peer import Logits, Peer, threads_text

MIN_BUCKET = 128
"""Smallest number of cached positions over which a CUDA graph attends; larger ones are powers of two."""

PRODUCTS_FROM = 768
"""Cached positions from which eager fp32 on a GPU attends by two matrix products, see :func:`_products`."""

Block = Mapping[str, tuple[Tensor, Tensor | None]]
"""Weight and bias of the linear maps and norms of a block."""


class Weights:
    """A checkpoint's tensors on one device in one number format; several peers may share them."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        """Copies every tensor, converted to ``dtype``."""
        self.config, self.device, self.dtype, self._tensors = checkpoint.config, device, dtype, checkpoint.tensors
        names = self.config.family.names
        self.wte = self._load(f"{names.embeddings}.weight")
        self.wpe = self._load(f"{names.positions}.weight")
        self.blocks: list[Block] = [
            {
                "projection": self._pair(*(names.of("projection", layer, letter) for letter in "qkv")),
                **{kind: self._pair(names.of(kind, layer)) for kind in ("output", "up", "down")},
                **{kind: self._pair(names.of(kind, layer)) for kind in ("attention_norm", "mlp_norm")},
            }
            for layer in range(self.config.num_hidden_layers)
        ]
        self.final_norm = self._pair(names.final_norm)
        self.head = self._load(head_weight(self.config)), self._load(f"{names.head}.bias")
        self.gelu = "tanh" if self.config.hidden_act == "gelu_new" else "none"

    def _load(self, *names: str) -> Any:
        """The tensors under each other, or nothing where the family has none of these names."""
        found = [self._tensors[name] for name in names if name in self._tensors]
        # A contiguous copy: the arrays may be read-only views of a file, which torch does not know.
        return torch.from_numpy(np.concatenate(found, dtype=np.float32)).to(self.device, self.dtype) if found else None

    def _pair(self, *names: str) -> tuple[Tensor, Tensor | None]:
        weight, bias = (self._load(*(f"{name}.{kind}" for name in names)) for kind in ("weight", "bias"))
        return weight, bias

    def norm(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """LayerNorm of the rows x [T, D]."""
        return functional.layer_norm(x, weight.shape, weight, bias, self.config.layer_norm_eps)

    def split_heads(self, block: Block, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The block's q, k and v of the rows x [T, D], each [1, heads, T, head width]."""
        config = self.config
        rows = functional.linear(self.norm(x, *block["attention_norm"]), *block["projection"])
        q, k, v = rows.view(1, len(x), 3, config.num_attention_heads, config.head_dim).permute(2, 0, 3, 1, 4)
        return q, k, v

    def finish_block(self, block: Block, x: Tensor, mixed: Tensor) -> Tensor:
        """The rest of the block, from the weighted sums ``mixed`` [1, heads, T, head width] on."""
        x = x + functional.linear(mixed.transpose(1, 2).reshape(x.shape), *block["output"])
        inner = functional.linear(self.norm(x, *block["mlp_norm"]), *block["up"])
        return x + functional.linear(functional.gelu(inner, approximate=self.gelu), *block["down"])

    def logits(self, x: Tensor) -> Tensor:
        """Float32 logits [T, V] of the rows x [T, D]."""
        return functional.linear(self.norm(x, *self.final_norm), *self.head).float()


def _products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention of one row by two matrix products.

    For one row of fp32 on a GPU they beat PyTorch's own kernel, whose time grows with the cache: 19 µs at 128
    positions and 227 µs at 2048, against 10 and 20 µs (H200, in a CUDA graph).
    """
    scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2))
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.matmul(torch.softmax(scores, -1), v)


def settings(threads: int | None) -> ExitStack:
    """Set PyTorch for the whole process, until the stack is closed: ``threads`` on the CPU, None for a GPU.

    On a GPU cuDNN's attention is off: it plans anew, for 25 ms, whenever the cache has another length.
    """
    before = ExitStack()
    if threads is None:
        before.callback(torch.backends.cuda.enable_cudnn_sdp, torch.backends.cuda.cudnn_sdp_enabled())
        torch.backends.cuda.enable_cudnn_sdp(False)
    else:
        before.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads)
    return before


class TorchPeer(Peer):
    """A model that :meth:`forward` runs; PyTorch has ``threads`` threads until it is closed, None for a GPU."""

    def __init__(self, config: ModelConfig, label: str, device: torch.device, threads: int | None) -> None:
        """Set PyTorch for the whole process."""
        super().__init__(config, label)
        self._device, self._settings = device, settings(threads)

    @abstractmethod
    def forward(self, ids: Tensor) -> Tensor:
        """Append ids [T], one or, if the cache is empty, several; float32 logits [V] of the last."""

    def append(self, ids: Sequence[int]) -> Logits:
        """See :class:`Peer`."""
        return on_host(self.forward(torch.tensor(ids, dtype=torch.int64, device=self._device)))

    def decode_greedy(self, token: int, count: int) -> list[int]:
        """Choose tokens on the device; see :class:`Peer`."""
        ids, chosen = torch.tensor([token], dtype=torch.int64, device=self._device), list[int]()
        for _ in range(count):
            ids = self.forward(ids).argmax(keepdim=True)
            chosen.append(int(ids))
        return chosen

    def close(self) -> None:
        """See :class:`Peer`."""
        self._settings.close()


class EagerPeer(TorchPeer):
    """Every operation issued from Python, one after another."""

    def __init__(self, weights: Weights, label: str, threads: int | None = None) -> None:
        """Allocate the cache: keys and values [1, heads, context, head width] of each block."""
        config = weights.config
        super().__init__(config, label, weights.device, threads)
        self.weights = weights
        self._fp32_on_gpu = threads is None and weights.dtype is torch.float32
        # Zeros, not whatever lies there: a masked NaN would still spoil the sum that it is multiplied into.
        self._zeros = partial(torch.zeros, device=weights.device)
        shape = (1, config.num_attention_heads, config.max_position_embeddings, config.head_dim)
        self.caches = [tuple(self._zeros(shape, dtype=weights.dtype) for _ in range(2)) for _ in weights.blocks]

    @torch.inference_mode()
    def forward(self, ids: Tensor) -> Tensor:
        """See :class:`TorchPeer`."""
        weights, start, stop = self.weights, self.length, self.length + len(ids)
        by_products = self._fp32_on_gpu and len(ids) == 1 and stop >= PRODUCTS_FROM
        x = functional.embedding(ids, weights.wte) + weights.wpe[start:stop]
        for block, (keys, values) in zip(weights.blocks, self.caches, strict=True):
            q, k, v = weights.split_heads(block, x)
            keys[:, :, start:stop], values[:, :, start:stop] = k, v
            k, v = keys[:, :, :stop], values[:, :, :stop]
            if by_products:
                mixed = _products(q, k, v)
            else:
                mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=len(ids) > 1)
            x = weights.finish_block(block, x, mixed)
        self.length = stop
        return weights.logits(x[-1:])[0]

    def close(self) -> None:
        """See :class:`Peer`."""
        self.caches.clear()
        super().close()


class GraphPeer(EagerPeer):
    """Decoding replays one CUDA graph a token; prefill is eager.

    Token and position are device tensors that the graph itself advances, argmax included. Attention covers a
    bucket of the cache, the smallest power of two (at least :data:`MIN_BUCKET`, at most the context) that
    holds the sequence, under a mask. There is one graph for each bucket, captured when it is first needed, so
    the first call at a new length is slow.
    """

    def __init__(self, weights: Weights, label: str) -> None:
        """See :class:`EagerPeer`."""
        super().__init__(weights, label)
        self._token, self._position = (self._zeros((1,), dtype=torch.int64) for _ in range(2))
        self._logits = self._zeros((self.config.vocab_size,), dtype=torch.float32)
        self._places = torch.arange(self.config.max_position_embeddings, device=weights.device)
        self._graphs: dict[int, Any] = {}

    def _advance(self, bucket: int) -> None:
        """One token, from ``_token`` at ``_position`` to ``_logits`` and the next ``_token``."""
        weights = self.weights
        x = functional.embedding(self._token, weights.wte) + functional.embedding(self._position, weights.wpe)
        mask = (self._places[:bucket] <= self._position).view(1, 1, 1, bucket)
        for block, (keys, values) in zip(weights.blocks, self.caches, strict=True):
            q, k, v = weights.split_heads(block, x)
            keys.index_copy_(2, self._position, k)
            values.index_copy_(2, self._position, v)
            k, v = keys[:, :, :bucket], values[:, :, :bucket]
            if self._fp32_on_gpu:
                mixed = _products(q, k, v, mask)
            else:
                mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = weights.finish_block(block, x, mixed)
        self._logits.copy_(weights.logits(x)[0])
        self._token.copy_(self._logits.argmax(keepdim=True))
        self._position.add_(1)

    def _place(self, token: int, position: int) -> None:
        self._token.fill_(token)
        self._position.fill_(position)

    def _replay(self) -> None:
        """Run the graph that attends over the cached positions and one more."""
        self.length += 1
        bucket = min(max(MIN_BUCKET, 1 << (self.length - 1).bit_length()), self.config.max_position_embeddings)
        if bucket not in self._graphs:
            self._graphs[bucket] = self._capture(bucket)
        self._graphs[bucket].replay()

    def _capture(self, bucket: int) -> Any:
        token, position = int(self._token), int(self._position)
        # Libraries set themselves up in the first runs, which a graph must not record. A trial run writes its
        # keys and values where the real one will write them again.
        stream = torch.cuda.Stream(self.weights.device)
        stream.wait_stream(torch.cuda.current_stream(self.weights.device))
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._advance(bucket)
                self._place(token, position)
        torch.cuda.current_stream(self.weights.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._advance(bucket)
        return graph

    @torch.inference_mode()
    def append(self, ids: Sequence[int]) -> Logits:
        """See :class:`Peer`."""
        if not self.length:
            return super().append(ids)
        self._place(int(ids[0]), self.length)
        self._replay()
        return on_host(self._logits)

    @torch.inference_mode()
    def decode_greedy(self, token: int, count: int) -> list[int]:
        """See :class:`Peer`."""
        self._place(int(token), self.length)
        chosen = []
        for _ in range(count):
            self._replay()
            chosen.append(int(self._token))
        return chosen

    def close(self) -> None:
        """See :class:`Peer`."""
        self._graphs.clear()
        super().close()


def on_host(logits: Tensor) -> Logits:
    """A float32 NumPy copy that no later step overwrites."""
    return logits.to("cpu", copy=True).numpy()


def opened(checkpoint: Checkpoint, threads: int) -> Iterator[Peer]:
    """PyTorch's peers: fp32 on the CPU; with a CUDA device also fp32 and fp16 there, eager and as a graph."""
    weights = Weights(checkpoint, torch.device("cpu"), torch.float32)
    yield EagerPeer(weights, f"torch eager fp32, {threads_text(threads)}", threads)
    if torch.cuda.is_available():
        for name, dtype in {"fp32": torch.float32, "fp16": torch.float16}.items():
            weights, device = Weights(checkpoint, torch.device("cuda"), dtype), torch.cuda.get_device_name()
            yield EagerPeer(weights, f"torch eager {name}, {device}")
            yield GraphPeer(weights, f"torch CUDA graph {name}, {device}")
