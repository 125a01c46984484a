"""The fast plan: one token a run over a cache of keys and values, in the fewest passes.

docs/architecture.md counts the passes of each kind of layer: six with attention, and three at the ends.
"""

from __future__ import annotations

from glinfer.config import ModelConfig
from glinfer.errors import PlanError
from glinfer.gl.layouts.blocks import BLOCK_FLOATS
from glinfer.gl.values import Value
from glinfer.graph.model import graph_of
from glinfer.kernels.fused.cached import SLOT_TOKENS, score_slots
from glinfer.kernels.options import KernelOptions
from glinfer.kernels.spec import RunValue, TensorSpec
from glinfer.lower.fused.caches import cache_slots, rings_of
from glinfer.lower.fused.lowering import Lowering
from glinfer.lower.options import PlanOptions
from glinfer.lower.ropes import angle_values
from glinfer.lower.weights.low_rank import NO_ADAPTERS, AdapterRanks
from glinfer.program.plan import Plan

PICKS, LOGITS, HIDDEN = "picks", "logits", "hidden.a"
HEAD_DRAWS = 2
"""The draws at the end (logits, pick), skipped for prompt tokens."""


def fast_plan(options: PlanOptions) -> Plan:
    """The plan ``fast``: one token a run.

    Inputs: ``position`` of the token in the sequence; ``token``, its id, or -1 for the token that the run before
    chose; ``noise`` (0 or 1), ``inverse_temperature`` and ``noise_key`` for the choice of the next token, see
    :func:`glinfer.kernels.fused.sample.pick`; and where the model has two sets of angles, ``long``: 1 for a text that
    has the second.

    Raises:
        PlanError: there is no such format, or something does not fit a texture.
    """
    return _TokenLowering(options).build()


def run_values(config: ModelConfig, adapters: AdapterRanks = NO_ADAPTERS, *, back: bool = False) -> list[RunValue]:
    """The run values of the fast plan."""
    context = config.max_position_embeddings
    return [
        RunValue("position", 0, context - 1, usual=("add", "tokens", -1)),
        RunValue("score_slots", 1, score_slots(context), ("ceildiv", ("add", "position", 1), SLOT_TOKENS)),
        RunValue("token", -1, config.vocab_size - 1, usual=0),
        RunValue("noise", 0.0, 1.0),
        RunValue("inverse_temperature", 0.0, 3.4e38),
        RunValue("noise_key", 0, 2**32 - 1),
        *angle_values(config, back=back),
        *adapters.run_values,
        *(RunValue(f"ring.{size}", 0, size - 1, _modulo("position", size)) for size in rings_of(config)),
    ]


def stream_before(config: ModelConfig, kernels: KernelOptions, layer: int) -> str:
    """The name of the residual stream before a layer of the fast plan.

    A factor of the stream writes to the other one of two tensors, and without blending each branch does.
    """
    graph, moves = graph_of(config), 0
    for number in range(layer):
        of = graph.layer(number)
        moves += (of.scale is not None) + (0 if kernels.part_steps else len(of.branches))
    return "hidden.b" if moves % 2 else HIDDEN


def _modulo(name: str, size: int) -> Value:
    """The remainder of a run value."""
    whole = "ceildiv", ("add", name, 1 - size), size
    return "add", name, ("multiply", whole, -size)


class _TokenLowering(Lowering):
    """One row, each activation in one tensor."""

    few = True
    picks: TensorSpec

    def __init__(self, options: PlanOptions) -> None:
        config, context, slots = options.config, options.config.max_position_embeddings, cache_slots(options.config)
        values = run_values(config, options.adapters, back=bool(options.sections))
        super().__init__("fast", context, values, options, cache_slots=slots, every=slots)
        self.declare(in_place=self.kernels.part_steps > 0, stores=self.in_bytes)
        shape = score_slots(context), config.num_attention_heads * BLOCK_FLOATS
        self.scores = self.blocks("attn.scores", *shape)
        # Only instances that share the values gain by statistics, and only quads give them.
        shared = self.kernels.split_values and self.kernels.quad
        self.stats = self.blocks("attn.stats", *shape) if shared else None
        self.rows(LOGITS, config.vocab_size)
        # A run reads the choice of the run before in one draw and writes its own, a slot further, in another.
        self.picks = self.cache(PICKS, context, BLOCK_FLOATS)

    def build(self) -> Plan:
        self.embed()
        for layer in self.graph.layers:
            if layer.number < self.config.producing_layers:  # a prompt's last token continues from the last of these
                self.plan.begin_layer()
            self.draw_layer(layer)
        self.pick(self.picks)
        plan = self.plan.build()
        unread = [name for name in self.weights if name not in plan.table]
        if unread:
            raise PlanError(
                f"the fast plan of {self.config.model_type} does not read {unread[0]}; add a draw that does"
            )
        return plan
