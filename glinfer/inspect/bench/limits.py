"""Lower bounds of the timed figures: the minimum times of fetching, multiplying, and issuing passes.

A bound is an amount of work over the peak rate of passes that do nothing else (:mod:`glinfer.inspect.ceiling`). Each
weight is fetched once per run, cached keys and values once by each draw that reads them, and multiply-adds are those
of the graph's matrices and of the mixing of tokens, without padding, norms and the unpacking of weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glinfer.engine.model import Model
from glinfer.engine.prefill import MAX_SINGLE_TOKENS, Prefill
from glinfer.engine.report import Report
from glinfer.graph.model import Graph, graph_of
from glinfer.graph.nodes import Attention, Convolution, DeltaMixing, ExpertMlps, Linear, PerLayer
from glinfer.inspect.ceiling import CeilingReport
from glinfer.inspect.profile.traffic import draw_traffic
from glinfer.kernels.spec import DrawSpec
from glinfer.lower.feed import runs
from glinfer.lower.fused.token import HEAD_DRAWS
from glinfer.program.plan import Plan

_PARTS = ("fetch", "multiply", "passes")


@dataclass(frozen=True)
class Workload:
    """Minimum work of one figure: bytes by texture format, multiply-adds, and draws that wait for each other."""

    fetched: Mapping[str, int]
    multiply_adds: int
    passes: int


@dataclass(frozen=True)
class Limit(Report):
    """The lower bounds of one figure in milliseconds; ``bound_by`` names the largest, which is ``limit_ms``.

    Fetching is at the rate of textures of that format and size; the passes are empty, each reads the previous one's
    output.
    """

    derived = ("bound_by", "limit_ms")

    fetch_ms: float
    multiply_ms: float
    passes_ms: float

    @property
    def bound_by(self) -> str:
        """``fetch``, ``multiply`` or ``passes``."""
        return _PARTS[self.bounds.index(self.limit_ms)]

    @property
    def limit_ms(self) -> float:
        """The largest of the three."""
        return max(self.bounds)

    @property
    def bounds(self) -> tuple[float, float, float]:
        """The three of them."""
        return self.fetch_ms, self.multiply_ms, self.passes_ms

    def text(self, milliseconds: float) -> str:
        """Describe the limit as a share of a measured time, and what bounds it."""
        return f"{100 * self.limit_ms / milliseconds:.0f}% {self.bound_by}"


def limit_of(work: Workload, ceiling: CeilingReport) -> Limit:
    """Return the lower bounds of some work; the ceilings must include its texture formats."""
    fetching = sum(size / ceiling.fetch(name, size).bytes_per_second for name, size in work.fetched.items() if size)
    multiplying = work.multiply_adds / ceiling.multiply_adds_per_second
    return Limit(1000.0 * fetching, 1000.0 * multiplying, ceiling.pass_us * work.passes / 1000.0)


def token_work(model: Model, tokens: int) -> Workload:
    """Return the work of the last of ``tokens`` tokens, chosen on the GPU."""
    return batch_work(model, tokens, 1, len(model.plan.draws))


def batch_work(model: Model, tokens: int, sequences: int, passes: int) -> Workload:
    """Return the work of one more token of each of several sequences of ``tokens`` tokens, in ``passes`` draws."""
    edge, layers = model.device.limits.max_texture_size, range(model.config.num_hidden_layers)
    fetched = fetched_bytes(model.plan, edge, model.plan.values_for(tokens), sequences=sequences)
    graph = graph_of(model.config, absorbed=True)
    each = sum(_products(graph, layer) + _mixing(graph, layer, tokens) for layer in layers)
    return Workload(fetched, sequences * (each + math.prod(graph.embeddings.weight.shape)), passes)


def prompt_work(model: Model, tokens: int) -> Workload:
    """Return the work from a prompt of ``tokens`` tokens to the next token's logits, in chunks."""
    plan, graph, edge = model.plan, graph_of(model.config, absorbed=True), model.device.limits.max_texture_size
    chunk = Prefill(model.engine.options).plan()
    fetched, starts = Counter[str](), range(0, tokens, chunk.max_rows)
    for first in starts:
        rows = min(chunk.max_rows, tokens - first)
        ((_, values),) = runs(chunk, [0] * rows, first)
        fetched.update(fetched_bytes(chunk, edge, values))
    # The last token continues in the decode plan, from the last block that keeps something for later tokens.
    rest = plan.draws[plan.last_layer : len(plan.draws) - HEAD_DRAWS + 1]
    fetched.update(fetched_bytes(plan, edge, plan.values_for(tokens), rest))
    last, layers = model.config.producing_layers - 1, model.config.num_hidden_layers
    multiply_adds = tokens * sum(_products(graph, layer) for layer in range(last))
    multiply_adds += sum(_mixing(graph, layer, seen) for layer in range(last) for seen in range(1, tokens + 1))
    # In that block, prompt tokens other than the last need only their cache entries.
    multiply_adds += (tokens - 1) * _products(graph, last, cached=True)
    multiply_adds += sum(_products(graph, layer) + _mixing(graph, layer, tokens) for layer in range(last, layers))
    multiply_adds += math.prod(graph.embeddings.weight.shape)
    passes = len(starts) * len(chunk.draws) + len(rest)
    if tokens <= MAX_SINGLE_TOKENS:
        passes = tokens * (len(plan.draws) - HEAD_DRAWS) + 1
    return Workload(fetched, multiply_adds, passes)


def fetched_bytes(
    plan: Plan,
    max_texture_size: int,
    values: Mapping[str, int | float] | None = None,
    draws: Sequence[DrawSpec] | None = None,
    *,
    sequences: int = 1,
) -> dict[str, int]:
    """Count the bytes of weights and caches that one run of a fast plan fetches, by texture format.

    A run fetches whole matrices and one row of each table. ``values`` default to those of the longest run, ``draws`` to
    all. Each of ``sequences`` fetches as much of its caches; 0 counts only weights.
    """
    sizes = Counter[tuple[str, str]]()
    costs = draw_traffic(plan, values or plan.values_for(plan.max_rows), max_texture_size)
    for spec, cost in zip(plan.draws, costs, strict=True):
        for read in cost.reads if draws is None or spec in draws else ():
            tensor = plan.table[plan.root(read.tensor)]
            key = tensor.name, tensor.format
            if tensor.kind == "weight":
                # Tied embeddings are fetched whole by the product with the vocabulary matrix.
                sizes[key] = max(read.bytes, sizes[key])
            elif tensor.kind == "cache":
                sizes[key] += sequences * read.bytes
    found = Counter[str]()
    for (_, form), size in sizes.items():
        found[form] += size
    return found


def _products(graph: Graph, layer: int, *, cached: bool = False) -> int:
    """Count one row's multiply-adds with the matrices of a layer, or only with those whose results are cached.

    Of the experts, a row uses as many as the router chooses.
    """
    node = graph.layer(layer)
    mlp, bodies = node.mlp.body, [branch.body for branch in node.mixings]
    if cached:
        stored: list[Linear | None] = []
        for body in bodies:
            assert isinstance(body, Attention | Convolution | DeltaMixing)
            stored += (body.k, body.v) if isinstance(body, Attention) else body.into
        return sum(math.prod(each.weight.shape) for each in stored if each is not None)
    weights = [each for body in bodies for each in body.tensors()]
    if node.per_layer is not None and isinstance(own := node.per_layer.body, PerLayer):
        weights += [own.gate.weight, own.out.weight]
    if isinstance(mlp, ExpertMlps):
        used = mlp.experts[: graph.config.num_experts_per_tok]
        parts = (mlp.router, *used, mlp.shared_router, mlp.shared)
        weights += [each for part in parts if part is not None for each in part.tensors()]
    else:
        weights += mlp.tensors()
    return sum(math.prod(each.shape) for each in weights if len(each.shape) == 2)


def _mixing(graph: Graph, layer: int, tokens: int) -> int:
    """Count the multiply-adds of the last of some tokens with what a layer keeps of the tokens before it."""
    found = 0
    for node in (branch.body for branch in graph.layer(layer).mixings):
        if isinstance(node, Attention):
            found += 2 * node.out.inputs * min(tokens, node.of.window or tokens)
            continue
        assert isinstance(node, Convolution | DeltaMixing)
        found += math.prod(node.conv.weight.shape)
        if isinstance(node, DeltaMixing):  # the state is read for the key and for the query, and changed once
            found += 3 * node.rule.heads * node.rule.key * node.rule.value
    return found
