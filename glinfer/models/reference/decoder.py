"""The reference plan of models without a published one: the whole sequence in each run, one pass an operation.

No passes are fused, and a run keeps nothing for the next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from glinfer.models.plan import Plan
from glinfer.models.reference.parts import DecoderBuilder, ReferenceOptions
from glinfer.ops.flat.activate import gate
from glinfer.ops.flat.elementwise import arithmetic
from glinfer.ops.flat.movement import repack, strided_copy
from glinfer.ops.flat.normalize import Norm, normalized
from glinfer.ops.flat.product import Finish, Product
from glinfer.ops.flat.rotate import rotate
from glinfer.ops.flat.strided import Axis
from glinfer.ops.spec import RunValue, TensorSpec

PROBS, LAST_ROW = "probs", "last_row"


def reference_decoder_plan(options: ReferenceOptions, *, rows: int) -> Plan:
    """The plan of a whole sequence of at most ``rows`` tokens; rows behind the end of a shorter one are padding.

    It computes the logits and probabilities, [1, vocab], of the row that the run value ``last_row`` names. The input
    is ``tokens`` [rows, 1].

    Raises:
        PlanError: something does not fit a texture.
    """
    return _ReferenceBuilder(options, rows).build()


class _ReferenceBuilder(DecoderBuilder):
    def __init__(self, options: ReferenceOptions, rows: int) -> None:
        values = [RunValue(LAST_ROW, 0, rows - 1, lambda tokens: tokens - 1)]
        super().__init__("reference", options, rows=rows, max_rows=rows, run_values=values)
        self.hidden, self.other = (
            self.scratch(f"hidden.{letter}", rows, options.config.hidden_size) for letter in "ab"
        )

    def build(self) -> Plan:
        """Draw all passes: embedding, layers, logits and probabilities of the last row."""
        self.embed(self.hidden, 0)
        for index in range(self.config.num_hidden_layers):
            self.attention(index)
            self.mlp(index)
        logits = self.head(self.take_row(self.hidden))
        probs = self.scratch(PROBS, *logits.shape)
        softmax = Norm("softmax")
        self.plan.draw(*normalized(PROBS, PROBS, logits, probs, softmax, scratch=self.scratch, kernels=self.kernels))
        return self.plan.build()

    def attention(self, index: int) -> None:
        """Draw the attention of a layer, and add it to the stream."""
        config, names, name = self.config, self.names, f"h.{index}.attn"
        rows, dim = self.rows, config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        normed = self.norm(f"{name}.norm", "attn.norm", names.of("attention_norm", index), self.hidden)
        apart = {}
        for letter in "qkv":
            count = heads if letter == "q" else kv_heads
            weights = names.of("projection", index, letter)
            x = self.scratch(f"{name}.{letter}_proj", rows, count * dim)
            self.linear(f"{name}.{letter}_proj", f"attn.{letter}_proj", weights, normed, x)
            if letter != "v":
                x = self.turn(name, index, letter, x, count)
            apart[letter] = self.scratch(f"{name}.{letter}", count * rows, dim)
            axes = [Axis(count, 0, dim), Axis(rows, 1, 0), Axis(dim, 0, 1)]
            self.plan.draw(strided_copy(f"{name}.{letter}", "attn.heads", x, apart[letter], axes, kernels=self.kernels))
        mixed = self.mix(name, index, apart)
        joined = self.scratch(f"{name}.joined", rows, heads * dim)
        self.join_heads(f"{name}.joined", "attn.joined", mixed, joined)
        out = self.scratch(f"{name}.out", rows, config.hidden_size)
        self.linear(f"{name}.out", "attn.out_proj", names.of("output", index), joined, out)
        self.add(f"{name}.add", out)

    def turn(self, name: str, layer: int, letter: str, x: TensorSpec, heads: int) -> TensorSpec:
        """Draw the norm and the rotation of heads of queries or keys, as far as the family has them."""
        plan, dim = self.plan, self.config.head_dim
        if self.family.head_norms:
            by_head = self.scratch(f"{name}.{letter}_heads", self.rows * heads, dim)
            normed = self.scratch(f"{name}.{letter}_normed", self.rows * heads, dim)
            again = self.scratch(f"{name}.{letter}_rows", *x.shape)
            norm = Norm(
                "rms",
                self.vector(f"{self.names.of('head_norm', layer, letter)}.weight"),
                eps=self.config.layer_norm_eps,
                offset=self.family.norm_offset,
            )
            kind = "attn.head_norm"
            plan.draw(repack(f"{name}.{letter}_heads", kind, x, by_head, kernels=self.kernels))
            step = f"{name}.{letter}_norm"
            plan.draw(*normalized(step, kind, by_head, normed, norm, scratch=self.scratch, kernels=self.kernels))
            plan.draw(repack(f"{name}.{letter}_rows", kind, normed, again, kernels=self.kernels))
            x = again
        if not self.family.rotary:
            return x
        turned = self.scratch(f"{name}.{letter}_turned", *x.shape)
        interleaved = self.family.positions == "neighbours"
        plan.draw(
            rotate(
                f"{name}.{letter}_turned",
                "attn.rope",
                x,
                self.rope(),
                turned,
                kernels=self.kernels,
                heads=heads,
                interleaved=interleaved,
            )
        )
        return turned

    def mix(self, name: str, index: int, apart: Mapping[str, TensorSpec]) -> TensorSpec:
        """Draw scores, probabilities and weighted sums of all heads; returns the sums [heads · rows, D]."""
        config, rows, dim = self.config, self.rows, self.config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        shared = heads // kv_heads
        scores, probs = (self.scratch(f"{name}.{part}", heads * rows, rows) for part in ("scores", "probs"))
        mixed = self.scratch(f"{name}.mixed", heads * rows, dim)
        finish = Finish(scale=1.0 / math.sqrt(dim), causal=0, window=config.window_of(index))
        batch, x_steps, weight_steps = (1, kv_heads, shared), (heads, shared, 1), (kv_heads, 1, 0)
        product = Product(rows, rows, dim, transposed=True, batch=batch, x_steps=x_steps, weight_steps=weight_steps)
        self.multiply(f"{name}.scores", "attn.scores", apart["q"], apart["k"], scores, product, finish)
        softmax = Norm("softmax")
        self.plan.draw(
            *normalized(
                f"{name}.probs", "attn.probs", scores, probs, softmax, scratch=self.scratch, kernels=self.kernels
            )
        )
        product = Product(rows, dim, rows, batch=batch, x_steps=x_steps, weight_steps=weight_steps)
        self.multiply(f"{name}.mixed", "attn.mixed", probs, apart["v"], mixed, product, Finish())
        return mixed

    def mlp(self, index: int) -> None:
        """Draw the MLP of a layer, and add it to the stream."""
        config, names, name = self.config, self.names, f"h.{index}.mlp"
        rows, inner = self.rows, config.intermediate_size
        act = config.hidden_act
        normed = self.norm(f"{name}.norm", "mlp.norm", names.of("mlp_norm", index), self.hidden)
        hidden, up = (self.scratch(f"{name}.{part}", rows, inner) for part in ("inner", "up_proj"))
        if self.family.gated:
            gates = self.scratch(f"{name}.gate_proj", rows, inner)
            self.linear(f"{name}.gate_proj", "mlp.gate_proj", names.of("gate", index), normed, gates)
            self.linear(f"{name}.up_proj", "mlp.up_proj", names.of("up", index), normed, up)
            self.plan.draw(gate(f"{name}.gate", "mlp.gate", gates, hidden, up=up, activation=act, kernels=self.kernels))
        else:
            self.linear(f"{name}.up_proj", "mlp.up_proj", names.of("up", index), normed, hidden, activation=act)
        out = self.scratch(f"{name}.down", rows, config.hidden_size)
        self.linear(f"{name}.down", "mlp.down_proj", names.of("down", index), hidden, out)
        self.add(f"{name}.add", out)

    def add(self, name: str, x: TensorSpec) -> None:
        """Draw the sum of the stream and ``x``, from one texture of the stream into the other."""
        self.plan.draw(arithmetic(name, "residual", self.hidden, x, self.other, operation="add", kernels=self.kernels))
        self.hidden, self.other = self.other, self.hidden
