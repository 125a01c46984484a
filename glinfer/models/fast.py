"""The fast plan: one token a run over a cache of keys and values, everything fused that can be.

Six passes a block: q, k and v together (LayerNorm folded into the matrix, written straight into the cache), the
scores of all heads, softmax and weighted sum, output projection + residual, MLP-in + GELU, MLP-out + residual; and
one each for the embedding, the logits and the choice of the next token: ``6 × blocks + 3`` draws.
"""

from __future__ import annotations

from glinfer.config import ModelConfig
from glinfer.gl.blocks import BLOCK_FLOATS
from glinfer.gl.layout import Extent
from glinfer.models.parts import PartsBuilder, cache_slots, kind_of
from glinfer.models.plan import Plan
from glinfer.ops.cached import cached_scores, cached_values, score_slots
from glinfer.ops.embed import embed_token
from glinfer.ops.gemm import shared_parts
from glinfer.ops.gemv import gemv
from glinfer.ops.kernels import Kernels
from glinfer.ops.sample import pick
from glinfer.ops.spec import RunValue, TensorSpec

PICKS, LOGITS, HIDDEN = "picks", "logits", "hidden.a"
HEAD_DRAWS = 2
"""The last draws, logits and choice, which a token of the prompt can do without."""
TAIL_DRAWS = HEAD_DRAWS + 5
"""The last block's draws behind its keys and values, and those of the head: what is left to do for the last token of a
prompt that was taken in in chunks. Its stream, as the last block finds it, is in HIDDEN."""


def fast_plan(config: ModelConfig, *, weights: str, kernels: Kernels, max_texture_size: int) -> Plan:
    """Six passes a block, ``6 × blocks + 3`` in all, one token a run.

    Run values: ``position`` of the token in the sequence; ``token``, its id, or -1 for the one that the run before
    chose; ``score_slots`` = ⌈(position + 1) / 64⌉; ``noise`` (0 or 1), ``inverse_temperature`` and ``noise_key`` for
    the choice of the next token, see :func:`glinfer.ops.sample.pick`.

    Args:
        config: the model's shape.
        weights: a key of :data:`glinfer.models.fold.WEIGHT_FORMATS`.
        kernels: how the passes are shaped.
        max_texture_size: of the renderer, in texels.

    Raises:
        PlanError: there is no such format, or something does not fit a texture.
    """
    return _FastBuilder(config, weights, kernels, max_texture_size).build()


def run_values(config: ModelConfig) -> list[RunValue]:
    """What changes from token to token."""
    context = config.max_position_embeddings
    return [
        RunValue("position", 0, context - 1, lambda tokens: tokens - 1),
        RunValue("score_slots", 1, score_slots(context), score_slots),
        RunValue("token", -1, config.vocab_size - 1, lambda tokens: 0),
        RunValue("noise", 0.0, 1.0),
        RunValue("inverse_temperature", 0.0, 3.4e38),
        RunValue("noise_key", 0, 2**32 - 1),
    ]


class _FastBuilder(PartsBuilder):
    def __init__(self, config: ModelConfig, weights: str, kernels: Kernels, max_texture_size: int) -> None:
        context = config.max_position_embeddings
        super().__init__("fast", context, run_values(config), config, weights, kernels, max_texture_size)
        first = self.vector(HIDDEN, config.hidden_size)
        # Blending adds to the stream in place; otherwise it goes from one texture to the other and back.
        self.hidden = (first, first if kernels.part_steps else self.vector("hidden.b", config.hidden_size))
        self.scores = self.blocks("attn.scores", score_slots(context), config.num_attention_heads * BLOCK_FLOATS)
        self.mixed = self.vector("attn.mixed", self.attention_width)
        self.inner = self.vector("mlp.inner", config.intermediate_size)
        self.logits = self.vector(LOGITS, config.vocab_size)
        # Last token's choice is read while this token's is written a slot further, never in one draw.
        self.picks = self.cache(PICKS, context, BLOCK_FLOATS)

    def vector(self, name: str, floats: int) -> TensorSpec:
        return self.blocks(name, 1, floats)

    def build(self) -> Plan:
        config, plan = self.config, self.plan
        wte, wpe = self.tables()
        plan.draw(embed_token("embed", wte, wpe, self.picks, self.hidden[0], kernels=self.kernels))
        for block in range(config.num_hidden_layers):
            self.block(f"h.{block}")
        self.product("lm_head", self.hidden[0], self.logits, packing=self.head_packing, norm=True)
        plan.draw(
            pick("pick", self.logits, self.picks, vocab=config.vocab_size, first="position", kernels=self.kernels)
        )
        return plan.build()

    def block(self, block: str) -> None:
        config = self.config
        heads, floats, kernels = config.num_attention_heads, self.head_floats, self.kernels
        cache = self.attention_cache(block, cache_slots(config))
        self.product(f"{block}.attn.qkv", self.hidden[0], cache, norm=True, first="position")
        self.plan.draw(
            cached_scores(f"{block}.attn.scores", cache, self.scores, heads=heads, head_floats=floats, kernels=kernels),
            cached_values(
                f"{block}.attn.values", self.scores, cache, self.mixed, heads=heads, head_floats=floats, kernels=kernels
            ),
        )
        self.add(f"{block}.attn.out_proj", self.mixed, self.hidden[0], self.hidden[1])
        self.product(f"{block}.mlp.fc_in", self.hidden[1], self.inner, norm=True, activation=config.hidden_act)
        self.add(f"{block}.mlp.fc_out", self.inner, self.hidden[1], self.hidden[0])

    def add(self, name: str, x: TensorSpec, residual: TensorSpec, out: TensorSpec) -> None:
        if residual is not out:
            self.product(name, x, out, residual=residual)
        else:
            self.product(name, x, out, adds=True, parts=shared_parts(x.shape[1], self.kernels.part_steps))

    def product(
        self,
        name: str,
        x: TensorSpec,
        out: TensorSpec,
        *,
        packing: str | None = None,
        norm: bool = False,
        residual: TensorSpec | None = None,
        activation: str = "none",
        first: Extent = 0,
        adds: bool = False,
        parts: int = 1,
    ) -> None:
        weight, consts = self.weights(name, out.shape[1], x.shape[1], packing)
        self.plan.draw(
            gemv(
                name,
                kind_of(name),
                x,
                weight,
                consts,
                out,
                first=first,
                norm_eps=self.config.layer_norm_eps if norm else None,
                residual=residual,
                activation=activation,
                adds=adds,
                parts=parts,
                kernels=self.kernels,
            )
        )
