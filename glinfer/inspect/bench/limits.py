"""Lower bounds of the timed figures: the minimum times of fetching, multiplying, and issuing passes.

Each bound is an amount of work over the peak rate of passes that do nothing else on the renderer
(:mod:`glinfer.inspect.ceiling`). A figure cannot be faster than the largest of its three bounds, its **limit**. The
amounts are the minimum that the computation needs: each weight and each cached key and value is fetched once per run,
and multiply-adds count the model's matrices and attention, without padding, norms and the unpacking of weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glinfer.config import ModelConfig
from glinfer.engine.model import Model
from glinfer.engine.prefill import MAX_SINGLE_TOKENS, Prefill
from glinfer.engine.report import Report
from glinfer.formats.tensors import tensors_of
from glinfer.gl.layouts.blocks import float_bytes
from glinfer.inspect.ceiling import CeilingReport
from glinfer.inspect.profile.traffic import draw_traffic
from glinfer.models.fast.token import HEAD_DRAWS
from glinfer.models.plan import Plan
from glinfer.ops.fused.delta import seen
from glinfer.ops.spec import DrawSpec
from glinfer.quant.formats import CACHE_FORMATS

_STORED = ("conv_in", "delta_in", "projection")
"""Roles of matrices whose results are cached, except for those of queries."""
_PARTS = ("fetch", "multiply", "passes")


@dataclass(frozen=True)
class Work:
    """Minimum work of one figure.

    Attributes:
        fetched: bytes by texture format.
        multiply_adds: float32 multiply-adds.
        passes: draws, each of which waits for the previous one.
    """

    fetched: Mapping[str, int]
    multiply_adds: int
    passes: int


@dataclass(frozen=True)
class Limit(Report):
    """The lower bounds of one figure, in milliseconds; ``bound_by`` names the largest, which is ``limit_ms``.

    Attributes:
        fetch_ms: fetching alone, at the rate of textures of that format and size.
        multiply_ms: multiply-adds alone.
        passes_ms: as many empty passes, each reading the output of the previous one.
    """

    derived = ("bound_by", "limit_ms")

    fetch_ms: float
    multiply_ms: float
    passes_ms: float

    @property
    def bound_by(self) -> str:
        """``fetch``, ``multiply`` or ``passes``."""
        return max(_PARTS, key=lambda part: float(getattr(self, f"{part}_ms")))

    @property
    def limit_ms(self) -> float:
        """The largest of the three."""
        return max(self.fetch_ms, self.multiply_ms, self.passes_ms)

    def share(self, milliseconds: float) -> float:
        """Return the limit as a share of a measured time; 1 is optimal."""
        return self.limit_ms / milliseconds


def limit_of(work: Work, ceiling: CeilingReport) -> Limit:
    """Return the lower bounds of some work; the ceilings must include its texture formats."""
    fetching = sum(size / ceiling.fetch(name, size).bytes_per_second for name, size in work.fetched.items() if size)
    multiplying = work.multiply_adds / ceiling.multiply_adds_per_second
    return Limit(1000.0 * fetching, 1000.0 * multiplying, ceiling.pass_us * work.passes / 1000.0)


def token_work(model: Model, tokens: int) -> Work:
    """Return the work of the last of ``tokens`` tokens, chosen on the GPU."""
    return batch_work(model, tokens, 1, len(model.plan.draws))


def batch_work(model: Model, tokens: int, sequences: int, passes: int) -> Work:
    """Return the work of one more token of each of several sequences of ``tokens`` tokens, in ``passes`` draws."""
    config = model.config
    fetched = weight_bytes(model.plan, model.device.limits.max_texture_size)
    for name, size in _cached_bytes(config, model.cache, tokens).items():
        _add(fetched, name, sequences * size)
    layers, _, head = _matrices(config)
    multiply_adds = sum(layers) + head + sum(_mixed(config, layer, tokens)[1] for layer in range(len(layers)))
    return Work(fetched, sequences * multiply_adds, passes)


def prompt_work(model: Model, tokens: int) -> Work:
    """Return the work from a prompt of ``tokens`` tokens to the next token's logits, in chunks."""
    config, plan = model.config, model.plan
    chunk = Prefill(model.engine.options).plan()
    edge, runs = model.device.limits.max_texture_size, math.ceil(tokens / chunk.max_rows)
    fetched = {name: runs * size for name, size in weight_bytes(chunk, edge).items()}
    ends = [min(tokens, (run + 1) * chunk.max_rows) for run in range(runs)]
    for end in ends:
        for name, size in _cached_bytes(config, model.cache, end).items():
            _add(fetched, name, size)
    # The last token continues in the decode plan, from its last block.
    rest = plan.draws[plan.last_layer : len(plan.draws) - HEAD_DRAWS + 1]
    for name, size in weight_bytes(plan, edge, rest).items():
        _add(fetched, name, size)
    layers, stored, head = _matrices(config)
    last = len(layers) - 1
    # In the last block, prompt tokens other than the last need only their cache entries.
    multiply_adds = tokens * sum(layers[:last]) + (tokens - 1) * stored[last] + layers[last] + head
    multiply_adds += sum(_mixed(config, layer, seen)[1] for layer in range(last) for seen in range(1, tokens + 1))
    multiply_adds += _mixed(config, last, tokens)[1]
    passes = runs * len(chunk.draws) + len(rest)
    if tokens <= MAX_SINGLE_TOKENS:
        passes = tokens * (len(plan.draws) - HEAD_DRAWS) + 1
    return Work(fetched, multiply_adds, passes)


def weight_bytes(plan: Plan, max_texture_size: int, draws: Sequence[DrawSpec] | None = None) -> dict[str, int]:
    """Count the bytes of weights that one run fetches, by texture format: whole matrices, one row of each table.

    Args:
        plan: a fast plan.
        max_texture_size: limit of the renderer, in texels a side.
        draws: draws that run; default: all.
    """
    values, sizes = plan.values_for(plan.max_rows), dict[tuple[str, str], int]()
    for spec, cost in zip(plan.draws, draw_traffic(plan, values, max_texture_size), strict=True):
        for read in cost.reads if draws is None or spec in draws else ():
            tensor = plan.table[plan.root(read.tensor)]
            if tensor.kind == "weight":
                # Tied embeddings are fetched whole by the product with the vocabulary matrix.
                key = tensor.name, tensor.format
                sizes[key] = max(read.bytes, sizes.get(key, 0))
    found: dict[str, int] = {}
    for (_, form), size in sizes.items():
        _add(found, form, size)
    return found


def _add(found: dict[str, int], name: str, size: int) -> None:
    found[name] = found.get(name, 0) + size


def _matrices(config: ModelConfig) -> tuple[list[int], list[int], int]:
    """Count one row's multiply-adds with the matrices of each layer, those for its cache, and the vocabulary matrix.

    Of the experts, a row uses as many as the router chooses.
    """
    layers, stored = [0] * config.num_hidden_layers, [0] * config.num_hidden_layers
    for tensor in tensors_of(config):
        used = tensor.role not in ("gate", "up", "down") or int(tensor.letter or 0) < max(1, config.num_experts_per_tok)
        if tensor.layer is not None and len(tensor.shape) == 2 and used:
            layers[tensor.layer] += math.prod(tensor.shape)
            stored[tensor.layer] += math.prod(tensor.shape) if tensor.role in _STORED and tensor.letter != "q" else 0
    return layers, stored, config.vocab_size * config.hidden_size


def _mixed(config: ModelConfig, layer: int, tokens: int) -> tuple[int, int]:
    """Count the cached numbers that the last of some tokens sees in a layer, and its multiply-adds with them."""
    of = config.layer(layer)
    if of.convolves:
        return min(tokens, of.taps) * config.hidden_size, of.taps * config.hidden_size
    if (rule := of.delta) is not None:
        after = seen(tokens - 1)
        # For a key and for a query: the state, then weights and corrections of the tokens after it.
        each = rule.key * rule.value + after * (rule.key + rule.value)
        state = rule.key * rule.values if tokens > after else 0
        return state + after * (rule.keys + rule.values), of.taps * rule.channels + 2 * rule.heads * each
    each = 2 * config.head_dim * min(tokens, of.window or tokens)
    return config.num_key_value_heads * each, config.num_attention_heads * each


def _cached_bytes(config: ModelConfig, cache: str, tokens: int) -> dict[str, int]:
    """Count the cached bytes, by texture format, that the last of some tokens sees; delta rules keep float32."""
    found: dict[str, int] = {}
    for layer in range(config.num_hidden_layers):
        of = config.layer(layer)
        chosen = CACHE_FORMATS["f32" if of.delta is not None else cache]
        name = chosen.convolution if of.convolves else chosen.attention
        _add(found, name, float_bytes(_mixed(config, layer, tokens)[0], name))
    return found
