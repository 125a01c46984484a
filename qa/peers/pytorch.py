"""The model in PyTorch: plain eager code, and on an NVIDIA GPU also decoding as a CUDA graph.

Q, K and V are one matrix product; keys and values are in a cache as long as the context, allocated once. Nothing
else is fused, compiled or quantised: straightforward PyTorch code, with the fastest of PyTorch's attentions for one
row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from glinfer.formats.checkpoint import Checkpoint
from glinfer.formats.tensors import head_weight
from qa.peers.peer import Logits, Peer

MIN_BUCKET = 128
"""Smallest number of cached positions over which a CUDA graph attends; larger ones are powers of two."""

PRODUCTS_FROM = 768
"""Cached positions from which eager fp32 on a GPU attends by two matrix products, see :func:`_products`."""

_NAMES = {torch.float32: "fp32", torch.float16: "fp16"}


@dataclass(frozen=True)
class _Norm:
    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class _Block:
    ln_1: _Norm
    qkv: tuple[Tensor, Tensor | None]
    out: tuple[Tensor, Tensor | None]
    ln_2: _Norm
    fc_in: tuple[Tensor, Tensor]
    fc_out: tuple[Tensor, Tensor]


class Weights:
    """A checkpoint's tensors on one device in one number format; several peers may share them."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        """Copies every tensor, converted to ``dtype``."""
        self.config, self.device, self.dtype = checkpoint.config, device, dtype
        tensors, names = checkpoint.tensors, self.config.family.names
        self.wte = self._load(tensors[f"{names.embeddings}.weight"])
        self.wpe = self._load(tensors[f"{names.positions}.weight"])
        self.blocks = [self._block(tensors, i) for i in range(self.config.num_hidden_layers)]
        self.ln_f = self._norm(tensors, names.final_norm)
        self.head = self._load(tensors[head_weight(self.config)]), self._bias(tensors, names.head)
        self.gelu = "tanh" if self.config.hidden_act == "gelu_new" else "none"

    def _load(self, array: Logits) -> Tensor:
        # A contiguous copy: the arrays may be read-only views of a file, which torch does not know.
        return torch.from_numpy(np.array(array, dtype=np.float32, order="C")).to(self.device, self.dtype)

    def _pair(self, tensors: Mapping[str, Logits], name: str) -> tuple[Tensor, Tensor]:
        return self._load(tensors[f"{name}.weight"]), self._load(tensors[f"{name}.bias"])

    def _bias(self, tensors: Mapping[str, Logits], *names: str) -> Tensor | None:
        """The biases of these matrices, concatenated, if the family has them."""
        found = [tensors[f"{name}.bias"] for name in names if f"{name}.bias" in tensors]
        return self._load(np.concatenate(found)) if found else None

    def _norm(self, tensors: Mapping[str, Logits], name: str) -> _Norm:
        return _Norm(*self._pair(tensors, name), self.config.layer_norm_eps)

    def _block(self, tensors: Mapping[str, Logits], layer: int) -> _Block:
        names = self.config.family.names
        projections = [names.of("projection", layer, letter) for letter in "qkv"]
        qkv = self._load(np.concatenate([tensors[f"{projection}.weight"] for projection in projections]))
        out = names.of("output", layer)
        return _Block(
            ln_1=self._norm(tensors, names.of("attention_norm", layer)),
            qkv=(qkv, self._bias(tensors, *projections)),
            out=(self._load(tensors[f"{out}.weight"]), self._bias(tensors, out)),
            ln_2=self._norm(tensors, names.of("mlp_norm", layer)),
            fc_in=self._pair(tensors, names.of("up", layer)),
            fc_out=self._pair(tensors, names.of("down", layer)),
        )

    def split_heads(self, block: _Block, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The block's q, k and v of the rows x [T, D], each [1, heads, T, head width]."""
        config = self.config
        rows = functional.linear(block.ln_1(x), *block.qkv)
        q, k, v = rows.view(1, len(x), 3, config.num_attention_heads, config.head_dim).permute(2, 0, 3, 1, 4)
        return q, k, v

    def finish_block(self, block: _Block, x: Tensor, mixed: Tensor) -> Tensor:
        """The rest of the block, from the weighted sums ``mixed`` [1, heads, T, head width] on."""
        x = x + functional.linear(mixed.transpose(1, 2).reshape(x.shape), *block.out)
        inner = functional.gelu(functional.linear(block.ln_2(x), *block.fc_in), approximate=self.gelu)
        return x + functional.linear(inner, *block.fc_out)

    def logits(self, x: Tensor) -> Tensor:
        """Float32 logits [T, V] of the rows x [T, D]."""
        return functional.linear(self.ln_f(x), *self.head).float()


def _products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention of one row by two matrix products.

    For one row of fp32 on a GPU they beat PyTorch's own kernel, whose time grows with the cache: 19 µs at 128
    positions and 227 µs at 2048, against 10 and 20 µs (H200, in a CUDA graph).
    """
    scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2))
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.matmul(torch.softmax(scores, -1), v)


@contextmanager
def _without_plans(device: torch.device) -> Iterator[None]:
    """Keep cuDNN's attention out: it plans anew, for 25 ms, whenever the cache has another length."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


class EagerPeer(Peer):
    """Every operation issued from Python, one after another."""

    def __init__(self, weights: Weights, label: str) -> None:
        """Allocate the cache: keys and values [1, heads, context, head width] of each block."""
        config = weights.config
        super().__init__(config, label)
        self.weights = weights
        self._fp32_on_gpu = weights.device.type == "cuda" and weights.dtype is torch.float32
        shape = (1, config.num_attention_heads, config.max_position_embeddings, config.head_dim)
        # Zeros, not whatever lies there: a masked NaN would still spoil the sum that it is multiplied into.
        self.caches = [(self._zeros(shape, weights.dtype), self._zeros(shape, weights.dtype)) for _ in weights.blocks]

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.weights.device)

    @torch.inference_mode()
    def _forward(self, ids: Tensor, start: int) -> Tensor:
        """Append ids [T] at position ``start``, T = 1 or ``start`` = 0; float32 logits [V] of the last."""
        weights, stop = self.weights, start + len(ids)
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
        return weights.logits(x[-1:])[0]

    def _ids(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.int64, device=self.weights.device)

    def _clear(self) -> None:
        pass  # what lies beyond the length is overwritten before it is read

    def _prefill(self, ids: Sequence[int]) -> Logits:
        with _without_plans(self.weights.device):
            return on_host(self._forward(self._ids([int(token) for token in ids]), 0))

    def _step(self, token: int) -> Logits:
        with _without_plans(self.weights.device):
            return on_host(self._forward(self._ids([int(token)]), self._length))

    def _decode_greedy(self, token: int, count: int) -> list[int]:
        ids, chosen = self._ids([int(token)]), list[int]()
        with _without_plans(self.weights.device):
            for place in range(count):
                ids = self._forward(ids, self._length + place).argmax(keepdim=True)
                chosen.append(int(ids))
        return chosen

    def _rewind(self, length: int) -> None:
        pass

    def _close(self) -> None:
        self.caches.clear()
        del self.weights


class CpuThreads:
    """PyTorch's number of threads, which is one for the whole process, until :meth:`restore`."""

    def __init__(self, threads: int) -> None:
        """Set it."""
        self._before = torch.get_num_threads()
        torch.set_num_threads(threads)

    def restore(self) -> None:
        """Set the number from before."""
        torch.set_num_threads(self._before)


class CpuPeer(EagerPeer):
    """Eager on the CPU."""

    def __init__(self, weights: Weights, threads: int) -> None:
        """See :class:`EagerPeer`."""
        super().__init__(weights, f"torch eager {_NAMES[weights.dtype]}, {threads} thread{'s' * (threads > 1)}")
        self._threads = CpuThreads(threads)

    def _close(self) -> None:
        super()._close()
        self._threads.restore()


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
        self._token = self._zeros((1,), torch.int64)
        self._position = self._zeros((1,), torch.int64)
        self._logits = self._zeros((self.config.vocab_size,), torch.float32)
        self._places = torch.arange(self.config.max_position_embeddings, device=weights.device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

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

    def _graph(self, length: int) -> torch.cuda.CUDAGraph:
        """The graph that attends over at least ``length`` positions."""
        power = 1 << (length - 1).bit_length()
        bucket = min(max(MIN_BUCKET, power), self.config.max_position_embeddings)
        if bucket not in self._graphs:
            self._graphs[bucket] = self._capture(bucket)
        return self._graphs[bucket]

    def _capture(self, bucket: int) -> torch.cuda.CUDAGraph:
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
    def _step(self, token: int) -> Logits:
        self._place(int(token), self._length)
        self._graph(self._length + 1).replay()
        return on_host(self._logits)

    @torch.inference_mode()
    def _decode_greedy(self, token: int, count: int) -> list[int]:
        self._place(int(token), self._length)
        chosen = []
        for length in range(self._length + 1, self._length + 1 + count):
            self._graph(length).replay()
            chosen.append(int(self._token))
        return chosen

    def _close(self) -> None:
        self._graphs.clear()
        super()._close()


def on_host(logits: Tensor) -> Logits:
    """A float32 NumPy copy that no later step overwrites."""
    return logits.to("cpu", copy=True).numpy()


def open_torch(checkpoint: Checkpoint, threads: int) -> Iterator[Peer]:
    """PyTorch's peers: fp32 on the CPU; with a CUDA device also fp32 and fp16 there, eager and as a graph."""
    yield CpuPeer(Weights(checkpoint, torch.device("cpu"), torch.float32), threads)
    if torch.cuda.is_available():
        device, name = torch.device("cuda"), torch.cuda.get_device_name()
        for dtype in (torch.float32, torch.float16):
            weights = Weights(checkpoint, device, dtype)
            yield EagerPeer(weights, f"torch eager {_NAMES[dtype]}, {name}")
            yield GraphPeer(weights, f"torch CUDA graph {_NAMES[dtype]}, {name}")
